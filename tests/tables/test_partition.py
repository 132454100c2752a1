"""Partition state after a transaction, and after a lost one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.tables.totals import Progress
from kafka_ratchet.tables.values.partition import PartitionTables
from kafka_ratchet.transport.batch.chunk import read_chunk
from tests.tables.fetched_records import fetched, judged, named, stored
from tests.tables.worked_partition import CHANGELOG, NAMES, PARTITION, READ, Changelog, content, partition, work


def test_a_new_partition_knows_nothing(state: SequencePartition) -> None:
    assert content(state) == ([(-1, -1)] * (len(NAMES) + 1), 0, None, None)
    assert state.position == 0


def test_a_lost_transaction_leaves_no_trace(state: SequencePartition, other: SequencePartition) -> None:
    log = Changelog()
    state.committed(log.append(state, work(state, 0, 1)))
    work(state, 12, 9)
    Changelog().append(state, 24)  # aborted by the broker
    state.rollback()
    state.committed(log.append(state, work(state, 12, 4)))
    assert state.progress == Progress(24, 20, 2, 2)
    other.apply(log.since(0))
    assert content(other) == content(state)
    assert other.last(b"a") == (4, 4)


def test_a_transaction_of_duplicates_moves_the_input_position(state: SequencePartition) -> None:
    log = Changelog()
    state.committed(log.append(state, work(state, 0, 1)))
    state.committed(log.append(state, work(state, 12, 1)))
    assert state.progress == Progress(24, 10, 12, 2)
    assert log.since(11).count == 1


@pytest.mark.parametrize("limit", [1, 1_200, 4_096, 1 << 20])
def test_a_large_changelog_is_split_at_the_limit(tmp_path: Path, limit: int) -> None:
    state, other = (partition(tmp_path / name, Identity.PRODUCER, limit) for name in ("one", "two"))
    names = [b"%d-" % n + b"x" * (n * 37 % 1_000) for n in range(400)]
    judged(state, fetched([record for n, name in enumerate(names) for record in named(name, n)]), READ)
    encoded = state.changes(400)
    sizes = [len(batch.buffer) for batch in encoded]
    assert all(size <= limit or batch.count == 1 for size, batch in zip(sizes, encoded, strict=True))
    assert sum(batch.count for batch in encoded) == 401
    # No batch could have taken the one entry more that begins the next.
    assert len(encoded) <= max(1, 2 * sum(sizes) // limit + 1) or limit == 1
    other.apply(read_chunk(CHANGELOG, PARTITION, 0, stored(encoded, 0), []))
    assert [other.last(name) for name in names] == [(n, n) for n in range(400)]
    assert other.progress == Progress(400, 400, 0, 0)
    state.close()
    other.close()


def test_what_was_committed_here_is_counted_and_what_others_committed_is_not(
    state: SequencePartition, other: SequencePartition
) -> None:
    log = Changelog()
    state.committed(log.append(state, work(state, 0, 1)))
    assert state.counted.tolist() == [10, 1, 1, 0, 0, 0]
    work(state, 12, 2)
    state.rollback()
    assert state.counted.tolist() == [10, 1, 1, 0, 0, 0]
    other.apply(log.since(0))
    assert other.progress is not None
    assert (other.progress.fresh, other.counted.tolist()) == (10, [0] * 6)
    other.committed(log.append(other, work(other, 12, 3)))
    assert other.counted.tolist() == [10, 1, 1, 0, 0, 0]


def test_a_state_whose_rollback_fails_is_read_again_from_its_store(
    monkeypatch: pytest.MonkeyPatch, state: SequencePartition
) -> None:
    log = Changelog()
    state.committed(log.append(state, work(state, 0, 1)))
    state.close()
    state.open()
    before = content(state)
    work(state, 12, 9)

    def fail(tables: PartitionTables) -> None:
        raise RuntimeError("not rolled back")

    monkeypatch.setattr(PartitionTables, "rollback", fail)
    with pytest.raises(RuntimeError, match="not rolled back"):
        state.close()
    monkeypatch.undo()
    state.open()
    assert content(state) == before
