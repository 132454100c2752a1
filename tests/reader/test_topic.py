"""Offsets of a topic's partitions, from a client that answers as librdkafka does where a leader is away."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kafka_ratchet.errors import BrokerUnavailable, ReaderError
from kafka_ratchet.producers import offsets
from kafka_ratchet.reader.topic import TopicReading

Answer: TypeAlias = "int | KafkaError"


class _Client:
    """Answers one list after the other, the last again and again: by partition an offset or an error."""

    def __init__(self, *answers: Mapping[int, Answer]) -> None:
        self.answers = list(answers)

    def list_offsets(self, asked: Mapping[TopicPartition, object], **_: Any) -> dict[TopicPartition, Future[Any]]:
        told = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        found = {}
        for place in asked:
            found[place] = answer = Future[Any]()
            if isinstance(error := told[place.partition], KafkaError):
                answer.set_exception(KafkaException(error))
            else:
                answer.set_result(SimpleNamespace(offset=error))
        return found


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "ASK_AGAIN_S", 0)


def reading(client: _Client, timeout_s: float = 60) -> TopicReading:
    found = TopicReading("t", {"bootstrap.servers": "127.0.0.1:1"}, timeout_s)
    found._admin = client
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
