"""What `verify --replay` says beside the counts and findings that every run of verify has."""

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
    """As `--app` named it."""
    agents: list[str]
    outputs: int = 0
    """What the program gave for the input that workers have committed."""
    entries: int = 0
    """Entries of tables that were compared: keys of the replay and of the changelog, each once."""
    evicted: int = 0
    """Identities that workers have forgotten, by the stream's bounds; the replay forgets none."""
    sent: Counter[str] = field(default_factory=Counter)
    """Records that the program sent to topics other than the stream's own, ..."""
    of_others: Counter[str] = field(default_factory=Counter)
    """... and what those topics have besides: of other streams, or of anybody."""
    without_time: bool = False
    """Whether timestamps of outputs were left out."""
    not_compared: list[NotCompared] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was compared more loosely, and what findings may come from."""

    def leave_out(self, partition: int | None, what: str, reason: str) -> None:
        """Note that something is not compared."""
        self.not_compared.append(NotCompared(partition, what, reason))

    def note_causes(self, *, found_any: bool) -> None:
        """After a run: what was compared more loosely, and what else than a fault findings may come from."""
        if self.without_time:
            self.notes.append("agents take batches: timestamps of their outputs were not compared")
        if not found_any:
            return
        self.notes.append(
            f"compared with what {self.program} gives as it is now: where the program was edited after it had given "
            "what is there, or depends on more than its events and tables, that is the difference"
        )
        if self.evicted:
            self.notes.append(
                f"workers have forgotten {self.evicted:,} identities (max_identities, inactive_after_s): a record that "
                "was sent again after that was new to the agents, and is a repeat to the replay"
            )

    def as_dict(self) -> dict[str, Any]:
        """The object in the JSON of `ratchet verify`."""
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
