"""The store behind a real PgBouncer: it works, and leaves nothing on connections that others get next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from faults.pgbouncer import HOW_TO_INSTALL, Pgbouncer, find_pgbouncer, run_pgbouncer
from faults.postgres import PostgresServer
from kafka_ratchet.spark_sink.errors import Fenced, StoreError
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import PostgresSite, PostgresTasksSite

pytestmark = pytest.mark.postgres

SCHEMA = "_kafka_partition int, _kafka_offset long, who string, amount long"

SETTINGS = ("lock_timeout", "idle_in_transaction_session_timeout", "row_security")


@pytest.fixture(scope="module")
def pooler(postgres: PostgresServer) -> Iterator[Pgbouncer]:
    if find_pgbouncer() is None:
        pytest.skip(f"there is no PgBouncer on this machine, so that poolers are not tested. {HOW_TO_INSTALL}")
    with run_pgbouncer(postgres) as pooler:
        yield pooler


def left_behind(pooler: Pgbouncer) -> list[dict[str, Any]]:
    """Settings and prepared statements of both sessions of the pool, as another program finds them."""
    found = []
    with psycopg.connect(pooler.url, password=pooler.password, prepare_threshold=None) as one, psycopg.connect(
        pooler.url, password=pooler.password, prepare_threshold=None
    ) as other:  # fmt: skip
        for database in (one, other):  # both amid a transaction, so that each has a session of its own
            settings = {name: database.execute(f"SHOW {name}").fetchone() for name in SETTINGS}
            prepared = database.execute("SELECT name FROM pg_prepared_statements").fetchall()
            found.append({**settings, "prepared": prepared})
    return found


@pytest.mark.parametrize("mode", ["append", "upsert", "tasks"])
def test_each_mode_works_and_leaves_no_setting(
    postgres: PostgresServer, pooler: Pgbouncer, spark: SparkSession, mode: str
) -> None:
    before = left_behind(pooler)
    name = f"pooled {mode}"
    site: Any = PostgresTasksSite(postgres, name) if mode == "tasks" else PostgresSite(postgres, name)
    site.server = pooler
    write_mode = WriteMode("upsert", ("who",)) if mode == "upsert" else WriteMode()
    schema = struct_of(SCHEMA)
    for run in range(3):
        store = site.make(write_mode=write_mode)
        store.open(schema)
        for commit in range(2):
            start = 2 * (2 * run + commit)
            rows = spark.createDataFrame([(0, start, f"a{start}", 1), (0, start + 1, f"b{start}", 1)], SCHEMA)
            assert store.commit(rows, {0: start}, {0: start + 2}) == 2
    assert len(site.rows()) == 12
    assert store.offsets() == {0: 12}
    assert left_behind(pooler) == before


def test_a_take_over_ends_the_holder_and_no_other_program(
    postgres: PostgresServer, pooler: Pgbouncer, spark: SparkSession
) -> None:
    site: Any = PostgresSite(postgres, "pooled take over")
    site.server = pooler
    schema, rows = struct_of(SCHEMA), spark.createDataFrame([(0, 0, "a", 1)], SCHEMA)
    older = site.make()
    older.open(schema)
    older.commit(rows, {0: 0}, {0: 1})
    with psycopg.connect(pooler.url, password=pooler.password) as other:
        other.execute("SELECT 1")  # on a session that the older holder's transactions have used
        with older._state.database() as frozen:
            amid = older._state.transaction(frozen, 1)
            amid.__enter__()
            older._state.lock(frozen)
            # Both sessions of the pool are in use: the next holder comes from elsewhere.
            direct: Any = PostgresSite.__new__(PostgresSite)
            direct.server, direct.schema, direct.table = postgres, site.schema, site.table
            newer = direct.make()
            assert newer.open(schema) == {0: 1}
            with pytest.raises(psycopg.OperationalError):
                frozen.execute("SELECT 1")
            frozen.close()
        assert other.execute("SELECT 2").fetchone() == (2,)
    with pytest.raises(Fenced):
        older.commit(rows, {0: 1}, {0: 2})


def test_a_pooler_of_statements_is_refused_by_name(postgres: PostgresServer, spark: SparkSession) -> None:
    if find_pgbouncer() is None:
        pytest.skip(HOW_TO_INSTALL)
    site: Any = PostgresSite(postgres, "pooled statements")
    with run_pgbouncer(postgres, "statement") as of_statements:
        site.server = of_statements
        with pytest.raises(StoreError, match=r"pool_mode of the pooler.*transaction or session"):
            site.make().open(struct_of(SCHEMA))
