"""Comparison of a producer's files with Kafka, to find records that never arrived.

The producer's records are first collected from Kafka, as columns: some 100 bytes for each while they are sorted. Then
the files are read once, from beginning to end.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kafka_ratchet.app.verify.findings import SourceFinding, SourceKind, SourceReport
from kafka_ratchet.app.verify.identities import Flags, Numbers, numbers
from kafka_ratchet.app.verify.rule import RecordView
from kafka_ratchet.producers import PRODUCER_HEADER, SEQUENCE_HEADER, Progress, Record, open_files, partition_of

AT_A_TIME = 8_192
"""Number of records of the files to compare at a time."""

_length = struct.Struct(">q").pack


@dataclass(frozen=True)
class SourceFiles:
    """Files published with `ratchet publish`, with options for reading them and the producer's name."""

    producer: str
    paths: list[Path]
    format: str | None = None
    key: str | None = None
    sequence_field: str | None = None
    delimiter: str | None = None


class FoundRecords:
    """Records of one producer in one topic; add all, then call `sort`."""

    def __init__(self) -> None:
        self._sequences, self._partitions, self._offsets = array("q"), array("q"), array("q")
        self._contents, self._valid = bytearray(), bytearray()
        self.lowest: dict[int, int] = {}
        """Lowest sequence by partition."""

    def add(self, sequence: int, partition: int, offset: int, content: bytes, *, valid: bool) -> None:
        """Add a record. content: digest of key and value; valid: True unless the stream's rule finds it invalid."""
        self._sequences.append(sequence)
        self._partitions.append(partition)
        self._offsets.append(offset)
        self._contents += content
        self._valid.append(valid)
        self.lowest[partition] = min(sequence, self.lowest.get(partition, sequence))

    def drop(self, partition: int) -> None:
        """Remove the records of a partition."""
        left = np.flatnonzero(numbers(self._partitions) != partition)
        contents = np.frombuffer(bytes(self._contents), np.uint64).reshape(-1, 2)[left].tobytes()
        valid = np.frombuffer(bytes(self._valid), np.uint8)[left].tobytes()
        kept = (
            array("q", numbers(each)[left].tobytes()) for each in (self._sequences, self._partitions, self._offsets)
        )
        self._sequences, self._partitions, self._offsets = kept
        self._contents, self._valid = bytearray(contents), bytearray(valid)
        self.lowest.pop(partition, None)

    def sort(self) -> None:
        """Sort the records by sequence; call it when all are added."""
        order = np.argsort(numbers(self._sequences), kind="stable")
        self.sequences = numbers(self._sequences)[order]
        self.partitions, self.offsets = numbers(self._partitions)[order], numbers(self._offsets)[order]
        self.contents = np.frombuffer(self._contents, np.uint64).reshape(-1, 2)[order]
        self.valid: Flags = np.frombuffer(self._valid, np.bool_)[order]

    def of(self, sequences: Numbers) -> list[slice]:
        """Return, for each of these sequences, the slice of the sorted records with the sequence."""
        first, behind = (np.searchsorted(self.sequences, sequences, side) for side in ("left", "right"))
        return [slice(start, end) for start, end in zip(first.tolist(), behind.tolist(), strict=True)]

    def same(self, where: slice, content: npt.NDArray[np.uint64]) -> Numbers:
        """Return the indices of the records in a slice that have this content."""
        found: Numbers = where.start + np.flatnonzero((self.contents[where] == content).all(axis=1))
        return found

    def place(self, index: int) -> str:
        """Return partition and offset of a record as text, for messages."""
        return f"partition {self.partitions[index]} offset {self.offsets[index]}"


class Item(NamedTuple):
    """Record of the files. content: digest of key and value."""

    sequence: int
    content: bytes
    key: bytes | None
    file: Path
    line: int


class SourceComparison:
    """Comparison of a producer's files with its records in Kafka, which are collected first."""

    def __init__(self, files: SourceFiles, progress: Progress | None) -> None:
        """Open the files. progress: progress that the producer has recorded in Kafka; None: no progress."""
        self._progress = progress
        self._name = files.producer.encode()
        self._input, self._output = FoundRecords(), FoundRecords()
        # Opened now, so that a missing file is reported before Kafka is read.
        self._source = open_files(
            files.paths,
            format=files.format,
            key=files.key,
            sequence_field=files.sequence_field,
            delimiter=files.delimiter,
        )
        self.report = SourceReport(files.producer)

    def drop(self, partition: int) -> None:
        """Remove the collected records of a partition, before it is read again."""
        self._input.drop(partition)
        self._output.drop(partition)

    def watch_input(
        self,
        partition: int,
        records: Iterator[tuple[int, RecordView]],
        rule: Callable[[RecordView], object],
    ) -> Iterator[tuple[int, RecordView]]:
        """Yield the records of an input partition unchanged, and collect those of the producer.

        rule: function that returns None for an invalid record
        """
        for offset, record in records:
            if (sequence := self._sequence(record)) is not None:
                is_valid = rule(record) is not None
                self._input.add(sequence, partition, offset, _content(record.key, record.value), valid=is_valid)
            yield offset, record

    def watch_output(
        self, partition: int, records: Iterator[tuple[int, RecordView]]
    ) -> Iterator[tuple[int, RecordView]]:
        """Yield the records of an output partition unchanged, and collect those of the producer."""
        for offset, record in records:
            if (sequence := self._sequence(record)) is not None:
                self._output.add(sequence, partition, offset, _content(record.key, record.value), valid=True)
            yield offset, record

    def finish(
        self,
        judged: dict[int, int],
        input_begins: dict[int, int],
        output_begins: dict[int, int],
        blocked: Collection[int] = (),
    ) -> SourceReport:
        """Read the files, and compare them with the collected records.

        Args:
            judged: committed offset of the workers, by input partition.
            input_begins: first offset that Kafka still has, by input partition.
            output_begins: first offset that Kafka still has, by output partition.
            blocked: input partitions with an open transaction; a record missing there may be part of it.

        Raises:
            SourceError: a record of the files cannot be read; the text has file and line.
        """
        self._input.sort()
        self._output.sort()
        self._judged, self._begins, self._blocked = judged, (input_begins, output_begins), blocked
        met = np.zeros(len(self._input.sequences), np.bool_)
        met_out = np.zeros(len(self._output.sequences), np.bool_)
        for items in self._items():
            sequences = np.array([item.sequence for item in items], np.int64)
            contents = np.frombuffer(b"".join(item.content for item in items), np.uint64).reshape(-1, 2)
            places = zip(self._input.of(sequences), self._output.of(sequences), strict=True)
            for item, content, (there, out) in zip(items, contents, places, strict=True):
                met[there], met_out[out] = True, True
                self._take(item, content, there, out)
        unknown = np.concatenate((self._input.sequences[~met], self._output.sequences[~met_out]))
        self.report.foreign = len(np.unique(unknown))
        return self.report

    def _take(self, item: Item, content: npt.NDArray[np.uint64], there: slice, out: slice) -> None:
        report = self.report
        report.records += 1
        if out.start < out.stop:
            if len(self._output.same(out, content)):
                report.delivered += 1
            else:
                self._find("altered", item, f"key or value differ in the output, {self._output.place(out.start)}")
            return
        if there.start == there.stop:
            self._never_came(item)
            return
        same = self._input.same(there, content)
        if not len(same):
            self._find("altered", item, f"key or value differ in the input, {self._input.place(there.start)}")
        elif not self._input.valid[same].any():
            report.dead_lettered += 1
        elif self._input.offsets[same[0]] >= self._judged[int(self._input.partitions[same[0]])]:
            report.pending += 1
        elif self._is_deleted(item, 1, self._output):
            report.before += 1
        else:
            place = self._input.place(int(same[0]))
            self._find("missing", item, f"is in the input, {place}, and was never forwarded")

    def _never_came(self, item: Item) -> None:
        if self._progress is None or item.sequence > self._progress.sequence:
            self.report.unpublished += 1
            if self.report.first_unpublished is None:
                self.report.first_unpublished = f"{item.file} line {item.line}"
        elif self._is_deleted(item, 0, self._input):
            self.report.before += 1
        elif partition_of(item.key, self._name, self._progress.partitions) in self._blocked:
            self.report.pending += 1
        else:
            self._find(
                "missing", item, f"is not in Kafka, and the producer has published up to {self._progress.sequence}"
            )

    def _is_deleted(self, item: Item, which: int, sightings: FoundRecords) -> bool:
        """Return True if retention has deleted the record from a topic.

        This is so if the producer's remaining records in the partition all have higher sequences.

        which: 0 for the input, 1 for the output
        """
        count = len(self._begins[which]) if self._progress is None else self._progress.partitions
        partition = partition_of(item.key, self._name, count)
        begins = self._begins[which].get(partition, 0)
        return begins > 0 and item.sequence < sightings.lowest.get(partition, item.sequence + 1)

    def _find(self, kind: SourceKind, item: Item, detail: str) -> None:
        self.report.add(SourceFinding(kind, str(item.file), item.line, item.sequence, detail))

    def _items(self) -> Iterator[list[Item]]:
        items: list[Item] = []
        for record in self._source.read(0):
            items.append(self._item(record))
            if len(items) == AT_A_TIME:
                yield items
                items = []
        if items:
            yield items

    def _item(self, record: Record) -> Item:
        return Item(record.sequence, _content(record.key, record.value), record.key, *self._source.here())

    def _sequence(self, record: RecordView) -> int | None:
        """Return the sequence of the producer's record; None for other producers' and unreadable ones."""
        named = dict(record.headers)
        sequence = named.get(SEQUENCE_HEADER)
        if named.get(PRODUCER_HEADER) != self._name or sequence is None:
            return None
        if len(sequence) == 8:
            return int.from_bytes(sequence, "big", signed=True)
        return int(sequence) if sequence.isdigit() and len(sequence) < 19 else None


def _content(key: bytes | None, value: bytes | None) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in (key, value):
        digest.update(_length(-1 if part is None else len(part)))
        digest.update(part or b"")
    return digest.digest()
