"""Files of an Iceberg table that a commit of rows with a key rewrites: small files, and files with one of the keys.

A file's entry in the snapshot states the least and greatest value of the first key column, and so excludes most files.
From the remaining files only the key columns are read, one file after the other. Whole rows are read only from the
files to rewrite.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.rows.columns import RECORD
from kafka_ratchet.spark_sink.stores.iceberg.files import rows_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.types import NestedField


FOLDED_BYTES = 512 * 1024
"""File size in bytes below which every commit rewrites the file: otherwise each commit would leave one more small
file."""

LEAST_BYTES = 8 * 1024 * 1024
"""Minimum bytes of rows, counted in memory, for one file; on disk they take about a quarter."""

MOST_BYTES = 128 * 1024 * 1024

FILES = 256
"""Approximate number of files in a table, as long as a file of that size is between `LEAST_BYTES` and `MOST_BYTES`. A
commit of one key then rewrites one of 256 parts of the table, and planning the commit is quick."""


GROUP_BYTES = 64 * 1024 * 1024
"""Maximum bytes on disk of the files that a merge holds in memory together. In memory they take about four times as
much. A larger file is a group of its own."""


def touched(table: Table, tasks: Sequence[FileScanTask], source: pa.Table, key: Sequence[str]) -> list[FileScanTask]:
    """Return the files that a merge rewrites: those with a key of `source`, and all small ones.

    Args:
        table: the table.
        tasks: the table's files at the version that the commit is based on.
        source: rows of the commit.
        key: names of the key columns; null counts as a value.
    """
    field = table.schema().find_field(key[0])
    values = sorted_values(source[key[0]])
    has_null = source[key[0]].null_count > 0
    return [
        task
        for task in tasks
        if task.file.file_size_in_bytes < FOLDED_BYTES
        or (_may_have(task.file, field, values, has_null) and _has(table, task, source.select(list(key))))
    ]


def groups(table: Table, tasks: Sequence[FileScanTask], key: Sequence[str]) -> list[list[FileScanTask]]:
    """Divide the files to rewrite into groups of `GROUP_BYTES`, ordered by first key.

    Args:
        table: the table.
        tasks: files as returned by `touched`.
        key: names of the key columns.
    """
    found: list[list[FileScanTask]] = [[]]
    taken = 0
    for task in _ordered(table, tasks, key[0]):
        size = task.file.file_size_in_bytes
        if found[-1] and taken + size > GROUP_BYTES:
            found.append([])
            taken = 0
        found[-1].append(task)
        taken += size
    return found


def _ordered(table: Table, tasks: Sequence[FileScanTask], name: str) -> list[FileScanTask]:
    """Sort files by the least value of a column, with small files last.

    New keys are added to the last file.
    """
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import PrimitiveType

    field = table.schema().find_field(name)
    least = [(task.file.lower_bounds or {}).get(field.field_id) for task in tasks]
    if any(each is None for each in least) or not isinstance(field.field_type, PrimitiveType):
        return sorted(tasks, key=lambda task: task.file.file_size_in_bytes < FOLDED_BYTES)
    kind = field.field_type
    numbered = [(from_bytes(kind, each), task) for each, task in zip(least, tasks, strict=True) if each is not None]
    numbered.sort(key=lambda pair: (pair[1].file.file_size_in_bytes < FOLDED_BYTES, pair[0]))
    return [task for _, task in numbered]


def may_have_records(table: Table, file: DataFile, first: Mapping[int, int], last: Mapping[int, int]) -> bool:
    """Return whether a file may have rows of a range of records, by its bounds.

    Args:
        table: the table.
        file: file of the table.
        first: first offset of the range in each partition.
        last: offset after the range in each partition.
    """
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import PrimitiveType

    bounds = list[list[Any]]()
    for name in RECORD:
        field = table.schema().find_field(name)
        kind = field.field_type
        least = (file.lower_bounds or {}).get(field.field_id)
        greatest = (file.upper_bounds or {}).get(field.field_id)
        if least is None or greatest is None or not isinstance(kind, PrimitiveType):
            return True
        bounds.append([from_bytes(kind, each) for each in (least, greatest)])
    (low, high), (begin, end) = bounds
    return any(low <= each <= high and begin < last[each] and end >= first[each] for each in last)


def without_records(
    batches: Iterable[pa.RecordBatch], first: Mapping[int, int], last: Mapping[int, int]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of records outside a range; see `may_have_records` for the range."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in batches:
        partition, offset = (batch.column(name) for name in RECORD)
        within = pa.array([False] * batch.num_rows, pa.bool_())
        for each in last:
            of_each = pc.and_(pc.greater_equal(offset, first[each]), pc.less(offset, last[each]))
            within = pc.or_(within, pc.fill_null(pc.and_(pc.equal(partition, each), of_each), False))
        yield batch.filter(pc.invert(within))


def sorted_values(column: pa.ChunkedArray) -> list[Any] | None:
    """Return the distinct values in order, without null; None: Iceberg's bounds of this type cannot be compared."""
    import pyarrow as pa

    comparable = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string)
    if not any(is_type(column.type) for is_type in comparable):
        return None
    return sorted(column.unique().drop_null().to_pylist())


def _may_have(file: DataFile, field: NestedField, values: list[Any] | None, has_null: bool) -> bool:
    """Return whether the file may contain one of the values, by its bounds."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import PrimitiveType

    least = (file.lower_bounds or {}).get(field.field_id)
    greatest = (file.upper_bounds or {}).get(field.field_id)
    if values is None or least is None or greatest is None or not isinstance(field.field_type, PrimitiveType):
        return True
    if has_null and (file.null_value_counts or {}).get(field.field_id) != 0:
        return True
    at = bisect_left(values, from_bytes(field.field_type, least))
    return bool(at < len(values) and values[at] <= from_bytes(field.field_type, greatest))


def _has(table: Table, task: FileScanTask, keys: pa.Table) -> bool:
    """Return whether the file contains a row with one of the keys."""
    import pyarrow as pa
    import pyarrow.compute as pc

    one_by_one = [(name, keys[name].unique()) for name in keys.column_names]
    for batch in rows_of(table, [task], keys.column_names):
        found = pa.Table.from_batches([batch]).select(keys.column_names)
        # null is found like any other value
        each = [pc.is_in(found[name], value_set=values) for name, values in one_by_one]
        found = found.filter(reduce(pc.and_, each))
        if len(found) and (len(one_by_one) == 1 or _share(found, keys)):
            return True
    return False


def _share(one: pa.Table, other: pa.Table) -> bool:
    """Return whether two tables have a row in common; unlike a join, this treats nulls as equal."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = [f"k{n}" for n in range(one.num_columns)]
    both = [
        each.rename_columns(names).append_column("side", pa.array([side] * len(each), pa.int8()))
        for side, each in enumerate((one, other.cast(one.schema)))
    ]
    sides = pa.concat_tables(both).group_by(names).aggregate([("side", "min"), ("side", "max")])
    return bool(pc.any(pc.not_equal(sides["side_min"], sides["side_max"])).as_py())


def parts(rows: pa.Table, key: Sequence[str], table_bytes: int) -> Iterator[pa.Table]:
    """Sort the rows by key, and yield the rows of one file at a time.

    Args:
        rows: rows to split.
        key: names of the key columns.
        table_bytes: size of all files of the table.
    """
    if not len(rows):
        return
    size = min(max(LEAST_BYTES, 4 * table_bytes // FILES), MOST_BYTES)
    count = max(1, -(-rows.nbytes // size))
    step = -(-len(rows) // count)
    ordered = rows.sort_by([(name, "ascending") for name in key])
    for begin in range(0, len(rows), step):
        yield ordered.slice(begin, step)
