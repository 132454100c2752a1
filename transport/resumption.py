"""Position at which a lane resumes: group, changelog and topics have to agree on it (docs/decisions/0025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import structlog

from kafka_ratchet.errors import ChangelogLost, ForeignOffset, OwnerDiffers
from kafka_ratchet.transport.client.cluster import CommittedPosition
from kafka_ratchet.transport.client.errors import replaced
from kafka_ratchet.transport.client.group_log import Commit
from kafka_ratchet.transport.client.topic_id import NO_EPOCH
from kafka_ratchet.transport.lane_spec import LaneSpec
from kafka_ratchet.transport.owner import INPUT, DuplicatesFrom, JudgingFrom, Owner, Topic
from kafka_ratchet.transport.partition_state import PartitionState
from kafka_ratchet.transport.transactions.requests import NEWER, OURS

log = structlog.get_logger(__name__)

UNKNOWN: Final = (
    "client and time are not known, because this user may not read __consumer_offsets or that topic lacks the commit"
)


def agreed_owner(spec: LaneSpec, state: PartitionState, topics: Mapping[str, Topic], truncated: str) -> Owner:
    """Return the owner entry to write, after checking the changelog's entry against the present topics and rule.

    Args:
        spec: settings of the lane.
        state: table partition, replayed to the changelog's end.
        topics: present name and id of each topic, by its role in the stream (`INPUT`, ...).
        truncated: loss found in the input; "" without one.

    Raises:
        TopicReplaced: the changelog has no owner entry, and a topic is not the one that the stream claimed.
        OwnerDiffers: the changelog's entry differs from the present topics, rule or application.
    """
    now = Owner(spec.app, spec.stream, dict(spec.rule), dict(topics))
    if (before := state.owner) is None:
        for topic in topics.values():
            if (claimed := spec.claimed.get(topic.name, topic.id)) != topic.id:
                raise replaced(topic.name, claimed, topic.id)
        return now
    before = before.comparable(now, has_processed=state.has_processed)
    now = msgspec.structs.replace(
        now,
        decisions=before.decisions,
        broken=before.broken or truncated,
        duplicates=before.duplicates,
        judging=before.judging,
    )
    if differences := before.differences(now):
        raise OwnerDiffers(
            f"{state.changelog}, partition {spec.partition}: {'; '.join(differences)}. Its offsets and last "
            f"sequences do not apply to the present topics and rule: continuing with them would lose or double "
            f"records. Undo the change, or decide with `ratchet resume --stream {spec.stream} --partition "
            f"{spec.partition}`; see docs/reference/halted.md"
        )
    return now


def begins_anew(state: PartitionState, topic: str) -> bool:
    """Return True if the changelog's position is one of an earlier input without processed records.

    topic: name of the present input
    """
    if state.owner is None or state.has_processed or state.owner.decisions:
        return False
    before = state.owner.topics.get(INPUT)
    return before is not None and before.name != topic


def known_position(state: PartitionState, topic: str) -> int | None:
    """Return the changelog's next offset of the input; None without one.

    topic: name of the present input
    """
    return None if begins_anew(state, topic) else state.input_position


def with_duplicates(owner: Owner, topic: Topic | None, position: int) -> Owner:
    """Return the owner entry, extended by the topic of dropped records from this position on.

    Args:
        owner: owner entry from `agreed_owner`
        topic: topic of dropped records from now on; None: dropped records are only counted
        position: the next input offset
    """
    last = owner.duplicates[-1] if owner.duplicates else None
    if topic != (last.topic if last else None) or (last is not None and position < last.start):
        kept = tuple(each for each in owner.duplicates if each.start < position)
        duplicates = (*kept, DuplicatesFrom(position, topic))
        owner = msgspec.structs.replace(owner, duplicates=duplicates)
    return owner


def with_judging(owner: Owner, settings: Mapping[str, str], position: int) -> Owner:
    """Return the owner entry with these deduplication settings for the records from this position on.

    Args:
        owner: owner entry from `agreed_owner`
        settings: settings that differ from their defaults
        position: the next input offset
    """
    last = owner.judging[-1] if owner.judging else None
    if dict(settings) != (last.settings if last else {}) or (last is not None and position < last.start):
        kept = tuple(each for each in owner.judging if each.start < position)
        owner = msgspec.structs.replace(owner, judging=(*kept, JudgingFrom(position, dict(settings))))
    return owner


def foreign_offset(
    spec: LaneSpec, known: int | None, committed: CommittedPosition, commit: Commit | None = None
) -> str:
    """Return the error message for an offset that another client has committed.

    Args:
        spec: settings of the lane.
        known: input position of the changelog; None without one.
        committed: committed offset of the group, with that client's metadata.
        commit: the same commit as recorded in `__consumer_offsets`; None: unknown.
    """
    command = f"`ratchet resume --stream {spec.stream} --partition {spec.partition}"
    text = (
        f"{spec.topic}, partition {spec.partition}: another client has committed offset {committed.offset} in the "
        f"group {spec.group} (metadata {committed.metadata[:80]!r}; {commit or UNKNOWN}); "
    )
    if known is None:
        text += "the changelog has no position, so every record below that offset may never have been judged. "
        return f"{text}Stop that client, then decide with {command} --from earliest` or `--from {committed.offset}`"
    text += f"the changelog's own position is {known}. "
    if committed.offset > known:
        text += f"Offsets {known} to {committed.offset - 1}, {committed.offset - known} of them, were never judged. "
    elif committed.offset < known:
        text += f"From there {known - committed.offset} offsets would be read again. "
    text += f"Stop that client, then {command}` restores {known}, "
    return f"{text}and `--from {committed.offset}` accepts its offset"


def may_be_unread(state: PartitionState, topic: str, committed: CommittedPosition | None) -> bool:
    """Return True if the committed offset may be one of a first start, without a record read.

    Streams share the offsets of their application. So another stream may have committed it, or this stream before a
    change of its input.

    topic: name of the present input
    """
    return committed is not None and (state.owner is None or begins_anew(state, topic))


def agreed_position(
    spec: LaneSpec,
    state: PartitionState,
    committed: CommittedPosition | None,
    input_id: str,
    first: int | None = None,
) -> int | None:
    """Return the next input offset; None for a partition unknown to group and changelog.

    Args:
        spec: settings of the lane.
        state: table partition, replayed to the changelog's end.
        committed: committed offset of the group.
        input_id: id of the present input topic, as text.
        first: earliest offset of the input, if the committed one `may_be_unread`; None: unknown.

    Raises:
        TopicReplaced: the offset belongs to another topic of the same name.
        ChangelogLost: the group has committed more than the changelog contains.
        OwnerDiffers: a newer version has committed the offset.
        ForeignOffset: another client has committed the offset.
    """
    known = known_position(state, spec.topic)
    here = log.bind(topic=spec.topic, partition=spec.partition)
    if committed is None:
        if known is not None:
            # Kafka forgets offsets of idle groups after offsets.retention.minutes; the changelog does not.
            here.warning("the group has no committed offset; going on from the changelog's position", offset=known)
        return known
    if (found := OURS.fullmatch(committed.metadata)) is None:
        if (newer := NEWER.fullmatch(committed.metadata)) is not None:
            raise OwnerDiffers(
                f"{spec.topic}, partition {spec.partition}: the group {spec.group} has an offset committed in "
                f"format {newer['format']} by a newer Ratchet, and this version reads format 1. Run the newer "
                "version"
            )
        raise ForeignOffset(foreign_offset(spec, known, committed))
    if found["topic"] != input_id:
        raise replaced(spec.topic, found["topic"], input_id)
    if known is None and first is not None and committed.offset <= first and int(found["epoch"]) == NO_EPOCH:
        # A first start has committed it, and nothing is skipped. Records deleted since then are noticed at this offset.
        return committed.offset
    # Otherwise both were committed in one transaction, and if they differ one of them has changed.
    if known is None or known < committed.offset:
        start = "earliest" if known is None else str(known)
        raise ChangelogLost(
            f"{state.changelog}, partition {spec.partition}: the changelog covers {spec.topic} below offset "
            f"{known or 0}, but the group {spec.group} has committed offset {committed.offset}. If the changelog was "
            "deleted and created again, or lost its end, restore the changelog: going on would let duplicates pass. If "
            "another stream of this application has read the topic before, or another client has committed a copy of "
            "Ratchet's metadata, this stream never judged the records between these offsets, and `ratchet resume "
            f"--stream {spec.stream} --partition {spec.partition} --from {start}` reads them. See "
            "docs/reference/halted.md"
        )
    if known > committed.offset:
        # For a moment after an unclean restart, while its coordinator still reads its log, Kafka 4.3 answers with
        # offsets of long ago (tests/faults/test_short_form.py, broker restarts). Invalid records would become dead
        # letters once more, and the totals would count twice.
        here.warning("committed offset is older than the changelog", offset=committed.offset, changelog=known)
    return known
