"""The zip that goes to a cluster: the same bytes from the same source, and nothing needed beside it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from typer.testing import CliRunner

import spark_sink
from app._jars import spark_jars
from app.cli.sink import sink
from errors import SetupError
from spark_sink import write_package

ROOM = Path(spark_sink.__file__).parent

IMPORT_ALL = """
import importlib, pkgutil, sys
sys.path.insert(0, sys.argv[1])
import spark_sink
assert spark_sink.__file__.startswith(sys.argv[1])
for module in pkgutil.iter_modules(spark_sink.__path__, "spark_sink."):
    importlib.import_module(module.name)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_the_same_source_gives_the_same_bytes(tmp_path: Path) -> None:
    zips = [tmp_path / "one" / "spark_sink.zip", tmp_path / "two" / "another name.zip"]
    digests = []
    for path, umask in zip(zips, (0o077, 0o022), strict=True):
        path.parent.mkdir()
        before = os.umask(umask)
        digests.append(write_package(path))
        os.umask(before)
    assert zips[0].read_bytes() == zips[1].read_bytes()
    assert set(digests) == {hashlib.sha256(zips[0].read_bytes()).hexdigest()}
    with zipfile.ZipFile(zips[0]) as archive:
        assert archive.namelist() == sorted(f"spark_sink/{path.name}" for path in ROOM.glob("*.py"))
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.read("spark_sink/_job.py") == (ROOM / "_job.py").read_bytes()
    assert {path.name for path in zips[0].parent.iterdir()} == {"spark_sink.zip", "sink_job.py"}


def test_nothing_of_the_other_rooms_is_needed(shipped: Path, tmp_path: Path) -> None:
    # -I: neither the checkout nor PYTHONPATH is where Python looks, only the zip and what is installed.
    done = subprocess.run(
        [sys.executable, "-I", "-c", IMPORT_ALL, str(shipped)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    rooms = {path.parent.name for path in ROOM.parent.glob("*/__init__.py")} - {"spark_sink", "tests"}
    assert {"app", "transport"} <= rooms
    assert not {*rooms, "errors"} & set(done.stdout.split())


def test_the_command_writes_zip_and_script_or_says_why_not(tmp_path: Path) -> None:
    path = tmp_path / "spark_sink.zip"
    done = CliRunner().invoke(sink, ["package", str(path), "--jars", str(tmp_path / "jars")])
    assert done.exit_code == 0, done.output
    assert f"SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()}" in done.output
    assert str(tmp_path / "sink_job.py") in done.output
    assert [jar.read_bytes() for jar in spark_jars()] == [
        (tmp_path / "jars" / jar.name).read_bytes() for jar in spark_jars()
    ]
    for name, sentence in (("spark_sink.tar", "end with .zip"), ("missing/spark_sink.zip", "No such file")):
        refused = CliRunner().invoke(sink, ["package", str(tmp_path / name)])
        assert isinstance(refused.exception, SetupError)
        assert sentence in str(refused.exception)


def test_help_runs_from_the_zip(shipped: Path, tmp_path: Path) -> None:
    helped = subprocess.run(
        [sys.executable, shipped.with_name("sink_job.py"), "--help"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(shipped)},
    )
    assert helped.returncode == 0, helped.stderr
    assert "SPARK_SINK_URL" in helped.stdout
