"""Check of JSON values in a survey: the compiled reader of fields handles only plain ones.

`find_odd` finds the other values; `parse_odd` reads them with the worker's own parser.
"""
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.app.survey.kernels import I64, U8
from kafka_ratchet.rule.extraction import field_reader, parse_id
from kafka_ratchet.rule.nesting import NESTING_MOST
from kafka_ratchet.rule.parts import ABSENT
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.compiled import compiled
from kafka_ratchet.transport.batch.record_batch import RecordBatch

DEEPEST = NESTING_MOST
QUOTE, BACKSLASH, COMMA, COLON, MINUS = 34, 92, 44, 58, 45
OBJECT, OBJECT_END, LIST, LIST_END = 123, 125, 91, 93
SPACE = 32

BROKEN = -1
"""Position returned for JSON text that is not plain, or not JSON."""


@compiled(inline="always")
def _skip_space(data: U8, at: int, end: int) -> int:
    while at < end and (data[at] == SPACE or data[at] == 10 or data[at] == 13 or data[at] == 9):
        at += 1
    return at


@compiled(inline="always")
def _is_hex(byte: int) -> bool:
    return 48 <= byte <= 57 or 65 <= byte <= 70 or 97 <= byte <= 102


@compiled()
def _after_string(data: U8, at: int, end: int, is_key: bool) -> int:
    """Return the position after a string that begins at `at`; BROKEN if the string is not plain.

    A key with an escape is not plain, as its bytes are not its name. Half of a surrogate pair is not plain, either.
    """
    while at < end:
        byte = data[at]
        if byte == QUOTE:
            return at + 1
        if byte < SPACE:
            return BROKEN
        if byte != BACKSLASH:
            at += 1
            continue
        if is_key or at + 1 >= end:
            return BROKEN
        escape = data[at + 1]
        if escape == 117:  # u
            if at + 5 >= end:
                return BROKEN
            for q in range(at + 2, at + 6):
                if not _is_hex(data[q]):
                    return BROKEN
            if (data[at + 2] == 100 or data[at + 2] == 68) and data[at + 3] > 55:  # d8 to df
                return BROKEN
            at += 6
        elif (
            escape == QUOTE
            or escape == BACKSLASH
            or escape == 47
            or escape == 98
            or escape == 102
            or escape == 110
            or escape == 114
            or escape == 116
        ):
            at += 2
        else:
            return BROKEN
    return BROKEN


@compiled(inline="always")
def _after_digits(data: U8, at: int, end: int) -> int:
    while at < end and 48 <= data[at] <= 57:
        at += 1
    return at


@compiled()
def _after_number(data: U8, at: int, end: int) -> int:
    """Return the position after the number at `at`; BROKEN for minus zero, or without a number."""
    is_negative = data[at] == MINUS
    first = at + 1 if is_negative else at
    at = _after_digits(data, first, end)
    if at == first or (data[first] == 48 and (at > first + 1 or is_negative)):
        return BROKEN
    if at < end and data[at] == 46:
        first = at + 1
        at = _after_digits(data, first, end)
        if at == first:
            return BROKEN
    if at < end and (data[at] == 101 or data[at] == 69):
        first = at + 1
        if first < end and (data[first] == 43 or data[first] == MINUS):
            first += 1
        at = _after_digits(data, first, end)
        if at == first:
            return BROKEN
    return at


@compiled(inline="always")
def _is_word(data: U8, at: int, end: int, a: int, b: int, c: int) -> bool:
    return at + 4 <= end and data[at + 1] == a and data[at + 2] == b and data[at + 3] == c


@compiled(inline="always")
def _after_scalar(data: U8, at: int, end: int) -> Any:
    byte = data[at]
    if byte == QUOTE:
        return _after_string(data, at + 1, end, False)
    if byte == MINUS or 48 <= byte <= 57:
        return _after_number(data, at, end)
    if byte == 110:
        return at + 4 if _is_word(data, at, end, 117, 108, 108) else BROKEN
    if byte == 116:
        return at + 4 if _is_word(data, at, end, 114, 117, 101) else BROKEN
    if byte == 102:
        return at + 5 if at + 5 <= end and _is_word(data, at + 1, end, 108, 115, 101) and data[at + 1] == 97 else BROKEN
    return BROKEN


@compiled()
def is_plain(data: U8, at: int, end: int, opened: U8) -> bool:
    """Return True if a value is a strict JSON object with plain names and numbers.

    Args:
        data: uint8[bytes]
        at: first byte of the value
        end: position after the last byte of the value
        opened: uint8[DEEPEST], overwritten with the open brackets
    """
    at = _skip_space(data, at, end)
    if at >= end or data[at] != OBJECT:
        return False
    depth = 0
    while True:
        # A value is due.
        byte = data[at]
        if byte == OBJECT or byte == LIST:
            if depth == DEEPEST:
                return False
            opened[depth] = byte
            depth += 1
            at = _skip_space(data, at + 1, end)
            if at >= end:
                return False
            is_empty = data[at] == (OBJECT_END if byte == OBJECT else LIST_END)
            if not is_empty:
                if byte == OBJECT:
                    at = _to_value(data, at, end)
                    if at < 0:
                        return False
                continue
        else:
            at = _after_scalar(data, at, end)
            if at < 0:
                return False
        # A value has ended, or an empty bracket is to be closed.
        while True:
            at = _skip_space(data, at, end)
            if at >= end:
                return False
            byte = data[at]
            if byte == COMMA:
                at = _skip_space(data, at + 1, end)
                if at < end and opened[depth - 1] == OBJECT:
                    at = _to_value(data, at, end)
                if at < 0 or at >= end:
                    return False
                break
            if byte != (OBJECT_END if opened[depth - 1] == OBJECT else LIST_END):
                return False
            depth -= 1
            at += 1
            if depth == 0:
                return bool(_skip_space(data, at, end) == end)


@compiled()
def _to_value(data: U8, at: int, end: int) -> int:
    """Return the position of the value after the member name at `at`.

    Return BROKEN if the name is not a plain string, or if no colon and value follow it.
    """
    if data[at] != QUOTE:
        return BROKEN
    at = _after_string(data, at + 1, end, True)
    if at < 0:
        return BROKEN
    at = _skip_space(data, at, end)
    if at >= end or data[at] != COLON:
        return BROKEN
    at = _skip_space(data, at + 1, end)
    return at if at < end else BROKEN


@compiled()
def find_odd(data: U8, columns: I64, starts: I64, lengths: I64, opened: U8, is_odd: U8) -> int:
    """Mark records with values that need the worker's parser.

    Args:
        data: uint8[bytes], bytes of a valid record batch.
        columns: columns of the batch.
        starts: int64[places, records], positions of the fields found.
        lengths: int64[places, records], lengths of the fields found.
        opened: uint8[DEEPEST], overwritten.
        is_odd: uint8[records], filled with 1 for each marked record, else 0.

    Returns:
        number of marked records.
    """
    found = 0
    for i in range(columns.shape[1]):
        at, length = columns[records.VALUE, i], columns[records.VALUE_LENGTH, i]
        odd = length >= 0 and not is_plain(data, at, at + length, opened)
        for place in range(starts.shape[0]):
            for q in range(starts[place, i], starts[place, i] + max(lengths[place, i], 0)):
                odd = odd or data[q] == BACKSLASH or data[q] > 127
        is_odd[i] = odd
        found += odd
    return found


MISSING = "identity-missing"
NOT_JSON = frozenset({"value-not-json", "value-schema-registry"})

FieldReader = Callable[[bytes | None], bytes | str]


def field_readers(paths: Sequence[str]) -> list[FieldReader]:
    """Return the worker's reader for each path of a field."""
    return [field_reader(path, MISSING) for path in paths]


def parse_odd(
    batch: RecordBatch, readers: Sequence[FieldReader], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], int]:
    """Read the fields of odd values, and append the fields' texts to the batch's bytes.

    Args:
        batch: records to read.
        readers: reader of each field.
        starts: int64[fields, records], positions found by the compiled pass; replaced for odd values, which are not
            plain.
        lengths: int64[fields, records], lengths found by the compiled pass; replaced in the same way.

    Returns:
        (bytes with the texts at the positions in `starts`, number of values other than JSON objects).
    """
    is_odd = np.empty(batch.count, np.uint8)
    opened = np.empty(DEEPEST, np.uint8)
    broken = int(np.count_nonzero(batch.columns[records.VALUE_LENGTH] < 0))
    if not find_odd(batch.data, batch.columns, starts, lengths, opened, is_odd):
        return batch.data, broken
    texts, end = [batch.data.tobytes()], len(batch.data)
    for row in np.flatnonzero(is_odd).tolist():
        value = batch.value(row)
        found = [read(value) for read in readers]
        broken += not NOT_JSON.isdisjoint(found) or not (value or b"").lstrip(b" \t\r\n").startswith(b"{")
        for place, text in enumerate(found):
            named = parse_id(text) if isinstance(text, bytes) else text
            if isinstance(named, str):
                lengths[place, row] = ABSENT
                continue
            starts[place, row], lengths[place, row] = end, len(named)
            texts.append(named)
            end += len(named)
    return np.frombuffer(b"".join(texts), np.uint8), broken
