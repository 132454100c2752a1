"""Marks of tables in PostgreSQL tell a restored table from a whole dump, which is of one moment."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import sql
from pyspark.sql.types import StringType, StructField, StructType

from faults.postgres import PostgresServer
from kafka_ratchet.spark_sink.errors import RowsLost
from kafka_ratchet.spark_sink.stores.decision import decide
from kafka_ratchet.spark_sink.stores.stored_write_mode import write_mode_text
from tests.spark_sink.sites import PostgresSite

pytestmark = pytest.mark.postgres

PLAIN = StructType([StructField("who", StringType())])


@pytest.fixture
def place(postgres: PostgresServer, request: pytest.FixtureRequest) -> PostgresSite:
    return PostgresSite(postgres, f"schema of {request.node.name[-40:]}")


def check(store: Any, at: int) -> None:
    """Check the table as a commit does."""
    with store._reading() as database:
        store._require_unchanged(database, store._generation, {0: at}, locks=False)


def add_row(store: Any, end: int) -> None:
    """Add a row of `PLAIN` and store the offset, in the transaction of a commit."""

    def change(database: Any) -> None:
        store._state.run(database, "INSERT INTO {table} VALUES ('a')", table=store._state.table(store._result))
        store._state.commit(database, {0: end}, write_mode_text(store._write_mode))

    store._in_transaction(store._generation, change)


@pytest.mark.parametrize("restored", [("offsets",), ("jobs", "offsets", "marks", "rules", "decisions")])
def test_a_state_that_was_restored_alone_is_noticed(place: PostgresSite, restored: tuple[str, ...]) -> None:
    store = place.make()
    store.open(PLAIN)
    add_row(store, 1)
    with place.connect() as database:
        database.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(place.schema)))
        for name in restored:
            database.execute(f"CREATE TABLE dump_{name} (LIKE ratchet_sink_{name} INCLUDING ALL)".encode())
            database.execute(f"INSERT INTO dump_{name} TABLE ratchet_sink_{name}".encode())
        add_row(store, 2)
        for name in restored:
            database.execute(f"DROP TABLE ratchet_sink_{name}".encode())
            database.execute(f"ALTER TABLE dump_{name} RENAME TO ratchet_sink_{name}".encode())
    for use in (place.make().offsets, lambda: place.make().open(PLAIN), lambda: check(store, 1)):
        with pytest.raises(RowsLost, match="ratchet_sink_offsets is another one"):
            use()
    assert (place.make().check().row_offsets, place.make().check().rows_ahead) == (None, True)
    place.make().reset_offsets({0: 2}, decide("0:2", "both rows are there"))
    assert place.make().open(PLAIN) == {0: 2}


@pytest.mark.parametrize("number", ["oid", "offsets_oid"])
def test_a_whole_dump_on_another_server_may_give_a_table_its_old_number(place: PostgresSite, number: str) -> None:
    store = place.make()
    store.open(PLAIN)
    add_row(store, 1)
    changed = "offsets_oid" if number == "oid" else "oid"
    marks = sql.Identifier(place.schema, "ratchet_sink_marks").as_string(None)
    with place.connect() as database:
        database.execute(f"UPDATE {marks} SET {changed} = {changed} + 1 WHERE relation <> ''".encode())  # noqa: S608
        with pytest.raises(RowsLost, match="is another one"):
            place.make().offsets()
        database.execute(f"UPDATE {marks} SET oid = oid + 1 WHERE relation = ''".encode())  # noqa: S608
    assert place.make().offsets() == {0: 1}
    assert place.make().open(PLAIN) == {0: 1}


def test_a_user_without_special_rights_reads_the_servers_identifier(place: PostgresSite) -> None:
    store: Any = place.make()
    with psycopg.connect(place.server.url, password=place.server.password, autocommit=True) as database:
        role = sql.Identifier(f"plain {place.schema[-20:]}")
        database.execute(sql.SQL("CREATE ROLE {}").format(role))
        of_owner = store._state.marks._server(database)
        database.execute(sql.SQL("SET ROLE {}").format(role))
        assert store._state.marks._server(database) == of_owner != 0
