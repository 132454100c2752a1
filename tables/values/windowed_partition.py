"""Partition of a table with windows, which also finds entries by their window to expire them.

A window expires by the stream time of the current event, even while its entries are still stored. A later commit
removes the entries, after a number of events that differs from run to run.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar, Final

import structlog

from kafka_ratchet.errors import TableError
from kafka_ratchet.tables.values.own_table import NO_TIME, late_key, late_writes, stream_time, windows_key
from kafka_ratchet.tables.values.table_partition import ABSENT, UNKNOWN, TablePartition
from kafka_ratchet.tables.values.windows import (
    EVENT,
    CurrentEvent,
    Window,
    WindowCodec,
    WindowKey,
    pack_start,
)

log = structlog.get_logger(__name__)

LOG_AGAIN_S: Final = 10.0
"""Minimum seconds between two warnings: if every event is late, a line for each would fill the disk."""
NEVER: Final = -(1 << 63)
"""Time in milliseconds before every window."""


class LateReport:
    """Reporter of late events of one table's partition, which limits its log lines."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._logged_at, self._unlogged_count = clock, -LOG_AGAIN_S, 0

    def note(self, table: str, windows: int, event: CurrentEvent) -> None:
        """Count a late write, once for each expired window, and log the count at intervals."""
        self._unlogged_count += windows
        if self._clock() - self._logged_at >= LOG_AGAIN_S:
            log.warning(
                "a late event is left out of windows that have expired",
                table=table,
                at=event.place,
                event_timestamp=event.timestamp,  # `timestamp` is the line's own
                stream_time=event.stream_time,
                windows=self._unlogged_count,
            )
            self._logged_at, self._unlogged_count = self._clock(), 0


class WindowIndex:
    """Index of the keys in memory by window, to find those of expired windows."""

    def __init__(self) -> None:
        self._of_start: dict[int, set[WindowKey]] = {}
        self._heap: list[int] = []

    def add(self, kept: WindowKey) -> None:
        """Add a key to the index."""
        there = self._of_start.get(kept.start)
        if there is None:
            heapq.heappush(self._heap, kept.start)
            there = self._of_start[kept.start] = set()
        there.add(kept)

    def discard(self, kept: WindowKey) -> None:
        """Remove a key from the index, because it is no longer in memory."""
        self._of_start.get(kept.start, set()).discard(kept)

    def of(self, start: int) -> Collection[WindowKey]:
        """Return the keys of one window."""
        return self._of_start.get(start, ())

    def starts(self) -> Collection[int]:
        """Return the starts of all windows."""
        return self._of_start.keys()

    def pop_before(self, end: int) -> list[WindowKey]:
        """Remove the windows that start before a time from the index, and return their keys."""
        found: list[WindowKey] = []
        while self._heap and self._heap[0] < end:
            found += self._of_start.pop(heapq.heappop(self._heap))
        return found


class WindowedPartition(TablePartition):
    """Partition of a table with windows; its keys are `WindowKey`. See `TablePartition`."""

    has_windows: ClassVar[bool] = True
    weight: ClassVar[int] = 2
    __slots__ = ("_first_stored", "_is_begun", "_removed", "dropped", "index", "report", "window")
    codec: WindowCodec

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.window: Window = self.codec.window
        self.index = WindowIndex()
        """Index of the keys in `values`."""
        self.dropped: list[WindowKey] = []
        """Expired keys, to be removed from `values` once the store has removed them."""
        self._first_stored = NEVER
        """Start in milliseconds of the first window that the store may have."""
        self._removed = NEVER
        """Least start of a window in milliseconds: earlier windows may have been removed under former settings."""
        self._is_begun = False
        self.report = LateReport()

    def again(self) -> WindowedPartition:
        """Return a copy with the same values and windows for the next run; the old object refuses all access."""
        changed = list(self.before)
        other = super().again()
        assert isinstance(other, WindowedPartition)  # noqa: S101 - it is of the same type
        other.index, other.dropped, other.report = self.index, self.dropped, self.report
        for kept in changed:  # keys about to expire are present again
            self.index.add(kept)
        return other

    def begin(self, windows: str | None) -> None:
        """Check the windows of the present entries when a run begins; store the program's windows.

        Raises:
            TableError: the entries have other windows.
        """
        window, own = self.window, self._own()
        if windows is None and next(super().kept_keys(), None) is not None:
            raise TableError(self._other("no windows"))
        if windows is not None:
            size, step, expires, removed = (int(part) for part in windows.split())
            before = Window(size, step, expires or None)
            if (size, step) != (window.size, window.step):
                raise TableError(self._other(f"windows {before}"))
            self._removed = removed
            if before.expires is not None and before != window:
                self._removed = max(removed, before.first_kept(stream_time(own)))
        means = f"{window.size} {window.step} {window.expires or 0} {self._removed}"
        if means != windows:
            own.set(windows_key(self.codec.table), means)
        self._is_begun = True

    def _other(self, windows: str) -> str:
        return (
            f"table {self.codec.table}: its entries have {windows}, but the program declares {self.window}. Give the "
            "table a new name, so that it starts empty, or undo the change"
        )

    def _own(self) -> TablePartition:
        assert self.own is not None  # noqa: S101 - there is one where there is a table with windows
        return self.own

    @property
    def stream_time(self) -> int:
        """Return the stream time of the current event; without a current event, the stream time of the last one."""
        event = EVENT.get()
        return stream_time(self._own()) if event is None else event.stream_time

    @property
    def first_kept(self) -> int:
        """Return the start of the first unexpired window, in milliseconds."""
        return self._first_kept(self.stream_time)

    def _first_kept(self, now: int) -> int:
        return self._removed if self.window.expires is None else max(self._removed, self.window.first_kept(now))

    read, write = TablePartition.get, TablePartition.set
    """Access by a `WindowKey`, without the check for an expired window."""

    def get(self, key: Any) -> Any:
        """Return the value of a key; ABSENT: it is missing, or its window has expired. See `TablePartition.get`."""
        place = self.codec.check_key(key)
        return ABSENT if place.start < self.first_kept else super().get(place)

    def set(self, key: Any, value: Any) -> None:
        """Set the value of a key in the open transaction.

        Raises:
            TableError: the key does not come from the table's windows.
        """
        super().set(self._place(key), value)

    def delete(self, key: Any) -> None:
        """Remove a key in the open transaction.

        Raises:
            KeyError: there is no such key.
            TableError: the key does not come from the table's windows.
        """
        super().delete(self._place(key))

    def _place(self, key: Any) -> WindowKey:
        if type(key) is not WindowKey:
            raise TableError(
                f"table {self.codec.table} has windows: write to the object that its tumbling() or hopping() has "
                "returned"
            )
        return key

    @property
    def late(self) -> int:
        """Return the number of dropped late writes, counted once for each window."""
        return late_writes(self._own(), self.codec.table)

    def note_late(self, windows: int, event: CurrentEvent) -> None:
        """Count a late write, once for each expired window, and log the count at intervals."""
        self._own().set(late_key(self.codec.table), self.late + windows)
        self.report.note(self.codec.table, windows, event)

    def in_window(self, start: int) -> list[WindowKey]:
        """Return the pushed keys in the window with this start, ordered by their bytes."""
        if start < self.first_kept:
            return []
        found = {kept for kept in self.index.of(start) if self.values[kept] is not ABSENT}
        for data, _ in self.scan(self.prefix + pack_start(start)):
            kept = self.codec.kept_key(data[len(self.prefix) :])
            if self.values.get(kept, UNKNOWN) is UNKNOWN:
                found.add(kept)
        return sorted(found, key=self.codec.key_bytes)

    def starts(self) -> list[int]:
        """Return the starts of unexpired windows that may have keys, oldest first."""
        first = self.first_kept
        found = {start for start in self.index.starts() if start >= first}
        while (entry := next(self.scan(self.prefix, self.prefix + pack_start(first)), None)) is not None:
            start = self.codec.kept_key(entry[0][len(self.prefix) :]).start
            found.add(start)
            first = start + 1
        return sorted(found)

    def kept_keys(self) -> Iterator[Any]:
        """Yield the pushed keys as the table stores them, oldest windows first."""
        for start in self.starts():
            yield from self.in_window(start)

    def expire(self) -> None:
        """Remove the entries of expired windows at the end of a transaction."""
        now = stream_time(self._own())
        if not self._is_begun or self.window.expires is None or now == NO_TIME:
            return
        size, step = self.window.size, self.window.step
        end = -((-self._first_kept(now) - size) // step) * step - size  # the first window kept
        if end <= self._first_stored:
            return
        for kept in self.index.pop_before(end):
            self._expire(kept)
        first = b"" if self._first_stored == NEVER else self.prefix + pack_start(self._first_stored)
        for data, value in self.scan(self.prefix, first):
            if data >= self.prefix + pack_start(end):
                break
            kept = self.codec.kept_key(data[len(self.prefix) :])
            if kept not in self.values:
                self.values[kept] = self.codec.kept_value(value)
                self._expire(kept)
        self._first_stored = end

    def _expire(self, kept: WindowKey) -> None:
        self.dropped.append(kept)
        if self.values[kept] is not ABSENT:
            self._put(kept, ABSENT)

    def _look_up(self, kept: Any) -> Any:  # before a key is written, too
        value = super()._look_up(kept)
        self.index.add(kept)
        return value

    def take_over(self, kept: Any, value: Any) -> None:
        """Store a value from the changelog, and add its key to the index."""
        self.values[kept] = value
        if value is ABSENT:
            self.dropped.append(kept)
        self.index.add(kept)

    def clear(self) -> None:
        """Forget all values and windows."""
        super().clear()
        self.index, self.dropped, self._first_stored = WindowIndex(), [], NEVER

    def saved(self, *, trim: bool) -> None:
        """Mark all persisted values as contained in the store. trim: True to keep only uncommitted changes."""
        for kept in self.dropped:
            if self.values.get(kept) is ABSENT and kept not in self.before:
                del self.values[kept]
                self.index.discard(kept)
        self.dropped = [kept for kept in self.dropped if kept in self.before]
        super().saved(trim=trim)
        if trim:
            self.index = WindowIndex()
            for kept in self.values:
                self.index.add(kept)
