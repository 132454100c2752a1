"""Table for a user's program: a mapping that stands for the partition of the current event."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextvars import ContextVar
from dataclasses import is_dataclass
from typing import Any, NoReturn

import msgspec

from kafka_ratchet.errors import SettingsError, TableError
from kafka_ratchet.tables.values.codec import INT_LEAST, INT_MOST, PLAIN, Codec, Serializer
from kafka_ratchet.tables.values.table_partition import ABSENT, TablePartition
from kafka_ratchet.tables.values.view import Elsewhere, TableView
from kafka_ratchet.tables.values.windowed_partition import WindowedPartition
from kafka_ratchet.tables.values.windowed_table import WindowedTable
from kafka_ratchet.tables.values.windows import Seconds, Window, WindowCodec, window_of

NAME_MOST = 255
"""Maximum bytes of a table's name, because one byte of each entry's key stores its length."""


class Table(MutableMapping[Any, Any]):
    """Keys and values of an agent, as in Faust's tables.

    Its interface is `[]`, `get`, `pop`, `del`, `in`, iteration and `default`.

    Inside an agent the table contains only the keys of the current input partition. Each change commits with the record
    that caused it, or not at all.

    A mutable value (a list, a dict, a Struct) is returned as an object of its own: change it and assign it back. A
    change without that assignment is an error.

    Args:
        name: name of the table, also used in the changelog.
        default: function that makes the value of a missing key, such as `int` or `list`; None: a missing key raises
            KeyError.
        key_type: `str`, `int`, `bytes`, or a type that msgspec supports (a tuple, a frozen Struct); None: `str` or
            `int`.
        value_type: `int`, `float`, `str`, `bytes`, `bool`, or a type that msgspec supports (a Struct, `list[int]`);
            None: the type of `default`, or any JSON.
        serializer: "json" or "msgpack", for the values.

    Raises:
        SettingsError: the name or a type cannot be used.
    """

    def __init__(
        self,
        name: str,
        default: Callable[[], Any] | None = None,
        key_type: Any = None,
        value_type: Any = None,
        serializer: Serializer = "json",
    ) -> None:
        if not name or len(name.encode()) > NAME_MOST:
            raise SettingsError(f"table {name!r:.100}: its name must take 1 to {NAME_MOST} bytes")
        if value_type is None and isinstance(default, type) and _says_its_type(default):
            value_type = default
        self.name, self.default = name, default
        self._holds_int = value_type in (None, int)
        self.codec = Codec(name, key_type, value_type, serializer)
        self.window: Window | None = None
        """Windows of the table; None: it has no windows."""
        self.elsewhere: Elsewhere | None = None
        """Function that finds the table's contents for views of it; None: there are no views."""
        self.kind: type[TablePartition] = TablePartition
        """Class of the table's partitions."""
        self._types = key_type, value_type, serializer
        self.here: ContextVar[TablePartition | None] = ContextVar(f"table {name}", default=None)
        """Partition of the current event; each run of an agent sets its own."""

    def tumbling(self, size: Seconds, expires: Seconds | None = None) -> WindowedTable:
        """Return the table with its keys divided into consecutive windows of event time; see `hopping`."""
        return self._using(window_of(self.name, size, None, expires))

    def hopping(self, size: Seconds, step: Seconds, expires: Seconds | None = None) -> WindowedTable:
        """Return the table with its keys divided into overlapping windows of event time.

        Args:
            size: length of a window, in seconds or as a timedelta.
            step: time from the start of one window to the start of the next.
            expires: time after a window's end, by the partition's stream time; then the window is removed and its
                events are late. None: windows are kept for ever.

        Raises:
            SettingsError: the size or step is invalid, or the table has windows already.
        """
        return self._using(window_of(self.name, size, step, expires))

    def view(self) -> TableView:
        """Return a read-only view of the table for agents of another stream: see `TableView`.

        Both streams need the same number of partitions.
        """
        return TableView(self)

    def _using(self, window: Window) -> WindowedTable:
        if self.window is not None:
            raise SettingsError(
                f"table {self.name}: has windows already ({self.window}). Declare another table for other windows"
            )
        self.window, self.kind = window, WindowedPartition
        self.codec = WindowCodec(self.name, *self._types, window)
        return WindowedTable(self, window)

    @property
    def partition(self) -> TablePartition:
        """Return the partition of the current event.

        Raises:
            TableError: no agent of the table's stream processes an event, and none of its timers runs.
        """
        return self.here.get() or self._nowhere()

    def _nowhere(self) -> NoReturn:
        raise TableError(
            f"table {self.name}: only an agent of the table's stream may read or write it, while it processes an "
            "event; or a timer of that stream"
        )

    def __getitem__(self, key: Any) -> Any:
        partition = self.here.get() or self._nowhere()
        if type(key) in partition.direct:  # as `partition.get` does, for most reads and in one call
            value = partition.values.get(key, ABSENT)
            if type(value) in PLAIN:
                return value
        value = partition.get(key)
        if value is ABSENT:
            if self.default is None:
                raise KeyError(key)
            return partition.lend_default(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        partition = self.here.get() or self._nowhere()
        if (
            type(value) is int  # as `partition.set` does, for a total that changes again
            and type(key) in partition.direct
            and key in partition.writable
            and INT_LEAST <= value <= INT_MOST
            and self._holds_int
            and partition.undo is None
            and not partition.lent
        ):
            partition.values[key] = value
        else:
            partition.set(key, value)

    def __delitem__(self, key: Any) -> None:
        self.partition.delete(key)

    def __contains__(self, key: object) -> bool:
        return self.partition.get(key) is not ABSENT

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or `default` if the table lacks the key."""
        value = self.partition.get(key)
        return default if value is ABSENT else value

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key; set a missing key to `default` first.

        The table's own default is not used.
        """
        if self.partition.get(key) is ABSENT:
            self[key] = default
        return self.partition.get(key)

    def pop(self, key: Any, *default: Any) -> Any:
        """Remove a key, and return its value; return `default` if the table lacks the key.

        Raises:
            KeyError: the table lacks the key, and no default is given. The table's own default is not used.
        """
        value = self.partition.get(key)
        if value is not ABSENT:
            del self[key]
            return value
        if not default:
            raise KeyError(key)
        return default[0]

    def get_many(self, keys: Any) -> dict[Any, Any]:
        """Return the values of many keys, as `[]` returns each; for batches.

        Args:
            keys: list or other iterable, numpy array or pyarrow array; a key may occur more than once.

        Returns:
            The values by key, in the order of first occurrence.

        Raises:
            KeyError: a key is missing, and the table has no default.
        """
        partition = self.here.get() or self._nowhere()
        found = partition.get_many(_listed(keys))
        if ABSENT in found.values():
            for key, value in found.items():
                if value is ABSENT:
                    found[key] = self[key]
        return found

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Set many values, as `dict.update` does."""
        (self.here.get() or self._nowhere()).set_many(dict(other, **more))

    def __iter__(self) -> Iterator[Any]:
        return self.partition.keys()

    def __len__(self) -> int:
        """Count the keys by reading all of them."""
        return sum(1 for _ in self)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"<Table {self.name}>"


def _listed(keys: Any) -> list[Any]:
    for name in ("to_pylist", "tolist"):  # of a pyarrow array, of a numpy array
        if hasattr(keys, name):
            listed: list[Any] = getattr(keys, name)()
            return listed
    return list(keys)


def _says_its_type(default: type) -> bool:
    """Return True if the type of a default is also the type of all values: for `int`, but not for `list`."""
    return default in PLAIN or default is set or issubclass(default, msgspec.Struct) or is_dataclass(default)
