"""Partition of one table: pushed and persisted values, and their changelog entries.

A program reads and writes the pushed values in `values`. The former values of changed keys are kept as well: rollback
restores them, and commit forgets them. The store is read for keys missing in `values`.

A rollback also ends the present run of the agents. The next run processes the events again, with a new object of this
class, so that the old run cannot change its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final, NoReturn, Protocol

from kafka_ratchet.errors import TableError
from kafka_ratchet.tables.values.codec import PLAIN, Codec, EncodedValue

PREFIX: Final = b"t"
ABSENT: Final = object()
"""Marker in `values` for a key known to be missing in the table."""
UNKNOWN: Final = object()
"""Marker for a key missing in `values`; only the store may have it."""

Find = Callable[[bytes], bytes | None]
"""Function that looks a key up in the store: it returns the value's bytes, or None."""


class Scan(Protocol):
    """Function that scans the store's entries with a prefix, ordered by the keys' bytes."""

    def __call__(self, prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Scan the entries with a prefix.

        Args:
            prefix: prefix of the keys.
            first: key to start at; empty: start at the prefix.
        """


def prefix_of(table: str) -> bytes:
    """Return the prefix of a table's keys in the changelog."""
    name = table.encode()
    return PREFIX + bytes([len(name)]) + name


class _Gone(dict[Any, Any]):
    """Values of an ended run, which refuse all access because its transaction was rolled back."""

    def __init__(self, table: str) -> None:
        super().__init__()
        self._table = table

    def __missing__(self, key: Any, instead: object = None) -> NoReturn:
        raise TableError(
            f"table {self._table}: the agent's transaction was rolled back, and a new run of the agent processes its "
            "events again. Let the old run end: it can no longer read or write the table"
        )

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        self.__missing__(key)

    def __contains__(self, key: object) -> NoReturn:
        self.__missing__(key)

    def copy(self) -> NoReturn:
        self.__missing__(None)

    get = __missing__


class _Shut(dict[Any, Any]):
    """Substitute for the dict of former values while no event is processed.

    It refuses writes, because they would be in no transaction.
    """

    def __contains__(self, key: object) -> NoReturn:
        raise TableError(
            "wrote to a table without a current event (for example after a time-out between two events), or in a task "
            "that it has started. Write only in the agent's own task, while it processes an event"
        )

    def keys(self) -> NoReturn:
        self.__contains__(None)


_SHUT: Final = _Shut()


class TablePartition:
    """Partition of one table during one run of the agents."""

    has_windows: ClassVar[bool] = False
    weight: ClassVar[int] = 1
    """Memory of one key, as a multiple of `kafka_ratchet.tables.values.partition.ENTRY_BYTES`."""
    __slots__ = (
        "before",
        "codec",
        "default",
        "direct",
        "find",
        "kinds",
        "lent",
        "own",
        "prefix",
        "scan",
        "undo",
        "values",
        "writable",
    )

    def __init__(
        self, codec: Codec, default: Callable[[], Any] | None, lent: dict[Any, Any], find: Find, scan: Scan
    ) -> None:
        self.codec, self.default, self.find, self.scan = codec, default, find, scan
        self.kinds = codec.kinds
        self.direct = frozenset() if self.has_windows else codec.kinds
        """Types of keys that `Table` looks up in `values`, and changes there with `writable`, without this class."""
        self.prefix = prefix_of(codec.table)
        self.values: dict[Any, Any] = {}
        """Value or ABSENT of each key; keys and values are in the codec's form, see `Codec`."""
        self.before: dict[Any, Any] = {}
        """Values of changed keys, as they were before the open transaction."""
        self.writable: dict[Any, Any] = _SHUT
        """Dict for the former value of a key: `before` while writes are allowed, else a dict that refuses them."""
        self.undo: dict[Any, Any] | None = None
        """Former values of the keys changed by the current record, if the record can be undone alone; else None."""
        self.lent = lent
        """Mutable objects handed to the program or received from it, with their bytes; see `check_lent`."""
        self.own: TablePartition | None = None
        """Ratchet's own table, for a table that uses the time of events; else None."""

    def again(self) -> TablePartition:
        """Return a copy with the same values for the agents' next run; the old object refuses all access."""
        other = type(self)(self.codec, self.default, self.lent, self.find, self.scan)
        if self.writable is not _SHUT:
            other.writable = other.before
        other.values, self.values = self.values, _Gone(self.codec.table)
        self.before = self.writable = _Gone(self.codec.table)
        return other

    def begin(self, windows: str | None) -> None:
        """Check the present entries when a run of agents begins.

        Args:
            windows: description of the entries' windows; None: they have none.

        Raises:
            TableError: the entries have windows, and the program declares none.
        """
        if windows is not None:
            raise TableError(
                f"table {self.codec.table}: its entries have windows, but the program declares none. Give the table a "
                "new name, so that it starts empty, or undo the change"
            )

    def open(self) -> None:
        """Allow writes."""
        self.writable = self.before

    def shut(self) -> None:
        """Refuse further writes."""
        self.writable = _SHUT

    @property
    def is_shut(self) -> bool:
        """Return True while writes are refused: no event is current, or another task than the agent's own runs."""
        return self.writable is _SHUT

    def expire(self) -> None:
        """Remove expired entries at the end of a transaction."""

    def clear(self) -> None:
        """Forget all values."""
        self.values.clear()

    def saved(self, *, trim: bool) -> None:
        """Mark all persisted values as contained in the store.

        Args:
            trim: whether to keep only the open transaction's changes in memory.
        """
        if trim:
            self.values = {kept: self.values[kept] for kept in self.before}

    def get(self, key: Any) -> Any:
        """Return the value of a key; ABSENT: the key is missing."""
        kept = key if type(key) in self.kinds else self.codec.check_key(key)
        value = self._now(kept)
        return self._lend(kept, value) if type(value) is EncodedValue else value

    def _now(self, kept: Any) -> Any:
        """Return the pushed value of a key; both are in the codec's form. ABSENT: there is no value."""
        value = self.values.get(kept, UNKNOWN)
        return self._look_up(kept) if value is UNKNOWN else value

    def _lend(self, kept: Any, value: EncodedValue) -> Any:
        there = self.lent.get((self.prefix, kept))
        if there is not None:
            return there[0]
        found = self.codec.value(value)
        if type(found) not in PLAIN:
            self.lent[self.prefix, kept] = found, value, self
        return found

    def _look_up(self, kept: Any) -> Any:
        data = self.find(self.prefix + self.codec.key_bytes(kept))
        value = ABSENT if data is None else self.codec.kept_value(data)
        self.values.setdefault(kept, value)
        return value

    def lend_default(self, key: Any) -> Any:
        """Return the default for a missing key.

        A program that changes the default in place has to assign it, as any other value.
        """
        assert self.default is not None  # noqa: S101 - asked for by a table that has one
        value = self.default()
        if type(value) not in PLAIN:
            kept = self.codec.check_key(key)
            there = self.lent.setdefault((self.prefix, kept), (value, self.codec.keep(value), self))
            return there[0]
        return value

    def set(self, key: Any, value: Any) -> None:
        """Set the value of a key in the open transaction."""
        kept = key if type(key) in self.kinds else self.codec.check_key(key)
        taken = self.codec.keep(value)
        self._put(kept, taken)
        if type(taken) is EncodedValue and type(value) not in PLAIN:
            self.lent[self.prefix, kept] = value, taken, self
        elif self.lent:
            self.lent.pop((self.prefix, kept), None)

    def get_many(self, keys: Sequence[Any]) -> dict[Any, Any]:
        """Return the value of each key, in the order of the keys; ABSENT if a key has no value."""
        if not self.direct.issuperset(map(type, keys)):
            return {key: self.get(key) for key in keys}
        value_of = self.values.get
        found = {key: value_of(key, UNKNOWN) for key in dict.fromkeys(keys)}
        if not PLAIN.issuperset(map(type, found.values())):
            for key, value in found.items():
                if type(value) not in PLAIN:
                    found[key] = self.get(key)
        return found

    def set_many(self, found: dict[Any, Any]) -> None:
        """Set the values of several keys in the open transaction."""
        is_simple = self.undo is None and not self.lent and self.direct.issuperset(map(type, found))
        if is_simple and self.codec.are_kept_as_they_are(found.values()):
            for key in found.keys() - self.writable.keys():
                self.writable[key] = self._now(key)
            self.values.update(found)
        else:
            for key, value in found.items():
                self.set(key, value)

    def delete(self, key: Any) -> None:
        """Remove a key in the open transaction.

        Raises:
            KeyError: there is no such key.
        """
        kept = self.codec.check_key(key)
        if self._now(kept) is ABSENT:
            raise KeyError(key)
        self._put(kept, ABSENT)
        self.lent.pop((self.prefix, kept), None)

    def delete_all(self) -> None:
        """Remove every key in the open transaction."""
        for kept in list(self.kept_keys()):
            self._put(kept, ABSENT)
        self.lent.clear()

    def _put(self, kept: Any, value: Any) -> None:
        values, before = self.values, self.writable
        if kept not in before:
            before[kept] = self._now(kept)
        if self.undo is not None and kept not in self.undo:
            self.undo[kept] = values[kept]
        values[kept] = value

    def take_over(self, kept: Any, value: Any) -> None:
        """Store a value from the changelog; key and value are in the codec's form, see `Codec`."""
        self.values[kept] = value

    def check_lent(self, kept: Any, value: Any, data: EncodedValue) -> None:
        """Refuse an object changed in place and not assigned back: the change would be lost with the worker.

        Raises:
            TableError: the object was changed in that way.
        """
        if not self.codec.is_same(self.codec.keep(value), data):
            raise TableError(
                f"table {self.codec.table}: the value of key {self.codec.key(kept)!r:.100} was changed in place and "
                f"not assigned back: write {self.codec.table}[key] = value after the change"
            )

    def keys(self) -> Iterator[Any]:
        """Yield the pushed keys in the program's form, in any order."""
        return (self.codec.key(kept) for kept in self.kept_keys())

    def kept_keys(self) -> Iterator[Any]:
        """Yield the pushed keys as the table stores them."""
        here = self.values.copy()
        for data, _ in self.scan(self.prefix):
            kept = self.codec.kept_key(data[len(self.prefix) :])
            if kept not in here:
                yield kept
        for kept, value in here.items():
            if value is not ABSENT:
                yield kept

    def entries(self) -> tuple[list[bytes], list[bytes | None]]:
        """Return the keys and values of the open transaction's changelog entries."""
        changed, prefix = list(self.before), self.prefix
        values = [self.values[kept] for kept in changed]
        try:
            data = self.codec.many_value_bytes(values)
        except (TypeError, OverflowError):
            data = None
        if data is not None:
            return [prefix + key for key in self.codec.many_key_bytes(changed)], data
        pairs = [self.entry(kept, value) for kept, value in zip(changed, values, strict=True)]
        return [key for key, _ in pairs], [value for _, value in pairs]

    def entry(self, kept: Any, value: Any) -> tuple[bytes, bytes | None]:
        """Return the changelog entry of a value."""
        try:
            data = None if value is ABSENT else self.codec.value_bytes(value)
        except (TypeError, OverflowError) as error:
            raise TableError(f"table {self.codec.table}: {value!r:.100} cannot be kept: {error}") from None
        return self.prefix + self.codec.key_bytes(kept), data


def nowhere(key: bytes) -> bytes | None:
    """Return None for every key, as the `Find` of tables without a store."""
    return None


def nothing(prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Yield no entries, as the `Scan` of tables without a store."""
    return iter(())
