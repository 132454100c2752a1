"""The way that a partition's reader took through the input: straight on, but for where an operator has moved it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kafka_ratchet.transport.owner import NEWEST_DECISIONS, Decision


class Leg(NamedTuple):
    """Input offsets from start to before end, read in one go.

    forgets: last sequences were forgotten before it (`ratchet resume --forget`)
    """

    start: int
    end: int
    forgets: bool = False


class NoPath(Exception):
    """Nobody knows which input was read in which order. The text says why."""


def legs_of(decisions: Sequence[Decision], begin: int, end: int, held: int, since: str = "") -> list[Leg]:
    """What was read from `begin` to `end`, in this order.

    Args:
        decisions: of the partition, the newest last
        begin: where the first leg begins
        end: of the last leg
        held: the first offset that Kafka still has
        since: decisions up to this time are done with; ISO 8601

    Raises:
        NoPath: input that was read is deleted, or the decisions do not say what was read.
    """
    if len(decisions) >= NEWEST_DECISIONS:
        raise NoPath(
            f"the changelog keeps the newest {NEWEST_DECISIONS} decisions of operators; older ones are unknown"
        )
    legs, position, forgets = list[Leg](), begin, False
    for decision in decisions:
        if decision.at <= since or decision.after is None:
            continue
        if decision.before is None or decision.before < position:
            raise NoPath(
                f"by {decision.by} at {decision.at} its position was set to offset {decision.after:,}, and how far it "
                "had come before is not known in the topics that are there now"
            )
        legs.append(Leg(position, decision.before, forgets))
        position, forgets = decision.after, "--forget" in decision.what.split()
    legs.append(Leg(position, max(position, end), forgets))
    for leg in legs:
        if leg.start < min(held, leg.end):
            raise NoPath(
                f"input offsets {leg.start:,} to {min(held, leg.end) - 1:,} are deleted, and what agents and tables "
                "make of the rest depends on them. A replay begins where the stream began, or where the last run of "
                "--state ended"
            )
    return legs
