"""Formats of a newer version, refused with a sentence; this version's formats are unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from kafka_ratchet.app.operations.state_rows import FORMAT_COLUMN, Row, read_rows, write_rows
from kafka_ratchet.app.worker.claims import WriterClaim, take_claim
from kafka_ratchet.errors import OwnerDiffers, SettingsError, SourceError, StateError, TopicError
from kafka_ratchet.producers.progress import Progress as Published
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.stored_write_mode import require_write_mode, write_mode_text
from kafka_ratchet.tables.edits import Edit
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from kafka_ratchet.tables.store import Store
from kafka_ratchet.tables.totals import PROGRESS, EvictedTotals, Progress
from kafka_ratchet.transport.client.cluster import CommittedPosition
from kafka_ratchet.transport.lane_spec import LaneSpec
from kafka_ratchet.transport.owner import FORMAT, Owner
from kafka_ratchet.transport.resumption import agreed_position

SPEC = LaneSpec("in", 0, "out", "dead", "group", "id", app="app", stream="events")
CLAIM = WriterClaim("app", "events", "output", "A" * 22)
EDIT = Edit("0" * 16, "forget", "", "", "", 0)
PUBLISHED = Published(7, 8, 1, "A" * 22, None, 7, "here")


def test_entries_of_the_changelog() -> None:
    owner = Owner("app", "events", {}, {})
    newer = json.dumps({**msgspec.to_builtins(owner), "format": FORMAT + 1, "rule": ["of another type"]}).encode()
    with pytest.raises(OwnerDiffers, match=f"format {FORMAT + 1} by a newer Ratchet"):
        Owner.unpack(newer)
    key, value = PolicyInterval(0, True, 0, 0, 0, 0).pack()
    edited = msgspec.structs.replace(EDIT, version=2).pack(0)
    newer_ones: list[tuple[Any, tuple[bytes, ...]]] = [
        (Progress.unpack, (b"\x02" + Progress(1, 1, 0, 0).pack()[1:],)),
        (EvictedTotals.unpack, (b"\x02" + EvictedTotals(1, 1).pack()[1:],)),
        (PolicyInterval.unpack, (key, b"\x02" + value[1:])),
        (Edit.unpack, edited),
    ]
    for unpack, given in newer_ones:
        with pytest.raises(StateError, match="this Ratchet reads"):
            unpack(*given)


def test_a_store_of_a_newer_layout_is_rebuilt(tmp_path: Path) -> None:
    def opened() -> SequencePartition:
        state = SequencePartition(tmp_path / "0", "changelog", 0, Identity.PRODUCER, 1_000_000)
        state.open()
        return state

    store = Store(tmp_path / "0")
    store.write([(PROGRESS, Progress(5, 5, 0, 0).pack())], 9, 0)
    assert store.layout == 1
    store.close()
    state = opened()
    assert (state.position, state.input_position) == (9, 5)
    state.close()
    store = Store(tmp_path / "0")
    store.write([], 9, 0)
    store._db.put(b"v", b"\x02")
    store.close()
    with capture_logs() as said:
        state = opened()
    assert (state.position, state.input_position) == (0, None)
    assert "written by a newer Ratchet" in said[0]["event"]
    state.close()


@pytest.mark.parametrize("metadata", ["ratchet 3", "ratchet 30 of another form"])
def test_an_offset_of_the_group(metadata: str) -> None:
    state: Any = SimpleNamespace(changelog="changelog", input_position=7, owner=None)
    with pytest.raises(OwnerDiffers, match=r"committed in format 30? by a newer Ratchet"):
        agreed_position(SPEC, state, CommittedPosition(7, metadata), "A" * 22)


def test_a_claim() -> None:
    claims: dict[str, WriterClaim] = {}
    take_claim(claims, b"out", msgspec.json.encode(CLAIM), 0)
    assert claims == {"out": CLAIM}
    assert b"format" not in msgspec.json.encode(CLAIM)
    with pytest.raises(TopicError, match="offset 4: a newer Ratchet wrote this claim in format 2"):
        take_claim(claims, b"out", json.dumps({"format": 2, "whose": []}).encode(), 4)


def test_the_progress_of_a_producer() -> None:
    assert Published.decode(PUBLISHED.encode(), "here") == PUBLISHED
    with pytest.raises(SourceError, match="here: a progress in format 2, written by a newer Ratchet"):
        Published.decode(json.dumps({"format": 2}).encode(), "here")


def test_what_a_job_keeps_beside_its_rows() -> None:
    stored = write_mode_text(WriteMode())
    require_write_mode("table", "job", stored, WriteMode())
    with pytest.raises(StoreError, match="table: job job has committed in format 2 of a newer Ratchet"):
        require_write_mode("table", "job", json.dumps({**json.loads(stored), "format": 2}), WriteMode())


def test_an_exported_file(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.ndjson", [Row(b"a", 1)])
    assert [row.identity for row in read_rows(tmp_path / "rows.ndjson")] == [b"a"]
    (tmp_path / "newer.ndjson").write_text(json.dumps({"identity": "a", FORMAT_COLUMN: 2}) + "\n")
    with pytest.raises(SettingsError, match="row 1: is of format 2, written by a newer Ratchet"):
        list(read_rows(tmp_path / "newer.ndjson"))
