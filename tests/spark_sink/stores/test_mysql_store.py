"""The store for MySQL on a real MariaDB, and what is the server's: its commits of its own, engines, keys and locks.

With `-m long` every test over `site` runs on it as well.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import signal
import subprocess
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from faults.mariadb import MariadbServer
from kafka_ratchet.spark_sink.errors import Fenced, OptionRefused, RowsLost, SchemaDiffers, StoreError
from kafka_ratchet.spark_sink.rows.avro.task import reader as avro_reader
from kafka_ratchet.spark_sink.rows.columns import FINITE_TOO, rows
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode, reduced, table_schema
from kafka_ratchet.spark_sink.spark.errors import spark_errors
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.decision import decide
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.mysql import connection
from kafka_ratchet.spark_sink.stores.mysql.connection import literal, quoted, read_url
from kafka_ratchet.spark_sink.stores.mysql.job_state import JobState
from kafka_ratchet.spark_sink.stores.mysql.store import MysqlStore
from kafka_ratchet.spark_sink.stores.mysql.tables import key_column
from kafka_ratchet.spark_sink.stores.mysql.types import key_expression, table_parts, widens
from kafka_ratchet.spark_sink.stores.results import count, scan
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import MysqlSite, Site
from tests.spark_sink.stores import test_stores
from tests.spark_sink.stores.test_stores import (  # noqa: F401  # collected here too, for the site below
    test_a_commit_whose_answer_is_an_error_is_a_commit_all_the_same,
    test_a_holder_that_dies_at_any_step_leaves_rows_and_offsets_that_agree,
    test_hostile_names_and_values_come_back_as_they_went_in,
    test_jobs_of_other_names_share_the_table,
    test_rejects_are_in_the_same_commit,
    test_rows_and_offsets_of_sparse_partitions_come_back,
    test_the_older_of_two_is_fenced_before_and_after_it_has_written,
    test_totals_are_exact_and_only_the_holder_adds_to_them,
    test_which_other_jobs_have_committed_the_topic,
)

SIMPLE = "_kafka_partition int, _kafka_offset long, who string, amount long"

PLAIN = StructType([StructField("who", StringType()), StructField("amount", LongType())])

Frame = Callable[..., DataFrame]

frame = test_stores.frame


class Died(BaseException):
    """The holder ends here."""


@pytest.fixture
def site(mariadb: MariadbServer, tmp_path: Path) -> MysqlSite:
    return MysqlSite(mariadb, f"base of {tmp_path.name}"[:56])


def test_an_older_version_knows_the_locks_and_staging_tables_of_a_job() -> None:
    state = JobState(TableLocation("mysql", "", "results", "mysql://user@host/base"), "job", "events", 0)
    digest = hashlib.sha256(b"base\0results\0job").hexdigest()[:12]
    assert (state._lock, state.staging) == (f"ratchet:{digest}:", f"ratchet_stage_{digest}_")


def ddl(text: str = SIMPLE) -> StructType:
    return struct_of(text)


def read_on(site: MysqlSite, frame: Frame, *values: tuple[Any, ...], **options: Any) -> MysqlStore:
    """Open, commit these rows behind what is stored, and return the holder."""
    store = site.make(**options)
    write_mode = options.get("write_mode")
    at = store.open(table_schema(write_mode, ddl()) if write_mode else ddl()).get(0, 0)
    brought = frame(*[(0, at + n, *value) for n, value in enumerate(values)])
    store.commit(reduced(brought, write_mode) if write_mode else brought, {0: at}, {0: at + len(values)})
    return store


def test_keys_that_a_collation_would_take_for_one_are_several(site: MysqlSite, frame: Frame) -> None:
    write_mode = WriteMode("upsert", ("who", "amount"))
    keys = [
        "a",
        "A",
        "a ",
        "á",
        "a\u0301",
        "",
        " ",
        "\0",
        "ß",
        "ss",
        "😀",
        "😁",
        "n",
        "v",
        "x" * 5000,
        "x" * 5001,
        None,
    ]
    store = read_on(site, frame, *[(who, 1) for who in keys], *[(who, None) for who in keys], write_mode=write_mode)
    again = frame(*[(0, 100 + n, who, amount) for n, (who, amount) in enumerate(itertools.product(keys, (1, None)))])
    store.commit(reduced(again, write_mode), {0: 34}, {0: 200})
    found = {(row["who"], row["amount"]): row["_kafka_offset"] for row in site.rows()}
    assert found == {key: 100 + n for n, key in enumerate(itertools.product(keys, (1, None)))}
    assert len(site.rows()) == 34
    assert [row for row in site.rows() if any(name.startswith("ratchet_") for name in row)] == []
    with pytest.raises(StoreError, match="unique index ratchet_key_"):  # by which it would change others' rows
        site.make("other", write_mode=WriteMode("upsert", ("who",))).open(ddl())
    site.make("other", write_mode=WriteMode("upsert", ("amount", "who"))).open(ddl())  # the same key
    with site.connect() as cursor:
        cursor.execute(f"ALTER TABLE {site.name()} DROP INDEX {key_column(('amount', 'who'))}")
    with pytest.raises(StoreError, match="was dropped"):  # each row would be there once more
        store.commit(frame((0, 200, "a", 1)), {0: 200}, {0: 201})
    store = site.make(write_mode=write_mode)
    store.open(ddl())
    store.commit(frame((0, 200, "a", 1)), {0: 200}, {0: 201})
    assert len(site.rows()) == 34


def test_keys_of_every_type_and_a_table_that_gets_a_key_later(site: MysqlSite, spark: SparkSession) -> None:
    schema = (
        "_kafka_partition int, _kafka_offset long, d decimal(28,18), t timestamp, day date, yes boolean, b binary, "
        "n int, more long"
    )
    moment = datetime.datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=datetime.UTC)
    row = (Decimal("1E-18"), moment, datetime.date(9999, 12, 31), False, b"\xff\0", -1)
    zero = (Decimal("0E-18"), *row[1:])
    key = WriteMode("upsert", ("d", "t", "day", "yes", "b", "n"))
    store = site.make()
    store.open(ddl(schema))
    two = [(0, n, *each, n) for n, each in enumerate([row, zero])]
    store.commit(spark.createDataFrame(two, schema), {0: 0}, {0: 2})
    other = site.make("other", write_mode=key)
    other.open(ddl(schema))
    other.commit(spark.createDataFrame([(0, 0, *zero, 7)], schema), {0: 0}, {0: 1})
    assert sorted((each["d"], each["more"]) for each in site.rows()) == [(Decimal("0E-18"), 7), (Decimal("1E-18"), 0)]
    assert [each["t"] for each in site.rows()] == [moment] * 2
    store.open(ddl(schema))
    with pytest.raises(StoreError, match="Duplicate entry"):  # the index is everybody's
        store.commit(spark.createDataFrame([(0, 2, *row, 9)], schema), {0: 2}, {0: 3})
    wider = MysqlStore(site.location, "other", "events", 0, key, evolve=True)
    larger = schema.replace("n int", "n long").replace("(28,18)", "(38,20)")
    wider.open(ddl(larger))
    wider.commit(spark.createDataFrame([(0, 1, *row, 8)], larger), {0: 1}, {0: 2})
    assert sorted(each["more"] for each in site.rows()) == [7, 8]
    twice = MysqlSite(site.server, site.database[:40] + " two")
    plain = twice.make()
    plain.open(ddl(schema))
    plain.commit(spark.createDataFrame([(0, n, *row, n) for n in range(2)], schema), {0: 0}, {0: 2})
    with pytest.raises(StoreError, match=r"several rows of one key \(d, t, day, yes, b, n\)"):
        twice.make("other", write_mode=key).open(ddl(schema))


def test_what_mysql_cannot_hold_is_refused_or_kept_whole(site: MysqlSite, spark: SparkSession) -> None:
    schema = "_kafka_partition int, _kafka_offset long, x double, f float, day date"
    store = site.make()
    store.open(ddl(schema))
    far = spark.createDataFrame([(0, 0, 1.0, 1.0)], "_kafka_partition int, _kafka_offset long, x double, f float")
    for bad, sentence in [
        (spark.createDataFrame([(0, 0, float("nan"), None, None)], schema), "neither NaN nor infinity"),
        (spark.createDataFrame([(0, 0, None, float("-inf"), None)], schema), "neither NaN nor infinity"),
        (far.selectExpr("*", "make_date(12345, 1, 1) AS day"), r"Incorrect date value: '\+12345-01-01'"),
    ]:
        with pytest.raises((*spark_errors(), StoreError), match=sentence):
            store.commit(bad, {0: 0}, {0: 1})
    assert (store.offsets(), site.rows()) == ({}, [])
    exact = [0.1, -2.5e-300, 1.7976931348623157e308, 5e-324, 123456789.123456789]
    good = [(0, n, x, 16777217.0 if n else 0.1, None) for n, x in enumerate(exact)]
    store.commit(spark.createDataFrame(good, schema), {0: 0}, {0: 5})
    assert [each["x"] for each in sorted(site.rows(), key=lambda each: each["_kafka_offset"])] == exact
    assert {each["f"] for each in site.rows()} == {0.10000000149011612, 16777216.0}

    texts = ['{"x": 1.5, "in": [{"f": null}]}', '{"x": "NaN", "in": null}', '{"x": 1, "in": [{"f": "-Infinity"}]}']
    records = spark.createDataFrame(
        [(0, n, None, None, text.encode()) for n, text in enumerate(texts)],
        "partition int, offset long, timestamp timestamp, key binary, value binary",
    )
    read = rows(records, "x double, `in` array<struct<f: float>>", restricted_values=FINITE_TOO)
    kept = {row["_kafka_offset"]: row["_kafka_value"] for row in read.collect()}
    assert kept == {0: None, 1: texts[1].encode(), 2: texts[2].encode()}
    with pytest.raises(ValueError, match="NaN or infinity"):
        avro_reader(("float",), FINITE_TOO)(b"\0\0\xc0\x7f", 0)
    assert avro_reader(("float",), True)(b"\0\0\x80\x7f", 0) == (float("inf"), 4)


def test_a_row_that_the_server_does_not_take_is_named(site: MysqlSite, frame: Frame) -> None:
    store = site.make()
    store.open(ddl())
    with site.connect() as cursor:
        cursor.execute("SELECT @@global.max_allowed_packet AS size")
        [before] = cursor.fetchall()
        cursor.execute("SET GLOBAL max_allowed_packet = 2097152")
        try:
            with pytest.raises(spark_errors(), match="max_allowed_packet is 2097152"):
                store.commit(frame((0, 0, "x" * (1 << 20), 1)), {0: 0}, {0: 1})
            # More rows than one statement holds, the longest as long as it may be.
            many = [(0, n, "y" * 300_000, n) for n in range(4)]
            assert store.commit(frame(*many, (0, 4, "x" * 1_000_000, 1)), {0: 0}, {0: 5}) == 5
        finally:
            cursor.execute(f"SET GLOBAL max_allowed_packet = {before['size']}")
    assert sorted(len(row["who"]) for row in site.rows()) == [300_000] * 4 + [1_000_000]


def test_tables_without_transactions_are_refused(site: MysqlSite, frame: Frame) -> None:
    holder = read_on(site, frame, ("a", 1))
    for table in (site.name(), quoted(site.database, "ratchet_sink_jobs")):
        with site.connect() as cursor:
            cursor.execute(f"ALTER TABLE {table} ENGINE = MyISAM")
        with pytest.raises(StoreError, match=r"a table of engine MyISAM, .*ALTER TABLE .* ENGINE = InnoDB"):
            site.make().open(ddl())
        if table == site.name():
            with pytest.raises(StoreError, match="MyISAM"):  # changed under a stream
                holder.commit(frame((0, 1, "b", 1)), {0: 1}, {0: 2})
        with site.connect() as cursor:
            cursor.execute(f"ALTER TABLE {table} ENGINE = InnoDB")
    assert holder.commit(frame((0, 1, "b", 1)), {0: 1}, {0: 2}) == 1
    with site.connect() as cursor:
        cursor.execute(f"CREATE VIEW {site.name('_of others')} AS SELECT * FROM {site.name()}")  # noqa: S608
    with site.connect() as cursor:
        cursor.execute(f"ALTER TABLE {site.name()} MODIFY amount INT")
    with pytest.raises(SchemaDiffers, match=r"column amount of .* is int in the table and bigint in this job"):
        holder.commit(frame((0, 2, "c", 1)), {0: 2}, {0: 3})
    view = TableLocation("mysql", "", site.location.table + "_of others", site.server.url, site.server.password)
    with pytest.raises(StoreError, match="is no table"):
        MysqlStore(view, "job", "events").open(ddl())


def test_another_tables_rows_are_noticed(site: MysqlSite, frame: Frame) -> None:
    holder = read_on(site, frame, ("a", 1), ("b", 1))
    table, aside = site.name(), site.name(" aside")
    shown: dict[int, int] | None
    for done, undone, sentence, shown in [
        ([f"RENAME TABLE {table} TO {aside}"], [f"RENAME TABLE {aside} TO {table}"], "was dropped", {}),
        (
            [f"RENAME TABLE {table} TO {aside}", f"CREATE TABLE {table} ENGINE = InnoDB AS SELECT * FROM {aside}"],  # noqa: S608
            [f"DROP TABLE {table}", f"RENAME TABLE {aside} TO {table}"],
            "is another one",
            None,  # its rows would be added again
        ),
        ([f"TRUNCATE TABLE {table}"], [], "was emptied", {}),
    ]:
        with site.connect() as cursor:
            for statement in done:
                cursor.execute(statement)
        for use in (site.make().offsets, lambda: site.make().open(ddl()),
                    lambda: holder.commit(frame((0, 2, "c", 1)), {0: 2}, {0: 3})):  # fmt: skip
            with pytest.raises(RowsLost, match=sentence) as refused:
                use()
            assert ("--from table" in str(refused.value)) == (shown is not None)
        assert site.make().check().row_offsets == shown
        with site.connect() as cursor:
            for statement in undone:
                cursor.execute(statement)
    assert site.make().reset_offsets({}, decide("table", "emptied by mistake")) == 2
    read_on(site, frame, ("a", 1), ("b", 1), ("c", 1))
    with site.connect() as cursor:  # what keeps the rows is nobody's loss
        cursor.execute(f"ALTER TABLE {table} ADD INDEX of_users (amount), COMMENT = 'ours {_id(site)}'")
        cursor.execute(f"OPTIMIZE TABLE {table}")
    assert read_on(site, frame, ("d", 1)).offsets() == {0: 4}
    with site.connect() as cursor:
        cursor.execute(f"SELECT decision FROM {quoted(site.database, 'ratchet_sink_decisions')}")  # noqa: S608
        assert [json.loads(row["decision"])["reason"] for row in cursor.fetchall()] == ["emptied by mistake"]


def _id(site: MysqlSite) -> str:
    with site.connect() as cursor:
        cursor.execute(
            "SELECT TABLE_COMMENT FROM information_schema.TABLES "  # noqa: S608
            f"WHERE TABLE_SCHEMA = {literal(site.database)} AND TABLE_NAME = {literal(site.table)}"
        )
        return str(next(row["TABLE_COMMENT"] for row in cursor.fetchall()))


def test_a_job_that_dies_while_tables_are_made_leaves_the_rest_to_the_next(
    site: MysqlSite, frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mode = WriteMode("upsert", ("who",))
    run, made = connection.execute, itertools.count()
    for n in itertools.count(1):
        left = itertools.count(n, -1)

        def execute(database: Any, statement: str, left: Any = left) -> list[tuple[Any, ...]]:
            found = run(database, statement)
            # Each of them is committed once it is said.
            if statement.startswith(("CREATE", "ALTER")) and next(left) == 1:
                raise Died
            return found

        with monkeypatch.context() as patch:
            patch.setattr("kafka_ratchet.spark_sink.stores.mysql.job_state.execute", execute)
            try:
                site.make(write_mode=write_mode, rejects=ddl()).open(table_schema(write_mode, ddl()))
            except Died:
                next(made)
                continue
        break
    assert next(made) >= 8  # five of bookkeeping, two tables, the id of one
    store = site.make(write_mode=write_mode, rejects=ddl())
    store.open(table_schema(write_mode, ddl()))
    store.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1}, frame())
    store.commit(frame((0, 1, "a", 2)), {0: 1}, {0: 2}, frame())
    assert [(row["who"], row["amount"]) for row in site.rows()] == [("a", 2)]


def test_a_frozen_holder_is_ended_by_its_successor(
    site: MysqlSite, frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = read_on(site, frame, ("a", 1))
    for killed in (True, False):
        newer = site.make()

        def take_over(point: str, newer: MysqlStore = newer) -> None:
            if point == "in-commit":  # the older one has the row of the job, and rows that nobody sees yet
                monkeypatch.undo()
                newer.open(ddl())

        monkeypatch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", take_over)
        if not killed:  # as where the older one is another user's: the server ends it, because it says nothing
            monkeypatch.setattr(connection, "OF_DRIVER", "SET SESSION wait_timeout = 1")
            monkeypatch.setattr(
                "kafka_ratchet.spark_sink.stores.mysql.job_state.JobState.end_sessions", lambda *_: None
            )
        with pytest.raises(Fenced):
            older.commit(frame((0, 1, "older", 1)), {0: 1}, {0: 2})
        older = newer
    assert older.commit(frame((0, 1, "b", 1)), {0: 1}, {0: 2}) == 1
    assert sorted(row["who"] for row in site.rows()) == ["a", "b"]


def test_a_take_over_is_not_kept_out_by_a_stranger_for_ever(
    site: MysqlSite, frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_on(site, frame, ("a", 1))
    settings = [each.replace(f"= {connection.LOCK_TIMEOUT_S}", "= 1") for each in connection.OF_SESSION]
    monkeypatch.setattr(connection, "OF_SESSION", settings)
    with site.connect() as stranger:
        stranger.execute("BEGIN")
        stranger.execute(f"SELECT * FROM {quoted(site.database, 'ratchet_sink_jobs')} FOR UPDATE")  # noqa: S608
        with pytest.raises(StoreError, match=r"Lock wait timeout exceeded.*\(error 1205\)"):
            site.make().open(ddl())


def test_two_jobs_that_wait_for_each_other_both_commit(
    site: MysqlSite, frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = read_on(site, frame, ("a", 1))
    fail = itertools.chain([True] * 3, itertools.repeat(False))

    def deadlock(point: str) -> None:
        if point == "in-commit" and next(fail):
            raise pymysql.OperationalError(1213, "Deadlock found when trying to get lock")

    monkeypatch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", deadlock)
    assert store.commit(frame((0, 1, "b", 1)), {0: 1}, {0: 2}) == 1
    assert sorted(row["who"] for row in site.rows()) == ["a", "b"]


def test_a_crash_and_a_restart_of_the_server_keep_what_was_committed(site: MysqlSite, frame: Frame) -> None:
    store = read_on(site, frame, ("a", 1))
    site.server.crash()
    try:
        with pytest.raises(StoreError, match="Can't connect to MySQL server"):
            store.commit(frame((0, 1, "b", 1)), {0: 1}, {0: 2})
    finally:
        site.server.start()
    assert store.commit(frame((0, 1, "b", 1)), {0: 1}, {0: 2}) == 1  # no connection is kept that could be broken
    assert sorted(row["who"] for row in site.rows()) == ["a", "b"]


def test_readers_get_the_types_that_they_ask_for(site: MysqlSite, spark: SparkSession) -> None:
    import pyarrow as pa

    schema = (
        "_kafka_partition int, _kafka_offset long, yes boolean, t timestamp, l timestamp_ntz, s struct<a: int>, "
        "d decimal(9,2)"
    )
    moment = datetime.datetime(2024, 2, 29, 12, 0, 0, 1)
    row = (0, 0, True, moment.replace(tzinfo=datetime.UTC), moment, (7,), Decimal("-1.50"))
    store = site.make()
    store.open(ddl(schema))
    store.commit(spark.createDataFrame([row, (0, 1, *[None] * 5)], schema), {0: 0}, {0: 2})
    wanted = pa.schema(
        [
            ("yes", pa.bool_()),
            ("t", pa.timestamp("us", "UTC")),
            ("l", pa.timestamp("us")),
            ("s", pa.struct([("a", pa.int32())])),
            ("d", pa.decimal128(9, 2)),
        ]
    )
    found = [each for batch in scan(site.location, wanted) for each in batch.to_pylist()]
    assert found == [
        {"yes": True, "t": row[3], "l": moment, "s": {"a": 7}, "d": Decimal("-1.50")},
        dict.fromkeys(wanted.names),
    ]
    assert count(site.location) == 2
    with pytest.raises(OptionRefused, match=r"column 's' of type longtext JSON, which does not stand for exactly one"):
        store.columns()
    with site.connect() as cursor:
        cursor.execute(f"ALTER TABLE {site.name()} DROP COLUMN s")
    assert store.columns() == ddl(schema.replace("s struct<a: int>, ", ""))


def test_missing_rights_are_named_and_no_password_is(site: MysqlSite) -> None:
    def at(table: str, password: str, user: str = site.server.user) -> MysqlStore:
        url = site.server.url.replace(site.server.user, user)
        return MysqlStore(TableLocation("mysql", "", table, url, password), "job", "events")

    with pytest.raises(StoreError, match="Access denied") as refused:
        at("results", "wrong-s3cret").open(ddl())
    assert "s3cret" not in str(refused.value)
    with pytest.raises(StoreError, match="Unknown database 'no such'"):
        at("no such.t", site.server.password).open(ddl())
    user = f"few{site.server.port}"
    with site.connect() as cursor:
        cursor.execute(f"CREATE USER '{user}'@'127.0.0.1' IDENTIFIED BY 'pä😀'")
        cursor.execute(f"GRANT SELECT ON {quoted(site.database)}.* TO '{user}'@'127.0.0.1'")
        cursor.execute(f"GRANT SELECT ON results.* TO '{user}'@'127.0.0.1'")
        try:
            with pytest.raises(StoreError, match="CREATE command denied"):
                at(f"{site.database}.t", "pä😀", user).open(ddl())
            assert at(f"{site.database}.t", "pä😀", user).offsets() == {}
        finally:
            cursor.execute(f"DROP USER '{user}'@'127.0.0.1'")


@pytest.mark.parametrize(
    ("url", "table"),
    [
        ("mysql://someone:s3cret@[::1", "results"),
        ("mysql://someone:s3cret@h:port/x", "results"),
        ("postgresql://someone:s3cret@h/x", "results"),
        ("mysql:///x", "results"),
        ("", "results"),
        ("mysql://h", "results"),
        ("mysql://h/x?init_command=DROP%20TABLE", "results"),
        ("mysql://h/x?ssl_verify_identity=maybe", "results"),
        ("mysql://h/x", "a.b.c"),
        ("mysql://h/x", ""),
        ("mysql://h/x", "a."),
        ("mysql://h/x", "space "),
        ("mysql://h/x", "😀"),
        ("mysql://h/x", "x" * 57),  # with _rejects behind it, it would be too long
    ],
)
def test_addresses_and_names_that_cannot_be_used(url: str, table: str) -> None:
    with pytest.raises(OptionRefused) as refused:
        MysqlStore(TableLocation("mysql", "", table, url), "job", "events")
    assert "s3cret" not in str(refused.value)


def test_what_an_address_says() -> None:
    found = read_url("mariadb://us%40er:s%3Acret@[::1]:3307/my%20base?ssl_ca=/ca.pem&ssl_verify_identity=true", None)
    assert (found.database, found.host) == ("my base", "::1")
    assert found.parameters == {
        **{"user": "us@er", "password": b"s:cret", "host": "::1", "port": 3307, "ssl_ca": "/ca.pem"},
        **{"ssl_verify_identity": True, "ssl_verify_cert": True, "charset": "utf8mb4"},
        **{"connect_timeout": connection.CONNECT_TIMEOUT_S, "autocommit": True},
    }
    assert "s:cret" not in repr(found)
    assert read_url("mysql://h/x", "given").parameters["password"] == b"given"
    assert (table_parts("t", "x"), table_parts("y.t", "x")) == (("x", "t"), ("y", "t"))
    assert key_expression(("a`b",), "s").count("s.`a``b`") == 1
    assert widens("decimal(9,2)", "decimal(11,4)")
    assert not widens("decimal(9,2)", "decimal(9,4)")
    assert not widens("bigint", "int")
    for version in ("5.5.5-10.11.19-MariaDB-log", "11.4.2-MariaDB", "8.0.23", "9.1.0"):
        assert connection._collation(version)
    for version in ("5.5.5-10.5.1-MariaDB", "8.0.22-log", "5.7.44"):
        with pytest.raises(StoreError, match="Upgrade the server"):
            connection._collation(version)


def test_columns_that_the_table_cannot_have(site: MysqlSite, frame: Frame) -> None:
    for wrong in ("a int, A int", "ratchet_key_1 int", "`a ` int", f"`{'x' * 65}` int"):
        with pytest.raises((OptionRefused, SchemaDiffers)):
            site.make().open(ddl(wrong))
    assert site.make().generation() == 0


@pytest.mark.long
@pytest.mark.timeout(900)  # seven starts of Spark
def test_killed_at_each_point_nothing_is_lost_or_doubled(
    site: Site, new_topic: Callable[..., str], write: Callable[..., None],
    command: Callable[..., subprocess.CompletedProcess[str]],
) -> None:  # fmt: skip
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        write(topic, [json.dumps({"who": f"p{n % 7}", "n": n}).encode() for n in range(300)], partition)
        write(topic, [b'{"who":"aborted","n":1}', b"no json"], partition, commit=partition == 0)
    address = {"SPARK_SINK_URL": site.location.url, "SPARK_SINK_PASSWORD": site.location.password or ""}
    arguments = [f"--topic={topic}", "--store=mysql", f"--table={site.location.table}", "--name=job", "--rejects"]
    arguments += ["--columns=who string, n long", "--max-records=100", "--kind=totals", "--key=who", "--sum=n"]
    seen = []
    for point in ("before-write", "before-commit:2", "in-commit", "in-commit:2", "after-commit"):
        killed = command(*arguments, **address, SPARK_SINK_CRASH_AT=point)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        seen.append(sum(MysqlStore(site.location, "job", topic).offsets().values()))
    assert seen == [0, 100, 100, 200, 300]
    done = command(*arguments, "--json", **address)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["offsets"] == {"0": 304, "1": 304}
    found = {row["who"]: (row["_records"], int(row["n"])) for row in site.rows()}
    assert found == {
        f"p{k}": (2 * len(range(k, 300, 7)), 2 * sum(range(k, 300, 7))) for k in range(7)
    } | {"aborted": (1, 1)}  # fmt: skip
    assert [row["_kafka_value"] for row in site.rows(rejects=True)] == [b"no json"]


def test_staged_rows_that_are_gone_move_no_offset(
    site: MysqlSite, frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A replica that takes the primary's place may lack what was written last.
    holder = site.make()
    holder.open(ddl())

    def fail_over(point: str) -> None:
        if point == "before-commit":
            with site.connect() as cursor:
                cursor.execute(
                    "SELECT TABLE_NAME AS name FROM information_schema.TABLES "  # noqa: S608
                    f"WHERE TABLE_SCHEMA = {literal(site.database)} AND LEFT(TABLE_NAME, 14) = 'ratchet_stage_'"
                )
                [found] = cursor.fetchall()
                cursor.execute(f"DELETE FROM {quoted(site.database, found['name'])} LIMIT 1")  # noqa: S608

    monkeypatch.setattr(crash_points, "passing", fail_over)
    with pytest.raises(StoreError, match="1 of 2 rows"):
        holder.commit(frame((0, 0, "a", 1), (0, 1, "b", 2)), {0: 0}, {0: 2})
    monkeypatch.undo()
    assert site.make().offsets() == {}
    assert holder.commit(frame((0, 0, "a", 1), (0, 1, "b", 2)), {0: 0}, {0: 2}) == 2


def test_times_within_objects_keep_their_microseconds(site: MysqlSite, spark: SparkSession) -> None:
    columns = "_kafka_partition int, _kafka_offset long, seen struct<at: timestamp, all: array<timestamp_ntz>>"
    at = datetime.datetime(2026, 7, 1, 22, 30, 0, 123456, datetime.UTC)
    store = site.make()
    store.open(ddl(columns))
    store.commit(spark.createDataFrame([(0, 0, (at, [at.replace(tzinfo=None)]))], columns), {0: 0}, {0: 1})
    [row] = site.rows()
    assert row["seen"] == {"at": "2026-07-01T22:30:00.123456Z", "all": ["2026-07-01T22:30:00.123456"]}


def test_rows_of_one_key_are_refused_as_a_table_gets_the_key(site: MysqlSite) -> None:
    site.make().open(PLAIN)
    with site.connect() as cursor:
        cursor.execute(f"INSERT INTO {site.name()} (who, amount) VALUES ('a', 1), ('a', 2)")  # noqa: S608
    with pytest.raises(StoreError, match=r"several rows of one key \(who\)"):
        site.make("other", write_mode=WriteMode("upsert", ("who",))).open(PLAIN)


def test_a_deadlock_alone_is_tried_again(site: MysqlSite, monkeypatch: pytest.MonkeyPatch) -> None:
    store, errors = site.make(), [1213, 1213, 1205]
    store.open(PLAIN)
    monkeypatch.setattr(store, "_stage", lambda *_: SimpleNamespace(target=store._result, rows=0))
    for step in ("_move", "_discard"):
        monkeypatch.setattr(store, step, lambda *_, **__: None)

    def fail(point: str) -> None:
        if point == "in-commit" and len(errors) > limit:
            raise pymysql.OperationalError(errors.pop(0), "the server has rolled back")

    monkeypatch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", fail)
    rows: Any = None
    limit = 1
    store.commit(rows, {}, {0: 3})
    limit = 0
    with pytest.raises((StoreError, pymysql.OperationalError), match="the server has rolled back"):
        store.commit(rows, {0: 3}, {0: 4})
    assert (store.offsets(), errors) == ({0: 3}, [])


def test_a_table_that_was_moved_to_another_database_is_not_a_new_one(site: MysqlSite) -> None:
    store: Any = site.make()
    store.open(PLAIN)
    store.reset_offsets({0: 1}, decide("latest", "as if it had committed so far"))
    there = f"{site.database}2"
    with site.connect() as cursor:
        cursor.execute(f"INSERT INTO {site.name()} VALUES ('a', 1)")  # noqa: S608
        cursor.execute(f"CREATE DATABASE {quoted(there)}")
        cursor.execute(f"CREATE TABLE {quoted(there, 'clicks')} LIKE {site.name()}")  # as a dump of the table makes it
        cursor.execute(f"RENAME TABLE {site.name()} TO {quoted(there, site.table)}")

    def moved(table: str) -> MysqlStore:
        location = TableLocation("mysql", "", f"{there}.{table}", site.server.url, site.server.password)
        return MysqlStore(location, "job", "events")

    moved("clicks").open(PLAIN)  # without rows there is nothing to double; it leaves the bookkeeping
    for use in (moved(site.table).require_write_mode, lambda: moved(site.table).open(PLAIN)):
        with pytest.raises(StoreError, match=r"has rows and the id of a table of another database"):
            use()
    with site.connect() as cursor:
        cursor.execute(f"ALTER TABLE {quoted(there, site.table)} COMMENT = ''")
    assert moved(site.table).open(PLAIN) == {}  # the operator says that it is another table


def test_a_table_that_got_its_id_from_a_killed_start_is_a_new_one(
    site: MysqlSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.connect() as cursor:
        cursor.execute(f"CREATE TABLE {site.name()} (who LONGTEXT, amount BIGINT) ENGINE = InnoDB")
        cursor.execute(f"INSERT INTO {site.name()} VALUES ('of the user', 1)")  # noqa: S608
    store: Any = site.make()

    def die(*_: object) -> None:
        raise Died

    monkeypatch.setattr(store, "_require_same_topic", die)
    with pytest.raises(Died):
        store.open(PLAIN)
    assert _id(site).startswith("[ratchet ")
    assert site.make().open(PLAIN) == {}
