"""An agent of one's own at work on one partition: events go in, outputs and changes of tables come out.

A batch goes through in these steps, all in the transaction that the lane has begun:

    1. take              the lane's batch; records that are duplicates are left out
    2. decode            one value; one that does not decode is a dead letter
    3. run               the program, until it asks for the next event; what it yields is kept, what it writes to tables
                         is pushed
    4. flush             when the batch is at its end: outputs become record batches for the lane to produce
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.agents.event import Event
from kafka_ratchet.agents.outputs import FORWARD, Outputs
from kafka_ratchet.agents.program import Agent
from kafka_ratchet.errors import AgentFailed, RatchetError, TableError
from kafka_ratchet.tables.values.partition import PartitionTables
from kafka_ratchet.tables.values.table import Table
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.delivery import Delivery
from kafka_ratchet.transport.transactions.crash_points import crash_point

NO_RECORD: Final = -1
OURS: Final = str(Path(__file__).parents[1])
"""Lines of files in there are no lines of the program."""

_encode = msgspec.json.Encoder().encode


class Stream:
    """What an agent is called with: its partition's events, each once, in the order of their offsets."""

    def __init__(self, run: AgentRun) -> None:
        self._run = run

    def __aiter__(self) -> AsyncIterator[Any]:
        """Values, decoded by the stream's value_type."""
        return self._run.values()

    def events(self) -> AsyncIterator[Event]:
        """Values with what else a record has."""
        return self._run.events()


class AgentRun:
    """One agent on one partition, from its first batch to the next rollback; then another one begins."""

    def __init__(self, agent: Agent, tables: Sequence[Table], partition: PartitionTables) -> None:
        """Nothing runs yet.

        Args:
            agent: whose function is called
            tables: of the program
            partition: what they keep for this partition
        """
        self.agent, self._tables, self._partition = agent, tables, partition
        self._decode = decoder(agent.stream.value_type)
        self._task: asyncio.Task[None] | None = None
        self._waiting: asyncio.Future[None] | None = None
        """The program waits for the next batch."""
        self._given_back: asyncio.Future[None] | None = None
        """The lane's side waits for the program to be through with the batch."""
        self._delivery: Delivery | None = None
        self._rows: list[int] = []
        self._at = 0
        """Of `_rows`, the next to hand out."""
        self._index = NO_RECORD
        """Of the batch, the record at hand."""
        self._event: Event | None = None
        self._outputs = Outputs()
        self._mark = 0
        """Outputs before those of the record at hand; only known where a record may be undone."""
        self._is_over = False

    async def take(self, delivery: Delivery, rows: list[int]) -> None:
        """Have the program take these records of a batch.

        Returns:
            when it asks for more; its outputs are the delivery's then

        Raises:
            AgentFailed: it raised and the record halts its partition; or it ended by itself.
        """
        self._delivery, self._rows, self._at, self._index = delivery, rows, 0, NO_RECORD
        self._outputs.cut()
        self._given_back = asyncio.get_running_loop().create_future()
        if self._task is None:
            name = f"{self.agent.name} {delivery.batch.topic}-{delivery.batch.partition}"
            self._task = asyncio.create_task(self._drive(), name=name)
        elif self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        await self._given_back
        self._outputs.flush(delivery)
        self._delivery = None

    def abandon(self) -> None:
        """End the run: its transaction was rolled back.

        A program that catches its cancellation goes on for a while, beside the next run: nothing here is shared with
        that one, and there are no more events.
        """
        self._is_over, self._at = True, sys.maxsize
        if self._task is not None:
            self._task.cancel()
        self._task = self._waiting = self._delivery = None
        if self._given_back is not None and not self._given_back.done():
            self._given_back.cancel()

    async def _drive(self) -> None:
        """Run the program, from its first event on, until it fails."""
        for table in self._tables:
            table.here.set(self._partition.of(table.name))
        failure: Exception | None = None
        while failure is None:
            try:
                result = self.agent.function(Stream(self))
                if inspect.isasyncgen(result):
                    await self._collect(result)
                else:
                    await result
                failure = self._failed("ended by itself: an agent goes on for as long as there are events")
            except Exception as error:
                if self._is_over:
                    return
                if isinstance(error, RatchetError) and not isinstance(error, TableError):
                    failure = error  # not the record's fault: the store is damaged, say
                elif self.agent.on_error == "dead-letter" and self._index != NO_RECORD:
                    self._outputs.cut(self._mark)
                    self._partition.undo_record()
                    self._dead_letter(f"agent {self.agent.name}: {said_of(error)}")
                else:
                    failure = self._failed(said_of(error))
                    failure.__cause__ = error
        self._task = None
        if self._given_back is not None and not self._given_back.done():
            self._given_back.set_exception(failure)

    def _failed(self, what: str) -> AgentFailed:
        batch = self._delivery.batch if self._delivery else None
        place = "before its first event"
        if batch is not None and self._index != NO_RECORD:
            place = f"{batch.topic}, partition {batch.partition}, offset {int(batch.offsets[self._index])}"
        elif batch is not None:
            place = f"{batch.topic}, partition {batch.partition}"
        return AgentFailed(f"{place}: agent {self.agent.name} {what}")

    def _dead_letter(self, reason: str) -> None:
        assert self._delivery is not None  # noqa: S101 - a record is at hand
        self._delivery.dead_letter(self._index, reason)
        self._index = NO_RECORD

    async def _collect(self, outputs: AsyncGenerator[Any, Any]) -> None:
        """Keep what the program yields, each with the record at hand."""
        index, value = self._outputs.indices.append, self._outputs.values.append
        async with aclosing(outputs):  # what its `finally` writes belongs to the record at hand
            async for output in outputs:
                if self._index == NO_RECORD:
                    raise TypeError("yielded before its first event, whose key and timestamp an output gets")
                kind = type(output)
                if kind is Event:
                    if output is not self._event:
                        raise TypeError(
                            "yielded an event that is not the one at hand: yield a value of your own instead"
                        )
                    value(FORWARD)
                elif output is None or kind is bytes:
                    value(output)
                else:
                    value(_encode(output))
                index(self._index)

    async def _more(self) -> None:
        """Give the batch back, and wait for the next one."""
        if self._is_over:
            raise asyncio.CancelledError
        if self._given_back is not None and not self._given_back.done():
            self._given_back.set_result(None)
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting

    async def values(self) -> AsyncIterator[Any]:
        """For `async for value in stream`."""
        partition, may_undo = self._partition, self.agent.on_error == "dead-letter"
        while True:
            while self._at >= len(self._rows):
                await self._more()
            assert self._delivery is not None  # noqa: S101 - there are rows
            batch = self._delivery.batch
            data = batch.data.data
            starts = batch.columns[records.VALUE].tolist()
            lengths = batch.columns[records.VALUE_LENGTH].tolist()
            decode, rows = self._decode, self._rows
            while self._at < len(rows):
                self._index = index = rows[self._at]
                self._at += 1
                length = lengths[index]
                if may_undo:
                    self._mark = len(self._outputs)
                    partition.begin_record()
                try:
                    start = starts[index]
                    value = decode(data[start : start + length] if length >= 0 else None)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    self._dead_letter(f"value does not decode: {error}")
                    continue
                yield value
                if partition.lent and not self._is_over:
                    partition.check_lent()
            del data
            crash_point("agent")

    async def events(self) -> AsyncIterator[Event]:
        """For `async for event in stream.events()`."""
        async for value in self.values():
            assert self._delivery is not None  # noqa: S101 - a record is at hand
            batch, index = self._delivery.batch, self._index
            event = Event(
                batch.key(index),
                value,
                tuple(batch.headers(index)),
                int(batch.timestamps[index]),
                batch.partition,
                int(batch.offsets[index]),
            )
            self._event = event
            yield event


class PartitionProgram:
    """All agents of a stream on one partition, one after the other for each batch."""

    def __init__(self, agents: Sequence[Agent], tables: Sequence[Table], partition: PartitionTables) -> None:
        self._agents, self._tables, self._partition = agents, tables, partition
        self.runs = self._new_runs()
        self._work: asyncio.Task[None] | None = None
        partition.rolled_back.append(self.abandon)

    def _new_runs(self) -> list[AgentRun]:
        return [AgentRun(agent, self._tables, self._partition) for agent in self._agents]

    def take(self, delivery: Delivery, fresh: NDArray[np.bool_]) -> None:
        """Begin with a batch; it goes back to its lane when all agents are through. fresh: bool[batch.count]."""
        delivery.is_taken = True
        self._work = asyncio.create_task(self._through(delivery, np.flatnonzero(fresh).tolist()))

    async def _through(self, delivery: Delivery, rows: list[int]) -> None:
        delivery.is_taken = False
        async with delivery:
            for run in self.runs:
                await run.take(delivery, rows)

    def abandon(self) -> None:
        """End every run; see `AgentRun.abandon`. The next `take` begins others."""
        if self._work is not None:
            self._work.cancel()
            self._work = None
        for run in self.runs:
            run.abandon()
        self.runs = self._new_runs()


class StreamProgram:
    """The agents of a stream in one worker."""

    def __init__(
        self, agents: Sequence[Agent], tables: Sequence[Table], partition: Callable[[int], PartitionTables]
    ) -> None:
        """Nothing runs yet.

        Args:
            agents: in the order in which they take each batch
            tables: of the stream
            partition: what the tables keep for an input partition
        """
        self._agents, self._tables, self._partition = agents, tables, partition
        self._running: dict[int, PartitionProgram] = {}

    def take(self, delivery: Delivery, fresh: NDArray[np.bool_]) -> None:
        """Have the partition's run take a batch. fresh: bool[batch.count]."""
        number = delivery.batch.partition
        if number not in self._running:
            self._running[number] = PartitionProgram(self._agents, self._tables, self._partition(number))
        self._running[number].take(delivery, fresh)


def decoder(value_type: Any) -> Callable[[Any], Any]:
    """What turns a record's value into what a program gets: a function of a memoryview, or of None for a null value.

    It raises msgspec.MsgspecError for what is not of that type.
    """
    if value_type is bytes:
        return lambda data: None if data is None else bytes(data)
    inner = msgspec.json.Decoder(Any if value_type is None else value_type).decode
    takes_none = value_type is None

    def decode(data: Any) -> Any:
        if data is None:
            if takes_none:
                return None
            raise msgspec.ValidationError("it is null")
        return inner(data)

    return decode


def said_of(error: Exception) -> str:
    """What was raised, and in which line of the program."""
    if isinstance(error, TableError):
        what = str(error)
    else:
        what = f"raised {type(error).__name__}: {error}" if str(error) else f"raised {type(error).__name__}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(OURS)]
    return f"{what} ({frames[-1].filename}:{frames[-1].lineno})" if frames else what
