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
        function: function without parameters; an async generator function where it yields, as a stream's may
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
        """Return its next due time: a later multiple of the interval. Missed times are left out.

        Args:
            due_s: last due time
            now_s: the time now
        """
        missed = max(0.0, now_s - due_s) // self.interval_s
        return due_s + (missed + 1) * self.interval_s


class TimedStream(Protocol):
    """A `StreamDefinition`."""

    name: str
    timers: list[Timer]


class Timers:
    """Timers and tasks of an App."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        """Timers of each worker."""
        self.tasks: list[Function] = []
        """Begun in each worker once it has started."""

    def check_own(self, stream: TimedStream) -> None:
        """Raise where a stream is not one of this app."""
        raise NotImplementedError

    def timer(
        self, interval: float | timedelta, *, stream: TimedStream | None = None
    ) -> Callable[[Function], Function]:
        """Call a function at intervals, the first time when one has passed.

        Args:
            interval: seconds, or a timedelta.
            stream: call it for each partition of this stream, in the partition's transaction: it may use its tables,
                send and yield, and an error halts the partition as it does in an agent. None: call it once in each
                worker, outside transactions; an error there is logged, and the next call comes all the same.

        Raises:
            SettingsError: the interval, the stream or the function cannot be used.
        """
        interval_s = interval.total_seconds() if isinstance(interval, timedelta) else float(interval)
        if not interval_s > 0:
            raise SettingsError(f"timer: interval is {interval!r}: write seconds, more than 0")
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
        """Start a function once in each worker, for as long as the worker runs at most.

        Raises:
            SettingsError: the function cannot be used.
        """
        if not is_async(function):
            raise SettingsError(f"task {function!r}: write `async def` without parameters" + _no_yield(function))
        self.tasks.append(function)
        return function

    on_started = task


def is_async(function: Function) -> bool:
    """Return True if it is an `async def` that yields nothing and takes nothing."""
    return inspect.iscoroutinefunction(function) and takes_nothing(function)


def takes_nothing(function: Function) -> bool:
    """Return True if it can be called without arguments."""
    parameters = inspect.signature(function).parameters.values()
    return all(
        each.default is not each.empty or each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters
    )


def _no_yield(function: Function) -> str:
    return (
        ". Only a timer of a stream yields: timer(interval, stream=...)" if inspect.isasyncgenfunction(function) else ""
    )


class WorkerTimers:
    """Timers and tasks at work in one worker."""

    def __init__(
        self,
        timers: Iterable[Timer],
        tasks: Iterable[Function],
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Start without running timers. clock: seconds that only rise; None: the event loop's."""
        self._timers, self._tasks, self._clock, self._sleep = list(timers), list(tasks), clock, sleep

    async def run(self) -> None:
        """Run them until cancelled."""
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
        """Call the function; an error ends this call, and neither the worker nor the other timers."""
        result = function()
        if (running := asyncio.current_task()) is not None:
            HOLDERS[running] = lambda: f"{what} {name}{line_of(result, function)}"
        try:
            await result
        except RAISED as error:
            if is_ended_by(error):
                raise  # the worker ends
            log.exception(f"a {what} failed", name=name, reason=describe_error(error))
