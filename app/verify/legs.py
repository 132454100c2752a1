"""The way that a partition's reader took through the input: straight on, but for where an operator has moved it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kafka_ratchet.rule.settings import RULE
from kafka_ratchet.tables.edits import Edit
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from kafka_ratchet.transport.owner import INPUT, NEWEST_DECISIONS, OUTPUT, Decision, Mark, Owner


class Leg(NamedTuple):
    """Input offsets from start to before end, read in one go.

    forgets: last sequences were forgotten before it (`ratchet resume --forget`)
    rule: of its records; None: the one of the settings.
    since, until: state at the decision before and after it; None: there was none, or nothing was noted
    """

    start: int
    end: int
    forgets: bool = False
    rule: Mapping[str, str] | None = None
    since: Mark | None = None
    until: Mark | None = None

    def intervals(self, of: Sequence[PolicyInterval]) -> list[PolicyInterval]:
        """Return the policy intervals begun in this leg. of: all of the partition."""
        return [each for each in of if self._has(each.number, "intervals")]

    def edits(self, of: Sequence[Edit]) -> list[Edit]:
        """Return the edits applied in this leg. of: all of the partition, in their order."""
        return [each for number, each in enumerate(of) if self._has(number, "edits")]

    def _has(self, number: int, name: str) -> bool:
        first = 0 if self.since is None else getattr(self.since, name)
        return number >= first and (self.until is None or number < getattr(self.until, name))


class NoPath(Exception):
    """Unknown order of reading; the text gives the reason."""


def legs_of(decisions: Sequence[Decision], begin: int, end: int, held: int, since: str = "") -> list[Leg]:
    """Return the legs from `begin` to `end`, in their order.

    Args:
        decisions: of the partition, the newest last.
        begin: where the first leg begins
        end: of the last leg
        held: the first offset that Kafka still has.
        since: decisions up to this time are done with; ISO 8601

    Raises:
        NoPath: some of the input is deleted, or the decisions do not tell the legs.
    """
    if len(decisions) >= NEWEST_DECISIONS:
        raise NoPath(
            f"the changelog keeps the newest {NEWEST_DECISIONS} decisions of operators; older ones are unknown"
        )
    legs, position, forgets, mark = list[Leg](), begin, False, None
    for decision in decisions:
        if decision.at <= since or decision.after is None:
            mark = decision.mark
            continue
        if decision.before is None or decision.before < position:
            raise NoPath(
                f"by {decision.by} at {decision.at} its position was set to offset {decision.after:,}, and its earlier "
                "position is unknown in the present topics"
            )
        rule = decision.mark.rule if decision.mark is not None else None
        legs.append(Leg(position, decision.before, forgets, rule, mark, decision.mark))
        position, forgets, mark = decision.after, decision.forgets, decision.mark
    legs.append(Leg(position, max(position, end), forgets, since=mark))
    for leg in legs:
        if leg.start < min(held, leg.end):
            raise NoPath(
                f"input offsets {leg.start:,} to {min(held, leg.end) - 1:,} are deleted, and what agents and tables "
                "make of the rest depends on them. A replay begins where the stream began, or where the last run of "
                "--state ended"
            )
    return legs


def noted_legs(owner: Owner | None, begin: int, end: int, since: str = "") -> list[Leg]:
    """Return the legs in the present input, by the marks of the decisions.

    The first leg has a mark before it where earlier legs cannot be judged any more: their input was deleted, or the
    changelog does not keep their decisions. A decision without a change ends no leg.

    Args:
        owner: of the partition
        begin: where the first leg begins
        end: of the last leg.
        since: decisions up to this time are done with; ISO 8601.

    Returns:
        the legs in their order; none where no decision has a mark
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
    """Return whether a decision makes a difference for the records after it."""
    is_moved = decision.before != decision.after or decision.forgets or OUTPUT in mark.replaced
    return is_moved or any(mark.rule.get(name) != following.get(name) for name in RULE)
