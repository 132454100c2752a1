"""What is found of a record: where it arrived, how it was judged, and what came of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Final, Literal

ARRIVALS_MOST: Final = 1_000
"""Arrivals that are told one by one; an identity may have millions."""

Verdict = Literal["fresh", "duplicate", "too-late", "content-differs", "invalid", "unjudged", "skipped", "waiting"]
"""unjudged: deduplication was off; skipped: a person has decided so; waiting: no worker has come to it."""


class ExitCode(IntEnum):
    """What `ratchet why` ends with. 2 is for questions that cannot be asked."""

    EXPLAINED = 0
    NOT_FOUND = 1
    NOT_ALL_READ = 3
    """Nothing was found in what could be read in time."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic} partition {self.partition} offset {self.offset:,}"


@dataclass(slots=True)
class Transaction:
    """The transaction in which a record was judged.

    changelog: the progress entry that passes the record; None where compaction has removed it
    at: when Kafka appended that entry; ISO 8601, UTC
    producer_id, epoch: of what the transaction wrote; None where they could not be read
    """

    changelog: Place | None = None
    at: str | None = None
    producer_id: int | None = None
    epoch: int | None = None


@dataclass(slots=True)
class Result:
    """What the result table has of a record of the output. Offsets are of the output.

    rows, rejects: None where rows cannot be told apart by record
    commit: as the store numbers its commits; None where it does not say
    kind: append, upsert or totals; "query" where `sql` or `transform` makes the rows
    """

    table: str
    job: str
    read_to: int
    rows: int | None = None
    rejects: int | None = None
    commit: str | None = None
    kind: str = "upsert"

    def is_anothers(self, offset: int) -> bool:
        """Whether there is a row with the partition and offset of a record that the job has not read."""
        return self.read_to <= offset and bool(self.rows or self.rejects)

    def sentence(self, offset: int) -> str:
        """What became of the record at that offset of the output, so far as the table tells."""
        where, job = self.table, f"job {self.job}"
        if self.read_to <= offset:
            others = "; the row with its partition and offset is of another topic" if self.is_anothers(offset) else ""
            return f"not yet in {where}: {job} has read up to offset {self.read_to:,}{others}"
        if self.rejects:
            return f"rejected: its value did not parse; in the rejects of {where}"
        if self.rows:
            return f"row of {where}{f' ({self.rows} rows)' if self.rows > 1 else ''}, {job}"
        if self.kind == "query":
            return f"read by {job} for {where}: whether its query has kept it cannot be told"
        if self.rows is None:
            return f"counted in {where}, {job}"
        if self.kind == "append":
            return f"no row of {where} is of it now, {job}, although nothing replaces rows there: see verify --results"
        return f"no row of {where} is of it now, {job}: a later record of its key may have replaced it"


@dataclass(slots=True)
class Arrival:
    """One record of the input that the question is about.

    timestamp: its own, ISO 8601, UTC
    sequence: None where it has none
    against: the last sequence of its identity when it was judged; None where there was none, or it cannot be told
    lag: of one that waits, the offsets before it that no worker has committed
    """

    at: Place
    timestamp: str
    sequence: int | None
    verdict: Verdict
    against: int | None = None
    forwarded: Place | None = None
    kept: Place | None = None
    """In the topic of duplicates."""
    dead_letter: Place | None = None
    reason: str | None = None
    """Of the dead letter."""
    transaction: Transaction | None = None
    result: Result | None = None
    """The first of `results`."""
    results: list[Result] = field(default_factory=list)
    """By sink that reads the output, in the order of the settings."""
    lag: int | None = None
    blocked: str | None = None
    """Sentence about the open transaction before it."""
    notes: list[str] = field(default_factory=list)


@dataclass
class Answer:
    """All of it. limits: what cannot be known, and why."""

    stream: str
    asked: str
    identity: bytes | None = None
    sequence: int | None = None
    arrivals: list[Arrival] = field(default_factory=list)
    more: int = 0
    """Arrivals beyond those that are told."""
    read_all: bool = True
    """Whether everything was read that may have a record of it."""
    limits: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> ExitCode:
        """What the command ends with."""
        if self.arrivals:
            return ExitCode.EXPLAINED
        return ExitCode.NOT_FOUND if self.read_all else ExitCode.NOT_ALL_READ

    def as_dict(self) -> dict[str, Any]:
        """The JSON of `ratchet why`."""
        return {
            "stream": self.stream,
            "found": bool(self.arrivals),
            "identity": None if self.identity is None else shown(self.identity),
            "sequence": self.sequence,
            "arrivals": [asdict(each) for each in self.arrivals],
            "more": self.more,
            "read_all": self.read_all,
            "limits": self.limits,
        }


def shown(identity: bytes) -> str:
    """An identity as text; bytes that are none as their number in hex."""
    return identity.decode("utf-8", "backslashreplace")


def moment(ms: int) -> str:
    """A time in ms since the epoch as ISO 8601, UTC."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):  # a producer may set any number
        return f"{ms} ms"
