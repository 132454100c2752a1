"""Input that an operator has decided to skip; the owner entry of the changelog says who, when and why."""

from __future__ import annotations

from typing import NamedTuple

from kafka_ratchet.transport.owner import Owner


class Skip(NamedTuple):
    """Input offsets from start to before end, and the decision."""

    start: int
    end: int
    by: str
    at: str
    reason: str


def skipped_by_decision(owner: Owner | None) -> list[Skip]:
    """What the decisions of one partition have left out of the topic that its positions are in now, by offset.

    A decision without a position before it began with another topic: what was decided earlier was about the old one.
    One that moves back has what it passes over read after all.
    """
    skips: list[Skip] = []
    for decision in owner.decisions if owner is not None else ():
        if decision.after is None:
            continue
        if decision.before is None:
            skips = []
        start = decision.before or 0
        if decision.after > start:
            skips.append(Skip(start, decision.after, decision.by, decision.at, decision.reason))
        elif decision.after < start:
            skips = [skip._replace(end=min(skip.end, decision.after)) for skip in skips if skip.start < decision.after]
    return sorted(skips)
