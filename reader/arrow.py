"""Records as an Arrow batch.

Separate module: pyarrow is optional, and slow to import.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from kafka_ratchet.reader.event import NO_TIMESTAMP, Event

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)


def batch_of(events: Sequence[Event]) -> pa.RecordBatch:
    """Return the records as the batch of `Transaction.arrow`: a row for each event, in order."""
    keys, values, headers, times, partitions, offsets = zip(*events, strict=True) if events else ((),) * 6
    columns = [
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array([[{"key": name, "value": value} for name, value in each] for each in headers], SCHEMA.types[2]),
        pa.array([None if time == NO_TIMESTAMP else time for time in times], pa.int64()).cast(SCHEMA.types[3]),
        pa.array(partitions, pa.int32()),
        pa.array(offsets, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
