"""Brings the rows of a commit into a DuckDB table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.write_mode import COUNT_COLUMN, Shape
from kafka_ratchet.spark_sink.stores.duckdb.file import quoted

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def add(database: DuckDBPyConnection, table_name: str, shape: Shape, *, deletes: bool) -> None:
    """Bring the rows of the view `brought` into the table. All names are quoted, and there are no values in the SQL.

    Args:
        database: in the commit's transaction.
        table_name: the table.
        shape: what the rows do to it.
        deletes: the view has a column `DELETED`.
    """
    table = quoted(table_name)
    insert = f"INSERT INTO {table} BY NAME SELECT * FROM brought"  # noqa: S608
    if shape.kind == "append":
        database.execute(insert)
        return
    same = " AND ".join(f"held.{name} IS NOT DISTINCT FROM brought.{name}" for name in map(quoted, shape.key))
    if shape.kind == "upsert":
        database.execute(f"DELETE FROM {table} AS held USING brought WHERE {same}")  # noqa: S608
        kept = f"INSERT INTO {table} BY NAME SELECT * EXCLUDE ({DELETED}) FROM brought WHERE NOT {DELETED}"  # noqa: S608
        database.execute(kept if deletes else insert)
        return
    added = map(quoted, [COUNT_COLUMN, *shape.sums])
    changes = ", ".join(f"{name} = held.{name} + brought.{name}" for name in added)
    new = f"NOT EXISTS (SELECT 1 FROM {table} AS held WHERE {same})"  # noqa: S608
    database.execute(f"CREATE TEMP TABLE ratchet_new AS SELECT * FROM brought WHERE {new}")  # noqa: S608
    database.execute(f"UPDATE {table} AS held SET {changes} FROM brought WHERE {same}")  # noqa: S608
    database.execute(f"INSERT INTO {table} BY NAME SELECT * FROM ratchet_new")  # noqa: S608
    database.execute("DROP TABLE ratchet_new")
