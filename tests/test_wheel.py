"""The wheel, installed beside PyTables and a project with an `app`, `tables` and `errors` of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from tests.folders import PACKAGES, ROOT
from tests.wheel import built, environment_with

PROJECT = {
    "app/__init__.py": "",
    "app/rules.py": ("import json\n\n\ndef sequence(record):\n    return json.loads(record.value)['n']\n"),
    "tables/__init__.py": "WHOSE = 'theirs'\n",
    "errors.py": "class TheirError(Exception):\n    pass\n",
    "produce.py": """
import sys
import app.rules, errors, tables
from kafka_ratchet import AsyncProducer, Producer, RatchetError
assert tables.WHOSE == "theirs" and not issubclass(errors.TheirError, RatchetError)
bootstrap, topic = sys.argv[1:]
with Producer(topic, topic, options={"bootstrap.servers": bootstrap}) as producer:
    for n in (1, 2, 2, 3):
        producer.send(b'{"n": %d}' % n, key=b"k")
""",
    "hdf.py": """
import pandas
import kafka_ratchet.tables.table  # ours, which once was `tables`
pandas.DataFrame({"n": [1, 2]}).to_hdf("frame.h5", key="frame")
print(pandas.read_hdf("frame.h5", "frame")["n"].sum())
import tables
print(tables.__name__, hasattr(tables, "open_file"))
""",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as a release is, but by the backend itself: an isolated build would fetch it."""
    folder = tmp_path_factory.mktemp("wheel")
    return built("wheel", ROOT, folder)


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of a fresh environment with the wheel; what that depends on is found through a .pth file."""
    return environment_with(wheel, tmp_path_factory.mktemp("environment"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def variables(path: Path | None, **more: str) -> Mapping[str, str]:
    """Return the variables of a shell without this clone. Uncompiled, a test's few batches are judged sooner."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RATCHET_", "PYTHON"))}
    return kept | {"NUMBA_DISABLE_JIT": "1"} | ({} if path is None else {"PYTHONPATH": str(path)}) | more


@pytest.fixture
def wheel_of_sdist(tmp_path: Path) -> Path:
    """Build the wheel as `python -m build` does."""
    with tarfile.open(built("sdist", ROOT, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    return built("wheel", source, tmp_path / "wheel")


@pytest.mark.parametrize("source", ["wheel", "wheel_of_sdist"])
def test_the_wheel_has_every_file_of_the_folders_and_nothing_else(source: str, request: pytest.FixtureRequest) -> None:
    wheel: Path = request.getfixturevalue(source)
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist()}
    kept = {name: content for name, content in packed.items() if ".dist-info/" not in name}
    pages = [path for path in (ROOT / "docs").rglob("*") if path.suffix in {".md", ".png"}]
    files = [path for folder in PACKAGES for path in (ROOT / folder).rglob("*") if path.is_file()]
    expected = {
        f"kafka_ratchet/{path.relative_to(ROOT).as_posix()}": path.read_bytes()
        for path in (*files, *pages, ROOT / "errors.py")
        if "__pycache__" not in path.parts
    }
    public = {"__init__.py", "__main__.py", "py.typed"}
    expected |= {f"kafka_ratchet/{name}": (ROOT / "kafka_ratchet" / name).read_bytes() for name in public}
    assert kept.keys() == expected.keys()
    assert kept == expected


def test_a_project_with_the_same_names_publishes_and_deduplicates(
    environment: Path, project: Path, broker: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=1)
    (project / "ratchet.toml").write_text(
        f'app = "{topic}"\nbootstrap = "{broker}"\nstate_folder = "state"\n[streams.events]\ninput = "{topic}"\n'
        f'output = "{topic}.out"\ndead_letters = "{topic}.dead"\nidentity = "key"\n'
        'sequence = "function:app.rules:sequence"\n'
    )
    told, worker_log = variables(project), project / "worker.log"
    produce = [str(environment / "python"), "produce.py", broker, topic]
    subprocess.run(produce, cwd=project, env=told, check=True, timeout=60)
    with worker_log.open("wb") as log:
        worker = subprocess.Popen([environment / "ratchet", "worker"], cwd=project, env=told, stderr=log)
    try:
        assert forwarded(broker, f"{topic}.out", 3, worker) == [1, 2, 3], worker_log.read_text()
    finally:
        worker.terminate()
        assert worker.wait(60) == 0
    done = subprocess.run(
        [environment / "ratchet", "verify", "--json"], cwd=project, env=told, capture_output=True, text=True, timeout=60
    )
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["fresh"], report["duplicate"], report["lost"], report["doubled"]) == (3, 1, 0, 0), done.stderr


def forwarded(bootstrap: str, topic: str, count: int, worker: subprocess.Popen[bytes]) -> list[int]:
    """Return the worker's output, once it has so many records."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest", "log_level": 0}
    )
    found: list[int] = []
    deadline = time.monotonic() + 90
    try:
        consumer.subscribe([topic])
        while len(found) < count and time.monotonic() < deadline and worker.poll() is None:
            message = consumer.poll(0.5)
            if message is not None and not message.error():
                found.append(json.loads(message.value())["n"])
        return found
    finally:
        consumer.close()


def test_pandas_finds_pytables(environment: Path, project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("elsewhere")  # in the project, `tables` is the project's
    (folder / "hdf.py").write_text(PROJECT["hdf.py"])
    done = subprocess.run(
        [environment / "python", "hdf.py"],
        cwd=folder,
        env=variables(None),
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["3", "tables", "True"]


def test_the_installed_command(environment: Path, wheel: Path, tmp_path: Path) -> None:
    def said(*arguments: str) -> str:
        command = [str(environment / "ratchet"), *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=variables(None), check=True, capture_output=True, text=True, timeout=60
        )
        return done.stdout

    assert said("--version") == f"ratchet {wheel.name.split('-')[1]}\n"
    listed = said("--help")
    assert "Usage: ratchet " in listed
    assert " bench " not in listed  # tools of a clone
    assert " faults " not in listed
