"""A publisher names the cause for which Kafka acknowledges nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kafka_ratchet.producers import metrics, standstill
from kafka_ratchet.producers.standstill import standstill_of

OPTIONS = {"bootstrap.servers": "127.0.0.1:1"}


class Client:
    """Answers with one topic, or fails."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def list_topics(self, topic: str, timeout: float) -> Any:
        if isinstance(self._found, KafkaError):
            raise KafkaException(self._found)
        return SimpleNamespace(topics={topic: self._found} if self._found else {})


def topic(*partitions: tuple[int, list[int]], error: KafkaError | None = None) -> Any:
    """Leader and replicas in sync of each partition; all have three replicas."""
    found = {
        number: SimpleNamespace(leader=leader, replicas=[1, 2, 3], isrs=in_sync)
        for number, (leader, in_sync) in enumerate(partitions)
    }
    return SimpleNamespace(topic="orders", error=error, partitions=found)


@pytest.mark.parametrize(
    ("found", "more", "cause", "words"),
    [
        (KafkaError(KafkaError._TRANSPORT), {"last_error": "Connection refused"}, "no-answer", "Connection refused"),
        (KafkaError(KafkaError._TIMED_OUT), {}, "no-answer", "Kafka does not answer"),
        (None, {}, "topic-missing", "there is no topic orders"),
        (
            topic(error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)),
            {},
            "topic-missing",
            "restore it or create it again",
        ),
        (topic(error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)), {}, "unauthorized", "docs/guide/rights.md"),
        (topic((1, [1, 2, 3]), (-1, []), (-1, [])), {}, "no-leader", "orders, partitions 1, 2: no leader"),
        (
            topic((1, [1]), (2, [1, 2])),
            {},
            "replicas",
            "orders, partition 0: 1 replicas in sync, and min.insync.replicas",
        ),
        (topic((1, [1, 2, 3])), {"throttle_s": 4.0}, "quota", "Kafka delays it by 4.0 s"),
        (topic((1, [1, 2])), {"last_error": "broker 3: refused"}, "no-answer", "a broker does not answer: broker 3"),
        (topic((1, [1, 2, 3])), {}, "unexplained", "the log of the brokers"),
    ],
)
def test_the_cause_is_found_by_asking(
    found: Any, more: dict[str, Any], cause: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standstill, "min_in_sync", lambda *asked, **limit: 2)
    named = standstill_of(Client(found), OPTIONS, "orders", **more)
    assert (named.cause, words in named.text) == (cause, True), named.text


def test_the_metric_has_the_cause() -> None:
    figures = metrics.ProducerMetrics(
        "me", "orders", 5, 0, 0, 5, None, None, 4, None, fenced=False, acknowledge_counts=(0,) * 16, acknowledge_s=0.0
    )
    text = metrics.prometheus_text(SimpleNamespace(metrics=lambda: figures))
    assert 'ratchet_producer_stalled{cause="",producer="me",topic="orders"} 0.0' in text
    stalled = metrics.ProducerMetrics(
        **{name: getattr(figures, name) for name in figures.__slots__} | {"stalled": "quota"}
    )
    text = metrics.prometheus_text(SimpleNamespace(metrics=lambda: stalled))
    assert 'ratchet_producer_stalled{cause="quota",producer="me",topic="orders"} 1.0' in text
