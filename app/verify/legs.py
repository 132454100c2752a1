"""Legs of a partition: parts of its input between two decisions of operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kafka_ratchet.rule.settings import RULE
from kafka_ratchet.tables.edits import Edit
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from kafka_ratchet.transport.owner import INPUT, NEWEST_DECISIONS, OUTPUT, Decision, Mark, Owner


class Leg(NamedTuple):
    """Leg: part of a partition's input that workers read between two decisions of operators.

    start, end: first input offset of the leg, and the one after its last.
    forgets: True if last sequences were forgotten before this leg (`ratchet resume --forget`).
    rule: rule of deduplication for its records; None: the rule of the settings.
    since, until: marks of the decisions before and after this leg (topic offsets at the time of a decision); None: no
    decision, or one without a mark.
    """

    start: int
    end: int
    forgets: bool = False
    rule: Mapping[str, str] | None = None
    since: Mark | None = None
    until: Mark | None = None

    def intervals(self, of: Sequence[PolicyInterval]) -> list[PolicyInterval]:
        """Return the policy intervals begun in this leg. of: all intervals of the partition."""
        return [each for each in of if self._has(each.number, "intervals")]

    def edits(self, of: Sequence[Edit]) -> list[Edit]:
        """Return the edits applied in this leg. of: all edits of the partition, in order."""
        return [each for number, each in enumerate(of) if self._has(number, "edits")]

    def _has(self, number: int, name: str) -> bool:
        first = 0 if self.since is None else getattr(self.since, name)
        return number >= first and (self.until is None or number < getattr(self.until, name))


class UnknownOrder(Exception):
    """Error for input that workers have read in an unknown order; its text has the reason."""


def legs_of(decisions: Sequence[Decision], begin: int, end: int, held: int, since: str = "") -> list[Leg]:
    """Return the legs of a replay, from input offset `begin` to `end`, in order.

    Args:
        decisions: operators' decisions on the partition, the newest last.
        begin: first input offset of the first leg.
        end: input offset after the last leg.
        held: first input offset that Kafka still has.
        since: time of the newest processed decision; ISO 8601.

    Raises:
        UnknownOrder: some of the input is deleted, or the decisions do not show where the legs begin and end.
    """
    if len(decisions) >= NEWEST_DECISIONS:
        raise UnknownOrder(
            f"the changelog keeps only the newest {NEWEST_DECISIONS} decisions of operators, so the order in which "
            "workers read the input before these is unknown"
        )
    legs, position, forgets, mark = list[Leg](), begin, False, None
    for decision in decisions:
        if decision.at <= since or decision.after is None:
            mark = decision.mark
            continue
        if decision.before is None or decision.before < position:
            raise UnknownOrder(
                f"{decision.by} set the partition's position to offset {decision.after:,} at {decision.at}, and the "
                "position before that is unknown for the present topics"
            )
        rule = decision.mark.rule if decision.mark is not None else None
        legs.append(Leg(position, decision.before, forgets, rule, mark, decision.mark))
        position, forgets, mark = decision.after, decision.forgets, decision.mark
    legs.append(Leg(position, max(position, end), forgets, since=mark))
    for leg in legs:
        if leg.start < min(held, leg.end):
            raise UnknownOrder(
                f"input offsets {leg.start:,} to {min(held, leg.end) - 1:,} are deleted, and later results of agents "
                "and tables depend on them. Run again with the --state file of a run that ended after these "
                "offsets. Without such a file, this partition cannot be replayed. To prevent this, run with --state "
                "before retention deletes input"
            )
    return legs


def noted_legs(owner: Owner | None, begin: int, end: int, since: str = "") -> list[Leg]:
    """Return the legs within the present input topic, from the marks of the decisions.

    Legs are left out if they belong to a replaced input topic, or if the changelog no longer has their decisions. The
    first remaining leg then has a mark in `since`. A decision that changes nothing ends no leg.

    Args:
        owner: owner entry of the partition.
        begin: first input offset of the first leg.
        end: input offset after the last leg.
        since: time of the newest processed decision; ISO 8601.

    Returns:
        the legs in order; an empty list if no decision has a mark.
    """
    decisions = [each for each in owner.decisions if each.at > since] if owner is not None else []
    if owner is None or not any(each.mark for each in decisions):
        return []
    rules = [owner.rule if each.mark is None else each.mark.rule for each in decisions[1:]] + [owner.rule]
    is_cut = not since and len(owner.decisions) >= NEWEST_DECISIONS
    legs, position, forgets, mark = list[Leg](), begin, False, None
    for number, (decision, following) in enumerate(zip(decisions, rules, strict=True)):
        if decision.after is None:
            continue
        if decision.mark is None:
            position = decision.after  # nothing had been judged
            continue
        if decision.before is None or INPUT in decision.mark.replaced or (is_cut and number == 0):
            legs.clear()
        elif _changes(decision, decision.mark, following):
            legs.append(Leg(position, max(position, decision.before), forgets, decision.mark.rule, mark, decision.mark))
        else:
            continue
        position, forgets, mark = decision.after, decision.forgets, decision.mark
    return [*legs, Leg(position, max(position, end), forgets, owner.rule, mark)]


def _changes(decision: Decision, mark: Mark, following: Mapping[str, str]) -> bool:
    """Return True if a decision changes position, state, output topic or rule."""
    is_moved = decision.before != decision.after or decision.forgets or OUTPUT in mark.replaced
    return is_moved or any(mark.rule.get(name) != following.get(name) for name in RULE)
