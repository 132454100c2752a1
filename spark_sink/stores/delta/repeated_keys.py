"""Check before a merge by delta-rs that the table has at most one row of each key in the commit.

delta-rs changes each matching row. If a key had two rows, the key's new records would count twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import refuse_several_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable


LEAST_ROWS = 256 * 1024
"""Minimum number of the table's rows to search together: each search makes a hash table of the commit's keys."""


def require_one_row(table: DeltaTable, keys: pa.Table, where: object) -> None:
    """Refuse a commit with a key of several rows in the table.

    Only the key columns are read, by DataFusion, as in the merge itself.

    Args:
        table: the table at the version that the merge is based on.
        keys: key columns of the commit's rows; each key occurs once.
        where: the table, as messages name it.

    Raises:
        StoreError: the table has such a key.
        DeltaError: the table cannot be read.
    """
    import pyarrow as pa
    from deltalake import QueryBuilder
    from deltalake.exceptions import DeltaError

    names = ", ".join('"' + name.replace('"', '""') + '"' for name in keys.column_names)
    try:
        found = QueryBuilder().register("target", table).execute(f"SELECT {names} FROM target")  # noqa: S608
        has_several = _has_several(pa.RecordBatchReader.from_stream(found), keys)
    except pa.ArrowException as error:  # that of DataFusion, for a file that cannot be read
        raise DeltaError(str(error)) from None
    if has_several:
        refuse_several_rows(where, keys.column_names)


def _has_several(batches: Iterable[pa.RecordBatch], keys: pa.Table) -> bool:
    """Return whether some batches have several rows of a key; null equals null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def plain(rows: pa.Table) -> pa.Table:
        """Replace -0.0 by 0.0 in the rows, because the two are equal to delta-rs."""
        columns = [pc.add(each, 0.0) if pa.types.is_floating(each.type) else each for each in rows.columns]
        return pa.table(columns, rows.column_names)

    keys = plain(keys)
    names = [f"k{n}" for n in range(keys.num_columns)]
    one_by_one = [column.unique() for column in keys.columns]

    def marked(rows: pa.Table, count: int, *, is_given: bool) -> pa.Table:
        each = {"rows": pa.repeat(pa.scalar(count, pa.int64()), len(rows)), "given": pa.repeat(is_given, len(rows))}
        return pa.table(dict(zip(names, rows.columns, strict=True)) | each)

    counts = marked(keys, 0, is_given=True)
    for part in _parts(batches, max(LEAST_ROWS, 4 * len(keys))):
        rows = plain(part.cast(keys.schema))
        each = [pc.is_in(rows[n], value_set=values) for n, values in enumerate(one_by_one)]
        rows = rows.filter(reduce(pc.and_, each))
        if not len(rows):
            continue
        found = pa.concat_tables([counts, marked(rows, 1, is_given=False)]).group_by(names)
        found = found.aggregate([("rows", "sum"), ("given", "max")]).rename_columns([*names, "rows", "given"])
        counts = found.filter(found["given"])
        if pc.any(pc.greater(counts["rows"], 1)).as_py():
            return True
    return False


def _parts(batches: Iterable[pa.RecordBatch], least: int) -> Iterator[pa.Table]:
    """Join batches to tables of at least `least` rows; the last table may be smaller."""
    import pyarrow as pa

    waiting, taken = list[pa.RecordBatch](), 0
    for batch in batches:
        waiting.append(batch)
        taken += batch.num_rows
        if taken >= least:
            yield pa.Table.from_batches(waiting)
            waiting, taken = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)
