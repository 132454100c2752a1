"""How far verify and why read, and what was judged by then."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OffsetRanges:
    """The offsets to compare, read from Kafka in an order that is safe while workers run.

    What is committed at `judged` must be in the output. Then the output's end is taken, once the transactions that were
    open have ended, and after that `committed_to`: nothing before the output's end stems from an input beyond
    `committed_to`. Input between the two may or may not be in the output yet.
    """

    judged: dict[int, int]
    """Per input partition the committed offset, before the ends were taken; 0 where nothing was ever committed."""
    committed_to: dict[int, int]
    """... and after."""
    uncommitted: frozenset[int]
    """Input partitions of which nothing was ever committed."""
    input_ends: dict[int, int]
    output_ends: dict[int, int]
    dead_letter_ends: dict[int, int]
    input_begins: dict[int, int]
    """First offsets that Kafka still has."""
    output_begins: dict[int, int]
    dead_letter_begins: dict[int, int]
