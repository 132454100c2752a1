"""Compiled search of a file's lines for the position of each record's value and key.

`kafka_ratchet.producers.formats.LineFormat` accepts every line that this search accepts, with the same value and key; a
test compares the two. The search marks unusual lines as ODD; `LineFormat` reads these lines.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kafka_ratchet.transport.batch.compiled import compiled

BLANK, RECORD, ODD = 0, 1, 2
"""Kinds of lines. BLANK: without a record. RECORD: with a record. ODD: too unusual for this search."""

DEPTH_MOST: Final = 32
"""Deepest nesting of objects and arrays that this search reads; `LineFormat` reads deeper ones."""
DIGITS_MOST: Final = 18
"""Maximum number of digits in a number that this search reads.

Longer numbers, and those with an exponent, may be out of msgspec's range.
"""

NL, CR, TAB, SPACE, QUOTE, BACKSLASH = 10, 13, 9, 32, 34, 92

_ORDINARY, _END, _ESCAPE, _CONTROL = range(4)
_IN_STRING = np.zeros(256, np.uint8)
_IN_STRING[:32] = _CONTROL
_IN_STRING[QUOTE], _IN_STRING[BACKSLASH] = _END, _ESCAPE


@compiled(inline="always")
def _blanks(data, at, end):  # type: ignore[no-untyped-def]
    while at < end and (data[at] == SPACE or data[at] == TAB):
        at += 1
    return at


@compiled()
def _string(data, at, end, in_string):  # type: ignore[no-untyped-def]
    """Return the position after a string's closing quote (-1: unreadable), and True if the string has escapes.

    at: position of the string's first byte
    """
    escaped = False
    # Unsigned: numpy checks each signed index for counting from the end.
    last, one = np.uint64(end), np.uint64(1)
    while at < end:
        to = np.uint64(at)
        while to < last and in_string[data[to]] == _ORDINARY:
            to += one
        at = np.int64(to)
        if at == end:
            return -1, escaped
        kind = in_string[data[at]]
        if kind == _END:
            return at + 1, escaped
        elif kind == _CONTROL or at + 1 >= end:
            return -1, escaped
        else:
            escaped = True
            sign = data[at + 1]
            if sign == 0x75:  # u
                if at + 6 > end or data[at + 2] == 0x64 or data[at + 2] == 0x44:
                    return -1, escaped  # perhaps half of a surrogate pair
                for i in range(at + 2, at + 6):
                    c = data[i]
                    if not (0x30 <= c <= 0x39 or 0x41 <= c <= 0x46 or 0x61 <= c <= 0x66):
                        return -1, escaped
                at += 6
            elif (
                sign == QUOTE
                or sign == BACKSLASH
                or sign == 0x2F
                or sign == 0x62
                or sign == 0x66
                or sign == 0x6E
                or sign == 0x72
                or sign == 0x74
            ):
                at += 2
            else:
                return -1, escaped
    return -1, escaped


@compiled()
def _number(data, at, end):  # type: ignore[no-untyped-def]
    """Return the position after a number without an exponent; -1 if it cannot be read here."""
    if data[at] == 0x2D:
        at += 1
    first = at
    while at < end and 0x30 <= data[at] <= 0x39:
        at += 1
    digits = at - first
    if digits == 0 or (digits > 1 and data[first] == 0x30):
        return -1
    if at < end and data[at] == 0x2E:
        at += 1
        first = at
        while at < end and 0x30 <= data[at] <= 0x39:
            at += 1
        if at == first:
            return -1
        digits += at - first
    if digits > DIGITS_MOST or (at < end and (data[at] == 0x65 or data[at] == 0x45)):
        return -1
    return at


@compiled()
def _word(data, at, end):  # type: ignore[no-untyped-def]
    """Return the position after true, false or null; -1 for any other text."""
    if at + 4 <= end and data[at] == 0x74 and data[at + 1] == 0x72 and data[at + 2] == 0x75 and data[at + 3] == 0x65:
        return at + 4
    if at + 4 <= end and data[at] == 0x6E and data[at + 1] == 0x75 and data[at + 2] == 0x6C and data[at + 3] == 0x6C:
        return at + 4
    if (
        at + 5 <= end
        and data[at] == 0x66
        and data[at + 1] == 0x61
        and data[at + 2] == 0x6C
        and data[at + 3] == 0x73
        and data[at + 4] == 0x65
    ):
        return at + 5
    return -1


@compiled()
def _is_name(data, at, end, name):  # type: ignore[no-untyped-def]
    if end - at != len(name):
        return False
    for i in range(len(name)):
        if data[at + i] != name[i]:
            return False
    return True


@compiled(inline="always")
def _scalar(data, at, end, in_string):  # type: ignore[no-untyped-def]
    """Return the position after a string, number or word (-1: unreadable), and True for a string with escapes."""
    c = data[at]
    if c == QUOTE:
        return _string(data, at + 1, end, in_string)
    return (_number(data, at, end) if c == 0x2D or 0x30 <= c <= 0x39 else _word(data, at, end)), False


@compiled(inline="always")
def _next_value(data, at, end, depth, objects):  # type: ignore[no-untyped-def]
    """Skip the closing brackets after a value, and a comma.

    Returns:
        (position of the next value, -1 if the text is not JSON; nesting depth, 0 at the end of the text; `objects` at
        that depth). `objects` has one bit for each open bracket: 1 for an object, 0 for an array, the innermost lowest.
    """
    while depth:
        at = _blanks(data, at, end)
        if at >= end:
            return -1, depth, objects
        c = data[at]
        at += 1
        if c == 0x2C:
            break
        if c != (0x7D if objects & np.uint64(1) else 0x5D):
            return -1, depth, objects
        depth -= 1
        objects >>= np.uint64(1)
    return _blanks(data, at, end), depth, objects


@compiled(inline="always")
def _member(data, at, end, in_string):  # type: ignore[no-untyped-def]
    """Read the name of an object's member.

    Returns:
        (start of the member's value, -1 if the text is not JSON; start and end of the name; True if it has escapes)
    """
    if at >= end or data[at] != QUOTE:
        return -1, at, at, False
    began = at + 1
    behind, escaped = _string(data, began, end, in_string)
    at = _blanks(data, behind, end) if behind >= 0 else end
    if at >= end or data[at] != 0x3A:
        return -1, began, began, False
    return _blanks(data, at + 1, end), began, behind - 1, escaped


@compiled()
def _json(data, at, end, name, wanted, in_string):  # type: ignore[no-untyped-def]
    """Read one JSON text in data[at:end], which does not begin with a blank.

    Args:
        data: uint8[bytes].
        at: start of the line.
        end: end of the line, without its line end.
        name: uint8[bytes], name of the outermost object's member that holds the key.
        wanted: True if records have a key.
        in_string: the table `_IN_STRING`.

    Returns:
        (RECORD or ODD, start of the key, its length or -1 without a key).
    """
    depth = 0
    objects = np.uint64(0)  # a bit for each level, set for an object, the innermost lowest
    key, key_length = np.int64(0), np.int64(-1)
    is_key = False
    if wanted and data[at] != 0x7B:
        return ODD, key, key_length
    while at < end:
        c, began = data[at], at
        opened = c == 0x7B or c == 0x5B
        if opened:
            if is_key or depth == DEPTH_MOST:
                break
            depth += 1
            objects = (objects << np.uint64(1)) | np.uint64(c == 0x7B)
            at = _blanks(data, at + 1, end)
            opened = at >= end or data[at] != (0x7D if c == 0x7B else 0x5D)
        else:
            at, escaped = _scalar(data, at, end, in_string)
            if at < 0 or (is_key and (escaped or c == 0x6E)):
                break
            if is_key:
                quote = np.int64(c == QUOTE)
                key, key_length = began + quote, at - began - 2 * quote
        is_key = False
        if not opened:
            at, depth, objects = _next_value(data, at, end, depth, objects)
            if at < 0 or depth == 0:
                return RECORD if at == end and (key_length >= 0 or not wanted) else ODD, key, key_length
        if objects & np.uint64(1):
            at, name_at, name_end, escaped = _member(data, at, end, in_string)
            if at < 0 or (escaped and depth == 1 and wanted):
                break
            is_key = wanted and depth == 1 and _is_name(data, name_at, name_end, name)
    return ODD, key, key_length


@compiled()
def _find(data, ends, is_json, name, wanted, in_string, out):  # type: ignore[no-untyped-def]
    at = np.int64(0)
    for row in range(out.shape[1]):
        end = np.int64(ends[row] if row < len(ends) else len(data))
        behind = end + 1 if end < len(data) else end
        if end > at and data[end - 1] == CR:
            end -= 1
        kind, key, key_length = RECORD, np.int64(0), np.int64(-1)
        if is_json:
            first = _blanks(data, at, end)
            if first == end:
                kind = BLANK
            else:
                kind, key, key_length = _json(data, first, end, name, wanted, in_string)
        out[0, row], out[1, row], out[2, row] = at, end - at, behind
        out[3, row], out[4, row], out[5, row] = kind, key, key_length
        at = behind


def find_lines(data: bytes, is_json: bool, key: str | None):  # type: ignore[no-untyped-def]
    """Find the lines of a text, with the key of each.

    Args:
        data: whole lines; the last may lack its line end.
        is_json: True for ndjson; otherwise every line is a record.
        key: name of the member that holds the key; None: records have no key.

    Returns:
        int64[6, lines]; the rows are the start of a line, its length without the line end, the start of the next line,
        the kind (BLANK, RECORD or ODD), the start of the key, and the key's length (-1: no key).
    """
    text = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(text == NL)
    out = np.empty((6, len(ends) + (not data.endswith(b"\n"))), np.int64)
    name = np.frombuffer(b"" if key is None else key.encode(), np.uint8)
    _find(text, ends, is_json, name, key is not None, _IN_STRING, out)
    return out
