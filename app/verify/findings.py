"""Findings and their sums, for the output, the policies, the files and the result table."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Literal, TypeVar

from kafka_ratchet.app.verify.identities import Accounts

FindingKind = Literal["lost", "doubled", "reordered", "altered", "unexpected", "contradicted"]


FINDINGS_PER_KIND = 10
"""Number of each kind kept with their place; others are counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Record, or key, that is wrong."""

    kind: FindingKind
    place: str
    """The output or the dead-letter topic; or the result table."""
    input_partition: int | None = None
    input_offset: int | None = None
    """The record it should be or stems from; None where there is none."""
    partition: int | None = None
    offset: int | None = None
    """Offset in the topic (None: it is lost), or in the output for a row (None: about a key)."""
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
    """Verdict of the policy topic on one interval of one input partition.

    end: offset after its last input record; None: it goes on.
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
    """One record of the files that Kafka does not have as it must."""

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
    """Findings: all counted, and the first few of each kind kept."""

    counts: Counter[KindT] = field(default_factory=Counter)
    findings: list[FindingT] = field(default_factory=list)
    _kept: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        """Return True without findings."""
        return not self.counts

    def add(self, finding: FindingT, times: int = 1) -> None:
        """Count it, and keep it if it is one of the first of its kind."""
        self.counts[finding.kind] += times  # type: ignore[index]  # the two type variables go together
        if self._kept[finding.kind] < FINDINGS_PER_KIND:
            self._kept[finding.kind] += 1
            self.findings.append(finding)


@dataclass
class SourceReport(Findings[SourceKind, SourceFinding]):
    """The verdict on the files of one producer; counts are records of the files."""

    producer: str
    records: int = 0
    delivered: int = 0
    """Records in the output, with this key and value."""
    dead_lettered: int = 0
    """Records in the input, and invalid by the stream's rule."""
    pending: int = 0
    """Records in the input, and not yet judged by a worker."""
    unpublished: int = 0
    """Records missing in the input, and beyond the producer's known progress."""
    before: int = 0
    """Not there, and so old that retention has deleted where it was."""
    foreign: int = 0
    """Sequences of the producer in Kafka that the files do not have."""
    first_unpublished: str | None = None
    """File and line."""

    def as_dict(self) -> dict[str, Any]:
        """Return the object in the JSON of `ratchet verify`."""
        return {
            "producer": self.producer,
            "ok": self.ok,
            "records": self.records,
            "delivered": self.delivered,
            "missing": self.counts["missing"],
            "altered": self.counts["altered"],
            "unpublished": self.unpublished,
            "first_unpublished": self.first_unpublished,
            "pending": self.pending,
            "dead_lettered": self.dead_lettered,
            "before": self.before,
            "not_in_files": self.foreign,
            "findings": [asdict(finding) for finding in self.findings],
        }


ProvenBy = Literal["rows", "keys"]


IDENTITIES_TOLD = 1_000
"""Identities that a report names one by one; those with something lost or doubled come first."""


@dataclass
class ResultsReport(Findings[FindingKind, Finding]):
    """The verdict on a result table."""

    table: str
    """Its store and its place."""
    job: str
    kind: str
    generation: int
    proven_by: ProvenBy | None
    """rows: each record was searched; keys: each key was counted again from the topic; None: see `unproven`."""
    unproven: str = ""
    """Reason why rows cannot be compared with records; empty where they can."""
    rows: int = 0
    rejects: int = 0
    records: int = 0
    """Committed records of the output that the table's offsets are past."""
    waiting: int = 0
    """Committed records that the table does not have yet, and need not have."""
    several: int = 0
    """Keys with records in several Kafka partitions.

    There the last commit wins, so the last row of any of these partitions counts as right.
    """
    values_compared: int = 0
    """Number of rows compared with their records, column by column."""
    without_time: int = 0
    """Rows without `_kafka_timestamp`, because Kafka has none, or one that no table holds."""
    columns_left_out: list[str] = field(default_factory=list)
    """Names of columns without a comparison."""
    values_unproven: str = ""
    """Reason why no values were compared; empty where they were."""
    offsets: dict[int, int] = field(default_factory=dict)
    accounts: Accounts = field(default_factory=Accounts)

    def find(
        self,
        kind: FindingKind,
        detail: str,
        partition: int | None,
        offset: int | None,
        times: int = 1,
        known_as: tuple[str | None, int | None] = (None, None),
    ) -> None:
        """`add` a finding about a row or a key. known_as: identity and sequence."""
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

    def as_dict(self) -> dict[str, Any]:
        """Return the object in the JSON of `ratchet verify`."""
        return {
            "table": self.table,
            "job": self.job,
            "kind": self.kind,
            "generation": self.generation,
            "ok": self.ok,
            "proven_by": self.proven_by,
            "unproven": self.unproven or None,
            "lost": self.counts["lost"],
            "doubled": self.counts["doubled"],
            "altered": None if self.values_unproven and not self.counts["altered"] else self.counts["altered"],
            "unexpected": self.counts["unexpected"],
            "values": {
                "rows": self.values_compared,
                "without_timestamp": self.without_time,
                "columns_not_compared": self.columns_left_out,
                "not_compared": self.values_unproven or None,
            },
            "records": self.records,
            "rows": self.rows,
            "rejects": self.rejects,
            "waiting": self.waiting,
            "keys_of_several_partitions": self.several,
            "offsets": {str(partition): offset for partition, offset in self.offsets.items()},
            "findings": [str(finding) for finding in self.findings],
            "identities": [
                {
                    "identity": None if identity is None else identity.decode("utf-8", "backslashreplace"),
                    **{name: getattr(account, name) for name in account.__slots__},
                }
                for identity, account in self.accounts.first(IDENTITIES_TOLD)
            ],
            "identities_in_all": len(self.accounts),
        }
