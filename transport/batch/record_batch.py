"""Record batch as columns: one fetched chunk of a partition, which the lane passes to the agent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.transport.batch import kernels

REPLAY_HEADERS: Final = "ratchet-replay"
"""Prefix of the header names that `ratchet dead-letters replay` gives a record."""

Bytes = NDArray[np.uint8]
Column = NDArray[np.int64]


class Header(NamedTuple):
    """Header of a record; None stands for a null value."""

    name: str
    value: bytes | None


def _no_records() -> Column:
    return np.empty(0, np.int64)


@dataclass(slots=True)
class RecordBatch:
    """Records of one partition, from offset `start` up to but not including `next`, parsed into columns.

    Control batches, aborted transactions and records below `start` are already left out, so `count` may be 0 while
    `next` is ahead of `start`.

    Attributes:
        data: uint8[bytes], bytes of the columns' spans.
        columns: int64[COLUMNS, count], see `kafka_ratchet.transport.batch.kernels`.
        codec: name of the compression of the last data batch ("none", "gzip", "snappy", "lz4", "zstd").
        epoch: leader epoch of the last batch before `next`, control batches included; -1 without one.
        replays: int64[], indexes of records with a header name that begins with REPLAY_HEADERS.
    """

    topic: str
    partition: int
    start: int
    next: int
    data: Bytes
    columns: NDArray[np.int64]
    codec: str = "none"
    epoch: int = -1
    replays: Column = field(default_factory=_no_records)

    @property
    def count(self) -> int:
        """Return the number of records."""
        return int(self.columns.shape[1])

    def release(self) -> None:
        """Free the memory once the records' outputs are made; the batch is empty from then on."""
        self.data, self.columns, self.replays = self.data[:0].copy(), self.columns[:, :0].copy(), _no_records()

    @property
    def offsets(self) -> Column:
        """Return the records' offsets in the topic, int64[count]."""
        offsets: Column = self.columns[kernels.OFFSET]
        return offsets

    @property
    def timestamps(self) -> Column:
        """Return the records' timestamps, int64[count], in ms since the epoch."""
        timestamps: Column = self.columns[kernels.TIMESTAMP]
        return timestamps

    def span(self, start: int, length: int) -> bytes | None:
        """Return a copy of data[start:start+length]; None for a negative length, which stands for null."""
        return self.data[start : start + length].tobytes() if length >= 0 else None

    def only(self, keep: NDArray[np.bool_]) -> RecordBatch:
        """Return a copy of the batch with only the records of `keep`. keep: bool[count], True to keep."""
        replays = self.replays
        if len(replays):
            replays = (np.cumsum(keep) - 1)[replays[keep[replays]]]
        return replace(self, columns=np.ascontiguousarray(self.columns[:, keep]), replays=replays)

    def key(self, index: int) -> bytes | None:
        """Return the key of a record; None if the key is null."""
        return self.span(int(self.columns[kernels.KEY, index]), int(self.columns[kernels.KEY_LENGTH, index]))

    def value(self, index: int) -> bytes | None:
        """Return the value of a record; None if the value is null."""
        return self.span(int(self.columns[kernels.VALUE, index]), int(self.columns[kernels.VALUE_LENGTH, index]))

    def header_bytes(self, index: int) -> bytes:
        """Return all headers of a record as encoded in Kafka's record format, number of headers first."""
        at, end = int(self.columns[kernels.HEADERS, index]), int(self.columns[kernels.BODY_END, index])
        return self.data[at:end].tobytes()

    def headers(self, index: int) -> list[Header]:
        """Return all headers of a record, in order. Slow: for dead letters, extractors and display."""
        return unpack_headers(self.header_bytes(index))


def unpack_headers(body: bytes) -> list[Header]:
    """Decode the headers of a record, from their count to the record's end.

    The compiled code has already checked these bytes.
    """
    count, at = read_varint(body, 0)
    headers = []
    for _ in range(count):
        length, at = read_varint(body, at)
        name, at = body[at : at + length], at + length
        length, at = read_varint(body, at)
        value = None if length < 0 else body[at : at + length]
        at += max(length, 0)
        headers.append(Header(name.decode("utf-8", "replace"), value))
    return headers


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a zig-zag varint and return (number, position after it).

    The compiled code has already checked these bytes.
    """
    raw = shift = 0
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
