"""Settings on which all workers of a group must agree, and the message to a worker that disagrees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kafka_ratchet.agents.program import App
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.status.group import Group, describe_group, sentence_of_strangers
from kafka_ratchet.errors import BrokerUnavailable
from kafka_ratchet.transport.assignor import protocol_of

PLACED: Final = ("input", "output", "dead_letters")
"""Settings that decide the topics of a stream's records. Workers must agree on them, as on the stream's rule."""
PLACED_IF_SET: Final = ("forward", "duplicates", "duplicates_keep", "event_id")
"""Settings like `PLACED` that count only if they differ from their default.

Earlier versions lack these settings. Their workers can share a group with workers of this version until a stream uses
one of them.
"""
EARLIER: Final = "faust"
"""Name of the group protocol of earlier versions, which did not contain rules."""
SHOWN: Final = 200
"""Maximum number of characters of another member's setting in an error text: a member may send any text."""
WAY: Final = (
    "Until it joins, this worker gets no partition; partitions that it still has go on until a member takes them over. "
    "Give it the members' settings. Or, to change those, stop all members: this worker joins when the last has left"
)


def rules_of(settings: Settings, program: App | None = None) -> dict[str, str]:
    """Return the settings and agents on which all members of the group must agree, by name."""
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
    """Ask Kafka why the group refuses a worker with these settings; return "" without a known reason."""
    try:
        group = await describe_group(bootstrap, settings)
    except BrokerUnavailable as error:
        return f"its members use other settings than this worker; which ones cannot be read: {error}"
    if sentence := sentence_of_strangers(bootstrap, settings.app, group):
        return sentence
    ours = rules_of(settings, program)
    return f"{why(ours, group)}. {WAY}" if group.members and group.protocol != protocol_of(ours) else ""


def works_otherwise(ours: Mapping[str, str], group: Group) -> bool:
    """Return True if the group's members use other values for the settings in `ours`.

    Agents and internal streams that only the members have are ignored.

    ours: this worker's rules, from `rules_of`
    """
    if not (group.members and group.protocol) or group.protocol == protocol_of(ours):
        return False
    theirs = _members_rules(group)
    return theirs is None or any(theirs.get(name) != value for name, value in ours.items())


def _members_rules(group: Group) -> dict[str, str] | None:
    """Return the rules on which the members have agreed; None if no member published them."""
    return next((rules for rules in group.rules if protocol_of(rules) == group.protocol), None)


def why(ours: Mapping[str, str], group: Group) -> str:
    """Return the clause that names the differences between our rules and a group's."""
    if group.protocol == EARLIER:
        return f"its {group.members} members run an earlier version of Ratchet, which does not show its rules"
    theirs = _members_rules(group)
    if theirs is None:
        return "its members use other settings, and none shows which"
    differences = [
        f"{name} is {_shown(theirs.get(name))} there and {_shown(ours.get(name))} here"
        for name in sorted(theirs.keys() | ours.keys())
        if theirs.get(name) != ours.get(name)
    ]
    return f"its members use other settings: {'; '.join(differences) or 'none differs any more'}"


def _shown(value: str | None) -> str:
    return "not set" if value is None else repr(value[:SHOWN])
