"""Rows with a key go into an Iceberg table by writing it anew, in the snapshot that carries the offsets.

pyiceberg's own upsert fails where a key is null, and replaces rows only. So the driver merges in Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.write_mode import COUNT_COLUMN, WriteMode

if TYPE_CHECKING:
    import pyarrow as pa

WIDE_DIGITS = 39
"""Digits that a sum of two decimals of 38 may need; brought back to 38, one that is too large is an error."""


def merged(target: pa.Table, source: pa.Table, write_mode: WriteMode) -> pa.Table:
    """What the table has to be after a commit, in no order.

    Args:
        target: the table's rows, at most one per key.
        source: the commit's rows, at most one per key, in the same columns; a column `DELETED` behind them is true
            where the row of that key is to go.
        write_mode: with a key; null is a value like others.

    Raises:
        pyarrow.ArrowInvalid: a total does not fit its column.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    gone = source[DELETED] if DELETED in source.column_names else None
    both = pa.concat_tables([target, source.select(target.column_names)])
    names = [f"k{n}" for n in range(len(write_mode.key))]
    keys = pa.table([both[name] for name in write_mode.key], names).append_column("row", pa.array(range(len(both))))
    found = keys.group_by(names, use_threads=False).aggregate([("row", "min"), ("row", "max")])
    first, last = found["row_min"], found["row_max"]  # where they differ: the row of the target and that of the source
    result = both.take(last)
    if write_mode.kind == "upsert":
        if gone is None:
            return result
        kept = pa.chunked_array([pa.array([False] * len(target), pa.bool_()), *gone.chunks]).take(last)
        return result.filter(pc.invert(kept))
    alone = pc.equal(first, last)
    for name in (COUNT_COLUMN, *write_mode.sums):
        added = _sum(both[name].take(first), both[name].take(last))
        position = result.schema.get_field_index(name)
        column = pc.if_else(alone, result[name], added)
        result = result.set_column(position, result.schema.field(position), column)
    return result


def _sum(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_decimal(one.type):
        return pc.add_checked(one, other)
    wide = pa.decimal256(WIDE_DIGITS, one.type.scale)
    return pc.add(one.cast(wide), other.cast(wide)).cast(one.type)
