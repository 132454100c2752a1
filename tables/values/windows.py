"""Windows by event time: which ones an event falls into, how their keys become bytes, and when one has expired."""

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
"""Added to a start, so that the order of bytes is that of time: the first window may begin before 1970."""
START_BYTES: Final = _START.size
LONGEST_MS: Final = 1 << 53
EARLIEST_MS: Final = -LONGEST_MS
"""First time with windows: each start is exact in seconds as a float and fits into the key."""


class EventAtHand(Protocol):
    """The event that an agent works on, for the tables that go by its time."""

    @property
    def timestamp(self) -> int | None:
        """Milliseconds since the epoch; NO_TIMESTAMP for an event without one; None where no event is at hand."""

    @property
    def stream_time(self) -> int:
        """Return the greatest timestamp of the partition's events up to this one, in ms."""

    @property
    def place(self) -> str:
        """Return topic, partition and offset, for messages."""


EVENT: Final[ContextVar[EventAtHand | None]] = ContextVar("event at hand", default=None)
"""Current event of an agent's run.

A table reads it at each use, so that programs without windows pay nothing per record.
"""


class WindowRange(NamedTuple):
    """One window. start, end: seconds since the epoch; an event at `end` is in the next one."""

    start: float
    end: float


class WindowKey(NamedTuple):
    """A key of a table with windows, as the table keeps it. start: ms; key: as the table's codec keeps it."""

    start: int
    key: Any


class Window(NamedTuple):
    """Windows of one size, each beginning a step after the one before. All in ms.

    expires: how long a window is kept after its end; None: for ever
    """

    size: int
    step: int
    expires: int | None

    def starts(self, timestamp: int) -> range:
        """Starts of the windows that a time falls into, oldest first."""
        first = timestamp // self.step * self.step - self.size + self.step
        return range(first, timestamp + 1, self.step)

    def latest(self, timestamp: int) -> int:
        """Start of the newest window that a time falls into."""
        return self.starts(timestamp)[-1]

    def first_kept(self, stream_time: int) -> int:
        """Windows that start before this have expired."""
        assert self.expires is not None  # noqa: S101 - asked for windows that expire
        return stream_time - self.size - self.expires + 1

    def range_of(self, start: int) -> WindowRange:
        """Return the window that starts there."""
        return WindowRange(start / 1000, (start + self.size) / 1000)

    def __str__(self) -> str:
        kind = f"tumbling {self.size / 1000:g} s"
        if self.step != self.size:
            kind = f"hopping {self.size / 1000:g} s by {self.step / 1000:g} s"
        return kind if self.expires is None else f"{kind}, expires {self.expires / 1000:g} s"


def window_of(table: str, size: Seconds, step: Seconds | None, expires: Seconds | None) -> Window:
    """Return the windows of a program's table. step: None: the size.

    Raises:
        SettingsError: there are no such windows.
    """
    size_ms = _ms(table, "size", size)
    step_ms = size_ms if step is None else _ms(table, "step", step)
    if step_ms > size_ms:
        raise SettingsError(
            f"table {table}: a step of {step_ms / 1000:g} s is more than the size of {size_ms / 1000:g} s: an event "
            "between two windows would be counted in none"
        )
    return Window(size_ms, step_ms, None if expires is None else _ms(table, "expires", expires))


def to_ms(seconds: Seconds) -> int:
    """Return a program's seconds or timedelta in milliseconds."""
    return round((seconds.total_seconds() if isinstance(seconds, timedelta) else seconds) * 1000)


def _ms(table: str, what: str, seconds: Seconds) -> int:
    value = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
    if not math.isfinite(value) or not 1 <= to_ms(value) <= LONGEST_MS:
        never = ". Leave it out to keep every window" if what == "expires" else ""
        raise SettingsError(f"table {table}: {what} of windows is {seconds!r}: write seconds, 0.001 at least{never}")
    return to_ms(value)


class WindowCodec(Codec):
    """Keys of a table with windows: start of the window, then the key. So the oldest windows come first in the store.

    A program's key is (key, WindowRange).
    """

    def __init__(self, table: str, key_type: Any, value_type: Any, serializer: Serializer, window: Window) -> None:
        super().__init__(table, key_type, value_type, serializer)
        self.inner = Codec(table, key_type, value_type, serializer)
        """Codec of keys without their window."""
        self.window, self.is_simple, self.kinds = window, False, frozenset({WindowKey})

    def check_key(self, key: Any) -> Any:
        """See `Codec.check_key`."""
        if type(key) is WindowKey:
            return key
        if isinstance(key, tuple) and len(key) == 2 and isinstance(key[1], tuple) and len(key[1]) == 2:
            start = round(key[1][0] * 1000)
            if tuple(key[1]) == self.window.range_of(start):
                return self.place(start, key[0])
        raise TableError(f"table {self.table} has windows: {key!r:.100} is not (key, (start, end)) of one of them")

    def place(self, start: int, key: Any) -> WindowKey:
        """Return a program's key in the window that starts there."""
        return WindowKey(start, self.inner.check_key(key))

    def key_bytes(self, kept: Any) -> bytes:
        """See `Codec.key_bytes`."""
        return pack_start(kept.start) + self.inner.key_bytes(kept.key)

    def kept_key(self, data: bytes) -> Any:
        """See `Codec.kept_key`."""
        if len(data) < START_BYTES:
            raise TableError(f"table {self.table}: {data!r:.100} does not have the form of a key with a window")
        return WindowKey(_START.unpack_from(data)[0] - _ZERO, self.inner.kept_key(data[START_BYTES:]))

    def key(self, kept: Any) -> Any:
        """See `Codec.key`."""
        return self.inner.key(kept.key), self.window.range_of(kept.start)

    def window_of(self, data: bytes) -> WindowRange:
        """Return the window of a key's bytes."""
        return self.window.range_of(_START.unpack_from(data)[0] - _ZERO)

    def bare_key(self, kept: WindowKey) -> Any:
        """Return the key as the program has it, without its window."""
        return self.inner.key(kept.key)


def pack_start(start: int) -> bytes:
    """Return a window's start, in the order of time."""
    return _START.pack(max(start + _ZERO, 0))
