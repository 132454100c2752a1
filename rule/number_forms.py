"""Signs that sequences are written in another form than they are read in.

Eight bytes are read as a big-endian integer, and digits as decimal text, where a stream does not say how its sequences
are written. A little-endian counter read so jumps up and down, and most of it looks like duplicates. So each record is
looked at next to the last one of its identity: a record that would be dropped, and that goes on from the last one in
another form, is a doubt. Docs/decisions/0078 has the bounds and their limits.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

LITTLE, FLOATING, LETTERS, HEXADECIMAL = 1, 2, 3, 4
"""Forms that a sequence seems to have."""
NEAR, FAR = 1 << 48, 1 << 56
"""Bounds of the distance to the last sequence: in the doubted form, and as it is read.

An old number sent again is far below the last one as well: ids with a time in them (snowflakes) by 198 days at least.
"""
STEP, FIRST_BYTE = 256, 1 << 56
"""Bounds of a step at the beginning of a little-endian counter, where the reading as big-endian rises as well."""
NEIGHBOURS = 8
"""Eight-byte integers on either side that speak for the reading as big-endian, where they are near in it alone."""
NEXT_TO, NEAR_NEIGHBOUR = 1 << 48, 1 << 53
"""Bounds of the distance to such a neighbour; the second one where it is not near as little-endian."""
DOUBLE_STEP = 8
"""Bound of a step between floating point numbers that count."""
SHORT = 1 << 52
"""A little-endian number below it is a counter or a time, where its reading as big-endian is negative."""
LEAST = -(1 << 63)
"""Usual mark of a missing number. It is a dead letter, and no doubt, although 128 as little-endian."""

SPACE, TILDE, MINUS = 32, 126, 45
ONE_BYTE, MOST_BYTE = 0x3F, 0x43
"""Last bytes of the little-endian doubles 1 and 2^53."""

SHOWN_BYTES: Final = 32
HEX_LEAST, HEX_SHARE = 3, 0.2
"""Least number and share of hexadecimal texts for a doubt about those of digits."""
HEX_LOOKED_AT: Final = 256
"""Records without a number, at most, to compare in one batch."""
_HEX: Final = re.compile(rb"(?=.*[0-9])(?=.*[A-Fa-f])(?![0-9]+[eE][0-9]+\Z)[0-9A-Fa-f]{2,}")


class Doubt(NamedTuple):
    """A record with a sequence that seems to have another form. form: LITTLE, FLOATING, LETTERS or HEXADECIMAL."""

    row: int
    form: int


def is_hexadecimal(text: bytes) -> bool:
    """Tell whether a text is a hexadecimal number with digits and letters, and no decimal one with an exponent."""
    return _HEX.fullmatch(text) is not None


def sentence(doubt: Doubt, name: str, text: bytes, last: int) -> str:
    """Return the sentence about a doubtful sequence, with the setting to write.

    Args:
        doubt: row and form
        name: of the header
        text: its value
        last: the last sequence of its identity, as it was read; -1 for none
    """
    shown = f"the header {name} has the bytes {text[:SHOWN_BYTES].hex(' ')}"
    read = int.from_bytes(text, "big", signed=True)
    keep = 'If they are big-endian integers all the same, set sequence_form = "integer"'
    if doubt.form == LITTLE:
        after = f", after {int.from_bytes(last.to_bytes(8, 'big'), 'little')}" if last >= 0 else ""
        found = int.from_bytes(text, "little", signed=True)
        return (
            f"{shown}, which is {found}{after} as a little-endian number and {read} as a big-endian one. Read so, new "
            f'records look like duplicates. Set sequence_form = "little-endian". {keep}'
        )
    if doubt.form == FLOATING:
        return (
            f"{shown}, which is a little-endian floating point number. Read as an integer, {read}, new records look "
            f'like duplicates. Have the producer write whole numbers, or set sequence = "function:MODULE:NAME". {keep}'
        )
    shown = f"the header {name} has the text {text[:SHOWN_BYTES].decode('ascii', 'backslashreplace')!r}"
    text_form = 'set sequence_form = "text", which makes dead letters of other numbers'
    if doubt.form == LETTERS:
        return (
            f"{shown}, which would be read as the integer {read}, and all that follows would look like duplicates. To "
            f'read such texts, set sequence = "function:MODULE:NAME"; or {text_form}. {keep}'
        )
    return (
        f"{shown}, and others have digits only: they are hexadecimal numbers, and those of digits would be read as "
        f'decimal ones. To read them, set sequence = "function:MODULE:NAME"; or {text_form}'
    )
