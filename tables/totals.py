"""Totals of a partition, committed with its records."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from kafka_ratchet.errors import StateError
from kafka_ratchet.transport.client.topic_id import NO_EPOCH

PROGRESS: Final = b"p"
EVICTED: Final = b"e"
_EVICTED: Final = struct.Struct(">Bqq")
_PROGRESS: Final = struct.Struct(">Bqqqqqqq")
_VERSION: Final = 1


class Progress(NamedTuple):
    """Totals of a partition, committed with its records, and exact after any crash.

    Args:
        next: next input offset to read.
        fresh, duplicate, invalid, late, conflict: number of records with each verdict since the beginning.
        epoch: leader epoch of the preceding input batch; -1: unknown.
    """

    next: int
    fresh: int
    duplicate: int
    invalid: int
    epoch: int = NO_EPOCH
    late: int = 0
    conflict: int = 0

    @property
    def judged(self) -> int:
        """Return the number of judged records, whatever the verdict."""
        return self.fresh + self.duplicate + self.invalid + self.late + self.conflict

    def pack(self) -> bytes:
        """Return the changelog value: a version byte and the seven fields as big-endian int64."""
        return _PROGRESS.pack(_VERSION, *self)

    @classmethod
    def unpack(cls, value: bytes) -> Progress:
        """Parse a value that `pack` made.

        Raises:
            StateError: the value is damaged, or of another version.
        """
        if len(value) != _PROGRESS.size or value[0] != _VERSION:
            raise StateError(
                f"a progress entry has {len(value)} bytes and version {value[:1].hex()}; this Ratchet reads version "
                f"01 with {_PROGRESS.size} bytes. Run a newer Ratchet if it wrote the entry; else find the program "
                "that writes to the changelog"
            )
        return cls(*_PROGRESS.unpack(value)[1:])


class EvictedTotals(NamedTuple):
    """Totals of evicted identities: those inactive for too long, and those displaced by others."""

    inactive: int = 0
    displaced: int = 0

    def plus(self, more: EvictedTotals) -> EvictedTotals:
        """Return the sum of these totals and `more`."""
        return EvictedTotals(self.inactive + more.inactive, self.displaced + more.displaced)

    def pack(self) -> bytes:
        """Return the changelog value: a version byte and two big-endian integers."""
        return _EVICTED.pack(_VERSION, *self)

    @classmethod
    def unpack(cls, value: bytes) -> EvictedTotals:
        """Parse a value that `pack` made.

        Raises:
            StateError: the value is damaged, or of another version.
        """
        if len(value) != _EVICTED.size or value[0] != _VERSION:
            raise StateError(
                f"a count of evictions has {len(value)} bytes and version {value[:1].hex()}, but this Ratchet reads "
                f"version 01 with {_EVICTED.size} bytes. Run a newer Ratchet if it wrote the entry; else find the "
                "program that writes to the changelog"
            )
        return cls(*_EVICTED.unpack(value)[1:])
