"""Values and timestamps at the edges of the types, for some records of a fault run."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

from kafka_ratchet.spark_sink.rows.timestamps import END_MS, FIRST_MS, is_representable

COLUMNS: Final = "n long, d double, m decimal(38,18), s string, at timestamp, k map<string,int>"

EVERY: Final = 40
"""Number of records for each timestamp at an edge, and for each value at an edge."""

TIMESTAMPS_MS: Final = (FIRST_MS, 1_790_000_000_000_000_000, -2, END_MS - 1, END_MS, 2**63 - 1, -12_219_292_800_001)
"""Timestamps (ms) at the edges of stores and readers. Spark's source misreads some of them, and fails on others."""

HELD: Final = (
    '"d": 5e-324',
    '"d": -1.7976931348623157e308',
    '"m": 99999999999999999999.999999999999999999',
    '"s": "\U0010ffff"',
    '"at": "0001-01-01T00:00:00Z"',
    '"at": "9999-12-31T23:59:59.999999Z"',
)
"""JSON fields with values at the edges of their types; every store can keep them."""

NOT_HELD: Final = ('"k": {"a": 1, "a": 2}', f'"m": {"1" * 1001}', '"at": 18446744073711', '"d": 1e400')
"""Fields that make a record a reject."""

TOPIC_CONFIG: Final = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
"""Topic settings that accept such timestamps and keep their records."""


def value(n: int) -> str:
    """Return the JSON value of record `n`, which becomes a row."""
    return _with(n, HELD[n // EVERY % len(HELD)]) if n % EVERY == 1 else json.dumps({"n": n})


def rejected_value(n: int) -> str:
    """Return the JSON value of record `n`, which becomes a reject."""
    return _with(n, NOT_HELD[n % len(NOT_HELD)])


def timestamp_ms(n: int) -> int | None:
    """Return the timestamp (ms) of record `n`; None: the time of sending."""
    return TIMESTAMPS_MS[n // EVERY % len(TIMESTAMPS_MS)] if n % EVERY == 7 else None


def is_right(n: int, found: datetime | None) -> bool:
    """Return True if the row of record `n` has the right timestamp.

    It is the record's timestamp, or null if no table can keep that one.
    """
    wanted = timestamp_ms(n)
    if wanted is None:
        return found is not None
    if not is_representable(wanted) or found is None:
        return found is None and not is_representable(wanted)
    return _ms(found) == wanted


def number(text: Any) -> int:
    """Return the number `n` in a record's value."""
    found = bytes(text).removeprefix(b'{"n": ')
    return int(found[: len(found) - len(found.lstrip(b"0123456789"))])


def _with(n: int, field: str) -> str:
    return f'{{"n": {n}, {field}}}'


def _ms(moment: datetime) -> int:
    moment = moment.astimezone(UTC) if moment.tzinfo else moment
    days = moment.toordinal() - datetime(1970, 1, 1).toordinal()
    seconds = days * 86_400 + moment.hour * 3600 + moment.minute * 60 + moment.second
    return seconds * 1000 + moment.microsecond // 1000
