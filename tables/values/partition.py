"""Tables of a stream for one input partition: the state that a lane's transaction changes.

Their entries are in the stream's changelog, after the entries of the last sequences:

  b"t" + length of the name (1 byte) + name + key      the value's bytes; null: the key is gone

The table without a name is Ratchet's own (`own_table.py`). For each table it contains the form: serializer and key
type. For tables with windows it contains the stream time, the windows, and the number of dropped late writes. For a
table that a later version of the program added, it contains the input offset at which the table began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import repeat
from typing import Any, Final

import numpy as np
import structlog

from kafka_ratchet.errors import RatchetError, StateError, TableError
from kafka_ratchet.tables.values.codec import Codec, EncodedValue
from kafka_ratchet.tables.values.own_table import (
    OWN,
    TIME,
    begin_key,
    form_key,
    late_key,
    late_writes,
    shape_key,
    stream_time,
    windows_key,
)
from kafka_ratchet.tables.values.table_partition import ABSENT, PREFIX, Find, Scan, TablePartition, prefix_of
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.encoding import EncodedBatch
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.batch.rows import encode_columns

log = structlog.get_logger(__name__)

SMALL_BYTES: Final = 100
"""Bytes of a value that `ENTRY_BYTES` already includes."""


class PartitionTables:
    """State of all tables of a stream for one input partition."""

    def __init__(
        self,
        find: Find,
        scan: Scan,
        place: tuple[str, int] = ("", 0),
        passed: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Start without tables.

        Args:
            find: function that looks a key up in the partition's store.
            scan: function that scans the partition's store.
            place: name of the stream's changelog, and number of the partition.
            passed: function that returns the next input offset, or None while no record was processed.
        """
        self.place, self._passed = place, passed
        self._new: dict[str, int] = {}
        """Input offset where a table begins, by name, for tables new in the open transaction."""
        self._find, self._scan = self._noting(find), self._noting_scan(scan)
        self._failure: RatchetError | None = None
        """Error of a look-up; it prevents the commit even if the program ignores it."""
        self.lent: dict[Any, tuple[Any, EncodedValue, TablePartition]] = {}
        self._tables: dict[bytes, TablePartition] = {}
        self._large_bytes = 0
        """Approximate bytes of large values in memory, not counting the first SMALL_BYTES of each."""
        self.unsaved: set[tuple[bytes, Any]] = set()
        """Table prefix and key of persisted entries not yet in the store."""
        self._of_others: dict[bytes, bytes | None] = {}
        """Entries of tables that the program no longer has, to be written to the store."""
        self.rolled_back: list[Callable[[], None]] = []
        """Functions called at each rollback, before the values are restored, to end runs that still use them."""
        self.late: dict[str, int] = {}
        """Number of writes dropped because their windows had expired, by table, as of the last commit."""
        self.committed: list[Callable[[], None]] = []
        """Functions called at each commit."""

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
        """Keep an error, so that the open transaction cannot commit even if the program ignores the error."""
        self._failure = error

    def add(self, codec: Codec, default: Callable[[], Any] | None, kind: type[TablePartition] = TablePartition) -> None:
        """Add a table.

        Args:
            codec: codec of the table.
            default: function that makes the value of a missing key; None: a missing key is an error.
            kind: class of the table's partitions.
        """
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
        """Return True if any table uses the time of events."""
        return any(table.has_windows for table in self._tables.values())

    @property
    def stream_time(self) -> int:
        """Return the greatest timestamp of the partition's events so far, in milliseconds; NO_TIME: no event yet."""
        return stream_time(self._tables[OWN])

    def advance(self, timestamp: int) -> None:
        """Raise the stream time to a timestamp in milliseconds, in the open transaction."""
        if timestamp > self.stream_time:
            self._tables[OWN].set(TIME, timestamp)

    def open(self) -> None:
        """Allow writes to the tables; the lane's transaction then waits for the writer."""
        for table in self._tables.values():
            table.open()

    def shut(self) -> None:
        """Refuse further writes to the tables."""
        for table in self._tables.values():
            table.shut()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Allow writes to the tables within the context."""
        before = [(table, table.writable) for table in self._tables.values()]
        self.open()
        try:
            yield
        finally:
            for table, writable in before:
                table.writable = writable

    def begin(self) -> None:
        """Check the form and the windows of the tables' entries; store those of new tables.

        A new run of agents or of a timer calls this method first.

        Raises:
            TableError: a table's entries have another form, or other windows, than the program declares.
        """
        for prefix, table in self._tables.items():
            if prefix != OWN:
                self._check_form(table)
                windows = self._tables[OWN].get(windows_key(table.codec.table))
                table.begin(None if windows is ABSENT else windows)
            if table.has_windows:
                self.late[table.codec.table] = late_writes(self._tables[OWN], table.codec.table)

    def _check_form(self, table: TablePartition) -> None:
        """Compare the form of a table's entries with the codec's, or store it for a new table.

        Bytes do not reveal their form: MessagePack writes 48 as one byte, which JSON reads as the digit 0.
        """
        own, codec = self._tables[OWN], table.codec
        before, shape = own.get(form_key(codec.table)), own.get(shape_key(codec.table))
        if before is ABSENT:
            self._set_form(codec)
            if (offset := self._passed()) is not None:
                own.set(begin_key(codec.table), offset)
                self._new[codec.table] = offset
        elif (before, "" if shape is ABSENT else shape) != (codec.form, codec.shape):
            # An earlier version wrote no shape, and maybe another form.
            is_earlier = shape is ABSENT and before in (codec.form, *codec.earlier_forms)
            if is_earlier and codec.is_own(table.kept_keys(), table.get):
                self._set_form(codec)
                return
            was = before if shape is ABSENT else f"{before}, {shape}"
            now = f"{codec.form}, {codec.shape}" if codec.shape else codec.form
            raise TableError(
                f"table {codec.table}: its entries were written as {was}, but the program declares {now}. "
                f"{codec.remedy(before)}"
            )

    def _set_form(self, codec: Codec) -> None:
        own = self._tables[OWN]
        if own.get(form_key(codec.table)) != codec.form:
            own.set(form_key(codec.table), codec.form)
        if codec.shape:
            own.set(shape_key(codec.table), codec.shape)

    def of(self, table: str) -> TablePartition:
        """Return a table's partition, for the run of agents that begins now."""
        return self._tables[prefix_of(table)]

    def begin_record(self) -> None:
        """Start recording changes, so that `undo_record` can undo them."""
        for table in self._tables.values():
            table.undo = {}

    def undo_record(self) -> None:
        """Undo the changes since `begin_record`."""
        for table in self._tables.values():
            table.values.update(table.undo or {})
            table.undo = None
        self.lent.clear()

    def check_lent(self) -> None:
        """Raise if an object was changed in place but not assigned back; see `TablePartition.check_lent`."""
        try:
            for (_, kept), (value, data, table) in self.lent.items():
                table.check_lent(kept, value, data)
        finally:
            self.lent.clear()

    def encode(self, limit: int) -> list[EncodedBatch]:
        """Encode the open transaction's changes as changelog entries.

        Args:
            limit: maximum bytes of a batch.

        Raises:
            StateError: a look-up has failed.
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
        """Make the pushed values persisted."""
        for name in self.late:
            if late_key(name) in self._tables[OWN].before:
                self.late[name] = self._tables[OWN].values[late_key(name)]
        for table in self._tables.values():
            self.unsaved.update(zip(repeat(table.prefix), table.before))
            table.before.clear()
        self._report_new()
        for tell in self.committed:
            tell()

    def _report_new(self) -> None:
        changelog, number = self.place
        for name, offset in self._new.items():
            log.info(
                f"table {name} is new: it begins at offset {offset} of partition {number}, without earlier records",
                changelog=changelog,
            )
        self._new.clear()

    def rollback(self) -> None:
        """Reset the pushed values to the persisted values, and end the agents' runs that wrote them."""
        for tell in self.rolled_back:
            tell()
        self._fall_back()

    def _fall_back(self) -> None:
        self._failure = None
        self._new.clear()
        self.lent.clear()
        for prefix, table in self._tables.items():
            table.values.update(table.before)
            self._tables[prefix] = table.again()
        self._tell_windows()

    def apply(self, batch: RecordBatch) -> RecordBatch:
        """Apply the tables' entries in a batch of the changelog, and return the batch without them.

        Entries of a table that the program no longer has are kept, because it may have the table again.
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
        """Yield the persisted entries not yet in the store."""
        for prefix, kept in self.unsaved:
            table = self._tables[prefix]
            key, value = table.entry(kept, table.before.get(kept, table.values[kept]))
            if value is not None:
                self._count(value)
            yield key, value
        yield from self._of_others.items()

    def saved(self, most: int) -> None:
        """Mark all persisted entries as contained in the store, and remove values from memory if there are too many.

        Args:
            most: maximum number of small entries in memory.
        """
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
        """Forget all values, because the store was closed or removed.

        Another thread may call this method: no agent runs, because a rollback came before.
        """
        self._fall_back()
        self.unsaved.clear()
        self._of_others.clear()
        self.late.clear()
        for table in self._tables.values():
            table.clear()

    @property
    def is_used(self) -> bool:
        """Return True if there is any table."""
        return bool(self._tables)


AT_WORK: Final[ContextVar[PartitionTables | None]] = ContextVar("tables at work", default=None)
"""Tables of the partition that the current agent or timer works on."""
ENTRY_BYTES: Final = 300
"""Approximate bytes of an entry in memory: two Python objects and their place in a dict."""
