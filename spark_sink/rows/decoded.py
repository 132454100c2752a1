"""Rows made from values that a task has decoded: Avro values, and values with a registry's schemas.

pyspark sends this module by value; executors need pyarrow and nothing of this package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

PARSED, NOT_PARSED, NO_VALUE = 0, 1, 2
"""States of a record's value: in the columns; kept whole, because the columns cannot hold the value; null, so that the
record is a tombstone."""

CHUNK_BYTES = 1024 * 1024
"""Bytes of values held as Python objects at one time. Each byte can become an object of some tens of bytes."""


def chunks(batch: Any) -> Iterator[Any]:
    """Split a batch into pieces of about `CHUNK_BYTES` of values, or of one larger value."""
    import pyarrow.compute as pc

    begin = gathered = 0
    for position, size in enumerate(pc.binary_length(batch.column(batch.num_columns - 1)).to_pylist()):
        if gathered and gathered + (size or 0) > CHUNK_BYTES:
            yield batch.slice(begin, position - begin)
            begin, gathered = position, 0
        gathered += size or 0
    if batch.num_rows > begin:
        yield batch.slice(begin)


def row_batch(
    chunk: Any,
    values: Sequence[bytes | None],
    events: Sequence[Mapping[str, Any] | None],
    fields: Sequence[str],
    keep_value: bool,
    schema: Any,
) -> Any:
    """Return the rows of a chunk of records as an Arrow batch.

    Args:
        chunk: records of the chunk; the first four columns are `RECORD_COLUMNS` without the value.
        values: the records' values, as bytes.
        events: decoded values; None for a missing or undecodable value.
        fields: names of the events' fields.
        keep_value: see `columns.rows`.
        schema: `pyarrow.Schema` of the rows: the fields, then `RECORD_COLUMNS` and `columns.STATE`.
    """
    import pyarrow as pa

    columns = [
        pa.array([None if event is None else event.get(name) for event in events], schema.field(position).type)
        for position, name in enumerate(fields)
    ]
    columns += [chunk.column(n).cast(schema.field(len(fields) + n).type) for n in range(4)]
    both = list(zip(values, events, strict=True))
    kept = [value if keep_value or event is None else None for value, event in both]
    columns.append(pa.array(kept, schema.field(len(fields) + 4).type))
    states = [NO_VALUE if value is None else NOT_PARSED if event is None else PARSED for value, event in both]
    columns.append(pa.array(states, schema.field(len(fields) + 5).type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
