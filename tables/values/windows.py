"""Windows by event time: the windows of an event, the bytes of their keys, and their expiry."""

from __future__ import annotations

import math
import struct
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Final, NamedTuple, Protocol

from kafka_ratchet.errors import SettingsError, TableError
from kafka_ratchet.tables.values.codec import Codec, Serializer

Seconds = float | timedelta
_START: Final = struct.Struct(">Q")
_ZERO: Final = 1 << 63
"""Number added to a window's start, so that bytes sort by time: the first window may begin before 1970."""
START_BYTES: Final = _START.size
LONGEST_MS: Final = 1 << 53
EARLIEST_MS: Final = -LONGEST_MS
"""First time in milliseconds that windows support, so that starts are exact as float seconds and fit into a key."""


class CurrentEvent(Protocol):
    """Event that an agent processes now, for tables that use its time."""

    @property
    def timestamp(self) -> int | None:
        """Return the timestamp in milliseconds since 1970; NO_TIMESTAMP: the event has none; None: no current event."""

    @property
    def stream_time(self) -> int:
        """Return the greatest timestamp of the partition's events up to this one, in milliseconds."""

    @property
    def place(self) -> str:
        """Return topic, partition and offset of the event, for messages."""


EVENT: Final[ContextVar[CurrentEvent | None]] = ContextVar("event at hand", default=None)
"""Current event of an agent's run.

A table reads it only when used, so that programs without windows pay nothing per record.
"""


class WindowRange(NamedTuple):
    """Range of one window.

    Args:
        start: first time of the window, in seconds since 1970.
        end: time after the window, in seconds since 1970; an event at this time is in a later window.
    """

    start: float
    end: float


class WindowKey(NamedTuple):
    """Key of a table with windows, as the table stores it.

    Args:
        start: start of the window in milliseconds since 1970.
        key: key in the form of the table's codec.
    """

    start: int
    key: Any


class Window(NamedTuple):
    """Windows of one size, each starting one step after the preceding window.

    Args:
        size: length of a window in milliseconds.
        step: milliseconds between the starts of two windows.
        expires: milliseconds that a window is kept after its end; None: for ever.
    """

    size: int
    step: int
    expires: int | None

    def starts(self, timestamp: int) -> range:
        """Return the starts of the windows that contain a time, oldest first; all in milliseconds."""
        first = timestamp // self.step * self.step - self.size + self.step
        return range(first, timestamp + 1, self.step)

    def latest(self, timestamp: int) -> int:
        """Return the start of the newest window that contains a time."""
        return self.starts(timestamp)[-1]

    def first_kept(self, stream_time: int) -> int:
        """Return the earliest start of an unexpired window, in milliseconds."""
        assert self.expires is not None  # noqa: S101 - asked for windows that expire
        return stream_time - self.size - self.expires + 1

    def range_of(self, start: int) -> WindowRange:
        """Return the range of the window with this start."""
        return WindowRange(start / 1000, (start + self.size) / 1000)

    def __str__(self) -> str:
        kind = f"tumbling {self.size / 1000:g} s"
        if self.step != self.size:
            kind = f"hopping {self.size / 1000:g} s by {self.step / 1000:g} s"
        return kind if self.expires is None else f"{kind}, expires {self.expires / 1000:g} s"


def window_of(table: str, size: Seconds, step: Seconds | None, expires: Seconds | None) -> Window:
    """Return the windows of a program's table.

    Args:
        table: name of the table, for messages.
        size: length of a window.
        step: time between the starts of two windows; None: the size.
        expires: time that a window is kept after its end; None: for ever.

    Raises:
        SettingsError: the times are invalid.
    """
    size_ms = _ms(table, "size", size)
    step_ms = size_ms if step is None else _ms(table, "step", step)
    if step_ms > size_ms:
        raise SettingsError(
            f"table {table}: a step of {step_ms / 1000:g} s is more than the size of {size_ms / 1000:g} s: an event "
            "between two windows would be counted in none. Write a step of at most the size"
        )
    return Window(size_ms, step_ms, None if expires is None else _ms(table, "expires", expires))


def to_ms(seconds: Seconds) -> int:
    """Convert a program's seconds or timedelta to milliseconds."""
    return round((seconds.total_seconds() if isinstance(seconds, timedelta) else seconds) * 1000)


def _ms(table: str, what: str, seconds: Seconds) -> int:
    value = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
    if not math.isfinite(value) or not 1 <= to_ms(value) <= LONGEST_MS:
        never = ". Leave it out to keep every window" if what == "expires" else ""
        raise SettingsError(f"table {table}: {what} of windows is {seconds!r}: write seconds, 0.001 at least{never}")
    return to_ms(value)


class WindowCodec(Codec):
    """Codec for keys with windows: the window's start comes first, so that the store has the oldest windows first.

    A program's key is (key, WindowRange).
    """

    def __init__(self, table: str, key_type: Any, value_type: Any, serializer: Serializer, window: Window) -> None:
        super().__init__(table, key_type, value_type, serializer)
        self.inner = Codec(table, key_type, value_type, serializer)
        """Codec of keys without their window."""
        self.window, self.is_simple, self.kinds = window, False, frozenset({WindowKey})

    def check_key(self, key: Any) -> Any:
        """Return the key (key, WindowRange) as the table stores it: a `WindowKey`."""
        if type(key) is WindowKey:
            return key
        if isinstance(key, tuple) and len(key) == 2 and isinstance(key[1], tuple) and len(key[1]) == 2:
            start = round(key[1][0] * 1000)
            if tuple(key[1]) == self.window.range_of(start):
                return self.place(start, key[0])
        raise TableError(
            f"table {self.table} has windows: a key must be (key, (start, end)) with the start and end of a window, "
            f"not {key!r:.100}"
        )

    def place(self, start: int, key: Any) -> WindowKey:
        """Return the table's key for a program's key in the window with this start."""
        return WindowKey(start, self.inner.check_key(key))

    def key_bytes(self, kept: Any) -> bytes:
        """Return the bytes of a key: its window's start, then the key."""
        return pack_start(kept.start) + self.inner.key_bytes(kept.key)

    def kept_key(self, data: bytes) -> Any:
        """Return a `WindowKey` from a key's bytes."""
        if len(data) < START_BYTES:
            raise TableError(f"table {self.table}: {data!r:.100} is not a key with a window")
        return WindowKey(_START.unpack_from(data)[0] - _ZERO, self.inner.kept_key(data[START_BYTES:]))

    def key(self, kept: Any) -> Any:
        """Return the program's key, (key, WindowRange), from a `WindowKey`."""
        return self.inner.key(kept.key), self.window.range_of(kept.start)

    def window_of(self, data: bytes) -> WindowRange:
        """Return the window of a key, from the key's bytes."""
        return self.window.range_of(_START.unpack_from(data)[0] - _ZERO)

    def bare_key(self, kept: WindowKey) -> Any:
        """Return the program's key without its window."""
        return self.inner.key(kept.key)


def pack_start(start: int) -> bytes:
    """Return the start of a window as bytes that sort by time."""
    return _START.pack(max(start + _ZERO, 0))
