"""Decoding of a registry's values in the executors, by the schema that each value names.

pyspark sends this module by value, so executors need not have this package. They need pyarrow, and the package
jsonschema for values with a JSON Schema.
No executor makes requests to the registry: the task contains the plans of all schemas that the records name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from kafka_ratchet.spark_sink.rows.decoded import chunks, row_batch

Key = bytes
"""Key of a schema: the magic byte 0 and an id of four bytes, or the magic byte 1 and a GUID of sixteen."""

Decode = Callable[[bytes, int], Any]
"""Function from a value and the start of its payload to a dictionary of columns. None: the bytes are malformed, or more
bytes follow the payload."""

KEY_BYTES = {0: 5, 1: 17}
"""Length of a key by its magic byte."""

MAX_INDEXES = 64
"""Maximum length of a list of message indexes, which is the depth of nested messages."""


def key_of(frame: bytes) -> Key | None:
    """Return the schema key at the beginning of a value; None: the value has no such key."""
    size = KEY_BYTES.get(frame[0]) if frame else None
    return frame[:size] if size is not None and len(frame) >= size else None


def indexes_of(frame: bytes, at: int) -> tuple[tuple[int, ...] | None, int]:
    """Return Protobuf's list of message indexes (None: the bytes are no such list), and the position after the list."""
    found: list[int] = []
    count, at = _zigzag(frame, at)
    if count == 0:
        return (0,), at
    if not 0 < count <= MAX_INDEXES:
        return None, at
    for _ in range(count):
        index, at = _zigzag(frame, at)
        found.append(index)
    return tuple(found), at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            return -1, len(data) + 1
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at
        shift += 7


def keys(batches: Iterable[Any]) -> Iterator[Any]:
    """Count how many values name each schema; runs as a Spark task.

    The batches' only column has the first bytes of the values. Each schema key is returned once with its count; null
    counts values without a key.
    """
    import pyarrow as pa

    seen: dict[Any, int] = {}
    for batch in batches:
        for each in batch.column(0).value_counts().to_pylist():
            key = key_of(each["values"] or b"")
            seen[key] = seen.get(key, 0) + each["counts"]
    columns = [pa.array(list(seen), pa.binary()), pa.array(list(seen.values()), pa.int64())]
    yield pa.RecordBatch.from_arrays(columns, schema=pa.schema([("key", pa.binary()), ("seen", pa.int64())]))


def decoding(
    decode: Callable[[Any, int], Decode],
    plans: Mapping[Any, Any],
    restricted_values: int,
    protobuf: bool,
    fields: list[str],
    keep_value: bool,
    schema: Any,
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a task that turns records into rows, as `avro.task.decoding` does.

    Args:
        decode: function that makes the decoder of a plan, once for each task.
        plans: plans by key; for Protobuf by key and message indexes.
        restricted_values: see `ResultStore.restricted_values`.
        protobuf: True if Protobuf's message indexes follow the key.
        fields: names of the columns that a decoder returns.
        keep_value: see `columns.rows`.
        schema: `pyarrow.Schema` of the rows: the fields, then `RECORD_COLUMNS` and `columns.STATE`.

    Returns:
        A function over Arrow batches. The columns of a batch are first the record's columns without its value, then
        `header` (the record's header that names a schema, or null), then the value.
    """

    def rows(batches: Iterable[Any]) -> Iterator[Any]:
        known = {key: decode(plan, restricted_values) for key, plan in plans.items()}
        for batch in batches:
            for chunk in chunks(batch):
                headers, values = chunk.column(4).to_pylist(), chunk.column(5).to_pylist()
                events = [
                    None if value is None else decoded(header, value, known, protobuf)
                    for header, value in zip(headers, values, strict=True)
                ]
                yield row_batch(chunk, values, events, fields, keep_value, schema)

    return rows


def decoded(header: bytes | None, value: bytes, known: Mapping[Any, Decode], protobuf: bool) -> Any:
    """Decode a value; a header that names a schema takes precedence over the value's first bytes."""
    frame = value if header is None else header
    key: Any = key_of(frame)
    if key is None:
        return None
    end = len(key)
    if protobuf:
        indexes, end = indexes_of(frame, end)
        key = (key, indexes)
    decode = known.get(key)
    return None if decode is None or end > len(frame) else decode(value, end if header is None else 0)


def payloads(
    validators: Callable[[Any], Mapping[Any, Callable[[bytes], bool]]],
    schemas: Any,
    schema: Any,
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a task that extracts JSON payloads after the schema's key; an invalid payload becomes null.

    Args:
        validators: function that makes the validators from `schemas`, once for each task; a validator returns True if a
            payload fits its schema.
        schemas: see `json_task.validators`.
        schema: `pyarrow.Schema` of the result, with the payload as its last column.
    """

    def payload_of(header: bytes | None, value: bytes | None, known: Mapping[Any, Callable[[bytes], bool]]) -> Any:
        if value is None:
            return None
        key = key_of(value if header is None else header)
        if key is None or key not in known:
            return None
        payload = value[len(key) :] if header is None else value
        return payload if known[key](payload) else None

    def rows(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        known = validators(schemas)
        for batch in batches:
            for chunk in chunks(batch):
                pairs = zip(chunk.column(4).to_pylist(), chunk.column(5).to_pylist(), strict=True)
                found = [payload_of(header, value, known) for header, value in pairs]
                columns = [*chunk.columns, pa.array(found, pa.binary())]
                columns = [each.cast(field.type) for each, field in zip(columns, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return rows
