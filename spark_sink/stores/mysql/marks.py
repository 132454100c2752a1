"""Marks of the tables that the offsets in a MySQL database belong to; the marks reveal a replaced table.

Rows and offsets are in one database, so a backup restored as a whole is consistent. But the result table alone may be
dropped, created again, or emptied. MySQL reveals no lasting number of a table, so the store writes an id into the
table's comment. Each commit stores that id, and whether the table had rows.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kafka_ratchet.spark_sink import topic_ids
from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.stores.mysql.connection import literal
from kafka_ratchet.spark_sink.stores.mysql.types import comment_literal
from kafka_ratchet.spark_sink.stores.sql_job_state import OF_JOB

if TYPE_CHECKING:
    from kafka_ratchet.spark_sink.stores.mysql.connection import Database

ID = re.compile(r"\[ratchet ([0-9a-f]{16})\]")
"""Pattern of the id in a table's comment; the rest of the comment is the user's text."""

MAX_COMMENT = 2048
"""Maximum number of characters in a table's comment."""


GIVEN = (
    "INSERT INTO {marks} SELECT {result}, {job}, {topic}, {relation}, '', {table_id}, 0 FROM DUAL "  # noqa: S608
    f"WHERE NOT EXISTS (SELECT 1 FROM {{offsets}} {OF_JOB}) ON DUPLICATE KEY UPDATE table_id = {{table_id}}"
)
"""Statement that stores a mark with a table's new id, for a job without offsets; `note` replaces the mark later."""


class State(Protocol):
    """Part of a job's state that `Marks` uses."""

    where: str

    def table(self, name: str) -> str:
        """Return the quoted name of a table in the result's database."""

    def described(self, database: Database, name: str) -> tuple[str, str] | None:
        """Return the engine and the comment of a table; None: there is no such table."""

    def run(self, database: Database, statement: str, **parts: str) -> list[tuple[Any, ...]]:
        """Execute a statement, and return its rows."""


class TableState(NamedTuple):
    """Present state of a table, for comparison with its mark."""

    is_there: bool
    id: str = ""
    """Id in the table's comment; empty: the comment contains none."""
    is_filled: bool = False


class Marks:
    """Marks of a job's tables, stored in `ratchet_sink_marks`.

    Args:
        state: the job's state.
        topic_id: the topic's id; 0: unknown.
        relations: names of the tables that the offsets belong to, the result table first.
    """

    cleared = ""
    """See `sql_job_state.Marks`."""

    def __init__(self, state: State, topic_id: int, relations: Sequence[str]) -> None:
        self._state, self._topic_id, self._relations = state, topic_id, relations

    def give_ids(self, database: Database) -> None:
        """Write an id into the comment of each table without one.

        Each ALTER TABLE commits the open transaction.

        Raises:
            StoreError: the comment is too long for an id.
        """
        for relation in self._relations:
            found = self._state.described(database, relation)
            if found is not None and not ID.search(found[1]):
                table_id = secrets.token_hex(8)
                comment = f"{found[1]} [ratchet {table_id}]".strip()
                if len(comment) > MAX_COMMENT:
                    raise StoreError(
                        f"{self._state.where}: the comment of {relation} leaves no room for an id. Shorten the comment"
                    )
                if relation == self._relations[0]:  # if this start is killed, the next one knows the id by its mark
                    self._state.run(database, GIVEN, relation=literal(relation), table_id=literal(table_id))
                self._state.run(
                    database,
                    "ALTER TABLE {table} COMMENT = {comment}",
                    table=self._state.table(relation),
                    comment=comment_literal(comment),
                )

    def note(self, database: Database) -> None:
        """Store marks of the tables as they are now, in the caller's transaction."""
        self._state.run(database, f"DELETE FROM {{marks}} {OF_JOB}")  # noqa: S608
        for relation in self._relations:
            look = self._look(database, relation)
            self._state.run(
                database,
                "INSERT INTO {marks} VALUES ({result}, {job}, {topic}, {relation}, {topic_id}, {table_id}, {filled})",
                relation=literal(relation),
                topic_id=literal(topic_ids.text(self._topic_id)),
                table_id=literal(look.id),
                filled=literal(look.is_filled),
            )

    def inconsistency(self, database: Database) -> tuple[str, str]:
        """Return a table changed after its mark was stored, and a sentence about the change; else two empty texts.

        The sentence has no full stop. The job must have stored offsets.
        """
        noted: dict[str, tuple[str, int]] = {}
        if self._state.described(database, "ratchet_sink_marks") is not None:
            found = self._state.run(database, f"SELECT relation, table_id, filled FROM {{marks}} {OF_JOB}")  # noqa: S608
            noted = {relation: (table_id, filled) for relation, table_id, filled in found}
        for relation in self._relations:
            look = self._look(database, relation)
            if relation not in noted:
                if relation == self._relations[0] and not look.is_there:
                    return relation, f"table {relation} was dropped"
                continue
            was_id, was_filled = noted[relation]
            if not was_id:
                continue  # an operator has decided without a table
            if not look.is_there:
                return relation, f"table {relation} was dropped"
            if look.id != was_id:
                return relation, f"table {relation} is another one (the id in its comment is {look.id or 'gone'})"
            if was_filled and not look.is_filled and relation != self.cleared:
                return relation, f"table {relation} was emptied"
        return "", ""

    def _look(self, database: Database, relation: str) -> TableState:
        """Return the present state of a table.

        Raises:
            StoreError: the table is a view, or its engine is not InnoDB.
        """
        found = self._state.described(database, relation)
        if found is None:
            return TableState(False)
        self.require_engine(relation, found[0])
        rows = self._state.run(database, "SELECT 1 FROM {table} LIMIT 1", table=self._state.table(relation))
        match = ID.search(found[1])
        return TableState(True, match[1] if match else "", bool(rows))

    def require_engine(self, relation: str, engine: str) -> None:
        """Refuse a view, and a table of an engine without transactions.

        Raises:
            StoreError: the engine is not InnoDB.
        """
        if engine.lower() != "innodb":
            raise StoreError(
                f"{self._state.where}: {relation} is {f'a table of engine {engine}' if engine else 'no table'}, and "
                f"only InnoDB commits rows and offsets together. Convert a table (ALTER TABLE "
                f"{self._state.table(relation)} ENGINE = InnoDB), or choose another table"
            )
