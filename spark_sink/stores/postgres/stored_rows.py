"""Comparison of the rows that PostgreSQL stored with the staged ones, before the transaction commits.

A BEFORE trigger that returns null drops a row without an error, and the command's row count shows it. A later trigger,
or a rule, can remove rows that the command has already counted; in that case the table itself is searched for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.rows.aggregates import COUNT_COLUMN
from kafka_ratchet.spark_sink.stores.sql_job_state import SqlJobState

if TYPE_CHECKING:
    from typing import LiteralString

    from psycopg import sql

    from kafka_ratchet.spark_sink.stores.postgres.types import Database


RELATIONS: LiteralString = "(SELECT to_regclass({table})::oid UNION SELECT relid FROM pg_partition_tree({table}))"
TRIGGERS: LiteralString = (
    "SELECT 'trigger ' || tgname AS name FROM pg_trigger "  # noqa: S608
    "WHERE NOT tgisinternal AND tgenabled <> 'D' AND tgrelid IN " + RELATIONS
)
RULES: LiteralString = (
    "SELECT 'rule ' || rulename FROM pg_rewrite WHERE rulename <> '_RETURN' AND ev_class IN " + RELATIONS  # noqa: S608
)

TAKERS: LiteralString = (
    "SELECT coalesce(string_agg(name, ', ' ORDER BY name), 'no trigger or rule') FROM ("  # noqa: S608
    + TRIGGERS + " UNION " + RULES + ") AS found"
)  # fmt: skip
"""Query for the names of the triggers and rules of a table and its partitions."""

NOT_BEFORE: LiteralString = "SELECT EXISTS (" + TRIGGERS + " AND tgtype & 2 = 0) OR EXISTS (" + RULES + ")"
"""Query whether a trigger or rule can act after a command has counted a row; 2 is TRIGGER_TYPE_BEFORE."""

ANY: LiteralString = "SELECT EXISTS (" + TRIGGERS + ") OR EXISTS (" + RULES + ")"
"""Query whether the table or a partition of it has a trigger or rule."""

DEFERRED: LiteralString = "SET CONSTRAINTS ALL IMMEDIATE"
"""Statement that makes constraint triggers run now instead of at the commit."""

POLICIES: LiteralString = (
    "SELECT CASE WHEN row_security_active(to_regclass({table})::oid) THEN coalesce((SELECT string_agg(polname, ', ' "
    "ORDER BY polname) FROM pg_policy WHERE polrelid = to_regclass({table})), 'none, so that all rows are hidden') END "
    "WHERE to_regclass({table}) IS NOT NULL"
)
"""Query for the policies that decide which rows of a table this role sees; null: the role sees all rows."""


def require_every_row(state: SqlJobState[Database], database: Database, tables: Sequence[str], where: str) -> None:
    """Refuse tables with a row-level security policy that may hide rows from the job.

    Raises:
        StoreError: a table has such a policy, so that counts, replacements and deletions are uncertain.
    """
    for table in tables:
        for (policies,) in state.run(database, POLICIES, table=_literal(state, table)):
            if policies is not None:
                raise StoreError(
                    f"{where}: row-level security of {table} applies to the job's role (policies: {policies}), and "
                    "may hide or refuse rows. Nothing was committed. Give the role BYPASSRLS, or make it the owner of "
                    "the table without FORCE ROW LEVEL SECURITY"
                )


def can_lose_later(state: SqlJobState[Database], database: Database, table: str) -> bool:
    """Return whether a trigger or rule may remove rows after a command has counted them."""
    [(found,)] = state.run(database, NOT_BEFORE, table=_literal(state, table))
    return bool(found)


def can_alter(state: SqlJobState[Database], database: Database, table: str) -> bool:
    """Return whether a trigger or rule may store other values than a command inserts."""
    [(found,)] = state.run(database, ANY, table=_literal(state, table))
    return bool(found)


def count_present(
    state: SqlJobState[Database], database: Database, table: str, staging: str, rows: sql.Composable, key: Sequence[str]
) -> int:
    """Count the staged rows that the table contains, by the columns in `key`.

    Args:
        state: the job's state.
        database: connection during the transaction that moves the rows.
        table: target of the move.
        staging: source of the move.
        rows: condition for the staged rows of the commit.
        key: names of the columns to compare, where null equals null: the key columns, or all.
    """
    database.execute(DEFERRED)
    [(found,)] = state.run(
        database,
        "SELECT count(*) FROM (SELECT {key} FROM {staging} WHERE {rows} INTERSECT SELECT {key} FROM {table}) AS kept",
        key=state.names(key),
        staging=state.table(staging),
        rows=rows,
        table=state.table(table),
    )
    return int(found)


def count_records(
    state: SqlJobState[Database], database: Database, table: str, staging: str, rows: sql.Composable
) -> int:
    """Count the table's rows with the partition and offset of a staged row.

    The arguments are those of `count_present`. The count includes rows of other topics with the same partition and
    offset, and every row that a transform made of one record. So the caller counts before and after the insert, and
    compares the difference with the number of added rows.
    """
    database.execute(DEFERRED)
    record = "coalesce(_kafka_partition, -1), coalesce(_kafka_offset, -1)"
    [(found,)] = state.run(
        database,
        f"SELECT count(*) FROM {{table}} WHERE ({record}) IN (SELECT {record} FROM {{staging}} WHERE {{rows}})",  # noqa: S608
        staging=state.table(staging),
        rows=rows,
        table=state.table(table),
    )
    return int(found)


def require_stored(
    state: SqlJobState[Database], database: Database, table: str, where: str, given: int, stored: int
) -> None:
    """Raise unless the table has stored every row unchanged.

    Raises:
        StoreError: a row is missing or was changed; the caller's transaction has to be rolled back.
    """
    if stored != given:
        raise StoreError(
            f"{where}: {table} has stored {stored} of {given} rows as given by the job. "
            f"{_remedy(state, database, table)}, then start the job again"
        )


def sum_of_keys(
    state: SqlJobState[Database], database: Database, table: str, staging: str, rows: sql.Composable, key: Sequence[str]
) -> int:
    """Return the number of records in the totals of the staged keys; see `count_present` for the arguments."""
    from psycopg import sql

    database.execute(DEFERRED)
    same = sql.SQL(" AND ").join(
        sql.SQL("target.{0} IS NOT DISTINCT FROM source.{0}").format(sql.Identifier(name)) for name in key
    )
    [(found,)] = state.run(
        database,
        "SELECT coalesce(sum(target.{counted}), 0) FROM {table} AS target, {staging} AS source WHERE {rows} AND {same}",
        counted=sql.Identifier(COUNT_COLUMN),
        table=state.table(table),
        staging=state.table(staging),
        rows=rows,
        same=same,
    )
    return int(found)


def require_added(
    state: SqlJobState[Database], database: Database, table: str, where: str, staged: tuple[str, sql.Composable],
    added: int
) -> None:  # fmt: skip
    """Raise unless totals have grown by the number of records in the staged rows.

    Args:
        state: the job's state.
        database: connection during the transaction.
        table: table with the totals.
        where: the table, as messages name it.
        staged: the staging table, and the condition for its rows of the commit.
        added: number of records that the totals of the staged keys have gained.

    Raises:
        StoreError: a trigger or rule has changed the totals.
    """
    from psycopg import sql

    [(given,)] = state.run(
        database,
        "SELECT coalesce(sum({counted}), 0) FROM {staging} WHERE {rows}",
        counted=sql.Identifier(COUNT_COLUMN),
        staging=state.table(staged[0]),
        rows=staged[1],
    )
    if int(given) != added:
        raise StoreError(
            f"{where}: the job added {given} records to the totals in {table}, but these count {added} more records. A "
            "trigger or rule has changed them. "
            f"{_remedy(state, database, table)}, then start the job again"
        )


def require_deleted(state: SqlJobState[Database], database: Database, table: str, where: str, left: int) -> None:
    """Raise if the table still contains rows of deleted keys.

    Raises:
        StoreError: rows are left; the caller's transaction has to be rolled back.
    """
    if left:
        raise StoreError(
            f"{where}: {table} still has {left} rows that records without a value should have deleted. "
            f"{_remedy(state, database, table)}, then start the job again"
        )


def _remedy(state: SqlJobState[Database], database: Database, table: str) -> str:
    [(names,)] = state.run(database, TAKERS, table=_literal(state, table))
    return f"The table has: {names}. Nothing was committed. Drop or change the one that removes or changes rows"


def _literal(state: SqlJobState[Database], table: str) -> sql.Literal:
    literal: sql.Literal = state.literal(state.table(table).as_string(None))
    return literal
