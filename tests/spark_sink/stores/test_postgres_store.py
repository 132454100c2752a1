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
from pyspark.sql.types import StringType, StructField, StructType

from faults.postgres import PostgresServer
from kafka_ratchet.spark_sink.errors import Fenced, OptionRefused, RowsLost, RuleBroken, SchemaDiffers, StoreError
from kafka_ratchet.spark_sink.rows.columns import DELETED, record_schema
from kafka_ratchet.spark_sink.rows.judging.rule import JudgeRule
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.decision import decide
from kafka_ratchet.spark_sink.stores.postgres.job_state import RULE_BROKEN
from kafka_ratchet.spark_sink.stores.postgres.tasks import commit_partitions, textual
from kafka_ratchet.spark_sink.stores.postgres.types import column_types
from kafka_ratchet.spark_sink.stores.stored_write_mode import write_mode_text
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import PostgresSite, PostgresTasksSite, postgres_store

pytestmark = pytest.mark.postgres

PLAIN = StructType([StructField("who", StringType())])
SCHEMA = "_kafka_partition int, _kafka_offset long, who string, amount long"


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
        write_mode = write_mode_text(store._write_mode)
        connection = store._state.connection(1)
        statements = store._state.task_statements(store._result, copy, write_mode)
        assert commit_partitions(rows, connection, statements, 1, table, 0, {4: 0}, {4: 2}) == {4: 2}
    assert sorted(row["who"] for row in place.rows()) == ["a", "b"]
    assert store.offsets() == {4: 2}
    with pytest.raises(Exception, match="more than one Kafka partition"):
        store.commit(frame((4, 2, "c", 1), (5, 0, "d", 1)), {4: 2, 5: 0}, {4: 3, 5: 1})
    assert store.offsets() == {4: 2}


@pytest.mark.parametrize("mode", ["append", "upsert", "tasks"])
def test_rows_that_a_trigger_takes_away_are_an_error_that_names_it(
    postgres: PostgresServer, schema: StructType, frame: Callable[..., DataFrame], mode: str
) -> None:
    name = f"schema of a trigger {mode}"
    place: Any = PostgresTasksSite(postgres, name) if mode == "tasks" else PostgresSite(postgres, name)
    store: Any = place.make(write_mode=WriteMode("upsert", ("who",))) if mode == "upsert" else place.make()
    store.open(schema)
    table = store._state.table(store._result)
    function = sql.Identifier(place.schema, "drop_b")
    with store._state.database() as database:
        database.execute(
            sql.SQL(
                "CREATE FUNCTION {}() RETURNS trigger LANGUAGE plpgsql AS "
                "$$BEGIN IF NEW.who = 'b' THEN RETURN NULL; END IF; RETURN NEW; END$$"
            ).format(function)
        )
        database.execute(
            sql.SQL("CREATE TRIGGER drops_b BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION {}()").format(
                table, function
            )
        )
    rows = frame((0, 0, "a", 1), (0, 1, "b", 1))
    with pytest.raises(Exception, match=r"stored 1 of 2 rows.*trigger drops_b"):
        store.commit(rows, {0: 0}, {0: 2})
    assert place.rows() == []
    assert store.offsets().get(0, 0) == 0
    with store._state.database() as database:
        database.execute(sql.SQL("DROP TRIGGER drops_b ON {}").format(table))
    assert store.commit(rows, {0: 0}, {0: 2}) == 2
    assert sorted(row["who"] for row in place.rows()) == ["a", "b"]


def run(place: Any, statement: str) -> None:
    """Execute a statement in the place's schema, with {0} for the result table."""
    with place.connect() as database:
        database.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(place.schema)))
        database.execute(sql.SQL(statement).format(sql.Identifier(place.table)))


LATER = {
    "after": "CREATE TRIGGER drops_b AFTER INSERT ON {0} FOR EACH ROW EXECUTE FUNCTION drop_b()",
    "statement": "CREATE TRIGGER drops_b AFTER INSERT ON {0} EXECUTE FUNCTION drop_b()",
    "deferred": "CREATE CONSTRAINT TRIGGER drops_b AFTER INSERT ON {0} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
    "EXECUTE FUNCTION drop_b()",
    "rule": "CREATE RULE drops_b AS ON INSERT TO {0} DO ALSO DELETE FROM {0} WHERE who = 'b'",
}


@pytest.mark.parametrize(
    ("taker", "mode"),
    [
        ("after", "append"),
        ("deferred", "tasks"),
        *(pytest.param(taker, "append", marks=pytest.mark.matrix) for taker in LATER if taker != "after"),
        *(pytest.param("after", mode, marks=pytest.mark.matrix) for mode in ("upsert", "totals", "tasks")),
    ],
)
def test_rows_that_are_taken_away_after_they_were_counted_are_an_error(
    postgres: PostgresServer, schema: StructType, frame: Callable[..., DataFrame], taker: str, mode: str
) -> None:
    name = f"schema of {taker} {mode}"
    place: Any = PostgresTasksSite(postgres, name) if mode == "tasks" else PostgresSite(postgres, name)
    kinds = {"upsert": WriteMode("upsert", ("who",)), "totals": WriteMode("totals", ("who",), sums=("amount",))}
    columns, made = schema, frame
    if mode == "totals":
        columns = struct_of("who string, _records long, amount long")
        spark = frame((0, 0, "x", 1)).sparkSession
        made = lambda *rows: spark.createDataFrame([(row[2], 1, row[3]) for row in rows], columns)  # noqa: E731
    store: Any = place.make(write_mode=kinds.get(mode, WriteMode()))
    store.open(columns)
    assert store.commit(made((0, 0, "kept", 1)), {0: 0}, {0: 1}) == 1
    body = "BEGIN DELETE FROM {0} WHERE who = 'b'; RETURN NULL; END"
    run(place, "CREATE FUNCTION drop_b() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS "
        f"$${body}$$")  # fmt: skip
    run(place, LATER[taker])
    rows = made((0, 1, "a", 1), (0, 2, "b", 1))
    with pytest.raises(Exception, match=r"stored 1 of 2 rows.*(trigger|rule) drops_b"):
        store.commit(rows, {0: 1}, {0: 3})
    assert [row["who"] for row in place.rows()] == ["kept"]
    assert store.offsets() == {0: 1}
    run(place, f"DROP {'RULE' if taker == 'rule' else 'TRIGGER'} drops_b ON {{0}}")
    assert store.commit(rows, {0: 1}, {0: 3}) == 2
    assert sorted(row["who"] for row in place.rows()) == ["a", "b", "kept"]


def test_a_trigger_that_takes_nothing_away_is_no_error(
    place: PostgresSite, schema: StructType, frame: Callable[..., DataFrame]
) -> None:
    store = place.make()
    store.open(schema)
    run(place, "CREATE TABLE seen (who text)")
    run(place, "CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS "
        "$$BEGIN INSERT INTO seen VALUES (NEW.who); RETURN NULL; END$$")  # fmt: skip
    run(place, "CREATE TRIGGER audits AFTER INSERT ON {0} FOR EACH ROW EXECUTE FUNCTION audit()")
    run(place, "INSERT INTO {0} (_kafka_partition, _kafka_offset, who, amount) VALUES (0, 1, 'of another topic', 1)")
    assert store.commit(frame((0, 0, "one", 1), (0, 0, "of two rows", 1)), {0: 0}, {0: 1}) == 2
    assert store.commit(frame((0, 1, "a", 1)), {0: 1}, {0: 2}) == 1
    assert sorted(row["who"] for row in place.rows()) == ["a", "of another topic", "of two rows", "one"]


@pytest.mark.parametrize(
    ("error", "is_rule"), [("NotNullViolation", True), ("RaiseException", True), ("ProtocolViolation", False)]
)
def test_a_pooler_that_refuses_a_task_is_no_rule_of_the_table(error: str, is_rule: bool) -> None:
    assert bool(RULE_BROKEN.search(f"psycopg.errors.{error}: the reason")) == is_rule


def test_a_trigger_that_keeps_deleted_rows_is_an_error(
    place: PostgresSite, schema: StructType, spark: SparkSession, frame: Callable[..., DataFrame]
) -> None:
    store: Any = place.make(write_mode=WriteMode("upsert", ("who",)))
    store.open(schema)
    store.commit(frame((0, 0, "a", 1), (0, 1, "b", 1)), {0: 0}, {0: 2})
    run(place, "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NULL; END$$")
    run(place, "CREATE TRIGGER keeps BEFORE DELETE ON {0} FOR EACH ROW EXECUTE FUNCTION keep()")
    gone = spark.createDataFrame([(0, 2, "b", 1, True)], f"{SCHEMA}, {DELETED} boolean")
    with pytest.raises(
        StoreError, match=r"still has 1 rows that records without a value should have deleted.*trigger keeps"
    ):
        store.commit(gone, {0: 2}, {0: 3})
    assert store.offsets() == {0: 2}
    run(place, "DROP TRIGGER keeps ON {0}")
    store.commit(gone, {0: 2}, {0: 3})
    assert [row["who"] for row in place.rows()] == ["a"]


def test_a_policy_that_may_hide_rows_is_refused_by_its_name(
    place: PostgresSite, schema: StructType, frame: Callable[..., DataFrame]
) -> None:
    store = place.make()
    store.open(schema)
    store.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1})
    role = sql.Identifier(f"policed {place.schema[-20:]}")
    with place.connect() as database:
        database.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(role))
        database.execute(sql.SQL("GRANT ALL ON SCHEMA {} TO {}").format(sql.Identifier(place.schema), role))
        database.execute(
            sql.SQL("GRANT ALL ON ALL TABLES IN SCHEMA {} TO {}").format(sql.Identifier(place.schema), role)
        )
    run(place, "CREATE POLICY only_a ON {0} USING (who = 'a') WITH CHECK (true)")
    run(place, "ALTER TABLE {0} ENABLE ROW LEVEL SECURITY")
    url = f"postgresql://{role.as_string(None)[1:-1].replace(' ', '%20')}:x@127.0.0.1:{place.server.port}/postgres"
    policed = postgres_store(url, f"{place.schema}.{place.table}", "job", "events")
    with pytest.raises(StoreError, match=r"row-level security of results.*policies: only_a"):
        policed.open(schema)
    assert store.offsets() == {0: 1}


def test_a_trigger_on_the_offsets_is_an_error(
    place: PostgresSite, schema: StructType, frame: Callable[..., DataFrame]
) -> None:
    store = place.make()
    store.open(schema)
    store.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1})
    run(place, "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NULL; END$$")
    run(place, "CREATE TRIGGER k BEFORE UPDATE ON ratchet_sink_offsets FOR EACH ROW EXECUTE FUNCTION keep()")
    with pytest.raises(StoreError, match=r"offsets of partitions 0 were not stored as given"):
        store.commit(frame((0, 1, "b", 1)), {0: 1}, {0: 2})
    assert [row["who"] for row in place.rows()] == ["a"]


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
        with pytest.raises(StoreError, match=rf"a job has already filled table \S+ under the name {table}"):
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
        with pytest.raises(StoreError, match=r"clicks has rows but no stored offsets"):
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
            "CREATE TABLE {table} (LIKE {plain}) PARTITION BY LIST (_kafka_partition)",
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


def test_a_first_commit_that_fails_leaves_no_offsets_and_no_write_mode(
    postgres: PostgresServer, schema: StructType, frame: Callable[..., DataFrame]
) -> None:
    place = PostgresTasksSite(postgres, "schema of a failed start")
    holder: Any = place.make()
    holder.open(schema)
    run(place, "ALTER TABLE {0} ADD CHECK (amount > 1)")
    with pytest.raises(RuleBroken):
        holder.commit(frame((0, 0, "a", 1)), {0: 0, 1: 7}, {0: 1, 1: 7})
    assert holder.offsets() == {}
    run(place, "DROP TABLE {0}")
    holder = place.make()
    assert holder.open(schema) == {}
    assert holder.commit(frame((0, 0, "a", 1)), {0: 0, 1: 7}, {0: 1, 1: 7}) == 1
    with holder._state.database() as database:
        assert holder._state.write_mode(database) == write_mode_text(holder._write_mode)
        database.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(place.schema, "ratchet_sink_offsets")))
    with pytest.raises(RowsLost, match="no offsets"):
        place.make().open(schema)


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
    columns = "_kafka_partition int, _kafka_offset long, at timestamp, plain timestamp_ntz, day date"
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


@pytest.mark.parametrize("in_tasks", [True, False])
@pytest.mark.parametrize("harm", ["DELETE FROM {}", "TRUNCATE {}", "VACUUM FULL {}"])
@pytest.mark.parametrize("is_partitioned", [True, False])
def test_a_table_that_another_empties_is_noticed(
    place: PostgresSite,
    schema: StructType,
    frame: Callable[..., DataFrame],
    in_tasks: bool,
    harm: str,
    is_partitioned: bool,
) -> None:
    place.in_tasks = in_tasks
    table = sql.Identifier(place.schema, place.table)
    if is_partitioned:
        place.make().open(schema)
        with place.connect() as database:
            plain, parts = sql.Identifier(place.schema, "plain"), sql.Identifier(place.schema, "parts")
            database.execute(sql.SQL("ALTER TABLE {} RENAME TO plain").format(table))
            database.execute(sql.SQL("CREATE TABLE {} (LIKE {}) PARTITION BY LIST (who)").format(table, plain))
            database.execute(sql.SQL("CREATE TABLE {} PARTITION OF {} DEFAULT").format(parts, table))
    holder = place.make()
    holder.open(schema)
    holder.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1})
    with place.connect() as database:
        database.execute(sql.SQL(harm).format(table))
    if harm.startswith("VACUUM"):
        assert place.make().offsets() == {0: 1}
        return
    for use in (place.make().offsets, lambda: holder.commit(frame((0, 1, "b", 2)), {0: 1}, {0: 2})):
        with pytest.raises(RowsLost, match=r"was emptied \((TRUNCATE|DELETE, or TRUNCATE of its partitions)\)"):
            use()
    assert place.rows() == []


def test_rows_of_a_table_that_was_made_again_are_not_read_again(
    place: PostgresSite, schema: StructType, frame: Callable[..., DataFrame]
) -> None:
    holder = place.make()
    holder.open(schema)
    holder.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1})
    table, plain = sql.Identifier(place.schema, place.table), sql.Identifier(place.schema, "plain")
    with place.connect() as database:
        database.execute(sql.SQL("ALTER TABLE {} RENAME TO plain").format(table))
        database.execute(sql.SQL("CREATE TABLE {} AS SELECT * FROM {}").format(table, plain))
    for rows, shown in ((1, None), (0, {})):
        assert (len(place.rows()), place.make().check().row_offsets) == (rows, shown)
        with pytest.raises(RowsLost, match="another one: dropped and recreated, or restored alone") as refused:
            place.make().offsets()
        assert ("--from table" in str(refused.value)) == (shown is not None)
        run(place, "DELETE FROM {0}")


def test_an_unlogged_table_that_is_empty_may_have_lost_its_rows_in_a_crash(
    place: PostgresSite, schema: StructType, frame: Callable[..., DataFrame]
) -> None:
    holder = place.make()
    holder.open(schema)
    holder.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1})
    with place.connect() as database:
        table = sql.Identifier(place.schema, place.table)
        database.execute(sql.SQL("ALTER TABLE {} SET UNLOGGED").format(table))
        database.execute(sql.SQL("TRUNCATE {}").format(table))
    with pytest.raises(RowsLost, match=r"was emptied \(a crash of PostgreSQL, which empties UNLOGGED tables, or "):
        place.make().offsets()


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
    columns = "_kafka_partition int, _kafka_offset long, amount decimal(12,2)"
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
        with pytest.raises(StoreError, match="Offsets of topic events are stored for table "):
            use()


def test_times_within_objects_keep_their_microseconds(place: PostgresSite, spark: SparkSession) -> None:
    columns = "_kafka_partition int, _kafka_offset long, seen struct<at: timestamp, all: array<timestamp_ntz>>"
    at = datetime.datetime(2026, 7, 1, 22, 30, 0, 123456, datetime.UTC)
    store = place.make()
    store.open(struct_of(columns))
    store.commit(spark.createDataFrame([(0, 0, (at, [at.replace(tzinfo=None)]))], columns), {0: 0}, {0: 1})
    [row] = place.rows()
    assert row["seen"] == {"at": "2026-07-01T22:30:00.123456Z", "all": ["2026-07-01T22:30:00.123456"]}


def staging_tables(store: Any, *generations: int) -> list[str]:
    """Make an empty staging table of each generation."""
    names = [store._tables.new_staging(generation) for generation in generations]
    with store._state.database() as database:
        for name in names:
            store._state.run(database, "CREATE TABLE {table} (who text)", table=store._state.table(name))
    return names


def test_a_run_drops_the_staging_tables_of_older_runs_alone(place: PostgresSite) -> None:
    store: Any = place.make()
    store.open(PLAIN)
    names = staging_tables(store, 1, 2)
    store.open(PLAIN)
    with store._state.database() as database:
        assert [store._state.has_table(database, name) for name in names] == [False, True]


def test_the_holder_goes_on_while_a_left_staging_table_is_removed(place: PostgresSite) -> None:
    store: Any = place.make()
    store.open(PLAIN)
    store.open(PLAIN)
    [name] = staging_tables(store, 1)
    [orphan] = store.orphans()
    assert orphan.name == name
    with psycopg.connect(
        place.server.url, password=place.server.password, application_name=store._state.application(2), autocommit=True
    ) as holder:
        orphan.remove()
        holder.execute("SELECT 1")
    assert list(store.orphans()) == []


def test_a_session_that_begins_amid_a_decision_is_ended(place: PostgresSite, monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = place.make()
    store.open(PLAIN)
    late = list[psycopg.Connection[Any]]()

    def begin_one(database: Any) -> None:
        application = store._state.application(1)
        url, password = place.server.url, place.server.password
        late.append(psycopg.connect(url, password=password, application_name=application, autocommit=True))
        create_marks(database)

    create_marks = store._tables.create_marks
    monkeypatch.setattr(store._tables, "create_marks", begin_one)
    assert store.reset_offsets({0: 5}, decide("latest", "begin there")) == 2
    with late[0] as session, pytest.raises(psycopg.errors.AdminShutdown):
        session.execute("SELECT 1")


def test_tasks_commit_appended_rows_without_rejects_alone() -> None:
    postgres_store("dbname=x", "results", "job", "events", in_tasks=True)
    with pytest.raises(OptionRefused, match="in_tasks: tasks can commit only"):
        postgres_store("dbname=x", "results", "job", "events", rejects=record_schema(), in_tasks=True)
    with pytest.raises(OptionRefused, match="in_tasks: tasks can commit only"):
        postgres_store("dbname=x", "results", "job", "events", 0, WriteMode("upsert", ("who",)), in_tasks=True)


@pytest.mark.parametrize("name", ["", "x" * 64, "é" * 32, "a\0b"])
def test_a_name_that_postgres_would_cut_off_or_refuse_is_no_column(name: str) -> None:
    assert [column.name for column in column_types(PLAIN)] == ["who"]
    with pytest.raises(OptionRefused, match="a name in PostgreSQL has 1 to 63 bytes"):
        column_types(StructType([StructField(name, StringType())]))


def _require(store: Any, at: int) -> None:
    """Check the table as a commit does."""
    with store._reading() as database:
        store._require_unchanged(database, store._generation, {0: at}, locks=False)


@pytest.fixture
def folding(place: PostgresSite) -> str:
    """A collation to which `a` and `A` are one value."""
    with place.connect() as database:
        name = sql.Identifier(place.schema, "folding")
        made = sql.SQL("CREATE COLLATION {} (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        try:
            database.execute(made.format(name))
        except psycopg.errors.FeatureNotSupported:
            pytest.skip("this server was built without ICU")
        return name.as_string(None)


def test_a_key_column_to_which_two_keys_are_one_is_refused(place: PostgresSite, folding: str) -> None:
    keyed = WriteMode("upsert", ("who",))
    columns = StructType([StructField("who", StringType()), StructField("note", StringType())])
    table = sql.Identifier(place.schema, place.table).as_string(None)
    with place.connect() as database:
        database.execute(f"CREATE TABLE {table} (who text COLLATE {folding}, note text)".encode())
    with pytest.raises(StoreError, match=r"column who of .* has the collation folding"):
        place.make(write_mode=keyed).open(columns)
    with place.connect() as database:
        database.execute(f'ALTER TABLE {table} ALTER who TYPE text COLLATE "C"'.encode())
        database.execute(f"ALTER TABLE {table} ALTER note TYPE text COLLATE {folding}".encode())
    store = place.make(write_mode=keyed)
    store.open(columns)
    with place.connect() as database:
        database.execute(f"ALTER TABLE {table} ALTER who TYPE text COLLATE {folding}".encode())
    with pytest.raises(StoreError, match=r"column who of .* has the collation folding"):  # changed under a stream
        _require(store, 0)
