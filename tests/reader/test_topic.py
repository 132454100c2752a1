"""Offsets of a topic's partitions, from a client that answers as librdkafka does where a leader is away."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import pytest
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import NewTopic

from faults.kafka import EmbeddedKafka
from kafka_ratchet.errors import BrokerUnavailable, ReaderError
from kafka_ratchet.producers import offsets
from kafka_ratchet.reader.event import NO_TIMESTAMP
from kafka_ratchet.reader.topic import TopicReading
from tests.clock import Clock

Answer: TypeAlias = "int | KafkaError"


class _Client:
    """Answers one list after the other, the last again and again: by partition an offset or an error."""

    def __init__(self, *answers: Mapping[int, Answer]) -> None:
        self.answers = list(answers)

    def offsets_for_times(self, asked: list[TopicPartition], timeout: float) -> list[SimpleNamespace]:
        told = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        found = []
        for place in asked:
            answer = told[place.partition]
            error, offset = (answer, -1001) if isinstance(answer, KafkaError) else (None, answer)
            found.append(SimpleNamespace(partition=place.partition, offset=offset, error=error))
        return found

    def list_topics(self, topic: str, timeout: float) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "ASK_AGAIN_S", 0)


def reading(client: _Client, timeout_s: float = 60) -> TopicReading:
    found = TopicReading("t", {"bootstrap.servers": "127.0.0.1:1"}, timeout_s)
    found._consumer = lambda *, committed, **more: cast("Any", client)  # type: ignore[method-assign]
    return found


def test_an_end_that_is_no_offset_does_not_end_a_reader_early() -> None:
    moving = KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)
    client = _Client({0: -1001, 1: 5}, {0: moving}, {0: -1}, {0: 9})
    assert reading(client).ends(range(2)) == {0: 9, 1: 5}
    assert reading(_Client({0: -1001}, {0: 0})).beginnings([0]) == {0: 0}


def test_a_leader_that_stays_away_is_named() -> None:
    with pytest.raises(BrokerUnavailable, match=r"'t' partition 1: Kafka returned no offset .*no leader has answered"):
        reading(_Client({0: 3, 1: -1001}), timeout_s=0).ends(range(2))
    with pytest.raises(ReaderError, match=r"'t' partition 0: Kafka refuses to return its offsets"):
        reading(_Client({0: KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)})).ends([0])


class _Records(_Client):
    """Gives these records and ends of partitions, then nothing; the clock goes on by a second for each poll."""

    def __init__(self, clock: Clock, metadata_s: float, *messages: SimpleNamespace) -> None:
        super().__init__()
        self.clock, self.metadata_s, self.messages = clock, metadata_s, list(messages)

    def list_topics(self, topic: str, timeout: float) -> None:
        self.clock.now += self.metadata_s

    def assign(self, places: list[TopicPartition]) -> None:
        pass

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        pass

    def poll(self, timeout: float) -> SimpleNamespace | None:
        self.clock.now += 1
        return self.messages.pop(0) if self.messages else None


@pytest.mark.parametrize("metadata_s", [0, 60])
def test_a_partition_that_kafka_gives_no_record_of_is_not_missing(
    monkeypatch: pytest.MonkeyPatch, metadata_s: float
) -> None:
    """Only the end of a partition says that it has no record."""

    def message(partition: int, code: int | None, at_ms: int = 0) -> SimpleNamespace:
        error = None if code is None else KafkaError(code)
        return SimpleNamespace(partition=lambda: partition, error=lambda: error, timestamp=lambda: (1, at_ms))

    clock = Clock()
    monkeypatch.setattr("kafka_ratchet.reader.topic.time", SimpleNamespace(monotonic=clock))
    refused = message(3, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    client = _Records(clock, metadata_s, message(0, None, 77), message(1, KafkaError._PARTITION_EOF), refused)
    found = reading(client).first_times(dict.fromkeys(range(4), 5), dict.fromkeys(range(4), 9), limit_s=30)
    assert found == {0: 77, 2: NO_TIMESTAMP, 3: NO_TIMESTAMP}


@pytest.mark.matrix
def test_a_leader_that_is_away_is_not_connected_to_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a majority, the metadata keeps the dead leaders."""
    connects: dict[str, int] = {}

    def note(statistics: str) -> None:
        told = json.loads(statistics)
        connects[told["name"]] = sum(each["connects"] for each in told["brokers"].values())

    options: dict[str, Any] = {"stats_cb": note, "statistics.interval.ms": 200}
    with EmbeddedKafka(tmp_path, nodes=3, workers=0) as kafka:
        admin = kafka.admin()
        admin.create_topics([NewTopic("t", 3, 3)])["t"].result(60)
        monkeypatch.setattr("kafka_ratchet.reader.topic.closing", nullcontext)
        found = TopicReading("t", {"bootstrap.servers": kafka.bootstrap, **options}, 5)
        client = found._consumer(committed=True)
        found._consumer = lambda *, committed, **more: client  # type: ignore[method-assign]
        assert found.ends(range(3)) == {0: 0, 1: 0, 2: 0}
        for node in kafka.nodes[1:]:
            node.kill()
        with pytest.raises(BrokerUnavailable, match="returned no offset"):
            found.ends(range(3))
        for each in (client, found._admin):
            each.poll(1)
        client.close()
    assert 0 < max(connects.values()) < 100
