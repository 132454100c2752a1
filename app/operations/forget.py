"""`ratchet forget`: writes a request to forget an identity, and waits until every partition has applied it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Final

import msgspec
from confluent_kafka import Consumer, KafkaException, TopicPartition

from kafka_ratchet.app.names import changelog_name
from kafka_ratchet.app.operations.policy_topic import write_record
from kafka_ratchet.app.repartition import RepartitionSettings, arrivals_of
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.cluster_view import lookup
from kafka_ratchet.app.status.group import Group, describe_group
from kafka_ratchet.app.status.model import Lookup
from kafka_ratchet.app.worker.claims import now, this_user
from kafka_ratchet.app.worker.forget_requests import MAX_REASON, request_key, request_value
from kafka_ratchet.app.worker.ownership import StreamOwnership, names_of
from kafka_ratchet.errors import RatchetError, SettingsError, TopicMissing
from kafka_ratchet.producers import admin_client, explained
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.tables.edits import EDIT, Edit
from kafka_ratchet.topic_log.clients import OffsetRange, consumer, offset_ranges, partition_counts
from kafka_ratchet.transport.policy import ForgetRequest

POLL_S: Final = 0.25


class PartitionEffect(msgspec.Struct, frozen=True):
    """Effect of a request to forget in one partition.

    before: last sequence of the identity before the request was applied; None: there was none.
    after: last sequence of the identity after the request was applied; None: there was none.
    position: first input offset that the request applies to.
    """

    partition: int
    before: int | None
    after: int | None
    position: int


class RequestState(msgspec.Struct, frozen=True):
    """State of a request to forget an identity.

    pending: partitions where the request is not applied yet.
    members: number of workers in the group; None: unknown, for the reason in `problem`.
    ends: end offset of each input partition at the time of the request. Workers judge the records before this offset,
    and then apply the request.
    """

    stream: str
    request: str
    identity_hex: str
    above: int | None
    applied: list[PartitionEffect]
    pending: list[int]
    members: int | None
    ends: dict[int, int]
    problem: str = ""


class ForgetRequests:
    """Maker of an operator's requests to forget identities of one stream, with a connection to Kafka."""

    def __init__(self, settings: Settings, bootstrap: str, name: str) -> None:
        """Check the stream's topics and their owner.

        Raises:
            TopicMissing: the input or the changelog does not exist.
            TopicTaken: the changelog belongs to another application.
            BrokerUnavailable: Kafka did not answer.
        """
        self._settings, self._bootstrap, self._name = settings, bootstrap, name
        self._options = {"bootstrap.servers": bootstrap, **settings.kafka}
        found = partition_counts(admin_client(self._options), names_of(settings, name))
        ownership = StreamOwnership(settings, bootstrap, name, found)
        self._changelog = changelog_name(settings.app, name)
        ownership.refuse_others(self._changelog)
        for topic in (settings.streams[name].input, self._changelog):
            if topic not in found:
                raise TopicMissing(
                    f"stream {name}: the topic {topic} does not exist, so there is nothing to forget. Correct the name "
                    "of the stream, the application or the topic in the settings"
                )
        self.partitions = found[self._changelog]
        self._input_id = ownership.id_of(settings.streams[name].input)
        other = settings.streams.get(arrivals_of(name))
        self._arrivals_id = ownership.id_of(other.input) if isinstance(other, RepartitionSettings) else ""

    def request(
        self, identity: bytes, above: int | None, reason: str, partition: int | None = None
    ) -> tuple[ForgetRequest, list[int]]:
        """Return a request to forget, and the partitions that must apply it. Nothing is written yet.

        Raises:
            SettingsError: identity, partition or reason is missing or invalid.
        """
        kind = self._settings.streams[self._name].identity
        if kind == Identity.PARTITION and (identity or partition is None):
            raise SettingsError(
                f'stream {self._name!r} has identity = "partition": each partition has one last sequence, and no other '
                "identity. Give --partition, without --identity"
            )
        if not identity and kind not in (Identity.PARTITION, Identity.KEY):
            raise SettingsError(
                f"the identity of stream {self._name!r} to forget is missing. Give --identity or --identity-hex"
            )
        if not reason.strip() or len(reason) > MAX_REASON:
            raise SettingsError(
                f"--reason: give a reason of at most {MAX_REASON:,} characters; it is stored in the changelog"
            )
        if partition is not None and partition >= self.partitions:
            raise SettingsError(
                f"--partition {partition}: the input of stream {self._name!r} has partitions 0 to "
                f"{self.partitions - 1}. Name one of these"
            )
        asked = ForgetRequest(secrets.token_hex(8), identity, above, now(), this_user(), reason.strip(), partition)
        return asked, list(range(self.partitions)) if partition is None else [partition]

    def look(self, identity: bytes) -> Lookup:
        """Return the identity's last sequences, as the workers answer.

        Raises:
            SettingsError: a worker of a version that ignores requests to forget is running.
        """
        asked = asyncio.run(lookup(self._bootstrap, self._settings, self._name, identity, None))
        if asked.cannot_forget is not msgspec.UNSET:
            raise SettingsError(
                f"workers of an earlier Ratchet would ignore the request: {', '.join(asked.cannot_forget)}. Update "
                "them first"
            )
        return asked

    def write(self, request: ForgetRequest, partitions: Sequence[int], wait_s: float) -> RequestState:
        """Write the request, and wait until the given partitions have applied it.

        It does not wait while no worker runs; workers that start later apply the request. After the write no failure
        of Kafka and no Ctrl-C raises an error: the result then lists the partitions as pending.

        Raises:
            SettingsError: records still wait to be copied to the partition of their identity; nothing is written.
            BrokerUnavailable: Kafka did not accept the request. The request may or may not be in the topic.
        """
        deadline = time.monotonic() + wait_s
        with consumer(self._options, "ratchet-forget", committed=False) as open_ones:
            self._wait_for_arrivals(open_ones, deadline)
            held = self._held(open_ones, self._settings.streams[self._name].input)
        request = request._replace(input=self._input_id, ends=tuple(each.end for each in held))
        with consumer(self._options, "ratchet-forget") as asked:
            ends = offset_ranges(asked, self._changelog, self.partitions)
            key = request_key(self._name, request.id)
            write_record(self._settings, self._bootstrap, key, request_value(request), "the request")
            found, members, problem = dict[int, Edit](), None, ""
            try:
                asked.assign([TopicPartition(self._changelog, number, ends[number].end) for number in partitions])
                members = asyncio.run(describe_group(self._bootstrap, self._settings)).members
                self._read(asked, request.id, set(partitions), deadline if members else 0.0, found)
            except KeyboardInterrupt:
                problem = "interrupted"
            except (RatchetError, KafkaException) as failure:
                is_kafka = isinstance(failure, KafkaException)
                problem = (
                    f"{self._changelog}: cannot be read: {explained(failure.args[0])}" if is_kafka else str(failure)
                )
        applied = [
            PartitionEffect(number, _known(edit.before), _known(edit.after), edit.position)
            for number, edit in sorted(found.items())
        ]
        pending = sorted(set(partitions) - found.keys())
        until = {number: request.holds_from(number, self._input_id) for number in partitions}
        return RequestState(
            self._name, request.id, request.identity.hex(), request.above, applied, pending, members, until, problem
        )

    def _wait_for_arrivals(self, asked: Consumer, deadline: float) -> None:
        """Wait until all present input records are copied to the partition of their identity (`repartition_by`).

        For a stream without `repartition_by`, it returns at once.
        """
        other = self._settings.streams.get(arrivals_of(self._name))
        if not isinstance(other, RepartitionSettings):
            return
        held = self._held(asked, other.input)
        while True:
            group = asyncio.run(describe_group(self._bootstrap, self._settings))
            read = [
                _sent_to(group, (other.input, number), self._arrivals_id, each.first)
                for number, each in enumerate(held)
            ]
            behind = [number for number, each in enumerate(held) if read[number] < each.end]
            if not behind:
                return
            if not group.members or time.monotonic() >= deadline:
                number = behind[0]
                raise SettingsError(
                    f"{other.input}, partition {number}: offsets {read[number]} to {held[number].end - 1} are not yet "
                    f"sent to the partitions of their identities (stream {arrivals_of(self._name)}; {group.members} "
                    "workers). Nothing was written: these records would be judged after their identity is forgotten, "
                    "and so count as new. Run the command again once they are sent"
                )
            time.sleep(POLL_S)

    def _held(self, asked: Consumer, topic: str) -> list[OffsetRange]:
        counts = partition_counts(admin_client(self._options), [topic])
        return offset_ranges(asked, topic, counts.get(topic, 0))

    def _read(
        self, asked: Consumer, request: str, partitions: set[int], deadline: float, found: dict[int, Edit]
    ) -> None:
        """Add the edits of the applied request to `found`, until the deadline."""
        while found.keys() < partitions and time.monotonic() < deadline:
            message = asked.poll(POLL_S)
            key = message.key() if message is not None and message.error() is None else None
            if key is not None and key.startswith(EDIT):
                _, edit = Edit.unpack(key, message.value() or b"")
                if edit.id == request:
                    found[message.partition()] = edit


def _sent_to(group: Group, where: tuple[str, int], topic_id: str, first: int) -> int:
    """Return the first input offset still to be copied to the partition of its identity (`repartition_by`).

    Args:
        group: group of the workers, with the committed offsets.
        where: topic and partition of the input.
        topic_id: id of the input topic; an offset committed for an earlier topic of the same name does not count.
        first: first offset that the partition holds; returned if no offset is committed.
    """
    is_of_another = group.topic_ids.get(where, topic_id) != topic_id
    return first if is_of_another else group.committed.get(where, first)


def is_unknown(looked: Lookup, partition: int | None) -> bool:
    """Return True if workers answered for all partitions, and none has a last sequence of the identity.

    partition: the only partition to check; None: all partitions
    """
    unasked = [number for number in looked.not_asked if partition in (None, number)]
    known = [row for row in looked.partitions if partition in (None, row.partition)]
    was_asked = bool(looked.asked)  # no partition is known if Kafka did not answer
    return was_asked and not unasked and all(row.persisted is None and row.pushed is None for row in known)


def _known(sequence: int) -> int | None:
    return sequence if sequence >= 0 else None
