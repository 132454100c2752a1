"""TCP proxy between one worker and one broker, which can cut, delay or silence their network."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from enum import StrEnum

CHUNK = 1 << 16


class Line(StrEnum):
    """State of the network between a worker and a broker."""

    OPEN = "open"
    DELAYED = "delayed"
    SILENT = "silent"
    """Half-open: connections remain, but no data pass in either direction."""
    CUT = "cut"
    """Connections are reset, and new ones are closed at once."""


class Proxy:
    """Proxy from a free port of 127.0.0.1 to another port; runs in a thread of its own until `close`."""

    def __init__(self, target: int, delay_s: float = 0.3) -> None:
        """Start to listen.

        Args:
            target: port of 127.0.0.1 to forward to; no program needs to listen there yet.
            delay_s: delay of each piece of data in seconds while the line is delayed.
        """
        self.target, self.delay_s = target, delay_s
        self.port = 0
        self._line = Line.OPEN
        self._loop = asyncio.new_event_loop()
        self._speaking = asyncio.Event()
        self._speaking.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._gates: set[asyncio.Event] = set()
        """Gates of the open connections; a client's data wait until its gate is set."""
        self._held: set[asyncio.Event] = set()
        self.answers = 0
        """Number of the broker's answers on held connections."""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def line(self) -> Line:
        """Return the present state of the network."""
        return self._line

    @line.setter
    def line(self, line: Line) -> None:
        self._line = line
        self._loop.call_soon_threadsafe(self._apply)

    def hold(self) -> None:
        """Hold back all data that clients send on the present connections; new connections pass."""
        held = threading.Event()
        self._loop.call_soon_threadsafe(self._hold)
        self._loop.call_soon_threadsafe(held.set)
        held.wait()

    def release(self) -> None:
        """Forward the data held back, even if their senders have gone."""
        self._loop.call_soon_threadsafe(self._release)

    def _hold(self) -> None:
        self._held |= self._gates
        for gate in self._gates:
            gate.clear()

    def _release(self) -> None:
        for gate in self._held:
            gate.set()

    def close(self) -> None:
        """Reset every connection, and end the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _apply(self) -> None:
        if self._line is Line.SILENT:
            self._speaking.clear()
        else:
            self._speaking.set()
        if self._line is Line.CUT:
            self._reset()

    def _reset(self) -> None:
        for writer in list(self._writers):
            _reset(writer)

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        loop.run_forever()
        server.close()
        self._reset()
        for task in self._tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        loop.run_until_complete(asyncio.sleep(0))  # lets the aborted transports close their sockets
        loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a connection's callback is always a task
        self._tasks.add(task)
        self._writers.add(writer)
        far: asyncio.StreamWriter | None = None
        gate = asyncio.Event()
        gate.set()
        self._gates.add(gate)
        try:
            if self._line is Line.CUT:
                return
            await self._speaking.wait()
            far_reader, far = await asyncio.open_connection("127.0.0.1", self.target)
            self._writers.add(far)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward(reader, far, gate))
                both.create_task(self._forward(far_reader, writer, gate, is_far=True))
        except* OSError:
            pass  # one of the two sides has gone; the other learns it below
        finally:
            for end in (writer, far):
                if end is not None:
                    _reset(end)
                    self._writers.discard(end)
            self._tasks.discard(task)
            self._gates.discard(gate)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event, *, is_far: bool = False
    ) -> None:
        while data := await reader.read(CHUNK):
            await self._speaking.wait()
            if is_far:
                self.answers += gate in self._held
            else:
                await gate.wait()
            if self._line is Line.DELAYED:
                await asyncio.sleep(self.delay_s)
            writer.write(data)
            await writer.drain()
        if gate in self._held and not is_far:
            await asyncio.Event().wait()  # the client has given up; its data are still in flight
        raise ConnectionResetError  # the whole connection ends with either direction


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        # Nothing lingers: the other side gets a reset instead of an orderly end.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
