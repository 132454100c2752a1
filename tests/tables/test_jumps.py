"""Log lines and counts of sequences that jump."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from kafka_ratchet.rule.extraction import reader_for
from kafka_ratchet.rule.identity import PRODUCER_HEADER, SEQUENCE_HEADER, Identity, SequenceSource
from kafka_ratchet.tables.partition import SequencePartition
from tests.tables.fetched_records import Sent, fetched, judged, named

READ = reader_for(SequenceSource.parse(f"header:{SEQUENCE_HEADER}"))
FAR = 2**40 + 2**33


def opened(folder: Path, identity: Identity = Identity.PRODUCER) -> SequencePartition:
    state = SequencePartition(folder, "changelog", 0, identity, 1 << 20)
    state.open()
    return state


def commit(state: SequencePartition, next_offset: int) -> None:
    state.changes(next_offset)
    state.committed(next_offset)


def test_text_that_was_read_as_an_integer_is_said_with_the_way_back(tmp_path: Path) -> None:
    state = opened(tmp_path / "store")
    wrong = Sent(headers=((PRODUCER_HEADER, b"shop"), (SEQUENCE_HEADER, b"2024-1-1")))
    with capture_logs() as said:
        judged(state, fetched([wrong, *named(b"shop", 5)], start=70), READ)
    (line,) = [entry for entry in said if entry["log_level"] == "warning"]
    assert line["offset"] == 70
    assert line["identity"] == "shop"
    assert line["last"] is None
    assert line["sequence"] == int.from_bytes(b"2024-1-1", "big")
    assert 'set sequence_form = "text"' in line["event"]
    state.close()


def test_a_jump_counts_with_its_commit(tmp_path: Path) -> None:
    state = opened(tmp_path / "store")
    judged(state, fetched(named(b"shop", 1, 1 + FAR)), READ)
    assert state.jumps.total == 0
    state.rollback()
    judged(state, fetched(named(b"shop", 1, 1 + FAR)), READ)
    commit(state, 2)
    assert state.jumps.total == 1
    state.close()


def test_what_is_no_jump_is_not_said(tmp_path: Path) -> None:
    state = opened(tmp_path / "store")
    with capture_logs() as said:
        judged(state, fetched(named(b"ordinary", 1, 2**40 + 1)), READ)
        judged(state, fetched(named(b"files", 7, (3 << 40) + 2_000_000, (1_027 << 40) + 2**32)), READ)
        judged(state, fetched(named(b"nanoseconds", 1_800_000_000_000_000_000, 1_800_000_000_500_000_000)), READ)
    commit(state, 7)
    assert state.jumps.total == 0
    assert not [entry for entry in said if entry["log_level"] == "warning"]
    state.close()


def test_numbers_that_no_set_of_files_has_are_jumps(tmp_path: Path) -> None:
    state = opened(tmp_path / "store")
    judged(state, fetched(named(b"files away", 7, 1_025 << 40)), READ)
    judged(state, fetched(named(b"bytes away", 7, (1 << 40) + 2**32 + 1)), READ)
    judged(state, fetched(named(b"seconds, then milliseconds", 1_700_000_000, 1_700_000_000_000)), READ)
    commit(state, 6)
    assert state.jumps.total == 3
    state.close()


def test_one_line_stands_for_many(tmp_path: Path) -> None:
    state = opened(tmp_path / "store", Identity.PARTITION)
    with capture_logs() as said:
        for number in range(1, 6):
            judged(state, fetched(named(b"", number * FAR), start=number), READ)
    commit(state, 6)
    assert state.jumps.total == 4
    (line,) = [entry for entry in said if entry["log_level"] == "warning"]
    assert (line["identity"], line["last"], line["sequence"]) == ("the partition", FAR, 2 * FAR)
    state.close()
