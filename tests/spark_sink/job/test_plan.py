"""Planning: which offsets to read, from Kafka's own answers."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafka_ratchet.spark_sink.errors import KafkaUnavailable, OffsetsLost, TopicMissing, TopicRecreated
from kafka_ratchet.spark_sink.job.plan import OffsetRange, TopicPlanner, resume
from kafka_ratchet.spark_sink.job.reading import slices

RANGES = st.dictionaries(
    st.integers(0, 40),
    st.tuples(st.integers(0, 2**62), st.one_of(st.integers(0, 50), st.integers(0, 2**40))),
    max_size=8,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # facts, not the machine's load
@given(RANGES, st.integers(1, 60))
def test_slices_follow_one_another_and_none_is_too_large(ranges: dict[int, tuple[int, int]], max_records: int) -> None:
    start = {partition: first for partition, (first, _) in ranges.items()}
    end = {partition: first + min(length, 2000) for partition, (first, length) in ranges.items()}
    at = start
    for begin, until in slices(start, end, max_records):
        assert begin == at
        assert all(begin[partition] <= until[partition] <= end[partition] for partition in end)
        assert 0 < sum(until.values()) - sum(begin.values()) <= max_records
        at = until
    assert at == end


def test_partitions_advance_in_proportion() -> None:
    [first, second] = slices({0: 0, 1: 100}, {0: 30, 1: 110}, 20)
    assert first == ({0: 0, 1: 100}, {0: 15, 1: 105})
    assert second == ({0: 15, 1: 105}, {0: 30, 1: 110})


def test_resume() -> None:
    offset_range = OffsetRange("t", {0: 5, 1: 0, 2: 7}, {0: 9, 1: 4, 2: 7})
    assert resume(offset_range, {0: 5, 1: 4}) == {0: 5, 1: 4, 2: 7}
    with pytest.raises(OffsetsLost, match=r"t/0: the table needs offset 3 next.*begins at 5.*removed 2 offsets"):
        resume(offset_range, {0: 3})
    with pytest.raises(TopicRecreated, match=r"t/1: .*up to offset 6, but the topic ends at 4"):
        resume(offset_range, {1: 6})
    with pytest.raises(TopicRecreated, match=r"t/3: .*no such partition"):
        resume(offset_range, {3: 0})


def test_the_end_is_before_an_open_transaction(
    broker: str, new_topic: Callable[..., str], write: Callable[..., None]
) -> None:
    topic = new_topic(partitions=2)
    write(topic, [b"a", b"b"], 1)
    open_one = Producer({"bootstrap.servers": broker, "transactional.id": uuid.uuid4().hex})
    open_one.init_transactions(30)
    open_one.begin_transaction()
    open_one.produce(topic, b"not yet", partition=1)
    assert open_one.flush(30) == 0
    write(topic, [b"behind it"], 1)
    planner = TopicPlanner(broker, topic, {})
    assert planner.offset_range() == OffsetRange(topic, {0: 0, 1: 0}, {0: 0, 1: 3}, planner.topic_id())
    open_one.commit_transaction(30)
    deadline = time.monotonic() + 60
    while planner.offset_range().end[1] == 3:  # Kafka answers before the marker is in the partition
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert planner.offset_range().end == {0: 0, 1: 7}


def test_a_topic_has_an_identity_of_its_own(broker: str, new_topic: Callable[..., str]) -> None:
    one, other = new_topic(), new_topic()
    assert TopicPlanner(broker, one, {}).topic_id() == TopicPlanner(broker, one, {}).topic_id() > 0
    assert TopicPlanner(broker, one, {}).topic_id() != TopicPlanner(broker, other, {}).topic_id()


def test_a_missing_topic_is_named(broker: str) -> None:
    with pytest.raises(TopicMissing, match="topic nowhere does not exist"):
        TopicPlanner(broker, "nowhere", {}).offset_range()


def test_an_unreachable_broker_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(KafkaUnavailable, match=rf"events: Kafka at {address} does not say"):
            TopicPlanner(address, "events", {}, timeout_s=1).offset_range()


def test_an_option_that_the_client_does_not_know_is_named() -> None:
    with pytest.raises(KafkaUnavailable, match=r"no\.such\.option"):
        TopicPlanner("127.0.0.1:1", "events", {"no.such.option": "1"})
