"""Windows of a Faust table on one partition: they close by the events' time, in order, in the lane's transaction."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

import structlog
from faust.tables.sets import OPERATION_UPDATE, SetTable
from faust.tables.wrappers import WindowWrapper

from kafka_ratchet.app.faust_host.refusals import not_named
from kafka_ratchet.app.faust_host.store import LaneStore, as_made
from kafka_ratchet.errors import AgentFailed
from kafka_ratchet.tables.values.partition import AT_WORK
from kafka_ratchet.tables.values.table import Table

log = structlog.get_logger(__name__)

TIME: Final = "time"
"""Key of the clock's table. Its value is the greatest time seen, in seconds since the epoch."""
LATE: Final = "late"
"""Key of the clock's table. Its value is the number of writes to windows already closed."""


class OpenWindows:
    """Open windows of one table in one run of an agent.

    They are found by the table's keys, so that a run finds them after a restart.
    """

    def __init__(self, table: Any, store: LaneStore, clock: Table, *, by_record: bool) -> None:
        """Find the open windows in the table.

        Args:
            table: the Faust table
            store: the table's store
            clock: table with the partition's time
            by_record: True if each record's timestamp advances the time; False: only writes do
        """
        self._table, self._store, self._clock, self.by_record = table, store, clock, by_record
        self.time: float = clock.get(TIME, float("-inf"))
        self._closed_until = self.time
        """Partition time at the last `close`. A write is late if its window had ended by then.

        `time` itself may be ahead of the agent: with `take`, by the records of a whole list.
        """
        self._open: list[tuple[float, float, bytes]] = []
        self._late: set[bytes] = set()
        self._expires = table.window.expires is not None
        for data in store._iterkeys() if self._expires else ():
            self._push(data, self._range(data))

    def _key(self, data: bytes) -> Any:
        return self._table._to_key(self._store._decode_key(data))

    def _range(self, data: bytes) -> tuple[float, float]:
        _, (start, end) = self._key(data)
        return start, end

    def _push(self, data: bytes, window: tuple[float, float]) -> None:
        heapq.heappush(self._open, (window[1], window[0], data))

    def advance(self, seconds: float) -> None:
        """Advance the partition's time, which never goes back."""
        if seconds > self.time:
            self.time = seconds
            self._clock[TIME] = seconds

    def wrote(self, key: Any) -> None:
        """Record a write to the window of a key."""
        if not self._expires:
            return
        _, window = key
        data = self._store._encode_key(key)
        is_open = self._store._contains(data)  # as left by an earlier version of the program, though it may be over
        if not is_open and self._is_over(window[1], self._closed_until):
            self._late.add(data)
        if not is_open or data in self._late:
            self._push(data, window)

    def _is_over(self, end: float, at: float) -> bool:
        return bool(at > float("-inf") and self._table.window.stale(end, at))

    async def close(self) -> None:
        """Close the windows that the partition's time has passed, the earliest first.

        Raises:
            AgentFailed: the program's callback raised an error.
        """
        self._closed_until = self.time
        while self._open and self._is_over(self._open[0][0], self.time):
            _, _, data = heapq.heappop(self._open)
            encoded = self._store._get(data)
            if encoded is None:
                continue
            key, value = self._key(data), self._store._decode_value(encoded)
            if isinstance(self._table, SetTable):
                self._table.send_changelog(None, (OPERATION_UPDATE, key), [[], value])
                value = as_made(set, value)
            else:
                self._table.send_changelog(None, key, None, value_serializer="raw")
            self._store._del(data)
            if data in self._late:
                self._late.discard(data)
                self._count_late(key)
                continue
            try:
                await self._table.on_window_close(key, value)
            except Exception as error:
                failure = AgentFailed(
                    f"table {self._table.name}: on_window_close raised {type(error).__name__}: {error}, for the window "
                    f"of key {key!r:.200}"
                )
                if (partition := AT_WORK.get()) is not None:
                    partition.fail(failure)
                raise failure from error

    def _count_late(self, key: Any) -> None:
        count = int(self._clock.get(LATE, 0)) + 1
        self._clock[LATE] = count
        if count & (count - 1) == 0:  # the first, the second, the fourth, ...
            log.warning(
                "a record was written to a window that had closed: its callback is not called again, and the window is "
                "removed. A longer `expires` waits longer for late records",
                table=self._table.name,
                key=repr(key)[:200],
                late=count,
            )


AT_HAND: Final[ContextVar[dict[Any, OpenWindows] | None]] = ContextVar("windows at hand", default=None)
"""Open windows of the current run, by Faust's table."""


class StreamTime(dict[int, float]):
    """Mapping that gives a Faust table the latest time of a partition.

    In an agent, this is the time of the agent's partition; elsewhere, the present time.
    """

    def __init__(self, table: Any) -> None:
        super().__init__()
        self._table = table

    def __missing__(self, partition: int) -> float:
        found = _of(self._table)
        return time.time() if found is None else found.time


def goes_by_record(table: Any, wrappers: list[WindowWrapper]) -> bool:
    """Return True if a table's windows use the records' own timestamps instead of a field or function."""
    handlers = [each._get_relative_timestamp for each in wrappers if each.table is table]
    own = (None, table._relative_event, table._relative_now)
    return all(handler in own for handler in handlers)


def use_event_time(table: Any) -> None:
    """Make a Faust table report its windows' times and keys to the running agent."""
    ranges: Callable[[float], Any] = type(table)._window_ranges.__get__(table)

    def window_ranges(timestamp: float) -> Any:
        if (found := _of(table)) is not None:
            found.advance(timestamp)
        return ranges(timestamp)

    def set_key_ttl(key: Any, partition: int) -> None:
        if (found := _of(table)) is not None:
            found.wrote(key)

    table._window_ranges = window_ranges
    table._partition_latest_timestamp = StreamTime(table)
    table._maybe_set_key_ttl = set_key_ttl
    table._maybe_del_key_ttl = lambda key, partition: None


def _of(table: Any) -> OpenWindows | None:
    """Return the table's open windows in the running agent; None outside agents.

    Raises:
        SettingsError: the code of the running agent does not name this table.
    """
    at_hand = AT_HAND.get()
    found = None if at_hand is None else at_hand.get(table)
    if found is None and table.window is not None and AT_WORK.get() is not None:
        raise not_named(table.name)  # the machine's clock would be its time, and its windows would never close
    return found
