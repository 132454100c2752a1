"""Signs that sequences are written in another form than they are read in.

Eight bytes are read as a big-endian integer, and digits as decimal text, where a stream does not say how its sequences
are written. A little-endian counter read so jumps up and down, and most of it looks like duplicates. So each record is
looked at next to the last one of its identity: a record that would be dropped, and that goes on from the last one in
another form, is a doubt. Docs/decisions/0078 has the bounds and their limits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
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
HEX: Final = "(?=.*[0-9])(?=.*[A-Fa-f])(?![0-9]+[eE][0-9]+$)[0-9A-Fa-f]{2,}"
"""Pattern of a whole hexadecimal text, in Python and in Java."""
DIGITS: Final = 19
"""Digits of 2^63; fewer are a sequence."""
_HEX: Final = re.compile(HEX.encode())


class Doubt(NamedTuple):
    """A record with a sequence that seems to have another form. form: LITTLE, FLOATING, LETTERS or HEXADECIMAL."""

    row: int
    form: int


def is_hexadecimal(text: bytes) -> bool:
    """Tell whether a text is a hexadecimal number with digits and letters, and no decimal one with an exponent."""
    return _HEX.fullmatch(text) is not None


KEEP: Final = 'If they are big-endian integers all the same, set sequence_form = "integer"'
TEXT_FORM: Final = 'set sequence_form = "text", which makes dead letters of other numbers'
SENTENCES: Final = {
    LITTLE: "the header {name} has the bytes {bytes}, which is {little}{after} as a little-endian number and {read} as "
    'a big-endian one. Read so, new records look like duplicates. Set sequence_form = "little-endian". ' + KEEP,
    FLOATING: "the header {name} has the bytes {bytes}, which is a little-endian floating point number. Read as an "
    "integer, {read}, new records look like duplicates. Have the producer write whole numbers, or set sequence = "
    f'"function:MODULE:NAME". {KEEP}',
    LETTERS: "the header {name} has the text {text!r}, which would be read as the integer {read}, and all that follows "
    f'would look like duplicates. To read such texts, set sequence = "function:MODULE:NAME"; or {TEXT_FORM}. {KEEP}',
    HEXADECIMAL: "the header {name} has the text {text!r}, and others have digits only: they are hexadecimal numbers, "
    "and those of digits would be read as decimal ones. To read them, set sequence = "
    f'"function:MODULE:NAME"; or {TEXT_FORM}',
}
"""Sentences by form."""


def sentence_maker() -> Callable[[int, str, bytes, int], str]:
    """Return a function that makes the sentence of a form, the header's name, its value and the last sequence.

    It is nested and needs nothing of this package, so Spark can send it to its executors.
    """
    sentences, shown = SENTENCES, SHOWN_BYTES

    def make(form: int, name: str, text: bytes, last: int) -> str:
        return sentences[form].format(
            name=name,
            bytes=text[:shown].hex(" "),
            text=text[:shown].decode("ascii", "backslashreplace"),
            read=int.from_bytes(text[:8], "big", signed=True),
            little=int.from_bytes(text[:8], "little", signed=True),
            after=f", after {int.from_bytes(last.to_bytes(8, 'big'), 'little')}" if last >= 0 else "",
        )

    return make


_made = sentence_maker()


def sentence(doubt: Doubt, name: str, text: bytes, last: int) -> str:
    """Return the sentence about a doubtful sequence, with the setting to write.

    Args:
        doubt: row and form
        name: of the header
        text: its value
        last: the last sequence of its identity, as it was read; -1 for none
    """
    return _made(doubt.form, name, text, last)
