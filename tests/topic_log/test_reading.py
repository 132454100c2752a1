"""Topics read with librdkafka: ends of all partitions in two questions, several partitions at a time, clients kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ratchet.errors import BrokerUnavailable, PositionLost, TransportError
from kafka_ratchet.producers import offsets
from kafka_ratchet.topic_log import clients
from kafka_ratchet.topic_log.clients import (
    Consumers,
    OffsetRange,
    committed_positions,
    offset_ranges,
    offsets_at,
    offsets_from,
)
from kafka_ratchet.topic_log.reading import in_batches, readable_headers, records, records_between
from tests.markers import wait_for_marker


def test_committed_records_of_several_partitions_by_one_client(broker: str, new_topic: Callable[..., str]) -> None:
    topic, other = new_topic(3), new_topic(1)
    producer = Producer({"bootstrap.servers": broker, "transactional.id": topic, "transaction.timeout.ms": 600_000})
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(5):
        producer.produce(topic, b"%d" % number, partition=0)
        producer.produce(topic, b"%d" % number, partition=2)
    producer.produce(other, b"x")
    producer.commit_transaction(60)
    for name, partition, end in ((topic, 0, 6), (topic, 2, 6), (other, 0, 2)):
        wait_for_marker(broker, name, partition, end, behind_another=False)
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
    """Wait for a new topic: a first start with very many new partitions failed of it."""
    topic = new_topic(1) + "-later"
    admin = AdminClient({"bootstrap.servers": broker})
    made = threading.Timer(1.0, lambda: admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30))
    made.start()
    with Consumers({"bootstrap.servers": broker}) as clients, clients.consumer("reads") as asked:
        assert [tuple(each) for each in offset_ranges(asked, topic, 3, 5, settle_s=60)] == [(0, 0)] * 3
    made.join()


class _Answers:
    """A consumer that answers one list of offsets after the other."""

    def __init__(self, *answers: dict[int, int]) -> None:
        self.answers = list(answers)

    def offsets_for_times(self, asked: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        told = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [TopicPartition(each.topic, each.partition, told[each.partition]) for each in asked]

    def list_topics(self, topic: str, timeout: float) -> None:
        """Refresh nothing: the answers are given."""


def test_a_negative_offset_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "ASK_AGAIN_S", 0)
    asked = cast("Consumer", _Answers({0: -1001, 1: 4}, {0: -1001}, {0: 7}))
    assert offsets_at(asked, "t", range(2), OFFSET_END, 60) == [7, 4]
    held = {0: OffsetRange(0, 7), 1: OffsetRange(2, 9)}
    by_time = cast("Consumer", _Answers({0: -1001, 1: OFFSET_END}, {0: 5}))
    assert offsets_from(by_time, "t", held, 1_700_000_000_000, 60) == {0: 5, 1: 9}
    with pytest.raises(BrokerUnavailable, match="t, partition 0: its offsets cannot be read: no leader has answered"):
        offsets_at(cast("Consumer", _Answers({0: -1001})), "t", [0], OFFSET_END, 0)


class _Restarting:
    """A consumer whose broker starts again.

    librdkafka keeps an answer without the partition until the caller refreshes the topic.
    """

    def __init__(self) -> None:
        self.is_refreshed = False
        self.errors = [KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.FENCED_LEADER_EPOCH]

    def offsets_for_times(self, asked: list[TopicPartition], timeout: float) -> list[Any]:
        if self.errors:
            error = KafkaError(self.errors.pop())
            return [SimpleNamespace(partition=e.partition, offset=-1001, error=error) for e in asked]
        if not self.is_refreshed:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        return [SimpleNamespace(partition=e.partition, offset=7, error=None) for e in asked]

    def list_topics(self, topic: str, timeout: float) -> None:
        self.is_refreshed = not self.errors


def test_a_broker_that_restarts_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "ASK_AGAIN_S", 0)
    assert offsets_at(cast("Consumer", _Restarting()), "t", [0], OFFSET_END, 60, 60) == [7]


class _Group:
    """A consumer with one answer after the other about a committed offset: a number, or an error beside -1001."""

    def __init__(self, *answers: int | KafkaError) -> None:
        self.answers = list(answers)

    def committed(self, asked: list[TopicPartition], timeout: float) -> list[Any]:
        told = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        error = told if isinstance(told, KafkaError) else None
        offset = -1001 if isinstance(told, KafkaError) else told
        return [SimpleNamespace(topic=e.topic, partition=e.partition, offset=offset, error=error) for e in asked]


def test_a_committed_offset_that_is_an_error_does_not_count_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "PAUSE_S", 0)
    unstable = KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT)
    place = [TopicPartition("t", 0)]
    (found,) = committed_positions(cast("Consumer", _Group(unstable, unstable, 7)), place, 60)
    assert found.offset == 7
    (found,) = committed_positions(cast("Consumer", _Group(-1001)), place, 60)
    assert found.offset == -1001
    with pytest.raises(BrokerUnavailable, match="t partition 0: its committed offset cannot be read"):
        committed_positions(cast("Consumer", _Group(unstable)), place, 0)
    assert committed_positions(cast("Consumer", _Group(unstable)), [], 0) == []


class _Log:
    """A consumer of a partition whose new leader ends early, until its followers have caught up."""

    def __init__(self) -> None:
        self.chunks: Iterator[list[Any]] = iter([[self.message(0)], [self.end(1)], [self.message(1)], [self.end(3)]])

    def assign(self, places: list[TopicPartition]) -> None:
        pass

    def consume(self, most: int, timeout: float) -> list[Any]:
        return next(self.chunks)

    def message(self, offset: int, error: KafkaError | None = None) -> Any:
        return SimpleNamespace(offset=lambda: offset, partition=lambda: 0, error=lambda: error, headers=lambda: None)

    def end(self, offset: int) -> Any:
        return self.message(offset, KafkaError(KafkaError._PARTITION_EOF))


def test_a_partition_does_not_end_one_record_before_its_known_end() -> None:
    log = _Log()
    log.chunks = iter([[log.message(0)], [log.end(1)], [log.message(1)]])
    found = records_between(cast("Consumer", log), "t", {0: OffsetRange(0, 2)}, timeout_s=60)
    assert [each.offset() for each in found] == [0, 1]


def test_progress_and_batches_of_messages() -> None:
    seen: list[tuple[int, int]] = []
    spans = {0: OffsetRange(0, 3), 1: OffsetRange(5, 5)}
    found = records_between(
        cast("Consumer", _Log()), "t", spans, timeout_s=60, progress=lambda done, all_: seen.append((done, all_))
    )
    assert [[each.offset() for each in batch] for batch in in_batches(found, 1)] == [[0], [1]]
    assert seen == [(1, 3), (1, 3), (2, 3), (3, 3)]


def test_a_caller_that_works_long_is_no_silence_of_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("kafka_ratchet.topic_log.reading.time.monotonic", lambda: now[0])
    offsets = list[int]()
    for each in records(cast("Consumer", _Log()), "t", timeout_s=60, end=3):
        offsets.append(each.offset() or 0)
        now[0] += 100
    assert offsets == [0, 1]


class _Refusing(_Log):
    """A consumer that is refused the batch at offset 1."""

    def __init__(self) -> None:
        super().__init__()
        refused = KafkaError(KafkaError._BAD_COMPRESSION)
        beyond = KafkaError(KafkaError._AUTO_OFFSET_RESET)
        skipped = [self.message(1, refused), self.message(4), self.message(9, beyond)]
        self.chunks = iter([[self.message(0)], skipped, [self.message(4)]])
        self.assigned: list[int] = []

    def assign(self, places: list[TopicPartition]) -> None:
        self.assigned += [each.offset for each in places]


def test_a_batch_that_is_refused_is_read_by_the_second_client() -> None:
    log = _Refusing()
    found = records_between(
        cast("Consumer", log),
        "t",
        {0: OffsetRange(0, 5)},
        timeout_s=60,
        second=lambda topic, partition, offset: ([log.message(each) for each in (1, 2)], 4),
    )
    assert [each.offset() for each in found] == [0, 1, 2, 4]
    assert log.assigned == [0, 4]
    log = _Refusing()
    found = records_between(
        cast("Consumer", log),
        "t",
        {0: OffsetRange(0, 2)},
        timeout_s=60,
        second=lambda topic, partition, offset: ([log.message(each) for each in (1, 2, 3)], 4),
    )
    assert [each.offset() for each in found] == [0, 1]


def test_unreadable_headers_are_an_error_for_their_reader_alone() -> None:
    def headers() -> None:
        raise SystemError("a header name is not UTF-8")

    log = _Log()
    odd = SimpleNamespace(**{**vars(log.message(0)), "topic": lambda: "t", "headers": headers})
    log.chunks = iter([[odd]])
    (found,) = records(cast("Consumer", log), "t", timeout_s=60, end=1)
    with pytest.raises(TransportError, match=r"^t, partition 0: the record at offset 0 has a header name") as refused:
        readable_headers(found)
    assert "delete" not in str(refused.value)


class _Skipping(_Log):
    """A consumer that skips aborted batches without a word, for eight seconds after each assignment."""

    def __init__(self, now: list[float], record: int | None) -> None:
        super().__init__()
        self.now, self.record, self.assigned, self.calls = now, record, list[int](), 0

    def assign(self, places: list[TopicPartition]) -> None:
        self.assigned += [each.offset for each in places]
        self.calls = 0

    def consume(self, most: int, timeout: float) -> list[Any]:
        self.now[0] += 1
        self.calls += 1
        return [] if self.record is None or self.calls <= 8 else [self.message(self.record)]


def test_a_partition_whose_batches_are_skipped_is_not_assigned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new assignment would make librdkafka skip the same aborted batches once more."""
    now = [0.0]
    monkeypatch.setattr("kafka_ratchet.topic_log.reading.time.monotonic", lambda: now[0])
    log = _Skipping(now, 100)
    found = records_between(
        cast("Consumer", log),
        "t",
        {0: OffsetRange(0, 101)},
        timeout_s=60,
        second=lambda topic, partition, offset: ([], offset + 1),
    )
    assert [each.offset() for each in found] == [100]
    assert log.assigned == [0]


def test_a_partition_of_aborted_batches_alone_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("kafka_ratchet.topic_log.reading.time.monotonic", lambda: now[0])
    log = _Skipping(now, None)
    spans = {0: OffsetRange(0, 3)}
    second = iter([(list[Any](), 2), (list[Any](), 3)])
    assert not [*records_between(cast("Consumer", log), "t", spans, timeout_s=60, second=lambda *_: next(second))]
    assert log.assigned == [0]


def test_the_second_client_does_not_outlast_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [0.0], list[int]()
    monkeypatch.setattr("kafka_ratchet.topic_log.reading.time.monotonic", lambda: now[0])

    def second(topic: str, partition: int, offset: int) -> None:
        calls.append(partition)
        now[0] += 15

    spans = {number: OffsetRange(0, 1) for number in range(10)}
    found = records_between(cast("Consumer", _Skipping(now, None)), "t", spans, timeout_s=20, second=second)
    with pytest.raises(BrokerUnavailable, match="Kafka sent nothing for 20 s"):
        list(found)
    assert calls == [0, 1]


def test_an_offset_out_of_range_is_lost_only_if_the_second_client_finds_nothing_there() -> None:
    answers: list[tuple[list[Any], int] | None] = [None, ([], 5)]
    for found in answers:
        log = _Log()
        log.chunks = iter([[log.message(0)], [log.message(1, KafkaError(KafkaError._AUTO_OFFSET_RESET))]])
        given = records_between(
            cast("Consumer", log), "t", {0: OffsetRange(0, 5)}, timeout_s=60, second=lambda *_, found=found: found
        )
        if found is None:
            with pytest.raises(PositionLost):
                list(given)
        else:
            assert [each.offset() for each in given] == [0]


def test_a_batch_that_the_second_client_does_not_get_is_asked_for_again() -> None:
    log = _Refusing()
    answers = iter([None, ([log.message(1), log.message(2)], 4)])
    refused = log.message(1, KafkaError(KafkaError._BAD_COMPRESSION))
    log.chunks = iter([[log.message(0)], [refused, log.message(4)], [refused], [log.message(4)]])
    found = records_between(
        cast("Consumer", log), "t", {0: OffsetRange(0, 5)}, timeout_s=60, second=lambda *_: next(answers)
    )
    assert [each.offset() for each in found] == [0, 1, 2, 4]
    assert log.assigned == [0, 1, 4]


def test_a_partition_does_not_end_before_its_known_end() -> None:
    found = records(cast("Consumer", _Log()), "t", timeout_s=60, end=3)
    assert [each.offset() for each in found] == [0, 1]
    found = records_between(cast("Consumer", _Log()), "t", {0: OffsetRange(0, 3)}, timeout_s=60)
    assert [each.offset() for each in found] == [0, 1]
    assert [each.offset() for each in records(cast("Consumer", _Log()), "t", timeout_s=60)] == [0]
