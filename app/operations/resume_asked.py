"""Decisions about halted partitions, parsed from the command line or the page, and sentences about the plan."""

from __future__ import annotations

from typing import Final

from kafka_ratchet.app.operations.resume import MOST_DIGITS, Plan, Resume
from kafka_ratchet.errors import SettingsError

NOT_SEARCHED: Final = (
    "Other topics that agents send to were not searched: if a partition stays halted because of open records, its "
    "error names the topic. Add it with --topic"
)
"""Sentence about the topics that the search for hanging transactions leaves out."""


def numbers_of(partition: str | None, decision: Resume) -> list[int]:
    """Return the partitions that the option --partition selects; None selects all partitions.

    Raises:
        SettingsError: the stream has no such partition.
    """
    partitions = decision.partitions
    if partition is None:
        return list(range(partitions))
    is_number = partition.isascii() and partition.isdecimal() and len(partition) <= MOST_DIGITS
    if not is_number or int(partition) >= partitions:
        raise SettingsError(
            f"--partition: {decision.stream.input} has partitions 0 to {partitions - 1}, not {partition[:20]!r}. "
            "Name one of these"
        )
    return [int(partition)]


def searched_in(decision: Resume) -> list[str]:
    """Return the names of the topics to search for open transactions."""
    shared = (topic for topic, _ in decision.shared)
    return sorted({*decision.stream.writes, decision.changelog, *shared})


def none_found(decision: Resume) -> str:
    """Return the sentence about a search without a result."""
    own = ", ".join(sorted({*decision.stream.writes, decision.changelog}))
    shared = ", ".join(sorted({topic for topic, _ in decision.shared}))
    limited = f", and none of their present producer ids in any partition of {shared}" if shared else ""
    return f"There is no hanging transaction of these partitions in {own}{limited}."


def sentences(plan: Plan, *, done: bool) -> list[str]:
    """Return sentences about the findings in a partition, and about its change.

    done: True: the change was made; False: it is only planned
    """
    verb = "continues" if done else "would continue"
    said = [f"partition {plan.partition}: holds {plan.first} to {plan.end}; {verb} at offset {plan.after}"]
    said += [f"  found: {each}" for each in plan.found]
    if plan.before is None:
        said.append("  the committed offset means nothing in the present topic")
    elif plan.before != plan.after:
        said.append(f"  the committed offset is {plan.before}")
    if plan.skipped:
        said.append(f"  {plan.skipped} offsets are skipped: their records are never judged nor forwarded")
    if plan.again:
        again = "all of them count again" if plan.forget else f"{plan.passes_again} of their records pass once more"
        said.append(f"  {plan.again} offsets are read again: {again}")
    if plan.letters_again:
        said.append(f"  {plan.letters_again} of them become dead letters once more")
    said += [f"  passes once more: {each}" for each in plan.recounted]
    if plan.decided and not done:
        said.append(f"  newest decision: {plan.decided}")
    kept = "are forgotten" if plan.forget else "are kept"
    return [*said, f"  {plan.identities} last sequences {kept}"]
