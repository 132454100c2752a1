"""Internal streams of a program (`group_by`): their settings and topics."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping
from graphlib import TopologicalSorter
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition
from pydantic import ValidationError

from kafka_ratchet.agents.event import EVENT_ID
from kafka_ratchet.agents.program import App, StreamDefinition, ancestors_of
from kafka_ratchet.agents.topic import TopicOptions
from kafka_ratchet.app.names import is_ratchets_own, is_repartition_topic, repartition_topic
from kafka_ratchet.app.repartition import arrivals_of
from kafka_ratchet.app.settings import Settings, StreamSettings, with_arrivals
from kafka_ratchet.app.status.group import ask_group
from kafka_ratchet.app.status.open_transactions import ask_about
from kafka_ratchet.app.streams import STREAM_NAME
from kafka_ratchet.app.worker.topics import InternalInput, StreamTopics, longest, prepare
from kafka_ratchet.errors import SettingsError, TransportError
from kafka_ratchet.producers import admin_client
from kafka_ratchet.topic_log.clients import ADMIN_TIMEOUT_S, all_topics, committed_positions, consumer, ranges_of
from kafka_ratchet.topic_log.reading import records

COMMITTED_S: Final = 5.0
"""Seconds to wait for Kafka's answer about committed offsets. librdkafka 2.16 can keep sending requests to a
coordinator that is not ready (seen once for 30 s). The worker's start tries again with a new client."""

DEAD_TRANSACTION_S: Final = 15.0
"""Seconds after its timeout within which Kafka rolls back a dead transaction; it looks for these every 10 s."""
PAUSE_S: Final = 0.05


def with_steps(settings: Settings, program: App | None) -> Settings:
    """Return the settings, completed by a section for each internal stream of a program.

    An internal stream comes after the streams that feed it.

    Raises:
        SettingsError: a section of the settings does not fit the program.
    """
    settings = with_arrivals(settings)
    internal = {} if program is None else {name: each for name, each in program.streams.items() if each.topic}
    for name, stream in settings.streams.items():
        if is_repartition_topic(stream.input, settings.app) and name not in internal and not stream.repartition_by:
            raise SettingsError(
                f"streams.{name}: its input {stream.input} is filled by agents, and this worker runs no program with "
                "an internal stream of that name. Start the worker with such a program: `ratchet worker --app`"
            )
    if not internal:
        return settings
    streams = {name: stream for name, stream in settings.streams.items() if name not in internal}
    for name in _in_order(internal):
        definition = internal[name]
        assert definition.topic is not None  # noqa: S101 - it is internal
        definition.topic.name = repartition_topic(settings.app, name)
        given = settings.streams.get(name)
        stream = _made(settings, name, definition, streams) if given is None else _checked(settings, name, given)
        _refuse_shared(name, stream, streams)
        _refuse_circle(name, stream, streams, {each.name for each in ancestors_of(definition)})
        streams[name] = stream
    return settings.model_copy(update={"streams": streams})


def _in_order(internal: Mapping[str, StreamDefinition]) -> list[str]:
    """Return the names of the internal streams, each after those that feed it."""
    graph = {name: {each.name for each in definition.fed_by} & {*internal} for name, definition in internal.items()}
    return list(TopologicalSorter(graph).static_order())  # no circle: `group_by` refuses one


def _made(
    settings: Settings, name: str, definition: StreamDefinition, before: Mapping[str, StreamSettings]
) -> StreamSettings:
    if not STREAM_NAME.fullmatch(name):
        raise SettingsError(
            f"stream name {name!r:.100}: use a lower-case letter, then at most 62 of a-z, 0-9, '_' and '-'"
        )
    parents = [before[each.name] for each in definition.fed_by if each.name in before]
    given: dict[str, Any] = {} if definition.partitions is None else {"partitions": definition.partitions}
    try:
        made = StreamSettings(
            input=repartition_topic(settings.app, name),
            output=f"{settings.app}-{name}",
            dead_letters=f"{settings.app}-{name}-dead-letters",
            deduplicate=False,
            event_id=f"header:{EVENT_ID}",
            create_topics=True,
            replication=max((each.replication for each in parents or settings.streams.values()), default=1),
            **given,
        )
    except ValidationError as error:
        raise SettingsError(f"stream {name}: {error.errors()[0]['msg']}") from None
    for topic in (made.output, made.dead_letters):
        if is_ratchets_own(topic, settings.app, [*settings.streams, name]):
            raise SettingsError(
                f"stream {name}: its topic would be {topic!r}, which Ratchet or Kafka writes for itself. Give the "
                f"stream another name, or write a section [streams.{name}] with other topics"
            )
    return made


def _checked(settings: Settings, name: str, given: StreamSettings) -> StreamSettings:
    topic = repartition_topic(settings.app, name)
    if given.input != topic:
        raise SettingsError(
            f"streams.{name}.input: {name} is an internal stream of the program, so its input must be {topic!r}. Write "
            "that name"
        )
    if given.repartition_by is not None:
        raise SettingsError(
            f"streams.{name}.repartition_by: stream {name} is an internal one of the program, and agents choose the "
            "partition of each record of its input. Remove the setting"
        )
    if given.deduplicate:
        raise SettingsError(
            f"streams.{name}.deduplicate: stream {name} is an internal one of the program. Agents write its input in "
            "transactions, so each record is there once, and has no sequence of its own. Remove the setting"
        )
    return given.model_copy(update={"deduplicate": False, "event_id": f"header:{EVENT_ID}"})


def _refuse_shared(name: str, stream: StreamSettings, others: Mapping[str, StreamSettings]) -> None:
    mine = {*stream.writes}
    for other, its in others.items():
        if shared := mine & {*its.writes}:
            raise SettingsError(
                f"stream {name}: stream {other} writes to topic {shared.pop()!r}, too. Write a section "
                f"[streams.{name}] with input = {stream.input!r} and an output and dead_letters of its own"
            )


def _refuse_circle(
    name: str, stream: StreamSettings, others: Mapping[str, StreamSettings], ancestors: set[str]
) -> None:
    for other in sorted(ancestors & {*others}):
        if others[other].input in stream.writes:
            raise SettingsError(
                f"stream {name}: its topic {others[other].input!r} is the input of stream {other}. The events of "
                f"{name} come from {other}, so they would circulate forever. Write a section [streams.{name}] with "
                "other topics"
            )


def refuse_abandoned(bootstrap: str, settings: Settings) -> None:
    """Refuse to start if events wait for an internal stream that the program no longer has.

    The topic of such a stream holds these events. The sending streams have committed them, and no other stream would
    ever read them.

    Args:
        bootstrap: host:port[,host:port]
        settings: settings that `with_steps` returned

    Raises:
        SettingsError: events wait in such a topic.
        BrokerUnavailable: Kafka did not answer.
        TransportError: the topic cannot be read, or a transaction in it stays open.
    """
    options = {"bootstrap.servers": bootstrap, **settings.kafka}
    mine = {stream.input for stream in settings.streams.values()}
    topics = all_topics(admin_client(options))
    abandoned = sorted(topic for topic in topics if is_repartition_topic(topic, settings.app) and topic not in mine)
    # Before the group's offsets: the ending transactions may commit some of these.
    ends = {topic: _ends(bootstrap, settings, topic, sorted(topics[topic].partitions)) for topic in abandoned}
    ours = ask_group(bootstrap, settings, ADMIN_TIMEOUT_S).committed if abandoned else {}
    for topic in abandoned:
        with consumer(options, settings.app) as client:
            waiting = _first_waiting(client, topic, ends[topic], ours)
        if waiting is not None:
            raise SettingsError(
                f"{topic}, partition {waiting.partition()}: events from offset {waiting.offset()} on wait for stream "
                f"{topic.removeprefix(repartition_topic(settings.app, ''))!r}, which the program does not have. Start "
                "the program that has it, without new events, until nothing waits there; or delete the topic with the "
                "waiting events"
            )


def _ends(bootstrap: str, settings: Settings, topic: str, partitions: list[int]) -> dict[int, int]:
    """Return the high watermarks of a topic's partitions, after the transactions before them have ended.

    Kafka answers a commit before its markers are written. Until then no reader sees the transaction's events.

    Raises:
        TransportError: a transaction stays open for longer than its timeout.
    """
    options = {"bootstrap.servers": bootstrap, **settings.kafka}
    with consumer(options, settings.app, committed=False) as uncommitted:
        ends = {n: each.end for n, each in ranges_of(uncommitted, topic, partitions).items()}
    limit_s, began = settings.transaction_timeout_ms / 1000 + DEAD_TRANSACTION_S, time.monotonic()
    with consumer(options, settings.app) as client:
        while True:
            stable = {n: each.end for n, each in ranges_of(client, topic, partitions).items()}
            still_open = next((n for n in partitions if stable[n] < ends[n]), None)
            if still_open is None:
                return ends
            if time.monotonic() - began > limit_s:
                break
            time.sleep(PAUSE_S)
    blocked = ask_about(bootstrap, settings, {(topic, still_open): (stable[still_open], ends[still_open])})
    resume = f"ratchet resume --stream PARENT --open-transaction commit --topic {topic}"
    raise TransportError(
        f"{topic}, partition {still_open}: a transaction has been open at offset {stable[still_open]} for more than "
        f"{limit_s:.0f} s{''.join(f'. {each}' for each in blocked)}. It may hold events for a stream that the program "
        "does not have. If its producer still runs, start again when the transaction has ended. If not, it never ends "
        "by itself: start the program that has the stream, whose lanes end the transaction; or list it with "
        f"`{resume}` for each stream PARENT that sent to that stream, and end it with --partition P --reason TEXT "
        "--execute (or `abort` in place of `commit`); or delete the topic if its events may be lost"
    )


def _first_waiting(
    client: Consumer, topic: str, ends: Mapping[int, int], ours: Container[tuple[str, int]]
) -> Message | None:
    """Return the first record after the group's committed offsets; None if there is none.

    The function reads the topic, because the last offsets of a partition may be transaction markers instead of events.

    Args:
        client: consumer of the group.
        topic: input of the internal stream.
        ends: offset after the last record to read, by partition.
        ours: (topic, partition) of each offset that a lane has committed; other offsets are ignored.
    """
    places = [TopicPartition(topic, number) for number in ends]
    for place in committed_positions(client, places, COMMITTED_S):
        # An offset of another client does not tell which events were taken: search the whole topic.
        begin = place.offset if place.offset >= 0 and (topic, place.partition) in ours else OFFSET_BEGINNING
        end = ends[place.partition]
        for waiting in records(client, topic, place.partition, begin, timeout_s=ADMIN_TIMEOUT_S, end=end):
            return waiting
    return None


def prepare_streams(bootstrap: str, settings: Settings, program: App | None) -> dict[str, StreamTopics]:
    """Create and check the topics of every stream, and return them by stream.

    Args:
        bootstrap: host:port[,host:port]
        settings: settings that `with_steps` returned
        program: program with the internal streams; None: no program

    Raises:
        RatchetError: see `kafka_ratchet.app.worker.topics.prepare`.
    """
    topics: dict[str, StreamTopics] = {}
    has = program.tables_of if program else lambda name: []
    tables = {name: [table.name for table in has(name)] for name in settings.streams}
    options = program.topic_options if program else {}
    for name, stream in settings.streams.items():
        definition = program.streams.get(name) if program else None
        internal = None
        if definition is not None and definition.topic is not None:
            # Direct sends may come from any stream: as many partitions as the largest has.
            parents = [topics[each.name] for each in definition.fed_by] or list(topics.values())
            partitions = max(each.partitions for each in parents)
            if "partitions" in stream.model_fields_set:
                partitions = stream.partitions
            limit, kept = max(each.dead_letters_limit for each in parents), longest(each.kept for each in parents)
            internal = InternalInput(partitions, limit, kept)
        elif (arrivals := topics.get(arrivals_of(name))) is not None and stream.repartition_by:
            internal = InternalInput(arrivals.sent, arrivals.dead_letters_limit, arrivals.kept)
        config = (options.get(stream.input) or TopicOptions()).config
        topics[name] = prepare(bootstrap, settings, name, stream, internal, tables, config)
    return topics
