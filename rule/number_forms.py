"""Signs that a producer writes sequences in another form than the stream reads.

If a stream does not configure a form, eight bytes are read as a big-endian integer, and digits as decimal text. A
little-endian counter then jumps up and down, and most of its records look like duplicates. So each sequence is compared
with the last one of its identity. A sequence is a *doubt* if it follows the last one when both are read in another
form, but not when both are read in the configured form. docs/decisions/0078 contains the bounds and their limits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

LITTLE, FLOATING, LETTERS, HEXADECIMAL = 1, 2, 3, 4
"""Forms that a sequence may seem to have: little-endian integer, floating-point number, letters, hexadecimal text."""
NEAR, FAR = 1 << 48, 1 << 56
"""Bounds of the distance between a sequence and the last one of its identity.

A sequence may be little-endian if its distance is below NEAR as little-endian, but FAR or more as big-endian. FAR is
large, because a repeated old sequence may be far below the last one. In sequences that begin with a time (snowflakes),
FAR is 198 days or more.
"""
STEP, FIRST_BYTE = 256, 1 << 56
"""Bounds of a doubtful number that rises in both byte orders. STEP is its maximum step if read as little-endian, and
FIRST_BYTE its minimum value if read as big-endian.

Only the first numbers of a little-endian counter rise in both.
"""
NEIGHBOURS = 8
"""Number of eight-byte integers on either side to compare a doubtful one with; a close one dismisses the doubt."""
NEXT_TO, NEAR_NEIGHBOUR = 1 << 48, 1 << 53
"""Bounds of the big-endian distance to a neighbour that dismisses a doubt.

NEAR_NEIGHBOUR applies if the neighbour is not close as little-endian, NEXT_TO otherwise.
"""
DOUBLE_STEP = 8
"""Maximum step between two sequences of a counter written as floating-point numbers."""
SHORT = 1 << 52
"""Bound of little-endian counters and times. A number causes a doubt if it is below this bound as little-endian, but
negative as big-endian.
"""
LEAST = -(1 << 63)
"""Lowest 64-bit integer, which producers often write for a missing number. Its record becomes a dead letter.

This integer causes no doubt, although its bytes are 128 as little-endian.
"""

SPACE, TILDE, MINUS = 32, 126, 45
ONE_BYTE, MOST_BYTE = 0x3F, 0x43
"""Last bytes of the doubles 1 and 2^53 in little-endian order."""

SHOWN_BYTES: Final = 32
HEX_LEAST, HEX_SHARE = 3, 0.2
"""Minimum number of hexadecimal texts, and their minimum share of all texts, that cause a doubt."""
HEX_LOOKED_AT: Final = 256
"""Maximum number of records per batch to examine for hexadecimal text."""
HEX: Final = "(?=.*[0-9])(?=.*[A-Fa-f])(?![0-9]+[eE][0-9]+$)[0-9A-Fa-f]{2,}"
"""Pattern of a whole hexadecimal text, for Python and Java."""
DIGITS: Final = 19
"""Number of digits of 2^63; a text with fewer digits is a sequence."""
_HEX: Final = re.compile(HEX.encode())


class DoubtfulSequence(NamedTuple):
    """Record with a sequence that seems to have another form.

    Args:
        row: index of the record.
        form: LITTLE, FLOATING, LETTERS or HEXADECIMAL.
    """

    row: int
    form: int


def is_hexadecimal(text: bytes) -> bool:
    """Return True if a text is a hexadecimal number with digits and letters, other than a decimal like 12e5."""
    return _HEX.fullmatch(text) is not None


KEEP: Final = 'If the sequences are big-endian integers all the same, set sequence_form = "integer"'
TEXT_FORM: Final = 'set sequence_form = "text", which makes dead letters of other numbers'
SENTENCES: Final = {
    LITTLE: "the header {name} has the bytes {bytes}, which is {little}{after} as a little-endian number and {read} as "
    'a big-endian one. Read as big-endian, new records look like duplicates. Set sequence_form = "little-endian". '
    + KEEP,
    FLOATING: "the header {name} has the bytes {bytes}, which is a little-endian floating point number. Read as an "
    "integer, {read}, new records look like duplicates. Have the producer write whole numbers, or set sequence = "
    f'"function:MODULE:NAME". {KEEP}',
    LETTERS: "the header {name} has the text {text!r}, which would be read as the integer {read}, and all later "
    'records would look like duplicates. To read such texts, set sequence = "function:MODULE:NAME"; or '
    f"{TEXT_FORM}. {KEEP}",
    HEXADECIMAL: "the header {name} has the text {text!r}, and others have digits only: the sequences are "
    "hexadecimal, and those with digits only would be read as decimal. To read hexadecimal ones, set sequence = "
    f'"function:MODULE:NAME"; or {TEXT_FORM}',
}
"""Error texts about a doubtful sequence, by suspected form."""


def sentence_maker() -> Callable[[int, str, bytes, int], str]:
    """Return a function that makes the error text about a doubtful sequence.

    The function takes the suspected form, the header's name, the header's value and the identity's last sequence (-1:
    none). It is a nested function that does not need this package, so that Spark can send it to its executors.
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


def sentence(doubt: DoubtfulSequence, name: str, text: bytes, last: int) -> str:
    """Return the error text about a doubtful sequence, with the settings that the operator can write.

    Args:
        doubt: the suspected form
        name: name of the header
        text: value of the header
        last: last sequence of the identity, read in the configured form; -1: none
    """
    return _made(doubt.form, name, text, last)
