"""SQL that changes a MySQL table by rows of a staging table."""

from __future__ import annotations

from collections.abc import Iterable

from kafka_ratchet.spark_sink.rows.aggregates import COUNT_COLUMN
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.mysql.connection import literal, quoted
from kafka_ratchet.spark_sink.stores.mysql.tables import key_column
from kafka_ratchet.spark_sink.stores.mysql.types import TOKEN, key_expression, names
from kafka_ratchet.spark_sink.stores.sql_types import Column


def staging_columns(defined: Iterable[str]) -> list[str]:
    """Return a staging table's columns: the task's token, the columns of the rows, and the deletion flag."""
    return [f"{TOKEN} CHAR(32) NOT NULL", *defined, f"{quoted(DELETED)} TINYINT(1) NOT NULL DEFAULT 0"]


def deletion(table: str, staging: str, tokens: Iterable[str], write_mode: WriteMode) -> str:
    """Return the statement that deletes the rows of keys marked as deleted; table names are already quoted.

    The statement uses no aliases, because MySQL would look for an alias in the session's database.
    """
    same = f"{table}.{quoted(key_column(write_mode.key))} = {key_expression(tuple(sorted(write_mode.key)), staging)}"
    return (
        f"DELETE FROM {table} USING {table} JOIN {staging} ON {same} "  # noqa: S608
        f"WHERE {of_tokens(staging, tokens)} AND {staging}.{quoted(DELETED)}"
    )


def replacement(table: str, staging: str, tokens: Iterable[str], identity: tuple[str, ...], *, keyed: bool) -> str:
    """Return the statement that deletes the rows with identities marked as deleted; table names are already quoted.

    Args:
        table: the table.
        staging: the staging table.
        tokens: tokens of the tasks; only their staged rows belong to the commit.
        identity: names of the identity columns.
        keyed: True if the identity is the table's key, so that the index over the key finds the rows.
    """
    if keyed:
        return deletion(table, staging, tokens, WriteMode("upsert", identity))
    same = " AND ".join(f"{table}.{name} <=> {staging}.{name}" for name in map(quoted, identity))
    return (
        f"DELETE FROM {table} USING {table} JOIN {staging} ON {same} "  # noqa: S608
        f"WHERE {of_tokens(staging, tokens)} AND {staging}.{quoted(DELETED)}"
    )


def insertion(table: str, staging: str, tokens: Iterable[str], columns: list[Column], write_mode: WriteMode) -> str:
    """Return the statement that inserts staged rows, or adds them to their keys' totals."""
    into = [column.name for column in columns]
    insert = (
        f"INSERT INTO {table} ({names(into)}) SELECT {names(into, 'source')} FROM {staging} AS source "  # noqa: S608
        f"WHERE {of_tokens('source', tokens)} AND NOT source.{quoted(DELETED)}"
    )
    if not write_mode.key:
        return insert
    added = {COUNT_COLUMN, *write_mode.sums} if write_mode.kind == "totals" else set()
    changes = []
    for column in columns:
        name = quoted(column.name)
        if column.name in write_mode.key:
            continue
        was = f"{table}.{name} + " if column.name in added else ""
        changes.append(f"{table}.{name} = {was}source.{name}")
    if not changes:  # every column is part of the key, so that an existing row is the same
        name = quoted(columns[0].name)
        changes = [f"{table}.{name} = {table}.{name}"]
    return f"{insert} ON DUPLICATE KEY UPDATE {', '.join(changes)}"


def counted(staging: str, tokens: Iterable[str]) -> str:
    """Return the query for the number of staged rows that belong to the commit; the table name is already quoted."""
    return f"SELECT COUNT(*) FROM {staging} WHERE {of_tokens(staging, tokens)}"  # noqa: S608


def of_tokens(staging: str, tokens: Iterable[str]) -> str:
    """Return the SQL condition for staged rows with one of the tokens."""
    listed = ", ".join(map(literal, tokens)) or "''"
    return f"{staging}.{TOKEN} IN ({listed})"
