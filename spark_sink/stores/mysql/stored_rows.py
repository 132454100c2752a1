"""Comparison of the rows that MySQL stored with the staged ones, before the transaction commits.

No trigger of MySQL drops a row without an error, but a BEFORE trigger may store other values than were inserted. So
rows with a key are read back by their key, and appended rows are counted by the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.rows.aggregates import COUNT_COLUMN
from kafka_ratchet.spark_sink.rows.columns import DELETED, RECORD
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.mysql.connection import literal, quoted
from kafka_ratchet.spark_sink.stores.mysql.merge import of_tokens
from kafka_ratchet.spark_sink.stores.mysql.tables import key_column
from kafka_ratchet.spark_sink.stores.mysql.types import key_expression
from kafka_ratchet.spark_sink.stores.sql_types import Column

if TYPE_CHECKING:
    from kafka_ratchet.spark_sink.stores.mysql.connection import Database
    from kafka_ratchet.spark_sink.stores.mysql.job_state import JobState


class StoredRows:
    """Check of one staging table's rows before and after they are moved into their table.

    Args:
        state: the job's state.
        database: connection during the transaction that moves the rows.
        table: target of the move.
        staging: source of the move.
        tokens: tokens of the tasks; only their staged rows are moved.
        columns: columns of the rows.
        write_mode: effect of the rows on the table.
    """

    def __init__(
        self,
        state: JobState,
        database: Database,
        table: str,
        staging: str,
        tokens: Iterable[str],
        columns: Sequence[Column],
        write_mode: WriteMode,
    ) -> None:
        self._state, self._database, self._table = state, database, table
        self._columns, self._write_mode = columns, write_mode
        self._place, self._staging = state.table(table), state.table(staging)
        self._counts = f"{of_tokens('source', tokens)} AND NOT source.{quoted(DELETED)}"
        has_record = {column.name for column in columns}.issuperset(RECORD)
        self._searched = write_mode.kind == "append" and has_record and bool(self._triggers())
        self._given = self._number("COUNT(*)", f"{self._staging} AS source")
        self._present = self._search() if self._searched else 0
        self._total = self._sum() if write_mode.kind == "totals" else 0

    def require(self, inserted: int) -> None:
        """Raise unless the table contains every staged row unchanged.

        Args:
            inserted: number of inserted rows, as the server counted them.

        Raises:
            StoreError: a row is missing or was changed; the transaction has to be rolled back.
        """
        kind = self._write_mode.kind
        stored = inserted if kind == "append" else self._search()
        if self._searched:
            stored = min(stored, self._search() - self._present)
        if stored != self._given:
            self._refuse(f"has stored {stored} of {self._given} rows as given by the job")
        if kind == "totals":
            added = self._sum() - self._total
            given = self._number(f"COALESCE(SUM(source.{quoted(COUNT_COLUMN)}), 0)", f"{self._staging} AS source")
            if added != given:
                self._refuse(f"counts {added} more records in its totals, and the job added {given} records")

    def refuse_signal(self, reason: str) -> None:
        """Raise the error of a trigger that refused a row; the message names the table's triggers."""
        self._refuse(f"refuses a row ({reason})")

    def _refuse(self, what: str) -> None:
        names = self._triggers() or "none that this user can see"
        raise StoreError(
            f"{self._state.where}: {self._table} {what}. The table has the triggers: {names}. Nothing was added and no "
            "offset moved. Drop or change the one that refuses or changes rows, then start the job again"
        )

    def _triggers(self) -> str:
        found = self._state.run(
            self._database,
            "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = {schema} "
            "AND EVENT_OBJECT_TABLE = {name} ORDER BY TRIGGER_NAME",
            schema=literal(self._state.schema),
            name=literal(self._table),
        )
        return ", ".join(str(name) for (name,) in found)

    def _search(self) -> int:
        """Return the number of staged rows that the table contains."""
        return self._number("COUNT(*)", self._joined())

    def _sum(self) -> int:
        """Return the number of records in the totals of the staged keys."""
        return self._number(f"COALESCE(SUM(target.{quoted(COUNT_COLUMN)}), 0)", self._joined())

    def _joined(self) -> str:
        key = self._write_mode.key
        if not key:
            same = " AND ".join(f"target.{name} <=> source.{name}" for name in map(quoted, RECORD))
        else:
            same = f"target.{quoted(key_column(key))} = {key_expression(tuple(sorted(key)), 'source')}"
        if self._write_mode.kind == "upsert":
            same += "".join(f" AND {_is_same(column)}" for column in self._columns)
        return f"{self._staging} AS source JOIN {self._place} AS target ON {same}"

    def _number(self, counted: str, rows: str) -> int:
        statement = f"SELECT {counted} FROM {rows} WHERE {self._counts}"  # noqa: S608 - names are quoted
        [(found,)] = self._state.execute(self._database, statement)
        return int(found)


def _is_same(column: Column) -> str:
    """Return the SQL condition that source and target have one value in a column; texts are compared by UTF-8 bytes."""
    form = "CAST(CONVERT({}.{} USING utf8mb4) AS BINARY)" if column.type.startswith("longtext") else "{}.{}"
    return " <=> ".join(form.format(side, quoted(column.name)) for side in ("target", "source"))
