"""Planning: which offsets to read, from Kafka's own answers."""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faults.kafka import EmbeddedKafka
from kafka_ratchet.app.inspect.sinks import SinkProgress
from kafka_ratchet.spark_sink.errors import (
    KafkaUnavailable,
    OffsetsLost,
    TopicMissing,
    TopicRecreated,
    WriteModeDiffers,
)
from kafka_ratchet.spark_sink.job.plan import OffsetRange, TopicPlanner, resume
from kafka_ratchet.spark_sink.job.reading import slices
from kafka_ratchet.spark_sink.job.status import SinkStatus, sink_status

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


def test_status_of_a_job_that_refuses_has_no_lag() -> None:
    store = SimpleNamespace(generation=lambda: 1, offsets=lambda: {0: 9})
    held = OffsetRange("t", {0: 0}, {0: 9})
    planner = SimpleNamespace(
        high_watermarks=lambda: {0: 9}, offset_range=lambda: held, first_unread_timestamps=lambda *_: {}
    )

    def refuse() -> None:
        raise WriteModeDiffers("job j has committed by kind append, and is set to kind upsert")

    found = sink_status(cast("Any", store), cast("Any", planner), refuse)
    assert (found.total_lag, SinkProgress("delta", "j", "t", found, []).as_dict()["lag"]) == (None, None)
    assert "set to kind upsert" in found.trouble
    assert sink_status(cast("Any", store), cast("Any", planner)).total_lag == 0


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


def test_a_partition_that_a_broker_does_not_name_is_no_new_topic() -> None:
    with pytest.raises(KafkaUnavailable, match=r"t/1: the table has read up to offset 4.*does not list this partition"):
        resume(OffsetRange("t", {0: 0}, {0: 9}, topic_id=7), {0: 9, 1: 4})


class _Leaderless:
    """A client whose answers for partition 1 are librdkafka's for a leader that is away: -1001, and no error.

    Args:
        times: of such answers; then the true one.
    """

    def __init__(self, times: int) -> None:
        self.left = times

    def offsets_for_times(self, asked: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        self.left -= 1
        away = self.left >= 0
        return [TopicPartition("t", each.partition, -1001 if each.partition == 1 and away else 9) for each in asked]

    def list_topics(self, topic: str, timeout: float) -> None:
        pass


def test_a_negative_offset_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_ratchet.spark_sink.job.plan.LEADER_PAUSE_S", 0)
    planner, client = TopicPlanner("127.0.0.1:1", "t", {}, timeout_s=60), _Leaderless(times=3)
    planner._consumers[True] = cast("Any", client)
    assert planner._offsets([0, 1], OFFSET_END) == {0: 9, 1: 9}
    assert client.left == -1
    planner = TopicPlanner("127.0.0.1:1", "t", {}, timeout_s=0)
    planner._consumers[True] = cast("Any", _Leaderless(times=1_000_000))
    with pytest.raises(KafkaUnavailable, match=r"t/1: .*does not give its offsets \(no leader has answered\)"):
        planner._offsets([0, 1], OFFSET_END)


@pytest.mark.matrix
def test_a_leader_that_is_away_is_not_connected_to_without_a_pause(tmp_path: Path) -> None:
    """Without a majority, the metadata keeps the dead leaders."""
    connects: dict[str, int] = {}

    def note(statistics: str) -> None:
        told = json.loads(statistics)
        connects[told["name"]] = sum(each["connects"] for each in told["brokers"].values())

    options: dict[str, Any] = {"stats_cb": note, "statistics.interval.ms": 200}
    with EmbeddedKafka(tmp_path, nodes=3, workers=0) as kafka:
        admin = kafka.admin()
        admin.create_topics([NewTopic("t", 3, 3)])["t"].result(60)
        planner, deadline = TopicPlanner(kafka.bootstrap, "t", options, timeout_s=5), time.monotonic() + 60
        while True:  # not every node knows a new topic
            try:
                assert planner.offset_range().end == {0: 0, 1: 0, 2: 0}
                break
            except (TopicMissing, KafkaUnavailable):
                assert time.monotonic() < deadline
        for node in kafka.nodes[1:]:
            node.kill()
        with pytest.raises(KafkaUnavailable, match="does not give its offsets"):
            planner._offsets([0, 1, 2], OFFSET_END)
        for client in (planner._admin, *planner._consumers.values()):
            client.poll(1)
    assert connects
    assert max(connects.values()) < 100


@pytest.mark.matrix
def test_a_topic_is_described_while_the_controller_is_dead(tmp_path: Path) -> None:
    """Kafka names another controller, but only to a client that asks who it is."""
    with EmbeddedKafka(tmp_path, nodes=3, workers=0) as kafka:
        admin = kafka.admin()
        admin.create_topics([NewTopic("t", 3, 3)])["t"].result(60)
        planner, deadline = TopicPlanner(kafka.bootstrap, "t", {}, timeout_s=60), time.monotonic() + 60
        while True:  # not every node knows a new topic
            try:
                topic_id = planner.topic_id()
                break
            except TopicMissing:
                assert time.monotonic() < deadline
        dead = planner._admin.list_topics(timeout=60).controller_id
        kafka.nodes[dead - 1].kill()
        assert planner.topic_id() == topic_id
        assert planner.cleanup_policy() == "delete"


@pytest.mark.parametrize(("stored", "lag", "trouble"), [(90, 0, False), (100, None, True), (4, None, True)])
def test_status_has_no_lag_where_the_job_does_not_go_on(stored: int, lag: int | None, trouble: bool) -> None:
    found = SinkStatus(
        3, {0: stored, 1: 8}, OffsetRange("t", {0: 5, 1: 0}, {0: 90, 1: 10}), trouble="" if lag == 0 else "x"
    )
    assert found.lag == {0: lag, 1: 2}
    told = SinkProgress("delta", "j", "t", found, []).as_dict()
    assert told["partitions"]["0"] == {"offset": stored, "end": 90, "lag": lag, "lag_s": None if trouble else 0.0}
    assert (told["lag"], told["lag_s"], bool(told["trouble"])) == (
        (2, 0.0, False) if not trouble else (None, None, True)
    )


def test_status_says_why_the_job_does_not_go_on() -> None:
    store = SimpleNamespace(generation=lambda: 1, offsets=lambda: {0: 100})
    planner = SimpleNamespace(
        offset_range=lambda: OffsetRange("t", {0: 0}, {0: 90}, 7),
        high_watermarks=lambda: {0: 90},
        first_unread_timestamps=lambda *_: {},
    )
    found = sink_status(cast("Any", store), cast("Any", planner))
    assert "t/0: the table has read up to offset 100, but the topic ends at 90" in found.trouble
    assert found.total_lag is None


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
        with pytest.raises(KafkaUnavailable, match=rf"events: Kafka at {address} does not give"):
            TopicPlanner(address, "events", {}, timeout_s=1).offset_range()


def test_an_option_that_the_client_does_not_know_is_named() -> None:
    with pytest.raises(KafkaUnavailable, match=r"no\.such\.option"):
        TopicPlanner("127.0.0.1:1", "events", {"no.such.option": "1"})
