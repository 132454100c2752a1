"""A partition with bounds, worked with the clock of a broker whose topic has LogAppendTime."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from aiokafka.record.util import calc_crc32c_py

from kafka_ratchet.rule.extraction import reader_for
from kafka_ratchet.rule.identity import Identity, SequenceSource
from kafka_ratchet.tables.eviction import EvictionLimits
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.tables.values.table import Table
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.encoding import EncodedBatch
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from tests.clock import SAVES_AT_ONCE, Clock
from tests.tables.fetched_records import Sent, fetched, judged, stored

READ = reader_for(SequenceSource.parse("header:ratchet-sequence"))
CHANGELOG = "changelog"
NAMES = [b"", b"p", b"e", b"c", b"i", b"\0", *(b"name-%d" % n for n in range(20))]
EVERYTHING, NOTHING = 1 << 40, 0
START_S = 1_700_000_000


def record(name: bytes, sequence: int) -> Sent:
    return Sent(key=name, headers=(("ratchet-sequence", b"%d" % sequence),))


def appended(batches: Sequence[EncodedBatch], start: int, at_ms: int) -> bytes:
    """These batches as a broker stores them in a topic with LogAppendTime."""
    log = b""
    for encoded in batches:
        data = bytearray(stored([encoded], start))
        struct.pack_into(">h", data, 21, struct.unpack_from(">h", data, 21)[0] | 0x08)
        struct.pack_into(">q", data, 35, at_ms)
        struct.pack_into(">I", data, 17, calc_crc32c_py(bytes(data[21:])))
        log, start = log + bytes(data), start + encoded.count
    return log


class Bounded:
    """A partition with bounds, the changelog that its commits have made, and a clock."""

    def __init__(
        self,
        folder: Path,
        bounds: EvictionLimits | None,
        room: int = EVERYTHING,
        step_s: float = SAVES_AT_ONCE,
        table: Table | None = None,
    ) -> None:
        """step_s: by which the worker's own clock goes on with every look; table: of the stream's agents."""
        self.table = table
        self.folder, self.bounds, self.room, self.clock = folder, bounds, room, Clock(step_s)
        self.log, self.end, self.input, self.now_s = b"", 0, 0, START_S
        self.open()

    def open(self) -> None:
        self.state = self.another(self.folder)

    def another(self, folder: Path) -> SequencePartition:
        where = (folder, CHANGELOG, 0, Identity.KEY, 1 << 20)
        state = SequencePartition(*where, lambda: self.room, self.bounds, self.clock)
        if self.table is not None:
            state.tables.add(self.table.codec, self.table.default)
        state.open()
        self.restore(state)
        return state

    def since(self, position: int) -> RecordBatch:
        return read_chunk(CHANGELOG, 0, position, self.log, [])

    def restore(self, state: SequencePartition) -> None:
        state.restoring()
        while state.position < self.end or not state.restored():
            state.apply(self.since(state.position))

    def crash(self) -> None:
        self.state.known.release()
        self.open()

    def judge(self, *records: Sent) -> list[int]:
        batch = fetched(records, self.input)
        self.input = batch.next
        verdicts: list[int] = judged(self.state, batch, READ)[0].tolist()
        return verdicts

    def changes(self, *, waits_s: int | None = 0) -> tuple[bytes, int, list[bytes]]:
        """The open transaction's part of the changelog: its bytes, how many, whom it evicts.

        waits_s: for how long something may have been waiting in the input; None: something does
        """
        judged_until_ms = None if waits_s is None else (self.now_s - waits_s) * 1000
        encoded = self.state.changes(self.input)
        added = appended(encoded, self.end, self.now_s * 1000)
        end = self.end + sum(each.count for each in encoded)
        more = self.state.evictions(self.now_s * 1000, judged_until_ms)
        added += appended(more, end, self.now_s * 1000)
        batch = read_chunk(CHANGELOG, 0, self.end, added, [])
        gone = [(batch.key(i) or b"")[1:] for i in range(batch.count) if batch.value(i) is None]
        return added, end + sum(each.count for each in more), gone

    def commit(self, *, waits_s: int | None = 0) -> list[bytes]:
        """Returns whom it has evicted."""
        added, self.end, gone = self.changes(waits_s=waits_s)
        self.log += added
        self.state.committed(self.end, self.now_s * 1000)
        return gone

    def work(self, *records: Sent, after_s: int = 0) -> tuple[list[int], list[bytes]]:
        self.now_s += after_s
        return self.judge(*records), self.commit()

    def known(self, state: SequencePartition | None = None) -> dict[bytes, int]:
        last = {name: (state or self.state).last(name).persisted for name in NAMES}
        return {name: sequence for name, sequence in last.items() if sequence >= 0}
