"""Operators' edits: once for each request, for every reader of the changelog, and in words later."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kafka_ratchet.errors import StateError
from kafka_ratchet.rule.extraction import reader_for
from kafka_ratchet.rule.identity import Identity, SequenceSource
from kafka_ratchet.tables.edits import Edit, Edits
from kafka_ratchet.tables.eviction import EvictionLimits
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.encoding import encode_entries
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.policy import ForgetRequest
from tests.tables.fetched_records import fetched, judged, named, stored

READ = reader_for(SequenceSource.parse("header:ratchet-sequence"))


@pytest.fixture(params=[sys.maxsize, 0], ids=["all in memory", "nothing kept in memory"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SequencePartition]:
    room: int = request.param
    opened = SequencePartition(tmp_path / "store", "changelog", 0, Identity.PRODUCER, 1 << 20, lambda: room)
    opened.open()
    yield opened
    opened.close()


class Log:
    """The changelog as the broker has it; each commit is a transaction."""

    def __init__(self) -> None:
        self.data, self.end, self.position = b"", 0, 0

    def commit(self, state: SequencePartition, records: int = 0) -> None:
        self.position += records
        encoded = state.changes(self.position)
        self.data += stored(encoded, self.end)
        after = self.end + sum(batch.count for batch in encoded)
        self.end = after + 1
        state.committed(after)

    def work(self, state: SequencePartition, name: bytes, *sequences: int) -> list[int]:
        """Verdicts on records of one name."""
        verdicts, _ = judged(state, fetched(named(name, *sequences), self.position), READ)
        self.commit(state, len(sequences))
        found: list[int] = verdicts.tolist()
        return found

    def forget(self, state: SequencePartition, *requests: ForgetRequest) -> None:
        state.forget(requests, self.position)
        self.commit(state)

    def since(self, position: int, compacted_until: int = 0) -> RecordBatch:
        """Return the entries from an offset on. compacted_until: nulls before it are gone (delete.retention.ms)."""
        whole = read_chunk("changelog", 0, position, self.data, [])
        is_null = np.array([whole.value(index) is None for index in range(whole.count)], np.bool_)
        return whole.only(~(is_null & (whole.offsets < compacted_until)))


def asked(number: int, name: bytes, above: int | None = None) -> ForgetRequest:
    return ForgetRequest(f"{number:016x}", name, above, "2026-11-23T06:00:00+00:00", "me@here", "began anew")


def test_a_forgotten_identity_begins_anew_and_one_put_back_goes_on_from_there(state: SequencePartition) -> None:
    log = Log()
    assert log.work(state, b"a", 1, 2, 3) == [0, 0, 0]
    assert log.work(state, b"b", 5, 9_000) == [0, 0]
    log.forget(state, asked(1, b"a"), asked(2, b"b", 7), asked(3, b"nobody"), asked(4, b"b", 8))
    assert (len(state), state.edits.forgotten) == (1, 2)
    changed = [(each.name, each.before, each.after, each.position) for each in state.edits]
    assert changed == [(b"a", 3, -1, 5), (b"b", 9_000, 7, 5), (b"nobody", -1, -1, 5), (b"b", 7, 7, 5)]
    assert log.work(state, b"a", 1, 1) == [0, 1]
    assert log.work(state, b"b", 6, 7, 8) == [1, 1, 0]
    assert [state.is_done(asked(number, b"").id) for number in range(6)] == [False, True, True, True, True, False]
    assert (len(state), state.last(b"a").persisted, state.last(b"b").persisted) == (2, 1, 8)
    # The store has it too.
    state.close()
    state.open()
    assert (len(state), state.last(b"a").persisted, state.edits.has(asked(3, b"").id)) == (2, 1, True)


def test_what_is_rolled_back_was_not_applied(state: SequencePartition) -> None:
    log = Log()
    log.work(state, b"a", 3)
    state.forget([asked(1, b"a")], 1)
    state.rollback()
    assert (state.is_done(asked(1, b"").id), state.last(b"a"), len(state)) == (False, (3, 3), 1)
    log.forget(state, asked(1, b"a"))
    assert (state.last(b"a"), len(state)) == ((-1, -1), 0)


def test_who_reads_the_changelog_later_forgets_too_also_where_the_null_is_compacted_away(
    state: SequencePartition, tmp_path: Path
) -> None:
    log = Log()
    log.work(state, b"a", 3)
    follower = SequencePartition(tmp_path / "follower", "changelog", 0, Identity.PRODUCER, 1 << 20)
    follower.open()
    follower.apply(log.since(0))
    log.forget(state, asked(1, b"a"))
    log.work(state, b"b", 1)
    follower.apply(log.since(follower.position, compacted_until=log.end))
    assert (follower.last(b"a").persisted, len(follower), follower.is_done(asked(1, b"").id)) == (-1, 1, True)
    follower.close()
    follower.open()
    assert (follower.last(b"a").persisted, follower.last(b"b").persisted) == (-1, 1)
    # What it has sent since then stays.
    log.work(state, b"a", 1)
    follower.apply(log.since(0, compacted_until=log.end))
    assert (follower.last(b"a").persisted, len(follower)) == (1, 2)
    follower.close()


def test_where_a_stream_has_bounds_a_forgotten_identity_is_not_counted(tmp_path: Path) -> None:
    bounded = SequencePartition(
        tmp_path / "store", "changelog", 0, Identity.PRODUCER, 1 << 20, bounds=EvictionLimits(most=2)
    )
    bounded.open()
    log = Log()
    log.work(bounded, b"a", 3)
    log.work(bounded, b"b", 3)
    bounded.forget([asked(1, b"a")], 2)
    bounded.changes(2)
    assert bounded.evictions(10**12, 10**12) == []
    bounded.committed(9)
    assert (len(bounded), bounded.last(b"b").persisted, sum(bounded.evicted)) == (1, 3, 0)
    bounded.close()


@pytest.mark.parametrize("value", [b"", b"{}", b"[" * 100_000, b'{"version":2}', b"\xff"])
def test_an_entry_that_is_not_ours_is_a_sentence(value: bytes) -> None:
    data = stored(encode_entries([(b"g" + bytes(8), value)], 1 << 20), 0)
    with pytest.raises(StateError, match="changelog, partition 0, offset 0: an operator's change cannot be read"):
        Edits().apply(read_chunk("changelog", 0, 0, data, []))


def test_hostile_names_come_through_an_entry_as_they_are() -> None:
    edit = Edit("id", "forget", "now", "me", 'be"cause\n\x1b[31m', 7, b"\xff\x00'".hex(), None, 3, -1)
    assert Edit.unpack(*edit.pack(4)) == (4, edit)
    assert "\x1b" not in str(edit)
    assert r'be"cause\n\x1b[31m' in str(edit)
