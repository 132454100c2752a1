import asyncio
import itertools
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from kafka_ratchet.errors import (
    BatchUnread,
    BrokerUnavailable,
    PositionLost,
    ReaderFenced,
    ReaderMisused,
    SettingsError,
    TopicMissing,
    TopicReplaced,
)
from kafka_ratchet.producers import create_topic
from kafka_ratchet.reader import AsyncReader, Reader, Sqlite, Transaction
from kafka_ratchet.reader.arrow import batch_of
from kafka_ratchet.reader.event import Event
from kafka_ratchet.reader.reader import Reader as ReaderClass
from kafka_ratchet.reader.source import FetchedRecords, Source
from kafka_ratchet.reader.stores.sqlite import SqliteDatabase
from tests.reader.conftest import Fill, copy, rows

NewTopic = Callable[..., str]


@pytest.fixture
def options(broker: str) -> dict[str, str]:
    return {"bootstrap.servers": broker}


def reader_of(topic: str, bill: Path, options: dict[str, str], name: str = "billing", **more: Any) -> ReaderClass:
    return Reader(topic, store=Sqlite(bill), name=name, options=options, **more)


def copy_and_fail(reader: ReaderClass, number: int) -> None:
    """Copy; raise in the transaction of that number, from 0."""
    for count, transaction in enumerate(reader.transactions(until_end=True)):
        transaction.executemany("INSERT INTO bill VALUES (?, ?)", [event[:2] for event in transaction.events])
        if count == number:
            raise ZeroDivisionError


def write_for_each(transactions: Iterator[Transaction]) -> None:
    for transaction in transactions:
        transaction.execute("INSERT INTO bill VALUES (0, 0)")


def stored(bill: Path) -> dict[int, int]:
    with sqlite3.connect(bill) as database:
        return dict(database.execute("SELECT kafka_partition, next_offset FROM ratchet_reader_positions"))


def test_each_committed_record_is_in_the_database_once(
    new_topic: NewTopic, fill: Fill, bill: Path, options: dict[str, str]
) -> None:
    topic = new_topic(2)
    fill(topic, 500)
    fill(topic, 50, first=10_000, commit=False)
    with reader_of(topic, bill, options, max_records=70) as reader:
        assert copy(reader) == 500
    assert rows(bill) == list(range(500))
    # 250 records and 25 rolled-back ones per partition, each transaction with its marker: all of it was read.
    assert stored(bill) == {0: 277, 1: 277}
    fill(topic, 100, first=500)
    with reader_of(topic, bill, options) as reader:
        assert copy(reader) == 100
    assert rows(bill) == list(range(600))


def test_an_event_has_all_of_its_record(new_topic: NewTopic, fill: Fill, bill: Path, options: dict[str, str]) -> None:
    topic = new_topic(1)
    before = time.time_ns() // 1_000_000
    fill(topic, 2, partitions=1)
    with reader_of(topic, bill, options) as reader:
        [transaction] = list(reader.transactions(until_end=True))
    first, second = transaction.events
    assert (first.key, first.value, first.headers, first.partition, first.offset) == (b"k0", b"0", [("n", b"1")], 0, 0)
    assert second.offset == 1
    assert before <= first.timestamp <= time.time_ns() // 1_000_000
    batch = transaction.arrow()
    assert batch.column("value").to_pylist() == [b"0", b"1"]
    assert batch.column("headers").to_pylist()[0] == [{"key": "n", "value": b"1"}]
    assert batch.column("timestamp").to_pylist()[0].timestamp() * 1000 == first.timestamp


def test_times_before_1970_are_kept_in_arrow() -> None:
    events = [Event(None, None, [], time, 0, 0) for time in (-86_400_000, -1, 0)]
    times = batch_of(events).column("timestamp").to_pylist()
    assert times == [datetime(1969, 12, 31, tzinfo=UTC), None, datetime(1970, 1, 1, tzinfo=UTC)]


def test_what_a_loop_leaves_comes_again(new_topic: NewTopic, fill: Fill, bill: Path, options: dict[str, str]) -> None:
    topic = new_topic(2)
    fill(topic, 100)
    with pytest.raises(ZeroDivisionError), reader_of(topic, bill, options, max_records=30) as reader:
        copy_and_fail(reader, 1)
    kept = rows(bill)
    assert 0 < len(kept) <= 30
    with reader_of(topic, bill, options, max_records=30) as reader:
        for transaction in reader.transactions(until_end=True):
            transaction.executemany("INSERT INTO bill VALUES (?, ?)", [event[:2] for event in transaction.events])
            transaction.commit()
            with pytest.raises(ReaderMisused, match="has ended"):
                transaction.execute("SELECT 1")
            break
    assert len(rows(bill)) > len(kept)
    with reader_of(topic, bill, options) as reader:
        copy(reader)
    assert rows(bill) == list(range(100))


def test_three_threads_in_one_reader_are_told_apart(
    new_topic: NewTopic, fill: Fill, bill: Path, options: dict[str, str]
) -> None:
    """The next step of another thread would commit the offsets of rows that are not written yet."""
    topic = new_topic(1)
    fill(topic, 90, partitions=1)
    with reader_of(topic, bill, options, max_records=30) as reader, ThreadPoolExecutor(2) as others:
        found = reader.transactions(until_end=True)
        transaction = next(found)
        uses: list[Callable[[], object]] = [
            lambda: next(found),
            lambda: next(reader.transactions(until_end=True)),
            transaction.commit,
            lambda: reader.run(lambda _: None, until_end=True),
        ]
        for use in uses:
            with pytest.raises(ReaderMisused, match="in one thread, and give each other thread a Reader of its own"):
                others.submit(use).result(60)
        count = 0
        while True:
            transaction.executemany("INSERT INTO bill VALUES (?, ?)", [event[:2] for event in transaction.events])
            count += len(transaction.events)
            following = next(found, None)
            if following is None:
                break
            transaction = following
        assert count == 90
    assert rows(bill) == list(range(90))


def test_steps_of_several_threads_one_after_another_are_one_loop(
    new_topic: NewTopic, fill: Fill, bill: Path, options: dict[str, str]
) -> None:
    """Steps by `asyncio.to_thread` come from any thread of a pool, and all of these live on."""
    topic = new_topic(1)
    fill(topic, 90, partitions=1)
    with (
        ThreadPoolExecutor(1) as one,
        ThreadPoolExecutor(1) as other,
        reader_of(topic, bill, options, max_records=10) as reader,
    ):
        threads = itertools.cycle((one, other, other))
        found = reader.transactions(until_end=True)
        while (transaction := next(threads).submit(next, found, None).result(60)) is not None:
            values = [event[:2] for event in transaction.events]
            next(threads).submit(transaction.executemany, "INSERT INTO bill VALUES (?, ?)", values).result(60)
    assert rows(bill) == list(range(90))


@pytest.mark.parametrize("statement", ["COMMIT", " rollback;", "begin immediate", "END;"])
def test_a_program_cannot_end_the_transaction(
    new_topic: NewTopic, fill: Fill, bill: Path, options: dict[str, str], statement: str
) -> None:
    topic = new_topic(1)
    fill(topic, 3, partitions=1)
    with reader_of(topic, bill, options) as reader:
        for transaction in reader.transactions(until_end=True):
            transaction.execute("INSERT INTO bill VALUES (1, 1)")
            with pytest.raises(ReaderMisused, match="rows and offsets stay together"):
                transaction.execute(statement)
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                transaction.connection.commit()
            assert transaction.connection.in_transaction
            break
    assert rows(bill) == []


def test_the_older_of_two_is_refused(new_topic: NewTopic, fill: Fill, bill: Path, options: dict[str, str]) -> None:
    topic = new_topic(2)
    fill(topic, 100)
    with reader_of(topic, bill, options, max_records=20) as older:
        found = older.transactions(until_end=True)
        first = next(found)
        first.execute("INSERT INTO bill VALUES (?, ?)", first.events[0][:2])
        first.commit()  # SQLite lets nobody else write meanwhile
        with reader_of(topic, bill, options) as newer:
            copy(newer)
            with pytest.raises(ReaderFenced, match="another process has taken over partitions"):
                write_for_each(found)
    assert len(rows(bill)) == 100 - len(first.events) + 1
    assert len(set(rows(bill))) == len(rows(bill))


def test_a_topic_made_again_is_noticed(
    broker: str, new_topic: NewTopic, fill: Fill, bill: Path, options: dict[str, str]
) -> None:
    topic = new_topic(1)
    fill(topic, 10, partitions=1)
    with reader_of(topic, bill, options) as reader:
        copy(reader)
    admin = AdminClient(options)
    admin.delete_topics([topic])[topic].result()
    with pytest.raises(TopicMissing), reader_of(topic, bill, options):
        pass
    create_topic(admin, topic, partitions=1, timeout_s=60, say=print)
    fill(topic, 30, partitions=1, first=100)
    with pytest.raises(TopicReplaced, match="ratchet reader resume billing"), reader_of(topic, bill, options):
        pass
    assert rows(bill) == list(range(10))


@pytest.mark.parametrize("group", [None, "billing"])
def test_a_topic_made_again_with_more_partitions_is_not_read_before_the_decision(
    new_topic: NewTopic, fill: Fill, bill: Path, options: dict[str, str], group: str | None
) -> None:
    topic = new_topic(1)
    fill(topic, 10, partitions=1)
    with reader_of(topic, bill, options, group=group) as reader:
        copy(reader)
    admin = AdminClient(options)
    admin.delete_topics([topic])[topic].result()
    create_topic(admin, topic, partitions=2, timeout_s=60, say=print)
    fill(topic, 30, partitions=2, first=100)
    with (
        pytest.raises(TopicReplaced, match="ratchet reader resume billing"),
        reader_of(topic, bill, options, group=group),
    ):
        pass
    with sqlite3.connect(bill) as database:
        assert database.execute("SELECT kafka_partition FROM ratchet_reader_positions").fetchall() == [(0,)]
    assert rows(bill) == list(range(10))


def test_a_topic_made_again_while_it_is_read_is_noticed_before_the_commit(
    broker: str, new_topic: NewTopic, fill: Fill, bill: Path, options: dict[str, str]
) -> None:
    topic = new_topic(1)
    fill(topic, 10, partitions=1)
    admin = AdminClient(options)
    with reader_of(topic, bill, options) as reader:
        copy(reader)
        admin.delete_topics([topic])[topic].result()
        create_topic(admin, topic, partitions=1, timeout_s=60, say=print)
        fill(topic, 30, partitions=1, first=100)
        with pytest.raises((TopicReplaced, TopicMissing)):
            write_for_each(reader.transactions())
    assert rows(bill) == list(range(10))


def test_a_batch_that_is_not_read_may_be_of_another_topic_of_the_name(
    broker: str, new_topic: NewTopic, fill: Fill, bill: Path, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asks a new topic for an old offset may stand still, as at a batch that it cannot read."""
    topic = new_topic(1)
    fill(topic, 10, partitions=1)
    admin = AdminClient(options)

    def stand_still(source: Source, most: int, wait_s: float) -> FetchedRecords:
        raise source._unread(0, 11, 31)

    with reader_of(topic, bill, options) as reader:
        copy(reader)
        monkeypatch.setattr(Source, "fetch", stand_still)
        with pytest.raises(BatchUnread):
            write_for_each(reader.transactions())
        admin.delete_topics([topic])[topic].result()
        create_topic(admin, topic, partitions=1, timeout_s=60, say=print)
        with pytest.raises((TopicReplaced, TopicMissing)):
            write_for_each(reader.transactions())
    assert rows(bill) == list(range(10))


def test_records_that_retention_took_are_told(
    new_topic: NewTopic, fill: Fill, bill: Path, options: dict[str, str]
) -> None:
    topic = new_topic(1)
    fill(topic, 10, partitions=1)
    with reader_of(topic, bill, options) as reader:
        copy(reader)
    fill(topic, 20, partitions=1, first=10)
    place = TopicPartition(topic, 0, 20)
    admin = AdminClient(options)  # one that nobody holds is gone before its answer comes
    admin.delete_records([place])[place].result()
    with reader_of(topic, bill, options) as reader, pytest.raises(PositionLost, match="offset 11"):
        copy(reader)
    assert rows(bill) == list(range(10))


def test_partitions_that_the_topic_gets_are_read_from_their_beginning(
    new_topic: NewTopic, fill: Fill, bill: Path, options: dict[str, str]
) -> None:
    topic = new_topic(1)
    fill(topic, 10, partitions=1)
    with reader_of(topic, bill, options, start="latest") as reader:
        assert copy(reader) == 0
    admin = AdminClient(options)
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result()
    deadline = time.monotonic() + 60
    while len(admin.list_topics(topic).topics[topic].partitions) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    fill(topic, 10, first=10)
    with reader_of(topic, bill, options, start="latest") as reader:
        assert copy(reader) == 10
    assert rows(bill) == list(range(10, 20))


def test_processes_of_a_group_share_the_partitions(
    new_topic: NewTopic, fill: Fill, bill: Path, options: dict[str, str]
) -> None:
    topic, partitions = new_topic(4), 4
    fill(topic, 400, partitions=partitions)
    group = f"g-{topic}"
    seen: dict[str, set[int]] = {"one": set(), "two": set()}

    def run(who: str, until: threading.Event) -> None:
        with reader_of(topic, bill, options, group=group, max_records=20) as reader:
            for transaction in reader.transactions(until_end=True):
                transaction.executemany("INSERT INTO bill VALUES (?, ?)", [each[:2] for each in transaction.events])
                seen[who] |= {event.partition for event in transaction.events}
                if who == "one":
                    transaction.commit()
                    until.wait(0.2)  # the other joins amid it

    with ThreadPoolExecutor(2) as both:
        waiting = threading.Event()
        for future in [both.submit(run, who, waiting) for who in seen]:
            future.result()
    assert rows(bill) == list(range(400))
    assert seen["one"] | seen["two"] == set(range(partitions))


@pytest.mark.parametrize("group", [None, "billing"])
def test_a_partition_that_gives_nothing_ends_a_read_until_the_end(
    new_topic: NewTopic,
    fill: Fill,
    bill: Path,
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    group: str | None,
) -> None:
    """A partition without a leader gives nothing; a process of a group waited for it without end."""
    topic = new_topic(1)
    fill(topic, 10, partitions=1)
    with reader_of(topic, bill, options, group=group and f"{group}-{topic}") as reader, ThreadPoolExecutor(1) as other:
        next(reader.transactions(until_end=True))  # the partition is this reader's now
        monkeypatch.setattr(Source, "fetch", lambda *_: FetchedRecords())
        monkeypatch.setattr(reader, "_timeout_s", 0.5)
        reading = other.submit(lambda: list(reader.transactions(until_end=True)))
        try:
            with pytest.raises(BrokerUnavailable, match=f"returned no record of topic '{topic}'"):
                reading.result(60)
        finally:
            reader.stop()


def one_after_break(reader: ReaderClass, bill: Path) -> None:
    """A loop that is left, and one that goes on."""
    for _ in reader.transactions(until_end=True):
        break
    copy(reader)


def one_after_an_error(reader: ReaderClass, bill: Path) -> None:
    calls = 0

    def handle(transaction: Transaction) -> None:
        nonlocal calls
        calls += 1
        transaction.executemany("INSERT INTO bill VALUES (?, ?)", [event[:2] for event in transaction.events])
        if calls == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        reader.run(handle, until_end=True)
    reader.run(handle, until_end=True)


def one_after_a_failed_commit(reader: ReaderClass, bill: Path) -> None:
    with sqlite3.connect(bill) as database:
        database.execute("CREATE TABLE known (key PRIMARY KEY)")
        database.execute("CREATE TABLE use (key REFERENCES known DEFERRABLE INITIALLY DEFERRED)")
    for number, transaction in enumerate(reader.transactions(until_end=True)):
        transaction.executemany("INSERT INTO bill VALUES (?, ?)", [event[:2] for event in transaction.events])
        if number == 1:
            transaction.execute("INSERT INTO use VALUES (1)")
            with pytest.raises(sqlite3.IntegrityError):
                transaction.commit()


def one_beside_another(reader: ReaderClass, bill: Path) -> None:
    older = reader.transactions(until_end=True)
    next(older).execute("INSERT INTO bill VALUES (0, 0)")
    copy(reader)
    with pytest.raises(ReaderMisused, match="another loop"):
        next(older)


def one_after_an_interrupted_look(reader: ReaderClass, bill: Path) -> None:
    """The first record has been taken from Kafka's client by then, which does not give it again."""
    source = reader._partitions.source
    consumer = source._consumer
    source._consumer = Interrupted(consumer)
    with pytest.raises(KeyboardInterrupt):
        copy(reader)
    source._consumer = consumer
    copy(reader)


def one_after_an_interrupted_beginning(reader: ReaderClass, bill: Path) -> None:
    """The database has begun a transaction of which the reader does not know yet."""
    with pytest.MonkeyPatch.context() as patch:
        begin = SqliteDatabase.begin

        def interrupted(database: SqliteDatabase) -> None:
            begin(database)
            signal.raise_signal(signal.SIGINT)

        patch.setattr(SqliteDatabase, "begin", interrupted)
        with pytest.raises(KeyboardInterrupt):
            copy(reader)
    copy(reader)


class Interrupted:
    """Kafka's client, and Ctrl-C behind the first record that it gives."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def poll(self, wait_s: float) -> object:
        return self._consumer.poll(wait_s)

    def consume(self, most: int, wait_s: float) -> list[object]:
        signal.raise_signal(signal.SIGINT)
        return [*self._consumer.consume(most, wait_s)]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises here too, where the shell that started the tests in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    "again",
    [
        one_after_break,
        one_after_an_error,
        one_after_a_failed_commit,
        one_after_an_interrupted_look,
        one_after_an_interrupted_beginning,
        one_beside_another,
    ],
)
def test_a_loop_after_a_rollback_reads_the_same_records(
    new_topic: NewTopic, fill: Fill, bill: Path, options: dict[str, str], again: Callable[[ReaderClass, Path], None]
) -> None:
    topic = new_topic(1)
    fill(topic, 90, partitions=1)
    with Reader(topic, store=ForeignKeys(bill), name="billing", options=options, max_records=30) as reader:
        again(reader, bill)
    assert rows(bill) == list(range(90))


class ForeignKeys(Sqlite):
    """SQLite that looks at references, so that a commit can fail."""

    def connect(self, owner: str) -> SqliteDatabase:
        database = super().connect(owner)
        database.connection.execute("PRAGMA foreign_keys = on")
        return database


def test_what_sqlite_has_rolled_back_itself_is_not_gone_on_with(
    new_topic: NewTopic, fill: Fill, bill: Path, options: dict[str, str]
) -> None:
    topic = new_topic(1)
    fill(topic, 10, partitions=1)
    with sqlite3.connect(bill) as database:
        database.execute("CREATE UNIQUE INDEX one ON bill (value)")
    with reader_of(topic, bill, options, max_records=5) as reader:
        found = reader.transactions(until_end=True)
        first = next(found)
        first.executemany("INSERT INTO bill VALUES (?, ?)", [event[:2] for event in first.events])
        second = next(found)
        for statement in ("COMMIT", "ROLLBACK", "BEGIN IMMEDIATE"):  # ours ran just before
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                second.connection.execute(statement)
        second.execute("INSERT INTO bill VALUES (?, ?)", second.events[0][:2])
        with pytest.raises(sqlite3.IntegrityError):
            second.execute("INSERT OR ROLLBACK INTO bill VALUES (?, ?)", second.events[0][:2])
        with pytest.raises(ReaderMisused, match="has ended this transaction"):
            second.execute("INSERT INTO bill VALUES (?, ?)", second.events[1][:2])
        with pytest.raises(ReaderMisused):
            next(found)
    with reader_of(topic, bill, options) as reader:
        copy(reader)
    assert rows(bill) == list(range(10))


async def copy_on_and_on(reader: AsyncReader) -> None:
    async for transaction in reader.transactions():
        await transaction.executemany("INSERT INTO bill VALUES (?, ?)", [event[:2] for event in transaction.events])


async def test_an_event_loop_that_stops_waiting_for_records_ends(
    new_topic: NewTopic, fill: Fill, bill: Path, options: dict[str, str]
) -> None:
    topic = new_topic(1)
    fill(topic, 5, partitions=1)
    async with AsyncReader(topic, store=Sqlite(bill), name="billing", options=options) as reader:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(copy_on_and_on(reader), 3)
    assert rows(bill) == list(range(5))


async def test_a_reader_in_an_event_loop(new_topic: NewTopic, fill: Fill, bill: Path, options: dict[str, str]) -> None:
    topic = new_topic(2)
    fill(topic, 30)
    async with AsyncReader(topic, store=Sqlite(bill), name="billing", options=options) as reader:
        async for transaction in reader.transactions(until_end=True):
            await transaction.execute("INSERT INTO bill VALUES (1, 1)")
            break
    assert rows(bill) == []
    async with AsyncReader(topic, store=Sqlite(bill), name="billing", options=options) as reader:
        async for transaction in reader.transactions(until_end=True):
            await transaction.executemany("INSERT INTO bill VALUES (?, ?)", [each[:2] for each in transaction.events])
            assert await transaction.execute("SELECT count(*) FROM bill") != []
    assert rows(bill) == list(range(30))


def test_names_and_options_are_looked_at(tmp_path: Path) -> None:
    for name in ("", "two words", "a/b", "x" * 201):
        with pytest.raises(SettingsError, match="reader name"):
            Reader("t", store=Sqlite(tmp_path / "x.db"), name=name, options={})
    refused: tuple[tuple[dict[str, str | int | bool], str], ...] = (
        ({"no.such": 1}, r'name no Kafka: give "bootstrap\.servers"'),
        ({"bootstrap.servers": "127.0.0.1:1", "no.such": 1}, r"kafka\.no\.such"),
    )
    for options, said in refused:
        with pytest.raises(SettingsError, match=said):
            with Reader("t", store=Sqlite(tmp_path / "x.db"), name="n", options=options):
                pass
