"""Whoever asks for offsets asks again where librdkafka gives -1001: nothing counts as lost, nothing as its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kafka_ratchet.app.doctor import run as doctor
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.status.kafka_view import InputPartition, KafkaView
from kafka_ratchet.app.verify import ExitCode
from kafka_ratchet.producers import PROGRESS_TOPIC, Progress, offsets, progress, read_progress
from kafka_ratchet.producers import Producer as NamedProducer
from kafka_ratchet.topic_log import clients
from tests.absent_leaders import LateAnswers
from tests.app.written_stream import Stage, record

NewTopic = Callable[..., str]


@pytest.fixture(autouse=True)
def late(monkeypatch: pytest.MonkeyPatch) -> type[LateAnswers]:
    monkeypatch.setattr(clients, "Consumer", LateAnswers)
    monkeypatch.setattr(progress, "Consumer", LateAnswers)
    monkeypatch.setattr(offsets, "ASK_AGAIN_S", 0)
    monkeypatch.setattr(LateAnswers, "asked", 0)
    return LateAnswers


def test_verify_proves_a_stream(broker: str, new_topic: NewTopic, late: type[LateAnswers]) -> None:
    stage = Stage(broker, new_topic, 1)
    events = [record(n) for n in range(5)]
    stage.write(0, 0, [*events, events[2]])
    stage.write(1, 0, events)
    stage.commit(6)
    report = stage.verify()
    assert (report.exit_code(), report.delivered, report.pending) == (ExitCode.PROVEN, 5, 0)
    assert late.asked > 10


def test_the_page_shows_ends(broker: str, new_topic: NewTopic, late: type[LateAnswers]) -> None:
    topic = new_topic(2)
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(topic, b"x", partition=1)
    producer.flush(60)
    streams = {"events": StreamSettings(input=topic, output="out", dead_letters="dead")}
    view = KafkaView(broker, Settings(app="late", streams=streams))
    found = view.read({}, {topic: 2})["events"]
    assert found == [InputPartition(0, 0, 0, None, 0), InputPartition(1, 0, 1, None, 1)]
    assert late.asked == 6


def test_doctor_reads_a_changelog(broker: str, new_topic: NewTopic, late: type[LateAnswers]) -> None:
    topic = new_topic(1)
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(topic, b"x", b"key")
    producer.flush(60)
    assert doctor._newest_format(Settings(app="late"), broker, topic, 1, float("inf")) == 1
    assert late.asked == 4


def test_a_producer_goes_on_after_its_newest_progress(
    broker: str, new_topic: NewTopic, late: type[LateAnswers]
) -> None:
    topic = new_topic(1)
    for number in range(2):
        with NamedProducer(topic, "late", options={"bootstrap.servers": broker}) as producer:
            assert producer.send(b"x") == number
    found = read_progress({"bootstrap.servers": broker}, topic, "late", timeout_s=30, say=lambda _: None)
    assert isinstance(found, Progress)
    assert found.sequence == 1
    assert late.asked >= 6
    assert PROGRESS_TOPIC in AdminClient({"bootstrap.servers": broker}).list_topics(timeout=30).topics
