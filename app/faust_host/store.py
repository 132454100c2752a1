"""Faust's tables, stored in a lane's tables: keys and values are the bytes that Faust's codecs make."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from faust.exceptions import KeyDecodeError
from faust.models.base import maybe_model
from faust.stores.base import SerializedStore
from faust.tables.objects import ChangeloggedObject
from faust.tables.sets import OPERATION_ADD, OPERATION_UPDATE, ChangeloggedSetManager, SetTable
from faust.tables.table import Table

from kafka_ratchet.app.faust_host.refusals import no_partition, not_exact, not_named
from kafka_ratchet.errors import TableError
from kafka_ratchet.tables.values.codec import PLAIN, Codec, EncodedValue
from kafka_ratchet.tables.values.global_table import GlobalTable
from kafka_ratchet.tables.values.partition import AT_WORK
from kafka_ratchet.tables.values.table import Table as OwnTable
from kafka_ratchet.tables.values.table_partition import ABSENT, TablePartition

UNSET: Final = object()

ORJSON: Final = "orjson"

IsOwn = Callable[[Iterable[bytes], Callable[[bytes], bytes]], bool]

Parts = Callable[[], list[Any]]
"""Function that returns the committed partitions of a table in this process (`CommittedTable`)."""


class FaustCodec(Codec):
    """Codec that stores the bytes of Faust's serializers unchanged.

    Args:
        table: name of the table.
        form: text that names Faust's serializers of keys and values; another form is refused if the table has entries.
        earlier: forms that earlier versions wrote for the same serializers, if they differ.
        is_own: function that returns True if the entries with an earlier form fit the table; see `Codec.is_own`.
    """

    def __init__(
        self, table: str, form: str, earlier: frozenset[str] = frozenset(), is_own: IsOwn | None = None
    ) -> None:
        super().__init__(table, bytes, bytes, "json")
        self._form, self.earlier_forms, self._is_own = form, earlier, is_own
        # Not `bytes`: who reads the table from outside shows keys as the JSON that they are.
        self.key_type = None
        self._plain = PLAIN

    @property
    def form(self) -> str:
        """Return the names of the codecs of keys and values."""
        return self._form

    @cached_property
    def shape(self) -> str:
        """Return the empty text: the form says everything."""
        return ""

    def is_own(self, keys: Iterable[Any], value_of: Callable[[Any], Any]) -> bool:
        """Return True if entries with an earlier form fit this table."""
        return self._is_own is not None and self._is_own(keys, value_of)

    def remedy(self, before: str) -> str:
        """Return the advice for a table with entries of another form."""
        if (ORJSON in before) == (ORJSON in self._form):
            return super().remedy(before)
        action = "Remove orjson from" if ORJSON in self._form else "Install orjson into"
        return (
            "Faust writes other bytes for a key with orjson than without it, and would not find the entries. "
            f"{action} the worker's environment, or give the table a new name"
        )

    def key_bytes(self, kept: Any) -> bytes:
        """Return the key unchanged, as bytes."""
        return bytes(kept)

    def many_key_bytes(self, kept: Any) -> list[bytes]:
        """Return the keys unchanged."""
        return list(kept)

    def kept_key(self, data: bytes) -> bytes:
        """Return the key unchanged."""
        return data

    def check_key(self, key: Any) -> bytes:
        """Return the key unchanged.

        Raises:
            TableError: the key is not bytes.
        """
        if type(key) is not bytes:
            raise TableError(
                f"table {self.table}: Faust's codec returned the key {key!r:.100}, which is not bytes. Correct the "
                "codec"
            )
        return key

    def keep(self, value: Any) -> bytes:
        """Return the value unchanged, as bytes."""
        return bytes(value)

    def value_bytes(self, kept: Any) -> bytes:
        """Return the value unchanged, as bytes."""
        return bytes(kept)

    def many_value_bytes(self, kept: Any) -> list[bytes | None] | None:
        """Return the values unchanged; None if one is not bytes."""
        return list(kept) if {type(each) for each in kept} <= {bytes} else None

    def kept_value(self, data: bytes) -> bytes:
        """Return the value unchanged."""
        return data

    def value(self, data: bytes) -> bytes:
        """Return the value unchanged, as bytes."""
        return bytes(data)


def plain_json(value: Any) -> bytes | None:
    """Return the JSON of an int or of a text without characters to escape; None for other values."""
    if type(value) is int:
        return b"%d" % value
    if type(value) is str and value.isascii() and value.isprintable() and '"' not in value and "\\" not in value:
        return b'"%b"' % value.encode()
    return None


def with_models(value: Any) -> Any:
    """Convert dicts of Faust models back into models, also inside lists and dicts.

    Programs expect models, because Faust's in-memory store holds the objects themselves.
    """
    if type(value) is list:
        return [with_models(each) for each in value]
    if type(value) is dict:
        if "__faust" in value:
            return maybe_model(value)
        return {key: with_models(each) for key, each in value.items()}
    return value


def as_made(make: Any, value: Any) -> Any:
    """Return a decoded value in the type of the program's default, such as Counter, defaultdict or set.

    A codec decodes such a value as a plain dict or list, with other methods: `Counter.update` differs from
    `dict.update`.

    Args:
        make: function that makes the default; None without one
        value: the decoded value
    """
    if make is None or type(value) not in (dict, list):
        return value
    made = make()
    fits = isinstance(made, (set, deque)) if type(value) is list else isinstance(made, dict) and type(made) is not dict
    if not fits:
        return value
    made.clear()
    if isinstance(made, deque):
        made.extend(value)
    elif isinstance(made, set):
        made.update(tuple(each) if type(each) is list else each for each in value)
    else:
        inner = made.default_factory if isinstance(made, defaultdict) else None
        made.update({key: as_made(inner, each) for key, each in value.items()})
    return made


def refuse_equal_keys(place: str, value: Any) -> None:
    """Refuse a value with dict keys equal in JSON, as 1 and "1".

    Args:
        place: name of the table, for the error
        value: value to store as JSON

    Raises:
        TableError: there are such keys; one entry would be lost.
    """
    if isinstance(value, dict):
        kinds = set(map(type, value))
        texts = dict[str, Any]()
        for key in value if len(kinds) > 1 and str in kinds else ():
            text = key if type(key) is str else json.dumps(key) if type(key) in PLAIN else str(key)
            if text in texts:
                raise TableError(
                    f"{place}: its value has a dict with the keys {texts[text]!r:.50} and {key!r:.50}, which are one "
                    "key in JSON: an entry would be lost. Keys of a stored dict come back as str. Write str(key)"
                )
            texts[text] = key
        inner: Any = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    else:
        return
    for each in inner:
        if type(each) not in PLAIN:
            refuse_equal_keys(place, each)


class LaneStore(SerializedStore):
    """Store of one Faust table: the lane's partition while an agent processes an event, else committed entries.

    Attributes:
        lane: Ratchet's table; None before the host has started
        parts: function that returns the table's committed partitions on this worker
    """

    lane: OwnTable | None = None
    parts: Parts = staticmethod(list)
    _last: tuple[Any, bytes] = UNSET, b""

    def here(self) -> TablePartition | None:
        """Return the table partition of the current event; None outside agents.

        Raises:
            SettingsError: the code of the running agent does not name this table.
        """
        partition = None if self.lane is None else self.lane.here.get()
        if partition is None and AT_WORK.get() is not None:
            raise not_named(self.table_name)
        return partition

    def writable(self) -> TablePartition:
        """Return the table partition of the current event, for a write.

        Raises:
            SettingsError: a task that the agent has started writes, or the agent has no event.
            TableError: no agent is processing an event.
        """
        partition = self.here()
        if partition is None:
            raise no_partition(self.table_name)
        if partition.is_shut:
            # A task's error reaches no caller: the event would commit without its write.
            raise not_exact(
                f"a write to table {self.table_name} by a task that the agent has started, or without an event",
                "it would be in the transaction of another event, or in none. Write in the agent's own function, "
                "after it has read an event",
            )
        return partition

    def _encode_key(self, key: Any) -> bytes:
        # One `+=` asks for the same key three times.
        last, data = self._last
        if last is key and type(key) in (str, int):
            return data
        encoded = plain_json(key) if self._is_json and self.key_type in (None, type(key)) else None
        if encoded is None:
            encoded = super()._encode_key(key)
        self._last = key, encoded
        return encoded

    def _decode_key(self, key: bytes | None) -> Any:
        kind = self.key_type
        if getattr(self.table, "window", None) is None or kind in (None, str, bytes):
            return super()._decode_key(key)
        # A window's key is [key, [start, end]]: only its first part has the table's key type.
        serializers = self.app.serializers
        found = serializers.loads_key(None, key, serializer=self.key_serializer)
        if not isinstance(found, list) or len(found) != 2:
            return found
        first, window = found
        if type(first) is not kind:
            try:
                first = serializers._prepare_payload(kind, first)
            except Exception as error:
                raise KeyDecodeError(f"{first!r:.100} is no {kind!r}: {error}") from error
        return [first, window]

    def _encode_value(self, value: Any) -> bytes | None:
        if type(value) is int and self._is_json and self.value_type in (None, int):
            return b"%d" % value
        encoded: bytes | None = super()._encode_value(value)
        if self._is_json and type(value) not in PLAIN:
            refuse_equal_keys(f"table {self.table_name}", value)
        return encoded

    @cached_property
    def _is_json(self) -> bool:
        """Return True if keys and values use Faust's JSON, so that plain values can be encoded without its codecs."""
        return bool(self.key_serializer == "json" and self.value_serializer == "json")

    @cached_property
    def _make(self) -> Callable[[], Any] | None:
        """Return the function that makes the table's default value.

        None if there is no default, or if a decoded value has the default's type already.
        """
        make = getattr(self.table, "default", None)
        if isinstance(self.table, SetTable) or make is None:
            return None
        return make if isinstance(make(), (dict, set, deque)) and make is not dict else None

    def _decode_value(self, value: bytes | None) -> Any:
        if value is not None and value.isdigit() and self._is_json and self.value_type in (None, int):
            return int(value)
        decoded = with_models(super()._decode_value(value))
        return decoded if self._make is None else as_made(self._make, decoded)

    def __getitem__(self, key: Any) -> Any:
        data = self._encode_key(key)
        found = self._get(data)
        if found is None:
            raise KeyError(key)
        return self._object(data, found)

    def update(self, *others: Any, **more: Any) -> None:
        """Write many entries, as `dict.update` does."""
        for key, value in dict(*others, **more).items():
            self[key] = value

    def _object(self, key: bytes, data: bytes) -> Any:
        """Return the value of an entry: within an event the same object each time, as with Faust's own store.

        With two objects, a change made to one would be lost when the program assigns the other.
        """
        if (value := self.lent(key)) is not None:
            return value
        value = self._decode_value(data)
        if type(value) not in PLAIN:
            self.lend(key, value, data)
        return value

    def lent(self, key: bytes) -> Any:
        """Return the object that the program has got or assigned for a key during this event; None without one."""
        partition = self.here()
        found = partition.lent.get((partition.prefix, key)) if partition is not None and partition.lent else None
        return None if found is None else found[0]

    def _items_decoded(self) -> Iterator[tuple[Any, Any]]:
        return ((self._decode_key(key), self._object(key, data)) for key, data in self._iteritems())

    def _values_decoded(self) -> Iterator[Any]:
        return (self._object(key, data) for key, data in self._iteritems())

    def __setitem__(self, key: Any, value: Any) -> None:
        data, encoded = self._encode_key(key), self._encode_value(value)
        if encoded is None:
            self._del(data)
            return
        partition = self.writable()
        partition.set(data, encoded)
        if partition.lent or type(value) not in PLAIN:
            self.lend(data, value, encoded)

    def lend(self, key: bytes, value: Any, data: bytes) -> None:
        """Remember an object returned to the program.

        The next event checks that the object was not changed in place.
        """
        partition = self.here()
        if partition is None:
            return
        if type(value) not in PLAIN:
            partition.lent[partition.prefix, key] = value, EncodedValue(data), self
        elif partition.lent:
            partition.lent.pop((partition.prefix, key), None)

    def check_lent(self, key: bytes, value: Any, data: bytes) -> None:
        """Check that an object returned to the program was not changed in place without being assigned back.

        Raises:
            TableError: the object was changed.
        """
        now = self._encode_value(value)
        if now != data and self._encode_value(self._decode_value(data)) != now:
            raise TableError(
                f"table {self.table_name}: the value of key {self._decode_key(key)!r:.100} was changed in place but "
                f"not assigned back, so that Faust would lose the change. Write {self.table_name}[key] = value "
                "after the change"
            )

    def _get(self, key: bytes) -> bytes | None:
        partition = self.here()
        if partition is not None:
            value = partition.get(key)
            return None if value is ABSENT else bytes(value)
        for part in self.parts():
            found: bytes | None = part.get(key)
            if found is not None:
                return found
        return None

    def _set(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._del(key)
        else:
            self.writable().set(key, value)

    def _del(self, key: bytes) -> None:
        partition = self.writable()
        if partition.get(key) is not ABSENT:
            partition.delete(key)

    def _iteritems(self) -> Iterator[tuple[bytes, bytes]]:
        partition = self.here()
        if partition is None:
            for part in self.parts():
                yield from part.entries()
            return
        for key in list(partition.kept_keys()):
            value = partition.get(key)
            if value is not ABSENT:
                yield key, value

    def _iterkeys(self) -> Iterator[bytes]:
        return (key for key, _ in self._iteritems())

    def _itervalues(self) -> Iterator[bytes]:
        return (value for _, value in self._iteritems())

    def _size(self) -> int:
        return sum(1 for _ in self._iteritems())

    def _contains(self, key: bytes) -> bool:
        return self._get(key) is not None

    def _clear(self) -> None:
        partition = self.writable()
        for key in list(partition.kept_keys()):
            self._del(key)

    def reset_state(self) -> None:
        """Keep the entries, because the lane restores its tables."""

    def decoded(self, entries: Mapping[bytes, bytes]) -> dict[Any, Any]:
        """Decode entries into the keys and values that the program uses."""
        return {self._key_of(key): self._decode_value(value) for key, value in entries.items()}

    def _key_of(self, data: bytes) -> Any:
        try:
            return self.table._to_key(self._decode_key(data))
        except KeyDecodeError:
            return data  # Faust writes a key of bytes as it is, and does not read it again

    async def backup_partition(self, *args: Any, **options: Any) -> None:
        """Refuse a backup, because the changelog is the copy.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "a backup of a single table is not possible: use `ratchet state export`, which writes the state of a stream"
        )

    def restore_backup(self, *args: Any, **options: Any) -> None:
        """Refuse to restore a backup, because the changelog is the copy.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "a backup of a single table cannot be restored: use `ratchet state import`, which reads the state of a "
            "stream"
        )


class GlobalStore(LaneStore):
    """Read-only store of a Faust global table: the entries that this worker has read from the table's topic.

    Attributes:
        read: Ratchet's table; None before the host has started
    """

    read: GlobalTable | None = None

    def _get(self, key: bytes) -> bytes | None:
        return None if self.read is None else self.read.get(key)

    def _iteritems(self) -> Iterator[tuple[bytes, bytes]]:
        if self.read is not None:
            for key in self.read:
                value = self.read.get(key)
                if value is not None:
                    yield key, value

    def here(self) -> TablePartition | None:
        """Return None, because no partition of a global table belongs to an agent."""
        return None

    def writable(self) -> TablePartition:
        """Refuse a write to a global table.

        Raises:
            SettingsError: always.
        """
        raise not_exact(
            f"a write to global table {self.table_name}",
            "each worker reads the table at its own pace. Send the change to the table's changelog topic",
        )


class LaneSets(ChangeloggedSetManager):
    """Faust set table over a lane's table.

    A set exists only during its look-up, so a rollback leaves nothing in memory.
    """

    def __getitem__(self, key: Any) -> ChangeloggedObject:
        found = self.ValueType(self, key)
        found.data = as_made(set, self.storage.get(key) or [])
        return found

    def __contains__(self, key: Any) -> bool:
        return key in self.storage

    def __iter__(self) -> Iterator[Any]:
        return iter(self.storage)

    def __len__(self) -> int:
        return len(self.storage)

    def items(self) -> Any:
        """Return keys and sets."""
        return [(key, self[key]) for key in self.storage]

    def keys(self) -> Any:
        """Return the keys that have a set stored under them."""
        return self.storage.keys()

    def values(self) -> Any:
        """Return the sets."""
        return [self[key] for key in self.storage]

    def send_changelog_event(self, key: Any, operation: int, value: Any) -> None:
        """Apply an operation to a set and store the resulting set.

        Faust itself would store the set before the operation, and log the operation.
        """
        found = self[key]
        if operation in (OPERATION_ADD, OPERATION_UPDATE):
            self._check_elements(key, [value] if operation == OPERATION_ADD else value[0])
        found.apply_changelog_event(operation, value)
        self.table.send_changelog(None, (operation, key), value)
        if self.table.window is not None:
            # Faust reports no write to a window of sets, which would close only after a restart.
            self.table._maybe_set_key_ttl(key, 0)
        self.storage[key] = sorted(found.data, key=repr)

    def _check_elements(self, key: Any, elements: Iterable[Any]) -> None:
        """Check that new elements are found again, once they are stored.

        Raises:
            TableError: the table's codec makes another value of an element.
        """
        store = self.storage
        for element in elements:
            if type(element) in PLAIN and type(element) is not bytes:
                continue
            (stored,) = store._decode_value(store._encode_value([element]))
            again = tuple(stored) if isinstance(stored, list) else stored
            if again != element:
                raise TableError(
                    f"table {self.table.name}: element {element!r:.100} of key {key!r:.100} is a "
                    f"{type(element).__name__}, which is stored as {stored!r:.100} and would not be found again. Add "
                    "str(element), and look for that"
                )

    async def on_start(self) -> None:
        """Do nothing, because the lane starts the store."""


def store_of(table: Any) -> LaneStore:
    """Return the `LaneStore` of a Faust table; replace another store by a new one."""
    own = getattr(table._data, "_storage", table._data)
    if isinstance(own, LaneStore):
        return own
    return LaneStore(
        "ratchet://",
        table.app,
        table,
        key_type=table.key_type,
        # The value of a set table is one element of a set; the store holds the list of them.
        value_type=None if isinstance(table, SetTable) else table.value_type,
        key_serializer=table.key_serializer,
        value_serializer=table.value_serializer,
    )


def _get_at_once(table: Any, key: Any) -> Any:
    try:
        return table.data[key]
    except KeyError:
        return table.__missing__(key)


def _set_at_once(table: Any, key: Any, value: Any) -> None:
    table.data[key] = value


def shorten(table: Any) -> None:
    """Replace a table's methods, so that reads and writes go to the lane without Faust's sensors and changelog.

    Use it for tables without windows and without an explicit changelog. A class that overrides these methods keeps
    them.
    """
    kind = type(table)
    if all(getattr(kind, name) is getattr(Table, name) for name in ("on_key_get", "on_key_set", "__missing__")):
        names = {"__module__": kind.__module__, "__slots__": (), "__getitem__": _get_at_once}
        table.__class__ = type(kind.__name__, (kind,), {**names, "__setitem__": _set_at_once})


Store = LaneStore
"""Class that the entry point `faust.stores` names."""
