"""One partition of the tables of a stream: what is pushed, what is persisted, and the changelog entries between them.

Entries, in the stream's changelog, behind those of the last sequences:

    b"t" + length of the name (1 byte) + name + key      the value's bytes; null: the key is gone

The table without a name is Ratchet's own: how each table's keys and values are written, and for tables with windows the
stream time and what windows there are.

What is pushed stands in `values`, where a program reads and writes it. What the open transaction found there before is
kept beside it: rollback puts it back, commit forgets it. A key that is not in `values` is looked up in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import repeat
from typing import Any, ClassVar, Final, NoReturn, Protocol

import numpy as np

from kafka_ratchet.errors import RatchetError, StateError, TableError
from kafka_ratchet.tables.values.codec import PLAIN, Codec, Encoded
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.encoding import EncodedBatch
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.batch.rows import encode_columns

PREFIX: Final = b"t"
ENTRY_BYTES: Final = 300
"""What an entry takes in memory, roughly: two Python objects and their place in a dict."""
SMALL_BYTES: Final = 100
"""bytes of a value that ENTRY_BYTES has in it"""
ABSENT: Final = object()
"""In `values`: the key is known not to be in the table."""
UNKNOWN: Final = object()
"""Not in `values`: the store knows."""

Find = Callable[[bytes], bytes | None]
"""Looks a key up in the store: the value's bytes, None where it has none."""


class Scan(Protocol):
    """Reads the store: entries whose keys begin with a prefix, from a key on, in the order of their bytes."""

    def __call__(self, prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """first: where to begin; empty: at the prefix."""


OWN: Final = PREFIX + b"\0"
"""What the keys of Ratchet's own table begin with."""
TIME: Final = "time"
"""Its key of the stream time."""
NO_TIME: Final = -1
"""ms: no event was taken yet."""


def windows_key(table: str) -> str:
    """In Ratchet's own table, the key of what windows a table's entries have."""
    return f"windows {table}"


def form_key(table: str) -> str:
    """In Ratchet's own table, the key of how a table's keys and values are written."""
    return f"form {table}"


def late_key(table: str) -> str:
    """In Ratchet's own table, the key of how many writes to a table were left out."""
    return f"late {table}"


def late_writes(own: TablePartition, table: str) -> int:
    """What Ratchet's own table says of them."""
    found = own.get(late_key(table))
    return 0 if found is ABSENT else int(found)


def stream_time(own: TablePartition) -> int:
    """What Ratchet's own table says of the time."""
    found = own.get(TIME)
    return NO_TIME if found is ABSENT else int(found)


def prefix_of(table: str) -> bytes:
    """What the keys of a table's entries begin with."""
    name = table.encode()
    return PREFIX + bytes([len(name)]) + name


class _Gone(dict[Any, Any]):
    """Stands in for the values of a run that is over: its transaction was rolled back, it may write nothing more."""

    def __missing__(self, key: Any, instead: object = None) -> NoReturn:
        raise TableError("the run of this agent is over: its transaction was rolled back, and another one has begun")

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        self.__missing__(key)

    def __contains__(self, key: object) -> NoReturn:
        self.__missing__(key)

    def copy(self) -> NoReturn:
        self.__missing__(None)

    get = __missing__


class _Shut(dict[Any, Any]):
    """Stands in for `before` while no event is at hand: what was written now would be in no transaction."""

    def __contains__(self, key: object) -> NoReturn:
        raise TableError(
            "wrote to a table while it had no event, as after a time-out between two, or a task that it has started "
            "did: only its own task writes, while it has an event"
        )

    def keys(self) -> NoReturn:
        self.__contains__(None)


_SHUT: Final = _Shut()


class TablePartition:
    """One partition of one table, for one run of the agents."""

    has_windows: ClassVar[bool] = False
    weight: ClassVar[int] = 1
    """Of one key in memory, in `ENTRY_BYTES`."""
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
        """Types of keys by which `values` may be read and, with `writable`, written without asking the methods here."""
        self.prefix = prefix_of(codec.table)
        self.values: dict[Any, Any] = {}
        """By key as the codec keeps it: the value as the codec keeps it, or ABSENT."""
        self.before: dict[Any, Any] = {}
        """What keys that the open transaction has changed had before it."""
        self.writable: dict[Any, Any] = _SHUT
        """The same while it may be written to; whoever writes asks this one."""
        self.undo: dict[Any, Any] | None = None
        """The same for the record at hand, where it may be undone alone; else None."""
        self.lent = lent
        """Objects that were handed out or taken in and can be changed in place, with their bytes; see `check_lent`."""
        self.own: TablePartition | None = None
        """Ratchet's own table, for one that goes by the events' time."""

    def again(self) -> TablePartition:
        """The same values for the next run. This one takes no more reads nor writes."""
        other = type(self)(self.codec, self.default, self.lent, self.find, self.scan)
        if self.writable is not _SHUT:
            other.writable = other.before
        other.values, self.values = self.values, _Gone()
        self.before = self.writable = _Gone()
        return other

    def begin(self, windows: str | None) -> None:
        """A run begins on the entries as they are. windows: with which they were written; None: with none.

        Raises:
            TableError: the program means other windows than its entries have.
        """
        if windows is not None:
            raise TableError(
                f"table {self.codec.table}: its entries have windows, and the program has none. Name the table anew, "
                "or put back what was changed"
            )

    def expire(self) -> None:
        """A transaction ends: what has expired by its stream time goes with it."""

    def clear(self) -> None:
        """Nothing is known any more."""
        self.values.clear()

    def saved(self, *, trim: bool) -> None:
        """The store has everything that is persisted. trim: keep in memory only what the open transaction changed."""
        if trim:
            self.values = {kept: self.values[kept] for kept in self.before}

    def get(self, key: Any) -> Any:
        """The value of a key; ABSENT where there is none."""
        kept = key if type(key) in self.kinds else self.codec.check_key(key)
        value = self._now(kept)
        return self._lend(kept, value) if type(value) is Encoded else value

    def _now(self, kept: Any) -> Any:
        """What is pushed for a key, as the codec keeps it; ABSENT where there is nothing."""
        value = self.values.get(kept, UNKNOWN)
        return self._look_up(kept) if value is UNKNOWN else value

    def _lend(self, kept: Any, value: Encoded) -> Any:
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
        """What `default` makes for a key that is not there. Changed in place, it has to be assigned like any other."""
        assert self.default is not None  # noqa: S101 - asked for by a table that has one
        value = self.default()
        if type(value) not in PLAIN:
            kept = self.codec.check_key(key)
            there = self.lent.setdefault((self.prefix, kept), (value, self.codec.keep(value), self))
            return there[0]
        return value

    def set(self, key: Any, value: Any) -> None:
        """Push a value."""
        kept = key if type(key) in self.kinds else self.codec.check_key(key)
        taken = self.codec.keep(value)
        self._put(kept, taken)
        if type(taken) is Encoded and type(value) not in PLAIN:
            self.lent[self.prefix, kept] = value, taken, self
        elif self.lent:
            self.lent.pop((self.prefix, kept), None)

    def get_many(self, keys: Sequence[Any]) -> dict[Any, Any]:
        """The values of keys, in the order in which each comes first; ABSENT where there is none."""
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
        """Push values, by key."""
        is_simple = self.undo is None and not self.lent and self.direct.issuperset(map(type, found))
        if is_simple and self.codec.are_kept_as_they_are(found.values()):
            for key in found.keys() - self.writable.keys():
                self.writable[key] = self._now(key)
            self.values.update(found)
        else:
            for key, value in found.items():
                self.set(key, value)

    def delete(self, key: Any) -> None:
        """Push that the key is gone. KeyError: it is not there."""
        kept = self.codec.check_key(key)
        if self._now(kept) is ABSENT:
            raise KeyError(key)
        self._put(kept, ABSENT)
        self.lent.pop((self.prefix, kept), None)

    def _put(self, kept: Any, value: Any) -> None:
        values, before = self.values, self.writable
        if kept not in before:
            before[kept] = self._now(kept)
        if self.undo is not None and kept not in self.undo:
            self.undo[kept] = values[kept]
        values[kept] = value

    def take_over(self, kept: Any, value: Any) -> None:
        """A value from the changelog, as the codec keeps it."""
        self.values[kept] = value

    def check_lent(self, kept: Any, value: Any, data: Encoded) -> None:
        """Raise where an object was changed in place and not assigned back: its change would be lost with the worker.

        Raises:
            TableError: it was.
        """
        if not self.codec.is_same(self.codec.keep(value), data):
            raise TableError(
                f"table {self.codec.table}: the value of key {self.codec.key(kept)!r:.100} was changed in place, not "
                f"assigned back: write {self.codec.table}[key] = value after the change"
            )

    def keys(self) -> Iterator[Any]:
        """Keys that are pushed, as the program has them; no order is promised."""
        return (self.codec.key(kept) for kept in self.kept_keys())

    def kept_keys(self) -> Iterator[Any]:
        """The same as the codec keeps them."""
        here = self.values.copy()
        for data, _ in self.scan(self.prefix):
            kept = self.codec.kept_key(data[len(self.prefix) :])
            if kept not in here:
                yield kept
        for kept, value in here.items():
            if value is not ABSENT:
                yield kept

    def entries(self) -> tuple[list[bytes], list[bytes | None]]:
        """Keys and values of the changelog entries of the open transaction."""
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
        """The changelog entry of a value."""
        try:
            data = None if value is ABSENT else self.codec.value_bytes(value)
        except (TypeError, OverflowError) as error:
            raise TableError(f"table {self.codec.table}: {value!r:.100} cannot be kept: {error}") from None
        return self.prefix + self.codec.key_bytes(kept), data


class PartitionTables:
    """What all tables of a stream keep for one input partition."""

    def __init__(self, find: Find, scan: Scan, place: tuple[str, int] = ("", 0)) -> None:
        """No table.

        Args:
            find: looks a key up in the partition's store
            scan: reads the partition's store
            place: the stream's changelog, and the number of its partition
        """
        self.place = place
        self._find, self._scan = self._noting(find), self._noting_scan(scan)
        self._failure: RatchetError | None = None
        """Why a key could not be looked up: a program that went on all the same commits nothing."""
        self.lent: dict[Any, tuple[Any, Encoded, TablePartition]] = {}
        self._tables: dict[bytes, TablePartition] = {}
        self._large_bytes = 0
        """That values were written with or looked up, each time, beyond SMALL_BYTES: at least what they take."""
        self.unsaved: set[tuple[bytes, Any]] = set()
        """Prefix and key of what is persisted and not in the store."""
        self._of_others: dict[bytes, bytes | None] = {}
        """Entries of tables that the program does not have (any more), for the store."""
        self.rolled_back: list[Callable[[], None]] = []
        """Called at each rollback, before the values fall back: who still runs on them has to end."""
        self.late: dict[str, int] = {}
        """Writes that were left out because their windows had expired, by table, as of the last commit."""
        self.committed: list[Callable[[], None]] = []
        """Called at each commit."""

    def _noting(self, find: Find) -> Find:
        def find_or_note(key: bytes) -> bytes | None:
            try:
                found = find(key)
            except StateError as error:
                self._failure = error
                raise
            if found is not None:
                self._count(found)
            return found

        return find_or_note

    def _noting_scan(self, scan: Scan) -> Scan:
        def scan_or_note(prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
            try:
                yield from scan(prefix, first)
            except StateError as error:
                self._failure = error
                raise

        return scan_or_note

    def fail(self, error: RatchetError) -> None:
        """Have the open transaction not commit, whatever the program makes of this error."""
        self._failure = error

    def add(self, codec: Codec, default: Callable[[], Any] | None, kind: type[TablePartition] = TablePartition) -> None:
        """Have a table in it. kind: of its partitions."""
        table = kind(codec, default, self.lent, self._find, self._scan)
        self._tables[table.prefix] = table
        if OWN not in self._tables:
            self._tables[OWN] = TablePartition(Codec("", str, None, "json"), None, self.lent, self._find, self._scan)
        self._tell_windows()

    def _tell_windows(self) -> None:
        for table in self._tables.values():
            if table.has_windows:
                table.own = self._tables[OWN]

    @property
    def has_windows(self) -> bool:
        """Whether any table goes by the events' time."""
        return any(table.has_windows for table in self._tables.values())

    @property
    def stream_time(self) -> int:
        """The greatest timestamp of the partition's events so far; NO_TIME before the first."""
        return stream_time(self._tables[OWN])

    def advance(self, timestamp: int) -> None:
        """Push that events up to this timestamp, in ms, were taken."""
        if timestamp > self.stream_time:
            self._tables[OWN].set(TIME, timestamp)

    def open(self) -> None:
        """From now on tables may be written to: the lane's transaction waits for whoever writes."""
        for table in self._tables.values():
            table.writable = table.before

    def shut(self) -> None:
        """From now on a write raises."""
        for table in self._tables.values():
            table.writable = _SHUT

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Tables may be written to meanwhile."""
        before = [(table, table.writable) for table in self._tables.values()]
        self.open()
        try:
            yield
        finally:
            for table, writable in before:
                table.writable = writable

    def begin(self) -> None:
        """A run begins.

        Raises:
            TableError: a table has entries that were written in another form, or with other windows, than the program
                means.
        """
        for prefix, table in self._tables.items():
            if prefix != OWN:
                self._check_form(table.codec)
                windows = self._tables[OWN].get(windows_key(table.codec.table))
                table.begin(None if windows is ABSENT else windows)
            if table.has_windows:
                self.late[table.codec.table] = late_writes(self._tables[OWN], table.codec.table)

    def _check_form(self, codec: Codec) -> None:
        """Bytes do not tell their form: MessagePack writes 48 as one byte, which JSON reads as the digit 0."""
        own, key = self._tables[OWN], form_key(codec.table)
        before = own.get(key)
        if before is ABSENT:
            own.set(key, codec.form)
        elif before != codec.form:
            raise TableError(
                f"table {codec.table}: its entries are {before}, and the program means {codec.form}. Name the table "
                "anew, or put back what was changed"
            )

    def of(self, table: str) -> TablePartition:
        """A table, for the run that now begins."""
        return self._tables[prefix_of(table)]

    def begin_record(self) -> None:
        """From now on, what changes can be undone by `undo_record`."""
        for table in self._tables.values():
            table.undo = {}

    def undo_record(self) -> None:
        """Put back what was changed since `begin_record`."""
        for table in self._tables.values():
            table.values.update(table.undo or {})
            table.undo = None
        self.lent.clear()

    def check_lent(self) -> None:
        """Raise where an object was changed in place and not assigned back; see `TablePartition.check_lent`."""
        try:
            for (_, kept), (value, data, table) in self.lent.items():
                table.check_lent(kept, value, data)
        finally:
            self.lent.clear()

    def encode(self, limit: int) -> list[EncodedBatch]:
        """Changelog entries of what the open transaction has changed. limit: bytes of a batch.

        Raises:
            StateError: a key could not be looked up.
        """
        if self._failure is not None:
            raise self._failure
        with self.opened():
            for table in self._tables.values():
                table.expire()
        keys, values = list[bytes](), list[bytes | None]()
        for table in self._tables.values():
            its_keys, its_values = table.entries()
            keys += its_keys
            values += its_values
        return encode_columns(keys, values, limit) if keys else []

    def commit(self) -> None:
        """What is pushed is persisted."""
        for name in self.late:
            if late_key(name) in self._tables[OWN].before:
                self.late[name] = self._tables[OWN].values[late_key(name)]
        for table in self._tables.values():
            self.unsaved.update(zip(repeat(table.prefix), table.before))
            table.before.clear()
        for tell in self.committed:
            tell()

    def rollback(self) -> None:
        """Pushed falls back to persisted; runs that wrote it can do so no more."""
        for tell in self.rolled_back:
            tell()
        self._fall_back()

    def _fall_back(self) -> None:
        self._failure = None
        self.lent.clear()
        for prefix, table in self._tables.items():
            table.values.update(table.before)
            self._tables[prefix] = table.again()
        self._tell_windows()

    def apply(self, batch: RecordBatch) -> RecordBatch:
        """Take over the entries of tables in a batch of the changelog; returns the batch without them.

        Entries of a table that the program no longer has are kept: it may have it again.
        """
        named = np.flatnonzero(batch.columns[records.KEY_LENGTH] > 1)
        mine = np.zeros(batch.count, np.bool_)
        mine[named] = batch.data[batch.columns[records.KEY, named]] == PREFIX[0]
        for index in np.flatnonzero(mine).tolist():
            key = batch.key(index) or b""
            prefix = key[: 2 + key[1]]
            data = batch.value(index)
            if (table := self._tables.get(prefix)) is None:
                self._of_others[key] = data
                continue
            kept = table.codec.kept_key(key[len(prefix) :])
            table.take_over(kept, ABSENT if data is None else table.codec.kept_value(data))
            self.unsaved.add((prefix, kept))
        return batch.only(~mine) if mine.any() else batch

    def unsaved_entries(self) -> Iterable[tuple[bytes, bytes | None]]:
        """What the store does not have of what is persisted."""
        for prefix, kept in self.unsaved:
            table = self._tables[prefix]
            key, value = table.entry(kept, table.before.get(kept, table.values[kept]))
            if value is not None:
                self._count(value)
            yield key, value
        yield from self._of_others.items()

    def saved(self, most: int) -> None:
        """The store has everything that is persisted; where it takes more than `most` small entries, it is given up."""
        self.unsaved.clear()
        self._of_others.clear()
        small = sum(len(table.values) * table.weight for table in self._tables.values())
        trim = small + self._large_bytes // ENTRY_BYTES > most
        if trim:
            self._large_bytes = 0
        for table in self._tables.values():
            table.saved(trim=trim)

    def _count(self, value: bytes) -> None:
        self._large_bytes += max(0, len(value) - SMALL_BYTES)

    def closed(self) -> None:
        """The store was closed or removed: nothing is known any more.

        It may be called from a thread of its own. No run is there then: a rollback came before.
        """
        self._fall_back()
        self.unsaved.clear()
        self._of_others.clear()
        self.late.clear()
        for table in self._tables.values():
            table.clear()

    @property
    def is_used(self) -> bool:
        """Whether there is any table."""
        return bool(self._tables)


AT_WORK: Final[ContextVar[PartitionTables | None]] = ContextVar("tables at work", default=None)
"""Of the partition whose agent or timer runs."""


def nowhere(key: bytes) -> bytes | None:
    """A `Find` for tables without a store."""
    return None


def nothing(prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """A `Scan` for tables without a store."""
    return iter(())
