"""SQL by which staged rows with a key change the rows of a PostgreSQL table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.write_mode import COUNT_COLUMN, WriteMode
from kafka_ratchet.spark_sink.stores.postgres.job_state import JobState
from kafka_ratchet.spark_sink.stores.postgres.types import Column

if TYPE_CHECKING:
    from psycopg import sql


def deletions(
    state: JobState, table: str, staging: str, tokens: list[str], write_mode: WriteMode
) -> list[sql.Composed]:
    """Statements that take the rows of deleted keys away.

    One for keys without null, which PostgreSQL looks up in the index, and one for the few with it.

    Args:
        state: of the job.
        table: the result table.
        staging: has the deletions.
        tokens: of the staged rows that count.
        write_mode: with a key.
    """
    from psycopg import sql

    def each(form: str, between: str) -> sql.Composed:
        return sql.SQL(between).join(sql.SQL(form).format(sql.Identifier(name)) for name in write_mode.key)

    same = each("target.{0} = source.{0}", " AND ")
    same_with_null = sql.SQL("({}) AND {}").format(
        each("source.{0} IS NULL", " OR "), each("target.{0} IS NOT DISTINCT FROM source.{0}", " AND ")
    )
    return [
        state.text(
            "DELETE FROM {table} AS target USING {staging} AS source "
            "WHERE source.ratchet_token = ANY({tokens}) AND source.{deleted} AND {match}",
            table=state.table(table),
            staging=state.table(staging),
            tokens=sql.Literal(tokens),
            deleted=sql.Identifier(DELETED),
            match=match,
        )
        for match in (same, same_with_null)
    ]


def on_conflict(columns: list[Column], write_mode: WriteMode) -> sql.Composed:
    """What an INSERT does with a row whose key is there: replaces it, or adds to its totals."""
    from psycopg import sql

    added = {COUNT_COLUMN, *write_mode.sums} if write_mode.kind == "totals" else set()
    changes = [
        sql.SQL("{0} = target.{0} + excluded.{0}" if column.name in added else "{0} = excluded.{0}").format(
            sql.Identifier(column.name)
        )
        for column in columns
        if column.name not in write_mode.key
    ]
    key = sql.SQL(", ").join(map(sql.Identifier, write_mode.key))
    if not changes:  # every column is of the key, so that a row that is there is the same
        return sql.SQL("ON CONFLICT ({}) DO NOTHING").format(key)
    return sql.SQL("ON CONFLICT ({}) DO UPDATE SET {}").format(key, sql.SQL(", ").join(changes))
