"""Which tables the offsets in a PostgreSQL database belong to, so that a table put in their place is noticed.

The database keeps rows and offsets together, so a backup restored as a whole, or to a point in time, agrees with
itself. What remains is done to the result table alone: dropped, made anew, restored by itself, or TRUNCATEd. Each
commit notes the number that the server has given the table, and that of the bookkeeping's own table: a dump that is
restored as a whole changes both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kafka_ratchet.spark_sink.stores import topic_ids

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

    Database = psycopg.Connection[tuple[Any, ...]]


class Statements(Protocol):
    """What is asked of the job's state in the database."""

    def table(self, name: str) -> sql.Identifier:
        """The table of that name, where the results are."""

    def columns(self, database: Database, table: str) -> list[Any]:
        """Columns of a table; empty where there is none."""

    def run(self, database: Database, statement: str, **parts: Any) -> list[tuple[Any, ...]]:
        """The rows that a statement gives."""


CREATE_MARKS = (
    "CREATE TABLE IF NOT EXISTS {marks} (result text, job text, topic text, relation text, topic_id text NOT NULL, "
    "oid bigint NOT NULL, filenode bigint NOT NULL, offsets_oid bigint NOT NULL, filled boolean NOT NULL, "
    "PRIMARY KEY (result, job, topic, relation))"
)
CREATE_DECISIONS = (
    "CREATE TABLE IF NOT EXISTS {decisions} (result text, job text, topic text, "
    "decided timestamptz NOT NULL DEFAULT now(), decision text NOT NULL)"
)

TOPIC_ID = "SELECT max(topic_id) FROM {marks} WHERE result = {result} AND job = {job} AND topic = {topic}"
CREATE_RULES = (
    "CREATE TABLE IF NOT EXISTS {rules} (result text, job text, rule text NOT NULL, PRIMARY KEY (result, job))"
)
FORGET = "DELETE FROM {marks} WHERE result = {result} AND job = {job} AND topic = {topic}"
NOTED = (
    "SELECT relation, oid, filenode, offsets_oid, filled FROM {marks} "
    "WHERE result = {result} AND job = {job} AND topic = {topic}"
)


class Marks:
    """The tables `ratchet_sink_marks`, `ratchet_sink_rules` and `ratchet_sink_decisions`.

    Args:
        state: of the job.
        topic_id: of the topic, or 0.
        relations: the tables that the offsets belong to, the result first.
    """

    def __init__(self, state: Statements, topic_id: int, relations: Sequence[str]) -> None:
        self._state, self._topic_id, self._relations = state, topic_id, relations

    def create(self, database: Database) -> None:
        """Make the tables where they are not there."""
        for statement in (CREATE_MARKS, CREATE_DECISIONS, CREATE_RULES):
            self._run(database, statement)

    def topic_id(self, database: Database) -> str:
        """The topic's id as it was noted last; empty: never."""
        if not self._is_there(database):
            return ""
        found = self._run(database, TOPIC_ID)
        return str(found[0][0] or "")

    def note(self, database: Database) -> None:
        """Remember the tables as the ones that the offsets belong to, in the caller's transaction."""
        from psycopg import sql

        self._run(database, FORGET)
        for relation in self._relations:
            oid, filenode, filled = self._look(database, relation)
            self._run(
                database,
                "INSERT INTO {marks} VALUES ({result}, {job}, {topic}, {relation}, {topic_id}, {oid}, {filenode}, "
                "{offsets_oid}, {filled})",
                relation=sql.Literal(relation),
                topic_id=sql.Literal(topic_ids.text(self._topic_id)),
                oid=sql.Literal(oid),
                filenode=sql.Literal(filenode),
                offsets_oid=sql.Literal(self._look(database, "ratchet_sink_offsets")[0]),
                filled=sql.Literal(filled),
            )

    def inconsistency(self, database: Database) -> tuple[str, str]:
        """Which of the tables was changed since the last note, and how, without the sentence's end; empty: none.

        Only for a job that has offsets.
        """
        if not self._is_there(database):
            first = self._relations[0]
            return ("", "") if self._look(database, first)[0] else (first, f"table {first} was dropped")
        offsets_oid = self._look(database, "ratchet_sink_offsets")[0]
        found = self._run(database, NOTED)
        noted = {relation: rest for relation, *rest in found}
        for relation in self._relations:
            oid, filenode, filled = self._look(database, relation)
            if relation not in noted:
                if relation == self._relations[0] and not oid:
                    return relation, f"table {relation} was dropped"
                continue
            was_oid, was_filenode, was_offsets_oid, was_filled = noted[relation]
            if was_oid == 0 or (was_offsets_oid != offsets_oid and oid):
                continue  # an operator has decided without a table; or all comes from a dump, which is of one moment
            if not oid:
                return relation, f"table {relation} was dropped"
            if oid != was_oid:
                return relation, f"table {relation} is another one: dropped and made anew, or restored by itself"
            if filenode != was_filenode and was_filled and not filled:
                return relation, f"table {relation} was emptied (TRUNCATE)"
        return "", ""

    def write_mode(self, database: Database) -> str:
        """The write mode that the job has committed with; empty: not noted."""
        if not self._state.columns(database, "ratchet_sink_rules"):
            return ""
        found = self._run(database, "SELECT rule FROM {rules} WHERE result = {result} AND job = {job}")
        return str(found[0][0]) if found else ""

    def note_write_mode(self, database: Database, write_mode: str) -> None:
        """Store it, in the caller's transaction."""
        from psycopg import sql

        self._run(
            database,
            "INSERT INTO {rules} VALUES ({result}, {job}, {rule}) "
            "ON CONFLICT (result, job) DO UPDATE SET rule = {rule}",
            rule=sql.Literal(write_mode),
        )

    def decide(self, database: Database, decision: str) -> None:
        """Keep who has decided what."""
        from psycopg import sql

        self._run(
            database,
            "INSERT INTO {decisions} VALUES ({result}, {job}, {topic}, now(), {decision})",
            decision=sql.Literal(decision),
        )

    def _look(self, database: Database, relation: str) -> tuple[int, int, bool]:
        """The table's oid, the number of its file and whether it has a row; oid 0: there is no such table."""
        from psycopg import sql

        name = sql.Literal(self._state.table(relation).as_string(None))
        [(oid, filenode)] = self._run(
            database, "SELECT to_regclass({name})::oid::bigint, pg_relation_filenode(to_regclass({name}))", name=name
        )
        if oid is None:
            return 0, 0, False
        [(filled,)] = self._run(database, "SELECT EXISTS (SELECT 1 FROM {table})", table=self._state.table(relation))
        return int(oid), int(filenode or 0), bool(filled)

    def _is_there(self, database: Database) -> bool:
        return bool(self._state.columns(database, "ratchet_sink_marks"))

    def _run(self, database: Database, statement: str, **parts: Any) -> list[tuple[Any, ...]]:
        known = {name: self._state.table(f"ratchet_sink_{name}") for name in ("marks", "rules", "decisions")}
        return self._state.run(database, statement, **known, **parts)
