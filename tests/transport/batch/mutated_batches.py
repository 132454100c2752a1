"""Good batches, damaged in ways that a seed and an index say: `mutate(seed, index)` makes the same bytes every time.

Three layers are damaged: the records before they are compressed, the compressed bytes, and the batch header or the
chunk around it. Most get a checksum that fits afterwards, so that the reading goes on behind it.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from kafka_ratchet.transport.batch.encoding import varint
from tests.transport.batch.known_batches import (
    APPEND_TIME,
    COMPRESSIONS,
    HEAD,
    TRANSACTIONAL,
    Source,
    encode,
    marker,
    packed,
)
from tests.transport.batch.slow_reading import decompress

NAME, OTHER = "ratchet-sequence", "ratchet-producer"

ABORTED = 7
"""A producer whose transaction, from offset 0 on, is listed as aborted."""


class Good(NamedTuple):
    """A good batch, in parts. varints: position and end of each in `records`."""

    head: tuple[int, ...]
    compression: str
    records: bytes
    varints: list[tuple[int, int]]


class Mutated(NamedTuple):
    """A chunk, and what was done to it. foreign: compressed bytes may be damaged, so that libraries may differ."""

    chunk: bytes
    start: int
    kinds: tuple[str, ...]
    foreign: bool


NUMBERS = (
    *(0, 1, 2, 3, 5, 7, 62, 63, 64, 65, 127, 128, 129, 300, 8191, 8192, 1 << 20),
    *(-1, -2, -3, -64, -65, -(1 << 31), -(1 << 31) - 1, -(1 << 62), -(1 << 63)),
    *((1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 62, (1 << 63) - 1, (1 << 63) - 2),
)
"""Lengths, counts and deltas that programs get wrong."""

LONG_VARINTS = (
    *(b"\x80\x00", b"\x81\x80\x80\x00", b"\x80" * 9 + b"\x00", b"\x80" * 9 + b"\x01"),  # longer than they have to be
    *(b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x02", b"\xff" * 10, b"\xff" * 10 + b"\x01", b"\x80" * 12),
    *(b"\x80", b"\xff"),  # an end that never comes
)


@functools.cache
def good_batches() -> list[Good]:
    """All codecs, sizes from no record to some hundred, headers, nulls, gaps, transactions and markers."""
    dice = np.random.default_rng(4)
    rows = [Source(b"key", b"value", ((NAME, b"7"), (OTHER, b"me")))]
    mixed = [
        Source(None, b"v", ((NAME, b"\0" * 7 + b"\x09"), (OTHER, None), (NAME, b""))),
        Source(b"", None, (("größe", b"x" * 70),), Source().timestamp + 70),
        Source(b"k" * 80, b"", (), Source().timestamp - 5),
        Source(None, None),
    ]
    gaps = [Source(b"a", delta=2), Source(b"b", b"b" * 9, delta=7)]
    many = [Source(b"%d" % i, dice.bytes(int(dice.integers(9))), ((NAME, b"%d" % i),)) for i in range(12)]
    large = [Source(b"large", b"the same " * 40), Source(b"larger", dice.bytes(150))]
    made = [marker(0, 3, kind) for kind in (0, 1, 2)]
    made += [encode([], last_delta=4), encode(mixed, producer=ABORTED, attributes=TRANSACTIONAL)]
    for compression in COMPRESSIONS:
        made += [encode(part, compression=compression) for part in (rows, mixed, many, large)]
        made.append(encode(gaps, compression=compression, last_delta=9))
        made.append(encode(mixed, compression=compression, attributes=APPEND_TIME, top_time=1_700_000_000_500))
    return [_in_parts(batch) for batch in made]


def _in_parts(batch: bytes) -> Good:
    head = HEAD.unpack_from(batch)
    compression = COMPRESSIONS[head[5] & 7]
    records = batch[HEAD.size :]
    if compression != "none":
        records = decompress(head[5] & 7, records)
    return Good(head, compression, records, _varints(records, head[12]))


def _varints(records: bytes, count: int) -> list[tuple[int, int]]:
    """Return the place of each varint of some good records."""
    found: list[tuple[int, int]] = []
    at = 0

    def read() -> int:
        nonlocal at
        begin, raw = at, 0
        while True:
            byte = records[at]
            raw |= (byte & 0x7F) << (7 * (at - begin))
            at += 1
            if byte < 0x80:
                found.append((begin, at))
                return (raw >> 1) ^ -(raw & 1)

    def skip_span() -> None:
        nonlocal at
        length = read()
        at += max(0, length)

    for _ in range(count):
        read()
        at += 1  # attributes
        read()
        read()
        skip_span()
        skip_span()
        for _ in range(2 * read()):
            skip_span()
    assert at == len(records)
    return found


class Mutation:
    """One index of a run."""

    def __init__(self, seed: int, index: int) -> None:
        self.dice = np.random.default_rng((seed, index))
        self.kinds: list[str] = []
        self.foreign = False

    def below(self, most: int) -> int:
        """0 to most - 1; 0 where there is nothing to choose."""
        return int(self.dice.integers(max(1, most)))

    def chance(self, of_a_hundred: int) -> bool:
        return self.below(100) < of_a_hundred

    def number(self) -> int:
        return NUMBERS[self.below(len(NUMBERS))]

    def make(self) -> Mutated:
        batches = good_batches()
        parts = [self.batch(batches[self.below(len(batches))], 0)]
        while self.chance(25) and len(parts) < 4:
            self.kinds.append("another")
            parts.append(self.batch(batches[self.below(len(batches))], 40 * len(parts) if self.chance(80) else 0))
        chunk = b"".join(parts)
        if self.chance(12):
            chunk = self.apply("chunk", chunk, ANYWHERE)
        return Mutated(chunk, self.below(6) if self.chance(30) else 0, tuple(self.kinds), self.foreign)

    def batch(self, good: Good, base: int) -> bytes:
        records, head = good.records, list(good.head)
        head[0] = base
        if self.chance(70):
            for _ in range(1 + self.below(3)):
                # Positions are those of the good records: a second change may hit beside its varint, as it may.
                records = self.one_varint(records, good.varints)
        if self.chance(20):
            records = self.apply("records", records, ANYWHERE)
        body = packed(good.compression, records) if good.compression != "none" else records
        if good.compression != "none" and self.chance(20):
            self.foreign = True
            body = self.apply("compressed", body, ANYWHERE)
        if self.chance(30):
            self.header_field(head)
        data = bytearray(HEAD.pack(*head) + body)
        struct.pack_into(">i", data, 8, len(data) - 12)
        if self.chance(95):
            struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
        else:
            self.kinds.append("checksum")
        if self.chance(4):  # the checksum does not cover what stands before it
            self.kinds.append("length")
            near = len(data) - 12 + self.below(40) - 20
            length = near if self.chance(50) else max(-(1 << 31), min((1 << 31) - 1, self.number()))
            struct.pack_into(">i", data, 8, length)
        return bytes(data)

    def header_field(self, head: list[int]) -> None:
        """Offsets, attributes, deltas, times, producer or count, each to the edges of its width."""
        at = (0, 3, 5, 6, 7, 8, 9, 12)[self.below(8)]
        self.kinds.append(f"head {at}")
        bits = {0: 64, 3: 8, 5: 16, 6: 32, 12: 32}.get(at, 64)
        value = self.number()
        if at == 5:
            value = head[5] ^ (self.below(8) if self.chance(50) else 1 << self.below(16))
            # What was compressed otherwise than it says is for the library to refuse.
            self.foreign |= bool((value ^ head[5]) & 7)
        elif at == 3 and self.chance(80):
            return
        elif at in (6, 12) and self.chance(60):
            value = head[at] + self.below(5) - 2
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        head[at] = max(low + (at == 8), min(high, value)) if at != 5 else _signed(value, 16)

    def one_varint(self, records: bytes, varints: list[tuple[int, int]]) -> bytes:
        """Another number in the place of a varint, and perhaps the length of its record mended."""
        if not varints:
            return records
        begin, end = varints[self.below(len(varints))]
        if self.chance(30):
            self.kinds.append("long varint")
            put = LONG_VARINTS[self.below(len(LONG_VARINTS))]
        elif self.chance(50):
            self.kinds.append("near varint")
            put = varint(self.below(16) - 4)
        else:
            self.kinds.append("varint")
            put = varint(self.number())
        changed = records[:begin] + put + records[end:]
        if self.chance(50):
            changed = self.mend_first_length(changed, len(put) - (end - begin))
        return changed

    def mend_first_length(self, records: bytes, grown: int) -> bytes:
        """Most good batches here have few records: the first is often the one that changed."""
        end = 0
        while end < len(records) and records[end] >= 0x80:
            end += 1
        raw = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(records[: min(end + 1, 9)]))
        length = ((raw >> 1) ^ -(raw & 1)) + grown
        self.kinds.append("mended")
        return varint(_signed(length, 64)) + records[end + 1 :]

    def apply(self, where: str, data: bytes, ways: tuple[Callable[..., bytes], ...]) -> bytes:
        way = ways[self.below(len(ways))]
        self.kinds.append(f"{where} {way.__name__}")
        return way(self, data)

    def flip(self, data: bytes) -> bytes:
        out = bytearray(data)
        for _ in range(1 + self.below(4)):
            if out:
                out[self.below(len(out))] ^= 1 << self.below(8)
        return bytes(out)

    def insert(self, data: bytes) -> bytes:
        at = self.below(len(data) + 1)
        return data[:at] + self.dice.bytes(1 + self.below(20)) + data[at:]

    def delete(self, data: bytes) -> bytes:
        at = self.below(len(data))
        return data[:at] + data[at + 1 + self.below(9) :]

    def truncate(self, data: bytes) -> bytes:
        return data[: self.below(len(data))]

    def double(self, data: bytes) -> bytes:
        at = self.below(len(data))
        return data + data[at:] if self.chance(50) else data + data

    def move(self, data: bytes) -> bytes:
        at, to, size = self.below(len(data)), self.below(len(data)), self.below(30)
        return data[:to] + data[at : at + size] + data[to:]

    def noise(self, data: bytes) -> bytes:
        at = self.below(len(data))
        return data[:at] + self.dice.bytes(len(data) - at) if self.chance(80) else self.dice.bytes(self.below(300))


ANYWHERE = (
    *(Mutation.flip, Mutation.insert, Mutation.delete, Mutation.truncate),
    *(Mutation.double, Mutation.move, Mutation.noise),
)


def _signed(value: int, bits: int) -> int:
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def mutate(seed: int, index: int) -> Mutated:
    """The chunk of this index, the same every time."""
    return Mutation(seed, index).make()
