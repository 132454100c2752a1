# ruff: noqa: SLF001 - these are methods of aiokafka's connections
"""What Kafka answers is read into memory of its own: a fetched batch is a view of what the socket wrote there.

aiokafka reads by asyncio's `StreamReader`. By that each fetched byte is copied four times before anybody looks at it:
out of the event loop's buffer, into the reader's, out of that, and out of the response. Here the event loop (under
TLS: OpenSSL) writes into the response's own buffer, and a fetch is decoded without a copy.

Whose memory it is, is simple on purpose: a batch that is looked at while its buffer is filled anew would be damaged
without a word. A buffer is made for one response when its length is known, is filled once, is handed over read-only
when it is full, and is not known here from then on. It is freed with the last view of it; none is used twice.

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
"""The length of a response, before it."""
ROOM: Final = 1 << 10
"""bytes that are read while the length of a response is not known. Most responses are shorter, and cost one system
call; of a longer one, so much is copied. A worker of 1,000 partitions has some thousands of connections."""
RESPONSE_MOST: Final = 1 << 30
"""bytes. A fetch asks for megabytes, and comes with one whole batch, which Kafka's max.message.bytes bounds by 2 GiB at
most. Whoever announces more than this does not speak Kafka's protocol."""


class Connected(asyncio.BufferedProtocol):
    """In place of aiokafka's own protocol, with what `asyncio.StreamWriter` and its connections ask of that."""

    def __init__(self, closed: asyncio.Future[None], reader: asyncio.StreamReader, *, loop: Any) -> None:
        """As aiokafka makes its own. reader: gets no bytes; it only knows whether there can be more."""
        self._closed, self._reader = closed, reader
        self._flow = cast(Any, FlowControlMixin(loop=loop))
        self.pause_writing, self.resume_writing = self._flow.pause_writing, self._flow.resume_writing  # type: ignore[method-assign]
        self._drain_helper = self._flow._drain_helper  # StreamWriter.drain calls it
        self._connection: Callable[[], Any] = lambda: None
        self._ended: asyncio.Future[None] | None = None
        self._room, self._used = memoryview(bytearray(ROOM)), 0
        self._frame: memoryview | None = None
        """The response that is being read, where it is longer than `_room`."""
        self._filled = 0

    def serve(self, connection: Callable[[], Any], ended: asyncio.Future[None]) -> None:
        """Hand what comes to a connection.

        Args:
            connection: it, or None where nobody has it any more
            ended: gets the reason when no more can come
        """
        self._connection, self._ended = connection, ended

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the event loop writes what comes next; never empty."""
        return self._room[self._used :] if self._frame is None else self._frame[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes were written there."""
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
            # Whatever it is: what follows cannot be told apart any more.
            self._end(error)

    def _take_room(self) -> None:
        """Hand over the responses that are complete, and go on with one that is too long to be read here."""
        room, at = self._room, 0
        while self._used - at >= SIZE.size:
            (size,) = SIZE.unpack_from(room, at)
            if not 0 < size <= RESPONSE_MOST:
                raise kafka.KafkaConnectionError(f"a response of {size} bytes was announced: this is not Kafka")
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
        """Kafka sends no more."""
        self._end(EOFError("Kafka has closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed, by whomever."""
        self._flow.connection_lost(exc)
        self._end(exc or EOFError("the connection is closed"))
        if not self._closed.done():
            self._closed.set_result(None)


def create_reader_task(connection: Any) -> asyncio.Future[None]:
    """As aiokafka's own, which it replaces: ends, with the reason, when nothing more can come on a connection."""
    known = weakref.ref(connection)
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ended.add_done_callback(partial(AIOKafkaConnection._on_read_task_error, known))
    connection._protocol.serve(known, ended)
    return ended


def take(connection: Any, response: memoryview) -> None:
    """Give a response to who has sent its request; as aiokafka's own, but that nothing of a fetch is copied.

    Args:
        connection: aiokafka's
        response: without its length; read-only, and never written to again

    Raises:
        Exception: nobody has asked, or it cannot be decoded.
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
    """Of a response, what aiokafka's types ask of a file: views instead of copies."""

    def __init__(self, response: memoryview) -> None:
        self._response, self._at = response, 0

    def read(self, size: int) -> memoryview:
        """The next bytes; fewer where there are no more."""
        found = self._response[self._at : self._at + size]
        self._at += len(found)
        return found
