"""Marks of the tables that the offsets in a MySQL database belong to, so that a replaced table is noticed.

Rows and offsets are in one database, so a backup restored as a whole agrees with itself. Other changes hit the result
table alone: it is dropped, created again, or emptied. MySQL keeps its numbers of tables for itself, so each table
carries an id in its comment. Each commit notes that id and whether the table had rows.
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
"""Pattern of the id in a table's comment; the rest of the comment is the user's."""

MAX_COMMENT = 2048
"""Characters of a table's comment, at most."""


class State(Protocol):
    """Part of the job's state that marks need."""

    where: str

    def table(self, name: str) -> str:
        """Return the quoted name of a table in the result's database."""

    def described(self, database: Database, name: str) -> tuple[str, str] | None:
        """Return engine and comment of a table; None: there is none."""

    def run(self, database: Database, statement: str, **parts: str) -> list[tuple[Any, ...]]:
        """Execute a statement, and return its rows."""


class Look(NamedTuple):
    """Present state of a table."""

    is_there: bool
    id: str = ""
    """Id in the comment; empty: the table has none."""
    is_filled: bool = False


class Marks:
    """Rows of `ratchet_sink_marks` about a job.

    Args:
        state: the job's state.
        topic_id: the topic's id, or 0.
        relations: the tables that the offsets belong to, the result first.
    """

    cleared = ""
    """See `sql_job_state.Marks`."""

    def __init__(self, state: State, topic_id: int, relations: Sequence[str]) -> None:
        self._state, self._topic_id, self._relations = state, topic_id, relations

    def give_ids(self, database: Database) -> None:
        """Give an id to each table without one: it is new, or another program has made it.

        Commits the open transaction.
        """
        for relation in self._relations:
            found = self._state.described(database, relation)
            if found is not None and not ID.search(found[1]):
                comment = f"{found[1]} [ratchet {secrets.token_hex(8)}]".strip()
                if len(comment) > MAX_COMMENT:
                    raise StoreError(f"{self._state.where}: the comment of {relation} leaves no room for an id. Cut it")
                self._state.run(
                    database,
                    "ALTER TABLE {table} COMMENT = {comment}",
                    table=self._state.table(relation),
                    comment=comment_literal(comment),
                )

    def note(self, database: Database) -> None:
        """Note the tables that the offsets belong to, in the caller's transaction."""
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
        """Return which table has changed since the last note, and how; empty: none.

        The text is a sentence without its end. Only for a job with offsets.
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

    def _look(self, database: Database, relation: str) -> Look:
        """Return the present state of a table.

        Raises:
            StoreError: it is of an engine without transactions, or a view.
        """
        found = self._state.described(database, relation)
        if found is None:
            return Look(False)
        self.require_engine(relation, found[0])
        rows = self._state.run(database, "SELECT 1 FROM {table} LIMIT 1", table=self._state.table(relation))
        match = ID.search(found[1])
        return Look(True, match[1] if match else "", bool(rows))

    def require_engine(self, relation: str, engine: str) -> None:
        """Refuse a table that keeps rows after a rollback of their transaction."""
        if engine.lower() != "innodb":
            raise StoreError(
                f"{self._state.where}: {relation} is {f'a table of engine {engine}' if engine else 'no table'}, and "
                f"only InnoDB commits rows and offsets together. ALTER TABLE {self._state.table(relation)} ENGINE = "
                "InnoDB, or choose another table"
            )
