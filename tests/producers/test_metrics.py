"""Metrics of a producer, for its program and for Prometheus."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kafka_ratchet.errors import ProducerFenced, RecordTooLarge
from kafka_ratchet.producers import Producer, ProducerMetrics, prometheus_text
from kafka_ratchet.producers.metrics import BOUNDS_S, Measures


class Hostile:
    """Figures under a name that Prometheus's text has to escape."""

    def metrics(self) -> ProducerMetrics:
        counts = (1, *(0 for _ in BOUNDS_S))
        return ProducerMetrics('a"} 1\\', "orders", 3, 2, 0, 1, None, None, 7, None, True, counts, 0.0005)


def test_what_is_not_known_is_left_out_and_names_are_escaped() -> None:
    samples = [s for family in text_string_to_metric_families(prometheus_text(Hostile())) for s in family.samples]
    assert {s.labels["producer"] for s in samples} == {'a"} 1\\'}
    found = {s.name: s.value for s in samples if "le" not in s.labels}
    assert found["ratchet_producer_sent_records_total"] == 3
    assert found["ratchet_producer_fenced"] == 1
    assert found["ratchet_producer_published_sequence"] == 7
    assert not {"ratchet_producer_persisted_sequence", "ratchet_producer_retries_total"} & found.keys()
    buckets = {s.labels["le"]: s.value for s in samples if "le" in s.labels}
    assert (buckets["0.001"], buckets["+Inf"], len(buckets)) == (1, 1, len(BOUNDS_S) + 1)


def test_what_goes_out_again_counts_once_it_is_more_than_was_sent() -> None:
    measures = Measures()
    assert measures.retries(5) is None  # the client has not said anything yet
    measures.take_statistics('{"txmsgs": 4, "txmsg_bytes": 40, "brokers": {}}')
    assert (measures.retries(5), measures.sent_bytes) == (0, 40)
    measures.take_statistics('{"txmsgs": 7, "txmsg_bytes": 70}')
    assert measures.retries(5) == 2
    assert measures.retries(9) == 2  # a counter does not fall


def test_figures_of_a_producer(broker: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(4, max_message_bytes=1000)
    name = f"metrics-{uuid.uuid4().hex[:8]}"
    options: dict[str, Any] = {"bootstrap.servers": broker, "statistics.interval.ms": 1, "linger.ms": 0}
    first = Producer(topic, name, options=options, store_s=0.05, say=print)
    fresh = first.metrics()
    assert (fresh.sent, fresh.acknowledged, fresh.published_sequence, fresh.persisted_sequence) == (0, 0, None, None)
    for number in range(3):
        first.send(b"12345", b"key", sequence=number + 10)
    first.flush()
    after = first.metrics()
    assert (after.acknowledged, after.in_flight, after.persisted_sequence, after.refused) == (3, 0, 12, 0)
    assert (after.sent, after.published_sequence) == (3, 12)
    wait(lambda: (first.metrics().sent_bytes or 0) == 24)  # three keys and values
    assert first.metrics().retries == 0
    for last in range(17, 300, 5):
        for number in range(last - 4, last + 1):
            first.send(b"v", b"%d" % number, sequence=number)
        first.flush()
        assert first.resume_from() == last  # what the client has to say does not hide it
    assert sum(after.acknowledge_counts) >= 1
    assert after.acknowledge_s > 0

    second = Producer(topic, name, options=options, say=print)
    with pytest.raises(ProducerFenced):
        first.flush()
    assert first.metrics().fenced
    assert not second.metrics().fenced
    assert second.metrics().persisted_sequence == 297
    with pytest.raises(ProducerFenced), first:
        pass
    second.send(b"x" * 5000, sequence=298)
    with pytest.raises(RecordTooLarge):
        second.flush()
    assert second.metrics().refused == 1
    with pytest.raises(RecordTooLarge):
        second.close()
    assert (second.metrics().sent, second.metrics().acknowledged) == (1, 0)


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
