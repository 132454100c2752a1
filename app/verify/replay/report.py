"""Report of `verify --replay`, in addition to the usual counts and findings."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class NotCompared:
    """Something that the replay cannot speak of. partition: of the input; None: of all."""

    partition: int | None
    what: str
    reason: str

    def __str__(self) -> str:
        where = "" if self.partition is None else f"partition {self.partition}, "
        return f"not compared: {where}{self.what}: {self.reason}"


@dataclass
class ReplayReport:
    """The replay of one stream's agents."""

    program: str
    """Program as `--app` named it."""
    agents: list[str]
    outputs: int = 0
    """Program's outputs for the input that workers have committed."""
    entries: int = 0
    """Compared entries of tables: keys of the replay and of the changelog, each once."""
    evicted: int = 0
    """Identities that workers have forgotten, by the stream's bounds; the replay forgets none."""
    sent: Counter[str] = field(default_factory=Counter)
    """Records that the program sent to topics other than the stream's own, ..."""
    of_others: Counter[str] = field(default_factory=Counter)
    """... and other records in those topics: of other streams, or of other programs."""
    begun: dict[str, dict[int, int]] = field(default_factory=dict)
    """Input offset by partition at which workers began a table that an earlier version did not have, by name."""
    without_time: bool = False
    """True if timestamps of outputs were left out."""
    not_compared: list[NotCompared] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Loosened comparisons, and possible causes of findings."""

    def leave_out(self, partition: int | None, what: str, reason: str) -> None:
        """Note that something is not compared."""
        self.not_compared.append(NotCompared(partition, what, reason))

    def note_causes(self, *, found_any: bool) -> None:
        """Note, after a run, loosened comparisons, and causes of findings other than a fault."""
        if self.without_time:
            self.notes.append("agents take batches: timestamps of their outputs were not compared")
        for table, offsets in sorted(self.begun.items()):
            places = ", ".join(f"offset {offset} of partition {number}" for number, offset in sorted(offsets.items()))
            self.notes.append(f"table {table} begins at {places}, where a version of the program began it")
        if not found_any:
            return
        self.notes.append(
            f"compared with the present outputs of {self.program}: where the program was edited after its first run, "
            "or depends on more than its events and tables, that is the difference"
        )
        if self.evicted:
            self.notes.append(
                f"workers have forgotten {self.evicted:,} identities (max_identities, inactive_after_s): a record "
                "re-sent after that was new to the agents, and is a repeat to the replay"
            )

    def as_dict(self) -> dict[str, Any]:
        """Return the object in the JSON of `ratchet verify`."""
        return {
            "program": self.program,
            "agents": self.agents,
            "outputs": self.outputs,
            "entries": self.entries,
            "evicted": self.evicted,
            "sent": dict(self.sent),
            "of_others": dict(self.of_others),
            "not_compared": [asdict(each) for each in self.not_compared],
            "notes": self.notes,
        }
