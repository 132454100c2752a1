"""Missing and late sequences: `ratchet gaps`, and `ratchet status` in a stream with a window."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafka_ratchet.app.cli import run
from kafka_ratchet.app.cli.gaps import _render
from kafka_ratchet.app.operations.gaps import gaps_of
from kafka_ratchet.app.operations.state_rows import Row
from kafka_ratchet.rule.windows import StateOptions
from kafka_ratchet.tables.map.map import LastSequences
from tests.app.worker_process import Site, WorkerProcess
from tests.tables.map.test_windows import judged, reloaded

STREAM = """
session_timeout_ms = 6000
[streams.events]
input = "{name}.in"
output = "{name}.out"
dead_letters = "{name}.dead"
identity = "key"
partitions = 1
{more}
"""


def rows_of(table: LastSequences) -> list[Row]:
    found = [(key[1:], value or b"") for key, value in table.changed_entries()]
    return [Row(name, int.from_bytes(value[:8], "big"), 3, 4, 0, value[8:]) for name, value in found]


@pytest.mark.parametrize("kept", [StateOptions(dense=True), StateOptions(70, fingerprints=True, dense=True)])
def test_the_gaps_are_those_of_the_map_largest_first(kept: StateOptions) -> None:
    old = LastSequences(kept=StateOptions())
    judged(old, [(b"old", 5, b"")])
    table = reloaded(old, kept, through_store=False)
    some = [(b"a", 3, b""), (b"a", 9, b""), (b"\xff", 1, b""), (b"\xff", 2**63 - 1, b""), (b"old", 7, b"")]
    judged(table, [*some, (b"whole", 1, b""), (b"whole", 2, b"")])
    found = gaps_of("s", rows_of(table), 2)
    table.commit()
    assert (found.identities, found.missing) == (3, table.missing)
    largest, second = found.gaps
    assert (largest.identity, largest.identity_hex, largest.missing) == (None, "ff", 2**63 - 3)
    assert (second.identity, second.partition, second.first, second.last, second.seen) == ("a", 3, 3, 9, 2)
    assert second.missing == 5
    table.rollback()
    judged(table, [(b"old", 9, b"")])
    ((one,),) = (gaps_of("s", rows_of(table), 9).gaps,)
    assert (one.identity, one.first, one.last, one.seen, one.missing) == ("old", 5, 9, 3, 2)


def test_a_stream_that_does_not_count_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "ratchet.toml"
    config.write_text('bootstrap = "127.0.0.1:1"' + STREAM.format(name="x", more=""))
    assert run(["gaps", "--config", str(config)]) == 2
    assert "set streams.events.dense = true" in capsys.readouterr().err
    assert run(["gaps", "events", "--stream", "events", "--config", str(config)]) == 2
    assert "named twice" in capsys.readouterr().err


def test_identities_cannot_write_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    table = LastSequences(kept=StateOptions(dense=True))
    judged(table, [(b"\x1b[31m[red]", 1, b""), (b"\x1b[31m[red]", 3, b""), (b"b", 1, b""), (b"b", 3, b"")])
    for part in _render(gaps_of("s", rows_of(table), 1)):
        Console(markup=False, highlight=False, width=100).print(part)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\\x1b[31m[red]" in out
    assert "2 sequences are missing, of 2 identities" in out
    assert "1 more identities" in out


@pytest.mark.matrix
def test_what_is_late_and_missing_is_told_with_and_without_a_worker(broker: str, tmp_path: Path) -> None:
    app = f"gaps-{uuid.uuid4().hex[:8]}"
    site = Site(tmp_path, broker, app, STREAM.format(name=app, more="reorder_window = 4\ndense = true"))
    worker = WorkerProcess(site)
    try:
        worker.start()
        worker.wait_for(lambda: "worker runs" in worker.text(), "the start")
        producer = Producer({"bootstrap.servers": broker})
        sent = [(b"a", 10), (b"a", 8), (b"a", 12), (b"\xff", 1), (b"\xff", 9), (b"b", 1), (b"b", 2)]
        for key, number in sent:
            producer.produce(f"{app}.in", b"", key, headers=[("ratchet-sequence", b"%d" % number)])
        assert producer.flush(30) == 0
        worker.wait_for(lambda: site.position(f"{app}.in") == len(sent), "the records")
        for sequence, code, answer in ((8, 0, "persisted"), (9, 1, "unseen"), (13, 1, "unseen"), (7, 4, "unknown")):
            asked = site.command("status", "--key", "a", "--sequence", str(sequence))
            assert (asked.returncode, asked.stdout.splitlines()[0]) == (code, answer), asked.stdout + asked.stderr
        assert "too late to tell" in asked.stdout
    finally:
        worker.end()
    found = site.command("gaps", "events", "--json")
    assert found.returncode == 1, found.stderr
    assert json.loads(found.stdout.splitlines()[-1]) == {
        "stream": "events",
        "identities": 2,
        "missing": 9,
        "gaps": [
            {"identity": None, "identity_hex": "ff", "partition": 0, "first": 1, "last": 9, "seen": 2, "missing": 7},
            {"identity": "a", "identity_hex": "61", "partition": 0, "first": 8, "last": 12, "seen": 3, "missing": 2},
        ],
    }
