"""The two headers of a published record, and their allowed values.

The names equal those in tables/, which this package does not import, because that would load numba. A test compares
them.
"""

from __future__ import annotations

import struct
import unicodedata
import zlib
from operator import index, methodcaller
from typing import TYPE_CHECKING

from kafka_ratchet.errors import SettingsError, SourceError

if TYPE_CHECKING:
    from confluent_kafka import Message

PRODUCER_HEADER = "ratchet-producer"
"""Header with the producer's name in UTF-8."""

SEQUENCE_HEADER = "ratchet-sequence"
"""Header with the record's sequence, an 8-byte big-endian signed integer."""

SEQUENCE_MAX = 2**63 - 1
NOTHING_YET = -1
"""Sequence that stands for "no sequence yet", as in PIP-6's getLastSequenceId."""

MAX_NAME_BYTES = 256
"""Maximum bytes of a producer name: a quarter of the worker's longest identity (1,024 bytes)."""

pack = struct.Struct(">q").pack
"""Function that encodes a sequence for the header; `sequence_bytes` also checks its range."""

# A call of the method itself leaves the error for any later call to raise: CPython does not check its result.
_HEADERS = methodcaller("headers")


def name_bytes(name: str) -> bytes:
    """Return the name as bytes for the header.

    Raises:
        SettingsError: the name is empty, has more than 256 bytes of UTF-8, or contains control characters or halves of
            surrogate pairs.
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
    """Return the sequence as bytes for the header.

    Raises:
        SourceError: the sequence is negative or above 2^63-1.
    """
    if not 0 <= sequence <= SEQUENCE_MAX:
        raise SourceError(
            f"sequence {sequence} is not within 0 and 2^63-1: number the records of this source from 0 on"
        )
    return pack(sequence)


def check_bytes(*parts: object) -> None:
    """Raise TypeError for a value or key of another type than bytes: it might change before it is sent."""
    for part in parts:
        if part is not None and not isinstance(part, bytes):
            raise TypeError(f"a record's value and key are bytes or None, and not {type(part).__name__}")


def whole(sequence: object) -> int:
    """Return a sequence as a plain int; integers of numpy and pandas are accepted.

    Raises:
        TypeError: the sequence is no integer. A fraction would be cut off, and the result would be another record's
        sequence.
    """
    try:
        return int(index(sequence))  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"a record's sequence is a whole number, and not {type(sequence).__name__}") from None


def partition_of(key: bytes | None, name: bytes, partitions: int) -> int:
    """Return the partition for a record of a named producer.

    The key determines it by librdkafka's rule; for a record without a key, the name takes the key's place.

    Args:
        key: key of the record; None: it has none.
        name: name of the producer, from `name_bytes`.
        partitions: number of partitions when the name was first used, see `Producer`.
    """
    return zlib.crc32(name if key is None else key) % partitions


def headers_of(message: Message) -> list[tuple[str, bytes | None]] | None:
    """Return a record's headers; None: a name is not UTF-8, which Kafka's client for Python cannot read.

    After None, read no headers of the message again: its next list of headers would end the process.
    """
    try:
        return _HEADERS(message) or []
    except (SystemError, UnicodeDecodeError):
        return None
