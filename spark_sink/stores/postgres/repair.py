"""Replacement of a PostgreSQL table's rows by staged rows, in the transaction of a repair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.decision import Replacement
from kafka_ratchet.spark_sink.stores.postgres.job_state import JobState
from kafka_ratchet.spark_sink.stores.postgres.merge import deletions, remaining
from kafka_ratchet.spark_sink.stores.postgres.stored_rows import (
    can_alter,
    count_present,
    require_deleted,
    require_stored,
)

if TYPE_CHECKING:
    from psycopg import sql

    from kafka_ratchet.spark_sink.stores.postgres.types import Database


@dataclass(frozen=True)
class StagedTable:
    """Rows in a staging table, with the statements that move them into their table.

    Args:
        target: table that the rows are moved into.
        staging: the staging table.
        tokens: number of rows by token of the task that staged them.
        removals: statements that first delete rows of `target`.
        insert: statement that then inserts the staged rows.
        key: names of the columns that identify a row of `target`; empty: no columns identify it.
        columns: names of the rows' columns.
    """

    target: str
    staging: str
    tokens: Mapping[str, int]
    removals: Sequence[sql.Composed]
    insert: sql.Composed
    key: Sequence[str]
    columns: Sequence[str]

    @property
    def rows(self) -> int:
        """See `sql_store.StagedRows`."""
        return sum(self.tokens.values())


def replace_staged(state: JobState, database: Database, staged: StagedTable, replacement: Replacement) -> None:
    """Delete the rows with the identities of a repair, and insert the staged rows.

    Raises:
        StoreError: staged rows are missing, or the table changed or refused some; the caller has to roll back.
    """
    from psycopg import sql

    tokens, where = list(staged.tokens), state.where
    counted = state.text(
        "SELECT count(*) FILTER (WHERE {deleted}), count(*) FILTER (WHERE NOT {deleted}) FROM {staging} "
        "WHERE ratchet_token = ANY({tokens})",
        staging=state.table(staged.staging),
        deleted=sql.Identifier(DELETED),
        tokens=sql.Literal(tokens),
    )
    [(gone, given)] = state.execute(database, counted)
    if (gone, given) != (replacement.gone.num_rows, replacement.count):
        raise StoreError(
            f"{where}: the staging table {staged.staging} has lost rows. Nothing was committed; run the repair again"
        )
    by_identity = WriteMode("upsert", replacement.identity)
    for statement in deletions(state, staged.target, staged.staging, tokens, by_identity):
        database.execute(statement)
    left = state.execute(database, remaining(state, staged.target, staged.staging, tokens, by_identity))
    require_deleted(state, database, staged.target, where, int(left[0][0]))
    stored = database.execute(staged.insert).rowcount
    if can_alter(state, database, staged.target):
        rows = state.text(
            "ratchet_token = ANY({tokens}) AND NOT {deleted}",
            tokens=sql.Literal(tokens),
            deleted=sql.Identifier(DELETED),
        )
        stored = min(stored, count_present(state, database, staged.target, staged.staging, rows, staged.columns))
    require_stored(state, database, staged.target, where, given, stored)
    state.run(database, "DROP TABLE {staging}", staging=state.table(staged.staging))
