"""Bounds of the source's records to look for in the target, by time or offset."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from kafka_ratchet.errors import SettingsError

OFFSETS: Final = re.compile(r"\d+:\d+(?:,\d+:\d+)*\Z")
DIGITS: Final = re.compile(r"\d+\Z")
SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)\Z")
UNIT_S: Final[Mapping[str, float]] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

MS_FROM: Final = 10**11
"""Smallest whole number read as milliseconds since 1970 (March 1973); smaller numbers are offsets."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Bound of a comparison: a time, one offset for all partitions, or offsets by partition.

    ms: milliseconds since 1970
    offset: offset in every partition
    offsets: offset by partition; other partitions have no bound
    """

    ms: int | None = None
    offset: int | None = None
    offsets: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, option: str, now_ms: int) -> Bound:
        """Parse a bound.

        It is an ISO time, milliseconds since 1970, a span back from now (5m), an offset, or PARTITION:OFFSET,...

        Raises:
            SettingsError: the text is none of these.
        """
        given = text.strip()
        if OFFSETS.match(given):
            pairs = (each.split(":") for each in given.split(","))
            return cls(offsets={int(number): int(offset) for number, offset in pairs})
        if DIGITS.match(given):
            number = int(given)
            return cls(ms=number) if number >= MS_FROM else cls(offset=number)
        if SPAN.match(given):
            return cls(ms=now_ms - round(seconds(given, option) * 1000))
        try:
            moment = datetime.fromisoformat(given)
        except ValueError:
            raise SettingsError(
                f"{option} {text!r}: write a time (2026-11-25T10:00:00Z, milliseconds since 1970, or 5m for five "
                "minutes ago), an offset, or offsets by partition (0:100,1:250)"
            ) from None
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        return cls(ms=round(moment.timestamp() * 1000))

    @property
    def is_by_time(self) -> bool:
        """Return True if the bound is a time."""
        return self.ms is not None

    def offset_of(self, partition: int, otherwise: int) -> int:
        """Return the bound's offset in a partition. otherwise: result for a partition without a bound."""
        return self.offset if self.offset is not None else self.offsets.get(partition, otherwise)


def seconds(text: str | float, option: str) -> float:
    """Parse a time span such as 500ms, 30s, 5m, 2h or 1d; a plain number is in seconds.

    Raises:
        SettingsError: the text is not a time span.
    """
    found = SPAN.match(text.strip()) if isinstance(text, str) else None
    try:
        value = float(text) if found is None else float(found[1]) * UNIT_S[found[2]]
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise SettingsError(f"{option} {text!r}: write a span such as 30s, 5m or 2h")
    return value
