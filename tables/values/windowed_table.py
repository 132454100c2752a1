"""Table with windows for a user's program: a key stands for its values in the windows of the current event."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

from kafka_ratchet.errors import TableError
from kafka_ratchet.tables.values.own_table import NO_TIME, NO_TIMESTAMP
from kafka_ratchet.tables.values.table_partition import ABSENT, TablePartition
from kafka_ratchet.tables.values.windowed_partition import WindowedPartition
from kafka_ratchet.tables.values.windows import (
    EARLIEST_MS,
    EVENT,
    CurrentEvent,
    Seconds,
    Window,
    WindowKey,
    WindowRange,
    to_ms,
)


class DeclaredTable(Protocol):
    """Table that the application declared, with entries for a key and a window."""

    name: str
    default: Callable[[], Any] | None

    @property
    def partition(self) -> TablePartition:
        """Return the partition of the current event."""


class TimedEvent(Protocol):
    """Event with a timestamp, such as one of `orders.events()`."""

    @property
    def timestamp(self) -> int:
        """Return the timestamp in milliseconds since 1970."""


class WindowSet:
    """Windows of the current event for one key, as in Faust.

    Operators (`+=`, `-=`, ...) change the value in every window of the event. An expired window stays unchanged, and
    the table's `late` increases.
    """

    __slots__ = ("key", "table")

    def __init__(self, table: WindowedTable, key: Any) -> None:
        self.table, self.key = table, key

    def value(self, event: TimedEvent | None = None) -> Any:
        """Return the value in the newest window of an event. event: None for the current event.

        Raises:
            KeyError: there is no value, and the table has no default.
        """
        return self.table.read(self.key, self.table.time_of(event))

    current = value

    def now(self) -> Any:
        """Return the value in the newest window of the stream time, which is not the machine's clock."""
        return self.table.read(self.key, self.table.stream_time)

    def delta(self, d: Seconds, event: TimedEvent | None = None) -> Any:
        """Return the value at a time `d` before an event. event: None for the current event."""
        return self.table.read(self.key, self.table.time_of(event) - to_ms(d))

    def apply(self, op: Callable[[Any, Any], Any], value: Any) -> WindowSet:
        """Replace the value in each window of the current event by `op(present value, value)`."""
        table, partition = self.table, self.table.partition
        for place in table.open_places(self.key):
            there = partition.read(place)
            partition.write(place, op(table.default_at(place) if there is ABSENT else there, value))
        return self

    def __iadd__(self, other: Any) -> WindowSet:
        return self.apply(operator.add, other)

    def __isub__(self, other: Any) -> WindowSet:
        return self.apply(operator.sub, other)

    def __imul__(self, other: Any) -> WindowSet:
        return self.apply(operator.mul, other)

    def __itruediv__(self, other: Any) -> WindowSet:
        return self.apply(operator.truediv, other)

    def __ifloordiv__(self, other: Any) -> WindowSet:
        return self.apply(operator.floordiv, other)

    def __imod__(self, other: Any) -> WindowSet:
        return self.apply(operator.mod, other)

    def __ipow__(self, other: Any) -> WindowSet:
        return self.apply(operator.pow, other)

    def __ilshift__(self, other: Any) -> WindowSet:
        return self.apply(operator.lshift, other)

    def __irshift__(self, other: Any) -> WindowSet:
        return self.apply(operator.rshift, other)

    def __iand__(self, other: Any) -> WindowSet:
        return self.apply(operator.and_, other)

    def __ixor__(self, other: Any) -> WindowSet:
        return self.apply(operator.xor, other)

    def __ior__(self, other: Any) -> WindowSet:
        return self.apply(operator.or_, other)

    def __repr__(self) -> str:
        return f"<{self.key!r} of table {self.table.name}, {self.table.window}: ask for its value() or windows()>"


class WindowedTable:
    """Keys and values by window of event time, as `tumbling` and `hopping` of a table return it.

    `table[key] += 1` counts in each window of the current event, chosen by its timestamp; `table[key] = value` sets the
    values there, and `del table[key]` removes them. Expired windows are removed with the transaction.
    """

    def __init__(self, table: DeclaredTable, window: Window) -> None:
        self.table, self.window = table, window

    @property
    def name(self) -> str:
        """Return the table's name."""
        return self.table.name

    @property
    def partition(self) -> WindowedPartition:
        """Return the partition of the current event.

        Raises:
            TableError: no agent of the table's stream processes an event, and none of its timers runs.
        """
        partition = self.table.partition
        assert isinstance(partition, WindowedPartition)  # noqa: S101 - the table has windows
        return partition

    @property
    def stream_time(self) -> int:
        """Return the greatest timestamp of this partition's events up to the current one, in milliseconds.

        It is -(2**63) before the first event.
        """
        return self.partition.stream_time

    @property
    def late(self) -> int:
        """Return the number of late writes dropped from this partition so far, one for each expired window."""
        return self.partition.late

    @property
    def has_time(self) -> bool:
        """Return True if the current event has a timestamp; without one it belongs to no window."""
        return self._event().timestamp not in (None, NO_TIMESTAMP)

    @property
    def is_late(self) -> bool:
        """Return True if the current event belongs to an expired window."""
        return self.window.starts(self.time_of())[0] < self.partition.first_kept

    def time_of(self, event: TimedEvent | None = None) -> int:
        """Return the timestamp of an event in milliseconds. event: None for the current event.

        Raises:
            TableError: there is no current event, or it has no timestamp that windows support.
        """
        timestamp = self._event().timestamp if event is None else event.timestamp
        if timestamp is None:
            self._no_event()
        if timestamp == NO_TIMESTAMP or timestamp < EARLIEST_MS:
            self._no_window(timestamp)
        return timestamp

    def _event(self) -> CurrentEvent:
        return EVENT.get() or self._no_event()

    def _no_event(self) -> NoReturn:
        raise TableError(
            f"table {self.name}: there is no current event with a timestamp to choose the windows. Outside of `async "
            "for`, read the table with windows() and items(window)"
        )

    def _no_window(self, timestamp: int) -> NoReturn:
        event = EVENT.get()
        place = f"{event.place}: " if event is not None else ""
        if timestamp != NO_TIMESTAMP:
            raise TableError(
                f"{place}table {self.name}: timestamp {timestamp} ms is before {EARLIEST_MS} ms, where windows begin. "
                "Correct the producer's timestamp"
            )
        raise TableError(
            f"{place}table {self.name}: the event has no timestamp ({NO_TIMESTAMP}), so it falls into no window. Have "
            "the producer set one; or check the table's has_time before you use a window; or make such events dead "
            'letters with on_error="dead-letter"'
        )

    def open_places(self, key: Any) -> list[WindowKey]:
        """Return a key's unexpired windows of the current event; count the expired ones as late."""
        partition, event, timestamp = self.partition, self._event(), self.time_of()
        starts, first, place = self.window.starts(timestamp), partition.first_kept, partition.codec.place
        places = [place(start, key) for start in starts if start >= first]
        if len(places) < len(starts):
            partition.note_late(len(starts) - len(places), event)
        return places

    def at(self, place: WindowKey) -> Any:
        """Return the value of a key in a window, or the default.

        Raises:
            KeyError: there is no value, and the table has no default.
        """
        value = self.partition.get(place)
        return self.default_at(place) if value is ABSENT else value

    def default_at(self, place: WindowKey) -> Any:
        """Return the default for a key missing in a window.

        Raises:
            KeyError: the table has no default.
        """
        if self.table.default is None:
            raise KeyError(place.key)
        return self.partition.lend_default(place)

    def read(self, key: Any, timestamp: int) -> Any:
        """Return the value of a key, or the default, in the newest window of a time in milliseconds."""
        if timestamp == NO_TIME:
            self._no_event()
        return self.at(self.partition.codec.place(self.window.latest(timestamp), key))

    def __getitem__(self, key: Any) -> WindowSet:
        return WindowSet(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, WindowSet):
            if value.table is not self or value.key != key:
                raise TableError(f"table {self.name}: {value!r} is a set of windows, not a value. Assign its value()")
            return  # end of `table[key] += ...`, which has written the values already
        for place in self.open_places(key):
            self.partition.write(place, value)

    def __delitem__(self, key: Any) -> None:
        there = [place for place in self.open_places(key) if self.partition.get(place) is not ABSENT]
        if not there:
            raise KeyError(key)
        for place in there:
            self.partition.delete(place)

    def __contains__(self, key: object) -> bool:
        place = self.partition.codec.place(self.window.latest(self.time_of()), key)
        return self.partition.get(place) is not ABSENT

    def windows(self, key: Any = None) -> list[WindowRange]:
        """Return the unexpired windows that contain a key, oldest first. key: None for any key."""
        partition = self.partition
        if key is None:
            return [self.window.range_of(start) for start in partition.starts() if partition.in_window(start)]
        place = partition.codec.place
        return [
            self.window.range_of(start)
            for start in partition.starts()
            if partition.get(place(start, key)) is not ABSENT
        ]

    def items(self, window: WindowRange | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield keys and values of a window, ordered by the keys' bytes.

        window: None for the newest window of the current event.
        """
        partition = self.partition
        start = self.window.latest(self.time_of()) if window is None else round(window[0] * 1000)
        for place in partition.in_window(start):
            yield partition.codec.bare_key(place), partition.get(place)

    def keys(self, window: WindowRange | None = None) -> Iterator[Any]:
        """Yield the keys of a window, see `items`."""
        return (key for key, _ in self.items(window))

    def values(self, window: WindowRange | None = None) -> Iterator[Any]:
        """Yield the values of a window, see `items`."""
        return (value for _, value in self.items(window))

    __iter__ = keys

    def relative_to_stream(self) -> WindowedTable:
        """Return this table: its windows always use the time of events."""
        return self

    def __repr__(self) -> str:
        return f"<Table {self.name}, {self.window}>"
