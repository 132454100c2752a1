"""The two headers of a published record, and what may stand in them.

The names equal those of tables/, which this package does not import: it would bring in numba. A test compares them.
"""

from __future__ import annotations

import struct
import unicodedata
import zlib
from operator import index

from kafka_ratchet.errors import SettingsError, SourceError

PRODUCER_HEADER = "ratchet-producer"
"""The producer's name, UTF-8."""

SEQUENCE_HEADER = "ratchet-sequence"
"""The record's sequence, 8-byte big-endian signed integer."""

SEQUENCE_MAX = 2**63 - 1
NOTHING_YET = -1
"""Stands for "no sequence so far", as in PIP-6's getLastSequenceId."""

MAX_NAME_BYTES = 256
"""Longest producer name: a quarter of the longest identity of the worker (1,024 bytes)."""

pack = struct.Struct(">q").pack
"""The sequence as it goes into the header; of a number that `sequence_bytes` takes."""


def name_bytes(name: str) -> bytes:
    """Return the name as it goes into the header.

    Raises:
        SettingsError: it is empty, over 256 bytes of UTF-8, or has control characters or half characters in it.
    """
    if not name:
        raise SettingsError("the producer name is empty: give one used by this source alone, such as its file name")
    odd = next((character for character in name if unicodedata.category(character) in ("Cc", "Cs")), None)
    if odd is not None:
        raise SettingsError(
            f"the producer name {name!r} has a control character in it (U+{ord(odd):04X}): leave it out"
        )
    encoded = name.encode()
    if len(encoded) > MAX_NAME_BYTES:
        raise SettingsError(
            f"the producer name {name[:40]!r}... has {len(encoded)} bytes of UTF-8; at most {MAX_NAME_BYTES} are "
            "allowed: shorten it"
        )
    return encoded


def sequence_bytes(sequence: int) -> bytes:
    """Return the sequence as it goes into the header.

    Raises:
        SourceError: it is negative or above 2^63-1.
    """
    if not 0 <= sequence <= SEQUENCE_MAX:
        raise SourceError(
            f"sequence {sequence} is not within 0 and 2^63-1: number the records of this source from 0 on"
        )
    return pack(sequence)


def check_bytes(*parts: object) -> None:
    """Raise TypeError for a value or key other than bytes: it might change before it is sent, or be longer."""
    for part in parts:
        if part is not None and not isinstance(part, bytes):
            raise TypeError(f"a record's value and key are bytes or None, and not {type(part).__name__}")


def whole(sequence: object) -> int:
    """Return the sequence as a plain int; numpy's and pandas' whole numbers are taken too.

    Raises:
        TypeError: it is no whole number. One with a fraction would be cut to that of another record.
    """
    try:
        return int(index(sequence))  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"a record's sequence is a whole number, and not {type(sequence).__name__}") from None


def partition_of(key: bytes | None, name: bytes, partitions: int) -> int:
    """Return the partition for a record of a producer of this name.

    It follows librdkafka's rule for keys; without a key the name takes its place.

    Args:
        key: the record's key.
        name: the producer's, as `name_bytes` has it.
        partitions: the name's first partition count, see `Producer`.
    """
    return zlib.crc32(name if key is None else key) % partitions
