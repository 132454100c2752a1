"""Topics that a worker creates: they keep records as long as the input, because records keep their timestamps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from kafka_ratchet.agents.program import App
from kafka_ratchet.app.repartition import arrivals_of, repartitioned
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.worker.sent_topics import prepare_sent_topics
from kafka_ratchet.app.worker.steps import prepare_streams, with_steps
from kafka_ratchet.app.worker.topics import Retention, config_of, deleted_sooner, longest, prepare, retention_of

DAY_MS = 24 * 3600 * 1000
Topics = Callable[..., str]


@pytest.fixture
def admin(broker: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker, "log_level": 0})


def settings_of(broker: str, topic: str, **more: object) -> Settings:
    written = {key: f"{topic}-{key}" for key in ("output", "dead_letters", "duplicates")}
    stream = {"input": topic, **written, "partitions": 1, **more}
    return Settings.model_validate({"app": topic, "bootstrap": broker, "streams": {"events": stream}})


def kept(admin: AdminClient, topic: str) -> tuple[str, str]:
    config = config_of(admin, topic)
    return config["retention.ms"], config["retention.bytes"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"retention_ms": -1}, ("-1", "-1")),
        ({"retention_ms": 365 * DAY_MS, "retention_bytes": 1 << 40}, (str(365 * DAY_MS), "-1")),
        ({"retention_ms": DAY_MS, "cleanup_policy": "compact"}, ("-1", "-1")),
        ({"retention_ms": DAY_MS}, (str(7 * DAY_MS), "-1")),
    ],
)
def test_new_topics_keep_records_as_long_as_the_input(
    broker: str, new_topic: Topics, admin: AdminClient, config: dict[str, object], expected: tuple[str, str]
) -> None:
    settings = settings_of(broker, new_topic(1, **config))
    stream = settings.streams["events"]
    with capture_logs() as logs:
        prepare(broker, settings, "events", stream)
    assert {topic: kept(admin, topic) for topic in stream.writes} == dict.fromkeys(stream.writes, expected)
    assert not [line for line in logs if line["log_level"] == "warning"]


def test_existing_topics_with_a_shorter_retention_are_named(broker: str, new_topic: Topics) -> None:
    topic, short = new_topic(1), new_topic(1, retention_ms=DAY_MS)
    stamped = new_topic(1, retention_ms=DAY_MS, message_timestamp_type="LogAppendTime")
    settings = settings_of(broker, topic, output=short, dead_letters=stamped)
    with capture_logs() as logs:
        prepare(broker, settings, "events", settings.streams["events"])
    (warning,) = [line for line in logs if line["log_level"] == "warning"]
    assert warning["topic"] == short
    assert "Set retention.ms=-1 on the topic" in warning["reason"]


def test_what_a_stream_in_two_writes_is_kept_as_long_as_the_first_input(
    broker: str, new_topic: Topics, admin: AdminClient
) -> None:
    settings = settings_of(broker, new_topic(1, retention_ms=30 * DAY_MS), identity="key", repartition_by="identity")
    settings = settings.model_copy(update={"streams": repartitioned(settings.app, settings.streams)})
    prepare_streams(broker, settings, None)
    letters = settings.streams[arrivals_of("events")].dead_letters
    written = (*settings.streams["events"].writes, letters)
    assert {kept(admin, topic) for topic in written} == {(str(30 * DAY_MS), "-1")}
    assert kept(admin, settings.streams["events"].input) == ("-1", "-1")


def test_what_a_program_writes_is_kept_as_long_as_its_inputs(
    broker: str, new_topic: Topics, admin: AdminClient
) -> None:
    topic, app = new_topic(1, retention_ms=30 * DAY_MS), App()
    events = app.stream("events")
    step = events.group_by("step", key=lambda event: event)
    app.topic(f"{topic}-alerts")

    @app.agent(step)
    async def agent(stream: object) -> None:
        pass

    @app.agent(events)
    async def other(stream: object) -> None:
        pass

    settings = with_steps(settings_of(broker, topic), app)
    prepare_sent_topics(broker, settings, app, prepare_streams(broker, settings, app))
    written = (*settings.streams["step"].writes, f"{topic}-alerts")
    assert {kept(admin, each) for each in written} == {(str(30 * DAY_MS), "-1")}


def test_retentions_are_compared_with_no_limit_as_the_longest() -> None:
    assert longest([Retention(5, -1), Retention(7, 9), Retention(1, 100)]) == (7, -1)
    assert longest([Retention(5, 3), Retention(-1, 9)]) == (-1, 9)
    config = {"cleanup.policy": "delete", "retention.ms": "5", "retention.bytes": "6"}
    assert retention_of(config) == (5, 6)
    assert retention_of(config | {"cleanup.policy": "compact"}) == (-1, -1)
    config["message.timestamp.type"] = "CreateTime"
    assert [bool(deleted_sooner(config, Retention(each))) for each in (-1, 6, 5, 4)] == [True, True, False, False]
    assert not deleted_sooner(config | {"message.timestamp.type": "LogAppendTime"}, Retention())
