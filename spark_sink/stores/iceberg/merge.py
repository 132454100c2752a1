"""Merge of rows with a key into an Iceberg table: files are rewritten in the snapshot that stores the offsets.

pyiceberg's own upsert fails if a key is null, and can only replace rows. So the driver merges them in Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import refuse_several_rows
from kafka_ratchet.spark_sink.rows.aggregates import ADDED, ENDINGS, Aggregate
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.distinct import HASHES, SCALE
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode

if TYPE_CHECKING:
    import pyarrow as pa

WIDE_DIGITS = 39
"""Digits of an intermediate sum of two decimals with 38 digits. The sum is cast back to 38 digits; a larger sum is an
error."""


def merged(target: pa.Table, source: pa.Table, write_mode: WriteMode, where: object) -> pa.Table:
    """Merge new rows with the table's rows, and return the result in any order.

    Args:
        target: rows of the files to rewrite. Rows with keys that `source` lacks stay, however many a key has.
        source: rows of the commit, at most one per key; columns of the table that `source` lacks keep their values.
            True in a column `DELETED` removes the row with that key.
        write_mode: upsert or totals, with its key; null counts as a value.
        where: the table, as messages name it.

    Raises:
        StoreError: `target` has several rows of a key of `source`.
        pyarrow.ArrowInvalid: a total does not fit its column.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(source):
        return target
    foreign = [field for field in target.schema if field.name not in source.column_names]
    given = source
    for field in foreign:
        given = given.append_column(field, pa.nulls(len(source), field.type))
    both = pa.concat_tables([target, given.select(target.column_names)])
    names = [f"k{n}" for n in range(len(write_mode.row_key))]
    keys = pa.table([both[name] for name in write_mode.row_key], names).append_column("row", pa.array(range(len(both))))
    found = keys.group_by(names, use_threads=False).aggregate([("row", each) for each in ("min", "max", "list")])
    is_given = pc.greater_equal(found["row_max"], len(target))
    untouched, found = found.filter(pc.invert(is_given)), found.filter(is_given)
    if pc.any(pc.greater(pc.list_value_length(found["row_list"]), 2)).as_py():
        refuse_several_rows(where, write_mode.row_key)
    first, last = found["row_min"], found["row_max"]  # where they differ: the row of the target and that of the source
    result = both.take(last)
    for field in foreign:  # other jobs' columns keep their values
        result = result.set_column(result.schema.get_field_index(field.name), field, both[field.name].take(first))
    if write_mode.kind == "totals":
        result = _with_totals(result, both, first, last, write_mode)
    elif DELETED in source.column_names:
        result = result.filter(pc.invert(source[DELETED].take(pc.subtract(last, len(target)))))
    return pa.concat_tables([both.take(pc.list_flatten(untouched["row_list"])), result])


def _with_totals(
    rows: pa.Table, both: pa.Table, first: pa.ChunkedArray, last: pa.ChunkedArray, write_mode: WriteMode
) -> pa.Table:
    """Replace a commit's totals by the totals after the commit.

    Args:
        rows: new row of each key.
        both: rows of the table, then those of the commit.
        first: index in `both` of each key's row in the table, or of the key's new row if the table has none.
        last: index in `both` of each key's new row.
        write_mode: the totals.
    """
    import pyarrow.compute as pc

    alone = pc.equal(first, last)
    for each in write_mode.aggregates:
        position = rows.schema.get_field_index(each.name)
        if each.rule == "average":
            new = _average(rows[each.of], rows[each.of + ENDINGS["filled"]])
        elif each.rule == "distinct":
            new = _estimate(rows[each.of + ENDINGS["hashes"]])
        else:
            new = _merged_column(each, both[each.name].take(first), both[each.name].take(last))
        column = pc.if_else(alone, rows[each.name], new)
        rows = rows.set_column(position, rows.schema.field(position), column)
    return rows


def split(source: pa.Table, target: pa.Table, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Split new rows into rows with a key in the table, and all other new rows. Null equals null.

    Args:
        source: new rows, at most one per key.
        target: rows of the table.
        key: names of the key columns.
    """
    import numpy as np
    import pyarrow as pa

    names = [f"k{n}" for n in range(len(key))]
    both = pa.concat_tables([target.select(list(key)), source.select(list(key)).cast(target.select(list(key)).schema)])
    keys = both.rename_columns(names).append_column("row", pa.array(range(len(both)), pa.int64()))
    found = keys.group_by(names, use_threads=False).aggregate([("row", "min"), ("row", "max")])
    first, last = (found[f"row_{each}"].to_numpy() for each in ("min", "max"))
    is_old = np.zeros(len(source), np.bool_)
    is_old[last[(first < len(target)) & (last >= len(target))] - len(target)] = True
    return source.filter(pa.array(is_old)), source.filter(pa.array(~is_old))


def _merged_column(aggregate: Aggregate, target: pa.ChunkedArray, source: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the combined values of an aggregate's column, by the rule in `rows.aggregates`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if aggregate.rule in ADDED:
        return _sum(target, source)
    if aggregate.rule == "hashes":
        return _smallest(target, source)
    below, than = (source, target) if aggregate.rule == "least" else (target, source)
    is_below = pc.less(below, than)
    if pa.types.is_floating(source.type):  # to Arrow, NaN is neither below nor above; to Spark it is above all
        is_below = pc.or_(is_below, pc.and_(pc.is_nan(than), pc.invert(pc.is_nan(below))))
    is_new = pc.or_(pc.is_null(target), pc.fill_null(is_below, False))
    return pc.if_else(is_new, source, target)


def _average(total: pa.ChunkedArray, count: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    some = pc.if_else(pc.greater(count, 0), count, pa.scalar(None, count.type))
    return pc.divide(total.cast(pa.float64()), some.cast(pa.float64()))


def _smallest(target: pa.ChunkedArray, source: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return for each row the smallest distinct hashes of two lists, at most `HASHES`."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    lists = [_list(column) for column in (target, source)]
    rows = np.concatenate([pc.list_parent_indices(each).to_numpy() for each in lists])
    hashes = np.concatenate([pc.list_flatten(each).to_numpy() for each in lists])
    order = np.lexsort((hashes, rows))
    rows, hashes = rows[order], hashes[order]
    is_new = np.ones(len(rows), np.bool_)
    is_new[1:] = (rows[1:] != rows[:-1]) | (hashes[1:] != hashes[:-1])
    rows, hashes = rows[is_new], hashes[is_new]
    sizes = np.bincount(rows, minlength=len(target))
    ranks = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    ends = np.concatenate([[0], np.cumsum(np.minimum(sizes, HASHES))])
    merged_lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(hashes[ranks < HASHES], pa.int64()))
    return pa.chunked_array([merged_lists.cast(source.type)])


def _estimate(hashes: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the estimated number of distinct values for each row's hashes, see `rows.distinct`."""
    import numpy as np
    import pyarrow as pa

    lists = _list(hashes)
    starts = lists.offsets.to_numpy()
    found = np.diff(starts).astype(np.int64)
    full = found >= HASHES
    last = lists.values.to_numpy()[starts[:-1][full] + HASHES - 1]
    found[full] = np.floor(SCALE / last.astype(np.float64)).astype(np.int64)
    return pa.chunked_array([pa.array(found)])


def _list(column: pa.ChunkedArray) -> pa.ListArray:
    import pyarrow as pa

    return pa.chunked_array(column.chunks, column.type).cast(pa.list_(pa.int64())).combine_chunks()


def _sum(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_decimal(one.type):
        return pc.add_checked(one, other)
    wide = pa.decimal256(WIDE_DIGITS, one.type.scale)
    return pc.add(one.cast(wide), other.cast(wide)).cast(one.type)
