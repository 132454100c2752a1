"""Findings of verify and their counts, for output, policies, files and result table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from kafka_ratchet.app.inspect.document import Document
from kafka_ratchet.app.verify.identities import CountsByIdentity

FindingKind = Literal["lost", "doubled", "reordered", "altered", "unexpected", "contradicted"]


FINDINGS_PER_KIND = 10
"""Number of findings of each kind kept with their places; further ones are only counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Wrong record, or wrong key of a result table."""

    kind: FindingKind
    place: str
    """Name of the topic, or the result table."""
    input_partition: int | None = None
    input_offset: int | None = None
    """Offset of the finding's input record; None: no such record, or unknown."""
    partition: int | None = None
    offset: int | None = None
    """Offset in the topic; for a row, the output offset of its record.

    None: the record is lost, or the finding is about a key of the table.
    """
    identity: str | None = None
    sequence: int | None = None
    detail: str = ""
    is_row: bool = False
    """True for a row of the result table."""

    def __str__(self) -> str:
        parts = [f"{self.kind}: {'table' if self.is_row else 'topic'} {self.place}"]
        if self.offset is not None:
            parts.append(f"{'output ' * self.is_row}partition {self.partition} offset {self.offset}")
        if self.input_offset is not None:
            parts.append(f"input partition {self.input_partition} offset {self.input_offset}")
        if self.sequence is not None:
            parts.append(f"identity {self.identity!r} sequence {self.sequence}")
        if self.detail:
            parts.append(self.detail)
        return ", ".join(parts)


Verdict = Literal["confirmed", "contradicted", "unproven", "accepted"]


@dataclass(frozen=True)
class IntervalCheck:
    """Check of one policy interval of an input partition against the policy topic.

    end: offset after the last input record of the interval; None: the interval goes on.
    """

    partition: int
    start: int
    end: int | None
    deduplicate: bool
    policy: int
    verdict: Verdict
    reason: str

    def __str__(self) -> str:
        until = f"to {self.end - 1:,}" if self.end is not None else "on"
        held = "on" if self.deduplicate else "off"
        return (
            f"deduplication was {held} in partition {self.partition} for offsets {self.start:,} {until}: "
            f"{self.verdict}, {self.reason}"
        )


SourceKind = Literal["missing", "altered"]


@dataclass(frozen=True, slots=True)
class SourceFinding:
    """Record of the files that is missing in Kafka, or differs there."""

    kind: SourceKind
    file: str
    line: int
    sequence: int
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.file} line {self.line}, sequence {self.sequence}, {self.detail}"


KindT = TypeVar("KindT", FindingKind, SourceKind)
FindingT = TypeVar("FindingT", Finding, SourceFinding)


@dataclass(kw_only=True)
class Findings(Generic[KindT, FindingT]):
    """Collection of findings. All are counted, and the first few of each kind are kept."""

    counts: Counter[KindT] = field(default_factory=Counter)
    findings: list[FindingT] = field(default_factory=list)
    _kept: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        """Return True if there are no findings."""
        return not self.counts

    def add(self, finding: FindingT, times: int = 1) -> None:
        """Count a finding `times` times, and keep the first few of each kind."""
        self.counts[finding.kind] += times  # type: ignore[index]  # the two type variables go together
        if self._kept[finding.kind] < FINDINGS_PER_KIND:
            self._kept[finding.kind] += 1
            self.findings.append(finding)


@dataclass
class SourceReport(Findings[SourceKind, SourceFinding], Document):
    """Result of the comparison of one producer's files with Kafka. Counts are records of the files."""

    json_keys = (
        "producer",
        "ok",
        "records",
        "delivered",
        "missing=counts.missing",
        "altered=counts.altered",
        "unpublished",
        "first_unpublished",
        "pending",
        "dead_lettered",
        "before",
        "not_in_files=foreign",
        "findings",
    )

    producer: str
    records: int = 0
    delivered: int = 0
    """Records in the output with the same key and value."""
    dead_lettered: int = 0
    """Records in the input that the stream's rule finds invalid."""
    pending: int = 0
    """Records in the input that no worker has judged yet."""
    unpublished: int = 0
    """Records missing in the input, with sequences above the producer's known progress."""
    before: int = 0
    """Records missing because retention has deleted that part of input or output."""
    foreign: int = 0
    """Number of the producer's sequences in Kafka that the files lack."""
    first_unpublished: str | None = None
    """File and line of the first unpublished record; None: all are published."""


ProvenBy = Literal["rows", "keys"]


IDENTITIES_LISTED = 1_000
"""Maximum number of identities listed in a report. Identities with lost or doubled records come first."""


@dataclass
class ResultsReport(Findings[FindingKind, Finding], Document):
    """Result of the comparison of a result table with the output."""

    json_keys = (
        "table",
        "job",
        "kind",
        "generation",
        "ok",
        "proven_by",
        "unproven=unproven_reason",
        "lost=counts.lost",
        "doubled=counts.doubled",
        "altered",
        "unexpected=counts.unexpected",
        "values",
        "records",
        "rows",
        "rejects",
        "waiting",
        "left_out",
        "keys_of_several_partitions=several",
        "offsets",
        "findings=sentences",
        "identities",
        "identities_in_all",
    )

    table: str
    """Store and location of the table."""
    job: str
    kind: str
    generation: int
    proven_by: ProvenBy | None
    """Method of the proof; None: see `unproven`.

    rows: each record's row was searched; keys: each key was computed again from the topic
    """
    unproven: str = ""
    """Reason why rows cannot be compared with records; empty if they can."""
    rows: int = 0
    rejects: int = 0
    records: int = 0
    """Committed records of the output below the offsets stored with the table."""
    waiting: int = 0
    """Committed records that the table lacks, and that the job may still write."""
    left_out: int = 0
    """Committed records before the `--start` of the job's first run; the table need not have them."""
    several: int = 0
    """Keys with records in several Kafka partitions.

    For such a key the last commit wins, so the last record of any of these partitions counts as right.
    """
    values_compared: int = 0
    """Number of rows with their values compared to the values of the record."""
    without_time: int = 0
    """Rows without `_kafka_timestamp`: the record has no timestamp, or one that a table cannot hold."""
    columns_left_out: list[str] = field(default_factory=list)
    """Names of the columns that were not compared."""
    values_unproven: str = ""
    """Reason why values of rows were not compared; empty if all were."""
    offsets: dict[int, int] = field(default_factory=dict)
    accounts: CountsByIdentity = field(default_factory=CountsByIdentity)

    def find(
        self,
        kind: FindingKind,
        detail: str,
        partition: int | None,
        offset: int | None,
        times: int = 1,
        known_as: tuple[str | None, int | None] = (None, None),
    ) -> None:
        """Add a finding about a row or a key. known_as: identity and sequence of its record, if known."""
        identity, sequence = known_as
        self.add(
            Finding(
                kind,
                self.table,
                partition=partition,
                offset=offset,
                identity=identity,
                sequence=sequence,
                detail=detail,
                is_row=True,
            ),
            times,
        )

    @property
    def unproven_reason(self) -> str | None:
        """Return the reason why rows cannot be compared with records; None if they can."""
        return self.unproven or None

    @property
    def altered(self) -> int | None:
        """Return the number of altered rows; None if no values were compared."""
        is_known = not self.values_unproven or self.values_compared or self.counts["altered"]
        return self.counts["altered"] if is_known else None

    @property
    def values(self) -> dict[str, Any]:
        """Return the extent of the comparison of values, for JSON."""
        return {
            "rows": self.values_compared,
            "without_timestamp": self.without_time,
            "columns_not_compared": self.columns_left_out,
            "not_compared": self.values_unproven or None,
        }

    @property
    def sentences(self) -> list[str]:
        """Return the listed findings as text."""
        return [str(finding) for finding in self.findings]

    @property
    def identities(self) -> list[dict[str, Any]]:
        """Return the first identities with the counts of their records, for JSON."""
        return [
            {
                "identity": None if identity is None else identity.decode("utf-8", "backslashreplace"),
                **{name: getattr(account, name) for name in account.__slots__},
            }
            for identity, account in self.accounts.first(IDENTITIES_LISTED)
        ]

    @property
    def identities_in_all(self) -> int:
        """Return the number of identities with counted records."""
        return len(self.accounts)
