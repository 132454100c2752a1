"""What only a database server can do to a job: sessions that hang, rights that are missing, a restart."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from faults.postgres import PostgresServer
from kafka_ratchet.spark_sink.errors import Fenced, OptionRefused, RowsLost, SchemaDiffers, StoreError
from kafka_ratchet.spark_sink.rows.columns import record_schema
from kafka_ratchet.spark_sink.rows.judging.rule import JudgeRule
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.decision import decide
from kafka_ratchet.spark_sink.stores.postgres.tasks import commit_partitions, textual
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import PostgresSite, PostgresTasksSite, postgres_store

pytestmark = pytest.mark.postgres

SCHEMA = "_partition int, _offset long, who string, amount long"


@pytest.fixture
def place(postgres: PostgresServer, request: pytest.FixtureRequest) -> PostgresSite:
    return PostgresSite(postgres, f"schema of {request.node.name[-40:]}")


@pytest.fixture
def schema(spark: SparkSession) -> StructType:
    return struct_of(SCHEMA)


@pytest.fixture
def frame(spark: SparkSession) -> Callable[..., DataFrame]:
    return lambda *rows: spark.createDataFrame(list(rows), SCHEMA)


def test_a_frozen_holder_is_ended_by_its_successor(
    place: PostgresSite, schema: StructType, frame: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    older = place.make()
    older.open(schema)
    application = older._state.application(1)  # type: ignore[attr-defined]
    # As a task that was stopped amid its COPY: it holds the generation and rows of its own, and says nothing.
    with psycopg.connect(
        place.server.url, password=place.server.password, application_name=application
    ) as frozen, psycopg.connect(place.server.url, password=place.server.password) as other:  # fmt: skip
        jobs = sql.Identifier(place.schema, "ratchet_sink_jobs")
        frozen.execute(sql.SQL("SELECT 1 FROM {} FOR UPDATE").format(jobs))
        other.execute("SELECT 1")
        newer = place.make()
        assert newer.open(schema) == {}
        assert newer.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1}) == 1
        with pytest.raises(psycopg.errors.AdminShutdown):
            frozen.execute("SELECT 1")
        other.execute("SELECT 1")  # sessions of others go on
    with pytest.raises(Fenced):
        older.commit(frame((0, 0, "older", 1)), {0: 0}, {0: 1})


def test_a_take_over_is_not_kept_out_by_a_stranger_for_ever(
    place: PostgresSite, schema: StructType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_ratchet.spark_sink.stores.postgres.job_state.LOCK_TIMEOUT_MS", 200)
    place.make().open(schema)
    with psycopg.connect(place.server.url, password=place.server.password) as stranger:
        jobs = sql.Identifier(place.schema, "ratchet_sink_jobs")
        stranger.execute(sql.SQL("SELECT 1 FROM {} FOR UPDATE").format(jobs))
        with pytest.raises(StoreError, match="lock timeout"):
            place.make().open(schema)


def test_a_task_that_runs_twice_adds_its_rows_once(
    postgres: PostgresServer, schema: StructType, frame: Callable[..., DataFrame]
) -> None:
    place = PostgresTasksSite(postgres, "schema of retries")
    store: Any = place.make()
    store.open(schema)
    copy = store._copy(store._result, [column.name for column in store._columns])
    with store._state.database() as database:
        table = store._state.marks.number(database, store._result)
    for _ in range(2):
        rows = textual(frame((4, 0, "a", 1), (4, 1, "b", 1)))
        connection, statements = store._state.connection(1), store._state.task_statements(store._result, copy)
        assert commit_partitions(rows, connection, statements, 1, table, 0, {4: 0}, {4: 2}) == {4: 2}
    assert sorted(row["who"] for row in place.rows()) == ["a", "b"]
    assert store.offsets() == {4: 2}
    with pytest.raises(Exception, match="more than one Kafka partition"):
        store.commit(frame((4, 2, "c", 1), (5, 0, "d", 1)), {4: 2, 5: 0}, {4: 3, 5: 1})
    assert store.offsets() == {4: 2}


def test_nothing_staged_is_left_by_a_successor(
    place: PostgresSite, schema: StructType, frame: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = place.make()
    store.open(schema)

    def fail(point: str) -> None:
        if point == "before-commit":
            raise RuntimeError("the driver is gone")

    with monkeypatch.context() as patch:
        patch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", fail)
        with pytest.raises(RuntimeError, match="the driver is gone"):
            store.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1})
    assert _staging_tables(place) == 1
    successor = place.make()
    successor.open(schema)
    assert _staging_tables(place) == 0
    successor.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1})
    assert _staging_tables(place) == 0


def _staging_tables(place: PostgresSite) -> int:
    with place.connect() as database:
        found = database.execute(
            "SELECT 1 FROM pg_tables WHERE schemaname = %s AND starts_with(tablename, 'ratchet_stage_')", [place.schema]
        )
        return len(found.fetchall())


def test_a_crash_and_a_restart_of_the_server_keep_what_was_committed(
    place: PostgresSite, schema: StructType, frame: Callable[..., DataFrame]
) -> None:
    store = place.make()
    store.open(schema)
    store.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1})
    place.server.crash()
    try:
        with pytest.raises(StoreError, match="connection"):
            store.commit(frame((0, 1, "b", 1)), {0: 1}, {0: 2})
    finally:
        place.server.start()
    assert store.commit(frame((0, 1, "b", 1)), {0: 1}, {0: 2}) == 1  # no connection is kept that could be broken
    assert sorted(row["who"] for row in place.rows()) == ["a", "b"]


def test_missing_rights_are_named_and_no_password_is(place: PostgresSite, schema: StructType) -> None:
    with pytest.raises(StoreError, match="authentication failed") as refused:
        postgres_store(place.server.url, "results", "job", "events", password="wrong-s3cret").open(schema)  # noqa: S106
    assert "s3cret" not in str(refused.value)
    with pytest.raises(StoreError, match='schema "no such" does not exist'):
        postgres_store(place.server.url, "no such.t", "job", "events", password=place.server.password).open(schema)


@pytest.mark.parametrize(
    ("url", "table"),
    [
        ("postgresql://someone:s3cret@[::1", "results"),
        ("nonsense s3cret", "results"),
        ("", "results"),
        ("dbname=x", "a.b.c"),
        ("dbname=x", ""),
        ("dbname=x", "per%cent"),
        ("dbname=x", "x" * 64),
        ("dbname=x", "x" * 56),  # with _rejects behind it, it would be cut off
    ],
)
def test_addresses_and_names_that_cannot_be_used(url: str, table: str) -> None:
    with pytest.raises(OptionRefused) as refused:
        postgres_store(url, table, "job", "events")
    assert "s3cret" not in str(refused.value)


def test_one_table_has_one_name(postgres: PostgresServer, schema: StructType) -> None:
    """Offsets are kept by the name that the settings say: by another one of the same table all would be read again."""
    table = "one_table_has_one_name"
    first = postgres_store(postgres.url, table, "job", "events", password=postgres.password)
    first.open(schema)
    other = postgres_store(postgres.url, f"public.{table}", "job", "events", password=postgres.password)
    for ask in (other.require_write_mode, lambda: other.open(schema)):
        with pytest.raises(StoreError, match=f"is the one that is known here as {table}"):
            ask()
    first.require_write_mode()
    beside = PostgresSite(postgres, "schema of another name").make()
    beside.open(schema)
    postgres_store(postgres.url, f"{table}_2", "job", "events", password=postgres.password).open(schema)


def test_a_table_that_was_renamed_is_not_a_new_one(place: PostgresSite) -> None:
    store = place.make()
    store.open(record_schema())
    store.reset_offsets({0: 1}, decide("latest", "as if it had committed so far"))
    with place.connect() as database:
        table = sql.Identifier(place.schema, place.table)
        database.execute(sql.SQL("INSERT INTO {} VALUES (0, 0, now(), NULL, NULL)").format(table))
        database.execute(sql.SQL("ALTER TABLE {} RENAME TO clicks").format(table))
    url, password = place.server.url, place.server.password
    renamed = postgres_store(url, f"{place.schema}.clicks", "job", "events", password=password)
    for ask in (renamed.require_write_mode, lambda: renamed.open(record_schema())):
        with pytest.raises(StoreError, match=r"clicks has rows, .* is gone"):
            ask()
    postgres_store(url, f"{place.schema}.empty", "job", "events", password=password).open(record_schema())


def test_a_second_job_over_a_table_is_not_refused_for_another_table_that_is_gone(place: PostgresSite) -> None:
    url, password = place.server.url, place.server.password
    first = postgres_store(url, f"{place.schema}.first", "job", "events", password=password)
    for store in (first, place.make()):
        store.open(record_schema())
        store.reset_offsets({0: 1}, decide("latest", "as if it had committed so far"))
    with place.connect() as database:
        database.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(place.schema, "first")))
        table = sql.Identifier(place.schema, place.table)
        database.execute(sql.SQL("INSERT INTO {} VALUES (0, 0, now(), NULL, NULL)").format(table))
    other = postgres_store(url, f"{place.schema}.{place.table}", "other", "events", password=password)
    other.require_write_mode()
    assert other.other_jobs() == ["job"]  # who starts it is asked about that
    assert other.open(record_schema()) == {}


@pytest.mark.parametrize("in_tasks", [True, False])
def test_a_table_in_partitions_takes_rows(
    place: PostgresSite, schema: StructType, frame: Callable[..., DataFrame], in_tasks: bool
) -> None:
    place.in_tasks = in_tasks
    place.make().open(schema)
    parts = {"table": sql.Identifier(place.schema, place.table), "plain": sql.Identifier(place.schema, "plain")}
    with place.connect() as database:
        for statement in (
            "ALTER TABLE {table} RENAME TO plain",
            "CREATE TABLE {table} (LIKE {plain}) PARTITION BY LIST (_partition)",
            "CREATE TABLE {part} PARTITION OF {table} DEFAULT",
        ):
            made = sql.SQL(statement).format(**parts, part=sql.Identifier(place.schema, "part"))
            database.execute(made)
    holder = place.make()
    holder.open(schema)
    holder.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1})
    holder.commit(frame((0, 1, "b", 2)), {0: 1}, {0: 2})
    assert len(place.rows()) == 2
    assert place.make().offsets() == {0: 2}


def test_a_table_that_is_emptied_behind_the_tasks_of_its_first_commit_is_noticed(
    place: PostgresSite, schema: StructType, frame: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    place.in_tasks = True
    holder = place.make()
    holder.open(schema)

    def empty(point: str) -> None:
        if point == "before-commit":
            with place.connect() as database:
                database.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(place.schema, place.table)))

    monkeypatch.setattr(crash_points, "passing", empty)
    with pytest.raises(RowsLost, match="emptied"):
        holder.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1})
    monkeypatch.undo()
    for use in (place.make().offsets, lambda: place.make().open(schema)):
        with pytest.raises(RowsLost, match="emptied"):
            use()


def test_tasks_take_last_sequences_from_no_server_that_only_follows(postgres: PostgresServer) -> None:
    """A url may name several servers. One that follows the first may not have the last commit yet."""
    rule = WriteMode(judged=JudgeRule("events"))
    store: Any = postgres_store(postgres.url, "no_follower", "job", "events", 7, rule, password=postgres.password)
    store.open(record_schema())
    assert list(store.known_sequences()(0, [b"a"])) == []
    with psycopg.connect(postgres.url, password=postgres.password, autocommit=True) as database:
        name = sql.Identifier(database.info.dbname)
        database.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
        try:
            with pytest.raises(psycopg.OperationalError, match="read-only"):
                list(store.known_sequences()(0, [b"a"]))
        finally:
            database.execute(sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(name))
    assert list(store.known_sequences()(0, [b"a"])) == []


@pytest.mark.parametrize("in_tasks", [True, False])
def test_times_are_moments_whatever_zone_the_servers_sessions_are_in(
    place: PostgresSite, spark: SparkSession, in_tasks: bool
) -> None:
    # initdb writes the zone of its machine into the server's configuration; a role, a database or a url may say one.
    url = f"{place.server.url}?options=-c%20TimeZone%3DAmerica/New_York"
    columns = "_partition int, _offset long, at timestamp, plain timestamp_ntz, day date"
    at = datetime.datetime(2026, 7, 1, 22, 30, 0, 123456, datetime.UTC)
    store = postgres_store(
        url, f"{place.schema}.{place.table}", "job", "events", password=place.server.password, in_tasks=in_tasks
    )
    store.open(struct_of(columns))
    brought = spark.createDataFrame([(0, 0, at, at.replace(tzinfo=None), at.date())], columns)
    assert store.commit(brought, {0: 0}, {0: 1}) == 1
    [row] = place.rows()
    assert (row["at"], row["plain"], row["day"]) == (at, at.replace(tzinfo=None), at.date())


@pytest.mark.parametrize("in_tasks", [True, False])
def test_a_table_that_is_emptied_while_a_commit_is_on_its_way_takes_no_row_and_no_offset(
    place: PostgresSite,
    schema: StructType,
    frame: Callable[..., DataFrame],
    monkeypatch: pytest.MonkeyPatch,
    in_tasks: bool,
) -> None:
    place.in_tasks = in_tasks
    holder = place.make()
    holder.open(schema)
    holder.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1})

    def empty(point: str) -> None:
        if point == "before-write":
            with place.connect() as database:
                database.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(place.schema, place.table)))

    monkeypatch.setattr(crash_points, "passing", empty)
    with pytest.raises((RowsLost, StoreError, PySparkException)):
        holder.commit(frame((0, 1, "b", 2)), {0: 1}, {0: 2})
    monkeypatch.undo()
    assert place.rows() == []
    for use in (place.make().offsets, lambda: holder.commit(frame((0, 1, "b", 2)), {0: 1}, {0: 2})):
        with pytest.raises(RowsLost, match="emptied"):
            use()


def test_staged_rows_that_are_gone_move_no_offset(
    place: PostgresSite, schema: StructType, frame: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Staging tables are unlogged: behind a pooler that keeps the job's connection, they are empty after a crash.
    holder = place.make()
    holder.open(schema)

    def crash(point: str) -> None:
        if point == "before-commit":
            with place.connect() as database:
                [found] = database.execute(
                    "SELECT relname FROM pg_class WHERE relkind = 'r' AND starts_with(relname, 'ratchet_stage_') "
                    "AND relnamespace::regnamespace = quote_ident(%s)::regnamespace",
                    (place.schema,),
                ).fetchall()
                table = sql.Identifier(place.schema, found["relname"])
                database.execute(sql.SQL("TRUNCATE {}").format(table))

    monkeypatch.setattr(crash_points, "passing", crash)
    with pytest.raises(StoreError, match="0 of 2 rows"):
        holder.commit(frame((0, 0, "a", 1), (0, 1, "b", 2)), {0: 0}, {0: 2})
    monkeypatch.undo()
    assert place.make().offsets() == {}
    assert holder.commit(frame((0, 0, "a", 1), (0, 1, "b", 2)), {0: 0}, {0: 2}) == 2


@pytest.mark.parametrize("in_tasks", [True, False])
def test_a_column_whose_type_somebody_changes_is_named_and_no_value_is_rounded(
    place: PostgresSite, spark: SparkSession, in_tasks: bool
) -> None:
    place.in_tasks = in_tasks
    columns = "_partition int, _offset long, amount decimal(12,2)"
    holder = place.make()
    holder.open(struct_of(columns))

    def commit(at: int) -> int:
        brought = spark.createDataFrame([(0, at, decimal.Decimal("1.55"))], columns)
        return holder.commit(brought, {0: at}, {0: at + 1})

    def alter(kind: str) -> None:
        with place.connect() as database:
            table = sql.Identifier(place.schema, place.table)
            database.execute(sql.SQL(f"ALTER TABLE {{}} ALTER amount TYPE {kind}").format(table))

    commit(0)
    alter("numeric(14,4)")  # as another job's `evolve` makes it: each value is one of it
    commit(1)
    alter("numeric(12,1)")
    with pytest.raises(SchemaDiffers, match=r"amount .* is numeric\(12,1\) in the table and numeric\(12,2\)"):
        commit(2)
    assert place.make().offsets() == {0: 2}
    assert len(place.rows()) == 2


def test_a_table_that_was_moved_to_another_schema_is_not_a_new_one(place: PostgresSite, schema: StructType) -> None:
    holder = place.make()
    holder.open(schema)
    holder.reset_offsets({0: 1}, decide("latest", "a row was read"))
    with place.connect() as database:
        results = sql.Identifier(place.schema, place.table)
        database.execute(sql.SQL("INSERT INTO {} VALUES (0, 0, 'a', 1)").format(results))
        database.execute("CREATE SCHEMA moved")
        database.execute(sql.SQL("ALTER TABLE {} SET SCHEMA moved").format(results))
    there = postgres_store(place.server.url, f"moved.{place.table}", "job", "events", password=place.server.password)
    for use in (there.require_write_mode, lambda: there.open(schema)):
        with pytest.raises(StoreError, match="which has offsets of topic events, is gone"):
            use()


def test_times_within_objects_keep_their_microseconds(place: PostgresSite, spark: SparkSession) -> None:
    columns = "_partition int, _offset long, seen struct<at: timestamp, all: array<timestamp_ntz>>"
    at = datetime.datetime(2026, 7, 1, 22, 30, 0, 123456, datetime.UTC)
    store = place.make()
    store.open(struct_of(columns))
    store.commit(spark.createDataFrame([(0, 0, (at, [at.replace(tzinfo=None)]))], columns), {0: 0}, {0: 1})
    [row] = place.rows()
    assert row["seen"] == {"at": "2026-07-01T22:30:00.123456Z", "all": ["2026-07-01T22:30:00.123456"]}
