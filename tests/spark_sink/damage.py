"""Changing a result table behind the job's back, as a person with a console can."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.schema import Field, PrimitiveType
from psycopg import sql
from pyiceberg.table import Table
from pyiceberg.types import StringType

from kafka_ratchet.spark_sink.stores.iceberg.catalog import IcebergCatalog
from kafka_ratchet.spark_sink.stores.mysql.connection import quoted
from tests.spark_sink.sites import (
    DeltaSite,
    DuckDBSite,
    FolderSite,
    IcebergSite,
    MysqlSite,
    PostgresSite,
    Site,
    folder_version,
)
from tests.spark_sink.stores.folder_store import Version


def delete(site: Site, condition: str, *, rejects: bool = False) -> None:
    """Remove the rows of an SQL condition."""
    ending = "_rejects" if rejects else ""
    if isinstance(site, DeltaSite):
        DeltaTable(site.path + ending).delete(condition)
    elif isinstance(site, IcebergSite):
        _iceberg(site, ending).delete(condition)
    elif isinstance(site, FolderSite):
        version = folder_version(site.location, rejects)
        rows = version.rows()
        kept = duckdb.arrow(rows).filter(f"NOT ({condition})").to_arrow_table().cast(rows.schema)
        _write(site, ending, version, kept, kept.num_rows)
    else:
        _execute(site, [f"DELETE FROM {{table}} WHERE {condition}"], ending)  # noqa: S608


def repeat(site: Site, partition: int, offset: int, moved_to: int | None = None, *, rejects: bool = False) -> None:
    """Add a copy of a row; moved_to: under another offset."""
    condition, ending = f"_kafka_partition = {partition} AND _kafka_offset = {offset}", "_rejects" if rejects else ""
    new = offset if moved_to is None else moved_to
    if isinstance(site, DeltaSite):
        rows = DeltaTable(site.path + ending).to_pyarrow_table()
        write_deltalake(site.path + ending, _moved(rows, partition, offset, new), mode="append")
    elif isinstance(site, IcebergSite):
        table = _iceberg(site, ending)
        table.append(_moved(table.scan().to_arrow(), partition, offset, new))
    elif isinstance(site, FolderSite):
        version = folder_version(site.location, rejects)
        more = pa.concat_tables([version.rows(), _moved(version.rows(), partition, offset, new)])
        _write(site, ending, version, more, more.num_rows)
    else:
        copied = f"CREATE TEMP TABLE copied AS SELECT * FROM {{table}} WHERE {condition}"  # noqa: S608
        moved, added = f"UPDATE copied SET _kafka_offset = {new}", "INSERT INTO {table} SELECT * FROM copied"  # noqa: S608
        _execute(site, [copied, moved, added], ending)


def repeat_all(site: Site, condition: str, *, rejects: bool = False) -> None:
    """Add a copy of each row of an SQL condition."""
    ending = "_rejects" if rejects else ""
    if isinstance(site, DeltaSite):
        rows = DeltaTable(site.path + ending).to_pyarrow_table()
        more = duckdb.arrow(rows).filter(condition).to_arrow_table().cast(rows.schema)
        write_deltalake(site.path + ending, more, mode="append")
    elif isinstance(site, IcebergSite):
        table = _iceberg(site, ending)
        rows = table.scan().to_arrow()
        table.append(duckdb.arrow(rows).filter(condition).to_arrow_table().cast(rows.schema))
    else:
        _execute(site, [f"INSERT INTO {{table}} SELECT * FROM {{table}} WHERE {condition}"], ending)  # noqa: S608


def change(site: Site, assignment: str, condition: str) -> None:
    """Update rows, by SQL."""
    if isinstance(site, DeltaSite):
        name, value = assignment.split(" = ")
        DeltaTable(site.path).update(updates={name: value}, predicate=condition)
    elif isinstance(site, IcebergSite):
        table = _iceberg(site)
        name, value = assignment.split(" = ")
        rows = table.scan().to_arrow()
        found = duckdb.arrow(rows).filter(condition).project(f"* REPLACE ({value} AS {name})")
        table.overwrite(found.to_arrow_table().cast(rows.schema), condition)
    else:
        _execute(site, [f"UPDATE {{table}} SET {assignment} WHERE {condition}"])  # noqa: S608


def _write(site: FolderSite, ending: str, version: Version, rows: pa.Table, count: int) -> None:
    version.keep(rows)
    file = Path(site.location.path, site.location.table + ending, str(version.number), "table.json")
    file.write_text(json.dumps({**version.state, "count": count}), "utf-8")


def _moved(table: pa.Table, partition: int, offset: int, new: int) -> pa.Table:
    found = table.filter((pc.field("_kafka_partition") == partition) & (pc.field("_kafka_offset") == offset))
    at = found.schema.get_field_index("_kafka_offset")
    return found.set_column(at, found.schema.field(at), pa.array([new] * found.num_rows, pa.int64()))


def _iceberg(site: IcebergSite, ending: str = "") -> Table:
    # Its connections end with each call; the tables of this file are never closed.
    return IcebergCatalog(str(site.path), {}, {}).connect().load_table(f"ratchet.results{ending}")


def _execute(site: Site, texts: list[str], ending: str = "") -> None:
    if isinstance(site, DuckDBSite):
        name = '"' + (site.table + ending).replace('"', '""') + '"'
        with duckdb.connect(site.path) as database:
            for text in texts:
                database.execute(text.replace("{table}", name))
    elif isinstance(site, MysqlSite):
        with site.connect() as cursor:
            cursor.execute(f"USE {quoted(site.database)}")
            for text in texts:
                cursor.execute(text.replace("TEMP TABLE", "TEMPORARY TABLE").replace("{table}", site.name(ending)))
    else:
        assert isinstance(site, PostgresSite)
        table = sql.Identifier(site.schema, site.table + ending)
        with site.connect() as connection, connection.transaction():
            for text in texts:
                connection.execute(sql.SQL(text).format(table=table))
            connection.execute("DROP TABLE IF EXISTS copied")


def moment(site: Site) -> int:
    """What the table is now, for `put_back`."""
    if isinstance(site, DeltaSite):
        return DeltaTable(site.path).version()
    if isinstance(site, IcebergSite):
        snapshot = _iceberg(site).current_snapshot()
        return 0 if snapshot is None else snapshot.snapshot_id
    return 0


def put_back(site: Site, then: int, *, rejects: bool = False) -> None:
    """Rows go back to that moment, and offsets do not; databases, which have no such thing, lose all rows."""
    ending = "_rejects" if rejects else ""
    if isinstance(site, DeltaSite):
        DeltaTable(site.path + ending).restore(then)
    elif isinstance(site, FolderSite):
        version = folder_version(site.location, rejects)
        _write(site, ending, version, version.rows().slice(0, 0), version.state["count"])
    elif isinstance(site, IcebergSite):
        _iceberg(site, ending).manage_snapshots().rollback_to_snapshot(then).commit()
    else:
        _execute(site, ["TRUNCATE TABLE {table}"], ending)


def add_column(site: Site) -> None:
    """Add the column `more`, which may be null, as another writer of the table does."""
    if isinstance(site, DeltaSite):
        DeltaTable(site.path).alter.add_columns([Field("more", PrimitiveType("string"))])
    elif isinstance(site, IcebergSite):
        with _iceberg(site).update_schema() as update:
            update.add_column("more", StringType())
    else:
        _execute(site, ["ALTER TABLE {table} ADD COLUMN more VARCHAR(20)"])
