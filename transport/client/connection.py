# ruff: noqa: SLF001 - this replaces methods of aiokafka's
"""Patches of aiokafka's connections: large batches uncopied, and Kafka's errors after a reset.

aiokafka 0.14 copies a request twice on its way to the transport, and each response four times on its way from there
(`kafka_ratchet.transport.client.receiving`). aiokafka keeps one of these copies until the next response begins.

If Kafka refuses this client, or this client refuses Kafka's certificate, the error is an `AccessRefused` with a message
for the operator. aiokafka hides the reason why a client could not start; `refused_by` returns that reason.

asyncio's transports accept and drop bytes written after a reset. uvloop's transports raise RuntimeError until
aiokafka's reader notices the reset, but aiokafka 0.14 expects only OSError from a write. So the RuntimeError reaches
the callers, which do not retry. The only task that fetches metadata then ends without a message, and the worker goes on
asking a dead node for its partitions until an operator restarts the worker. A fault run with one of three nodes killed
showed this.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final

import aiokafka.conn
from aiokafka import errors as kafka
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.util import wait_for

from kafka_ratchet.errors import KafkaRefused
from kafka_ratchet.transport.client import receiving
from kafka_ratchet.transport.client.produce import BatchRequest
from kafka_ratchet.transport.client.refused import AccessRefused, refusal

_SIZE: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">ihhih")
"""Format of a request's first fields: size, API key, version, correlation id, length of the client id after them."""
WORTH_A_CALL: Final = 64 << 10
"""Smallest batch, in bytes, for which a system call of its own, some 10 µs, costs less than a copy."""

plain_send = AIOKafkaConnection.send
plain_connect = AIOKafkaConnection.connect

_refused: dict[str, str] = {}
"""Error texts of refusals by host:port, for servers that refused their last connection."""


def refused_by(servers: Iterable[str]) -> KafkaRefused | None:
    """Return the error for the first of the servers that refused its last connection; None without such a server."""
    return next((KafkaRefused(_refused[server]) for server in servers if server in _refused), None)


async def connect(connection: AIOKafkaConnection) -> Any:
    """Open a connection; replaces aiokafka's own function so that a refusal gets a clear message.

    Raises:
        AccessRefused: Kafka refuses this client, or this client refuses Kafka's certificate.
    """
    server = f"{connection.host}:{connection.port}"
    try:
        streams = await plain_connect(connection)
    except (OSError, kafka.KafkaError) as error:
        sentence = refusal(server, error, connection._sasl_mechanism)
        if sentence is None:
            raise
        _refused[server] = sentence
        raise AccessRefused(sentence) from error
    _refused.pop(server, None)
    return streams


def send(connection: AIOKafkaConnection, request: Any, expect_response: bool = True) -> Any:
    """Send a request; replaces aiokafka's own function for lanes and Faust alike (`mend_connections`).

    Raises:
        aiokafka.errors.KafkaConnectionError: the connection is lost and has been closed.
    """
    try:
        return _send(connection, request) if expect_response else plain_send(connection, request, expect_response)
    except RuntimeError as error:
        connection.close(reason=CloseReason.CONNECTION_BROKEN, exc=error)
        raise kafka.KafkaConnectionError(
            f"Connection at {connection.host}:{connection.port} broken: {error}"
        ) from error


def _send(connection: Any, builder: Any) -> Any:
    """Send a request without copying a large batch, and without a schema for its header."""
    if connection._writer is None:
        raise kafka.KafkaConnectionError(f"No connection to broker at {connection.host}:{connection.port}")
    request = builder.prepare(connection._versions)
    number = connection._next_correlation_id()
    before, batch = request.parts if isinstance(builder, BatchRequest) else (request.encode(), b"")
    client = connection._client_id.encode() + (b"\0" if request.FLEXIBLE_VERSION else b"")  # a header without tags
    size = _HEADER.size - _SIZE.size + len(client) + len(before) + len(batch)
    head = _HEADER.pack(size, request.API_KEY, request.API_VERSION, number, len(client) - request.FLEXIBLE_VERSION)
    try:
        if len(batch) <= WORTH_A_CALL:
            connection._writer.write(b"".join((head, client, before, batch)))
        else:
            connection._writer.write(b"".join((head, client, before)))
            connection._writer.write(batch)
    except OSError as error:
        connection.close(reason=CloseReason.CONNECTION_BROKEN)
        raise kafka.KafkaConnectionError(
            f"Connection at {connection.host}:{connection.port} broken: {error}"
        ) from error
    answer = connection._loop.create_future()
    connection._requests.append((number, request, answer))
    return wait_for(answer, connection._request_timeout)


def mend_connections() -> None:
    """Replace aiokafka's connection functions by this module's, for every client of this process, Faust's too.

    Callers call it explicitly: an import with this side effect was once removed, and no test noticed.
    """
    AIOKafkaConnection.connect = connect
    AIOKafkaConnection.send = send
    AIOKafkaConnection._create_reader_task = receiving.create_reader_task
    aiokafka.conn.AIOKafkaProtocol = receiving.ReceivingProtocol
