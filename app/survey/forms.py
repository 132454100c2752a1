"""Check of a sample for sequences in a form that a stream cannot read."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from kafka_ratchet.app.survey.looking import PRESENT_LEAST, TopicSample
from kafka_ratchet.app.survey.places import KEY, PARTITION, PRODUCER, SEQUENCE, RecordPart
from kafka_ratchet.rule.form_look import FormFinder
from kafka_ratchet.rule.identity import SEQUENCE_MAX
from kafka_ratchet.rule.number_forms import is_hexadecimal

NUMBERED: Final = re.compile(
    r"seq|count|offset|version|number|revision|serial|(^|[._-])(no|nr|n|lsn|scn)$", re.IGNORECASE
)
"""Pattern of usual names of headers and fields with a sequence."""
OWNERS: Final = (PRODUCER, KEY, PARTITION)
ALIKE_LEAST: Final = 0.9
"""Minimum share of a header's or field's values that must have the same form."""
EIGHT: Final = 8

TEXTS: Final = (
    ("a quoted text", re.compile(rb"\"[^\"]*\"|'[^']*'")),
    ("a number with a fraction or an exponent", re.compile(rb"[+-]?(?=.*[.eE])[0-9]*\.?[0-9]*([eE][+-]?[0-9]+)?")),
    ("hexadecimal with 0x", re.compile(rb"0[xX][0-9A-Fa-f]+")),
    ("a UUID", re.compile(rb"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")),
    ("a date and a time", re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,Z+-]+")),
    ("a number with a sign, spaces or separators", re.compile(rb"\s*\+?[0-9][0-9_, ]*\s*")),
    ("base64", re.compile(rb"([A-Za-z0-9+/_-]{4})*([A-Za-z0-9+/_-]{2}==|[A-Za-z0-9+/_-]{3}=)")),
)
"""Names and patterns of texts other than plain decimal numbers; the first match counts."""

YEAR_S: Final = 31_557_600
# Nanoseconds are left out: ids with a time in them look like these, and count.
UNITS: Final = (("seconds", 1), ("milliseconds", 10**3), ("microseconds", 10**6))
FIRST_YEAR, LAST_YEAR = 2001 - 1970, 2100 - 1970


def written_forms(sample: TopicSample) -> tuple[tuple[str, str], ...]:
    """Return the headers and fields with unreadable numbers, each with a sentence about their form."""
    present = Counter(place for row in sample.rows for place in row.places)
    usual = sorted(place for place, count in present.items() if count >= PRESENT_LEAST * len(sample.rows))
    found = ((str(place), _form(sample, place)) for place in usual if place.kind in ("header", "field"))
    return tuple((place, why) for place, why in found if why is not None)


def _form(sample: TopicSample, place: RecordPart) -> str | None:
    values = [row.places[place] for row in sample.rows if place in row.places]
    is_named = place == SEQUENCE or NUMBERED.search(place.name) is not None
    is_binary = all(len(value) == EIGHT for value in values) and not all(value.isascii() for value in values)
    if place.kind == "header" and (is_named or is_binary) and (why := _halting_error(sample, place)) is not None:
        return why
    return _text(values) or _time(values) if is_named else None


def _halting_error(sample: TopicSample, place: RecordPart) -> str | None:
    """Return the error that would halt a worker with these sequences; None without an error.

    place: header or field with the sequences. The check tries these sequences with each usual identity.
    """
    for owner in OWNERS:
        looks: dict[int, FormFinder] = {}
        last: dict[tuple[int, bytes], int] = {}
        for offset, row in enumerate(sample.rows):
            text = row.places.get(place)
            own = b"" if owner == PARTITION else row.places.get(owner)
            if text is None or own is None:
                continue
            of = row.partition, own
            looks.setdefault(row.partition, FormFinder(place.name)).add(offset, text, last.get(of, -1))
            number = _number(text)
            if number is not None:
                last[of] = max(number, last.get(of, -1))
        for look in looks.values():
            look.finish()
            if look.found is not None:
                return look.found[1]
    return None


def _number(text: bytes) -> int | None:
    if text.isdigit() and len(text) <= len(str(SEQUENCE_MAX)):
        return int(text)
    number = int.from_bytes(text, "big", signed=True) if len(text) == EIGHT else -1
    return number if number >= 0 else None


def _text(values: list[bytes]) -> str | None:
    others = [value for value in values if not value.isdigit() and len(value) != EIGHT]
    if len(others) < (1 - ALIKE_LEAST) * len(values):
        return None
    for name, pattern in TEXTS:
        if sum(pattern.fullmatch(value) is not None for value in others) >= ALIKE_LEAST * len(others):
            return (
                f"{len(others):,} of {len(values):,} values look like {name}, {_shown(others[0])}: a worker makes dead "
                "letters of them"
            )
    if sum(map(is_hexadecimal, others)) >= len(others) / 2:
        return f"{len(others):,} of {len(values):,} values look hexadecimal, {_shown(others[0])}: no stream reads that"
    return None


def _shown(value: bytes) -> str:
    return "such as " + repr(value[:40].decode("utf-8", "backslashreplace"))


def _time(values: list[bytes]) -> str | None:
    """Return a sentence if the numbers look like times; else None."""
    numbers = sorted(number for value in values if (number := _number(value)) is not None)
    if len(numbers) < ALIKE_LEAST * len(values):
        return None
    for name, unit in UNITS:
        first, last = (number / unit / YEAR_S for number in (numbers[0], numbers[-1]))
        if FIRST_YEAR <= first and last <= LAST_YEAR:
            return f"its numbers look like times in {name}: of two events at one time, the second would be dropped"
    return None
