"""Topics read with librdkafka: ends of all partitions in two questions, several partitions at a time, clients kept."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ratchet.app.status.kafka_topics import Consumers, offset_ranges, records, records_between
from kafka_ratchet.errors import BrokerUnavailable


def test_committed_records_of_several_partitions_by_one_client(broker: str, new_topic: Callable[..., str]) -> None:
    topic, other = new_topic(3), new_topic(1)
    producer = Producer({"bootstrap.servers": broker, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(5):
        producer.produce(topic, b"%d" % number, partition=0)
        producer.produce(topic, b"%d" % number, partition=2)
    producer.produce(other, b"x")
    producer.commit_transaction(60)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(60)
    with Consumers({"bootstrap.servers": broker}) as clients:
        with clients.consumer("reads", committed=False) as asked:
            assert [tuple(each) for each in offset_ranges(asked, topic, 3, 30)] == [(0, 7), (0, 0), (0, 6)]
        with clients.consumer("reads", topic=topic) as asked:
            first = asked
            held = offset_ranges(asked, topic, 3, 30)
            assert [tuple(each) for each in held] == [(0, 6), (0, 0), (0, 6)]
            spans = {0: held[0]._replace(first=1), 1: held[1], 2: held[2]._replace(end=3)}
            found: dict[int | None, list[bytes | None]] = {}
            for message in records_between(asked, topic, spans, timeout_s=30):
                found.setdefault(message.partition(), []).append(message.value())
            assert found == {0: [b"1", b"2", b"3", b"4"], 2: [b"0", b"1", b"2"]}
            assert [each.value() for each in records(asked, topic, 2, 0, timeout_s=30)] == [b"%d" % n for n in range(5)]
        with clients.consumer("reads", topic=other) as asked:
            assert asked is first
            assert [message.value() for message in records(asked, other, timeout_s=30)] == [b"x"]
            with clients.consumer("reads") as second:
                assert second is not first
        with pytest.raises(BrokerUnavailable, match="cannot be read"), clients.consumer("reads") as asked:
            offset_ranges(asked, topic, 4, 5)
    producer.abort_transaction(60)


def test_a_topic_that_brokers_do_not_know_yet_is_waited_for(broker: str, new_topic: Callable[..., str]) -> None:
    """What a first start with very many new partitions failed of."""
    topic = new_topic(1) + "-later"
    admin = AdminClient({"bootstrap.servers": broker})
    made = threading.Timer(1.0, lambda: admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30))
    made.start()
    with Consumers({"bootstrap.servers": broker}) as clients, clients.consumer("reads") as asked:
        assert [tuple(each) for each in offset_ranges(asked, topic, 3, 5, settle_s=60)] == [(0, 0)] * 3
    made.join()
