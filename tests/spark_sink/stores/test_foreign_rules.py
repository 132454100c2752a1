"""Rules that others set for a result table: named by the error, nothing visible, every row there once they are gone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest
from psycopg import sql
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import DataFrame, SparkSession

from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.rows.write_mode import APPEND, WriteMode, reduced, table_schema
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import (
    DeltaSite,
    DuckDBSite,
    IcebergSite,
    MysqlSite,
    PostgresSite,
    PostgresTasksSite,
    duckdb_store,
    param,
)

SCHEMA = "_kafka_partition int, _kafka_offset long, who string, amount long"
MODES = {
    "append": APPEND,
    "upsert": WriteMode("upsert", ("who",)),
    "totals": WriteMode("totals", ("who",), sums=("amount",)),
}


class Rule(NamedTuple):
    """A rule of a table in the SQL of its database, with {t} for the table and {s} for its schema."""

    add: str
    drop: str
    named: str
    """Pattern that the error matches."""


CLIENTS = (
    "CREATE TABLE {s}.clients (who text PRIMARY KEY); INSERT INTO {s}.clients VALUES ('a'), ('c'), ('z'); "
    "ALTER TABLE {t} ADD CONSTRAINT of_client FOREIGN KEY (who) REFERENCES {s}.clients"
)
NO_CLIENTS = "ALTER TABLE {t} DROP CONSTRAINT of_client"
RAISES = (
    "CREATE FUNCTION {s}.judge() RETURNS trigger LANGUAGE plpgsql AS "
    "$$BEGIN IF NEW.amount IS NULL THEN RAISE EXCEPTION 'not so'\\; END IF\\; RETURN NEW\\; END$$; "
    "CREATE TRIGGER refuses BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION {s}.judge()"
)
POSTGRES = {
    "check": Rule(
        "ALTER TABLE {t} ADD CONSTRAINT known CHECK (amount IS NOT NULL)",
        "ALTER TABLE {t} DROP CONSTRAINT known",
        'relation "results .*violates check constraint "known"',
    ),
    "not null": Rule(
        "ALTER TABLE {t} ALTER amount SET NOT NULL",
        "ALTER TABLE {t} ALTER amount DROP NOT NULL",
        'column "amount" of relation "results .*not-null',
    ),
    "unique": Rule(
        "CREATE UNIQUE INDEX only_one ON {t} (amount) NULLS NOT DISTINCT; INSERT INTO {t} (who) VALUES ('old')",
        "DROP INDEX {s}.only_one; DELETE FROM {t} WHERE who = 'old'",
        r"schema of .*results.*only_one",
    ),
    "foreign key": Rule(CLIENTS, NO_CLIENTS, "of_client"),
    "deferred key": Rule(f"{CLIENTS} DEFERRABLE INITIALLY DEFERRED", NO_CLIENTS, "of_client"),
    "exclusion": Rule(
        "ALTER TABLE {t} ADD CONSTRAINT apart EXCLUDE USING btree (amount WITH =); "
        "INSERT INTO {t} (who, amount) VALUES ('old', 3)",
        "ALTER TABLE {t} DROP CONSTRAINT apart; DELETE FROM {t} WHERE who = 'old'",
        "apart",
    ),
    "trigger": Rule(RAISES, "DROP TRIGGER refuses ON {t}", "not so.*(trigger refuses|judge)"),
}
MYSQL = {
    "check": Rule(
        "ALTER TABLE {t} ADD CONSTRAINT known CHECK (amount IS NOT NULL)",
        "ALTER TABLE {t} DROP CONSTRAINT known",
        "known.*failed for .*results",
    ),
    "not null": Rule(
        "ALTER TABLE {t} MODIFY amount bigint NOT NULL",
        "ALTER TABLE {t} MODIFY amount bigint NULL",
        "Column 'amount' cannot be null",
    ),
    "unique": Rule(
        "INSERT INTO {t} (amount) VALUES (3); CREATE UNIQUE INDEX only_one ON {t} (amount)",
        "DROP INDEX only_one ON {t}; DELETE FROM {t} WHERE who IS NULL",
        "only_one",
    ),
    "no partition": Rule(
        "ALTER TABLE {t} PARTITION BY LIST (amount) (PARTITION p VALUES IN (1, 2, 3))",
        "ALTER TABLE {t} REMOVE PARTITIONING",
        "no partition",
    ),
    "trigger": Rule(
        "CREATE TRIGGER refuses BEFORE INSERT ON {t} FOR EACH ROW "
        "IF NEW.amount IS NULL THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not so'\\; END IF",
        "DROP TRIGGER {s}.refuses",
        r"refuses a row \(not so\).*triggers: refuses",
    ),
    "numbered by the server": Rule(
        "DELETE FROM {t}; ALTER TABLE {t} MODIFY amount bigint NOT NULL AUTO_INCREMENT, ADD INDEX numbers (amount); "
        "INSERT INTO {t} (_kafka_partition, _kafka_offset, who) VALUES (0, 0, 'z')",
        "ALTER TABLE {t} MODIFY amount bigint NULL, DROP INDEX numbers",
        "column amount of .*results.* is auto_increment",
    ),
    "other coordinates": Rule(
        "CREATE TRIGGER alters BEFORE INSERT ON {t} FOR EACH ROW SET NEW._kafka_offset = 7",
        "DROP TRIGGER {s}.alters",
        "stored . of 3 rows as given.*triggers: alters",
    ),
}
DUCKDB = {
    "not null": Rule(
        "ALTER TABLE {t} ALTER amount SET NOT NULL",
        "ALTER TABLE {t} ALTER amount DROP NOT NULL",
        'NOT NULL constraint failed: "results.*amount',
    )
}
FILES = {"required": Rule("", "", "results.*column amount is NOT NULL")}
RULES = {
    "postgres": POSTGRES,
    "postgres-tasks": POSTGRES,
    "mysql": MYSQL,
    "duckdb": DUCKDB,
    "delta": FILES,
    "iceberg": FILES,
}
QUICK = {"check", "required", "other coordinates"}
CASES = [
    param(
        kind,
        name,
        mode,
        by_default=(name in QUICK and kind in ("delta", "postgres")) or kind == "duckdb",
        tier=pytest.mark.matrix if name in QUICK else pytest.mark.long,
    )
    for kind, rules in RULES.items()
    for name in rules
    for mode in ("append", "upsert")
    if not (kind == "postgres-tasks" and mode == "upsert")
    and not (kind == "mysql" and mode == "upsert" and name in {"unique", "no partition", "numbered by the server"})
]


def execute(site: Any, statements: str) -> None:
    """Execute statements with '; ' between in the database of a site."""
    each = [part.replace("\\;", ";") for part in re.split(r"(?<!\\); ", statements)]
    if isinstance(site, MysqlSite):
        with site.connect() as cursor:
            cursor.execute(f"USE `{site.database}`")
            for statement in each:
                cursor.execute(statement.replace("{t}", site.name()).replace("{s}", f"`{site.database}`"))
    elif isinstance(site, PostgresSite):
        table, schema = sql.Identifier(site.schema, site.table), sql.Identifier(site.schema)
        with site.connect() as database:
            for statement in each:
                written = statement.replace("{t}", table.as_string(None)).replace("{s}", schema.as_string(None))
                database.execute(written.encode())
    else:
        with duckdb.connect(site.path) as database:
            for statement in each:
                database.execute(statement.replace("{t}", '"' + site.table.replace('"', '""') + '"'))


def require_amount(site: Any, required: bool) -> None:
    """Let the table of files have null in the column `amount`, or not."""
    if isinstance(site, IcebergSite):
        catalog = SqlCatalog("ratchet", uri=f"sqlite:///{site.path / 'catalog.db'}", warehouse=f"file://{site.path}")
        with closing(catalog), catalog.load_table("ratchet.results").update_schema(
            allow_incompatible_changes=True
        ) as update:  # fmt: skip
            update.update_column("amount", required=required)
        return
    log = Path(site.path) / "_delta_log"
    actions = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    [metadata] = [action["metaData"] for action in actions if "metaData" in action]
    schema = json.loads(metadata["schemaString"])
    for field in schema["fields"]:
        field["nullable"] = field["nullable"] if field["name"] != "amount" else not required
    metadata["schemaString"] = json.dumps(schema)
    newest = max(int(path.stem) for path in log.glob("*.json"))
    (log / f"{newest + 1:020}.json").write_text(json.dumps({"metaData": metadata}))


@pytest.fixture
def site(request: pytest.FixtureRequest, kind: str, name: str, mode: str, tmp_path: Path) -> Any:
    unique = f"schema of {kind} {name} {mode}"
    if kind == "mysql":
        return MysqlSite(request.getfixturevalue("mariadb"), unique)
    if kind.startswith("postgres"):
        made = PostgresSite if kind == "postgres" else PostgresTasksSite
        return made(request.getfixturevalue("postgres"), unique)
    return {"delta": DeltaSite, "duckdb": DuckDBSite, "iceberg": IcebergSite}[kind](tmp_path)


def opened(site: Any, mode: str) -> tuple[Any, Callable[[DataFrame], DataFrame]]:
    """Return a holder of the table, and the function that makes its rows."""
    write_mode, schema = MODES[mode], struct_of(SCHEMA)
    if mode == "append":
        store = site.make()
        store.open(schema)
        return store, lambda rows: rows
    store = site.make(write_mode=write_mode)
    store.open(table_schema(write_mode, schema))
    return store, lambda rows: reduced(rows, write_mode)


@pytest.mark.parametrize(("kind", "name", "mode"), CASES)
def test_a_rule_is_named_and_every_row_is_there_once_it_is_gone(
    site: Any, spark: SparkSession, kind: str, name: str, mode: str
) -> None:
    rule = RULES[kind][name]
    store, made = opened(site, mode)
    store.commit(made(spark.createDataFrame([(0, 0, "z", 2)], SCHEMA)), {0: 0}, {0: 1})
    of_files = kind in ("delta", "iceberg")
    if of_files:
        require_amount(site, True)
        store, _ = opened(site, mode)
    else:
        execute(site, rule.add)
    before = sorted(site.rows(), key=str)
    rows = made(spark.createDataFrame([(0, 1, "a", 1), (0, 2, "b", None), (0, 3, "c", 3)], SCHEMA))
    for _ in range(2):  # the same again while the rule stands
        with pytest.raises(StoreError, match=rule.named) as refusal:
            store.commit(rows, {0: 1}, {0: 4})
        assert "Failing row" not in str(refusal.value)
        assert "rights" not in str(refusal.value)
        assert sorted(site.rows(), key=str) == before
        assert store.offsets() == {0: 1}
    if of_files:
        require_amount(site, False)
        store, _ = opened(site, mode)
    else:
        execute(site, rule.drop)
    assert store.commit(rows, {0: 1}, {0: 4}) == 3
    assert sorted(row["who"] for row in site.rows()) == ["a", "b", "c", "z"]
    assert store.offsets() == {0: 4}


OLD_ROW = {
    "postgres": Rule(
        "CREATE FUNCTION {s}.keep() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN OLD\\; END$$; "
        "CREATE TRIGGER keeps BEFORE UPDATE ON {t} FOR EACH ROW EXECUTE FUNCTION {s}.keep()",
        "DROP TRIGGER keeps ON {t}",
        "results.*trigger keeps",
    ),
    "mysql": Rule(
        "CREATE TRIGGER keeps BEFORE UPDATE ON {t} FOR EACH ROW SET NEW.amount = OLD.amount{more}",
        "DROP TRIGGER {s}.keeps",
        "results.*triggers: keeps",
    ),
}


@pytest.mark.parametrize(
    ("kind", "name", "mode"),
    [param(kind, "old row", mode, by_default=kind != "mysql") for kind in OLD_ROW for mode in ("upsert", "totals")],
)
def test_a_trigger_that_keeps_the_old_row_of_a_key_is_an_error(
    site: Any, spark: SparkSession, kind: str, name: str, mode: str
) -> None:
    store, made = opened(site, mode)
    store.commit(made(spark.createDataFrame([(0, 0, "a", 1), (0, 1, "b", 1)], SCHEMA)), {0: 0}, {0: 2})
    more = "" if mode == "upsert" else ", NEW._records = OLD._records"
    execute(site, OLD_ROW[kind].add.replace("{more}", more))
    before = sorted(site.rows(), key=str)
    rows = made(spark.createDataFrame([(0, 2, "b", 5), (0, 3, "c", 1)], SCHEMA))
    with pytest.raises(StoreError, match=OLD_ROW[kind].named):
        store.commit(rows, {0: 2}, {0: 4})
    assert sorted(site.rows(), key=str) == before
    assert store.offsets() == {0: 2}
    execute(site, OLD_ROW[kind].drop)
    store.commit(rows, {0: 2}, {0: 4})
    amounts = {row["who"]: row["amount"] for row in site.rows()}
    assert amounts == {"a": 1, "b": 5 if mode == "upsert" else 6, "c": 1}


def test_several_rows_of_one_key_in_duckdb_are_an_error(tmp_path: Path, spark: SparkSession) -> None:
    write_mode = MODES["totals"]
    store = duckdb_store(str(tmp_path / "x.duckdb"), "results", "job", "events", 0, write_mode)
    store.open(table_schema(write_mode, struct_of(SCHEMA)))
    store.commit(reduced(spark.createDataFrame([(0, 0, "a", 1)], SCHEMA), write_mode), {0: 0}, {0: 1})
    with duckdb.connect(str(tmp_path / "x.duckdb")) as database:
        database.execute("INSERT INTO results SELECT * FROM results")
    with pytest.raises(StoreError, match=r"stored 2 rows instead of 1.*keys with several rows"):
        store.commit(reduced(spark.createDataFrame([(0, 1, "a", 1)], SCHEMA), write_mode), {0: 1}, {0: 2})
    assert store.offsets() == {0: 1}


def test_a_take_over_whose_generation_is_not_stored_is_refused(
    request: pytest.FixtureRequest, spark: SparkSession
) -> None:
    site = PostgresSite(request.getfixturevalue("postgres"), "schema of a take-over")
    site.make().open(struct_of(SCHEMA))
    execute(
        site,
        "CREATE FUNCTION {s}.keep() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NULL\\; END$$; "
        "CREATE TRIGGER keeps BEFORE UPDATE ON {s}.ratchet_sink_jobs FOR EACH ROW EXECUTE FUNCTION {s}.keep()",
    )
    with pytest.raises(StoreError, match=r"generation of job job was not stored.*ratchet_sink_jobs"):
        site.make().open(struct_of(SCHEMA))
