"""Forms of sequences that are noticed before a record is dropped, and those that raise no alarm."""

from __future__ import annotations

import base64
import random
import re
import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
import pytest

from kafka_ratchet.rule import number_forms
from kafka_ratchet.rule.form_look import FormFinder
from kafka_ratchet.rule.form_scan import FormWatch
from kafka_ratchet.rule.number_forms import FLOATING, HEXADECIMAL, LETTERS, LITTLE

INVALID, VALID = 2, 0
NOW_MS = 1_763_000_000_000
EXPECTED = {
    LITTLE: "little-endian",
    FLOATING: "floating",
    LETTERS: "would be read as the integer",
    HEXADECIMAL: "hexad",
}


def big(number: int) -> bytes:
    return number.to_bytes(8, "big")


def little(number: int) -> bytes:
    return number.to_bytes(8, "little")


def rising(start: int, most: int, count: int = 400) -> list[int]:
    choose = random.Random(most)
    return [*accumulate((choose.randrange(1, most) for _ in range(count)), initial=start)]


MISREAD: dict[str, tuple[list[bytes], int, int]] = {
    "little-endian from 1": ([little(n) for n in range(1, 1_001)], LITTLE, 1),
    "little-endian from 0": ([little(n) for n in range(1_000)], LITTLE, 1),
    "little-endian from 200": ([little(n) for n in range(200, 1_000)], LITTLE, 0),
    "little-endian from 300": ([little(n) for n in range(300, 1_000)], LITTLE, 1),
    "little-endian milliseconds": ([little(n) for n in rising(NOW_MS, 5_000)], LITTLE, 3),
    "little-endian microseconds": ([little(n) for n in rising(NOW_MS * 10**3, 10**6)], LITTLE, 3),
    "little-endian nanoseconds": ([little(n) for n in rising(NOW_MS * 10**6, 10**9)], LITTLE, 12),
    "little-endian snowflakes": ([little(n) for n in rising(18 * 10**17, 1 << 30)], LITTLE, 12),
    "little-endian floating point": ([struct.pack("<d", n) for n in range(1, 300)], FLOATING, 1),
    "hexadecimal, 8": ([b"%08x" % n for n in range(1, 1_001)], LETTERS, 9),
    "hexadecimal, 16": ([b"%016x" % n for n in range(1, 1_001)], HEXADECIMAL, 11),
    "hexadecimal": ([b"%x" % n for n in range(1, 1_001)], HEXADECIMAL, 30),
    "decimal fractions": ([b"%08.3f" % n for n in range(100)], LETTERS, 0),
    "quoted": ([b'"%06d"' % n for n in range(100)], LETTERS, 0),
    "base64": ([base64.b64encode(n.to_bytes(5, "big")) for n in range(100)], LETTERS, 0),
}
"""Records of one identity, each once: what they are found to be, and by which record at the latest."""

RIGHT: dict[str, list[bytes]] = {
    "big-endian": [big(n) for n in range(1_000)],
    "multiples": [big(n << 16) for n in range(1, 1_000)],
    "milliseconds": [big(n) for n in rising(NOW_MS, 5_000)],
    "microseconds": [big(n) for n in rising(NOW_MS * 10**3, 10**6)],
    "nanoseconds": [big(n) for n in rising(NOW_MS * 10**6, 10**9)],
    "nanoseconds, days apart": [big(n) for n in rising(NOW_MS * 10**6, 10**14)],
    "snowflakes": [big(n) for n in rising(18 * 10**17, 1 << 30)],
    "milliseconds and a counter": [big((NOW_MS + n) << 20) for n in range(1_000)],
    "seconds and a counter": [big((NOW_MS // 1_000 + n) << 32) for n in range(1_000)],
    "epochs of 16 bits": [big(epoch << 48 | n) for epoch in range(1, 300) for n in range(4)],
    "epochs of one record": [big(epoch << 48) for epoch in range(1, 250)],
    "epochs of 32 bits": [big(epoch << 32 | n) for epoch in range(500) for n in range(3)],
    "jumps": [big(n << 40) for n in range(1, 1_000)],
    "jumps of all sizes": [big(n) for n in accumulate(1 << (7 * n % 48) for n in range(1_000))],
    "floating point": [struct.pack(">d", n) for n in range(1, 1_000)],
    "text": [b"%d" % n for n in range(10**7 - 300, 10**7 + 300)],
    "text with zeros": [b"%08d" % n for n in range(500)],
    "negative": [struct.pack(">q", -n) for n in range(1, 1_000)],
    "negative multiples": [struct.pack(">q", -(n << 16)) for n in range(1, 1_000)],
    "snowflakes without traffic, sent again after days": [
        big((NOW_MS + hour * 3_600_000 - late) << 22 | 5 << 12)
        for hour in range(0, 400)
        for late in ((0, 86_400_000 * (hour % 90) + 1_000) if hour % 3 == 0 else (0,))
    ],
    "nanoseconds, sent again after a year": [
        big(NOW_MS * 10**6 + (hour * 3_600 - late) * 10**9)
        for hour in range(0, 400)
        for late in ((0, 31_536_000) if hour % 9 == 0 else (0,))
    ],
    "epochs of 16 bits beyond 256, sent again": [
        big(each << 48) for epoch in range(250, 400) for each in (epoch, epoch - 90)
    ],
    "marks of a missing number": [*(big(n) for n in range(50)), *(struct.pack(">q", n) for n in (-(1 << 63), -1))] * 2,
    "what is no number": [b"bad", b"dead", b"beef", b"1e3", b"x1", b"7", b"8"] * 50,
    "ids": [b"%032x" % (1 << 127 | n * 0xC6EF372FE94F82A << 60) for n in range(1, 200)],
}


def number_of(text: bytes) -> int | None:
    if re.fullmatch(rb"-?[0-9]+", text):
        digits = text.removeprefix(b"-").lstrip(b"0")[:20] or b"0"  # Python has a limit for longer ones
        number = -int(digits) if text.startswith(b"-") else int(digits)
        return number if number < 1 << 63 else None
    return int.from_bytes(text, "big", signed=True) if len(text) == 8 else None


def against(sent: Sequence[bytes], owners: Iterable[int]) -> list[int]:
    """Last sequence before each record, -1 for none and for what is invalid."""
    last: dict[int, int] = {}
    found = []
    for text, owner in zip(sent, owners, strict=True):
        number = number_of(text)
        if number is None or number < 0:
            found.append(-1)
            continue
        found.append(last.get(owner, -1))
        last[owner] = max(number, found[-1])
    return found


def by_worker(sent: Sequence[bytes], owners: Sequence[int], size: int) -> tuple[int, int] | None:
    """Index and form of the first doubt."""
    watch, before = FormWatch(), np.array(against(sent, owners), np.int64)
    for begin in range(0, len(sent), size):
        some = sent[begin : begin + size]
        numbers = [number_of(text) for text in some]
        lengths = np.array([len(text) for text in some], np.int64)
        starts = np.cumsum(lengths) - lengths
        verdicts = np.array([VALID if number is not None and number >= 0 else INVALID for number in numbers], np.uint8)
        none = np.array([i for i, number in enumerate(numbers) if number is None], np.intp)
        data = np.frombuffer(b"".join(some), np.uint8)
        doubt = watch.look(data, starts, lengths, verdicts, INVALID, before[begin : begin + size].copy(), none)
        if doubt is not None:
            return begin + doubt.row, doubt.form
    return None


def by_verify(sent: Sequence[bytes], owners: Sequence[int]) -> tuple[int, str] | None:
    look = FormFinder("ratchet-sequence")
    for offset, (text, last) in enumerate(zip(sent, against(sent, owners), strict=True)):
        look.add(offset, text, last)
    look.finish()
    return look.found


@pytest.mark.parametrize("name", MISREAD)
def test_misreading_is_noticed_before_a_drop(name: str) -> None:
    sent, form, latest = MISREAD[name]
    owners = [0] * len(sent)
    dropped = [
        i for i, (text, last) in enumerate(zip(sent, against(sent, owners), strict=True)) if _is_dropped(text, last)
    ]
    for size in (1, 7, 1_000):
        found = by_worker(sent, owners, size)
        assert found is not None
        assert found[1] == form
        first = found[0] // size * size  # nothing of the batch is judged
        assert first <= latest
        assert not dropped or first <= dropped[0]
    seen = by_verify(sent, owners)
    assert seen is not None
    assert seen[0] <= latest
    assert EXPECTED[form] in seen[1]
    assert "sequence_form" in seen[1]


@pytest.mark.parametrize("text", [b"1234567:", b"/1234567", b"       1", b"~~~~~~~~"])
def test_eight_printable_bytes_that_are_no_decimal_number_are_noticed(text: bytes) -> None:
    assert by_worker([text], [0], 1) == (0, LETTERS)
    seen = by_verify([text], [0])
    assert seen is not None
    assert EXPECTED[LETTERS] in seen[1]


@pytest.mark.parametrize("text", [b"09090909", b"-9999999", b"1234567\x7f", b"\x1f1234567"])
def test_decimal_numbers_and_unprintable_bytes_raise_no_alarm(text: bytes) -> None:
    assert by_worker([text], [0], 1) is None
    assert by_verify([text], [0]) is None


def _is_dropped(text: bytes, last: int) -> bool:
    number = number_of(text)
    return number is not None and 0 <= number <= last


@pytest.mark.parametrize("name", MISREAD)
def test_it_is_noticed_among_producers_that_write_otherwise(name: str) -> None:
    sent, _, _ = MISREAD[name]
    mixed = [text for n, each in enumerate(sent[:400]) for text in (big(n), each, b"%d" % n, big(NOW_MS * 10**6 + n))]
    assert by_worker(mixed, [0, 1, 2, 3] * (len(mixed) // 4), 1_000) is not None


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_raises_no_alarm(name: str) -> None:
    sent = RIGHT[name]
    again = [text for begin in range(0, len(sent), 50) for text in sent[max(begin - 100, 0) : begin + 50]]
    side_by_side = [text for text in sent for _ in range(5)]
    for records, count in ((sent, 1), (sent + sent, 1), (again, 1), (side_by_side, 5)):
        owners = [i % count for i in range(len(records))]
        for size in (50, 1_000):
            assert by_worker(records, owners, size) is None
        assert by_verify(records, owners) is None


def test_a_doubt_returns_when_its_batch_is_read_again() -> None:
    sent = [b"%x" % n for n in range(1, 40)]
    lengths = np.array([len(text) for text in sent], np.int64)
    data, starts = np.frombuffer(b"".join(sent), np.uint8), np.cumsum(lengths) - lengths
    verdicts = np.array([VALID if text.isdigit() else INVALID for text in sent], np.uint8)
    none, before = np.flatnonzero(verdicts == INVALID), np.array(against(sent, [0] * len(sent)), np.int64)
    watch = FormWatch()

    def look(begin: int, end: int) -> object:
        part = slice(begin, end)
        rows = none[(none >= begin) & (none < end)] - begin
        return watch.look(data, starts[part], lengths[part], verdicts[part], INVALID, before[part], rows)

    assert look(0, 29) is None
    for _ in range(4):
        assert look(29, 30) == (0, HEXADECIMAL)  # a fifth of the texts


def test_hexadecimal_texts_are_told_from_others() -> None:
    yes, no = [b"1f", b"0A", b"00ff12"], [b"10", b"ff", b"1e3", b"12E4", b"0x1f", b"1g", b"", b"a"]
    assert [number_forms.is_hexadecimal(text) for text in yes + no] == [True] * len(yes) + [False] * len(no)
