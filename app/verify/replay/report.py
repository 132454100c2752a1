"""Results of `verify --replay` in addition to the usual report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kafka_ratchet.app.inspect.document import Document


@dataclass(frozen=True, slots=True)
class UncomparedPart:
    """Part that the replay cannot compare. partition: number of the input partition; None: all."""

    partition: int | None
    what: str
    reason: str

    def __str__(self) -> str:
        where = "" if self.partition is None else f"partition {self.partition}, "
        return f"not compared: {where}{self.what}: {self.reason}"


@dataclass
class ReplayReport(Document):
    """Results of the replay of one stream's agents."""

    json_keys = (
        "program",
        "agents",
        "outputs",
        "entries",
        "evicted",
        "sent",
        "of_others",
        "not_compared",
        "notes",
    )

    program: str
    """MODULE:NAME of the program, from `--app`."""
    agents: list[str]
    outputs: int = 0
    """Number of the program's outputs for input before the workers' committed offsets."""
    entries: int = 0
    """Number of compared table entries: keys in the replay, the changelog, or both."""
    evicted: int = 0
    """Number of identities that workers have evicted because of the stream's limits. The replay evicts none."""
    sent: Counter[str] = field(default_factory=Counter)
    """Number of records that the program sent to other topics, by topic."""
    of_others: Counter[str] = field(default_factory=Counter)
    """Number of records from other streams or programs in the topics of `sent`, by topic."""
    begun: dict[str, dict[int, int]] = field(default_factory=dict)
    """Input offset where a later program version began with an empty table, by table and partition."""
    without_time: bool = False
    """True if timestamps of outputs and sent records were not compared."""
    not_compared: list[UncomparedPart] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Sentences about limits of the comparison, and about harmless causes of findings."""

    def leave_out(self, partition: int | None, what: str, reason: str) -> None:
        """Report a part as not compared, with the reason.

        partition: number of the partition; None: all; what: name of the part
        """
        self.not_compared.append(UncomparedPart(partition, what, reason))

    def note_causes(self, *, found_any: bool) -> None:
        """Add notes after a run: limits of the comparison, and harmless causes of findings.

        found_any: True if there are findings
        """
        if self.without_time:
            self.notes.append("agents take batches: timestamps of their outputs and sent records were not compared")
        for table, offsets in sorted(self.begun.items()):
            places = ", ".join(f"offset {offset} of partition {number}" for number, offset in sorted(offsets.items()))
            self.notes.append(f"table {table} begins at {places}, where a version of the program began it")
        if not found_any:
            return
        self.notes.append(
            f"the replay ran the present version of {self.program}: a finding may come from an edit of the program "
            "since its first run, or from a clock, chance or service that the program depends on"
        )
        if self.evicted:
            self.notes.append(
                f"workers have forgotten {self.evicted:,} identities (max_identities, inactive_after_s): a record "
                "re-sent after that was new to the agents, and is a repeat to the replay"
            )
