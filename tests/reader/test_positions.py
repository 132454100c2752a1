"""Positions that triggers, rules and policies of the user's database refuse or change."""

# ruff: noqa: S608  # the only value in these statements is a constant

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from faults.pgbouncer import HOW_TO_INSTALL, Pgbouncer, find_pgbouncer, run_pgbouncer
from faults.postgres import PostgresServer
from kafka_ratchet.errors import PositionNotStored, ReaderFenced, SettingsError
from kafka_ratchet.reader import Postgres, Reader, Sqlite
from kafka_ratchet.reader.positions import TABLE, HeldPartition, Position, Positions
from kafka_ratchet.reader.stores.database import Database, Store
from tests.reader.conftest import Fill, copy, rows

OWNER, OTHER = "a" * 32, "b" * 32

SQLITE = {
    "skipped": f"CREATE TRIGGER taker BEFORE UPDATE OF next_offset ON {TABLE} BEGIN SELECT RAISE(IGNORE); END",
    "put back": f"CREATE TRIGGER taker AFTER UPDATE OF next_offset ON {TABLE} "
    f"BEGIN UPDATE {TABLE} SET next_offset = 0 WHERE rowid = NEW.rowid; END",
    "removed": f"CREATE TRIGGER taker AFTER UPDATE OF next_offset ON {TABLE} "
    f"BEGIN DELETE FROM {TABLE} WHERE rowid = NEW.rowid; END",
}
FUNCTION = "CREATE FUNCTION take() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {}; END$$; "
POSTGRES = {
    "skipped": FUNCTION.format("RETURN NULL")
    + f"CREATE TRIGGER taker BEFORE UPDATE OF next_offset ON {TABLE} FOR EACH ROW EXECUTE FUNCTION take()",
    "changed": FUNCTION.format("NEW.next_offset := 0; RETURN NEW")
    + f"CREATE TRIGGER taker BEFORE UPDATE OF next_offset ON {TABLE} FOR EACH ROW EXECUTE FUNCTION take()",
    "put back at the commit": FUNCTION.format(f"UPDATE {TABLE} SET next_offset = 0 WHERE next_offset > 0; RETURN NULL")
    + f"CREATE CONSTRAINT TRIGGER taker AFTER UPDATE ON {TABLE} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
    "WHEN (NEW.next_offset > 0) EXECUTE FUNCTION take()",
}
CASES = [("sqlite", each) for each in SQLITE] + [("postgres", each) for each in POSTGRES]

Make = Callable[[str], Store]


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """make(kind) returns an empty database."""

    def store(kind: str) -> Store:
        if kind == "sqlite":
            return Sqlite(tmp_path / "positions.db")
        server: PostgresServer = request.getfixturevalue("postgres")
        monkeypatch.setenv("PGPASSWORD", server.password)
        with psycopg.connect(server.url, autocommit=True) as database:
            database.execute(f"DROP TABLE IF EXISTS bill, {TABLE}")
            database.execute("DROP FUNCTION IF EXISTS take CASCADE")
            database.execute("CREATE TABLE bill (key bytea, value bytea PRIMARY KEY)")
        return Postgres(server.url)

    return store


def of(store: Store, owner: str = OWNER) -> tuple[Database, Positions]:
    """Return a connection with the table, and positions of a reader."""
    database = store.connect(owner)
    positions = Positions("b", "orders", owner, store.placeholder, store.where)
    positions.create(database)
    return database, positions


def taken(database: Database, positions: Positions) -> dict[int, HeldPartition]:
    database.begin()
    try:
        positions.add(database, {0: 5, 1: 5}, "id")
        held = positions.take_over(database, [0, 1], "id")
    except BaseException:
        database.rollback()
        raise
    database.commit()
    return held


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_a_position_that_is_not_stored_as_given_is_an_error_that_names_the_trigger(
    make: Make, kind: str, case: str
) -> None:
    database, positions = of(make(kind))
    held = taken(database, positions)
    database.connection.execute((SQLITE if kind == "sqlite" else POSTGRES)[case])
    database.begin()
    with pytest.raises(PositionNotStored, match=r"reader 'b', topic 'orders', partitions 0, 1, .*trigger taker"):
        positions.move(database, held, {0: Position(9, 0), 1: Position(9, 0)}, 0)
    database.rollback()
    assert positions.now_held(database, [0, 1]) == held
    database.connection.execute("DROP TRIGGER taker" + ("" if kind == "sqlite" else f" ON {TABLE}"))
    database.begin()
    assert positions.move(database, held, {0: Position(9, 0), 1: Position(9, 0)}, 0) == []
    database.commit()
    assert {row.next for row in positions.stored(database)} == {9}
    database.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_take_over_that_fences_no_one_is_an_error(make: Make, kind: str) -> None:
    store = make(kind)
    database, positions = of(store)
    held = taken(database, positions)
    database.connection.execute(
        f"CREATE TRIGGER taker BEFORE UPDATE OF generation ON {TABLE} BEGIN SELECT RAISE(IGNORE); END"
        if kind == "sqlite"
        else FUNCTION.format("NEW.generation := OLD.generation; RETURN NEW")
        + f"CREATE TRIGGER taker BEFORE UPDATE OF generation ON {TABLE} FOR EACH ROW EXECUTE FUNCTION take()"
    )
    other, of_other = of(store, OTHER)
    with pytest.raises(PositionNotStored, match="trigger taker"):
        taken(other, of_other)
    database.begin()
    assert positions.move(database, held, {0: Position(6, 0)}, 0) == []
    database.commit()
    other.close()
    database.close()


def test_a_first_position_that_a_trigger_takes_away_is_an_error(make: Make) -> None:
    database, positions = of(make("sqlite"))
    database.connection.execute(f"CREATE TRIGGER taker BEFORE INSERT ON {TABLE} BEGIN SELECT RAISE(IGNORE); END")
    with pytest.raises(PositionNotStored, match="trigger taker"):
        taken(database, positions)
    database.begin()
    with pytest.raises(PositionNotStored, match="trigger taker"):  # `ratchet reader resume`
        positions.reset(database, {0: 1}, "id")
    database.close()


def test_positions_that_a_policy_hides_are_an_error(make: Make, postgres: PostgresServer) -> None:
    database, positions = of(make("postgres"))
    held = taken(database, positions)
    for statement in (
        "DROP ROLE IF EXISTS clerk",
        "CREATE ROLE clerk",
        f"GRANT ALL ON {TABLE} TO clerk",
        f"CREATE POLICY nothing ON {TABLE} USING (false)",
        f"ALTER TABLE {TABLE} ENABLE ROW LEVEL SECURITY",
    ):
        database.connection.execute(statement)
    database.begin()
    database.connection.execute("SET LOCAL ROLE clerk")
    with pytest.raises(PositionNotStored, match=r"policy nothing, row-level security"):
        positions.move(database, held, {0: Position(9, 0)}, 0)
    database.rollback()
    database.connection.execute(f"DROP TABLE {TABLE}")
    database.connection.execute("DROP ROLE clerk")
    database.close()


def test_a_reader_ends_at_a_trigger_and_goes_on_once_it_is_gone(
    broker: str, new_topic: Callable[..., str], fill: Fill, bill: Path
) -> None:
    topic = new_topic(2)
    fill(topic, 100)
    options = {"bootstrap.servers": broker}
    with Reader(topic, store=Sqlite(bill), name="b", options=options, max_records=30) as reader:
        found = reader.transactions(until_end=True)
        first = next(found)
        first.executemany("INSERT INTO bill VALUES (?, ?)", [event[:2] for event in first.events])
        first.commit()
        kept = rows(bill)
        reader._ours.database.connection.execute(SQLITE["put back"])
        with pytest.raises(PositionNotStored, match="trigger taker"):
            copy(reader)
        assert rows(bill) == kept
        reader._ours.database.connection.execute("DROP TRIGGER taker")
        assert copy(reader) == 100 - len(kept)
    assert rows(bill) == list(range(100))


@pytest.fixture(scope="module")
def pooler(postgres: PostgresServer) -> Iterator[Pgbouncer]:
    if find_pgbouncer() is None:
        pytest.skip(f"there is no PgBouncer on this machine, so that poolers are not tested. {HOW_TO_INSTALL}")
    with run_pgbouncer(postgres) as pooler:
        yield pooler


def test_readers_share_a_pool_with_other_programs(
    broker: str, new_topic: Callable[..., str], fill: Fill, make: Make, postgres: PostgresServer, pooler: Pgbouncer
) -> None:
    make("postgres")
    topic, options = new_topic(2), {"bootstrap.servers": broker}
    fill(topic, 100)
    store = Postgres(pooler.url)
    older = Reader(topic, store=store, name="b", options=options, max_records=20)
    with older:
        found = older.transactions(until_end=True)
        first = next(found)
        first.executemany("INSERT INTO bill VALUES (%s, %s)", [event[:2] for event in first.events])
        first.commit()
        with psycopg.connect(pooler.url, prepare_threshold=None) as one, psycopg.connect(
            pooler.url, prepare_threshold=None
        ) as two:  # fmt: skip
            for other in (one, two):  # both sessions of the pool, one of which the reader has had
                assert other.execute("SHOW application_name").fetchone() != (f"ratchet-reader {older._ours._owner}",)
                assert other.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
                assert other.execute("SHOW lock_timeout").fetchone() == ("0",)
            # The newer one comes from elsewhere. It ends sessions of the older one, and neither of these.
            with Reader(topic, store=Postgres(postgres.url), name="b", options=options) as newer:
                assert copy(newer, "%s") == 100 - len(first.events)
            for other in (one, two):
                assert other.execute("SELECT 2").fetchone() == (2,)
        with pytest.raises(ReaderFenced):
            for _ in older.transactions(until_end=True):
                pass  # its rows would have keys that are there
    fill(topic, 50, first=100)
    with Reader(topic, store=store, name="b", options=options, max_records=20) as reader:
        assert copy(reader, "%s") == 50
    with psycopg.connect(postgres.url) as database:
        assert database.execute("SELECT count(*) FROM bill").fetchone() == (150,)


def test_a_pooler_of_statements_is_refused_by_name(make: Make, postgres: PostgresServer) -> None:
    make("postgres")
    if find_pgbouncer() is None:
        pytest.skip(HOW_TO_INSTALL)
    with run_pgbouncer(postgres, "statement") as pooler, pytest.raises(SettingsError, match="pooler refuses"):
        Postgres(pooler.url).connect(OWNER)
