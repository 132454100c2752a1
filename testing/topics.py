"""Topics and consumer group of a program in Kafka, for the test kit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.group import LeaveGroupRequest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kafka_ratchet.errors import FaultRunFailed, RatchetError
from kafka_ratchet.producers import ask_offsets
from kafka_ratchet.tables.values.partition import PartitionTables
from kafka_ratchet.tables.values.table import Table
from kafka_ratchet.tables.values.table_partition import PREFIX, nothing, nowhere
from kafka_ratchet.testing.program_run import LIMIT, contents_of
from kafka_ratchet.topic_log.clients import consumer, offset_ranges, partition_count
from kafka_ratchet.topic_log.reading import records
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.rows import encode_pairs

PATIENCE_S: Final = 120.0
"""Maximum seconds to wait for anything, far beyond any normal duration."""
ANSWER_S: Final = 60.0
"""Seconds to wait for one answer of a broker."""

NOT_YET: Final = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}
"""Error codes of a broker not ready yet to coordinate a group. The first such request creates `__consumer_offsets`."""

Place = tuple[str, int]
"""Topic and partition number."""


def _consumer(bootstrap: str, group: str, **options: Any) -> Consumer:
    return Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, **options})


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    return sorted(consumer.list_topics(topic, ANSWER_S).topics[topic].partitions)


def ends(bootstrap: str, topic: str) -> dict[Place, int]:
    """Return the end offset of each partition of a topic; partitions without any record so far are left out."""
    consumer = _consumer(bootstrap, "testing")
    try:
        found = {
            (topic, number): _end(consumer, TopicPartition(topic, number)) for number in _partitions(consumer, topic)
        }
    finally:
        consumer.close()
    return {place: end for place, end in found.items() if end}


def _end(consumer: Consumer, place: TopicPartition) -> int:
    """Request the end offset of a partition until its leader answers."""

    def ask(_: list[int]) -> dict[int, int]:
        return {place.partition: consumer.get_watermark_offsets(place, ANSWER_S)[1]}

    found, failures = ask_offsets(ask, [place.partition], lambda _: PATIENCE_S)
    if failures:
        raise FaultRunFailed(f"{place.topic}, partition {place.partition}: no leader has returned its end offset")
    return found[place.partition]


def committed_offsets(bootstrap: str, group: str, places: Collection[Place]) -> dict[Place, int]:
    """Return a group's committed offsets of some partitions.

    The request has the isolation level of uncommitted data. With the other level, Kafka would delay the answer while a
    killed worker's transaction is open (KIP-447, require_stable). Partitions without an offset, or without an answer,
    are left out.
    """
    consumer = _consumer(bootstrap, group, **{"isolation.level": "read_uncommitted"})
    try:
        found = consumer.committed([TopicPartition(*place) for place in places], timeout=ANSWER_S) if places else []
    except KafkaException as error:
        if error.args[0].code() not in NOT_YET:
            raise
        return {}
    finally:
        consumer.close()
    return {(place.topic, place.partition): place.offset for place in found if place.offset >= 0}


def read_committed(bootstrap: str, topic: str, starts: Mapping[Place, int] | None = None) -> dict[int, list[Message]]:
    """Return all committed records of a topic by partition, in order.

    Args:
        bootstrap: host:port of a Kafka.
        topic: name of the topic.
        starts: first offset to read, by topic and partition; a partition missing here is read from its first record.

    Raises:
        FaultRunFailed: the topic cannot be read to its end.
    """
    begins, found = starts or {}, dict[int, list[Message]]()
    try:
        with consumer({"bootstrap.servers": bootstrap}, f"read-{topic}") as asked:
            for number, (first, end) in enumerate(offset_ranges(asked, topic, partition_count(asked, topic))):
                begin = begins.get((topic, number), first)
                found[number] = list(records(asked, topic, number, begin, timeout_s=PATIENCE_S, end=end))
    except RatchetError as error:
        raise FaultRunFailed(f"{topic}: cannot be read to its end: {error}") from error
    return found


def table_contents(tables: Sequence[Table], changelog: Sequence[Message]) -> dict[str, dict[Any, Any]]:
    """Return the contents of tables, by name, after all entries of a changelog partition."""
    partition = PartitionTables(nowhere, nothing)
    for table in tables:
        partition.add(table.codec, table.default, table.kind)
    newest = {each.key(): each.value() for each in changelog if (each.key() or b"").startswith(PREFIX)}
    for encoded in encode_pairs(list(newest.items()), LIMIT) if newest else ():
        partition.apply(read_chunk("changelog", 0, 0, bytes(encoded.seal(1, 0, 0)), []))
    return {table.name: contents_of(table, partition) for table in tables}


async def leave_group(bootstrap: str, group: str, client: str) -> None:
    """Remove the members with this client id from a consumer group, as if they had left it."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        members = (await admin.describe_consumer_groups([group]))[0].groups[0][5]
        coordinator = await admin.find_coordinator(group)
        for member, member_client, *_ in members:
            if member_client.startswith(client):
                await admin._client.send(coordinator, LeaveGroupRequest(group, member))  # noqa: SLF001 - no call for it
    finally:
        await admin.close()
