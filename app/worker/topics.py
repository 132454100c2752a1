"""Topics of a stream: their creation, checks of partition counts and configuration, and size limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from kafka_ratchet.agents.program import App
from kafka_ratchet.app.names import OWNERS_TOPIC, changelog_name, policy_topic
from kafka_ratchet.app.repartition import RepartitionSettings
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
"""Maximum number of bytes that the headers of a dead letter or duplicate (reason, origin) add to the input record."""
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
"""Configuration of a topic that keeps each record, such as the one that an internal stream reads."""


class Retention(NamedTuple):
    """Effective retention.ms and retention.bytes of a topic; -1: records stay for ever."""

    ms: int = -1
    bytes: int = -1


class InternalInput(NamedTuple):
    """Partition count and max.message.bytes (`limit`) with which an internal stream's input is created."""

    partitions: int
    limit: int
    kept: Retention = Retention()
    """Longest retention of the inputs that feed the stream: the internal topic itself keeps all records."""


class StreamTopics(NamedTuple):
    """Topics of a stream as found in Kafka. The limits are max.message.bytes."""

    changelog: str
    partitions: int
    output_limit: int
    dead_letters_limit: int
    changelog_limit: int
    claimed: Mapping[str, str] = MappingProxyType({})
    """Topic id at the time of the claim, by topic: output, changelog and duplicates."""
    duplicates_limit: int = 0
    """Size limit of the topic of duplicates; 0 if dropped records are not kept."""
    sent: int = 0
    """Partition count of the output if records are repartitioned by identity; else 0."""
    kept: Retention = Retention()
    """Longest retention of the inputs that the stream's records come from."""


def prepare(
    bootstrap: str,
    settings: Settings,
    name: str,
    stream: StreamSettings,
    internal: InternalInput | None = None,
    tables: Mapping[str, Collection[str]] = MappingProxyType({}),
    input_config: Mapping[str, str] = MappingProxyType({}),
) -> StreamTopics:
    """Create missing topics of a stream, and check that all fit each other.

    Args:
        bootstrap: host:port[,host:port].
        settings: all settings.
        name: name of the stream.
        stream: settings of the stream.
        internal: configuration of an internal stream's input; None: the stream is not internal.
        tables: names of the program's tables by stream.
        input_config: configuration of a missing input; not used for an internal stream.

    Raises:
        SettingsError: an earlier version of the program had one of the tables in another stream.
        TopicMissing: a topic is missing, and `create_topics` is off; or the input is missing, and the changelog has
            records.
        TopicTaken: another application or stream writes a topic of this stream.
        PartitionsDiffer: output, dead letters, duplicates or changelog have other partition counts than the input, or
            the input was given more.
        TopicError: a topic cannot be created or has an unfit configuration.
        BrokerUnavailable: Kafka has gone away, or did not answer.
    """
    admin = admin_client({"bootstrap.servers": bootstrap, **settings.kafka})
    found = partition_counts(admin, names_of(settings, name))
    ownership = StreamOwnership(settings, bootstrap, name, found)
    changelog = changelog_name(settings.app, name)
    ownership.check(changelog)
    ownership.refuse_moved(changelog, tables)
    if not settings.creates_topics(name):
        internals = (
            {stream.input}
            if internal
            else {stream.output, stream.dead_letters}
            if isinstance(stream, RepartitionSettings)
            else {}
        )
        refuse_missing(admin, name, stream, {*found, *internals})
    partitions = found.get(stream.input, internal.partitions if internal else stream.partitions)
    if stream.input not in found:
        config = NOT_COMPACTED | {"max.message.bytes": str(internal.limit)} if internal else input_config
        create(admin, stream.input, partitions, stream.replication, config)
    given = config_of(admin, stream.input, NEW_TOPIC_S)
    if internal and (policy := given["cleanup.policy"]) != "delete":
        raise TopicError(
            f"{stream.input}: cleanup.policy is {policy}, so records would disappear before stream {name} has read "
            "them. Set cleanup.policy=delete on the topic"
        )
    prepare_owners(admin, settings)
    input_limit = int(given["max.message.bytes"])
    kept = internal.kept if internal else retention_of(given)
    retention = retention_config(admin, kept)
    wanted = {
        stream.output: {"max.message.bytes": str(input_limit), **retention},
        stream.dead_letters: {"max.message.bytes": str(input_limit + DEAD_LETTER_ROOM), **retention},
        changelog: COMPACTED,
    }
    if stream.duplicates is not None:
        wanted[stream.duplicates] = wanted[stream.dead_letters]
    sent = 0
    if isinstance(stream, RepartitionSettings):
        sent = _prepare_sent(admin, stream, partitions, found, wanted.pop(stream.output))
    for topic, config in wanted.items():
        if topic not in found:
            create(admin, topic, partitions, stream.replication, config)
        elif found[topic] != partitions:
            raise PartitionsDiffer(
                f"stream {name}: input {stream.input} has {partitions} partitions, {topic} has {found[topic]}. "
                "A record keeps its partition number in each topic, so the counts must be equal: name topics with as "
                "many, or let Ratchet create them. For an input with added partitions, see docs/guide/partitions.md"
            )
    config = _only_compacted(
        admin,
        changelog,
        "the last sequences of long inactive identities, and their duplicates would pass",
    )
    _check_clock(changelog, config)
    if not isinstance(stream, RepartitionSettings):  # which sends records on by their identity
        ownership.refuse_added(changelog, partitions)
    claimed = ownership.claim(changelog, partitions, tables=tables.get(name, ()))
    limits = _checked_limits(admin, stream, kept)
    return StreamTopics(
        changelog,
        partitions,
        limits[stream.output],
        limits[stream.dead_letters],
        int(config["max.message.bytes"]),
        claimed,
        limits.get(stream.duplicates or "", 0),
        sent,
        kept,
    )


def _checked_limits(admin: AdminClient, stream: StreamSettings, kept: Retention) -> dict[str, int]:
    """Return the `max.message.bytes` of the topics that a stream writes, and warn of short retentions.

    kept: retention of the stream's input
    """
    limits = {}
    for topic in filter(None, (stream.output, stream.dead_letters, stream.duplicates)):
        config = config_of(admin, topic, NEW_TOPIC_S)
        limits[topic] = int(config["max.message.bytes"])
        if problem := deleted_sooner(config, kept):
            log.warning("Kafka may delete records before they are read", topic=topic, reason=problem)
    return limits


def retention_of(config: Mapping[str, str]) -> Retention:
    """Return how long a topic keeps records.

    config: effective configuration of the topic
    """
    if "delete" not in config["cleanup.policy"]:
        return Retention()
    return Retention(int(config["retention.ms"]), int(config["retention.bytes"]))


def longest(retentions: Iterable[Retention]) -> Retention:
    """Return the longest time and the largest size among one or more retentions."""
    times, sizes = zip(*retentions, strict=True)
    return Retention(max(times, key=_length), max(sizes, key=_length))


def _length(limit: int) -> float:
    return float("inf") if limit < 0 else limit


def retention_config(admin: AdminClient, kept: Retention) -> dict[str, str]:
    """Return the settings that let a new topic keep records as long as an input does.

    They leave out limits below the broker's default. Kafka deletes by the records' timestamps, and forwarded
    records keep those of the events: with a shorter retention than the input's, old records would be deleted unread.

    Args:
        admin: connected admin client
        kept: retention of the input
    """
    # Ratchet sets no retention on this compacted topic, so it shows the default. The broker's own configuration would
    # take a right that workers do not need otherwise.
    config = config_of(admin, OWNERS_TOPIC, NEW_TOPIC_S)
    wanted = {"retention.ms": kept.ms, "retention.bytes": kept.bytes}
    return {name: str(value) for name, value in wanted.items() if _length(value) > _length(int(config[name]))}


def deleted_sooner(config: Mapping[str, str], kept: Retention) -> str:
    """Return why Kafka deletes forwarded records sooner than the input's, with the remedy; "" if it does not.

    Args:
        config: effective configuration of a topic that a stream writes
        kept: retention of the stream's input
    """
    own = retention_of(config)
    if config["message.timestamp.type"] == "LogAppendTime" or _length(own.ms) >= _length(kept.ms):
        return ""
    return (
        f"its retention.ms is {own.ms}, and that of the stream's input {kept.ms}. Records keep their timestamps, so "
        f"Kafka deletes those older than {own.ms} ms soon after they are written, read or not. Set "
        f"retention.ms={kept.ms} on the topic"
    )


def _prepare_sent(
    admin: AdminClient,
    stream: RepartitionSettings,
    partitions: int,
    found: Mapping[str, int],
    config: Mapping[str, str],
) -> int:
    """Create the missing topic of repartitioned records, and return its partition count.

    Raises:
        PartitionsDiffer: the topic has, or would have, fewer partitions than the input.
    """
    sent = found.get(stream.output, stream.to_partitions or partitions)
    if sent < partitions:
        # A lane writes to the partition of its own number first of all, so fewer would not help.
        raise PartitionsDiffer(
            f"stream {stream.of}: {stream.output} has, or would be created with, {sent} partitions, but input "
            f"{stream.input} has {partitions}. {stream.output} needs at least as many: set "
            f"streams.{stream.of}.partitions to {partitions} or more. If {stream.output} exists and was never used, "
            "delete it"
        )
    if stream.output not in found:
        create(admin, stream.output, sent, stream.replication, {**config, **NOT_COMPACTED})
    return sent


def prepare_owners(admin: AdminClient, settings: Settings) -> None:
    """Create the topic of claims if it is missing, and check it.

    Raises:
        TopicError: the topic cannot be created, or has an unfit partition count or configuration.
        BrokerUnavailable: Kafka has gone away, or did not answer.
    """
    prepare_single(admin, settings, OWNERS_TOPIC, "applications' claims of topics")


def prepare_policy(bootstrap: str, settings: Settings) -> None:
    """Create the policy topic if it is missing, and check it.

    Raises:
        TopicError: the topic cannot be created, or has an unfit partition count or configuration.
        BrokerUnavailable: Kafka has gone away, or did not answer.
    """
    admin = admin_client({"bootstrap.servers": bootstrap, **settings.kafka})
    prepare_single(admin, settings, policy_topic(settings.app), "old policies")


def prepare_single(admin: AdminClient, settings: Settings, topic: str, loses: str) -> None:
    """Create a compacted topic of one partition if it is missing, and check it.

    loses: contents that retention would delete, for the error text

    Raises:
        TopicError: see `prepare_owners`.
        BrokerUnavailable: see `prepare_owners`.
    """
    found = partition_counts(admin, [topic])
    if topic not in found:
        replication = max((stream.replication for stream in settings.streams.values()), default=1)
        create(admin, topic, 1, replication, COMPACTED)
    elif found[topic] != 1:
        raise PartitionsDiffer(
            f"{topic}: has {found[topic]} partitions, but must have one, which keeps its records in order. Stop all "
            "workers, save the records, delete the topic, create it with one partition and cleanup.policy=compact, and "
            "write the records back before a worker starts"
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
            f"{topic}: delete.retention.ms is {config['delete.retention.ms']}, so a worker that was stopped for longer "
            f"may miss deletions and keep deleted entries. Set delete.retention.ms={least_ms} on the topic, or more"
        )
    return config


def _check_clock(changelog: str, config: Mapping[str, str]) -> None:
    """Refuse a changelog with timestamps of workers instead of the broker's."""
    if config["message.timestamp.type"] != "LogAppendTime":
        raise TopicError(
            f"{changelog}: message.timestamp.type is {config['message.timestamp.type']}, so the age of local stores "
            "and of identities would depend on the workers' clocks. A wrong clock could bring back deleted entries. "
            "Set message.timestamp.type=LogAppendTime on the topic"
        )


def create(admin: AdminClient, topic: str, partitions: int, replication: int, config: Mapping[str, str]) -> None:
    """Create a topic, or accept the one that another worker creates at the same time.

    Raises:
        TopicError: Kafka refuses to create the topic.
        BrokerUnavailable: Kafka has gone away, or did not answer.
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
        admin: connected admin client
        topic: name of the topic
        settle_s: seconds during which brokers may not know the topic, since it is new

    Raises:
        TopicError: the configuration cannot be read.
        BrokerUnavailable: Kafka has gone away, or did not answer.
    """
    resource = ConfigResource(ResourceType.TOPIC, topic)
    began = time.monotonic()
    while True:
        try:
            # The client's own limit, which comes as a KafkaException: the future's would be a bare TimeoutError.
            answer = admin.describe_configs([resource], request_timeout=ADMIN_TIMEOUT_S)[resource]
            entries: Mapping[str, Any] = answer.result()
            return {name: entry.value for name, entry in entries.items()}
        except KafkaException as error:
            # Not every broker knows a new topic at once.
            missing = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            waited = time.monotonic() - began
            if missing and waited > settle_s:
                raise TopicError(
                    f"topic {topic}: no broker knows it {waited:.0f} s after it was created or listed. "
                    "Check in the brokers' logs whether they have created its partitions, and start the worker again"
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


FUTURE_MOST_MS: Final = 24 * 3600 * 1000
"""Maximum message.timestamp.after.max.ms without a warning. Kafka's default is an hour from version 4 on, and
unlimited before."""


def check_event_time(bootstrap: str, settings: Settings, program: App) -> None:
    """Warn of inputs that accept timestamps far in the future, if a program's windows expire by timestamp.

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
    """Return why a topic accepts timestamps far in the future, with the remedy; "" if it does not.

    config: effective configuration of the topic
    """
    name = "message.timestamp.after.max.ms"
    most = config.get(name)
    if config["message.timestamp.type"] == "LogAppendTime" or (most is not None and int(most) <= FUTURE_MOST_MS):
        return ""
    has, way = f"it is {most}", f"Set {name}=3600000 on the topic"
    if most is None:
        has, way = "this Kafka does not know it", "Check the clocks of the producers"
    return f"{name} bounds how far ahead of Kafka's clock a record may be, and {has}. {way}"


ASK_EVERY_S: Final = 1.0
"""Seconds between checks for new partitions. Running producers learn of them within minutes (metadata.max.age.ms), and
starting producers at once. One small request a second for all topics has no measurable cost."""


# A producer that learns of more partitions sends a key elsewhere. Last sequences are kept by partition: a record sent
# again after that would be new there. Nothing in the record tells; the count does.
async def watch_topics(
    cluster: Cluster,
    inputs: Mapping[str, int],
    others: Iterable[str] = (),
    tell: Callable[[Mapping[str, TopicState]], None] = lambda topics: None,
) -> None:
    """Check the topics every second; raise an error when an input has more partitions than before.

    Args:
        cluster: connected client of the Kafka cluster.
        inputs: partition counts of the input topics at the worker's start.
        others: names of further topics to check.
        tell: function called after each check with the existing topics among all of these.

    Raises:
        PartitionsDiffer: an input was given more partitions.
    """
    while True:
        topics = await cluster.topics([*inputs, *others])
        tell(topics)
        for topic, before in inputs.items():
            if topic in topics and topics[topic].partitions > before:
                raise PartitionsDiffer(
                    f"{topic}: had {before} partitions when this worker started, and has {topics[topic].partitions} "
                    "now. Keys have moved between partitions, so re-sent records could no longer be "
                    "recognised; the worker stops. docs/guide/partitions.md says what to do"
                )
        await asyncio.sleep(ASK_EVERY_S)
