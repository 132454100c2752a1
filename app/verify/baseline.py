"""Where the proof of a partition begins: at the start of its topics, after what is deleted, or where a run ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Known(NamedTuple):
    """What is known of an identity's last sequence. exact: False where it may be higher than that."""

    sequence: int
    exact: bool


@dataclass
class Baseline:
    """What is known of one input partition before the first record that is read."""

    input_from: int = 0
    """First input offset that is read."""
    output_from: int = 0
    """First output offset that is read."""
    last: dict[bytes, Known] = field(default_factory=dict)
    """Last sequence by identity."""
    complete: bool = True
    """Whether an identity that is not in `last` was never there before `input_from`."""
    aligned: bool = True
    """Whether the output from `output_from` on stems from input from `input_from` on; else older records come first."""
    output_whole: bool = True
    """Whether retention has left all of the output from there on."""
    lettered: frozenset[int] = frozenset()
    """Input offsets from `input_from` on that have their dead letter already."""
    saved_from: int | None = None
    """Input offset where the last run of `--state` ended; None: there was none."""
    decided: str = ""
    """Of a replay: operators' decisions up to this time were followed already; ISO 8601."""

    @classmethod
    def after_retention(cls, input_begin: int, output_begin: int) -> Baseline:
        """Of a first run: these are the first offsets that the topics still hold."""
        whole = input_begin == 0
        return cls(input_begin, output_begin, complete=whole, aligned=whole, output_whole=output_begin == 0)

    def moved_to(self, input_begin: int, output_begin: int) -> Baseline:
        """Where the last run ended, unless retention has come further meanwhile."""
        self.output_whole = output_begin <= self.output_from
        self.output_from = max(self.output_from, output_begin)
        if input_begin > self.input_from:
            self.last = {identity: Known(known.sequence, exact=False) for identity, known in self.last.items()}
            self.complete = self.aligned = False
            self.lettered = frozenset(offset for offset in self.lettered if offset >= input_begin)
            self.input_from = input_begin
        return self
