import json
import re
import time
import uuid
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition
from confluent_kafka import Producer as PlainProducer
from confluent_kafka.admin import (
    AdminClient,
    NewPartitions,
)
from confluent_kafka.admin import NewTopic as Topic

from kafka_ratchet.app.local.embedded_kafka import LET_IN_AGAIN_SOON, EmbeddedBroker
from kafka_ratchet.errors import (
    BrokerUnavailable,
    ProducerFenced,
    RatchetError,
    RecordTooLarge,
    SettingsError,
    SourceError,
    TopicError,
    TopicMissing,
    TopicReplaced,
    TransportError,
)
from kafka_ratchet.producers import (
    END_OF_PARTITION,
    PROGRESS_TOPIC,
    FileSource,
    Producer,
    Record,
    create_topic,
    publish,
)
from kafka_ratchet.producers import named as producer_module
from kafka_ratchet.producers import progress as progress_module
from kafka_ratchet.producers.progress import progress_key
from kafka_ratchet.producers.topics import describe_topic, made_topic
from tests.topic_config import set_topic_config

NewTopic = Callable[..., str]


@pytest.fixture
def name() -> str:
    return f"producer-{uuid.uuid4().hex[:8]}"


def read(broker: str, topic: str, partition: int, isolation: str = "read_committed") -> list[Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker,
            "group.id": "t",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "isolation.level": isolation,
        }
    )
    consumer.list_topics(topic, timeout=60)  # one that has met no broker reads half a second later
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    found: list[Message] = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None
            if message.error():
                assert message.error().code() == END_OF_PARTITION
                return found
            found.append(message)
    finally:
        consumer.close()


def sequence_of(message: Message) -> int:
    return int.from_bytes(dict(message.headers())["ratchet-sequence"], "big")


def sequences(broker: str, topic: str, partition: int) -> list[int]:
    return [sequence_of(message) for message in read(broker, topic, partition)]


def progress(broker: str, topic: str, name: str) -> list[dict[str, Any]]:
    """Return the stored progress of a name, as its successor reads it: markers come after Kafka's answer."""
    key = json.dumps([topic, name], separators=(",", ":")).encode()
    entries = read(broker, PROGRESS_TOPIC, 0, "read_uncommitted")
    return [json.loads(message.value()) for message in entries if message.key() == key]


def test_a_new_name_and_what_its_records_look_like(broker: str, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    with Producer(topic, "Größe 1", options={"bootstrap.servers": broker}) as producer:
        assert (producer.last_sequence_id(), producer.resume_from(), producer.resumed_after) == (-1, -1, -1)
        producer.send(b"value", b"key", sequence=7)
        producer.send(None, sequence=1 << 40)
        producer.flush()
        assert (producer.last_sequence_id(), producer.resume_from()) == (1 << 40, 1 << 40)
    first, second = read(broker, topic, 0)
    assert (first.key(), first.value(), second.key(), second.value()) == (b"key", b"value", None, None)
    assert first.headers() == [("ratchet-producer", "Größe 1".encode()), ("ratchet-sequence", (7).to_bytes(8, "big"))]
    assert sequence_of(second) == 1 << 40


def test_the_name_goes_on_where_it_had_come_to(broker: str, new_topic: NewTopic, name: str) -> None:
    topic, options = new_topic(4), {"bootstrap.servers": broker}
    with Producer(topic, name, options=options) as producer:
        for sequence in range(0, 500, 5):
            producer.send(b"v", b"%d" % sequence, sequence=sequence)
    with Producer(topic, name, options=options) as producer:
        assert (producer.last_sequence_id(), producer.resume_from(), producer.resumed_after) == (495, 495, 495)
        with pytest.raises(SourceError, match=r"495 .* does not rise above 495"):
            producer.send(b"v", sequence=495)
        producer.send(b"v", sequence=496)
    with Producer(topic, "another", options=options) as producer:
        assert producer.resume_from() == -1
    newest = progress(broker, topic, name)[-1]
    assert (newest["sequence"], newest["records"], newest["partitions"]) == (496, 101, 4)


def test_a_sequence_that_does_not_rise_is_refused(broker: str, new_topic: NewTopic, name: str) -> None:
    topic = new_topic(1)
    with Producer(topic, name, options={"bootstrap.servers": broker}) as producer:
        producer.send(b"v", sequence=5)
        for wrong in (5, 4, 0):
            with pytest.raises(SourceError, match="does not rise above 5"):
                producer.send(b"v", sequence=wrong)
        for wrong in (-1, 2**63):
            with pytest.raises(SourceError, match=r"not within 0 and 2\^63-1"):
                producer.send(b"v", sequence=wrong)
        producer.send(b"v", sequence=6)
    assert sequences(broker, topic, 0) == [5, 6]


def test_from_the_start_again_under_the_same_name(broker: str, new_topic: NewTopic, name: str) -> None:
    topic, options = new_topic(1), {"bootstrap.servers": broker}
    with Producer(topic, name, options=options) as producer:
        for sequence in range(5):
            producer.send(b"v", sequence=sequence)
    with Producer(topic, name, options=options, from_start=True) as producer:
        assert (producer.resumed_after, producer.resume_from(), producer.last_sequence_id()) == (-1, -1, 4)
        assert not producer.has_persisted(0)
        producer.send(b"v", sequence=0)
        producer.send(b"v", sequence=2)
        producer.flush()
        assert (producer.resume_from(), producer.has_persisted(2), producer.has_persisted(3)) == (2, True, False)
    assert sequences(broker, topic, 0) == [0, 1, 2, 3, 4, 0, 2]
    newest = progress(broker, topic, name)[-1]
    assert (newest["sequence"], newest["records"]) == (4, 5)  # what was reached stays reached
    with Producer(topic, name, options=options, from_start=True) as producer:
        for sequence in range(6):
            producer.send(b"v", sequence=sequence)
    newest = progress(broker, topic, name)[-1]
    assert (newest["sequence"], newest["records"]) == (5, 6)


def test_keys_go_where_librdkafka_sends_them(broker: str, new_topic: NewTopic, name: str) -> None:
    ours, theirs = new_topic(7), new_topic(7)
    keys = [b"%d" % i for i in range(100)] + ["ключ".encode()]
    with Producer(ours, name, options={"bootstrap.servers": broker}) as producer:
        for sequence, key in enumerate(keys):
            producer.send(b"v", key, sequence=sequence)
    plain = PlainProducer({"bootstrap.servers": broker})
    for key in keys:
        plain.produce(theirs, b"v", key)
    plain.flush()
    for partition in range(7):
        assert [m.key() for m in read(broker, ours, partition)] == [m.key() for m in read(broker, theirs, partition)]


def test_keyless_records_of_a_name_share_a_partition(broker: str, new_topic: NewTopic, name: str) -> None:
    topic = new_topic(4)
    for _ in range(2):
        with Producer(topic, name, options={"bootstrap.servers": broker}, from_start=True) as producer:
            for sequence in range(50):
                producer.send(b"v", sequence=sequence)
    counts = sorted(len(read(broker, topic, partition)) for partition in range(4))
    assert counts == [0, 0, 0, 100]


def test_a_name_keeps_its_partition_count(broker: str, new_topic: NewTopic, name: str) -> None:
    topic, options = new_topic(2), {"bootstrap.servers": broker}

    def send_all() -> None:
        with Producer(topic, name, options=options, from_start=True) as producer:
            for sequence in range(40):
                producer.send(b"v", b"%d" % sequence, sequence=sequence)

    send_all()
    admin = AdminClient(options)
    admin.create_partitions([NewPartitions(topic, 6)])[topic].result(60)
    send_all()
    for partition in range(2):
        twice = sequences(broker, topic, partition)
        assert twice[: len(twice) // 2] == twice[len(twice) // 2 :]
    assert all(sequences(broker, topic, partition) == [] for partition in range(2, 6))


def created_again(broker: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker})
    admin.delete_topics([topic])[topic].result(60)
    deadline = time.monotonic() + 120
    while topic in admin.list_topics(timeout=60).topics:
        assert time.monotonic() < deadline
    create_topic(admin, topic, partitions=1, timeout_s=60, say=print)


def test_a_topic_created_again_is_another_topic_until_somebody_decides(
    broker: str, new_topic: NewTopic, name: str
) -> None:
    topic, options = new_topic(1), {"bootstrap.servers": broker}
    names = {decided: f"{name}-{decided}" for decided in ("resend", "keep", "start")}
    for each in names.values():
        with Producer(topic, each, options=options) as producer:
            producer.send(b"v", sequence=10)
    was = str(progress(broker, topic, names["keep"])[-1]["topic_id"])
    created_again(broker, topic)
    for each in names.values():
        said = rf"had the id {re.escape(was)}.* 1 records up to sequence 10, .*--topic-replaced"
        with pytest.raises(TopicReplaced, match=said):
            Producer(topic, each, options=options)
    with Producer(topic, names["resend"], options=options, topic_replaced="resend") as producer:
        assert producer.resume_from() == -1
        producer.send(b"v", sequence=1)
    with Producer(topic, names["keep"], options=options, topic_replaced="keep") as producer:
        assert (producer.resume_from(), producer.last_sequence_id()) == (10, 10)
        producer.send(b"v", sequence=11)
    with Producer(topic, names["start"], options=options, from_start=True) as producer:
        producer.send(b"v", sequence=2)
    with Producer(topic, names["resend"], options=options) as producer:  # it was decided once
        assert producer.resume_from() == 1
    assert sequences(broker, topic, 0) == [1, 11, 2]
    for decided in ("resend", "keep"):
        newest = progress(broker, topic, names[decided])[-1]
        said = newest["decision"]
        assert re.fullmatch(rf"{decided} by .+@.+ at 2.*: topic .*{re.escape(was)}.*; sequence 10 was reached", said)
    with pytest.raises(SettingsError, match="write resend or keep"):
        Producer(topic, name, options=options, topic_replaced="maybe")  # type: ignore[arg-type]


def test_a_topic_created_again_under_a_live_producer(broker: str, new_topic: NewTopic, name: str) -> None:
    topic, options = new_topic(1), {"bootstrap.servers": broker}
    producer = Producer(topic, name, options=options, store_s=3600)
    producer.send(b"v", sequence=1)
    producer.flush()
    created_again(broker, topic)
    producer.send(b"v", sequence=2)
    with pytest.raises(TopicReplaced, match=r"created again while producer"):
        producer.flush()
    with pytest.raises(TopicReplaced):
        producer.close()
    assert progress(broker, topic, name)[-1]["sequence"] == 1  # of the topic that had its record


def test_a_name_that_numbered_its_records_itself_takes_no_source(broker: str, new_topic: NewTopic, name: str) -> None:
    topic, options = new_topic(1), {"bootstrap.servers": broker}
    with Producer(topic, name, options=options) as producer:
        producer.send(b"v", sequence=5)
    with pytest.raises(SourceError, match="from a program that chose the sequences itself"):
        Producer(topic, name, options=options, source=Numbers(10, "mine"))


def test_a_source_whose_name_a_program_has_used_is_refused(
    broker: str, new_topic: NewTopic, name: str, tmp_path: Path
) -> None:
    """Its next records would have numbers that the program has given to others."""
    topic, options, path = new_topic(1), {"bootstrap.servers": broker}, tmp_path / "till.ndjson"

    def run() -> int:
        path.write_text("".join(f'{{"n":{n}}}\n' for n in range(1, 15)))
        source = FileSource(path, sequence_field="n")
        with Producer(topic, name, options=options, source=source) as producer:
            return publish(source, producer).published

    assert run() == 14
    with Producer(topic, name, options=options) as idle:
        assert idle.resume_from() == 14
    assert run() == 0  # nothing was sent in between
    program = Producer(topic, name, options=options, store_s=3600)
    program.send(b"another's")
    assert progress(broker, topic, name)[-1]["source"] is None  # stored before the record: the program may be killed
    program.send(b"another's")
    program.close()
    with pytest.raises(SourceError, match="up to sequence 16 from a program that chose the sequences itself"):
        run()


def test_progress_is_stored_every_n_records(broker: str, new_topic: NewTopic, name: str) -> None:
    topic = new_topic(3)
    with Producer(topic, name, options={"bootstrap.servers": broker}, store_records=100, store_s=3600) as producer:
        for sequence in range(500):
            producer.send(b"v", b"%d" % sequence, sequence=sequence)
        deadline = time.monotonic() + 120
        while len(progress(broker, topic, name)) < 2:  # else a slow broker acknowledges all of them at the end
            assert time.monotonic() < deadline
        for sequence in range(500, 1000):
            producer.send(b"v", b"%d" % sequence, sequence=sequence)
    stored = [int(str(entry["sequence"])) for entry in progress(broker, topic, name)]
    assert stored[0] == -1
    assert stored[-1] == 999
    assert stored == sorted(stored)
    assert len(stored) >= 3  # the beginning, the end, and some on the way


@pytest.mark.parametrize("ended", [KeyboardInterrupt, SystemExit, CancelledError])
def test_an_interrupted_producer_stores_what_is_in_kafka(
    broker: str, new_topic: NewTopic, name: str, ended: type[BaseException]
) -> None:
    topic, options = new_topic(2), {"bootstrap.servers": broker}
    producer = Producer(topic, name, options=options, store_records=10**9, store_s=3600)

    def run() -> None:
        with producer:
            for sequence in range(1000):
                producer.send(b"v", b"%d" % sequence, sequence=sequence)
            raise ended

    with pytest.raises(ended):
        run()
    assert progress(broker, topic, name)[-1]["sequence"] == 999
    with pytest.raises(TransportError, match="is closed"):
        producer.send(b"v")


def test_progress_is_stored_while_the_program_does_something_else(broker: str, new_topic: NewTopic, name: str) -> None:
    topic = new_topic(1)
    with Producer(topic, name, options={"bootstrap.servers": broker}, store_s=0.2) as producer:
        producer.send(b"v", sequence=3)
        deadline = time.monotonic() + 120
        while progress(broker, topic, name)[-1]["sequence"] != 3:
            assert time.monotonic() < deadline


def test_a_partition_that_gets_no_more_records_does_not_hold_back_the_progress(
    broker: str, new_topic: NewTopic, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "LAG_S", 0.3)
    topic = new_topic(2)
    with Producer(topic, name, options={"bootstrap.servers": broker}, store_s=0.1) as producer:
        for sequence in range(50):  # one report, for the first of them
            producer.send(b"v", b"0", sequence=sequence)
        sequence, deadline = 50, time.monotonic() + 120
        while producer.resume_from() < 100:  # never idle: there is always one more under way
            producer.send(b"v", b"4", sequence=sequence)
            sequence += 1
            assert time.monotonic() < deadline
    assert len(sequences(broker, topic, 0)) + len(sequences(broker, topic, 1)) == sequence


def test_a_full_queue_waits(broker: str, new_topic: NewTopic, name: str) -> None:
    topic = new_topic(1)
    options: dict[str, Any] = {"bootstrap.servers": broker, "queue.buffering.max.messages": 50}
    with Producer(topic, name, options=options) as producer:
        for sequence in range(3000):
            producer.send(b"v" * 100, sequence=sequence)
    assert sequences(broker, topic, 0) == list(range(3000))


def test_a_refused_record_stops_everything_behind_it(broker: str, new_topic: NewTopic, name: str) -> None:
    topic = new_topic(1, max_message_bytes=1000)
    options: dict[str, Any] = {"bootstrap.servers": broker, "linger.ms": 0}
    producer = Producer(topic, name, options=options)
    producer.send(b"small", sequence=1)
    producer.flush()
    producer.send(b"x" * 5000, sequence=2)

    def go_on() -> None:
        for sequence in range(3, 100_000):
            producer.send(b"small", sequence=sequence)
        producer.flush()  # all of them may be sent before Kafka has refused one

    with pytest.raises(RecordTooLarge, match=r"sequence 2, partition 0.*max\.message\.bytes"):
        go_on()
    with pytest.raises(RecordTooLarge):
        producer.close()
    with Producer(topic, name, options=options) as successor:
        assert successor.resume_from() == 1
        successor.send(b"small", sequence=2)
    assert sequences(broker, topic, 0) == [1, 2]


def test_a_record_larger_than_the_client_allows(broker: str, new_topic: NewTopic, name: str) -> None:
    topic = new_topic(1)
    with Producer(topic, name, options={"bootstrap.servers": broker}) as producer:
        with pytest.raises(RecordTooLarge, match=r"message\.max\.bytes"):
            producer.send(b"x" * 2_000_000, sequence=1)
        producer.send(b"small", sequence=1)
        producer.flush()
        assert producer.resume_from() == 1


def test_a_missing_topic_is_not_created(broker: str, name: str) -> None:
    with pytest.raises(TopicMissing, match="'no-such-topic' does not exist"):
        Producer("no-such-topic", name, options={"bootstrap.servers": broker})
    assert "no-such-topic" not in AdminClient({"bootstrap.servers": broker}).list_topics(timeout=60).topics


def test_nobody_listens(name: str) -> None:
    said: list[str] = []
    options: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:1"}
    with pytest.raises(BrokerUnavailable, match="did not answer within 3 s"):
        Producer("topic", name, options=options, timeout_s=3.0, say=said.append)
    assert "does not answer yet" in said[0]


def test_a_name_is_given_where_there_is_none(broker: str, new_topic: NewTopic) -> None:
    topic, options = new_topic(1), {"bootstrap.servers": broker}
    with Producer(topic, options=options) as one, Producer(topic, options=options) as other:
        assert one.name != other.name
        assert (one.send(b"a"), one.send(b"b"), other.send(b"c")) == (0, 1, 0)
    with Producer(topic, one.name, options=options) as again:  # for who has noted it down
        assert (again.last_sequence_id(), again.send(b"d")) == (1, 2)
    found = {(dict(m.headers())["ratchet-producer"].decode(), sequence_of(m)) for m in read(broker, topic, 0)}
    assert found == {(one.name, 0), (one.name, 1), (other.name, 0), (one.name, 2)}


def test_numbers_are_ours_or_the_users(broker: str, new_topic: NewTopic, name: str) -> None:
    topic, options = new_topic(1), {"bootstrap.servers": broker}
    with Producer(topic, name, 100, options=options) as producer:
        assert [producer.send(b"v") for _ in range(3)] == [100, 101, 102]
        with pytest.raises(SourceError, match=r"without a sequence of their own, and this one has 500"):
            producer.send(b"v", sequence=500)
        assert producer.send(b"v") == 103
    with Producer(topic, name, 100, options=options) as producer:
        assert producer.send(b"v") == 104  # what the name has reached counts, not where it began
    with Producer(topic, name, options=options) as producer:
        with pytest.raises(SourceError, match="does not rise above 104"):
            producer.send(b"v", sequence=3)
        producer.send(b"v", sequence=110)
        with pytest.raises(SourceError, match=r"with sequences of their own, and this one has none"):
            producer.send(b"v")
        producer.send(b"v", sequence=2**63 - 2)
    with Producer(topic, name, options=options) as producer:
        assert producer.send(b"v") == 2**63 - 1
        with pytest.raises(SourceError, match=r"last sequence, 2\^63-1: continue under another name"):
            producer.send(b"v")
    assert sequences(broker, topic, 0) == [100, 101, 102, 103, 104, 110, 2**63 - 2, 2**63 - 1]
    for wrong in (-1, 2**63):
        with pytest.raises(SettingsError, match=r"initial_sequence .* is not within 0 and 2\^63-1"):
            Producer(topic, name, wrong, options=options)


def test_a_newer_producer_of_the_name_stops_the_older(broker: str, new_topic: NewTopic, name: str) -> None:
    topic, options = new_topic(1), {"bootstrap.servers": broker}

    def taken_over() -> pytest.RaisesExc[ProducerFenced]:
        return pytest.raises(ProducerFenced, match=rf"{name}' of topic '{topic}' has been taken over.*name of its own")

    idle = Producer(topic, name, options=options, store_s=0.2)
    flushing = Producer(topic, name, options=options, store_s=3600)
    deadline = time.monotonic() + 120
    with taken_over():  # it notices by itself
        while time.monotonic() < deadline:
            idle._accumulator.check()
            time.sleep(0.05)
    with taken_over():
        idle.send(b"v")
    flushing.send(b"first")
    with Producer(topic, name, options=options, store_s=0.2) as newest:
        with taken_over():
            flushing.flush()  # the record is in Kafka; that it was persisted for the name, nobody may say any more
        with taken_over():
            flushing.close()
        assert newest.resume_from() == -1
        newest.send(b"second")
    with taken_over():
        idle.close()
    assert [message.value() for message in read(broker, topic, 0)] == [b"first", b"second"]
    with Producer(topic, name, options=options) as successor:
        assert successor.resume_from() == 0


def test_a_newer_producer_that_reads_its_source_for_long_stops_the_older(
    broker: str, new_topic: NewTopic, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "DOUBT_S", 0.5)  # shorter than the reading below
    topic, options = new_topic(1), {"bootstrap.servers": broker}
    with Producer(topic, name, options=options, source=Numbers(9, "mine")) as producer:
        producer.send(b"v", sequence=1)
    older = Producer(topic, name, options=options, source=Numbers(9, "mine"), store_s=0.1)

    class Large(Numbers):
        checks = 0

        def check(self, sequence: int, mark: str) -> None:
            self.checks += 1
            deadline = time.monotonic() + 120
            while self.checks == 2 and older._accumulator.failure is None:
                assert time.monotonic() < deadline, "the older producer goes on"
                time.sleep(0.05)

    with Producer(topic, name, options=options, source=Large(9, "mine")) as newer:
        newer.send(b"v", sequence=2)
    with pytest.raises(ProducerFenced, match="has been taken over"):
        older.close()
    assert progress(broker, topic, name)[-1]["sequence"] == 2


def test_an_epoch_that_ends_without_a_successor_is_begun_anew(
    broker: str, new_topic: NewTopic, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raise the epoch, as Kafka does after a transaction's time limit, without a successor."""
    monkeypatch.setattr(progress_module, "DOUBT_S", 0.5)
    topic, options = new_topic(1), {"bootstrap.servers": broker}
    with Producer(topic, name, options=options, store_s=0.2) as producer:
        producer.send(b"v")
        producer.flush()
        kafka = PlainProducer({**options, "transactional.id": progress_module.transactional_id(topic, name)})
        kafka.init_transactions(30)
        producer.send(b"v")
        producer.flush()
    assert sequences(broker, topic, 0) == [0, 1]
    assert [entry["sequence"] for entry in progress(broker, topic, name)][-1] == 1


def test_open_transactions_of_the_killed_hide_nothing(broker: str, new_topic: NewTopic, name: str) -> None:
    topic, options = new_topic(1), {"bootstrap.servers": broker}
    with Producer(topic, name, options=options) as producer:
        producer.send(b"v")
    killed = []  # held, as a process is that was killed: Kafka does not hear of it
    for whose in ("another", name):
        one = PlainProducer({**options, "transactional.id": progress_module.transactional_id(topic, whose)})
        one.init_transactions(30)
        one.begin_transaction()
        one.produce(PROGRESS_TOPIC, b"{}", progress_key(topic, "another"))
        one.flush(30)
        killed.append(one)
    with Producer(topic, "a third", options=options) as third:
        third.send(b"v")
    for who, reached in ((name, 0), ("a third", 0)):
        with Producer(topic, who, options=options) as producer:
            assert producer.resume_from() == reached
    killed[0].abort_transaction()


def test_a_closed_producer_says_so(broker: str, new_topic: NewTopic, name: str) -> None:
    producer = Producer(new_topic(1), name, options={"bootstrap.servers": broker})
    producer.close()
    producer.close()
    with pytest.raises(TransportError, match="is closed"):
        producer.send(b"v", sequence=1)


class Numbers:
    """A source of one's own, as the protocol asks for it."""

    def __init__(self, count: int, origin: str) -> None:
        self.count, self.origin = count, origin

    def read(self, from_sequence: int) -> Iterator[Record]:
        for number in range(max(0, from_sequence), self.count):
            yield Record(number, b"%d" % (number % 10), b"%d" % number)

    def mark(self, sequence: int) -> str:
        return self.origin


def test_ones_own_source_resumes_and_a_changed_one_is_refused(broker: str, new_topic: NewTopic, name: str) -> None:
    topic, options = new_topic(2), {"bootstrap.servers": broker}
    for count, published, resumed_after in ((10, 10, -1), (25, 15, 9), (25, 0, 24)):
        source = Numbers(count, "mine")
        with Producer(topic, name, options=options, source=source) as producer:
            done = publish(source, producer)
        assert (done.published, done.resumed_after, done.last_sequence) == (published, resumed_after, count - 1)
    with pytest.raises(SourceError, match=r"has changed .* up to sequence 24.*another producer name"):
        Producer(topic, name, options=options, source=Numbers(30, "another"))
    with Producer(topic, name, options=options, source=Numbers(25, "mine")) as right:
        with pytest.raises(SourceError, match="has changed"):
            Producer(topic, name, options=options, source=Numbers(30, "another"))
        right.flush()  # who is refused has not taken the name over
    found = sequences(broker, topic, 0) + sequences(broker, topic, 1)
    assert sorted(found) == list(range(25))


@pytest.mark.matrix
def test_kafka_that_goes_away_is_waited_for(name: str) -> None:
    said: list[str] = []
    with EmbeddedBroker(options=LET_IN_AGAIN_SOON) as embedded:
        options: dict[str, Any] = {"bootstrap.servers": embedded.bootstrap}
        admin = AdminClient(options)
        admin.create_topics([Topic("events", 1, 1)])["events"].result(30)
        with Producer("events", name, options=options, say=said.append) as producer:
            for sequence in range(1000):
                producer.send(b"v", sequence=sequence)
            producer.flush()
            embedded.kill()
            for sequence in range(1000, 2000):
                producer.send(b"v", sequence=sequence)
            deadline = time.monotonic() + 120
            while not any("acknowledges nothing of topic 'events'; 1000 records" in sentence for sentence in said):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert producer.resume_from() == 999
            embedded.start()
            producer.flush()
            assert producer.resume_from() == 1999
        assert sequences(embedded.bootstrap, "events", 0) == list(range(2000))


def test_a_file_with_too_large_a_record_names_its_line(
    broker: str, new_topic: NewTopic, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "in.log"
    path.write_bytes(b"1\n2\n" + b"x" * 2_000_000 + b"\n4\n")
    source, topic = FileSource(path), new_topic(1)
    with Producer(topic, name, options={"bootstrap.servers": broker}, source=source) as producer:
        with pytest.raises(RecordTooLarge, match=r"in\.log: line 3 \(before byte 2000005\): the record is too large"):
            publish(source, producer)
        assert producer.resume_from() == 2


def send_until_refused(producer: Producer) -> None:
    while True:
        producer.send(b"v")
        producer.flush()


@pytest.mark.parametrize("again", [False, True])
def test_a_progress_topic_that_is_gone_ends_the_producer(name: str, again: bool) -> None:
    said: list[str] = []
    with EmbeddedBroker() as embedded:
        options: dict[str, Any] = {"bootstrap.servers": embedded.bootstrap}
        admin = AdminClient(options)
        admin.create_topics([Topic("events", 1, 1)])["events"].result(30)
        producer = Producer("events", name, options=options, say=said.append)
        producer.send(b"v")
        producer.flush()
        admin.delete_topics([PROGRESS_TOPIC])[PROGRESS_TOPIC].result(30)
        if again:
            while describe_topic(admin, PROGRESS_TOPIC, timeout_s=30, say=said.append) is not None:
                time.sleep(0.05)
            made_topic(admin, Topic(PROGRESS_TOPIC, 1, 1), 30)
        with pytest.raises(TopicReplaced if again else TopicMissing, match="'ratchet-producers' was deleted") as found:
            send_until_refused(producer)
        assert "sends its source from the beginning" in str(found.value)
        assert "if the topic got more since the name was first used, choose another name" in str(found.value)
        with pytest.raises(RatchetError):
            producer.close()
        assert not any("waiting for Kafka" in sentence for sentence in said)


def test_a_progress_topic_that_would_be_deleted_with_time_is_refused(name: str) -> None:
    with EmbeddedBroker() as embedded:
        options: dict[str, Any] = {"bootstrap.servers": embedded.bootstrap}
        admin = AdminClient(options)
        by_hand = [Topic("events", 1, 1), Topic(PROGRESS_TOPIC, 1, 1)]  # an administrator who grants no `create`
        for made in admin.create_topics(by_hand).values():
            made.result(30)
        with pytest.raises(TopicError, match=r"cleanup\.policy is delete.*Set cleanup\.policy=compact"):
            Producer("events", name, options=options)
        set_topic_config(admin, PROGRESS_TOPIC, "cleanup.policy", "compact")
        with Producer("events", name, options=options) as producer:
            assert producer.send(b"v") == 0
