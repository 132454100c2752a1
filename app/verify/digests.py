"""What stands for a record in memory while topics are compared."""

from __future__ import annotations

import hashlib
import struct

from kafka_ratchet.app.verify.rule import RecordView

_length = struct.Struct(">q").pack


def content(record: RecordView, *, with_timestamp: bool = True) -> bytes:
    """A digest of everything that must pass through untouched; 16 bytes."""
    digest = hashlib.blake2b(digest_size=16)
    fields: list[bytes | None] = [record.key, record.value]
    for name, value in record.headers:
        fields += [name.encode("utf-8", "surrogatepass"), value]
    for field in fields:
        digest.update(_length(-1 if field is None else len(field)))
        digest.update(field or b"")
    if with_timestamp:
        digest.update(_length(record.timestamp_ms))
    return digest.digest()


def identity_and_sequence(identity: bytes, sequence: int) -> bytes:
    """A digest of both, by which the record of the output is found that is this one of the input; 16 bytes."""
    return hashlib.blake2b(_length(sequence) + identity, digest_size=16).digest()
