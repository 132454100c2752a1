"""Check that sequences have the configured form, such as decimal text or big-endian bytes.

`verify` uses this check, which goes record by record. Workers use `kafka_ratchet.rule.form_scan`, which goes batch by
batch. Both apply the bounds of `kafka_ratchet.rule.number_forms`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kafka_ratchet.rule import number_forms as forms
from kafka_ratchet.rule.number_forms import DoubtfulSequence

Dismisses = Callable[[int, int, int], bool]


def number_look() -> tuple[Callable[[int, int], int], Dismisses]:
    """Return two functions that find eight-byte sequences with another form than big-endian.

    The first function takes a sequence, read as big-endian, and the last sequence of its identity. It returns the
    suspected form, LITTLE or FLOATING; 0: none. The second function takes a suspected form, the suspicious sequence and
    a neighbouring record's sequence. It returns True if the neighbour shows that the sequences are big-endian after
    all. Both are nested functions that do not need this package, so that Spark can send them to its executors.
    """
    little, floating, near, far, step_most = forms.LITTLE, forms.FLOATING, forms.NEAR, forms.FAR, forms.STEP
    first_byte, short, least, double_step = forms.FIRST_BYTE, forms.SHORT, forms.LEAST, forms.DOUBLE_STEP
    next_to, near_neighbour = forms.NEXT_TO, forms.NEAR_NEIGHBOUR

    def swapped(number: int) -> int:
        """Return the signed number in the same eight bytes, read in the other order."""
        return int.from_bytes(number.to_bytes(8, "big", signed=True), "little", signed=True)

    def double(number: int) -> int:
        """Return the integer, 1 or more and below 2^53, that the bytes hold as a little-endian double; -1: none."""
        import struct

        (found,) = struct.unpack("<d", number.to_bytes(8, "big", signed=True))
        return int(found) if 1 <= found < 1 << 53 and found == int(found) else -1

    def goes_on(number: int, last: int) -> bool:
        """Return True if a number, read as little-endian, is only a little above the last sequence."""
        step = swapped(number) - swapped(last)
        if swapped(last) < 0 or step <= 0:
            return False
        if double(swapped(number)) > 0 and double(swapped(last)) > 0:
            return False  # big-endian floating point numbers rise as integers
        if number <= last:
            return step < near
        return (number | last) & 0xFFFFFFFF == 0 and number >= first_byte and step < step_most

    def form_of(number: int, last: int) -> int:
        if number < 0:
            is_short = 0 <= swapped(number) < short and number != least
            return little if is_short and number < -1 << 48 else 0  # a small negative number is no doubt
        if last < 0:
            return 0
        if abs(number - last) >= far:
            return little if goes_on(number, last) else 0
        before = double(last)
        is_next = before > 0 and 0 < double(number) - before <= double_step
        return floating if number < last and is_next else 0

    def dismisses(form: int, number: int, other: int) -> bool:
        distance = abs(number - other)
        if form == floating:
            return 0 < distance <= double_step and double(other) < 0
        if distance == 0 or number < 0 or other < 0:
            return False
        one, another = swapped(number), swapped(other)
        is_far = one < 0 or another < 0 or abs(one - another) >= near
        return distance < next_to or (distance < near_neighbour and is_far)

    return form_of, dismisses


_form, _dismisses = number_look()


@dataclass(slots=True)
class PendingSequence:
    """Sequence that seems to have another form, until one of the next integers dismisses the doubt."""

    offset: int
    text: bytes
    number: int
    last: int
    form: int
    left: int = forms.NEIGHBOURS


class FormFinder:
    """Finder of the first sequence in a partition that seems to have another form than the configured one.

    Attributes:
        found: input offset of that sequence, and the error text about it; None: there is none.
    """

    def __init__(self, header: str) -> None:
        """Start without records.

        Args:
            header: name of the header with the sequence.
        """
        self.found: tuple[int, str] | None = None
        self._header = header
        self._before: deque[int] = deque(maxlen=forms.NEIGHBOURS)
        self._waiting: list[PendingSequence] = []
        self._hexadecimal = self._decimal = 0

    def add(self, offset: int, text: bytes | None, last: int) -> None:
        """Examine the sequence of the partition's next record.

        Args:
            offset: input offset of the record
            text: value of the header; None: the record has none, or several
            last: last sequence of the record's identity; -1: none yet, or an invalid record
        """
        if self.found is not None or not text:
            return
        if len(text) != 8:
            self._add_text(offset, text)
        elif not text.removeprefix(b"-").isdigit():
            if all(forms.SPACE <= byte <= forms.TILDE for byte in text):
                self._note(offset, text, last, forms.LETTERS)
            else:
                self._add_integer(offset, text, last)

    def finish(self) -> None:
        """Accept the first remaining doubt: no further record can dismiss it."""
        if self.found is None and self._waiting:
            first = self._waiting[0]
            self._note(first.offset, first.text, first.last, first.form)

    def _note(self, offset: int, text: bytes, last: int, form: int) -> None:
        self.found = offset, forms.sentence(DoubtfulSequence(0, form), self._header, text, last)

    def _add_text(self, offset: int, text: bytes) -> None:
        self._decimal += text.isdigit() and len(text.lstrip(b"0")) < forms.DIGITS
        if not forms.is_hexadecimal(text):
            return
        self._hexadecimal += 1
        share = self._hexadecimal / (self._hexadecimal + self._decimal)
        if self._decimal and self._hexadecimal >= forms.HEX_LEAST and share >= forms.HEX_SHARE:
            self._note(offset, text, -1, forms.HEXADECIMAL)

    def _add_integer(self, offset: int, text: bytes, last: int) -> None:
        number = int.from_bytes(text, "big", signed=True)
        self._settle(number)
        form = _form(number, last)
        if form and number < 0:
            self._note(offset, text, last, form)
        elif form and not any(_dismisses(form, number, other) for other in self._before):
            self._waiting.append(PendingSequence(offset, text, number, last, form))
        self._before.append(number)

    def _settle(self, number: int) -> None:
        """Dismiss the doubts that the next integer contradicts.

        Accept a doubt that `NEIGHBOURS` integers did not contradict.
        """
        left = []
        for each in self._waiting:
            if _dismisses(each.form, each.number, number):
                continue
            each.left -= 1
            if not each.left:
                self._note(each.offset, each.text, each.last, each.form)
            left.append(each)
        self._waiting = left
