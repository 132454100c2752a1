"""Rules shared by all workers of a group, and the message to a worker with other ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kafka_ratchet.agents.program import App
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.status.group import Group, describe_group, sentence_of_strangers
from kafka_ratchet.errors import BrokerUnavailable
from kafka_ratchet.transport.assignor import protocol_of

PLACED: Final = ("input", "output", "dead_letters")
"""Settings of a stream that workers share in addition to its rule: others would place records elsewhere."""
PLACED_IF_SET: Final = ("forward", "duplicates", "duplicates_keep", "event_id")
"""The same, without defaults: a group of an earlier version, which lacks them, stays together with workers of this
one until a stream uses them."""
EARLIER: Final = "faust"
"""The group protocol of earlier versions, which said nothing of rules."""
SHOWN: Final = 200
"""Most characters of another member's value in a sentence: every member may write anything there."""


def rules_of(settings: Settings, program: App | None = None) -> dict[str, str]:
    """Return the rules of all members of the group, by name: settings, and each stream's agents."""
    shared = {
        f"streams.{name}.{setting}": text
        for name, stream in sorted(settings.streams.items())
        for setting, text in _of_stream(stream).items()
    }
    return shared | (program.rules() if program else {})


def _of_stream(stream: StreamSettings) -> dict[str, str]:
    placed = {field: str(getattr(stream, field)) for field in PLACED}
    for field in PLACED_IF_SET:
        if (value := getattr(stream, field)) != StreamSettings.model_fields[field].default:
            placed[field] = str(value)
    return placed | stream.judged_by.agreed


async def refusal(bootstrap: str, settings: Settings, program: App | None = None) -> str:
    """Return why the group does not take a worker with these settings; "" where the group shows no reason."""
    try:
        group = await describe_group(bootstrap, settings)
    except BrokerUnavailable as error:
        return f"its members use other settings than this worker, and do not tell which: {error}"
    if sentence := sentence_of_strangers(bootstrap, settings.app, group):
        return sentence
    ours = rules_of(settings, program)
    return why(ours, group) if group.members and group.protocol != protocol_of(ours) else ""


def works_otherwise(ours: Mapping[str, str], group: Group) -> bool:
    """Return True if the members judge or place the records of these streams by other settings.

    Their own agents and internal streams do not concern these streams' records.
    """
    if not (group.members and group.protocol) or group.protocol == protocol_of(ours):
        return False
    theirs = _of_members(group)
    return theirs is None or any(theirs.get(name) != value for name, value in ours.items())


def _of_members(group: Group) -> dict[str, str] | None:
    """Return the rules that the members have agreed on; None where none of them tells."""
    return next((rules for rules in group.rules if protocol_of(rules) == group.protocol), None)


def why(ours: Mapping[str, str], group: Group) -> str:
    """Return why a group, as Kafka describes it, refuses a worker with these rules."""
    way = (
        "This worker reads and writes nothing until it joins. Give it the others' settings. Or, to change theirs, "
        "stop them all: this one joins when the last has left"
    )
    if group.protocol == EARLIER:
        return f"its {group.members} members run an earlier version of Ratchet, which does not say by what rules. {way}"
    theirs = _of_members(group)
    if theirs is None:
        return f"its members use other settings than this worker. {way}"
    differences = [
        f"{name} is {_shown(theirs.get(name))} there and {_shown(ours.get(name))} here"
        for name in sorted(theirs.keys() | ours.keys())
        if theirs.get(name) != ours.get(name)
    ]
    return f"its members use other settings: {'; '.join(differences) or 'none of them now'}. {way}"


def _shown(value: str | None) -> str:
    return "not set" if value is None else repr(value[:SHOWN])
