"""Columns of records: keys, headers, and fields of values, for many records at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from kafka_ratchet.app.compare.columns import ValueLocation
from kafka_ratchet.topic_log.reading import readable_headers

if TYPE_CHECKING:
    from confluent_kafka import Message

    from kafka_ratchet.transport.batch.record_batch import RecordBatch

UNREADABLE: Final = object()
"""Marker in place of a value that is not in the topic's format."""

Decode = Callable[[bytes | None], Any]
"""Decoder of a value's bytes into an object with the fields; it returns `UNREADABLE` for other bytes."""


class Records(Protocol):
    """Interface of a group of records, to read them as columns."""

    def keys(self) -> list[bytes | None]:
        """Return the key of each record."""

    def values(self) -> list[bytes | None]:
        """Return the value of each record."""

    def header(self, name: str) -> list[bytes | None]:
        """Return each record's last header of that name; None without it."""

    def partitions(self) -> list[int]:
        """Return the partition of each record."""

    def offsets(self) -> list[int]:
        """Return the offset of each record."""

    def times(self) -> list[int]:
        """Return the timestamp of each record in ms; negative without one."""

    def tombstones(self) -> int:
        """Return the number of records without a value."""


class Messages:
    """Records read by librdkafka."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    def keys(self) -> list[bytes | None]:
        """Return the key of each record."""
        return [each.key() for each in self._messages]

    def values(self) -> list[bytes | None]:
        """Return the value of each record."""
        return [each.value() for each in self._messages]

    def header(self, name: str) -> list[bytes | None]:
        """Return each record's last header of that name; None without it."""
        return [
            next((value for key, value in reversed(readable_headers(each)) if key == name), None)
            for each in self._messages
        ]

    def partitions(self) -> list[int]:
        """Return the partition of each record."""
        return [each.partition() for each in self._messages]

    def offsets(self) -> list[int]:
        """Return the offset of each record."""
        return [each.offset() for each in self._messages]

    def times(self) -> list[int]:
        """Return the timestamp of each record in ms; negative without one."""
        return [ms if kind else -1 for kind, ms in (each.timestamp() for each in self._messages)]

    def tombstones(self) -> int:
        """Return the number of records without a value."""
        return sum(each.value() is None for each in self._messages)


class BatchRecords:
    """Records of a batch that the worker's client has read."""

    def __init__(self, batch: RecordBatch) -> None:
        self._batch = batch
        self._bytes = batch.data.tobytes()

    def _cut(self, starts: list[int], lengths: list[int]) -> list[bytes | None]:
        data = self._bytes
        return [data[at : at + size] if size >= 0 else None for at, size in zip(starts, lengths, strict=True)]

    def keys(self) -> list[bytes | None]:
        """Return the key of each record."""
        from kafka_ratchet.transport.batch.kernels import KEY, KEY_LENGTH

        return self._cut(self._batch.columns[KEY].tolist(), self._batch.columns[KEY_LENGTH].tolist())

    def values(self) -> list[bytes | None]:
        """Return the value of each record."""
        from kafka_ratchet.transport.batch.kernels import VALUE, VALUE_LENGTH

        return self._cut(self._batch.columns[VALUE].tolist(), self._batch.columns[VALUE_LENGTH].tolist())

    def header(self, name: str) -> list[bytes | None]:
        """Return each record's last header of that name; None without it."""
        import numpy as np

        from kafka_ratchet.agents.kernels import find_header

        batch = self._batch
        starts, lengths, times = (np.empty(batch.count, np.int64) for _ in range(3))
        find_header(batch.data, batch.columns, np.frombuffer(name.encode(), np.uint8), starts, lengths, times)
        return self._cut(starts.tolist(), lengths.tolist())

    def partitions(self) -> list[int]:
        """Return the partition of each record."""
        return [self._batch.partition] * self._batch.count

    def offsets(self) -> list[int]:
        """Return the offset of each record."""
        return list(self._batch.offsets.tolist())

    def times(self) -> list[int]:
        """Return the timestamp of each record in ms; negative without one."""
        return list(self._batch.timestamps.tolist())

    def tombstones(self) -> int:
        """Return the number of records without a value."""
        from kafka_ratchet.transport.batch.kernels import VALUE_LENGTH

        return int((self._batch.columns[VALUE_LENGTH] < 0).sum())


class ColumnsReader:
    """Reader that makes one column of values for each place in a record.

    Args:
        places: places of the values in a record.
        decode: decoder of values; None: JSON.
    """

    def __init__(self, places: Sequence[ValueLocation], decode: Decode | None) -> None:
        self._places, self._decode = places, decode or from_json
        paths = [place.path for place in places if place.kind == "field"]
        self._fields = None
        if paths:
            self._fields = _json_fields(paths) if decode is None else _decoded_fields(paths, decode)
        self.unreadable: list[int] = []
        """Indexes of the records without fields in their value, in the last call of `read`."""
        self.present: set[int] = set()
        """Indexes of the places that any record has, even with null there."""

    def read(self, records: Records) -> list[list[Any]]:
        """Return one column for each place."""
        values = records.values() if self._fields is not None else []
        columns, self.unreadable = self._fields(values) if self._fields is not None else ([], [])
        found = iter(columns)
        read = [next(found) if place.kind == "field" else _of_record(records, place) for place in self._places]
        for number, (place, column) in enumerate(zip(self._places, read, strict=True)):
            if number not in self.present and (
                any(value is not None for value in column)
                or (place.kind == "field" and any(has(self._decode(value), place.path) for value in values))
            ):
                self.present.add(number)
        return read


def _of_record(records: Records, place: ValueLocation) -> list[Any]:
    if place.kind == "header":
        return records.header(place.name)
    if place.kind == "timestamp":
        return [None if ms < 0 else ms for ms in records.times()]
    by_kind: Mapping[str, Callable[[], list[Any]]] = {
        "key": records.keys,
        "value": records.values,
        "partition": records.partitions,
        "offset": records.offsets,
    }
    return by_kind[place.kind]()


Fields = Callable[[Sequence[bytes | None]], tuple[list[list[Any]], list[int]]]
"""Function that reads values.

It returns a column for each path, with null for a missing value; and the indexes of the values without fields.
"""


def _decoded_fields(paths: Sequence[tuple[str, ...]], decode: Decode) -> Fields:
    def read(values: Sequence[bytes | None]) -> tuple[list[list[Any]], list[int]]:
        found = [decode(value) for value in values]
        without = [
            number
            for number, (value, each) in enumerate(zip(values, found, strict=True))
            if value is not None and not isinstance(each, Mapping)
        ]
        return [[at(each, path) for each in found] for path in paths], without

    return read


def _json_fields(paths: Sequence[tuple[str, ...]]) -> Fields:
    """Return a reader of only the requested fields of JSON objects."""
    firsts = list(dict.fromkeys(path[0] for path in paths if path))
    slots = {first: f"f{number}" for number, first in enumerate(firsts)}
    shape = msgspec.defstruct(
        "Fields",
        [(slot, Any, None) for slot in slots.values()],
        rename={slot: name for name, slot in slots.items()},
        gc=False,
    )
    decode = msgspec.json.Decoder(shape, float_hook=Decimal).decode
    wanted = [(slots[path[0]], path[1:]) for path in paths]
    nothing, unreadable = shape(), shape()

    def read(values: Sequence[bytes | None]) -> tuple[list[list[Any]], list[int]]:
        without: list[int] = []
        try:
            found = list(map(decode, values))  # type: ignore[arg-type] # a null value raises TypeError
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):
            found = [singly(value) for value in values]
            without = [number for number, each in enumerate(found) if each is unreadable]
        columns = []
        for slot, rest in wanted:
            column = list(map(attrgetter(slot), found))
            columns.append([at(each, rest) for each in column] if rest else column)
        return columns, without

    def singly(value: bytes | None) -> Any:
        """Decode a JSON value.

        A slower parser takes values that msgspec refuses, such as a lone surrogate.
        """
        if value is None:
            return nothing
        try:
            return decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = from_json(value)
            return shape(*(found.get(first) for first in firsts)) if isinstance(found, Mapping) else unreadable

    return read


def from_json(value: bytes | None) -> Any:
    """Parse JSON with Python's parser, which accepts more than msgspec; return `UNREADABLE` for other values."""
    if value is None:
        return UNREADABLE
    try:
        return json.loads(value, parse_float=Decimal)
    except (ValueError, RecursionError):
        return UNREADABLE


def at(value: Any, path: Sequence[str]) -> Any:
    """Return the value at a path of nested objects; None if the path does not exist."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def has(value: Any, path: Sequence[str]) -> bool:
    """Return True if a path of nested objects exists, even if its value is null."""
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    return True
