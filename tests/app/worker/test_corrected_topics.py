"""A misspelt topic of a stream that has processed no record is corrected, and what others wrote is not taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kafka_ratchet.app.names import changelog_name
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.worker.topics import prepare
from kafka_ratchet.errors import TopicMissing, TopicTaken
from kafka_ratchet.tables.totals import PROGRESS, Progress
from kafka_ratchet.transport.owner import INPUT, Decision, Owner, Topic

Topics = Callable[..., str]


def settings_of(broker: str, app: str, **more: object) -> Settings:
    topics = {key: f"{app}-{key}" for key in ("input", "output", "dead_letters")}
    stream = {**topics, "partitions": 1, **more}
    return Settings.model_validate({"app": app, "bootstrap": broker, "streams": {"events": stream}})


def prepared(settings: Settings) -> None:
    assert settings.bootstrap is not None
    prepare(settings.bootstrap, settings, "events", settings.streams["events"])


def write(broker: str, topic: str, *entries: tuple[bytes, bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker})
    for key, value in entries:
        producer.produce(topic, value, key, 0)
    assert producer.flush(30) == 0


def started(broker: str, app: str, *decisions: Decision) -> Settings:
    """Return the settings of a stream whose lane has started, and has had no record."""
    settings = settings_of(broker, app, input=f"{app}-misspelt")
    prepared(settings)
    owner = Owner(app, "events", {}, {INPUT: Topic(f"{app}-misspelt", "A" * 22)}, decisions)
    write(broker, changelog_name(app, "events"), owner.pack(), (PROGRESS, Progress(0, 0, 0, 0).pack()))
    return settings


def test_an_input_is_made_although_a_misspelt_one_was_read(broker: str, new_topic: Topics) -> None:
    app = new_topic(1)
    misspelt, corrected = started(broker, app), settings_of(broker, app)
    prepared(corrected)
    topics = AdminClient({"bootstrap.servers": broker})
    for settings in (misspelt, corrected):
        topic = settings.streams["events"].input
        topics.delete_topics([topic])[topic].result(30)
    with pytest.raises(TopicMissing, match="-misspelt' does not exist, but the changelog"):
        prepared(misspelt)
    write(broker, changelog_name(app, "events"), (PROGRESS, Progress(1, 1, 0, 0).pack()))
    with pytest.raises(TopicMissing, match="-input' does not exist, but the changelog"):
        prepared(corrected)


def test_an_input_is_not_made_after_an_operators_decision(broker: str, new_topic: Topics) -> None:
    app = new_topic(1)
    started(broker, app, Decision("", "", "resume", ""))
    with pytest.raises(TopicMissing, match="-input' does not exist, but the changelog"):
        prepared(settings_of(broker, app))


def test_records_of_others_are_no_output_of_a_stream_without_records(broker: str, new_topic: Topics) -> None:
    app, output = new_topic(1), new_topic(1)
    started(broker, app)
    write(broker, output, (b"", b"of another program"))
    corrected = settings_of(broker, app, input=f"{app}-misspelt", output=output)
    with pytest.raises(TopicTaken, match=r"has records, and stream 'events' of application .* has never committed"):
        prepared(corrected)
    write(broker, changelog_name(app, "events"), (PROGRESS, Progress(1, 1, 0, 0).pack()))
    prepared(corrected)
