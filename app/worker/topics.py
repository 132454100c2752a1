"""The topics of a stream: there, of one partition count, and how large their batches may be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from kafka_ratchet.agents.program import App
from kafka_ratchet.app.names import OWNERS_TOPIC, changelog_name, policy_topic
from kafka_ratchet.app.repartition import Arrivals
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.status.inputs import refuse_missing
from kafka_ratchet.app.worker.ownership import StreamOwnership, names_of
from kafka_ratchet.errors import BrokerUnavailable, PartitionsDiffer, TopicError
from kafka_ratchet.producers import admin_client, explained, made_topic, no_broker_is_let_in
from kafka_ratchet.tables.eviction import NULLS_LAST_S
from kafka_ratchet.topic_log.clients import ADMIN_TIMEOUT_S, NEW_TOPIC_S, partition_counts
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.topic_id import TopicState

log = structlog.get_logger(__name__)

DEAD_LETTER_ROOM: Final = 64 * 1024
"""Bytes that dead letters and duplicates may add to their originals: reason and origin."""
COMPACTED: Final = {
    "cleanup.policy": "compact",
    # Segments roll at least once a day, so that the cleaner gets at them: it never touches the active one.
    "segment.ms": str(24 * 3600 * 1000),
    "segment.bytes": str(256 << 20),
    # Stamped by the broker: it would refuse entries of a worker with a clock more than an hour ahead
    # (KIP-937).
    "message.timestamp.type": "LogAppendTime",
    # Set, and not left to the broker's default: a worker after an absence must still meet the nulls.
    "delete.retention.ms": str(NULLS_LAST_S * 1000),
}


NOT_COMPACTED: Final = {
    "cleanup.policy": "delete",
    # Records keep the timestamps of the events, which may be years old: by a time, they would be deleted unread.
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
}
"""Configuration of the topic that an internal stream reads."""


class InternalInput(NamedTuple):
    """The topic of an internal stream, where it has to be created. limit: bytes, max.message.bytes."""

    partitions: int
    limit: int


class StreamTopics(NamedTuple):
    """A stream's topics as they are. The limits are max.message.bytes."""

    changelog: str
    partitions: int
    output_limit: int
    dead_letters_limit: int
    changelog_limit: int
    claimed: Mapping[str, str] = MappingProxyType({})
    """Id at the claim, by topic that this stream alone writes."""
    duplicates_limit: int = 0
    """0 where dropped records are not kept."""
    sent: int = 0
    """Partitions of the output where records go there by their identity; else 0."""


def prepare(
    bootstrap: str, settings: Settings, name: str, stream: StreamSettings, internal: InternalInput | None = None
) -> StreamTopics:
    """Create missing topics of a stream, and check that all fit each other.

    Args:
        bootstrap: host:port[,host:port].
        settings: all settings.
        name: name of the stream.
        stream: its settings.
        internal: form of its created input; None: it is an input like others.

    Raises:
        TopicMissing: a topic of the stream is missing, and `create_topics` is off or the changelog knows of it.
        TopicTaken: another application writes a topic of this stream.
        PartitionsDiffer: output, dead letters, duplicates or changelog have other partition counts than the input.
        TopicError: a topic cannot be created, or the changelog is not compacted only.
        BrokerUnavailable: Kafka has gone away, or did not answer.
    """
    admin = admin_client({"bootstrap.servers": bootstrap, **settings.kafka})
    found = partition_counts(admin, names_of(settings, name))
    ownership = StreamOwnership(settings, bootstrap, name, found)
    changelog = changelog_name(settings.app, name)
    ownership.check(changelog)
    if not settings.creates_topics(name):
        internals = (
            {stream.input} if internal else {stream.output, stream.dead_letters} if isinstance(stream, Arrivals) else {}
        )
        refuse_missing(admin, name, stream, {*found, *internals})
    partitions = found.get(stream.input, internal.partitions if internal else stream.partitions)
    if stream.input not in found:
        config = NOT_COMPACTED | {"max.message.bytes": str(internal.limit)} if internal else {}
        create(admin, stream.input, partitions, stream.replication, config)
    elif internal and (policy := config_of(admin, stream.input)["cleanup.policy"]) != "delete":
        raise TopicError(
            f"{stream.input}: cleanup.policy is {policy}, so records would disappear before stream {name} has read "
            "them. Set cleanup.policy=delete on the topic"
        )
    input_limit = limit_of(admin, stream.input)
    wanted = {
        stream.output: {"max.message.bytes": str(input_limit)},
        stream.dead_letters: {"max.message.bytes": str(input_limit + DEAD_LETTER_ROOM)},
        changelog: COMPACTED,
    }
    if stream.duplicates is not None:
        wanted[stream.duplicates] = wanted[stream.dead_letters]
    sent = 0
    if isinstance(stream, Arrivals):
        sent = _prepare_sent(admin, stream, partitions, found, wanted.pop(stream.output))
    for topic, config in wanted.items():
        if topic not in found:
            create(admin, topic, partitions, stream.replication, config)
        elif found[topic] != partitions:
            raise PartitionsDiffer(
                f"stream {name}: input {stream.input} has {partitions} partitions, {topic} has {found[topic]}. "
                "A record keeps its partition on the way, so the counts must be equal: name topics with as "
                "many, or let Ratchet create them. For an input with added partitions, see docs/guide/partitions.md"
            )
    config = _only_compacted(
        admin,
        changelog,
        "the last sequences of long inactive identities, and their duplicates would pass",
    )
    _check_clock(changelog, config)
    prepare_owners(admin, settings)
    if not isinstance(stream, Arrivals):  # which sends records on by their identity
        ownership.refuse_added(changelog, partitions)
    claimed = ownership.claim(changelog, partitions)
    output, dead_letters, entries = (
        limit_of(admin, topic) for topic in (stream.output, stream.dead_letters, changelog)
    )
    duplicates = limit_of(admin, stream.duplicates) if stream.duplicates is not None else 0
    return StreamTopics(changelog, partitions, output, dead_letters, entries, claimed, duplicates, sent)


def _prepare_sent(
    admin: AdminClient, stream: Arrivals, partitions: int, found: Mapping[str, int], config: Mapping[str, str]
) -> int:
    """Create the topic of records sent by identity, where it is missing; return its partition count."""
    sent = found.get(stream.output, stream.to_partitions or partitions)
    if sent < partitions:
        # A lane writes to the partition of its own number first of all, so fewer would not help.
        raise PartitionsDiffer(
            f"stream {stream.of}: {stream.output} has {sent} partitions or is to have them, and input {stream.input} "
            f"has {partitions}. Records are sent to as many partitions as the input has, or more: set "
            f"streams.{stream.of}.partitions, and delete {stream.output} if it was never used"
        )
    if stream.output not in found:
        create(admin, stream.output, sent, stream.replication, {**NOT_COMPACTED, **config})
    return sent


def prepare_owners(admin: AdminClient, settings: Settings) -> None:
    """Create the topic of claims if it is missing, and check it.

    Raises:
        TopicError: it cannot be created, has more than one partition, or is not compacted only.
        BrokerUnavailable: Kafka has gone away, or did not answer.
    """
    prepare_single(admin, settings, OWNERS_TOPIC, "who writes which topic")


def prepare_policy(bootstrap: str, settings: Settings) -> None:
    """Create the policy topic if it is missing, and check it.

    Raises:
        TopicError: it cannot be created, has more than one partition, or is not compacted only.
        BrokerUnavailable: Kafka has gone away, or did not answer.
    """
    admin = admin_client({"bootstrap.servers": bootstrap, **settings.kafka})
    prepare_single(admin, settings, policy_topic(settings.app), "old policies")


def prepare_single(admin: AdminClient, settings: Settings, topic: str, loses: str) -> None:
    """Create a compacted topic of one partition if it is missing, and check it. loses: what retention would delete.

    Raises:
        TopicError: as `prepare_owners`.
        BrokerUnavailable: likewise.
    """
    found = partition_counts(admin, [topic])
    if topic not in found:
        replication = max((stream.replication for stream in settings.streams.values()), default=1)
        create(admin, topic, 1, replication, COMPACTED)
    elif found[topic] != 1:
        raise PartitionsDiffer(
            f"{topic}: has {found[topic]} partitions. Its records have to be in one order, so it must have one: delete "
            "the topic while no worker runs, and write them again"
        )
    _only_compacted(admin, topic, loses)


def _only_compacted(admin: AdminClient, topic: str, loses: str) -> dict[str, str]:
    config = config_of(admin, topic, NEW_TOPIC_S)
    policy = config["cleanup.policy"]
    if policy != "compact":
        raise TopicError(
            f"{topic}: cleanup.policy is {policy}, so retention would delete {loses}. "
            "Set cleanup.policy=compact on the topic"
        )
    least_ms = NULLS_LAST_S * 1000
    if int(config["delete.retention.ms"]) < least_ms:
        raise TopicError(
            f"{topic}: delete.retention.ms is {config['delete.retention.ms']}, so a worker after an absence may miss "
            f"deletions and go on with deleted entries. Set delete.retention.ms={least_ms} on the topic, or more"
        )
    return config


def _check_clock(changelog: str, config: Mapping[str, str]) -> None:
    """Refuse a changelog with entries stamped by workers."""
    if config["message.timestamp.type"] != "LogAppendTime":
        raise TopicError(
            f"{changelog}: message.timestamp.type is {config['message.timestamp.type']}, so the clocks of workers "
            "would say how old their stores are and which identities are active. A wrong one could bring back "
            "deleted entries. Set message.timestamp.type=LogAppendTime on the topic"
        )


def create(admin: AdminClient, topic: str, partitions: int, replication: int, config: Mapping[str, str]) -> None:
    """Create a topic; another worker doing the same at the same time does no harm.

    Raises:
        TopicError: Kafka refuses.
        BrokerUnavailable: it has gone away, or did not answer.
    """
    new = NewTopic(topic, num_partitions=partitions, replication_factor=replication, config=dict(config))
    limit_s = ADMIN_TIMEOUT_S
    try:
        if made_topic(admin, new, limit_s, operation_timeout=limit_s, request_timeout=limit_s):
            log.info("topic created", topic=topic, partitions=partitions)
    except KafkaException as error:
        raise _named(f"topic {topic} cannot be created", error) from None


def config_of(admin: AdminClient, topic: str, settle_s: float = ADMIN_TIMEOUT_S) -> dict[str, str]:
    """Return a topic's effective configuration.

    Args:
        admin: connected
        topic: name
        settle_s: how long it may be unknown, as a new one is

    Raises:
        TopicError: it cannot be read.
        BrokerUnavailable: Kafka has gone away, or did not answer.
    """
    resource = ConfigResource(ResourceType.TOPIC, topic)
    began = time.monotonic()
    while True:
        try:
            # The client's own limit, which comes as a KafkaException: the future's would be a bare TimeoutError.
            asked = admin.describe_configs([resource], request_timeout=ADMIN_TIMEOUT_S)[resource]
            entries: Mapping[str, Any] = asked.result()
            return {name: entry.value for name, entry in entries.items()}
        except KafkaException as error:
            # Not every broker knows a new topic at once.
            missing = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            waited = time.monotonic() - began
            if missing and waited > settle_s:
                raise TopicError(
                    f"topic {topic}: no broker knows it {waited:.0f} s after it was created or listed. "
                    "Look into the brokers' logs whether they are still making its partitions, and start the worker "
                    "again"
                ) from None
            if not missing:
                raise _named(f"topic {topic}: its configuration cannot be read", error) from None
            time.sleep(0.1)


def _named(what: str, error: KafkaException) -> TopicError | BrokerUnavailable:
    reason: KafkaError = error.args[0]
    # librdkafka's own codes are all below 0 and are about the way to the broker.
    away = reason.code() < 0 or reason.code() in (KafkaError.NOT_CONTROLLER, KafkaError.REQUEST_TIMED_OUT)
    away = away or no_broker_is_let_in(reason)
    return (BrokerUnavailable if away else TopicError)(f"{what}: {explained(reason)}")


def limit_of(admin: AdminClient, topic: str) -> int:
    """Return the `max.message.bytes` of a topic, which may be new."""
    return int(config_of(admin, topic, NEW_TOPIC_S)["max.message.bytes"])


FUTURE_MOST_MS: Final = 24 * 3600 * 1000
"""Kafka's own default is an hour from version 4 on, and no bound at all before."""


def check_event_time(bootstrap: str, settings: Settings, program: App) -> None:
    """Warn of inputs with timestamps from any future, where windows expire by them.

    Raises:
        TopicError: a topic's configuration cannot be read.
        BrokerUnavailable: Kafka has gone away, or did not answer.
    """
    for name, stream in settings.streams.items():
        tables = [table.name for table in program.tables_of(name) if table.window and table.window.expires]
        if not tables or not program.of(name):
            continue
        admin = admin_client({"bootstrap.servers": bootstrap, **settings.kafka})
        if problem := unbounded(config_of(admin, stream.input)):
            text = "one record with a wrong timestamp can expire all windows of its partition"
            log.warning(text, topic=stream.input, tables=tables, reason=problem)


def unbounded(config: Mapping[str, str]) -> str:
    """Return why a topic takes records of any future, with the remedy; "" where it does not. config: of the topic."""
    name = "message.timestamp.after.max.ms"
    most = config.get(name)
    if config["message.timestamp.type"] == "LogAppendTime" or (most is not None and int(most) <= FUTURE_MOST_MS):
        return ""
    has, way = f"it is {most}", f"Set {name}=3600000 on the topic"
    if most is None:
        has, way = "this Kafka does not know it", "See that producers have the right time"
    return f"{name} bounds how far ahead of Kafka's clock a record may be, and {has}. {way}"


ASK_EVERY_S: Final = 1.0
"""Producers learn of new partitions within minutes (metadata.max.age.ms), those that just start at once. One small
request a second for all topics together costs nothing that can be measured."""


# A producer that learns of more partitions sends a key elsewhere. Last sequences are kept by partition: a record sent
# again after that would be new there. Nothing in the record tells; the count does.
async def watch_topics(
    cluster: Cluster,
    inputs: Mapping[str, int],
    others: Iterable[str] = (),
    tell: Callable[[Mapping[str, TopicState]], None] = lambda topics: None,
) -> None:
    """Return never; raise when an input has other partitions than it had.

    Args:
        cluster: connected.
        inputs: partitions of each input topic as the worker found them.
        others: more topics to look at.
        tell: called with all of them that there are, each time.

    Raises:
        PartitionsDiffer: one was given more.
    """
    while True:
        topics = await cluster.topics([*inputs, *others])
        tell(topics)
        for topic, before in inputs.items():
            if topic in topics and topics[topic].partitions > before:
                raise PartitionsDiffer(
                    f"{topic}: had {before} partitions when this worker started, and has {topics[topic].partitions} "
                    "now. Keys have moved between partitions, so re-sent records could no longer be "
                    "recognised; the worker stops. The way to more partitions is in docs/guide/partitions.md"
                )
        await asyncio.sleep(ASK_EVERY_S)
