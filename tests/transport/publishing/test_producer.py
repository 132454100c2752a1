"""The producer of batches keeps every promise of the other one: the same tests, run with it in its place."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as Topic

from kafka_ratchet.app.local.embedded_kafka import LET_IN_AGAIN_SOON, EmbeddedBroker
from kafka_ratchet.errors import RecordTooLarge, SettingsError, TopicMissing
from kafka_ratchet.producers import Producer
from kafka_ratchet.transport.publishing.producer import BLOCK_LEAST, RECORD_COSTS, BatchProducer
from tests.producers import test_many as many
from tests.producers import test_producer as one
from tests.producers.test_producer import read, sequences

NewTopic = Callable[..., str]


@pytest.fixture
def name() -> str:
    return f"producer-{uuid.uuid4().hex[:8]}"


@pytest.fixture(autouse=True)
def _in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one, "Producer", BatchProducer)
    monkeypatch.setattr(many, "Producer", BatchProducer)


test_a_new_name = one.test_a_new_name_and_what_its_records_look_like
test_the_name_goes_on = one.test_the_name_goes_on_where_it_had_come_to
test_a_sequence_that_does_not_rise = one.test_a_sequence_that_does_not_rise_is_refused
test_from_the_start_again = one.test_from_the_start_again_under_the_same_name
test_keys_go_where_librdkafka_sends_them = one.test_keys_go_where_librdkafka_sends_them
test_a_name_keeps_its_partition_count = one.test_a_name_keeps_its_partition_count
test_a_topic_created_again_under_a_live_producer = one.test_a_topic_created_again_under_a_live_producer
test_progress_is_stored_meanwhile = one.test_progress_is_stored_while_the_program_does_something_else
test_a_full_queue_waits = one.test_a_full_queue_waits
test_a_record_larger_than_the_client_allows = one.test_a_record_larger_than_the_client_allows
test_numbers_are_ours_or_the_users = one.test_numbers_are_ours_or_the_users
test_a_newer_producer_stops_the_older = one.test_a_newer_producer_of_the_name_stops_the_older
test_a_slowly_read_source = one.test_a_newer_producer_that_reads_its_source_for_long_stops_the_older
test_a_name_that_a_program_has_used = one.test_a_source_whose_name_a_program_has_used_is_refused
test_a_closed_producer_says_so = one.test_a_closed_producer_says_so
test_ones_own_source = one.test_ones_own_source_resumes_and_a_changed_one_is_refused
test_kafka_that_goes_away_is_waited_for = one.test_kafka_that_goes_away_is_waited_for
test_sent_as_by_as_many_calls = many.test_sent_as_by_as_many_calls
test_an_error_in_the_middle = many.test_an_error_in_the_middle_is_where_as_many_calls_would_have_it
test_whole_numbers = many.test_sequences_are_whole_numbers_of_any_make
test_options_that_name_no_kafka = many.test_options_that_name_no_kafka_are_refused_at_once
test_the_last_automatic_sequence = many.test_the_last_automatic_sequence


def test_a_name_goes_from_one_kind_of_producer_to_the_other(broker: str, new_topic: NewTopic, name: str) -> None:
    topic, options, total = new_topic(3), {"bootstrap.servers": broker}, 0
    for kind in (Producer, BatchProducer, Producer, BatchProducer):
        with kind(topic, name, options=options) as producer:
            assert producer.resume_from() == total - 1
            count = BLOCK_LEAST // RECORD_COSTS + 100
            producer.send_many([b"v"] * count, [b"k%d" % (n % 30) for n in range(total, total + count)])
            total += count
            producer.flush()
            told = producer.metrics()
            assert (told.sent, told.acknowledged, told.in_flight, told.retries) == (count, count, 0, told.retries)
            assert sum(told.acknowledge_counts) > 0
    found: dict[bytes, int] = {}
    for partition in range(3):
        for message in read(broker, topic, partition):
            assert found.setdefault(message.key(), partition) == partition
        assert sequences(broker, topic, partition) == sorted(set(sequences(broker, topic, partition)))
    assert sum(len(read(broker, topic, partition)) for partition in range(3)) == total


def test_the_topics_own_limit_is_known(broker: str, new_topic: NewTopic, name: str) -> None:
    topic = new_topic(1, max_message_bytes=1000)
    with BatchProducer(topic, name, options={"bootstrap.servers": broker}) as producer:
        producer.send_many([b"x" * 300] * 50)
        with pytest.raises(RecordTooLarge, match=r"sequence 50: 5000 bytes .* max\.message\.bytes"):
            producer.send(b"x" * 5000)
        assert producer.send(b"y") == 50
    assert sequences(broker, topic, 0) == list(range(51))


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_read_by_librdkafka(
    broker: str, new_topic: NewTopic, name: str, compression: str
) -> None:
    topic, options = new_topic(1), {"bootstrap.servers": broker, "compression.type": compression}
    values = [b"value %d" % n * 20 for n in range(3000)]
    with BatchProducer(topic, name, options=options) as producer:
        producer.send_many(values)
    assert [message.value() for message in read(broker, topic, 0)] == values


def test_options_of_librdkafka_alone_are_refused_by_their_names(broker: str, new_topic: NewTopic, name: str) -> None:
    topic = new_topic(1)
    for option, value, said in (
        ("plugin.library.paths", "x", "exists only in librdkafka"),
        ("compression.level", 3, "exists only in librdkafka"),
        ("compression.type", "best", "Write one of none, gzip"),
        ("request.timeout.ms", "soon", "must be a number"),
        ("ssl.engine.location", "x", "does not support this option"),
    ):
        with pytest.raises(SettingsError, match=rf"kafka\.{option}: .*{said}"):
            BatchProducer(topic, name, options={"bootstrap.servers": broker, option: value})
    with pytest.raises(TopicMissing):
        BatchProducer("no-such-topic", name, options={"bootstrap.servers": broker})


def test_a_broker_that_is_killed_while_batches_are_under_way(name: str) -> None:
    """Records in flight on several partitions, answers lost, sent again: each once, in order, none missing."""
    with EmbeddedBroker(options=LET_IN_AGAIN_SOON) as embedded:
        options: dict[str, Any] = {"bootstrap.servers": embedded.bootstrap, "queue.buffering.max.kbytes": 4096}
        admin = AdminClient(options)
        admin.create_topics([Topic("events", 3, 1)])["events"].result(30)
        with BatchProducer("events", name, options=options, say=lambda sentence: None) as producer:
            values = [b"%d" % n + b"x" * 300 for n in range(60_000)]
            keys = [b"k%d" % (n % 100) for n in range(60_000)]
            producer.send_many(values[:45_000], keys[:45_000])
            assert not producer._accumulator.is_empty()
            embedded.kill()
            embedded.start()
            producer.send_many(values[45_000:], keys[45_000:])
            producer.flush()
            assert producer.resume_from() == 59_999
        found = [sequences(embedded.bootstrap, "events", partition) for partition in range(3)]
        assert sorted(number for each in found for number in each) == list(range(60_000))
        assert all(each == sorted(each) for each in found)
