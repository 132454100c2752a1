# ruff: noqa: SLF001 - these are methods of aiokafka's connections
"""Receiver of Kafka's answers into their own memory: a fetched batch is a view of the socket's bytes.

aiokafka reads with asyncio's `StreamReader`, which copies each fetched byte four times before its first use: out of the
event loop's buffer, into the `StreamReader`'s buffer, out of that buffer, and out of the response. Here the event loop
(under TLS: OpenSSL) writes into the response's own buffer, and a fetch is decoded without a copy.

No buffer is used twice, because filling a buffer again would silently damage a batch with a view of it. A buffer is
made for one response when the response's length is known. It is filled once, and handed over read-only when it is full.
From then on this module keeps no reference to the buffer, which is freed with its last view.

aiokafka has no types.
"""

from __future__ import annotations

import asyncio
import struct
import time
import weakref
from asyncio.streams import FlowControlMixin
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import numpy as np
from aiokafka import errors as kafka
from aiokafka.conn import AIOKafkaConnection

from kafka_ratchet.transport.client.topic_id import FetchRequest_v13

SIZE: Final = struct.Struct(">i")
"""Format of the length field in front of each response."""
ROOM: Final = 1 << 10
"""Size in bytes of the buffer used while the length of a response is unknown.

Most responses are shorter, and cost one system call. Of a longer response, the first bytes are copied out of this
buffer. The buffer is small, because a worker of 1,000 partitions has some thousands of connections.
"""
RESPONSE_MOST: Final = 1 << 30
"""Maximum bytes of a response; a server that announces more is not accepted as a Kafka broker.

A fetch requests some megabytes, but returns at least one whole batch. So a batch above this size cannot be read,
although Kafka's max.message.bytes may be up to 2 GiB.
"""


class ReceivingProtocol(asyncio.BufferedProtocol):
    """Receiving side of a connection, in place of aiokafka's protocol.

    It has the methods that `asyncio.StreamWriter` and aiokafka's connections call.
    """

    def __init__(self, closed: asyncio.Future[None], reader: asyncio.StreamReader, *, loop: Any) -> None:
        """Initialise as aiokafka's own protocol does.

        reader: receives no bytes; it only shows whether the connection is still open.
        """
        self._closed, self._reader = closed, reader
        self._flow = cast(Any, FlowControlMixin(loop=loop))
        self.pause_writing, self.resume_writing = self._flow.pause_writing, self._flow.resume_writing  # type: ignore[method-assign]
        self._drain_helper = self._flow._drain_helper  # StreamWriter.drain calls it
        self._connection: Callable[[], Any] = lambda: None
        self._ended: asyncio.Future[None] | None = None
        self._room, self._used = memoryview(bytearray(ROOM)), 0
        self._frame: memoryview | None = None
        """Memory of the present response, if it is longer than `_room`."""
        self._filled = 0

    def serve(self, connection: Callable[[], Any], ended: asyncio.Future[None]) -> None:
        """Begin to pass incoming responses to a connection.

        Args:
            connection: function that returns the connection, or None after the connection was freed
            ended: future that receives the reason when the connection ends
        """
        self._connection, self._ended = connection, ended

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the event loop's next bytes; never empty."""
        return self._room[self._used :] if self._frame is None else self._frame[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Process `nbytes` bytes that the event loop has written into the buffer."""
        try:
            if self._frame is None:
                self._used += nbytes
                self._take_room()
            else:
                self._filled += nbytes
                if self._filled == len(self._frame):
                    whole, self._frame = self._frame.toreadonly(), None
                    self._hand_over(whole)
        except Exception as error:
            # Any error: the boundaries of later responses are lost.
            self._end(error)

    def _take_room(self) -> None:
        """Pass on the complete responses in the buffer, and start a separate buffer for a long response."""
        room, at = self._room, 0
        while self._used - at >= SIZE.size:
            (size,) = SIZE.unpack_from(room, at)
            if not 0 < size <= RESPONSE_MOST:
                raise kafka.KafkaConnectionError(
                    f"the server announced a response of {size} bytes, which Kafka would not send: is this a Kafka "
                    "broker? Check bootstrap in the settings"
                )
            begin = at + SIZE.size
            if size > self._used - begin:
                if size > ROOM - SIZE.size:
                    self._frame, self._filled = np.empty(size, np.uint8).data, self._used - begin
                    self._frame[: self._filled] = room[begin : self._used]
                    self._used = 0
                    return
                break
            at = begin + size
            self._hand_over(memoryview(bytes(room[begin:at])))
        rest = bytes(room[at : self._used])
        room[: len(rest)] = rest
        self._used = len(rest)

    def _hand_over(self, response: memoryview) -> None:
        connection = self._connection()
        if connection is not None and connection.connected():
            take(connection, response)

    def _end(self, error: BaseException) -> None:
        self._reader.feed_eof()
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)

    def eof_received(self) -> None:
        """Handle a connection that Kafka has closed."""
        self._end(EOFError("Kafka has closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle a connection that either side has closed."""
        self._flow.connection_lost(exc)
        self._end(exc or EOFError("the connection is closed"))
        if not self._closed.done():
            self._closed.set_result(None)


def create_reader_task(connection: Any) -> asyncio.Future[None]:
    """Return a future that fails with the reason when the connection ends; replaces aiokafka's reader task."""
    known = weakref.ref(connection)
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ended.add_done_callback(partial(AIOKafkaConnection._on_read_task_error, known))
    connection._protocol.serve(known, ended)
    return ended


def take(connection: Any, response: memoryview) -> None:
    """Pass a response to its requester. The records of a fetch are not copied.

    Args:
        connection: aiokafka's connection
        response: bytes after the length field, read-only and never changed again

    Raises:
        Exception: no request was waiting, or the response cannot be decoded.
    """
    number, request, answer = connection._requests[0]
    data = Reading(response)
    if not isinstance(request, FetchRequest_v13) or request.parse_response_header(data).correlation_id != number:
        connection._handle_frame(bytes(response))
        return
    if not answer.done():
        answer.set_result(request.RESPONSE_TYPE.decode(data))
    connection._last_action = time.monotonic()
    connection._requests.popleft()


class Reading:
    """File-like view of a response, for aiokafka's decoders; returns views instead of copies."""

    def __init__(self, response: memoryview) -> None:
        self._response, self._at = response, 0

    def read(self, size: int) -> memoryview:
        """Return the next bytes; fewer than `size` at the end."""
        found = self._response[self._at : self._at + size]
        self._at += len(found)
        return found
