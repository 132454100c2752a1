"""The hash of an identity against the same arithmetic on Python's integers. Fingerprints of values are kept on disk."""

from __future__ import annotations

import random

import numpy as np

from kafka_ratchet.rule import kernels

MASK = (1 << 64) - 1
EARLIER = [14378528423830764860, 11131523117997257573, 14614602609183721926, 18103930002421323696, 12906924789898431771]


def fold(a: int, b: int) -> int:
    return (a * b & MASK) ^ (a * b >> 64)


def plain_hash(data: bytes, seed: int) -> int:
    multiplier = ((seed << 32 | seed >> 32) & MASK ^ 0xD6E8FEB86659FD93) | 1
    prime = 0x9E3779B97F4A7C15
    h = seed ^ (len(data) * prime & MASK)
    for at in range(0, len(data), 8):
        h = fold(h ^ int.from_bytes(data[at : at + 8], "little"), multiplier)
    return fold(h ^ prime, multiplier) or 1


def test_it_is_the_plain_one_whatever_the_length() -> None:
    choose = random.Random(1)
    for length in [*range(34), 63, 64, 65, 511, 1_000]:
        for _ in range(20):
            text, seed = choose.randbytes(length), choose.getrandbits(64)
            around = np.frombuffer(b"\xff" * 9 + text + b"\xff" * 9, np.uint8)
            assert int(kernels.hash_of(around, 9, length, np.uint64(seed))) == plain_hash(text, seed), (text, seed)


def test_a_fingerprint_of_an_earlier_version_is_still_the_same() -> None:
    data = np.frombuffer(b"0123456789abcdefghij", np.uint8)
    found = [int(kernels.hash_of(data, 0, length, np.uint64(7))) for length in (0, 3, 8, 9, 20)]
    assert found == EARLIER
