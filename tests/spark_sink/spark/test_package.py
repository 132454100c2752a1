"""The zip that goes to a cluster: the same bytes from the same source, and nothing needed beside it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from typer.testing import CliRunner

import kafka_ratchet.spark_sink
from kafka_ratchet.app.cli.sink import sink
from kafka_ratchet.app.local.jars import spark_jars
from kafka_ratchet.errors import SetupError
from kafka_ratchet.spark_sink.spark.package import write_package

PACKAGE = Path(kafka_ratchet.spark_sink.__file__).parent

IMPORT_ALL = """
import importlib, pkgutil, sys
sys.path.insert(0, sys.argv[1])
import kafka_ratchet.spark_sink as package
assert package.__file__.startswith(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, "kafka_ratchet.spark_sink."):
    importlib.import_module(module.name)
print(*sorted(name for name in sys.modules if name.startswith("kafka_ratchet.")))
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
        inside = sorted(
            f"kafka_ratchet/{folder}/{path.relative_to(PACKAGE.parent / folder)}"
            for folder in ("rule", "spark_sink")
            for path in (PACKAGE.parent / folder).rglob("*.py")
        )
        assert sorted(archive.namelist()) == ["kafka_ratchet/__init__.py", *inside]
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.read("kafka_ratchet/spark_sink/job/job.py") == (PACKAGE / "job" / "job.py").read_bytes()
    assert {path.name for path in zips[0].parent.iterdir()} == {"spark_sink.zip", "sink_job.py"}


def test_nothing_of_the_other_packages_is_needed(shipped: Path, tmp_path: Path) -> None:
    # -I: neither the checkout nor PYTHONPATH is where Python looks, only the zip and what is installed.
    done = subprocess.run(
        [sys.executable, "-I", "-c", IMPORT_ALL, str(shipped)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert len(loaded) > 50
    assert {name.split(".")[1] for name in loaded} == {"rule", "spark_sink"}


def test_the_command_writes_zip_and_script_or_says_why_not(tmp_path: Path) -> None:
    path = tmp_path / "spark_sink.zip"
    done = CliRunner().invoke(sink, ["package", str(path), "--jars", str(tmp_path / "jars")])
    assert done.exit_code == 0, done.output
    assert f"SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()}" in done.output
    assert str(tmp_path / "sink_job.py") in done.output
    assert [jar.read_bytes() for jar in spark_jars()] == [
        (tmp_path / "jars" / jar.name).read_bytes() for jar in spark_jars()
    ]
    done = CliRunner().invoke(sink, ["package", str(path), "--jars", str(tmp_path / "4.0"), "--spark", "4.0"])
    assert done.exit_code == 0, done.output
    assert "spark-sql-kafka-0-10_2.13-4.0.0.jar" in {jar.name for jar in (tmp_path / "4.0").iterdir()}
    refused = CliRunner().invoke(sink, ["package", str(path), "--spark", "2.4"])
    assert "tested on 3.5, 4.0, 4.1, 4.2" in str(refused.exception)
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
