"""Producers of a topic: columns for `ratchet producers` and the page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from kafka_ratchet.app.inspect.columns import Column
from kafka_ratchet.app.inspect.document import Document
from kafka_ratchet.app.status.producers import KnownProducer, ProducersPage

LIVE_S: Final = 60
"""Maximum seconds since the last judged record of a producer for it to count as live."""
PARTITIONS_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class ProducersByTopic(Document):
    """Page of the producers of each topic, for `ratchet producers`."""

    topics: list[ProducersPage]


def activity(producer: KnownProducer) -> str:
    """Return "live", "idle" or "not known" for a producer, by the time of its last judged record."""
    if producer.last_seen is None:
        return "not known"
    try:
        seen = datetime.fromisoformat(producer.last_seen)
        return "live" if datetime.now(UTC) - seen < timedelta(seconds=LIVE_S) else "idle"
    except (ValueError, TypeError):  # any member of the group may answer as a worker
        return "not known"


def _partitions(each: KnownProducer) -> str | None:
    more = ",…" if len(each.partitions) > PARTITIONS_SHOWN else ""
    return ",".join(str(row.partition) for row in each.partitions[:PARTITIONS_SHOWN]) + more or None


def _lowest(each: KnownProducer) -> str:
    if each.persisted_lowest == each.persisted:
        return ""
    return f"lowest {'–' if each.persisted_lowest is None else f'{each.persisted_lowest:,}'}"


def _clock(time: str | None) -> str | None:
    """Return a time from a worker's answer for display; None if it is not printable."""
    return time[:19].replace("T", " ") if time and time[:19].isprintable() else None


def _judged(each: KnownProducer) -> int:
    return each.fresh + each.duplicate


def _if_judged(each: KnownProducer, number: int) -> int | None:
    return number if _judged(each) else None


def _share(each: KnownProducer) -> float | None:
    judged = _judged(each)
    return each.duplicate / judged if judged else None


def _share_of(each: KnownProducer) -> str:
    judged = _judged(each)
    return f"of {judged:,} since {_clock(each.since) or '–'}" if judged else ""


NAME: Final = Column[KnownProducer]("name", "Producer", "name")
STATE: Final = Column[KnownProducer]("state", "State", "state", activity)
PARTITIONS: Final = Column[KnownProducer]("partitions", "Partitions", "text", _partitions)
PROGRESS: Final = (
    Column[KnownProducer]("published", "Published"),
    Column[KnownProducer]("persisted", "Persisted", note=_lowest),
    Column[KnownProducer]("pushed", "Pushed"),
    Column[KnownProducer]("last_seen", "Last seen", "text", lambda row: _clock(row.last_seen)),
)
JUDGED: Final = (
    Column[KnownProducer]("fresh", "Fresh", value=lambda row: _if_judged(row, row.fresh)),
    Column[KnownProducer]("duplicate", "Duplicates", value=lambda row: _if_judged(row, row.duplicate)),
)
SHARE: Final = Column[KnownProducer]("share", "Share", "share", _share, _share_of)

TERMINAL_COLUMNS: Final = (NAME, PARTITIONS, *PROGRESS, SHARE)
PAGE_COLUMNS: Final = (STATE, *PROGRESS, *JUDGED, SHARE)
"""Columns of the page after the name, which the page draws itself, as a link."""
