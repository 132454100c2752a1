"""The watch may call once too often, and never too seldom: with a broker that is scripted, and with a real one."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Hashable
from typing import Any

from aiokafka import errors as kafka
from confluent_kafka import Producer

from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.fetch_session import (
    NO_SESSION,
    PositionToWatch,
    SessionFetchRequest,
    SessionFetchResponse_v13,
)
from kafka_ratchet.transport.client.topic_id import FetchRequest_v13
from kafka_ratchet.transport.client.watch import PAUSE_MOST_S, Watch, WatchedPosition
from tests.clock import let_skip, skip
from tests.transport.kafka_side import LIMIT_S, until

NewTopic = Callable[..., str]
TOPIC, OTHER = b"t" * 16, b"o" * 16


class Scripted:
    """A broker that answers when it is told to."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[Any] = asyncio.Queue()
        self.answers: asyncio.Queue[Any] = asyncio.Queue()

    def known_leader(self, topic: str, partition: int) -> int | None:
        return None if topic == "led by nobody" else 1

    async def send(self, node: int, request: Any, connection: Hashable) -> Any:
        self.asked.put_nowait(as_fetch(request))
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def next(self) -> Any:
        return await asyncio.wait_for(self.asked.get(), LIMIT_S)


def as_fetch(request: SessionFetchRequest) -> Any:
    """Decode the request as a broker does, by the schema of aiokafka's kind."""
    body = request.build(request._CLASSES[0]).encode()
    return FetchRequest_v13.decode(body)


def spots(fetch: Any) -> list[tuple[bytes, int, int, int]]:
    return [(topic, one[0], one[2], one[3]) for topic, partitions, _ in fetch.topics for one in partitions]


def forgotten(fetch: Any) -> list[tuple[bytes, int]]:
    return [(topic, number) for topic, numbers, _ in fetch.forgotten for number in numbers]


def answer(session: int, *told: tuple[int, int, int, bytes], error: int = 0) -> SessionFetchResponse_v13:
    """told: partition of TOPIC, error code, last stable offset, tags and what is before them."""
    partitions = b"".join(
        struct.pack(">ihqqq", partition, code, 99, stable, 0) + b"\x01" + struct.pack(">i", -1) + rest
        for partition, code, stable, rest in told
    )
    topics = bytes([2]) + TOPIC + bytes([len(told) + 1]) + partitions + b"\0" if told else b"\x01"
    return SessionFetchResponse_v13(struct.pack(">ihi", 0, error, session) + topics + b"\0")


EMPTY, RECORDS, PARTS = b"\x01\0", b"\x04abc\0", b"\x01" + bytes([1, 0, 3]) + b"any"
"""No records; three bytes of them; no records, and the tag that the log parts from what was read."""


async def started(*numbers: int) -> tuple[Scripted, Watch, list[WatchedPosition]]:
    broker = Scripted()
    watch = Watch(broker, "a")
    places = [watch.place("t", PositionToWatch(TOPIC, number, 10, 3)) for number in numbers]
    assert all(places)
    return broker, watch, [place for place in places if place]


async def test_a_session_names_what_has_changed_and_calls_those_of_whom_something_is_said() -> None:
    broker, watch, (zero, one, two) = await started(0, 1, 2)
    covered_before = zero.is_covered
    assert not covered_before
    first = await broker.next()
    assert (first.session_id, first.session_epoch, first.isolation_level) == (NO_SESSION, 0, 1)
    assert spots(first) == [(TOPIC, 0, 10, 3), (TOPIC, 1, 10, 3), (TOPIC, 2, 10, 3)]
    covered_before = zero.is_covered  # nobody knows whether it has come there
    assert not covered_before
    broker.answers.put_nowait(answer(77, (0, 0, 10, EMPTY), (1, 0, 10, EMPTY), (2, 0, 11, EMPTY)))
    second = await broker.next()
    assert (second.session_id, second.session_epoch, spots(second)) == (77, 1, [])
    assert forgotten(second) == [(TOPIC, 2)]
    assert zero.is_covered
    assert (zero.is_called, one.is_called, two.is_called) == (False, False, True)
    assert zero.answered_at > 0
    again = watch.place("t", PositionToWatch(TOPIC, 2, 11, 4))  # while a request is under way that does not look there
    assert again is not None
    covered_before = again.is_covered
    assert not covered_before
    broker.answers.put_nowait(answer(77))
    third = await broker.next()
    assert (third.session_epoch, spots(third), forgotten(third)) == (2, [(TOPIC, 2, 11, 4)], [])
    covered_before = again.is_covered
    assert not covered_before
    broker.answers.put_nowait(answer(77))
    await broker.next()
    assert again.is_covered
    assert not again.is_called
    await watch.close()
    assert zero.is_called
    assert again.is_called


async def test_each_thing_that_a_broker_may_say_calls() -> None:
    broker, watch, places = await started(0, 1, 2, 3, 4)
    await broker.next()
    broker.answers.put_nowait(
        answer(5, (0, 6, -1, EMPTY), (1, 0, 10, RECORDS), (2, 0, 10, PARTS), (3, 0, 10, EMPTY), (9, 0, 99, EMPTY))
    )
    await broker.next()
    assert [place.is_called for place in places] == [True, True, True, False, False]
    await watch.close()


async def test_an_answer_is_about_the_spot_that_was_asked_for_and_no_other() -> None:
    broker, watch, (early,) = await started(0)
    await broker.next()
    watch.leave(early)
    late = watch.place("t", PositionToWatch(TOPIC, 0, 12, 3))
    assert late is not None
    broker.answers.put_nowait(answer(5, (0, 0, 12, RECORDS)))
    second = await broker.next()
    assert spots(second) == [(TOPIC, 0, 12, 3)]
    assert forgotten(second) == []  # it would be forgotten for good
    assert not late.is_called
    watch.leave(late)
    watch.leave(late)
    broker.answers.put_nowait(answer(5))
    await until(lambda: all(session.task is None or session.task.done() for session in watch._sessions.values()))
    await watch.close()


async def test_a_broker_that_keeps_no_session_is_asked_for_all_again() -> None:
    broker, watch, (zero, one) = await started(0, 1)
    await broker.next()
    broker.answers.put_nowait(answer(NO_SESSION, (0, 0, 10, EMPTY), (1, 0, 10, EMPTY)))
    second = await broker.next()
    assert (second.session_id, second.session_epoch) == (NO_SESSION, 0)
    assert spots(second) == [(TOPIC, 0, 10, 3), (TOPIC, 1, 10, 3)]
    assert not zero.is_called
    assert not one.is_called
    await watch.close()


async def test_whatever_fails_calls_all_and_begins_anew() -> None:
    broker, watch, places = await started(0, 1)
    for failure in (
        kafka.KafkaConnectionError(),
        answer(5, error=70),  # FETCH_SESSION_ID_NOT_FOUND
        answer(5, error=4_711),
        SessionFetchResponse_v13(b"too short"),
        ValueError("anything"),
    ):
        fetch = await broker.next()
        assert (fetch.session_id, fetch.session_epoch, len(spots(fetch))) == (NO_SESSION, 0, 2)
        broker.answers.put_nowait(failure)
        for place in places:
            assert await place.called(LIMIT_S)
        new = [watch.place("t", PositionToWatch(TOPIC, number, 10, 3)) for number in (0, 1)]
        places = [place for place in new if place]
        assert len(places) == 2
        await broker.next()
        broker.answers.put_nowait(answer(NO_SESSION))
    await watch.close()


async def test_a_watch_that_always_fails_leaves_all_to_ask_by_themselves_and_tries_seldom() -> None:
    let_skip()
    broker, watch, places = await started(0)
    waits = 0
    place: WatchedPosition | None = places[0]
    while place is not None:  # as a lane at rest does it
        await broker.next()
        broker.answers.put_nowait(kafka.KafkaConnectionError())
        assert await place.called(LIMIT_S)
        waits += 1
        place = watch.place("t", PositionToWatch(TOPIC, 0, 10, 3))
    assert waits == 5
    for _ in range(9):
        skip(PAUSE_MOST_S + 1)
        await until(lambda: all(session.task is None or session.task.done() for session in watch._sessions.values()))
        place = watch.place("t", PositionToWatch(TOPIC, 0, 10, 3))
        assert place is not None
        await broker.next()
        broker.answers.put_nowait(kafka.KafkaConnectionError())
        assert await place.called(LIMIT_S)
        assert watch.place("t", PositionToWatch(TOPIC, 0, 10, 3)) is None
    skip(PAUSE_MOST_S + 1)
    place = watch.place("t", PositionToWatch(TOPIC, 0, 10, 3))
    assert place is not None
    await broker.next()
    broker.answers.put_nowait(answer(5))
    await broker.next()
    assert place.is_covered
    broker.answers.put_nowait(kafka.KafkaConnectionError())
    assert await place.called(LIMIT_S)
    assert watch.place("t", PositionToWatch(TOPIC, 0, 10, 3)) is not None
    await watch.close()


async def test_who_cannot_be_looked_for_is_told_at_once() -> None:
    broker, watch, _ = await started(0)
    assert watch.place("led by nobody", PositionToWatch(OTHER, 0, 0)) is None
    assert watch.place("t", PositionToWatch(TOPIC, 0, 11)) is None  # another waits there
    assert not await WatchedPosition(PositionToWatch(TOPIC, 1, 0), watch._sessions[1]).called(0.001)
    await broker.next()
    await watch.close()


def send(broker: str, topic: str, partition: int, **options: Any) -> Producer:
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 0, **options})
    if options:
        producer.init_transactions(30)
        producer.begin_transaction()
    producer.produce(topic, b"x", partition=partition)
    assert producer.flush(30) == 0
    return producer


async def test_a_real_broker_tells_of_what_is_committed(cluster: Cluster, broker: str, new_topic: NewTopic) -> None:
    topic = new_topic(200)
    topic_id = (await cluster.found([topic]))[topic].id
    for number in range(200):
        await cluster.leader(topic, number)
    watch = cluster.watch("here")
    assert cluster.watch("here") is watch
    places = [watch.place(topic, PositionToWatch(topic_id, number, 0)) for number in range(200)]
    assert all(places)
    every = [place for place in places if place]
    await until(lambda: all(place.is_covered and place.answered_at for place in every))
    assert not any(place.is_called for place in every)
    await asyncio.to_thread(send, broker, topic, 17)
    assert await every[17].called(LIMIT_S)
    open_one = await asyncio.to_thread(send, broker, topic, 150, **{"transactional.id": f"id-{topic}"})
    await asyncio.to_thread(send, broker, topic, 151)
    assert await every[151].called(LIMIT_S)
    assert not every[150].is_called
    again = watch.place(topic, PositionToWatch(topic_id, 17, 1))
    assert again is not None
    await asyncio.to_thread(open_one.commit_transaction, 30)
    assert await every[150].called(LIMIT_S)
    assert await every[0].called(0.7) is False
    assert sum(place.is_called for place in every) == 3
    for connection in cluster.client._conns.values():
        connection._writer.transport.abort()
    assert await every[0].called(LIMIT_S)
    assert await again.called(LIMIT_S)


async def test_a_real_broker_tells_of_a_place_that_is_not_there(cluster: Cluster, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    topic_id = (await cluster.found([topic]))[topic].id
    for number in range(2):
        await cluster.leader(topic, number)
    beyond = cluster.watch("here").place(topic, PositionToWatch(topic_id, 0, 5))
    other = cluster.watch("here").place(topic, PositionToWatch(OTHER, 1, 0))
    assert beyond is not None
    assert other is not None
    assert await beyond.called(LIMIT_S)
    assert await other.called(LIMIT_S)
