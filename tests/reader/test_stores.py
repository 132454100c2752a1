"""The same promises on each make of database."""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import psycopg
import pytest
from psycopg.rows import dict_row

from faults.postgres import PostgresServer
from kafka_ratchet.errors import DatabaseUnavailable, ReaderMisused, SettingsError
from kafka_ratchet.reader import Duckdb, Postgres, Reader, Sqlite, Transaction
from kafka_ratchet.reader.stores.database import Database, Store, ends_transaction
from tests.reader.conftest import Fill, copy, rows

NewTopic = Callable[..., str]


@pytest.fixture
def server(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of a server with an empty table `bill`."""
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    with psycopg.connect(postgres.url, autocommit=True) as database:
        database.execute("DROP TABLE IF EXISTS bill, ratchet_reader_positions")
        database.execute("CREATE TABLE bill (key bytea, value bytea PRIMARY KEY)")
    return postgres.url


def values(url: str) -> list[int]:
    with psycopg.connect(url) as database:
        return sorted(int(value) for (value,) in database.execute("SELECT value FROM bill"))


def test_duckdb(broker: str, new_topic: NewTopic, fill: Fill, tmp_path: Path) -> None:
    topic, path = new_topic(2), tmp_path / "bill.duckdb"
    with duckdb.connect(str(path)) as database:
        database.execute("CREATE TABLE bill (key BLOB, value BLOB)")
    fill(topic, 300)
    for count in (300, 0, 100):
        if count == 100:
            fill(topic, 100, first=300)
        with Reader(
            topic, store=Duckdb(path), name="b", options={"bootstrap.servers": broker}, max_records=40
        ) as reader:
            assert copy(reader) == count
    with duckdb.connect(str(path)) as database:
        found = database.execute("SELECT value FROM bill").fetchall()
    assert sorted(int(value) for (value,) in found) == list(range(400))


def test_postgres_is_read_into_and_a_lost_connection_loses_nothing(
    broker: str, new_topic: NewTopic, fill: Fill, server: str
) -> None:
    topic = new_topic(2)
    fill(topic, 300)
    calls = 0

    def handle(transaction: Transaction) -> None:
        nonlocal calls
        calls += 1
        transaction.executemany("INSERT INTO bill VALUES (%s, %s)", [event[:2] for event in transaction.events])
        if calls in (2, 4):  # within the program's own part
            with psycopg.connect(server, autocommit=True) as other:
                other.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                    "WHERE starts_with(application_name, 'ratchet-reader ')"
                )
            if calls == 2:
                transaction.execute("SELECT 1")

    with Reader(
        topic, store=Postgres(server), name="b", options={"bootstrap.servers": broker}, max_records=50
    ) as reader:
        reader.run(handle, until_end=True)
    assert calls >= 8
    assert values(server) == list(range(300))


FROZEN = """
import os, signal, sys
from kafka_ratchet.reader import Postgres, Reader
with Reader(sys.argv[2], store=Postgres(sys.argv[3]), name="b", options={"bootstrap.servers": sys.argv[1]}) as reader:
    for transaction in reader.transactions():
        transaction.executemany("INSERT INTO bill VALUES (%s, %s)", [event[:2] for event in transaction.events])
        print("frozen", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_frozen_process_holds_nobody_up_and_is_refused(
    broker: str, new_topic: NewTopic, fill: Fill, server: str
) -> None:
    topic = new_topic(2)
    fill(topic, 100)
    program = [sys.executable, "-c", FROZEN, broker, topic, server]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as frozen:
        try:
            assert frozen.stdout is not None
            assert frozen.stdout.readline() == "frozen\n"
            # Its rows are in its transaction, under a primary key: ours would wait for them.
            with Reader(topic, store=Postgres(server), name="b", options={"bootstrap.servers": broker}) as reader:
                assert copy(reader, "%s") == 100
            frozen.send_signal(signal.SIGCONT)
            _, said = frozen.communicate(timeout=60)
        finally:
            frozen.kill()
    assert values(server) == list(range(100))
    assert "another process has taken over partitions [0, 1]" in said


def lose_answer(database: Database) -> None:
    """Let the next commit reach the server, and its answer not reach us."""
    commit = database.commit

    def lost() -> None:
        commit()
        raise psycopg.OperationalError("the connection was lost, after the server had committed")

    database.commit = lost  # type: ignore[method-assign]


def test_a_commit_whose_answer_was_lost_counts_once(broker: str, new_topic: NewTopic, fill: Fill, server: str) -> None:
    topic = new_topic(1)
    fill(topic, 30, partitions=1)
    with Reader(
        topic, store=Postgres(server), name="b", options={"bootstrap.servers": broker}, max_records=10
    ) as reader:
        for number, transaction in enumerate(reader.transactions(until_end=True)):
            transaction.executemany("INSERT INTO bill VALUES (%s, %s)", [event[:2] for event in transaction.events])
            if number == 0:
                lose_answer(reader._ours.database)
    assert values(server) == list(range(30))


def test_a_database_that_is_not_there_is_told(broker: str, new_topic: NewTopic, tmp_path: Path) -> None:
    topic, options = new_topic(1), {"bootstrap.servers": broker}
    with (
        pytest.raises(DatabaseUnavailable, match=r"PostgreSQL nobody on 127\.0\.0\.1 cannot be reached"),
        Reader(
            topic,
            store=Postgres("host=127.0.0.1 port=1 dbname=nobody password=secret"),
            name="b",
            options=options,
            timeout_s=1,
        ),  # fmt: skip
    ):
        pass
    for store in (Sqlite(tmp_path / "none" / "x.db"), Duckdb(tmp_path / "none" / "x.db")):
        with (
            pytest.raises(SettingsError, match="does not exist"),
            Reader(topic, store=store, name="b", options=options),
        ):
            pass
    (tmp_path / "text").write_text("hello, this is no database " * 100)
    for store in (Sqlite(tmp_path / "text"), Duckdb(tmp_path / "text")):
        with (
            pytest.raises((SettingsError, DatabaseUnavailable), match="text"),
            Reader(topic, store=store, name="b", options=options, timeout_s=0.1),
        ):
            pass


def test_which_statements_end_a_transaction() -> None:
    for statement in ("commit", "COMMIT;", "\n rollback", "END TRANSACTION", "begin", "start transaction", ";commit"):
        assert ends_transaction(statement), statement
    for statement in (
        "",
        "rollback to here",
        "ROLLBACK TO SAVEPOINT a",
        "insert into commit values (1)",
        "savepoint a",
    ):
        assert not ends_transaction(statement), statement


def test_a_program_that_commits_by_itself_is_told(
    broker: str, new_topic: NewTopic, fill: Fill, server: str, tmp_path: Path
) -> None:
    topic, options = new_topic(1), {"bootstrap.servers": broker}
    fill(topic, 10, partitions=1)
    with Reader(topic, store=Duckdb(tmp_path / "x.duckdb"), name="b", options=options) as reader:
        found = reader.transactions(until_end=True)
        next(found).connection.commit()
        with pytest.raises(ReaderMisused, match=r"partition 0 offsets 0 to (9|10)\)"):
            next(found)
    with Reader(topic, store=Postgres(server), name="b", options=options) as reader:
        found = reader.transactions(until_end=True)
        connection = next(found).connection
        with pytest.raises(psycopg.ProgrammingError, match="commit"):
            connection.commit()
        connection.execute("COMMIT AND CHAIN")
        with pytest.raises(ReaderMisused, match=r"partition 0 offsets 0 to (9|10)\)"):
            next(found)


def test_what_psycopg_would_not_end_is_not_gone_on_in(
    broker: str, new_topic: NewTopic, fill: Fill, server: str
) -> None:
    """Within an open transaction psycopg makes savepoints, and what was told to be committed would not be."""
    topic = new_topic(1)
    fill(topic, 30, partitions=1)
    options = {"bootstrap.servers": broker}
    with Reader(topic, store=Postgres(server), name="b", options=options, max_records=10) as reader:
        found = reader.transactions(until_end=True)
        left_open = next(found).connection.transaction()
        left_open.__enter__()
        with pytest.raises(psycopg.ProgrammingError, match="nesting"):
            next(found)
        again = reader.transactions(until_end=True)
        transaction = next(again)
        transaction.executemany("INSERT INTO bill VALUES (%s, %s)", [event[:2] for event in transaction.events])
        transaction.commit()
        assert values(server) == list(range(len(transaction.events)))


def by_name(cursor: sqlite3.Cursor, row: tuple[object, ...]) -> dict[str, object]:
    return {each[0]: value for each, value in zip(cursor.description, row, strict=True)}


@pytest.mark.parametrize("make", ["postgres", "sqlite"])
def test_a_program_may_have_its_rows_as_it_likes(
    broker: str, new_topic: NewTopic, fill: Fill, server: str, bill: Path, make: str
) -> None:
    topic = new_topic(2)
    fill(topic, 60)
    store: Store = Postgres(server) if make == "postgres" else Sqlite(bill)
    with Reader(topic, store=store, name="b", options={"bootstrap.servers": broker}, max_records=20) as reader:
        for transaction in reader.transactions(until_end=True):
            transaction.connection.row_factory = dict_row if make == "postgres" else by_name
            break
        assert copy(reader, store.placeholder) == 60
        assert reader._ours.database.connection.execute("SELECT count(*) AS n FROM bill").fetchone() == {"n": 60}
    assert (values(server) if make == "postgres" else rows(bill)) == list(range(60))
