"""Opening of files that may be compressed, recognised by their first bytes or by their name."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import BinaryIO, Literal, cast

Compression = Literal["", "gzip", "zstd"]

SUFFIXES: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}
MAGIC: dict[bytes, Compression] = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}

BLOCK_BYTES = 1 << 20


def compression_of(path: Path) -> Compression:
    """Return the compression of a file; empty: none.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        beginning = file.read(max(map(len, MAGIC)))
    found: Compression = next((kind for magic, kind in MAGIC.items() if beginning.startswith(magic)), "")
    return found or SUFFIXES.get(path.suffix.lower(), "")


def without_compression(name: str) -> str:
    """Return a file's name without the suffix of its compression."""
    return next((name[: -len(suffix)] for suffix in SUFFIXES if name.lower().endswith(suffix)), name)


def decompressed(raw: io.BufferedReader, compression: Compression) -> io.BufferedReader:
    """Return a reader of the decompressed bytes; for a plain file, the given reader.

    The function `damage` describes the errors of that reader.
    """
    if compression == "gzip":
        # gzip.GzipFile reads and buffers as a binary file does, but is typed as less.
        return cast(io.BufferedReader, gzip.GzipFile(fileobj=raw))
    if compression == "zstd":
        import pyarrow  # the import takes a third of a second, and only such a file needs it

        return io.BufferedReader(pyarrow.CompressedInputStream(raw, "zstd"), BLOCK_BYTES)
    return raw


READ_ERRORS = (EOFError, OSError, zlib.error)
"""Errors that the readers of plain, gzip and zstd files raise."""


def damage(error: Exception) -> str | None:
    """Describe the damage to compressed data that an error shows; None: the file itself could not be read."""
    if isinstance(error, EOFError):
        return "ends in the middle: the file was cut off. Get the whole file"
    if isinstance(error, (zlib.error, gzip.BadGzipFile)) or (isinstance(error, OSError) and error.errno is None):
        if "Truncated" in str(error):  # Arrow's only text for it
            return "ends in the middle: the file was cut off. Get the whole file"
        return f"is damaged ({error}). Get the file again"
    return None


def go_to(stream: BinaryIO, at: int, position: int, compression: Compression) -> int:
    """Move a stream forward to a position, or to its end, and return the position reached.

    In a compressed file all bytes before the position are decompressed, at hundreds of MB/s.

    Args:
        stream: stream of the decompressed bytes.
        at: present offset of the stream.
        position: offset to reach.
        compression: compression of the file; empty: none.
    """
    if not compression:
        return stream.seek(position)
    while at < position and (block := stream.read(min(position - at, BLOCK_BYTES))):
        at += len(block)
    return at
