"""Totals of a partition, committed with everything else."""

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
    """Totals of a partition, committed with everything else, and exact whatever crashes.

    next: input offset to read next; fresh, duplicate, invalid, late, conflict: records judged so since the beginning;
    epoch: leader epoch of the preceding input batch; -1 where it is unknown
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
        """Records, whatever the verdict."""
        return self.fresh + self.duplicate + self.invalid + self.late + self.conflict

    def pack(self) -> bytes:
        """Return the version byte and the seven fields as big-endian int64."""
        return _PROGRESS.pack(_VERSION, *self)

    @classmethod
    def unpack(cls, value: bytes) -> Progress:
        """Read what `pack` wrote.

        Raises:
            StateError: not a progress entry of this version.
        """
        if len(value) != _PROGRESS.size or value[0] != _VERSION:
            raise StateError(
                f"a progress entry of {len(value)} bytes, version {value[:1].hex()}; this Ratchet reads version 1"
            )
        return cls(*_PROGRESS.unpack(value)[1:])


class Evicted(NamedTuple):
    """Totals of evicted identities: those inactive for too long, and those displaced by others."""

    inactive: int = 0
    displaced: int = 0

    def plus(self, more: Evicted) -> Evicted:
        """Return the sum of both."""
        return Evicted(self.inactive + more.inactive, self.displaced + more.displaced)

    def pack(self) -> bytes:
        """Version byte and two big-endian integers."""
        return _EVICTED.pack(_VERSION, *self)

    @classmethod
    def unpack(cls, value: bytes) -> Evicted:
        """Read what `pack` wrote.

        Raises:
            StateError: not a count of this version.
        """
        if len(value) != _EVICTED.size or value[0] != _VERSION:
            raise StateError(
                f"a count of evictions of {len(value)} bytes, version {value[:1].hex()}; this Ratchet reads version 1"
            )
        return cls(*_EVICTED.unpack(value)[1:])
