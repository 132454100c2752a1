"""Records that `send` has taken are sent, each once and as they were, or the producer is ended. Without a Kafka."""

from __future__ import annotations

import os
import random
import signal
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_ratchet.errors import TransportError
from kafka_ratchet.producers import Producer, named
from kafka_ratchet.producers.topics import TopicShape
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.client.produce import BatchRequest
from kafka_ratchet.transport.publishing import sender as sender_module
from kafka_ratchet.transport.publishing.encode import Encoder
from kafka_ratchet.transport.publishing.producer import BatchProducer
from tests.transport.publishing.test_sender import Kafka, Partition

MakeProducer = Callable[[], BatchProducer]


class Store:
    """Stand-in for the `ProgressStore` of a new name."""

    topic, session = "t", "session"

    def __init__(self, *_: Any, **__: Any) -> None:
        self.read = self.take_over = self.stop = lambda: None
        self.store = self.confirm_topic = lambda _: None


@pytest.fixture
def sent() -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values, as Kafka got them."""
    return []


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, sent: list[tuple[bytes | None, bytes | None]]) -> Iterator[MakeProducer]:
    class Its(Kafka):
        chance, trouble, broken = random.Random(1), 0.0, None
        partitions = defaultdict(Partition)  # noqa: RUF012 - each test has its own

        async def message_limits(self, topics: list[str], connection: str) -> dict[str, int]:
            return dict.fromkeys(topics, 1_000_000)

        async def send(self, node: int, request: Any, connection: str) -> Any:
            if isinstance(request, BatchRequest):
                batch = read_chunk("t", 0, 0, bytes(request._batch), [])
                sent.extend((batch.key(index), batch.value(index)) for index in range(batch.count))
            return await super().send(node, request, connection)

    monkeypatch.setattr(sender_module, "Cluster", Its)
    monkeypatch.setattr(named, "ProgressStore", Store)
    monkeypatch.setattr(named.NamedProducer, "_topic_shape", lambda *_: TopicShape("t", "id", 1))
    options: dict[str, str | int | bool] = {"bootstrap.servers": "nowhere:1", "linger.ms": 60_000}
    made: list[BatchProducer] = []

    def producer() -> BatchProducer:
        made.append(BatchProducer("t", "me", options=options))
        return made[-1]

    yield producer
    for each in made:
        each._stop()


def encoding_fails_once(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    encode, failed = Encoder.encode, list[bool]()

    def fail(self: Encoder, records: Any) -> Any:
        if not failed:
            failed.append(True)
            raise error
        return encode(self, records)

    monkeypatch.setattr(Encoder, "encode", fail)


def test_an_interrupt_while_records_are_encoded_loses_none(
    make: MakeProducer, sent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with make() as producer:
        assert producer.send_many([b"a", b"b", b"c"]) == 2
        encoding_fails_once(monkeypatch, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            producer.flush()
        assert producer.send(b"d") == 3
        producer.flush()
        assert producer.resume_from() == 3
        producer.flush()
        assert producer.resume_from() == 3
    assert [value for _, value in sent] == [b"a", b"b", b"c", b"d"]


def test_records_that_cannot_be_encoded_end_the_producer(
    make: MakeProducer, sent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = make()
    producer.send_many([b"a", b"b", b"c"])
    encoding_fails_once(monkeypatch, MemoryError())
    for call in (producer.flush, lambda: producer.send(b"d"), producer.flush, producer.close):
        with pytest.raises(TransportError, match="cannot be encoded: MemoryError"):
            call()
    assert producer.resume_from() == -1
    assert sent == []


@pytest.mark.parametrize("has_key", [False, True])
def test_a_call_that_was_interrupted_half_way_mixes_no_records(
    make: MakeProducer, sent: list[Any], has_key: bool
) -> None:
    producer = make()
    producer.send(b"a", b"key of a")
    producer._values.append(b"b")  # and there, or behind the next line, a signal's handler raised
    if has_key:
        producer._keys.append(b"key of b")
    producer.send(b"c", b"key of c")
    with pytest.raises(TransportError, match="interrupted half-way"):
        producer.flush()
    assert sent == []


def test_what_is_no_bytes_is_refused_before_it_is_taken(make: MakeProducer, sent: list[Any]) -> None:
    class Text(bytes):
        """Text subclass, as NumPy has them."""

    buffer, ints = bytearray(b"first"), memoryview(bytes(8)).cast("i")
    odd: list[SimpleNamespace] = [SimpleNamespace(value=v, key=None) for v in (buffer, ints, "text", 5)]
    with make() as producer:
        for each in (*odd, SimpleNamespace(value=b"v", key=buffer)):
            with pytest.raises(TypeError, match="bytes or None"):
                producer.send(each.value, each.key)
            with pytest.raises(TypeError, match="bytes or None"):
                producer.send_many([b"one", each.value], each.key and [None, each.key])
        producer.send(Text(b"last"), Text(b"key"))
    assert sent == [(None, b"one")] * 5 + [(b"key", b"last")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where a process can fork")
@pytest.mark.parametrize("is_batch", [False, True])
def test_a_producer_is_refused_after_a_fork(make: MakeProducer, sent: list[Any], is_batch: bool) -> None:
    producer: Producer | BatchProducer = (
        make() if is_batch else Producer("t", "me", options={"bootstrap.servers": "127.0.0.1:1"})
    )
    producer.send(b"a")
    producer._lock.acquire()  # as another thread may at the fork
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fork beneath threads
        child = os.fork()
    if not child:
        signal.alarm(20)
        refusal = (
            f"'me': was made in process {os.getppid()} and is used after a fork.* Make a new producer in the child"
        )
        try:
            calls: list[Callable[[], object]] = [producer.flush, producer.close]
            for call in (lambda: producer.send(b"b"), lambda: producer.send_many([b"c"]), *calls):
                with pytest.raises(TransportError, match=refusal):
                    call()
        finally:
            os._exit(sys.exc_info()[0] is not None)
    producer._lock.release()
    assert os.waitpid(child, 0)[1] == 0
    if is_batch:
        producer.flush()
        assert [value for _, value in sent] == [b"a"]
    else:
        producer._stop()
