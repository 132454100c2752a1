"""Answer of `ratchet why` about a record: its arrivals in the input, their verdicts, and their results."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import Final

from kafka_ratchet.app.inspect.document import Document
from kafka_ratchet.rule.verdicts import Verdict

ARRIVALS_MOST: Final = 1_000
"""Maximum number of arrivals (input records) that an answer lists.

An identity may have millions of arrivals.
"""


class ExitCode(IntEnum):
    """Exit code of `ratchet why`. The code of errors is 2."""

    EXPLAINED = 0
    NOT_FOUND = 1
    NOT_ALL_READ = 3
    """Nothing was found, but not everything could be read within the limits."""


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """Topic, partition and offset of a record."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic} partition {self.partition} offset {self.offset:,}"


@dataclass(slots=True)
class Transaction:
    """Transaction that committed the worker's verdict on a record.

    changelog: place of the transaction's progress entry in the changelog; None: compaction has removed the entry.
    at: Kafka's append time of that entry, ISO 8601, UTC.
    producer_id, epoch: transactional producer that wrote the entry; None: not known.
    """

    changelog: RecordPosition | None = None
    at: str | None = None
    producer_id: int | None = None
    epoch: int | None = None


@dataclass(slots=True)
class Result:
    """Result of an output record in a result table.

    read_to: next output offset that the job will read.
    rows, rejects: number of rows and rejects of the record; None: unknown, as a row of this table may stand for several
        records.
    commit: name of the commit in the store; None: not known.
    kind: append, upsert or totals; "query": `sql` or `transform` makes the rows.
    """

    table: str
    job: str
    read_to: int
    rows: int | None = None
    rejects: int | None = None
    commit: str | None = None
    kind: str = "upsert"

    def is_anothers(self, offset: int) -> bool:
        """Return True if a row with the record's position comes from another topic.

        This is certain if the table has such a row although the job has not read the record yet.

        offset: output offset of the record
        """
        return self.read_to <= offset and bool(self.rows or self.rejects)

    def sentence(self, offset: int) -> str:
        """Return the result as a sentence, for the output record at `offset`."""
        where, job = self.table, f"job {self.job}"
        if self.read_to <= offset:
            others = "; the row with its partition and offset is of another topic" if self.is_anothers(offset) else ""
            return f"not yet in {where}: {job} has read up to offset {self.read_to:,}{others}"
        if self.rejects:
            return f"rejected: its value did not parse; in the rejects of {where}"
        if self.rows:
            return f"row of {where}{f' ({self.rows} rows)' if self.rows > 1 else ''}, {job}"
        if self.kind == "query":
            return f"read by {job} for {where}: the table does not show whether its query has kept it"
        if self.rows is None:
            return f"counted in {where}, {job}"
        if self.kind == "append":
            return (
                f"no row of {where} comes from it now, {job}, although no job replaces rows there: see verify --results"
            )
        return f"no row of {where} comes from it now, {job}: a later record of its key may have replaced it"


@dataclass(slots=True)
class SentRecord:
    """Record that agents have sent for an event.

    read: True if the stream that reads the topic has processed the record; None: not known
    """

    at: RecordPosition
    read: bool | None = None


@dataclass(slots=True)
class InputRecord:
    """Arrival: one record of the input, with its verdict and results.

    timestamp: timestamp of the record, ISO 8601, UTC.
    sequence: sequence of the record; None: it has none.
    against: last sequence of its identity when the record was judged; None: no last sequence, or not known.
    forwarded: place of its output record; None: not found in the output.
    lag: number of uncommitted offsets before the record, while it waits for its verdict; None: the record does not
    wait.
    """

    at: RecordPosition
    timestamp: str
    sequence: int | None
    verdict: Verdict
    against: int | None = None
    forwarded: RecordPosition | None = None
    kept: RecordPosition | None = None
    """Place of the record's copy in the topic of duplicates; None: not found there."""
    dead_letter: RecordPosition | None = None
    reason: str | None = None
    """Reason of the record's dead letter; None: it has none."""
    transaction: Transaction | None = None
    result: Result | None = None
    """First element of `results`; None: there is none."""
    results: list[Result] = field(default_factory=list)
    """Results in the tables of the sinks that read the output, in the order of the settings."""
    sent: list[SentRecord] = field(default_factory=list)
    """Records that agents have sent for the record. They are found by event id in internal topics, and by identity in
    the output."""
    lag: int | None = None
    blocked: str | None = None
    """Sentence about an open transaction that holds the record back; None: no transaction does."""
    notes: list[str] = field(default_factory=list)


@dataclass
class Answer(Document):
    """Answer to a question about a record or an identity.

    asked: the question as text; limits: sentences about parts of the answer that could not be found
    """

    json_keys = (
        "stream",
        "found=is_found",
        "identity=identity_text",
        "sequence",
        "arrivals",
        "more",
        "read_all",
        "limits",
    )

    stream: str
    asked: str
    identity: bytes | None = None
    sequence: int | None = None
    arrivals: list[InputRecord] = field(default_factory=list)
    more: int = 0
    """Number of further arrivals that the answer does not list."""
    read_all: bool = True
    """False if a limit ended the search before all possible arrivals were read."""
    limits: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code of the command."""
        if self.arrivals:
            return ExitCode.EXPLAINED
        return ExitCode.NOT_FOUND if self.read_all else ExitCode.NOT_ALL_READ

    @property
    def is_found(self) -> bool:
        """Return True if the input has an arrival of the record."""
        return bool(self.arrivals)

    @property
    def identity_text(self) -> str | None:
        """Return the identity as text; None: not known."""
        return None if self.identity is None else shown(self.identity)

    @property
    def identity_hex(self) -> str | None:
        """Return the identity in hexadecimal digits; None: not known."""
        return None if self.identity is None else self.identity.hex()


def shown(identity: bytes) -> str:
    """Return an identity as text; bytes other than UTF-8 become hex escapes."""
    return identity.decode("utf-8", "backslashreplace")


def moment(ms: int) -> str:
    """Format a time in ms since the epoch as ISO 8601, UTC."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):  # a producer may set any number
        return f"{ms} ms"
