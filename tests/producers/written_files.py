"""Ways to write a file, and what is refused of it."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import cramjam
import pytest

from kafka_ratchet.errors import SourceError
from kafka_ratchet.producers import FileSource, Record

Write = Callable[[str, bytes], Path]
"""Writes a file of a name and its content."""
LINES = [b'{"id":"a"}', b'{"id":2}', b'{"id":true}', b'{"id":1.50}', '{"id":"é","x":[1]}'.encode()]


def zstd(content: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(content))


Compress = Callable[[bytes], bytes]
WAYS: dict[str, tuple[str, Compress]] = {
    "plain": ("", bytes),
    "gzip": (".gz", gzip.compress),
    "zstd": (".zst", zstd),
}


def refused(source: FileSource) -> tuple[list[Record], str]:
    given: list[Record] = []
    with pytest.raises(SourceError) as failure:
        given.extend(source.read(0))
    return given, str(failure.value)
