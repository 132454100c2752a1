"""Timers and tasks as a program declares them, and their runs in a worker, outside transactions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import structlog

from kafka_ratchet.agents.holding import HOLDERS, line_of
from kafka_ratchet.agents.program_errors import RAISED, describe_error, is_ended_by
from kafka_ratchet.errors import SettingsError

log = structlog.get_logger(__name__)

Function = Callable[[], Any]


@dataclass(eq=False)
class Timer:
    """Function called at intervals.

    Attributes:
        function: function without parameters; a stream's timer may be an async generator function and yield
        interval_s: seconds from one call to the next
        name: name of the function
    """

    function: Function
    interval_s: float

    @property
    def name(self) -> str:
        """Return the function's name."""
        return getattr(self.function, "__name__", repr(self.function))

    def after(self, due_s: float, now_s: float) -> float:
        """Return the next due time after `now_s`, in steps of the interval; missed times are skipped.

        Args:
            due_s: last due time
            now_s: the time now
        """
        missed = max(0.0, now_s - due_s) // self.interval_s
        return due_s + (missed + 1) * self.interval_s


class TimedStream(Protocol):
    """Interface of `StreamDefinition` for timers."""

    name: str
    timers: list[Timer]


class Timers:
    """Timers and tasks of an App, with the decorators that declare them."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        """Timers that each worker calls."""
        self.tasks: list[Function] = []
        """Functions that each worker runs once, after its start."""

    def check_own(self, stream: TimedStream) -> None:
        """Check that a stream belongs to this app."""
        raise NotImplementedError

    def timer(
        self, interval: float | timedelta, *, stream: TimedStream | None = None
    ) -> Callable[[Function], Function]:
        """Register a function to call at intervals, first after one interval.

        Args:
            interval: seconds, or a timedelta.
            stream: call the function for each partition of this stream, in the partition's transaction: it may use
                tables, send and yield, and an error halts the partition as in an agent. None: call it in each worker,
                outside transactions; an error is logged, and later calls follow.

        Raises:
            SettingsError: the interval, the stream or the function is not suitable.
        """
        interval_s = interval.total_seconds() if isinstance(interval, timedelta) else float(interval)
        if not interval_s > 0:
            raise SettingsError(f"timer: interval is {interval!r}. Give seconds, more than 0")
        if stream is not None:
            self.check_own(stream)

        def register(function: Function) -> Function:
            may_yield = stream is not None and inspect.isasyncgenfunction(function) and takes_nothing(function)
            if not is_async(function) and not may_yield:
                raise SettingsError(f"timer {function!r}: write `async def` without parameters" + _no_yield(function))
            (self.timers if stream is None else stream.timers).append(Timer(function, interval_s))
            return function

        return register

    def task(self, function: Function) -> Function:
        """Register a function that each worker runs once, as a task that ends with the worker.

        Raises:
            SettingsError: the function is not suitable.
        """
        if not is_async(function):
            raise SettingsError(f"task {function!r}: write `async def` without parameters" + _no_yield(function))
        self.tasks.append(function)
        return function

    on_started = task


def is_async(function: Function) -> bool:
    """Return True if a function is an `async def` with neither yields nor parameters."""
    return inspect.iscoroutinefunction(function) and takes_nothing(function)


def takes_nothing(function: Function) -> bool:
    """Return True if a function can be called without arguments."""
    parameters = inspect.signature(function).parameters.values()
    return all(
        each.default is not each.empty or each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters
    )


def _no_yield(function: Function) -> str:
    return (
        ". Only a timer of a stream yields: timer(interval, stream=...)" if inspect.isasyncgenfunction(function) else ""
    )


class WorkerTimers:
    """Runner of timers and tasks in one worker, outside transactions."""

    def __init__(
        self,
        timers: Iterable[Timer],
        tasks: Iterable[Function],
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Start without running timers. clock: monotonic seconds; None: the event loop's clock."""
        self._timers, self._tasks, self._clock, self._sleep = list(timers), list(tasks), clock, sleep

    async def run(self) -> None:
        """Run the timers and tasks until cancelled."""
        await asyncio.gather(
            *(self._call("task", task.__name__, task) for task in self._tasks),
            *(self._repeat(timer) for timer in self._timers),
        )

    async def _repeat(self, timer: Timer) -> None:
        clock = self._clock or asyncio.get_running_loop().time
        due = clock() + timer.interval_s
        while True:
            await self._sleep(max(0.0, due - clock()))
            await self._call("timer", timer.name, timer.function)
            due = timer.after(due, clock())

    @staticmethod
    async def _call(what: str, name: str, function: Function) -> None:
        """Call a function; an error is logged, and ends neither the worker nor other timers."""
        result = function()
        if (running := asyncio.current_task()) is not None:
            HOLDERS[running] = lambda: f"{what} {name}{line_of(result, function)}"
        try:
            await result
        except RAISED as error:
            if is_ended_by(error):
                raise  # the worker ends
            log.exception(f"a {what} failed", name=name, reason=describe_error(error))
