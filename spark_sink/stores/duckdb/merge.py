"""Brings the rows of a commit into a DuckDB table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.distinct import HASHES
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.duckdb.file import quoted
from kafka_ratchet.spark_sink.stores.merge_sql import PlainDialect, changes

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class _Dialect(PlainDialect):
    union = f"list_sort(list_distinct(list_concat({{target}}, {{source}})))[1:{HASHES}]"
    size = "len({hashes})"
    last = f"({{hashes}})[{HASHES}]"


def add(database: DuckDBPyConnection, table_name: str, write_mode: WriteMode, *, deletes: bool) -> None:
    """Bring the rows of the view `source` into the table. All names are quoted, and there are no values in the SQL.

    Args:
        database: in the commit's transaction.
        table_name: the table.
        write_mode: what the rows do to it.
        deletes: the view has a column `DELETED`.
    """
    table = quoted(table_name)
    insert = f"INSERT INTO {table} BY NAME SELECT * FROM source"  # noqa: S608
    if write_mode.kind == "append":
        database.execute(insert)
        return
    same = " AND ".join(f"target.{name} IS NOT DISTINCT FROM source.{name}" for name in map(quoted, write_mode.row_key))
    if write_mode.kind == "upsert":
        database.execute(f"DELETE FROM {table} AS target USING source WHERE {same}")  # noqa: S608
        kept = f"INSERT INTO {table} BY NAME SELECT * EXCLUDE ({DELETED}) FROM source WHERE NOT {DELETED}"  # noqa: S608
        database.execute(kept if deletes else insert)
        return
    new_values = ", ".join(f"{quoted(name)} = {value}" for name, value in changes(write_mode, _Dialect()).items())
    new = f"NOT EXISTS (SELECT 1 FROM {table} AS target WHERE {same})"  # noqa: S608
    database.execute(f"CREATE TEMP TABLE ratchet_new AS SELECT * FROM source WHERE {new}")  # noqa: S608
    database.execute(f"UPDATE {table} AS target SET {new_values} FROM source WHERE {same}")  # noqa: S608
    database.execute(f"INSERT INTO {table} BY NAME SELECT * FROM ratchet_new")  # noqa: S608
    database.execute("DROP TABLE ratchet_new")
