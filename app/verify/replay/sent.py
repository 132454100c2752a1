"""Comparison of sent records in any order: each must be in the topic as often as in the replay.

Two kinds of topics have no fixed order of records:

- Topics that agents send records to. The lanes of all input partitions write to each partition of such a topic, each
  lane in transactions of its own. Other programs may write there as well, so foreign records are only counted.
- The output of a stream with several agents that yield records. Each agent processes a whole batch, and a worker's
  batches differ from the replay's.

All records are in one temporary RocksDB, sorted by topic, side and content, so that memory does not grow with them.

    key: topic (2 bytes) + b"m" for the replay or b"t" for the topic + partition (4) + digest (16) + number (8)
    value: `SentRecord`
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from kafka_ratchet.app.verify.findings import Finding, FindingKind
from kafka_ratchet.app.verify.replay.outputs import SHOWN, shown
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.tables.store import Store

MINE, THEIRS = b"m", b"t"
_TOPIC: Final = struct.Struct(">H")
_NUMBER: Final = struct.Struct(">Q")
"""Format of a record's number in a key, unsigned and big-endian like the other parts."""
_PARTITION: Final = struct.Struct(">I")
DIGEST: Final = slice(3, 23)
"""Bytes of a key that contain partition and digest."""
WRITTEN_AT_ONCE: Final = 10_000


class SentRecord(msgspec.Struct, array_like=True):
    """Record sent by the replay, or record of the topic.

    partition: partition of the topic; from_partition, from_offset: input partition and offset of its event, if known.
    offset: offset in the topic; None: the record is from the replay.
    is_due: True if workers had committed its event before the topic was read.
    """

    partition: int
    key: bytes | None
    value: bytes | None
    from_partition: int | None = None
    from_offset: int | None = None
    offset: int | None = None
    is_due: bool = True


class Copies(NamedTuple):
    """Equal records of one partition, all of the replay or all of the topic.

    number: number of records; due: number of these that must be in the topic; last: the last of them
    """

    digest: bytes
    number: int
    due: int
    last: SentRecord


class SentRecords:
    """Store of the records that the replay sends, and of the topics' records."""

    def __init__(self, folder: Path, topics: list[str]) -> None:
        """Create an empty store. folder: place of the store; the caller removes it."""
        self._store, self._topics = Store(folder), topics
        self._waiting: list[tuple[bytes, bytes | None]] = []
        self._number = 0
        self.counts = dict.fromkeys(topics, 0)
        """Number of records that the replay has sent for input committed by workers, by topic."""

    def close(self) -> None:
        """Release the store."""
        self._store.close()

    def add(self, topic: str, digest: bytes, sent: SentRecord) -> None:
        """Add a record of the replay or the topic. digest: digest of its content."""
        side = MINE if sent.offset is None else THEIRS
        if side == MINE:
            self.counts[topic] += sent.is_due
        self._number += 1
        place = side + _PARTITION.pack(sent.partition) + digest
        key = _TOPIC.pack(self._topics.index(topic)) + place + _NUMBER.pack(self._number)
        self._waiting.append((key, msgspec.msgpack.encode(sent)))
        if len(self._waiting) == WRITTEN_AT_ONCE:
            self._write()

    def _write(self) -> None:
        self._store.write(self._waiting, 0, 0)
        self._waiting.clear()

    def compare(self, topic: str, report: Report, *, is_whole: bool, is_own: bool = False) -> int:
        """Report records that a topic lacks or has too often.

        Args:
            topic: name of the topic.
            report: receives the findings.
            is_whole: True if the topic still has its first records, so that a missing record was never sent.
            is_own: True if only these agents write to the topic, so that foreign records are findings.

        Returns:
            number of foreign records.
        """
        self._write()
        number = _TOPIC.pack(self._topics.index(topic))
        mine, theirs = self._copies(number + MINE), self._copies(number + THEIRS)
        left, right, others = next(mine, None), next(theirs, None), 0
        while left is not None or right is not None:
            if left is None or (right is not None and right.digest < left.digest):
                assert right is not None  # noqa: S101 - the other one is None
                others += right.number
                if is_own:
                    report.add(_finding("unexpected", topic, right.last), right.number)
                right = next(theirs, None)
                continue
            there = right.number if right is not None and right.digest == left.digest else 0
            if there < left.due and is_whole:
                report.add(_finding("lost", topic, left.last), left.due - there)
            elif there < left.due:
                report.undecided += left.due - there
            report.pending += left.number - max(left.due, min(there, left.number))
            if there > left.number and right is not None:
                found = right.last
                found.from_partition, found.from_offset = left.last.from_partition, left.last.from_offset
                report.add(_finding("doubled", topic, found), there - left.number)
            left, right = next(mine, None), next(theirs, None) if there else right
        return others

    def _copies(self, prefix: bytes) -> Iterator[Copies]:
        for digest, entries in groupby(self._store.scan_from(prefix, prefix), lambda entry: entry[0][DIGEST]):
            count = due = 0
            last: SentRecord | None = None
            for _, value in entries:
                last = msgspec.msgpack.decode(value, type=SentRecord)
                count, due = count + 1, due + last.is_due
            assert last is not None  # noqa: S101 - a group has one
            yield Copies(digest, count, due, last)


def cut(part: bytes | None) -> bytes | None:
    """Return the first SHOWN bytes of a key or value, for display."""
    return None if part is None else part[:SHOWN]


def _finding(kind: FindingKind, topic: str, sent: SentRecord) -> Finding:
    detail = f"key {shown(sent.key)}, value {shown(sent.value)}"
    if sent.offset is None:
        detail = f"partition {sent.partition}: {detail} in the replay, but not in the topic"
    origin = None if sent.from_offset is None else sent.from_partition
    return Finding(kind, topic, origin, sent.from_offset, sent.partition, sent.offset, detail=detail)
