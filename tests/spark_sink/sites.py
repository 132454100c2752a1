"""Every kind of result store, made, read and disturbed the same way."""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, cast

import duckdb
import psycopg
import pymysql
import pytest
import sqlalchemy.exc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from psycopg import sql
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql.types import StructType

from faults.mariadb import MariadbServer
from faults.postgres import PostgresServer
from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.rows.write_mode import APPEND, WriteMode
from kafka_ratchet.spark_sink.stores.delta.store import DeltaStore
from kafka_ratchet.spark_sink.stores.duckdb.store import DuckDBStore
from kafka_ratchet.spark_sink.stores.iceberg.store import IcebergStore
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.mysql.connection import literal, quoted
from kafka_ratchet.spark_sink.stores.mysql.store import MysqlStore
from kafka_ratchet.spark_sink.stores.open_store import reader, rejects_location
from kafka_ratchet.spark_sink.stores.pair import NumberedStore, PairedStore
from kafka_ratchet.spark_sink.stores.postgres.store import PostgresStore
from kafka_ratchet.spark_sink.stores.registry import store_class
from kafka_ratchet.spark_sink.stores.store import ResultStore
from tests.spark_sink.stores.folder_store import FolderStore, Version

Rows = list[dict[str, Any]]


def delta_store(
    path: str,
    name: str,
    topic: str,
    topic_id: int = 0,
    write_mode: WriteMode = APPEND,
    *,
    storage_options: Mapping[str, str] | None = None,
) -> DeltaStore:
    location = TableLocation("delta", path, storage_options=storage_options or {})
    return DeltaStore(location, name, topic, topic_id, write_mode)


def duckdb_store(
    path: str, table: str, name: str, topic: str, topic_id: int = 0, write_mode: WriteMode = APPEND,
    *, rejects: StructType | None = None
) -> DuckDBStore:  # fmt: skip
    return DuckDBStore(TableLocation("duckdb", path, table), name, topic, topic_id, write_mode, rejects=rejects)


def iceberg_store(
    path: str,
    table: str,
    name: str,
    topic: str,
    topic_id: int = 0,
    write_mode: WriteMode = APPEND,
    *,
    storage_options: Mapping[str, str] | None = None,
    catalog: Mapping[str, str] | None = None,
) -> IcebergStore:
    location = TableLocation("iceberg", path, table, storage_options=storage_options or {}, catalog=catalog or {})
    return IcebergStore(location, name, topic, topic_id, write_mode)


def postgres_store(
    url: str,
    table: str,
    name: str,
    topic: str,
    topic_id: int = 0,
    write_mode: WriteMode = APPEND,
    *,
    rejects: StructType | None = None,
    password: str | None = None,
    in_tasks: bool = False,
) -> PostgresStore:
    location = TableLocation("postgres", "", table, url, password)
    return PostgresStore(location, name, topic, topic_id, write_mode, rejects=rejects, in_tasks=in_tasks)


class Site:
    """One result table of one kind that does not exist yet; its name is one that careless code gets wrong."""

    kinds = frozenset({"append", "upsert", "totals"})
    rejects = True
    holds_infinity = True
    keeps_first_offsets = True
    fenced_at = "before-commit"
    """Where a take-over finds the holder at work: everything is written, and nothing is visible."""
    committing: tuple[str, Exception]
    """The store's own step that commits, and an error that may come back from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def location(self) -> TableLocation:
        """The same for whoever has settings only."""
        raise NotImplementedError

    def make(
        self,
        name: str = "job",
        topic: str = "events",
        topic_id: int = 0,
        write_mode: WriteMode = APPEND,
        rejects: StructType | None = None,
    ) -> ResultStore:
        raise NotImplementedError

    def rows(self, rejects: bool = False) -> Rows:
        """What a reader of the table sees."""
        raise NotImplementedError


class DeltaSite(Site):
    committing = ("_write", DeltaError("the answer was lost"))

    @property
    def path(self) -> str:
        return str(self.folder / "results of Zoë; $(id) #1")

    @property
    def location(self) -> TableLocation:
        return TableLocation("delta", self.path)

    def make(self, name: str = "job", topic: str = "events", topic_id: int = 0, write_mode: WriteMode = APPEND,
             rejects: StructType | None = None) -> ResultStore:  # fmt: skip
        rows = delta_store(self.path, name, topic, topic_id, write_mode)
        if rejects is None:
            return rows
        return PairedStore(rows, delta_store(f"{self.path}_rejects", name, topic, topic_id), rejects)

    def rows(self, rejects: bool = False) -> Rows:
        found: Rows = (
            DeltaTable(self.path + ("_rejects" if rejects else "")).to_pyarrow_dataset().to_table().to_pylist()
        )
        return found


class IcebergSite(Site):
    committing = ("_write", sqlalchemy.exc.OperationalError("UPDATE", {}, sqlite3.OperationalError("disk I/O error")))

    @property
    def path(self) -> Path:
        return self.folder / "results of Zoë $(id)"

    @property
    def location(self) -> TableLocation:
        return TableLocation("iceberg", str(self.path), "results")

    def make(self, name: str = "job", topic: str = "events", topic_id: int = 0, write_mode: WriteMode = APPEND,
             rejects: StructType | None = None) -> ResultStore:  # fmt: skip
        rows: Any = iceberg_store(str(self.path), "results", name, topic, topic_id, write_mode)
        if rejects is None:
            return cast("ResultStore", rows)
        rejected: Any = iceberg_store(str(self.path), "results_rejects", name, topic, topic_id)
        return PairedStore(rows, rejected, rejects)

    def rows(self, rejects: bool = False) -> Rows:
        catalog = SqlCatalog("ratchet", uri=f"sqlite:///{self.path / 'catalog.db'}", warehouse=f"file://{self.path}")
        try:
            found: Rows = (
                catalog.load_table("ratchet.results" + ("_rejects" if rejects else "")).scan().to_arrow().to_pylist()
            )
            return found
        finally:
            catalog.close()


class DuckDBSite(Site):
    committing = ("_in_transaction", StoreError("could not sync the file"))
    table = 'results of Zoë"; DROP TABLE x'

    @property
    def path(self) -> str:
        return str(self.folder / "results of Zoë; [a-z]* #1.duckdb")

    @property
    def location(self) -> TableLocation:
        return TableLocation("duckdb", self.path, self.table)

    def make(self, name: str = "job", topic: str = "events", topic_id: int = 0, write_mode: WriteMode = APPEND,
             rejects: StructType | None = None) -> ResultStore:  # fmt: skip
        return duckdb_store(self.path, self.table, name, topic, topic_id, write_mode, rejects=rejects)

    def rows(self, rejects: bool = False) -> Rows:
        table = self.table + ("_rejects" if rejects else "")
        with duckdb.connect(self.path, read_only=True) as database:
            found: Rows = database.table('"' + table.replace('"', '""') + '"').to_arrow_table().to_pylist()
            return found


class PostgresSite(Site):
    in_tasks = False
    committing: tuple[str, Exception] = ("_in_transaction", StoreError("the connection was lost"))

    def __init__(self, server: PostgresServer, schema: str) -> None:
        self.server, self.schema = server, schema
        self.table = 'results of Zoë"; --'
        with self.connect() as database:
            database.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))

    @property
    def location(self) -> TableLocation:
        return TableLocation("postgres", "", f"{self.schema}.{self.table}", self.server.url, self.server.password)

    def connect(self) -> psycopg.Connection[dict[str, Any]]:
        address = self.server.url
        return psycopg.connect(
            address, password=self.server.password, autocommit=True, row_factory=psycopg.rows.dict_row
        )

    def make(self, name: str = "job", topic: str = "events", topic_id: int = 0, write_mode: WriteMode = APPEND,
             rejects: StructType | None = None) -> ResultStore:  # fmt: skip
        return postgres_store(
            self.server.url,
            f"{self.schema}.{self.table}",
            name,
            topic,
            topic_id,
            write_mode,
            rejects=rejects,
            password=self.server.password,
            in_tasks=self.in_tasks,
        )

    def rows(self, rejects: bool = False) -> Rows:
        table = sql.Identifier(self.schema, self.table + ("_rejects" if rejects else ""))
        with self.connect() as database:
            database.execute("SET TIME ZONE 'UTC'")
            found = database.execute(sql.SQL("SELECT * FROM {}").format(table)).fetchall()
        return [{column: _utc(value) for column, value in row.items()} for row in found]


class PostgresTasksSite(PostgresSite):
    kinds = frozenset({"append"})
    rejects = False
    in_tasks = True
    fenced_at = "before-write"  # later, each partition's rows are visible already, with their offset
    committing = ("_commit_in_tasks", psycopg.OperationalError("the connection was lost"))


class MysqlSite(Site):
    """A table of a database of its own on the tests' MariaDB, whose defaults are none that the store could use."""

    committing = ("_in_transaction", StoreError("the connection was lost"))
    holds_infinity = False
    table = "results of Zoë`\"; -- '{%s}"

    def __init__(self, server: MariadbServer, database: str) -> None:
        self.server, self.database = server, database
        with self.connect() as cursor:
            cursor.execute(f"CREATE DATABASE {quoted(database)}")

    @property
    def location(self) -> TableLocation:
        return TableLocation("mysql", "", f"{self.database}.{self.table}", self.server.url, self.server.password)

    @contextmanager
    def connect(self) -> Iterator[pymysql.cursors.DictCursor]:
        with closing(
            pymysql.connect(
                host="127.0.0.1",
                port=self.server.port,
                user=self.server.user,
                password=self.server.password,
                charset="utf8mb4",
                autocommit=True,
                sql_mode="STRICT_ALL_TABLES",
                cursorclass=pymysql.cursors.DictCursor,
            )
        ) as connection:
            yield connection.cursor()

    def name(self, ending: str = "") -> str:
        return quoted(self.database, self.table + ending)

    def make(self, name: str = "job", topic: str = "events", topic_id: int = 0, write_mode: WriteMode = APPEND,
             rejects: StructType | None = None) -> MysqlStore:  # fmt: skip
        return MysqlStore(self.location, name, topic, topic_id, write_mode, rejects=rejects)

    def rows(self, rejects: bool = False) -> Rows:
        table = self.table + ("_rejects" if rejects else "")
        with self.connect() as cursor:
            cursor.execute(f"SELECT * FROM {quoted(self.database, table)}")  # noqa: S608
            found = list(cursor.fetchall())
            cursor.execute(
                "SELECT COLUMN_NAME, COLUMN_TYPE, COLUMN_COMMENT FROM information_schema.COLUMNS "  # noqa: S608
                f"WHERE TABLE_SCHEMA = {literal(self.database)} AND TABLE_NAME = {literal(table)}"
            )
            said = {row["COLUMN_NAME"]: row["COLUMN_COMMENT"] or row["COLUMN_TYPE"] for row in cursor.fetchall()}
        return [{name: _as_said(value, said[name]) for name, value in row.items()} for row in found]


def _as_said(value: Any, of_column: str) -> Any:
    if value is None:
        return None
    if of_column == "JSON":
        return json.loads(value)
    if of_column == "UTC":
        return value.replace(tzinfo=datetime.UTC)
    return bool(value) if of_column == "tinyint(1)" else value


class FolderSite(Site):
    """The store of the tests; see `stores/folder_store.py`. Whoever uses it registers it first."""

    keeps_first_offsets = False
    committing = ("_write", OSError("the disk is full"))

    @property
    def location(self) -> TableLocation:
        return TableLocation("folder", str(self.folder / "results of Zoë"), "results")

    def make(self, name: str = "job", topic: str = "events", topic_id: int = 0, write_mode: WriteMode = APPEND,
             rejects: StructType | None = None) -> ResultStore:  # fmt: skip
        rows = store_class("folder")(self.location, name, topic, topic_id, write_mode)
        if rejects is None:
            return rows
        beside = store_class("folder")(rejects_location(self.location), name, topic, topic_id)
        return PairedStore(cast(NumberedStore, rows), cast(NumberedStore, beside), rejects)

    def rows(self, rejects: bool = False) -> Rows:
        found: Rows = folder_version(self.location, rejects).rows().to_pylist()
        return found


def folder_version(location: TableLocation, rejects: bool = False) -> Version:
    store = cast(FolderStore, reader(rejects_location(location) if rejects else location))
    return store._for_reading()


def _utc(value: object) -> object:
    return value.astimezone(datetime.UTC) if isinstance(value, datetime.datetime) and value.tzinfo else value


Make = Callable[[Path], Site]
LOCAL: dict[str, Make] = {"delta": DeltaSite, "duckdb": DuckDBSite, "iceberg": IcebergSite}
SERVED = {"postgres": PostgresSite, "postgres-tasks": PostgresTasksSite}

BY_DEFAULT: Final = ("delta",)
"""Kinds that the default tests run on, beyond the heart of the suite, which they run on every kind."""


def param(kind: str, *more: object, by_default: bool = True, tier: pytest.MarkDecorator = pytest.mark.matrix) -> Any:
    """Return a kind of store, and further values, with their marks.

    by_default: whether the default tests run it; otherwise those of `tier` do.
    """
    marks = [pytest.mark.postgres] if kind in SERVED else []
    return pytest.param(kind, *more, marks=marks if by_default else [*marks, tier])


def params(*kinds: str, by_default: Collection[str] = BY_DEFAULT) -> list[Any]:
    """Return kinds of stores with their marks."""
    return [param(kind, by_default=kind in by_default) for kind in kinds]


ON_MARIADB: Final = "mysql"
"""The heart of the suite runs on it with `stores/test_mysql_store.py`, all of it with `-m long`."""
IN_A_BUCKET: Final = "delta-s3"
OF_THE_TESTS: Final = "folder"
AT_LENGTH: Final = [pytest.param(kind, marks=pytest.mark.long) for kind in (ON_MARIADB, IN_A_BUCKET, OF_THE_TESTS)]
