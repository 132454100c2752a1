"""Topics of a program's sends: checks, creation, and the streams that read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from confluent_kafka.admin import AdminClient

from kafka_ratchet.agents.program import App
from kafka_ratchet.agents.topic import TopicOptions
from kafka_ratchet.app.names import is_ratchets_own
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.settings_sections import is_topic_name
from kafka_ratchet.app.status.inputs import similar
from kafka_ratchet.app.worker.claims import read_claims
from kafka_ratchet.app.worker.topics import StreamTopics, create, longest, retention_config
from kafka_ratchet.errors import SettingsError, TopicMissing, TopicTaken
from kafka_ratchet.producers import admin_client
from kafka_ratchet.topic_log.clients import all_topics, partition_counts
from kafka_ratchet.transport.sent_topics import SentTopic


def check_topics(program: App, settings: Settings) -> None:
    """Check that agents may send to the program's topics.

    A stream with input from agents must set `deduplicate`, unless the setting for all streams is False. The default
    True seldom fits, because such records usually have no sequence.

    Raises:
        SettingsError: agents may not send to a topic; or a stream with input from agents lacks `deduplicate`.
    """
    for topic in program.topics:
        if not is_topic_name(topic):
            raise SettingsError(
                f"topic {topic!r:.300} of the program is not a Kafka topic name: 1 to 249 letters, digits, '.', '_' or "
                "'-'. Correct it in the program"
            )
        if is_ratchets_own(topic, settings.app, list(settings.streams)):
            raise SettingsError(
                f"topic {topic} of the program is an internal topic of Ratchet or Kafka. Name another topic"
            )
        for name, stream in settings.streams.items():
            if topic == stream.output:
                raise SettingsError(
                    f"topic {topic} of the program is the output of stream {name}. Do not send to it: an agent of "
                    f"{name} writes to it with `yield`"
                )
            if topic == stream.dead_letters:
                raise SettingsError(
                    f"topic {topic} of the program has the dead letters of stream {name}. Send to another topic"
                )
            if topic == stream.duplicates:
                raise SettingsError(
                    f"topic {topic} of the program has the duplicates of stream {name}. Send to another topic"
                )
            if topic == stream.input and [each for each in settings.streams if program.of(each)] == [name]:
                raise SettingsError(
                    f"topic {topic} of the program is the input of stream {name}, the only one with agents: they would "
                    "receive their own records, for ever. Send to another topic"
                )
    for name, writers in _written_by_agents(program, settings):
        stream = settings.streams[name]
        if stream.deduplicate is None and settings.deduplicate is not False:
            raise SettingsError(
                f"streams.{name}: its input {stream.input} is written by agents ({writers}), in transactions: each "
                "record is there once, and has no sequence of its own. Set deduplicate = false for this stream. Set "
                "it to true only if every record of this input has a producer and a sequence: a record without them "
                "becomes a dead letter"
            )


def _written_by_agents(program: App, settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield each stream with an input written by agents, and a description of that writer."""
    outputs = {stream.output: name for name, stream in settings.streams.items() if program.of(name)}
    for name, stream in settings.streams.items():
        if stream.input in outputs:
            yield name, f"the output of stream {outputs[stream.input]}"
        elif stream.input in program.topics:
            yield name, f"app.topic({stream.input!r})"


def prepare_sent_topics(
    bootstrap: str, settings: Settings, program: App, streams: Mapping[str, StreamTopics]
) -> dict[str, SentTopic]:
    """Create the missing topics of the program's sends.

    Args:
        bootstrap: host:port[,host:port].
        settings: all settings.
        program: program with the sending agents.
        streams: existing topics of each stream.

    Returns:
        topics that the lanes may send to, by name, with those of internal streams.

    Raises:
        TopicMissing: a topic is missing, and `create_topics` is off.
        TopicTaken: a stream has claimed a topic as its output, changelog or duplicates.
        TopicError: a topic cannot be created.
        BrokerUnavailable: Kafka has gone away, or did not answer.
    """
    sends = {
        settings.streams[name].input: SentTopic(topics.partitions, read_by=name)
        for name, topics in streams.items()
        if name in program.streams and program.streams[name].topic is not None
    }
    if not program.topics:
        return sends
    admin = admin_client({"bootstrap.servers": bootstrap, **settings.kafka})
    claims = read_claims(settings, bootstrap)
    inputs = {settings.streams[name].input: name for name in streams}
    found = partition_counts(admin, list(program.topics))
    for topic in program.topics:
        if (by := claims.get(topic)) is not None:
            raise TopicTaken(f"topic {topic} of the program: is written by {by}. Send to another topic")
        if topic not in found:
            _create(admin, settings, program, topic, streams)
        reader = inputs.get(topic, "")
        sends[topic] = SentTopic(streams[reader].partitions if reader else 0, read_by=reader)
    return sends


def _create(
    admin: AdminClient, settings: Settings, program: App, topic: str, streams: Mapping[str, StreamTopics]
) -> None:
    if not settings.create_topics:
        known = all_topics(admin)
        raise TopicMissing(
            f"there is no topic {topic!r} for the program's sends{similar(topic, known)}. create_topics is false, "
            "so Ratchet creates none: correct the name, or create the topic"
        )
    senders = [name for name in streams if program.of(name)]
    options = program.topic_options.get(topic, TopicOptions())
    partitions = options.partitions or max(streams[name].partitions for name in senders)
    replication = options.replication or max(settings.streams[name].replication for name in senders)
    # A sent record has the timestamp of the event that it was sent for.
    retention = retention_config(admin, longest(streams[name].kept for name in senders))
    create(admin, topic, partitions, replication, {**retention, **options.config})
