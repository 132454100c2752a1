"""Words of verdicts, in headers, JSON, metrics, commands and on the page."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

FRESH: Final = "fresh"
DUPLICATE: Final = "duplicate"
INVALID: Final = "invalid"
TOO_LATE: Final = "too-late"
CONTENT_DIFFERS: Final = "content-differs"
BY_NUMBER: Final = (FRESH, DUPLICATE, INVALID, TOO_LATE, CONTENT_DIFFERS)
"""Words of the verdicts, by their number in `kafka_ratchet.rule.kernels`. Headers store them, so they never change."""

UNJUDGED: Final = "unjudged"
"""Word for a record forwarded while deduplication was off."""
SKIPPED: Final = "skipped"
"""Word for a record that an operator skipped."""
WAITING: Final = "waiting"
"""Word for a record that no worker has committed."""
UNKNOWN: Final = "unknown"
"""Word for a sequence in an open transaction, which may still be rolled back."""

Verdict = Literal["fresh", "duplicate", "invalid", "too-late", "content-differs", "unjudged", "skipped", "waiting"]
"""Verdict on a record of the input."""
SequenceVerdict = Literal["fresh", "duplicate", "too-late", "unknown"]
"""Verdict on a sequence that an operator looks up without its record."""

BY_SEQUENCE: Final = (FRESH, DUPLICATE, TOO_LATE, CONTENT_DIFFERS)
"""Verdicts from a comparison with the last sequence of the identity."""
DROPPED: Final = (DUPLICATE, TOO_LATE, CONTENT_DIFFERS)
"""Verdicts of records that may be in the topic of duplicates."""
DEAD_LETTERED: Final = (INVALID, TOO_LATE, CONTENT_DIFFERS)
"""Verdicts of records that may be dead letters."""

COUNTERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "fresh": FRESH,
        "duplicate": DUPLICATE,
        "invalid": INVALID,
        "late": TOO_LATE,
        "conflict": CONTENT_DIFFERS,
        "unjudged": UNJUDGED,
    }
)
"""Verdicts by the name of their count in JSON, metrics and the history."""

HEADINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        FRESH: "Fresh",
        DUPLICATE: "Duplicate",
        INVALID: "Invalid",
        TOO_LATE: "Too late",
        CONTENT_DIFFERS: "Conflict",
        UNJUDGED: "Unjudged",
    }
)
"""Headings of the counts by verdict, in the terminal and on the page."""

PHRASES: Final[Mapping[Verdict, str]] = MappingProxyType(
    {
        FRESH: "fresh",
        DUPLICATE: "duplicate, dropped",
        INVALID: "invalid: it cannot be judged",
        TOO_LATE: "too late: below the reorder window",
        CONTENT_DIFFERS: "same sequence, another content",
        UNJUDGED: "not judged: deduplication was off",
        SKIPPED: "not judged: an operator has decided to skip it (`ratchet resume`)",
        WAITING: "not judged yet",
    }
)
"""Phrases for the verdicts on one record, in the terminal and on the page."""
