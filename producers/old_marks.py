"""Marks of earlier versions: a file was recognised by its first 4,096 bytes, a finished one by its size as well."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from kafka_ratchet.errors import SourceError
from kafka_ratchet.producers.compression import READ_ERRORS, Compression, damage, decompressed

HEAD_BYTES = 4096

NO_MARK = f"sha256:{hashlib.sha256().hexdigest()}:0"
"""The mark where nothing has been read. It is the same in all versions."""


class MarkedFile(Protocol):
    """What is asked of a file here."""

    path: Path
    size_bytes: int
    compression: Compression


def check_old_mark(files: Sequence[MarkedFile], number: int, byte: int, mark: str) -> str:
    """Compare as the version did that made the mark; returns what to tell the user.

    Args:
        files: in their order.
        number: of the file that the mark's sequence is in.
        byte: the sequence's first byte there.
        mark: as stored.

    Raises:
        SourceError: the files are others.
    """
    file = files[number]
    if _old_mark(files, number, byte) != mark:
        raise SourceError(
            f"{file.path}: the source has changed since it was published up to byte {byte}: the file or one before "
            "it is shorter, has another name or begins with other bytes. Put back what was published, or publish under "
            "another producer name"
        )
    return (
        f"{file.path}: what was published is known by its first {HEAD_BYTES:,} bytes only, from an earlier version; "
        f"whether it has changed behind them cannot be told. From now on it is recognised by all bytes up to byte "
        f"{byte}"
    )


def _old_mark(files: Sequence[MarkedFile], number: int, byte: int) -> str:
    digest = b""
    for file in files[:number]:
        identity = b"%s\n%d\n%s" % (os.fsencode(file.path.name), file.size_bytes, hashlib.sha256(_head(file)).digest())
        digest = hashlib.sha256(digest + identity).digest()[:16]
    before = f"files:{digest.hex()}:" if number else ""
    head = _head(files[number])[: max(0, byte)]
    return f"{before}sha256:{hashlib.sha256(head).hexdigest()}:{len(head)}"


def _head(file: MarkedFile) -> bytes:
    head = b""
    try:
        with file.path.open("rb") as raw:
            stream = decompressed(raw, file.compression)
            while len(head) < HEAD_BYTES and (block := stream.read1(HEAD_BYTES - len(head))):
                head += block
    except READ_ERRORS as error:
        if damage(error) is None:
            raise SourceError(f"{file.path}: cannot be read: {error}") from None
    return head
