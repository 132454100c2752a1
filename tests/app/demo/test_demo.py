"""The demo as a newcomer runs it."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_ratchet.app.demo.events import count, excerpt
from kafka_ratchet.errors import SourceError
from tests.app.worker_process import ROOT


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kafka_ratchet", "demo", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=840,
    )


@pytest.mark.timeout(900)
def test_demo_ends_with_the_true_totals_and_nothing_lost_or_doubled() -> None:
    done = demo("--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    files = [count(path) for path in excerpt()]
    assert result["totals"] == {
        repository: {"added": file.added[repository], "deleted": file.deleted[repository]}
        for file in files
        for repository in file.added
    }
    assert (result["lost"], result["doubled"], result["reordered"]) == (0, 0, 0)
    assert result["delivered"] == sum(file.events for file in files)
    assert result["published"] == result["delivered"] + result["duplicates"]
    # One whole file was published twice, and what the killed publisher had not yet noted down once more.
    assert result["duplicates"] >= files[0].events


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "has no events"),
        (b'{"repository": "a"}\n', "line 1: the demo needs events with repository, path, added and deleted"),
        (b"no json\n", "cannot be read as NDJSON"),
        (b'"\xff"\n', "cannot be read as NDJSON"),
    ],
)
def test_demo_refuses_what_it_cannot_add_up(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "events.ndjson"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=sentence):
        count(path)


def test_demo_refuses_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="the file does not exist"):
        count(tmp_path / "missing.ndjson")


def test_demo_refuses_a_truncated_gzip(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson.gz"
    path.write_bytes(gzip.compress(b'{"repository":"a","path":"p","added":1,"deleted":0}\n' * 500)[:-20])
    with pytest.raises(SourceError, match="cannot be read as NDJSON"):
        count(path)
