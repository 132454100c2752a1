"""Result tables: document, columns and sentences for `ratchet sink status` and the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from kafka_ratchet.app.inspect.columns import NOT_KNOWN, Column
from kafka_ratchet.app.inspect.document import Document
from kafka_ratchet.app.status.open_transactions import BlockedRange
from kafka_ratchet.spark_sink.job.status import SinkStatus

NO_RECORDS: Final = "ends of transactions and aborted records count"
"""Phrase to write after a number of offsets: offsets without a record are included."""


class OffsetRow(Protocol):
    """Progress of a result table in one partition; see `kafka_ratchet.app.status.result_view.ResultPartition`."""

    @property
    def partition(self) -> int:
        """Return the number of the partition."""

    @property
    def offset(self) -> int | None:
        """Return the next offset to read."""

    @property
    def end(self) -> int:
        """Return the high watermark."""

    @property
    def lag(self) -> int | None:
        """Return the number of offsets left to read."""

    @property
    def lag_s(self) -> float | None:
        """Return the age in seconds of the oldest record without a row."""


class SinkTotals(Protocol):
    """Progress of a result table in all partitions."""

    @property
    def generation(self) -> int | None:
        """Return how often jobs with the sink's name have taken the table over."""

    @property
    def lag(self) -> int | None:
        """Return the number of offsets left to read."""

    @property
    def lag_s(self) -> float | None:
        """Return the age in seconds of the oldest record without a row."""


COLUMNS: Final = (
    Column[OffsetRow]("partition", "Partition", "text", is_row_heading=True),
    Column[OffsetRow]("offset", "Next offset"),
    Column[OffsetRow]("end", "End"),
    Column[OffsetRow]("lag", "Lag"),
    Column[OffsetRow]("lag_s", "Oldest, s", "seconds", lambda row: row.lag_s if row.lag else None),
)
GENERATION: Final = Column[SinkTotals]("generation", "Generation")
TOTAL_LAG: Final = Column[SinkTotals]("lag", "Lag, offsets")
OLDEST: Final = Column[SinkTotals]("lag_s", "Oldest missing, s", "seconds", lambda row: row.lag_s if row.lag else None)


@dataclass(frozen=True, slots=True)
class PartitionProgress(Document):
    """Progress of a result table in one partition, as `ratchet sink status --json` prints it.

    stable_end: last stable offset. blocked: number of offsets, from stable_end on, that an open transaction holds back.
    None in both: there is no open transaction.
    """

    json_keys = ("offset", "end", "lag", "lag_s", "stable_end?", "blocked?")

    partition: int
    offset: int | None
    end: int
    lag: int | None
    lag_s: float | None
    stable_end: int | None = None
    blocked: int | None = None


@dataclass(frozen=True, slots=True)
class Standstill(Document):
    """Cause and message of a job's standstill."""

    cause: str
    text: str


@dataclass(frozen=True, slots=True)
class OpenTransactions(Document):
    """Offsets that open transactions hold back in one partition."""

    json_keys = (*(f"{key}=blocked.{key}" for key in BlockedRange.json_keys), "text")

    blocked: BlockedRange

    @property
    def text(self) -> str:
        """Return the sentence about the offsets, for the operator."""
        return str(self.blocked)


@dataclass(frozen=True, slots=True)
class SinkProgress(Document):
    """Progress of a sink: the offsets of its table, compared with the topic's.

    section: name of the section [sinks.NAME]; None: the sink was not chosen among several.
    blocked: offsets that old open transactions hold back.
    """

    json_keys = (
        "sink?=section",
        "store",
        "job",
        "topic",
        "generation=status.generation",
        "partitions=by_partition",
        "lag=status.total_lag",
        "lag_s=status.total_lag_s",
        "trouble",
        "stalled?",
        "open_transactions?",
    )

    store: str
    job: str
    topic: str
    status: SinkStatus
    blocked: list[BlockedRange]
    section: str | None = None

    @property
    def rows(self) -> list[PartitionProgress]:
        """Return the table's progress in each partition."""
        found = self.status
        return [
            PartitionProgress(
                number,
                found.offsets.get(number),
                end,
                found.lag[number],
                found.lag_s[number],
                *((found.offset_range.end[number], held) if (held := found.offset_range.blocked.get(number)) else ()),
            )
            for number, end in found.end.items()
        ]

    @property
    def by_partition(self) -> dict[int, PartitionProgress]:
        """Return the table's progress by partition, for JSON."""
        return {row.partition: row for row in self.rows}

    @property
    def trouble(self) -> str | None:
        """Return the reason why the job cannot continue; None: it can."""
        return self.status.trouble or None

    @property
    def stalled(self) -> Standstill | None:
        """Return the job's standstill that Kafka or the store shows; None without one."""
        return None if self.status.stalled is None else Standstill(*self.status.stalled)

    @property
    def open_transactions(self) -> list[OpenTransactions] | None:
        """Return the offsets that old open transactions hold back; None without any."""
        return [OpenTransactions(each) for each in self.blocked] or None


@dataclass(frozen=True, slots=True)
class SinkFailure(Document):
    """Sink that could not be read. section: name of the section [sinks.NAME]."""

    json_keys = ("sink=section", "store", "job", "error")

    section: str
    store: str
    job: str
    error: str


def progress_sentence(found: SinkProgress) -> str:
    """Return the sentence about the offsets left to read."""
    lag, lag_s = found.status.total_lag, found.status.total_lag_s
    said = f"{NOT_KNOWN if lag is None else f'{lag:,}'} offsets left to read ({NO_RECORDS})"
    return (
        f"{said}; the oldest record missing in the table is {lag_s:,.1f} s old" if lag and lag_s is not None else said
    )
