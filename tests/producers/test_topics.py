"""Requests about a topic while a broker goes away in the middle of them."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection

from kafka_ratchet.errors import BrokerUnavailable
from kafka_ratchet.producers.topics import TopicShape, describe_topic

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


class FailingAdmin:
    """Client whose first requests fail with a code of librdkafka, as when a broker leaves the metadata."""

    def __init__(self, code: int, failures: int) -> None:
        self.code, self.left = code, failures

    def describe_topics(self, topics: TopicCollection, *, request_timeout: float) -> dict[str, Future[object]]:
        future: Future[object] = Future()
        if self.left:
            self.left -= 1
            future.set_exception(KafkaException(KafkaError(self.code)))
        else:
            future.set_result(SimpleNamespace(topic_id="an id", partitions=[0, 1, 2]))
        return {"orders": future}


@pytest.mark.parametrize(
    "code", [KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._DESTROY_BROKER, KafkaError._ALL_BROKERS_DOWN]
)
def test_a_broker_that_leaves_during_a_request_is_asked_again(code: int) -> None:
    admin = cast("AdminClient", FailingAdmin(code, failures=2))

    assert describe_topic(admin, "orders", timeout_s=30, say=lambda _: None) == TopicShape("orders", "an id", 3)


def test_brokers_that_stay_away_are_reported_after_the_limit() -> None:
    admin = cast("AdminClient", FailingAdmin(KafkaError._DESTROY_BROKER, failures=1000))

    with pytest.raises(BrokerUnavailable, match=r"did not answer within 0\.3 s"):
        describe_topic(admin, "orders", timeout_s=0.3, say=lambda _: None)
