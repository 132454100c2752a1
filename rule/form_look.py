"""The forms of sequences, looked at record by record: verify's own reading of `kafka_ratchet.rule.number_forms`."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass

from kafka_ratchet.rule import number_forms as forms
from kafka_ratchet.rule.number_forms import Doubt

DIGITS = 19
"""Digits of 2^63; fewer are a sequence."""


def swapped(number: int) -> int:
    """Return the signed number of the same eight bytes in the other order."""
    return int.from_bytes(number.to_bytes(8, "big", signed=True), "little", signed=True)


def double(number: int) -> int:
    """Return the whole number in a little-endian double, from 1 to 2^53; -1 for none."""
    (found,) = struct.unpack("<d", number.to_bytes(8, "big", signed=True))
    return int(found) if 1 <= found < 1 << 53 and found == int(found) else -1


@dataclass(slots=True)
class Waiting:
    """A doubt that the next integers may still dismiss."""

    offset: int
    text: bytes
    number: int
    last: int
    form: int
    left: int = forms.NEIGHBOURS


class FormLook:
    """The first sequence of a partition that seems to have another form than it is read in.

    Attributes:
        found: offset and sentence; None where there is none
    """

    def __init__(self, header: str) -> None:
        """Look at nothing yet. header: name, with the sequence."""
        self.found: tuple[int, str] | None = None
        self._header = header
        self._before: deque[int] = deque(maxlen=forms.NEIGHBOURS)
        self._waiting: list[Waiting] = []
        self._hexadecimal = self._decimal = 0

    def add(self, offset: int, text: bytes | None, last: int) -> None:
        """Look at the next record.

        Args:
            offset: of the input
            text: value of the header; None where it has none, or several
            last: last sequence of its identity; -1 where it has none, or the record is invalid
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
        """Take doubts for founded that no later integer can dismiss."""
        if self.found is None and self._waiting:
            first = self._waiting[0]
            self._note(first.offset, first.text, first.last, first.form)

    def _note(self, offset: int, text: bytes, last: int, form: int) -> None:
        self.found = offset, forms.sentence(Doubt(0, form), self._header, text, last)

    def _add_text(self, offset: int, text: bytes) -> None:
        self._decimal += text.isdigit() and len(text.lstrip(b"0")) < DIGITS
        if not forms.is_hexadecimal(text):
            return
        self._hexadecimal += 1
        share = self._hexadecimal / (self._hexadecimal + self._decimal)
        if self._decimal and self._hexadecimal >= forms.HEX_LEAST and share >= forms.HEX_SHARE:
            self._note(offset, text, -1, forms.HEXADECIMAL)

    def _add_integer(self, offset: int, text: bytes, last: int) -> None:
        number = int.from_bytes(text, "big", signed=True)
        self._settle(number)
        if number < 0:
            if 0 <= swapped(number) < forms.SHORT and text[:2] != b"\xff\xff" and number != forms.LEAST:
                self._note(offset, text, last, forms.LITTLE)
        elif last >= 0:
            form = _form(number, last)
            if form and not any(_dismisses(form, number, other) for other in self._before):
                self._waiting.append(Waiting(offset, text, number, last, form))
        self._before.append(number)

    def _settle(self, number: int) -> None:
        """Have the next integer dismiss doubts before it, or let it be the last that could."""
        left = []
        for each in self._waiting:
            if _dismisses(each.form, each.number, number):
                continue
            each.left -= 1
            if not each.left:
                self._note(each.offset, each.text, each.last, each.form)
            left.append(each)
        self._waiting = left


def _form(number: int, last: int) -> int:
    """Return the form that makes a number follow the last one; 0 for none."""
    if abs(number - last) >= forms.FAR:
        return forms.LITTLE if _goes_on(number, last) else 0
    before = double(last)
    is_next = before > 0 and 0 < double(number) - before <= forms.DOUBLE_STEP
    return forms.FLOATING if number < last and is_next else 0


def _dismisses(form: int, number: int, other: int) -> bool:
    """Tell whether another integer near a doubtful one says that it is big-endian."""
    if form == forms.LITTLE:
        return _speaks_for_it(number, other)
    return number != other and abs(number - other) <= forms.DOUBLE_STEP and double(other) < 0


def _goes_on(number: int, last: int) -> bool:
    """Tell whether a number is next to the last one as little-endian, and far from it as big-endian."""
    step, distance = swapped(number) - swapped(last), abs(number - last)
    if swapped(last) < 0 or step <= 0:
        return False
    if double(swapped(number)) > 0 and double(swapped(last)) > 0:
        return False  # big-endian floating point numbers rise as integers
    if number <= last:
        return distance >= forms.FAR and step < forms.NEAR
    is_short = (number | last) & 0xFFFFFFFF == 0 and number >= forms.FIRST_BYTE
    return is_short and distance >= forms.FAR and step < forms.STEP


def _speaks_for_it(number: int, other: int) -> bool:
    """Tell whether a neighbour is near as big-endian, and not as little-endian."""
    if number == other or number < 0 or other < 0:
        return False
    distance, little, other_little = abs(number - other), swapped(number), swapped(other)
    is_far = little < 0 or other_little < 0 or abs(little - other_little) >= forms.NEAR
    return distance < forms.NEXT_TO or (distance < forms.NEAR_NEIGHBOUR and is_far)
