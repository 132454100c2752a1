"""SQL that changes a PostgreSQL table by staged rows with a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.rows.aggregates import ENDINGS
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.distinct import HASHES
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.merge_sql import Dialect, changes
from kafka_ratchet.spark_sink.stores.postgres.job_state import JobState
from kafka_ratchet.spark_sink.stores.sql_types import Column

if TYPE_CHECKING:
    from typing import LiteralString

    from psycopg import sql


def deletions(
    state: JobState, table: str, staging: str, tokens: list[str], write_mode: WriteMode
) -> list[sql.Composed]:
    """Return the statements that delete the rows of keys marked as deleted.

    The first statement is for keys without null, which PostgreSQL finds by the index. The second is for keys with null.

    Args:
        state: state of the job.
        table: name of the result table.
        staging: name of the staging table with the deletions.
        tokens: tokens of the tasks; only their staged rows belong to the commit.
        write_mode: write mode with a key.
    """
    from psycopg import sql

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
        for match in _matches(write_mode)
    ]


def remaining(state: JobState, table: str, staging: str, tokens: list[str], write_mode: WriteMode) -> sql.Composed:
    """Return the query that counts rows of deleted keys still in the table.

    The statements of `deletions` should leave none.
    """
    from psycopg import sql

    each = [
        state.text(
            "(SELECT count(*) FROM {table} AS target, {staging} AS source "
            "WHERE source.ratchet_token = ANY({tokens}) AND source.{deleted} AND {match})",
            table=state.table(table),
            staging=state.table(staging),
            tokens=sql.Literal(tokens),
            deleted=sql.Identifier(DELETED),
            match=match,
        )
        for match in _matches(write_mode)
    ]
    return sql.SQL("SELECT {}").format(sql.SQL(" + ").join(each))


def _matches(write_mode: WriteMode) -> tuple[sql.Composed, sql.Composed]:
    """Return two SQL conditions for equal keys: one for keys without null, one for keys with null."""
    from psycopg import sql

    def each(form: str, between: str) -> sql.Composed:
        return sql.SQL(between).join(sql.SQL(form).format(sql.Identifier(name)) for name in write_mode.row_key)

    with_null = sql.SQL("({}) AND {}").format(
        each("source.{0} IS NULL", " OR "), each("target.{0} IS NOT DISTINCT FROM source.{0}", " AND ")
    )
    return each("target.{0} = source.{0}", " AND "), with_null


def on_conflict(columns: list[Column], write_mode: WriteMode) -> sql.Composed:
    """Return the ON CONFLICT clause for an existing key: replace the row, or add to its totals."""
    from psycopg import sql

    if write_mode.kind == "totals":
        assignments = _merge_assignments(columns, write_mode)
    else:
        assignments = [
            sql.SQL("{0} = excluded.{0}").format(sql.Identifier(column.name))
            for column in columns
            if column.name not in write_mode.row_key
        ]
    key = sql.SQL(", ").join(map(sql.Identifier, write_mode.row_key))
    if not assignments:  # every column is of the key; DO NOTHING would leave the row out of the command's count
        assignments = [sql.SQL("{0} = excluded.{0}").format(sql.Identifier(write_mode.row_key[0]))]
    return sql.SQL("ON CONFLICT ({}) DO UPDATE SET {}").format(key, sql.SQL(", ").join(assignments))


def _merge_assignments(columns: list[Column], write_mode: WriteMode) -> list[sql.Composable]:
    """Return the SQL assignments of the columns after the key, for totals."""
    from psycopg import sql

    dialect = _Dialect({column.name for column in columns if column.type == "text"})
    new = dict(changes(write_mode, dialect))
    assignments: list[sql.Composable] = []
    for each in write_mode.aggregates:
        if each.rule != "hashes":
            continue
        # Both in one: otherwise PostgreSQL would merge the lists once for the list, and twice more for its number.
        of_list = changes(write_mode, dialect, {each.name: sql.SQL("merged.list")})
        number = each.of + ENDINGS["distinct"]
        assignments.append(
            sql.SQL("({}, {}) = (SELECT merged.list, {} FROM (SELECT {} AS list OFFSET 0) AS merged)").format(
                sql.Identifier(each.name), sql.Identifier(number), of_list[number], new.pop(each.name)
            )
        )
        del new[number]
    return [
        *(sql.SQL("{} = {}").format(sql.Identifier(name), value) for name, value in new.items()),
        *assignments,
    ]


class _Dialect(Dialect["sql.Composable"]):
    """SQL dialect of PostgreSQL: the commit's row is `excluded`, text is compared by bytes, and a list is jsonb."""

    union = (
        "(SELECT coalesce(jsonb_agg(hash ORDER BY hash), '[]') FROM (SELECT DISTINCT each::bigint AS hash "  # noqa: S608
        f"FROM jsonb_array_elements_text({{target}} || {{source}}) AS each ORDER BY hash LIMIT {HASHES}) AS smallest)"
    )
    size = "jsonb_array_length({hashes})"
    last = f"({{hashes}} ->> {HASHES - 1})"

    def __init__(self, texts: set[str]) -> None:
        self._texts = texts

    def compose(self, template: LiteralString, **parts: sql.Composable) -> sql.Composable:
        from psycopg import sql

        return sql.SQL(template).format(**parts)

    def target(self, column: str) -> sql.Composable:
        return self._column("target.{}", column)

    def source(self, column: str) -> sql.Composable:
        return self._column("excluded.{}", column)

    def _column(self, template: LiteralString, column: str) -> sql.Composable:
        from psycopg import sql

        return sql.SQL(template).format(sql.Identifier(column))

    def ordered(self, column: str, value: sql.Composable) -> sql.Composable:
        return self.compose('{value} COLLATE "C"', value=value) if column in self._texts else value
