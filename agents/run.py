"""Run of an agent on one partition: events go in, outputs and changes of tables come out.

A batch goes through these steps, all in the lane's transaction:

    1. take              the lane's batch; duplicates are left out
    2. read              one value, event or batch; an undecodable value is a dead letter (`agents/reading.py`)
    3. run               the program, until it asks for the next event; its yields are kept, its writes to tables pushed
    4. flush             when the batch is at its end: outputs become record batches for the lane to produce
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.agents.at_hand import CurrentRecord, StreamClock
from kafka_ratchet.agents.event import Event, event_ids
from kafka_ratchet.agents.holding import HOLDERS, line_of
from kafka_ratchet.agents.outputs import FORWARD, Outputs, encode_json
from kafka_ratchet.agents.program import Agent
from kafka_ratchet.agents.program_errors import RAISED, describe_error, is_ended_by
from kafka_ratchet.agents.reading import NO_RECORD, Reading
from kafka_ratchet.agents.sends import Sends
from kafka_ratchet.agents.stream_timers import PartitionTimers
from kafka_ratchet.agents.timers import Timer
from kafka_ratchet.agents.topic import at_hand
from kafka_ratchet.errors import Aborted, AgentFailed, RatchetError, TableError
from kafka_ratchet.tables.replays import agents_of
from kafka_ratchet.tables.values.partition import AT_WORK, PartitionTables
from kafka_ratchet.tables.values.table import Table
from kafka_ratchet.tables.values.windows import EVENT
from kafka_ratchet.transport.correlation import correlate
from kafka_ratchet.transport.delivery import Delivery

UNKNOWN_AGENTS: Final = (
    "agent unknown: the dead letter does not name the agent that rejected the record, and the other agents have "
    "processed it. `ratchet dead-letters replay --again --unjudged` sends the record to all agents"
)


class Stream:
    """Argument of an agent: the events of its partition, each once, in the order of offsets."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def __aiter__(self) -> AsyncIterator[Any]:
        """Return an iterator over the values, decoded by the stream's value_type."""
        return self._reading.values()

    def events(self) -> AsyncIterator[Event]:
        """Return an iterator over the events: the values with key, headers and the record's other fields."""
        return self._reading.events()

    def batches(self, columns: Sequence[str] | None = None) -> AsyncIterator[Any]:
        """Yield the records in batches as they come from Kafka, each as a pyarrow RecordBatch.

        A batch has `key` and `value` (binary), `timestamp` (ms since the epoch), `sequence` (null in a stream without
        deduplication), `headers` (a map: name, value) and `offset`; topic and partition are in its schema's metadata. A
        batch is never empty.

        An agent may yield any number of outputs for a batch. A boolean mask forwards the chosen records unchanged, and
        the batch itself forwards all. A RecordBatch or Table holds new records with the columns `key` and `value`
        (binary or text). They may have `timestamp` and `headers`; the defaults are the batch's latest timestamp and no
        headers.

        Args:
            columns: names of the needed columns; None: all
        """
        return self._reading.batches(columns)

    @property
    def remaining(self) -> int:
        """Return the number of unread records in the current batch."""
        return self._reading.remaining

    def hold(self) -> None:
        """Hold the current record: until `release`, an error rejects it together with the records after it."""
        self._reading.held.append(self._reading.index)

    def skip(self) -> None:
        """Release the current record, which the program has skipped, if no other record is held.

        Otherwise the current record stays held too, so that an error undoes the effects of all held records.
        """
        if len(self._reading.held) == 1:
            self._reading.held.pop()

    def release(self) -> None:
        """Release all held records, so that the next error rejects only the current record."""
        self._reading.held.clear()

    def reject(self, reason: str) -> None:
        """Make the current record a dead letter; the held records stay held."""
        self._reading.reject(reason, alone=True)


class AgentRun:
    """Run of one agent on one partition, from its first batch to the next rollback.

    After a rollback a new run begins.
    """

    def __init__(self, agent: Agent, tables: Sequence[Table], partition: PartitionTables) -> None:
        """Start without a running task.

        Args:
            agent: agent with the function to call
            tables: tables of the program
            partition: state of the tables in this partition
        """
        self.agent, self._tables, self._partition = agent, tables, partition
        self._may_undo = agent.on_error == "dead-letter"
        before_record = self._mark_record if self._may_undo else None
        self._reading = Reading(agent.stream.value_type, partition, self._more, before_record)
        self._reading.agent = agent.name
        self._task: asyncio.Task[None] | None = None
        self._waiting: asyncio.Future[None] | None = None
        """Future on which the program waits for the next batch."""
        self._batch_done: asyncio.Future[None] | None = None
        """Future on which the lane waits until the program has processed the batch."""
        self._result: Any = None
        """Result of the function: a coroutine or an async generator."""
        self._is_over = False
        """True once the run's transaction was rolled back."""
        self._failure: Exception | None = None
        """Error that ended the run between two batches; the next batch raises it."""
        self._outputs, self._sends = Outputs(), Sends(agent.name, self._reading)
        self._mark = 0, 0
        """Numbers of outputs and sends at the start of the current record, or of the first held record.

        An error undoes all outputs and sends after them.
        """
        self._at_hand = CurrentRecord(partition, self._reading)

    async def take(self, delivery: Delivery, fresh: NDArray[np.int64]) -> None:
        """Pass records of a batch to the program; return when it asks for more.

        Args:
            delivery: the batch
            fresh: int64[records], indexes in the batch

        Returns:
            None; the program's outputs are then in the delivery.

        Raises:
            AgentFailed: the program raised an error that halts the partition, or it returned.
            Aborted: the transaction was rolled back.
        """
        if self._failure is not None:
            raise self._failure
        self._reading.begin(delivery, fresh)
        self._outputs.cut()
        self._sends.cut()
        self._at_hand.take(fresh)
        self._batch_done = asyncio.get_running_loop().create_future()
        delivery.held_by = self.held_by
        if self._task is None:
            name = f"{self.agent.name} {delivery.batch.topic}-{delivery.batch.partition}"
            self._task = asyncio.create_task(self._reading.as_own(self._drive), name=name)
            self._task.add_done_callback(self._on_end)
            HOLDERS[self._task] = self.held_by
        elif self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        await self._batch_done
        self._outputs.flush(delivery)
        self._sends.flush(delivery)

    @property
    def reads_batches(self) -> bool:
        """Return True if the program reads batches, so that its result may depend on their sizes."""
        return self._reading.reads_batches

    def abandon(self) -> None:
        """End the run, because its transaction was rolled back.

        A program that catches its cancellation may continue during the next run. The two runs share no state, and the
        old run gets no more events.
        """
        self._is_over, place = True, self._reading.place
        if self._task is not None:
            self._task.cancel()
        self._reading.stop()
        if self._batch_done is not None and not self._batch_done.done():
            self._batch_done.set_exception(
                Aborted(f"{place}: the agent was cancelled in this batch, because its transaction was rolled back")
            )

    async def _drive(self) -> None:
        """Run the program until it fails.

        Raises:
            Exception: the reason for a halt of the partition; ignored after a rollback.
        """
        for table in self._tables:
            table.here.set(self._partition.of(table.name))
        AT_WORK.set(self._partition)
        at_hand.set(self._sends)
        EVENT.set(self._at_hand)
        correlate(self._reading.correlation)
        while True:
            try:
                self._partition.begin()
                self._result = result = self.agent.function(Stream(self._reading))
                if inspect.isasyncgen(result):
                    await self._collect(result)
                else:
                    await result
            except RAISED as error:
                self._reject(error)
            else:
                raise self._failed("returned. An agent must not return: let it read events in an endless `async for`")

    def _reject(self, error: BaseException) -> None:
        """Make the current record a dead letter, or raise the error if it has to halt the partition."""
        if is_ended_by(error):
            raise error  # another run has its records, or the worker ends
        if self._is_over:
            raise asyncio.CancelledError from error  # likewise
        if isinstance(error, RatchetError) and not isinstance(error, TableError):
            raise error  # not the record's fault: the store is damaged, say
        if not self._may_undo or self._reading.index == NO_RECORD:
            raise self._failed(describe_error(error)) from error
        self._outputs.cut(self._mark[0])
        self._sends.cut(self._mark[1])
        self._partition.undo_record()
        self._reading.reject(f"agent {self.agent.name}: {describe_error(error)}")

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Pass the end of the run's task to the lane, now or at the next batch."""
        self._task = None
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self._is_over:
            return
        failure = error if isinstance(error, Exception) else self._failed(f"was ended by {type(error).__name__}")
        if self._batch_done is not None and not self._batch_done.done():
            self._batch_done.set_exception(failure)
        else:
            self._failure = failure

    def held_by(self) -> str:
        """Return the current record, the agent and its current line, for messages about a slow agent."""
        line = line_of(self._result, self.agent.function)
        return f"{self._reading.place}: agent {self.agent.name}{line}"

    def _failed(self, what: str) -> AgentFailed:
        return AgentFailed(f"{self._reading.place}: agent {self.agent.name} {what}")

    def _mark_record(self) -> None:
        if self._reading.held:
            return  # an error rejects the held records as well, so that their effects have to be undone too
        self._mark = len(self._outputs), len(self._sends)
        self._partition.begin_record()

    async def _collect(self, outputs: AsyncGenerator[Any, Any]) -> None:
        """Collect the program's outputs, each with its current record."""
        reading, add_index, add_value = self._reading, self._outputs.indices.append, self._outputs.values.append
        # A record without a yield has no output: the program alone decides what its stream forwards.
        async with aclosing(outputs):  # what its `finally` writes belongs to the record at hand
            async for output in outputs:
                if reading.index == NO_RECORD:
                    self._emit_for_batch(output)
                    continue
                kind = type(output)
                if kind is Event:
                    if output is not reading.event or reading.event_index != reading.index:
                        raise TypeError("yielded an event other than the current one. Yield a new value instead")
                    add_value(FORWARD)
                    self._outputs.forwards = True
                elif output is None or kind is bytes:
                    add_value(output)
                else:
                    add_value(encode_json(output))
                add_index(reading.index)

    def _emit_for_batch(self, output: Any) -> None:
        reading = self._reading
        if reading.batch is None:
            raise TypeError(
                "yielded without a current event, which gives an output its key and timestamp. Yield after reading "
                "an event"
            )
        if reading.delivery is not None:
            self._outputs.flush(reading.delivery)
            self._outputs.cut()
        reading.batch.emit(output)

    async def _more(self) -> None:
        """Release the batch, and wait for the next one."""
        if self._is_over:
            raise asyncio.CancelledError
        if self._batch_done is not None and not self._batch_done.done():
            self._reading.end()
            self._batch_done.set_result(None)
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting


class PartitionProgram:
    """Agents of a stream on one partition, which process each batch one after the other."""

    def __init__(self, agents: Sequence[Agent], tables: Sequence[Table], partition: PartitionTables) -> None:
        self._agents, self._tables, self._partition = agents, tables, partition
        self.runs = self._new_runs()
        self._stream_clock = StreamClock(partition)
        partition.rolled_back.append(self.abandon)

    def _new_runs(self) -> list[AgentRun]:
        return [AgentRun(agent, self._tables, self._partition) for agent in self._agents]

    async def take(self, delivery: Delivery, fresh: NDArray[np.bool_]) -> None:
        """Pass a batch to all agents, one after the other.

        fresh: bool[batch.count], True for records to process.

        Raises:
            AgentFailed: see `AgentRun.take`.
            Aborted: the transaction was rolled back.
        """
        rows = np.flatnonzero(fresh)
        had = self._find_processed(delivery, rows) if len(delivery.batch.replays) else {}
        for run in self.runs:
            left_out = had.get(run.agent.name)
            await run.take(delivery, rows if left_out is None else rows[~np.isin(rows, left_out)])
        if len(rows) and self._partition.has_windows:
            with self._partition.opened():
                self._stream_clock.advance(delivery.batch, rows)

    def _find_processed(self, delivery: Delivery, rows: NDArray[np.int64]) -> dict[str, list[int]]:
        """Return the indexes of the re-sent records that each agent has already processed, by agent.

        A dead letter may be re-sent for some agents only, because the others processed the record the first time. If
        the stream lacks one of these agents, the record becomes a dead letter again.

        rows: int64[records], indexes to process, without duplicates among the re-sent records.
        """
        names = {run.agent.name for run in self.runs}
        had: dict[str, list[int]] = {name: [] for name in names}
        for index in np.intersect1d(delivery.batch.replays, rows).tolist():
            wanted = agents_of(delivery.batch.headers(index), delivery.spec.letters)
            if wanted is None or not (wanted or len(names) > 1):
                continue
            if not wanted:
                delivery.dead_letter(index, UNKNOWN_AGENTS)
            if not wanted <= names:
                gone = ", ".join(sorted(wanted - names))
                for name in sorted(wanted):
                    why = f"agent {gone}: the dead letter was re-sent for this agent, which this stream does not have"
                    delivery.dead_letter(index, why, name, *event_ids(delivery, [index]))
                wanted = frozenset()
            for name in names - wanted:
                had[name].append(index)
        return had

    def abandon(self) -> None:
        """End every run; see `AgentRun.abandon`. The next `take` begins new runs."""
        for run in self.runs:
            run.abandon()
        self.runs = self._new_runs()


class StreamProgram:
    """Agents of a stream in one worker, for all its partitions."""

    def __init__(
        self,
        agents: Sequence[Agent],
        tables: Sequence[Table],
        partition: Callable[[int], PartitionTables],
        timers: Sequence[Timer] = (),
    ) -> None:
        """Start without any partition.

        Args:
            agents: agents in the order of processing a batch
            tables: tables of the stream
            partition: function that returns the state of the tables for an input partition
            timers: timers of the stream
        """
        self._agents, self._tables, self._partition, self._timers = agents, tables, partition, timers
        self._running: dict[int, PartitionProgram] = {}
        self._ticking: dict[int, PartitionTimers] = {}

    async def take(self, delivery: Delivery, fresh: NDArray[np.bool_]) -> None:
        """Pass a batch to the agents of its partition; see `PartitionProgram.take`. fresh: bool[batch.count]."""
        number = delivery.batch.partition
        if number not in self._running:
            self._running[number] = PartitionProgram(self._agents, self._tables, self._partition(number))
        await self._running[number].take(delivery, fresh)

    def ticks(self, number: int) -> PartitionTimers | None:
        """Return the timers of a partition; None if the stream has no timers."""
        if not self._timers:
            return None
        if number not in self._ticking:
            self._ticking[number] = PartitionTimers(self._timers, self._tables, self._partition(number))
        self._ticking[number].restart()
        return self._ticking[number]
