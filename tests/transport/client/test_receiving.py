"""Kafka's answers, each read into its own memory: in any pieces, of any content, kept by any reader."""

from __future__ import annotations

import asyncio
import random
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop
from aiokafka import errors as kafka
from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.protocol.admin import ApiVersionRequest

from kafka_ratchet.transport.client.connection import mend_connections
from kafka_ratchet.transport.client.receiving import RESPONSE_MOST, ROOM, ReceivingProtocol
from kafka_ratchet.transport.client.topic_id import FetchByIdRequest
from tests.certificates import Authority

mend_connections()

SIZE = struct.Struct(">i")
TOPIC = bytes(range(16))
VERSIONS = ((1, 4, 13), (18, 0, 0))
"""Versions that the server announces: Fetch, ApiVersions."""
Answers = Callable[[int, asyncio.StreamWriter], Awaitable[None]]


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def fetch_answer(number: int, records: bytes) -> bytes:
    """The answer to a Fetch of version 13, field by field as Kafka's protocol page lists them."""
    partition = struct.pack(">ihqqq", 0, 0, 7, 7, 0) + varint(0) + struct.pack(">i", -1)
    partition += varint(len(records) + 1) + records + varint(0)
    body = struct.pack(">iB", number, 0)  # of the header: no tags
    body += struct.pack(">ihi", 0, 0, 0) + varint(2) + TOPIC + varint(2) + partition + varint(0) + varint(0)
    return SIZE.pack(len(body)) + body


def versions_answer(number: int) -> bytes:
    body = struct.pack(">ihi", number, 0, len(VERSIONS)) + b"".join(struct.pack(">hhh", *each) for each in VERSIONS)
    return SIZE.pack(len(body)) + body


@asynccontextmanager
async def connected(answer: Answers, authority: Authority | None = None) -> AsyncIterator[AIOKafkaConnection]:
    """A connection of aiokafka's to a server that answers fetches as it is told, with the request's number."""
    done: list[asyncio.Task[Any]] = []
    serving: list[asyncio.Future[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        serving.append(ended)
        try:
            while True:
                (size,) = SIZE.unpack(await reader.readexactly(SIZE.size))
                key, _, number = struct.unpack_from(">hhi", await reader.readexactly(size))
                if key == 18:
                    writer.write(versions_answer(number))
                else:
                    done.append(asyncio.ensure_future(answer(number, writer)))
        except (EOFError, ConnectionError):
            writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()
        finally:
            ended.set_result(None)

    inside = outside = None
    if authority is not None:
        inside = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        inside.load_cert_chain(authority.sign("server"))
        outside = ssl.create_default_context(cafile=str(authority.ca))
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=inside)
    port = server.sockets[0].getsockname()[1]
    options: dict[str, Any] = {"security_protocol": "SSL", "ssl_context": outside} if outside else {}
    connection = await create_conn("127.0.0.1", port, **options)
    try:
        yield connection
    finally:
        connection.close()
        await asyncio.gather(*done, *serving, return_exceptions=True)
        server.close()
        await server.wait_closed()


def fetching() -> FetchByIdRequest:
    return FetchByIdRequest(TOPIC, 0, 0, -1, 1 << 20, 0)


def records_of(response: Any) -> memoryview:
    records: memoryview = response.topics[0][1][0][7]
    return records


LOOPS = [uvloop.new_event_loop, asyncio.new_event_loop]


@pytest.mark.parametrize("loop", LOOPS, ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_batches_come_whole_and_stay_as_they_are(loop: Any, tls: bool, tmp_path: Path) -> None:
    choose = random.Random(1)
    sizes = [0, 1, ROOM - 60, ROOM - 50, ROOM, 100_000, 3_000_000, 1, 700_000, 20]
    sent = [choose.randbytes(size) for size in sizes]

    async def in_pieces(number: int, writer: asyncio.StreamWriter) -> None:
        answer = fetch_answer(number, sent[number - 2])
        at = 0
        while at < len(answer):
            size = choose.choice([1, 3, 5_000, 1 << 20])
            writer.write(answer[at : at + size])
            at += size
            await writer.drain()
            await asyncio.sleep(0)

    async def run() -> None:
        async with connected(in_pieces, Authority(tmp_path, "ca") if tls else None) as connection:
            kept = []
            for _ in sent:
                kept.append(records_of(await connection.send(fetching())))
            # Looked at when all have come: nothing was written over another.
            assert [bytes(each) for each in kept] == sent
            for each in kept:
                assert each.readonly
            assert not np.frombuffer(kept[-1], np.uint8).flags.owndata  # a view, not a copy
            assert connection.connected()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


def test_many_answers_in_one_piece_go_to_those_who_asked() -> None:
    waiting: list[int] = []
    sent = [bytes([n]) * (n * 211) for n in range(40)]  # to 8,229 bytes: some fit the room, some do not

    async def at_once(number: int, writer: asyncio.StreamWriter) -> None:
        waiting.append(number)
        if len(waiting) == len(sent):
            writer.write(b"".join(fetch_answer(each, sent[each - 2]) for each in sorted(waiting)))

    async def run() -> None:
        async with connected(at_once) as connection:
            answers = await asyncio.gather(*(connection.send(fetching()) for _ in sent))
            assert [bytes(records_of(each)) for each in answers] == sent

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def _cut(number: int) -> bytes:
    return fetch_answer(number, b"x" * 10_000)[:6_000]


WRONG: dict[str, Callable[[int], bytes]] = {
    "negative": lambda number: SIZE.pack(-1),
    "nothing": lambda number: SIZE.pack(0),
    "more than there is memory": lambda number: SIZE.pack(RESPONSE_MOST + 1),
    "the most there is": lambda number: SIZE.pack(2**31 - 1) + b"x" * 10_000,
    "ends in the middle": _cut,
    "another request's": lambda number: fetch_answer(number + 1, b"x"),
    "records that end behind it": lambda number: SIZE.pack(60) + fetch_answer(number, b"x" * 100)[4:64],
    "nothing of Kafka's": lambda number: b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("loop", LOOPS, ids=["uvloop", "asyncio"])
def test_what_is_no_answer_ends_the_connection(loop: Any, what: str) -> None:
    async def answer(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(WRONG[what](number))
        await writer.drain()
        writer.close()

    async def run() -> None:
        async with connected(answer) as connection:
            with pytest.raises(kafka.KafkaError):
                await asyncio.wait_for(connection.send(fetching()), 20)
            await asyncio.sleep(0)
            assert not connection.connected()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


def test_an_answer_to_nobody_ends_the_connection() -> None:
    async def twice(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(fetch_answer(number, b"first") + fetch_answer(number + 1, b"second"))

    async def run() -> None:
        async with connected(twice) as connection:
            assert bytes(records_of(await connection.send(fetching()))) == b"first"
            for _ in range(6_000):
                await asyncio.sleep(0.01)
                if not connection.connected():
                    return
            pytest.fail("it is still open")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def test_an_answer_that_nobody_waits_for_any_more_does_not_end_it() -> None:
    async def slowly(number: int, writer: asyncio.StreamWriter) -> None:
        if number == 2:
            await asyncio.sleep(0.2)
        writer.write(fetch_answer(number, b"%d" % number))

    async def run() -> None:
        async with connected(slowly) as connection:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(connection.send(fetching()), 0.02)
            await asyncio.sleep(0.4)
            assert bytes(records_of(await connection.send(fetching()))) == b"3"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def test_a_version_request_is_answered_as_before() -> None:
    async def never(number: int, writer: asyncio.StreamWriter) -> None:
        raise AssertionError

    async with connected(never) as connection:
        answer = await connection.send(ApiVersionRequest())
        assert [tuple(each) for each in answer.api_versions] == list(VERSIONS)
        assert isinstance(connection._protocol, ReceivingProtocol)
