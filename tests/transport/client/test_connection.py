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

from kafka_ratchet.transport.client import connection as connection_module

PATIENCE_S = 30.0


@pytest.fixture
def resetting_port() -> Iterator[int]:
    """Of a server that answers each connection's first request, which asks for versions, and then resets it."""
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
