"""A partition that is worked like a lane does it, and its changelog as the broker has it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from kafka_ratchet.rule.extraction import reader_for
from kafka_ratchet.rule.identity import MAX_IDENTITY_BYTES, Identity, SequenceSource
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from tests.tables.fetched_records import Sent, fetched, judged, stored

READ = reader_for(SequenceSource.parse("header:ratchet-sequence"))
CHANGELOG, PARTITION = "ratchet-events-changelog", 3
NAMES = [b"", b"p", b"c", b"i", b"\0", b"a", b"a\0", "Zürich".encode(), b"\xff" * 8, b"x" * MAX_IDENTITY_BYTES]


class Changelog:
    """The changelog partition as the broker has it: batches, and a marker's offset after each transaction."""

    def __init__(self) -> None:
        self.data = b""
        self.end = 0

    def append(self, state: SequencePartition, next_offset: int) -> int:
        """Append the changelog entries of a lane's commit, and return the offset after the last."""
        encoded = state.changes(next_offset)
        self.data += stored(encoded, self.end)
        after = self.end + sum(batch.count for batch in encoded)
        self.end = after + 1
        return after

    def since(self, position: int) -> RecordBatch:
        return read_chunk(CHANGELOG, PARTITION, position, self.data, [])


def partition(
    folder: Path,
    identity: Identity = Identity.KEY,
    limit: int = 1 << 20,
    room: int = sys.maxsize,
    clock: Callable[[], float] = time.monotonic,
) -> SequencePartition:
    state = SequencePartition(folder, CHANGELOG, PARTITION, identity, limit, lambda: room, clock=clock)
    state.open()
    return state


def work(state: SequencePartition, start: int, sequence: int) -> int:
    """Judge a batch that moves every name; returns the next input offset."""
    good = [Sent(key=name, headers=(("ratchet-sequence", b"%d" % sequence),)) for name in NAMES]
    batch = fetched([*good, good[0], Sent(key=b"a")], start)
    judged(state, batch, READ)
    return batch.next


def content(state: SequencePartition) -> tuple[object, ...]:
    return [state.last(name) for name in [*NAMES, b"nobody"]], len(state), state.progress, state.input_position
