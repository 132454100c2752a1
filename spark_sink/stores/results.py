"""Reading a result table without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import OptionRefused, StoreError
from kafka_ratchet.spark_sink.stores.delta.store import open_table, table_folder
from kafka_ratchet.spark_sink.stores.duckdb.store import read_duckdb
from kafka_ratchet.spark_sink.stores.iceberg.store import read_iceberg
from kafka_ratchet.spark_sink.stores.open_store import Place
from kafka_ratchet.spark_sink.stores.postgres.store import read_postgres

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable


def count(path: str) -> int:
    """Rows in the result table.

    Raises:
        StoreError: there is no table at `path`, or it cannot be read.
    """
    return delta_table(path).count()


def read_totals(path: str, group_by: str, sums: list[str]) -> dict[str, dict[str, int]]:
    """Sum integer columns per value of a text column.

    Args:
        path: folder of the table.
        group_by: name of the column that groups; rows without a value in it come under "".
        sums: names of the columns to add up; a missing value counts as 0.

    Returns:
        For each group, in its order, each column's sum.

    Raises:
        OptionRefused: the table has no such column.
        StoreError: there is no table at `path`, or it cannot be read.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    table = delta_table(path)
    names = [field.name for field in table.schema().fields]
    for column in [group_by, *sums]:
        if column not in names:
            raise OptionRefused(f"{path}: the table has no column {column!r} (it has: {', '.join(names)})")
    rows = table.to_pyarrow_dataset().to_table(columns=list(dict.fromkeys([group_by, *sums])))
    keys = pc.fill_null(rows[group_by].cast(pa.string()), "")
    totals = rows.set_column(rows.schema.get_field_index(group_by), group_by, keys)
    grouped = totals.group_by(group_by).aggregate([(column, "sum") for column in sums]).sort_by(group_by)
    return {row[group_by]: {column: int(row[f"{column}_sum"] or 0) for column in sums} for row in grouped.to_pylist()}


def read_rows(place: Place, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Those columns of a result table of any kind, in no order.

    Raises:
        SinkError: there is no such table, or it cannot be read.
    """
    if place.kind == "delta":
        return _tuples(
            delta_table(place.path, place.storage_options).to_pyarrow_dataset().to_table(columns=list(columns))
        )
    if place.kind == "duckdb":
        return read_duckdb(place.path, place.table, columns)
    if place.kind == "iceberg":
        return _tuples(read_iceberg(place.path, place.table, columns, place.storage_options, place.catalog))
    return read_postgres(place.url, place.password, place.table, columns)


def _tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def delta_table(path: str, storage_options: Mapping[str, str] | None = None) -> DeltaTable:
    """The Delta table of a result; raises StoreError where there is none."""
    table = open_table(table_folder(path, storage_options))
    if table is None:
        raise StoreError(f"{path}: there is no result table. Run the sink first, or check the path")
    return table
