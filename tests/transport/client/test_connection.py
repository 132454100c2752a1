"""A connection that Kafka has reset, on the event loop that workers use."""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop
from aiokafka import errors as kafka
from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.protocol.admin import ApiVersionRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from kafka_ratchet.transport.client import connection as connection_module
from kafka_ratchet.transport.client.connection import WORTH_A_CALL
from kafka_ratchet.transport.client.describe import DescribeProducersRequest
from kafka_ratchet.transport.client.produce import BatchRequest
from kafka_ratchet.transport.client.topic_id import FetchByIdRequest, TopicsRequest
from kafka_ratchet.transport.transactions.version_2 import FeaturesRequest, RaisingEndRequest

PATIENCE_S = 30.0


@pytest.fixture
def resetting_port() -> Iterator[int]:
    """Yield the port of a server that answers each connection's request for versions, and then resets it."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def answer() -> None:
            with server.accept()[0] as connection:
                (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                _, version, number = struct.unpack_from(">hhi", connection.recv(size, socket.MSG_WAITALL))
                body = struct.pack(">ihi3h", number, 0, 1, 3, 0, 1) + (struct.pack(">i", 0) if version else b"")
                connection.sendall(struct.pack(">i", len(body)) + body)
                connection.recv(1)  # the next request: whoever sends it has read the answer, which a reset overtakes
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        thread = threading.Thread(target=answer)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def _first_error(port: int, send: Callable[[AIOKafkaConnection], Any]) -> Exception:
    async def until_it_fails() -> Exception:
        connection = await create_conn("127.0.0.1", port)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                try:
                    send(connection).close()  # the answer is not waited for
                except Exception as error:
                    return error
                await asyncio.sleep(0)
            raise AssertionError("it was never reset")
        finally:
            connection.close()

    return uvloop.run(until_it_fails())


def test_a_worker_has_the_mended_methods() -> None:
    # In a process of its own: here the module above is imported, whatever a worker does.
    program = (
        "import kafka_ratchet.app.worker.process, aiokafka.conn; its = aiokafka.conn.AIOKafkaConnection; "
        "print(its.send.__module__, its._create_reader_task.__module__, aiokafka.conn.AIOKafkaProtocol.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    ours = "kafka_ratchet.transport.client"
    assert done.stdout.split() == [f"{ours}.connection", *[f"{ours}.receiving"] * 2], done.stderr


# Requests whose answer nobody waits for get the reset as their error.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_it_is_an_error_of_kafkas_and_the_connection_is_closed(resetting_port: int) -> None:
    seen: list[AIOKafkaConnection] = []

    def send(connection: AIOKafkaConnection) -> Any:
        seen[:] = [connection]
        return connection.send(ApiVersionRequest())

    error = _first_error(resetting_port, send)
    assert isinstance(error, kafka.KafkaConnectionError)
    assert not seen[0].connected()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_aiokafka_itself_does_not_expect_what_uvloop_raises(resetting_port: int) -> None:
    # Once this fails, the module can go.
    error = _first_error(
        resetting_port, lambda connection: connection_module.plain_send(connection, ApiVersionRequest())
    )
    assert isinstance(error, RuntimeError)
    assert not isinstance(error, kafka.KafkaError)


class Written:
    """Stand-in for a connection's server: it keeps the written bytes."""

    def __init__(self) -> None:
        self.bytes = b""
        self.calls = 0

    def write(self, data: Any) -> None:
        self.bytes += bytes(data)
        self.calls += 1

    def close(self) -> None:
        """There is nothing to close."""


REQUESTS: list[Any] = [
    ApiVersionRequest(),
    FeaturesRequest(),
    TopicsRequest(["a", "b"]),
    FetchByIdRequest(bytes(16), 0, 5, -1, 1 << 20, 250),
    InitProducerIdRequest("id", 60_000),
    AddPartitionsToTxnRequest("id", 1, 0, [("t", [0, 1])]),
    AddOffsetsToTxnRequest("id", 1, 0, "g"),
    TxnOffsetCommitRequest("id", "g", 1, 0, [("t", [(0, 5, "metadata")])]),
    EndTxnRequest("id", 1, 0, True),
    RaisingEndRequest("id", 1, 0, True),
    DescribeProducersRequest([("t", 0)]),
]


@pytest.mark.parametrize("client_id", ["ratchet", "größe", ""])
@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
async def test_a_request_is_what_aiokafka_writes(request_: Any, client_id: str) -> None:
    written = []
    for send in (connection_module.plain_send, connection_module.send):
        connection = AIOKafkaConnection("127.0.0.1", 1, client_id=client_id)
        connection._writer = Written()
        connection._versions = {key: (0, 99) for key in range(90)}
        send(connection, request_).close()
        written.append(connection._writer.bytes)
        connection._requests.clear()
    assert written[0] == written[1]


@pytest.mark.parametrize(
    "size", [1, 100, connection_module.WORTH_A_CALL, connection_module.WORTH_A_CALL + 1, 3_000_000]
)
async def test_a_batch_is_what_aiokafka_writes_whatever_its_size(size: int) -> None:
    batch = bytes(range(256)) * (size // 256 + 1)
    theirs, ours = (AIOKafkaConnection("127.0.0.1", 1, client_id="ratchet") for _ in range(2))
    for connection in (theirs, ours):
        connection._writer = Written()
        connection._versions = {0: (0, 7)}
    plain = ProduceRequest("id", -1, 30_000, [("topic", [(3, batch[:size])])])
    connection_module.plain_send(theirs, plain).close()
    connection_module.send(ours, BatchRequest("id", 30_000, "topic", 3, memoryview(batch)[:size])).close()
    assert ours._writer.bytes == theirs._writer.bytes
    assert ours._writer.calls == (1 if size <= WORTH_A_CALL else 2)
