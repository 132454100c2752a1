"""Intervals of a partition's input that were judged, or forwarded unjudged.

Each interval has an entry in the changelog, committed with its records, under a key of its own. Compaction keeps all of
them, so that later readers know the judged intervals. A partition has no intervals if deduplication was always on.

  b"s" + number     8-byte big-endian, counted from 0 in the order of their time
  value             version byte; a byte, 1 if judged; start, end, policy and unjudged as 8-byte big-endian integers
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from kafka_ratchet.errors import StateError
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.encoding import EncodedBatch, encode_entries
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.policy import Policy

POLICY_INTERVAL: Final = b"s"
_NUMBER: Final = struct.Struct(">q")
_VALUE: Final = struct.Struct(">B?qqqq")
_VERSION: Final = 1


class PolicyInterval(NamedTuple):
    """Range of input offsets with judged records, or with records forwarded unjudged.

    Args:
        number: number of the interval in its partition, from 0.
        deduplicate: True if its records were judged.
        start: first input offset.
        end: input offset after the last record forwarded unjudged so far; in a judged interval, the same as `start`.
        policy: next offset to read in the policy topic when the interval's last policy was taken.
        unjudged: number of records forwarded without a verdict.
    """

    number: int
    deduplicate: bool
    start: int
    end: int
    policy: int
    unjudged: int

    def pack(self) -> tuple[bytes, bytes]:
        """Return key and value of the interval's changelog entry."""
        return POLICY_INTERVAL + _NUMBER.pack(self.number), _VALUE.pack(_VERSION, *self[1:])

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> PolicyInterval:
        """Parse a changelog entry that `pack` made.

        Raises:
            StateError: the entry is damaged, or of another version.
        """
        if len(key) != 1 + _NUMBER.size or len(value) != _VALUE.size or value[0] != _VERSION:
            raise StateError(
                f"a policy entry cannot be read: its key has {len(key)} bytes, its value {len(value)}, and "
                f"its version is {value[:1].hex()}; this Ratchet reads version {_VERSION}. Run a newer Ratchet if it "
                "wrote the entry; else find the program that writes to the changelog"
            )
        return cls(*_NUMBER.unpack(key[1:]), *_VALUE.unpack(value)[1:])


class PolicyIntervals:
    """Intervals of one partition, in two states like its sequences: pushed and persisted."""

    def __init__(self, persisted: Iterable[PolicyInterval] = ()) -> None:
        """Start with the intervals in the store.

        Args:
            persisted: intervals in the store.
        """
        self._persisted: dict[int, PolicyInterval] = {}
        self._pushed: dict[int, PolicyInterval] = {}
        self._unsaved: set[int] = set()
        self.unjudged = 0
        """Number of records forwarded unjudged since the beginning, as persisted."""
        for interval in persisted:
            self._persist(interval)
        self._unsaved.clear()

    def __iter__(self) -> Iterator[PolicyInterval]:
        """Yield the persisted intervals, in any order."""
        return iter(self._persisted.values())

    @property
    def last(self) -> PolicyInterval | None:
        """Return the newest persisted interval."""
        return self._persisted[max(self._persisted)] if self._persisted else None

    def push(self, policy: Policy, batch: RecordBatch) -> None:
        """Add a batch's policy to the open transaction."""
        last = self._pushed[max(self._pushed)] if self._pushed else self.last
        if last is None:
            if policy == Policy():
                return
            last = PolicyInterval(-1, True, 0, 0, 0, 0)
        # A record of the topic may be compacted away before another worker reads it.
        position = max(policy.position, last.policy)
        unjudged = 0 if policy.deduplicate else batch.count
        # An operator may have set the position back.
        follows = last.number >= 0 and last.deduplicate is policy.deduplicate and batch.start >= last.end
        if not follows:
            end = batch.start if policy.deduplicate else batch.next
            last = PolicyInterval(last.number + 1, policy.deduplicate, batch.start, end, position, unjudged)
        elif not policy.deduplicate:
            last = last._replace(end=batch.next, policy=position, unjudged=last.unjudged + unjudged)
        elif position > last.policy:
            last = last._replace(policy=position)
        else:
            return
        self._pushed[last.number] = last

    def encode(self) -> list[EncodedBatch]:
        """Encode the open transaction's intervals as changelog entries."""
        return encode_entries((interval.pack() for interval in self._pushed.values()), sys.maxsize)

    def commit(self) -> None:
        """Make the pushed intervals persisted."""
        for interval in self._pushed.values():
            self._persist(interval)
        self._pushed.clear()

    def rollback(self) -> None:
        """Discard the pushed intervals."""
        self._pushed.clear()

    def apply(self, batch: RecordBatch) -> RecordBatch:
        """Apply the intervals in a batch of the changelog, and return the batch without them.

        Raises:
            StateError: Ratchet did not write an entry.
        """
        lengths = batch.columns[records.KEY_LENGTH]
        mine = np.zeros(batch.count, np.bool_)
        named = np.flatnonzero(lengths > 0)
        mine[named] = batch.data[batch.columns[records.KEY, named]] == POLICY_INTERVAL[0]
        if not mine.any():
            return batch
        for index in np.flatnonzero(mine).tolist():
            try:
                self._persist(PolicyInterval.unpack(batch.key(index) or b"", batch.value(index) or b""))
            except StateError as error:
                offset = int(batch.offsets[index])
                raise StateError(f"{batch.topic}, partition {batch.partition}, offset {offset}: {error}") from None
        return batch.only(~mine)

    def _persist(self, interval: PolicyInterval) -> None:
        before = self._persisted.get(interval.number)
        self.unjudged += interval.unjudged - (before.unjudged if before else 0)
        self._persisted[interval.number] = interval
        self._unsaved.add(interval.number)

    def unsaved_entries(self) -> list[tuple[bytes, bytes]]:
        """Return key and value of the intervals persisted since the last snapshot."""
        return [self._persisted[number].pack() for number in sorted(self._unsaved)]

    def saved(self) -> None:
        """Mark all persisted intervals as contained in the store on disk."""
        self._unsaved.clear()
