"""Counts of a survey for each candidate, in tables of bounded size."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.app.survey import kernels, seen
from kafka_ratchet.app.survey.json_check import field_readers, parse_odd
from kafka_ratchet.app.survey.places import (
    KEY,
    PARTITION,
    WHOLE,
    Candidate,
    Candidates,
    RecordPart,
    joined,
    joined_paths,
)
from kafka_ratchet.rule.identity import MAX_IDENTITY_BYTES
from kafka_ratchet.rule.parts import GUESS, TEXT, VARINT_BYTE_MOST, find_headers
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.record_batch import RecordBatch

SLOTS_LEAST: Final = 1 << 12
SLOT_BYTES: Final = 8 * seen.COLUMNS
FULL: Final = 0.7
SEVERAL_SHARE: Final = 4
"""Ratio of the maximum sizes of two tables.

They are the main table, and the table of identities in several partitions.
"""

FUTURE_MS: Final = 86_400_000
"""Maximum milliseconds that a timestamp may be ahead of the present; a later one is ignored.

Otherwise it would stay the highest timestamp of its partition, which the survey uses as the partition's clock.
"""


class Table:
    """Hash table of the identities seen so far. slots_most: maximum number of slots, a power of two."""

    def __init__(self, slots_most: int) -> None:
        self.rows = np.zeros((min(SLOTS_LEAST, slots_most), seen.COLUMNS), np.int64)
        self._slots_most = slots_most

    @property
    def most(self) -> int:
        """Return the number of entries that fit before the table must grow."""
        return int(len(self.rows) * FULL)

    @property
    def may_grow(self) -> bool:
        """Return True while the table is below its largest size."""
        return len(self.rows) < self._slots_most

    def refill(self, level: int, *, grow: bool) -> int:
        """Rebuild the table with the entries in the sample of `level`; return their number.

        grow: True to double the number of slots
        """
        rows = np.zeros((len(self.rows) * (2 if grow else 1), seen.COLUMNS), np.int64)
        used = int(seen.refill(self.rows, rows, level))
        self.rows = rows
        return used


class CandidateCounts:
    """Counts of a survey for one candidate identity.

    Attributes:
        level: level of the sample: one of 2^level identities is counted
        counts, groups, ages, distances, largest, examples: results of `kafka_ratchet.app.survey.seen.classify`
        without: number of records that lack the identity
    """

    def __init__(self, slots_most: int) -> None:
        self._table, self._several = Table(slots_most), Table(max(SLOTS_LEAST, slots_most // SEVERAL_SHARE))
        self._used = np.zeros(2, np.int64)
        self.level = 0
        self.without = 0
        self.counts = np.zeros(seen.VERDICTS, np.int64)
        self.groups = np.zeros((seen.VERDICTS, seen.GROUPS), np.int64)
        self.ages = np.zeros((2, seen.BUCKETS), np.int64)
        self.distances = np.zeros(seen.BUCKETS, np.int64)
        self.largest = np.full(2, -1, np.int64)
        self.examples = np.full((2, seen.EXAMPLES, 4), -1, np.int64)

    def classify(
        self,
        hashes: NDArray[np.uint64],
        values: NDArray[np.uint64],
        clocks: NDArray[np.int64],
        offsets: NDArray[np.int64],
        partition: int,
    ) -> NDArray[np.uint8]:
        """Classify a batch's records by those seen before; return the verdicts, uint8[records].

        The arguments are those of `kafka_ratchet.app.survey.seen.classify`.
        """
        verdicts = np.empty(len(hashes), np.uint8)
        at = 0
        while True:
            at = seen.classify(
                hashes,
                values,
                clocks,
                offsets,
                at,
                partition,
                self._table.rows,
                self._several.rows,
                self._used,
                np.array([self._table.most, self._several.most], np.int64),
                self.level,
                verdicts,
                self.counts,
                self.groups,
                self.ages,
                self.distances,
                self.largest,
                self.examples,
            )
            if at == len(hashes):
                self.without += int(np.count_nonzero(verdicts == seen.NONE))
                return verdicts
            self._make_room()

    def _make_room(self) -> None:
        for number, table in enumerate((self._table, self._several)):
            if self._used[number] + 2 > table.most:
                if table.may_grow:
                    self._used[number] = table.refill(self.level, grow=True)
                else:
                    self.level += 1
                    self._used[0] = self._table.refill(self.level, grow=False)
                    self._used[1] = self._several.refill(self.level, grow=False)
                return
        raise AssertionError("the compiled pass stopped for a larger table, but the table is not full")

    def error(self, *verdicts: int) -> int:
        """Return twice the standard error of a count of verdicts.

        It is estimated from the differences between groups.
        """
        groups = self.groups[list(verdicts)].sum(axis=0)
        return round(2 * float(np.sqrt(seen.GROUPS * groups.var(ddof=1)))) if groups.any() else 0


class OrderCounts:
    """Counts of numbers in order and out of order, within each identity.

    Attributes:
        level: level of the sample of identities
        counts, lates, largest: results of `kafka_ratchet.app.survey.seen.order`
    """

    def __init__(self, slots_most: int) -> None:
        self._table = Table(slots_most)
        self._used = np.zeros(1, np.int64)
        self.level = 0
        self.counts = np.zeros(seen.ORDERS, np.int64)
        self.lates = np.zeros(seen.BUCKETS, np.int64)
        self.largest = np.full(1, -1, np.int64)

    def follow(
        self,
        owners: NDArray[np.uint64],
        numbers: NDArray[np.int64],
        verdicts: NDArray[np.uint8],
        partition: int,
        is_whole: bool,
        seen_level: int,
    ) -> None:
        """Count the order of a batch's numbers; see `kafka_ratchet.app.survey.seen.order` for the arguments."""
        at = 0
        while True:
            at = seen.order(
                owners,
                numbers,
                verdicts,
                at,
                partition,
                is_whole,
                self._table.rows,
                self._used,
                self._table.most,
                self.level,
                seen_level,
                self.counts,
                self.lates,
                self.largest,
            )
            if at == len(owners):
                return
            if not self._table.may_grow:
                self.level += 1
            self._used[0] = self._table.refill(self.level, grow=self._table.may_grow)


class BatchHashes:
    """Hashes and numbers read from one batch, for each header and field.

    Reading them needs no table, so that several batches are read in parallel.
    """

    def __init__(self, batch: RecordBatch, reader: PartReader) -> None:
        self.partition = batch.partition
        # Numba compiles for each kind of array separately: a truncated chunk has columns with gaps.
        batch.columns = np.ascontiguousarray(batch.columns)
        self.offsets = np.ascontiguousarray(batch.offsets)
        self.timestamps = np.ascontiguousarray(batch.timestamps)
        self.bytes = int((batch.columns[records.BODY_END] - batch.columns[records.BODY]).sum())
        self.values = np.empty(batch.count, np.uint64)
        wholes = np.empty(batch.count, np.uint64)
        kernels.hash_records(batch.data, batch.columns, reader.seed, self.values, wholes)
        self.hashes = {WHOLE: wholes}
        self.sizes: dict[RecordPart, NDArray[np.int64]] = {}
        self.numbers: dict[RecordPart, NDArray[np.int64]] = {}
        self.broken = 0
        self._add(batch, reader)

    def _add(self, batch: RecordBatch, reader: PartReader) -> None:
        data = batch.data
        spans: dict[RecordPart, tuple[NDArray[np.int64], NDArray[np.int64]]] = {
            KEY: (batch.columns[records.KEY], batch.columns[records.KEY_LENGTH])
        }
        if reader.headers:
            starts, lengths = np.empty((2, len(reader.headers), batch.count), np.int64)
            find_headers(batch.data, batch.columns, *reader.header_names, starts, lengths)
            spans.update(zip(reader.headers, zip(starts, lengths, strict=True), strict=True))
        if reader.fields:
            starts, lengths = np.empty((2, len(reader.fields), batch.count), np.int64)
            kernels.find_fields(data, batch.columns, *reader.field_paths, reader.masks.copy(), starts, lengths)
            data, self.broken = parse_odd(batch, reader.field_readers, starts, lengths)
            spans.update(zip(reader.fields, zip(starts, lengths, strict=True), strict=True))
        for place, (starts, lengths) in spans.items():
            if place in reader.numbers:
                self.numbers[place] = np.empty(batch.count, np.int64)
                form = GUESS if place.kind == "header" else TEXT
                kernels.read_numbers(data, starts, lengths, form, self.numbers[place])
            if place in reader.identities:
                self.hashes[place] = np.empty(batch.count, np.uint64)
                least = 0 if place == KEY else 1  # an empty key is an identity, as the worker has it
                kernels.hash_spans(data, starts, lengths, least, MAX_IDENTITY_BYTES, reader.seed, self.hashes[place])
            if place in reader.parts:
                self.sizes[place] = lengths + np.where(lengths > VARINT_BYTE_MOST, 2, 1)
        if PARTITION in reader.identities:
            self.hashes[PARTITION] = np.full(batch.count, np.uint64(self.partition + 1))

    def joined(self, identity: tuple[RecordPart, ...], seed: np.uint64) -> NDArray[np.uint64]:
        """Return the hash of an identity in each record, uint64[records].

        The hash is 0 if a part is missing, or if all parts together are too long.
        """
        hashes = self.hashes[identity[0]]
        for place in identity[1:]:
            joint = np.empty(len(hashes), np.uint64)
            kernels.join_hashes(hashes, self.hashes[place], seed, joint)
            hashes = joint
        if len(identity) > 1:
            size = sum(self.sizes[place] for place in identity if place in self.sizes)
            hashes[size > MAX_IDENTITY_BYTES] = 0
        return hashes


class PartReader:
    """Reader of the candidates' headers and fields in each record.

    seed: secret number in all hashes, so that collisions cannot be prepared
    """

    def __init__(self, candidates: Candidates, seed: int) -> None:
        self.seed = np.uint64(seed)
        self.headers = [RecordPart("header", name) for name in candidates.headers]
        self.fields = [RecordPart("field", path) for path in candidates.fields]
        self.header_names, self.field_paths = joined(candidates.headers), joined_paths(candidates.fields)
        self.field_readers = field_readers(candidates.fields)
        self.masks = np.zeros(kernels.DEPTH_MOST + 1, np.uint64)
        self.identities = {place for each in candidates.chosen for place in each.identity}
        self.parts = {place for each in candidates.chosen for place in each.identity if len(each.identity) > 1}
        self.numbers = {each.sequence for each in candidates.chosen if each.sequence is not None}


class Count:
    """Counts of one candidate."""

    def __init__(self, candidate: Candidate, slots_most: int) -> None:
        self.candidate = candidate
        self.seen = CandidateCounts(slots_most)
        self.order = None if candidate.sequence is None else OrderCounts(max(SLOTS_LEAST, slots_most // SEVERAL_SHARE))

    def add(self, found: BatchHashes, clocks: NDArray[np.int64], seed: np.uint64, is_whole: bool) -> None:
        """Count the records of a batch.

        found: hashes and numbers of the batch.
        clocks: int64[records], ms, clock of the batch's partition at each record.
        seed: seed of the hashes.
        is_whole: True if the partition is read from its very first record on.
        """
        hashes = owners = found.joined(self.candidate.identity, seed)
        if self.candidate.sequence is not None:
            hashes = np.empty(len(owners), np.uint64)
            kernels.join_numbers(owners, found.numbers[self.candidate.sequence], seed, hashes)
        verdicts = self.seen.classify(hashes, found.values, clocks, found.offsets, found.partition)
        if self.order is not None and self.candidate.sequence is not None:
            numbers = found.numbers[self.candidate.sequence]
            self.order.follow(owners, numbers, verdicts, found.partition, is_whole, self.seen.level)


class Counts:
    """Counts of a survey over a topic.

    Attributes:
        of: counts of each candidate.
        records, bytes: number of records read, and of their bytes.
        broken: number of values other than JSON objects; 0 if no field is searched.
        busy: number of records by minute of the clock.
        first_ms, last_ms: first and last time of the clock; 0 without any timestamp.
        future: number of timestamps left out because they are in the future.
    """

    def __init__(
        self, candidates: Candidates, memory_bytes: int, now_ms: int, seed: int, whole: frozenset[int] = frozenset()
    ) -> None:
        """Start without counts. whole: numbers of the partitions read from their very first record on."""
        self._whole = whole
        self.reader = PartReader(candidates, seed)
        slots = slots_most(memory_bytes, len(candidates.chosen))
        self.of = [Count(candidate, slots) for candidate in candidates.chosen]
        self.records = self.bytes = self.broken = self.future = 0
        self.busy: dict[int, int] = {}
        self.first_ms = self.last_ms = 0
        self._clocks: dict[int, int] = {}
        self._latest_ms = now_ms + FUTURE_MS

    def add(self, found: BatchHashes) -> None:
        """Count the records of a batch. Batches of a partition must come in order."""
        if not len(found.offsets):
            return
        clocks = self._clock(found)
        self.records += len(found.offsets)
        self.bytes += found.bytes
        self.broken += found.broken
        for count in self.of:
            count.add(found, clocks, self.reader.seed, found.partition in self._whole)

    def _clock(self, found: BatchHashes) -> NDArray[np.int64]:
        """Return the clock at each record, int64[records], ms: the highest timestamp of its partition so far.

        A record's own timestamp may be lower, as the record may be sent late or again.
        """
        known = (found.timestamps > 0) & (found.timestamps <= self._latest_ms)
        self.future += int(np.count_nonzero(found.timestamps > self._latest_ms))
        times = np.where(known, found.timestamps, 0)
        times[0] = max(int(times[0]), self._clocks.get(found.partition, 0))
        clocks: NDArray[np.int64] = np.maximum.accumulate(times)
        self._clocks[found.partition] = int(clocks[-1])
        minutes, counts = np.unique(clocks // 60_000, return_counts=True)
        for minute, count in zip(minutes.tolist(), counts.tolist(), strict=True):
            if minute:
                self.busy[minute] = self.busy.get(minute, 0) + count
        if (first := clocks[clocks > 0]).size:
            self.first_ms = min(self.first_ms or int(first[0]), int(first[0]))
            self.last_ms = max(self.last_ms, int(clocks[-1]))
        return clocks


def slots_most(memory_bytes: int, candidates: int) -> int:
    """Return the maximum number of slots of each candidate's main table, a power of two.

    The result leaves memory for the copy of a growing table.
    """
    share = max(SLOTS_LEAST, memory_bytes // max(candidates, 1) // SLOT_BYTES * 2 // 3)
    return 1 << (share.bit_length() - 1)
