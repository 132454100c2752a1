"""Which tables the offsets in a MySQL database belong to, so that a table put in their place is noticed.

Rows and offsets are in one database, so a backup restored as a whole agrees with itself. What remains is done to the
result table alone: dropped, made anew, or emptied. MySQL numbers tables for its own use only, so each table carries an
id in its comment, and each commit notes that id and whether the table had rows.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.stores import topic_ids
from kafka_ratchet.spark_sink.stores.mysql.connection import literal
from kafka_ratchet.spark_sink.stores.mysql.types import comment_literal

if TYPE_CHECKING:
    from kafka_ratchet.spark_sink.stores.mysql.connection import Database

ID = re.compile(r"\[ratchet ([0-9a-f]{16})\]")
"""How a table's comment says its id; what else the comment says is the user's."""

MAX_COMMENT = 2048
"""Characters of a table's comment."""


class Statements(Protocol):
    """What is asked of the job's state in the database."""

    where: str

    def table(self, name: str) -> str:
        """The table of that name, where the results are, quoted."""

    def described(self, database: Database, name: str) -> tuple[str, str] | None:
        """Engine and comment of a table; None: there is none."""

    def run(self, database: Database, statement: str, **parts: str) -> list[tuple[Any, ...]]:
        """The rows that a statement gives."""


CREATE = (
    "CREATE TABLE IF NOT EXISTS {marks} (result VARCHAR(64) NOT NULL, job VARCHAR(64) NOT NULL, "
    "topic VARCHAR(249) NOT NULL, relation VARCHAR(64) NOT NULL, topic_id VARCHAR(32) NOT NULL, "
    "table_id VARCHAR(16) NOT NULL, filled TINYINT(1) NOT NULL, PRIMARY KEY (result, job, topic, relation)) {options}",
    "CREATE TABLE IF NOT EXISTS {decisions} (id BIGINT AUTO_INCREMENT PRIMARY KEY, result VARCHAR(64) NOT NULL, "
    "job VARCHAR(64) NOT NULL, topic VARCHAR(249) NOT NULL, decided DATETIME(6) NOT NULL, decision LONGTEXT NOT NULL) "
    "{options}",
    "CREATE TABLE IF NOT EXISTS {rules} (result VARCHAR(64) NOT NULL, job VARCHAR(64) NOT NULL, "
    "rule LONGTEXT NOT NULL, PRIMARY KEY (result, job)) {options}",
)
OF_JOB = "WHERE result = {result} AND job = {job} AND topic = {topic}"


class Look(NamedTuple):
    """What a table is now."""

    is_there: bool
    id: str = ""
    """Empty: the table has none."""
    is_filled: bool = False


class Marks:
    """The tables `ratchet_sink_marks`, `ratchet_sink_rules` and `ratchet_sink_decisions`.

    Args:
        state: of the job.
        topic_id: of the topic, or 0.
        relations: the tables that the offsets belong to, the result first.
    """

    def __init__(self, state: Statements, topic_id: int, relations: Sequence[str]) -> None:
        self._state, self._topic_id, self._relations = state, topic_id, relations

    def create(self, database: Database, options: str) -> None:
        """Make the tables where they are not there."""
        for statement in CREATE:
            self._run(database, statement, options=options)

    def give_ids(self, database: Database) -> None:
        """Give each table an id that has none: it is new, or another program has made it. Commits what is open."""
        for relation in self._relations:
            found = self._state.described(database, relation)
            if found is not None and not ID.search(found[1]):
                comment = f"{found[1]} [ratchet {secrets.token_hex(8)}]".strip()
                if len(comment) > MAX_COMMENT:
                    raise StoreError(f"{self._state.where}: the comment of {relation} leaves no room for an id. Cut it")
                self._run(
                    database,
                    "ALTER TABLE {table} COMMENT = {comment}",
                    table=self._state.table(relation),
                    comment=comment_literal(comment),
                )

    def topic_id(self, database: Database) -> str:
        """The topic's id as it was noted last; empty: never."""
        if not self._is_there(database):
            return ""
        found = self._run(database, f"SELECT MAX(topic_id) FROM {{marks}} {OF_JOB}")  # noqa: S608
        return str(found[0][0] or "")

    def note(self, database: Database) -> None:
        """Remember the tables as the ones that the offsets belong to, in the caller's transaction."""
        self._run(database, f"DELETE FROM {{marks}} {OF_JOB}")  # noqa: S608
        for relation in self._relations:
            look = self._look(database, relation)
            self._run(
                database,
                "INSERT INTO {marks} VALUES ({result}, {job}, {topic}, {relation}, {topic_id}, {table_id}, {filled})",
                relation=literal(relation),
                topic_id=literal(topic_ids.text(self._topic_id)),
                table_id=literal(look.id),
                filled=literal(look.is_filled),
            )

    def inconsistency(self, database: Database) -> tuple[str, str]:
        """Which of the tables was changed since the last note, and how, without the sentence's end; empty: none.

        Only for a job that has offsets.
        """
        noted: dict[str, tuple[str, int]] = {}
        if self._is_there(database):
            found = self._run(database, f"SELECT relation, table_id, filled FROM {{marks}} {OF_JOB}")  # noqa: S608
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
            if was_filled and not look.is_filled:
                return relation, f"table {relation} was emptied"
        return "", ""

    def write_mode(self, database: Database) -> str:
        """The write mode that the job has committed with; empty: not noted."""
        if self._state.described(database, "ratchet_sink_rules") is None:
            return ""
        found = self._run(database, "SELECT rule FROM {rules} WHERE result = {result} AND job = {job}")
        return str(found[0][0]) if found else ""

    def note_write_mode(self, database: Database, write_mode: str) -> None:
        """Store it, in the caller's transaction."""
        self._run(
            database,
            "INSERT INTO {rules} VALUES ({result}, {job}, {rule}) ON DUPLICATE KEY UPDATE rule = {rule}",
            rule=literal(write_mode),
        )

    def decide(self, database: Database, decision: str) -> None:
        """Keep who has decided what."""
        self._run(
            database,
            "INSERT INTO {decisions} (result, job, topic, decided, decision) "
            "VALUES ({result}, {job}, {topic}, UTC_TIMESTAMP(6), {decision})",
            decision=literal(decision),
        )

    def _look(self, database: Database, relation: str) -> Look:
        """What a table is now.

        Raises:
            StoreError: it is of an engine without transactions, or a view.
        """
        found = self._state.described(database, relation)
        if found is None:
            return Look(False)
        self.require_engine(relation, found[0])
        rows = self._run(database, "SELECT 1 FROM {table} LIMIT 1", table=self._state.table(relation))
        match = ID.search(found[1])
        return Look(True, match[1] if match else "", bool(rows))

    def require_engine(self, relation: str, engine: str) -> None:
        """Refuse a table whose rows would stay where a transaction is rolled back."""
        if engine.lower() != "innodb":
            raise StoreError(
                f"{self._state.where}: {relation} is {f'a table of engine {engine}' if engine else 'no table'}, and "
                f"only InnoDB commits rows and offsets together. ALTER TABLE {self._state.table(relation)} ENGINE = "
                "InnoDB, or choose another table"
            )

    def _is_there(self, database: Database) -> bool:
        return self._state.described(database, "ratchet_sink_marks") is not None

    def _run(self, database: Database, statement: str, **parts: str) -> list[tuple[Any, ...]]:
        known = {name: self._state.table(f"ratchet_sink_{name}") for name in ("marks", "rules", "decisions")}
        return self._state.run(database, statement, **known, **parts)
