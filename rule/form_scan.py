"""Compiled check of the form of a batch's sequences, each compared with the last one of its identity."""
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.rule.number_forms import (
    DOUBLE_STEP,
    FAR,
    FIRST_BYTE,
    FLOATING,
    HEX_LEAST,
    HEX_LOOKED_AT,
    HEX_SHARE,
    HEXADECIMAL,
    LEAST,
    LETTERS,
    LITTLE,
    MINUS,
    MOST_BYTE,
    NEAR,
    NEAR_NEIGHBOUR,
    NEIGHBOURS,
    NEXT_TO,
    ONE_BYTE,
    SHORT,
    SPACE,
    STEP,
    TILDE,
    DoubtfulSequence,
    is_hexadecimal,
)
from kafka_ratchet.transport.batch.compiled import compiled

NO_ROW = -1

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]


@compiled(inline="always")
def _reversed(number: np.int64) -> Any:
    """Return the number in the same eight bytes, read in the other order."""
    left, made = np.uint64(number), np.uint64(0)
    for _ in range(8):
        made = (made << np.uint64(8)) | (left & np.uint64(255))
        left >>= np.uint64(8)
    return np.int64(made)


@compiled(inline="always")
def _double(bits: np.int64) -> Any:
    """Return the integer, 1 or more and below 2^53, of a double with these bits; -1: none."""
    exponent = (bits >> 52) - 1023
    if exponent < 0 or exponent > 52:
        return np.int64(-1)
    mantissa = bits & ((np.int64(1) << 52) - 1) | (np.int64(1) << 52)
    whole = mantissa >> (52 - exponent)
    return whole if whole << (52 - exponent) == mantissa else np.int64(-1)


@compiled(inline="always")
def _goes_on(number: np.int64, last: np.int64) -> bool:
    """Return True if a number is a little above the last sequence as little-endian, but far away as big-endian."""
    little, little_last = _reversed(number), _reversed(last)
    if little < 0 or little_last < 0 or little <= little_last:
        return False
    if _double(number) > 0 and _double(last) > 0:
        return False  # big-endian floating point numbers rise as integers
    step, distance = little - little_last, abs(number - last)
    if number <= last:
        return bool(distance >= FAR and step < NEAR)
    is_short = (number | last) & 0xFFFFFFFF == 0 and number >= FIRST_BYTE
    return bool(is_short and distance >= FAR and step < STEP)


@compiled(inline="always")
def _integer(data: U8, start: int) -> Any:
    number = np.uint64(0)
    for q in range(start, start + 8):
        number = (number << np.uint64(8)) | np.uint64(data[q])
    return np.int64(number)


@compiled()
def _is_decimal(data: U8, start: int) -> bool:
    """Return True if eight bytes are digits, or a minus and digits."""
    for q in range(start + 1 if data[start] == MINUS else start, start + 8):
        if data[q] < 48 or data[q] > 57:
            return False
    return True


@compiled()
def _is_printable(data: U8, start: int) -> bool:
    for q in range(start, start + 8):
        if data[q] < SPACE or data[q] > TILDE:
            return False
    return True


@compiled(inline="always")
def _is_close_as_big_endian(number: np.int64, other: np.int64) -> bool:
    """Return True if a neighbour's integer suggests big-endian numbers, see `NEXT_TO`."""
    if number == other or number < 0 or other < 0:
        return False
    distance = abs(number - other)
    little, little_other = _reversed(number), _reversed(other)
    is_far = little < 0 or little_other < 0 or abs(little - little_other) >= NEAR
    return bool(distance < NEXT_TO or (distance < NEAR_NEIGHBOUR and is_far))


@compiled(inline="always")
def _counts_nearby(number: np.int64, other: np.int64) -> bool:
    """Return True if `other` differs only a little from `number`, and does not look like a double."""
    return bool(number != other and abs(number - other) <= DOUBLE_STEP and _double(_reversed(other)) < 0)


@compiled()
def _fits_neighbours(data: U8, starts: I64, lengths: I64, row: int, recent: I64, form: int) -> bool:
    """Return True if the integers of nearby or recent records suggest that a record's integer is big-endian."""
    number = _integer(data, starts[row])
    for i in range(max(row - NEIGHBOURS, 0), min(row + NEIGHBOURS + 1, len(starts))):
        if lengths[i] == 8:
            other = _integer(data, starts[i])
            if _is_close_as_big_endian(number, other) if form == LITTLE else _counts_nearby(number, other):
                return True
    if row < NEIGHBOURS:
        for other in recent:
            if _is_close_as_big_endian(number, other) if form == LITTLE else _counts_nearby(number, other):
                return True
    return False


@compiled()
def remember(data: U8, starts: I64, lengths: I64, recent: I64) -> None:
    """Store the last integers of a batch in `recent`, int64[NEIGHBOURS]; -1: none."""
    for i in range(max(len(starts) - NEIGHBOURS, 0), len(starts)):
        if lengths[i] == 8:
            for q in range(NEIGHBOURS - 1):
                recent[q] = recent[q + 1]
            recent[-1] = _integer(data, starts[i])


@compiled()
def scan(data: U8, starts: I64, lengths: I64, verdicts: U8, invalid: int, against: I64, recent: I64) -> tuple[Any, Any]:
    """Return the first record with eight bytes that seem to have another form.

    See `kafka_ratchet.rule.number_forms` for the bounds.

    Args:
        data: uint8[bytes]
        starts: int64[records], position of each sequence
        lengths: int64[records], bytes of each sequence; negative: none
        verdicts: uint8[records]
        invalid: verdict of records without a last sequence
        against: int64[records], last sequence of the identity before each record; -1: none
        recent: int64[NEIGHBOURS], integers before the first record; -1: none

    Returns:
        Index of the record, or NO_ROW if there is none; and its suspected form.
    """
    for i in range(len(starts)):
        if lengths[i] != 8:
            continue
        start = starts[i]
        if SPACE <= data[start] <= TILDE:
            if _is_decimal(data, start):
                continue
            if _is_printable(data, start):
                return i, LETTERS
        found, last = _integer(data, start), against[i]
        if found < 0:
            is_short = 0 <= _reversed(found) < SHORT and found != LEAST
            if is_short and not (data[start] == 255 and data[start + 1] == 255):
                return i, LITTLE
            continue
        if last < 0 or verdicts[i] == invalid:
            continue
        if abs(found - last) >= FAR:
            if _goes_on(found, last) and not _fits_neighbours(data, starts, lengths, i, recent, LITTLE):
                return i, LITTLE
        # The sign and the exponent of a double stand in its last byte and a half.
        elif found < last and ONE_BYTE <= data[start + 7] <= MOST_BYTE:
            after, before = _double(_reversed(found)), _double(_reversed(last))
            if before > 0 and 0 < after - before <= DOUBLE_STEP:
                if not _fits_neighbours(data, starts, lengths, i, recent, FLOATING):
                    return i, FLOATING
    return NO_ROW, 0


class FormWatch:
    """Checker of the form of one partition's sequences, from the worker's take-over of the partition on."""

    def __init__(self) -> None:
        self._recent = np.full(NEIGHBOURS, -1, np.int64)
        self._hexadecimal = self._decimal = 0

    def look(
        self,
        data: U8,
        starts: I64,
        lengths: I64,
        verdicts: U8,
        invalid: int,
        against: I64,
        not_numbers: NDArray[np.intp],
    ) -> DoubtfulSequence | None:
        """Return the first doubtful record of a batch; None: there is none.

        A batch with a doubt leaves this checker unchanged. So the same doubt appears when the batch is read again.

        Args:
            data, starts, lengths, verdicts, invalid, against: see `scan`.
            not_numbers: indices of records without a number.
        """
        row, form = scan(data, starts, lengths, verdicts, invalid, against, self._recent)
        if row != NO_ROW:
            return DoubtfulSequence(int(row), int(form))
        hexadecimal = self._hexadecimal
        decimal = self._decimal + int(np.count_nonzero((lengths > 0) & (lengths != 8) & (verdicts != invalid)))
        for found in not_numbers[:HEX_LOOKED_AT].tolist():
            text = data[starts[found] : starts[found] + max(int(lengths[found]), 0)].tobytes()
            hexadecimal += is_hexadecimal(text)
            share = hexadecimal / max(hexadecimal + decimal, 1)
            if decimal > 0 and hexadecimal >= HEX_LEAST and share >= HEX_SHARE:
                return DoubtfulSequence(found, HEXADECIMAL)
        remember(data, starts, lengths, self._recent)
        self._hexadecimal, self._decimal = hexadecimal, decimal
        return None
