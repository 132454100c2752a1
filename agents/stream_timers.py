"""Timers of a stream on one partition: their outputs and writes commit with the lane's transaction."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import numpy as np

from kafka_ratchet.agents.holding import HOLDERS, line_of
from kafka_ratchet.agents.outputs import Outputs, output_value
from kafka_ratchet.agents.program_errors import RAISED, describe_error, is_ended_by
from kafka_ratchet.agents.reading import Reading
from kafka_ratchet.agents.sends import Sends
from kafka_ratchet.agents.timers import Timer
from kafka_ratchet.agents.topic import at_hand
from kafka_ratchet.errors import Aborted, AgentFailed, RatchetError, TableError
from kafka_ratchet.tables.values.partition import AT_WORK, PartitionTables
from kafka_ratchet.tables.values.table import Table
from kafka_ratchet.transport.correlation import correlate
from kafka_ratchet.transport.delivery import Delivery, Output

TICK: Final = 0
"""Index of the only record in the batch that a lane makes for a call of timers.

The record has a null key, a null value, and the time of the call as timestamp. It is not sent; a timer's outputs have
its key and its timestamp.
"""


class PartitionTimers:
    """Timers of a stream in one partition; implements `kafka_ratchet.transport.delivery.Ticks`.

    After a rollback of its call, a timer is due again at once.
    """

    def __init__(
        self,
        timers: Sequence[Timer],
        tables: Sequence[Table],
        partition: PartitionTables,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without a due timer.

        Args:
            timers: timers of the stream
            tables: tables of the stream
            partition: state of the tables in this partition
            clock: monotonic seconds
        """
        self.timers, self._tables, self._partition, self._clock = timers, tables, partition, clock
        self._due: dict[Timer, float] = {}
        self._open: dict[Timer, float] = {}
        """Due times of the timers that the open transaction has called."""
        self._work: asyncio.Task[None] | None = None
        self._at: tuple[Timer, Any] | None = None
        """Timer called last, and the result of its function."""
        self._rollbacks = 0
        self.restart()
        partition.rolled_back.append(self._roll_back)
        partition.committed.append(self._open.clear)

    def restart(self) -> None:
        """Restart the intervals for a new lane: each timer is due after its interval."""
        self._due = {timer: self._clock() + timer.interval_s for timer in self.timers}
        self._open.clear()

    def wait_s(self) -> float:
        """Return the seconds until the next timer is due, as described in `Ticks`."""
        return max(0.0, min(self._due.values()) - self._clock())

    async def process(self, delivery: Delivery) -> deque[Output]:
        """Call the due timers in a task that a rollback cancels; see `Ticks`.

        Raises:
            AgentFailed: a timer raised.
            Aborted: the task was cancelled.
        """
        work = self._work = asyncio.create_task(self._call_due(delivery))
        work.add_done_callback(_retrieve)
        HOLDERS[work] = delivery.held_by = partial(self._held_by, delivery)
        await asyncio.wait({work})  # not for longer than the lane does, whatever a timer makes of its cancellation
        if work.cancelled():
            batch = delivery.batch
            raise Aborted(
                f"{batch.topic}, partition {batch.partition}: the timers were cancelled at offset {batch.start}, "
                "because the transaction was rolled back"
            )
        work.result()
        return delivery.outputs

    async def call(self, timers: Sequence[Timer], delivery: Delivery) -> None:
        """Call these timers, whether due or not; see `process`."""
        for timer in self.timers:
            self._due[timer] = self._clock() + (0 if timer in timers else timer.interval_s)
        await self.process(delivery)

    async def _call_due(self, delivery: Delivery) -> None:
        correlate(partial(delivery.spec.correlation, delivery.batch.start))
        for table in self._tables:
            table.here.set(self._partition.of(table.name))
        AT_WORK.set(self._partition)
        now, rollbacks = self._clock(), self._rollbacks
        for timer, due in list(self._due.items()):
            if due <= now:
                await self._call(timer, delivery)
                if self._rollbacks != rollbacks:
                    return  # the timer has caught its cancellation: it was not called
                self._open.setdefault(timer, due)
                self._due[timer] = timer.after(due, self._clock())

    def _held_by(self, delivery: Delivery) -> str:
        batch = delivery.batch
        name = self._at[0].name if self._at else "nobody"
        line = line_of(self._at[1], self._at[0].function) if self._at else ""
        return f"{batch.topic}, partition {batch.partition}: timer {name}{line}"

    async def _call(self, timer: Timer, delivery: Delivery) -> None:
        reading = Reading(None, self._partition, _no_more, None)
        reading.begin(delivery, np.empty(0, np.int64))
        reading.index, reading.is_timer = TICK, True
        outputs, sends = Outputs(), Sends(timer.name, reading)
        at_hand.set(sends)
        try:
            await reading.as_own(partial(self._run, timer, outputs))
        except RAISED as error:
            if is_ended_by(error):
                raise  # the transaction was rolled back, or the worker ends
            if isinstance(error, RatchetError) and not isinstance(error, TableError):
                raise
            batch = delivery.batch
            place = f"{batch.topic}, partition {batch.partition}"
            raise AgentFailed(f"{place}: timer {timer.name} {describe_error(error)}") from error
        finally:
            reading.end()  # a task that it started may send no more: the records would be lost
        outputs.flush(delivery)
        sends.flush(delivery)

    async def _run(self, timer: Timer, outputs: Outputs) -> None:
        self._partition.begin()
        result = timer.function()
        self._at = timer, result
        if inspect.isasyncgen(result):
            async with aclosing(result):
                async for output in result:
                    outputs.indices.append(TICK)
                    outputs.values.append(output_value(output))
        else:
            await result
        self._partition.check_lent()

    def _roll_back(self) -> None:
        if self._work is not None:
            self._work.cancel()
            self._work = None
        self._rollbacks += 1
        self._due |= self._open
        self._open.clear()


def _retrieve(work: asyncio.Task[None]) -> None:
    """Retrieve the exception so that asyncio does not log it."""
    if not work.cancelled():
        work.exception()


async def _no_more() -> None:
    """Return at once, because a timer reads no events."""
