"""Table that each worker reads in full from a topic, for look-ups; it changes outside of transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from heapq import nsmallest
from typing import Any, Final, NoReturn

import msgspec

from kafka_ratchet.errors import StateError, TableError
from kafka_ratchet.tables.values.codec import Codec, Serializer
from kafka_ratchet.tables.values.partition import AT_WORK

ENTRY_BYTES: Final = 150
"""Approximate bytes of an entry in memory, without key and value: two objects and their place in a dict."""


AT_ONCE: Final = 1_000
"""Number of keys to sort at a time; it is more than a page shows."""


class Contents:
    """Newest value of each key, in the records read so far from a topic's partitions."""

    def __init__(self, partitions: int, most: int, table: str = "") -> None:
        """Start without contents.

        Args:
            partitions: number of partitions of the topic
            most: maximum bytes in memory
            table: name of the table, for messages
        """
        self.partitions: list[dict[bytes, bytes]] = [{} for _ in range(partitions)]
        self.positions = [0] * partitions
        """Next offset to read from each partition."""
        self.size = 0
        """Approximate bytes in memory."""
        self._most, self._table = most, table

    def put(self, partition: int, key: bytes, value: bytes | None) -> None:
        """Apply a record, and count its memory; the value None removes the key.

        Raises:
            StateError: the table exceeds its memory.
        """
        held = self.partitions[partition]
        before = held.pop(key, None)
        if before is not None:
            self.size -= ENTRY_BYTES + len(key) + len(before)
        if value is None:
            return
        held[key] = value
        self.size += ENTRY_BYTES + len(key) + len(value)
        if self.size > self._most:
            raise StateError(
                f"table {self._table}: takes more than memory_mb = {self._most >> 20}, after "
                f"{sum(map(len, self.partitions)):,} keys. Each worker holds the whole table in memory: raise "
                "memory_mb, or remove keys from its topic"
            )


class ReadPartition:
    """Contents of one partition for the page and for commands, which use the keys' bytes."""

    is_complete = True

    def __init__(self, codec: Codec, held: Mapping[bytes, bytes]) -> None:
        """Store the contents, and the codec that makes bytes of keys."""
        self.codec, self._held = codec, held

    def get(self, key: Any) -> bytes | None:
        """Return the bytes of a key's value; None: there is no such key."""
        return self._held.get(key)

    def starts(self) -> tuple[list[int], bool]:
        """Return no windows, because a global table has none."""
        return [], False

    def entries(self, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the bytes of keys and values, ordered by the keys' bytes.

        after: key that precedes the first one; None: begin with the first key.
        """
        while found := nsmallest(AT_ONCE, (key for key in self._held if after is None or key > after)):
            yield from ((key, self._held[key]) for key in found)
            after = found[-1]


class GlobalTable(Mapping[Any, Any]):
    """Read-only table of a compacted topic, complete in each worker, for look-ups.

    Other programs write the topic. A look-up is not part of the transaction: it returns the newest record that this
    worker has read by then. An agent that processes the same record again after a crash may find a newer value.

    Each look-up decodes the value again, so changing the result does not change the table.

    Args:
        name: name of the table.
        topic: topic with the table's entries; each key must be in one partition only.
        default: function that makes the value of a missing key; None: a missing key raises KeyError.
        key_type: type of the records' keys: `str` in UTF-8, `bytes` unchanged, else JSON without spaces; None: `str`.
        value_type: type that msgspec decodes values into; `bytes` unchanged; None: any value of the serializer.
        serializer: "json" or "msgpack", for the values.
        memory_mb: maximum memory in each worker, in MiB.

    Raises:
        SettingsError: a type cannot be used.
    """

    def __init__(
        self,
        name: str,
        topic: str,
        default: Callable[[], Any] | None = None,
        key_type: Any = None,
        value_type: Any = None,
        serializer: Serializer = "json",
        memory_mb: int = 256,
    ) -> None:
        self.name, self.topic, self.default, self.most = name, topic, default, memory_mb << 20
        self.key_type, self.value_type = str if key_type is None else key_type, value_type
        self._codec, self.serializer = Codec(name, self.key_type, value_type, serializer), serializer
        module: Any = msgspec.json if serializer == "json" else msgspec.msgpack
        self._decode = module.Decoder(Any if value_type is None else value_type).decode
        self.contents: Contents | None = None
        """Contents of the topic, replaced as a whole when the topic is read again; None: not read yet."""
        self.problem: str | None = None
        """Reason why there are no contents; None: there is no problem."""

    def key_bytes(self, key: Any) -> bytes:
        """Encode a key of this table, as the records of its topic have it.

        Raises:
            TableError: the key is not of the table's `key_type`.
        """
        if self.key_type is bytes:
            return bytes(self._codec.check_key(key))
        if self.key_type is str:
            return str(self._codec.check_key(key)).encode()
        return self._codec.key_bytes(self._codec.check_key(key))

    def value_bytes(self, value: Any) -> bytes:
        """Return a program's value as the value bytes of the topic's records.

        Raises:
            TableError: the value has another type.
        """
        if self.value_type is bytes and isinstance(value, bytes):
            return value
        return self._codec.value_bytes(self._codec.keep(value))

    def _key(self, data: bytes) -> Any:
        if self.key_type is bytes:
            return data
        try:
            return data.decode() if self.key_type is str else self._codec.key(self._codec.kept_key(data))
        except (UnicodeDecodeError, msgspec.MsgspecError) as error:
            raise TableError(
                f"table {self.name}: topic {self.topic} has the key {data!r:.100}, which is not of type "
                f"{self.key_type}: {error}. Correct key_type, or remove the key from the topic"
            ) from None

    def _value(self, key: bytes, data: bytes) -> Any:
        if self.value_type is bytes:
            return data
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TableError(
                f"table {self.name}: the value of key {key!r:.100} in topic {self.topic} cannot be read: {error}. "
                "Write it again there, or change value_type or serializer"
            ) from None

    def _now(self) -> Contents:
        if self.contents is None:
            error = StateError(
                self.problem
                or f"table {self.name}: its topic has not been read here. Only an agent in a worker may read the table"
            )
            if (reader := AT_WORK.get()) is not None:
                reader.fail(error)
            raise error
        return self.contents

    def _find(self, key: Any) -> tuple[bytes, bytes | None]:
        contents, data = self._now(), self.key_bytes(key)
        if len(contents.partitions) == 1:
            return data, contents.partitions[0].get(data)
        found = {number: held[data] for number, held in enumerate(contents.partitions) if data in held}
        if len(found) > 1:
            raise TableError(
                f"table {self.name}: key {key!r:.100} is in partitions {', '.join(map(str, found))} of topic "
                f"{self.topic}, and Ratchet cannot tell which value is newer. Write a tombstone (the key without a "
                "value) to the partitions where the key does not belong"
            )
        return data, next(iter(found.values()), None)

    def __getitem__(self, key: Any) -> Any:
        data, value = self._find(key)
        if value is not None:
            return self._value(data, value)
        if self.default is None:
            raise KeyError(key)
        return self.default()

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or `default` if the table lacks the key."""
        data, value = self._find(key)
        return default if value is None else self._value(data, value)

    def __contains__(self, key: object) -> bool:
        return self._find(key)[1] is not None

    def __iter__(self) -> Iterator[Any]:
        """Yield the keys that the table has now; keys added later are left out."""
        return iter([self._key(data) for held in self._now().partitions for data in held])

    def __len__(self) -> int:
        """Return the number of keys, each counted in every partition that has it."""
        return sum(map(len, self._now().partitions))

    def _read_only(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TableError(
            f"table {self.name}: is read-only. Write to its topic {self.topic}, with `await topic.send(key=, value=)` "
            "or any producer"
        )

    __setitem__ = __delitem__ = pop = popitem = setdefault = update = clear = _read_only

    def parts(self) -> dict[int, tuple[ReadPartition, int]]:
        """Return each partition's contents and next offset to read; empty: no contents."""
        if self.contents is None:
            return {}
        codec = Codec(self.name, bytes, None, self.serializer)
        return {
            number: (ReadPartition(codec, held), self.contents.positions[number])
            for number, held in enumerate(self.contents.partitions)
        }

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"<GlobalTable {self.name}>"
