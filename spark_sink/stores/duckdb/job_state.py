"""State of a job in a DuckDB file, in tables apart from the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink import topic_ids
from kafka_ratchet.spark_sink.stores.duckdb.file import has_table, is_filled, quoted
from kafka_ratchet.spark_sink.stores.sql_job_state import OF_JOB, SqlJobState, Statements

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TABLES = """
CREATE TABLE IF NOT EXISTS ratchet_sink_jobs
    (result VARCHAR, job VARCHAR, generation BIGINT NOT NULL, PRIMARY KEY (result, job));
CREATE TABLE IF NOT EXISTS ratchet_sink_offsets
    (result VARCHAR, job VARCHAR, topic VARCHAR, "partition" INTEGER, next BIGINT NOT NULL, identity BIGINT NOT NULL,
     PRIMARY KEY (result, job, topic, "partition"));
CREATE TABLE IF NOT EXISTS ratchet_sink_marks
    (result VARCHAR, job VARCHAR, topic VARCHAR, relation VARCHAR, topic_id VARCHAR NOT NULL, filled BOOLEAN NOT NULL,
     PRIMARY KEY (result, job, topic, relation));
CREATE TABLE IF NOT EXISTS ratchet_sink_rules
    (result VARCHAR, job VARCHAR, rule VARCHAR NOT NULL, PRIMARY KEY (result, job));
CREATE TABLE IF NOT EXISTS ratchet_sink_sequences
    (result VARCHAR, job VARCHAR, manifest BIGINT NOT NULL, PRIMARY KEY (result, job));
CREATE TABLE IF NOT EXISTS ratchet_sink_decisions
    (result VARCHAR, job VARCHAR, topic VARCHAR, decided TIMESTAMP NOT NULL, decision VARCHAR NOT NULL);
"""
"""Tables for the state of all jobs. `ratchet_sink_marks` stores for each result or rejects table whether the table had
rows after the last commit. If a table with such a mark is empty or missing later, it was emptied, dropped, or restored
in an older state.
"""

STATEMENTS = Statements(
    stored=f'SELECT "partition", next FROM {{offsets}} {OF_JOB} ORDER BY "partition"',  # noqa: S608
    move="INSERT OR REPLACE INTO {offsets} VALUES ({result}, {job}, {topic}, {partition}, {next}, {identity})",
    take_over="INSERT INTO {jobs} VALUES ({result}, {job}, 1) "
    "ON CONFLICT (result, job) DO UPDATE SET generation = generation + 1",
    note_write_mode="INSERT OR REPLACE INTO {rules} VALUES ({result}, {job}, {write_mode})",
    decide="INSERT INTO {decisions} VALUES ({result}, {job}, {topic}, current_timestamp, {decision})",
)


class Marks:
    """Marks of a job's tables in `ratchet_sink_marks`; a mark tells whether the table had rows after the last commit.

    Args:
        state: the job's state.
        topic_id: the topic's id; 0: unknown.
        relations: names of the tables that the offsets belong to, the result table first.
    """

    cleared = ""
    """See `sql_job_state.Marks`."""

    def __init__(self, state: JobState, topic_id: int, relations: Sequence[str]) -> None:
        self._state, self._topic_id, self._relations = state, topic_id, relations

    def note(self, database: DuckDBPyConnection) -> None:
        """See `sql_job_state.Marks`."""
        for relation in self._relations:
            self._state.run(
                database,
                "INSERT OR REPLACE INTO {marks} VALUES ({result}, {job}, {topic}, {relation}, {topic_id}, {filled})",
                relation=self._state.literal(relation),
                topic_id=self._state.literal(topic_ids.text(self._topic_id)),
                filled=self._state.literal(is_filled(database, relation)),
            )

    def inconsistency(self, database: DuckDBPyConnection) -> tuple[str, str]:
        """Return a table that has lost all its rows, and a sentence about it; else two empty texts."""
        marks: dict[str, bool] = {}
        if has_table(database, "ratchet_sink_marks"):
            marks = dict(self._state.run(database, f"SELECT relation, filled FROM {{marks}} {OF_JOB}"))  # noqa: S608
        filled = {relation for relation, was_filled in marks.items() if was_filled}
        if self._state.result not in marks and not has_table(database, self._state.result):
            filled.add(self._state.result)  # an earlier version left no mark, and made the table before any offset
        for name in self._relations:
            if name == self.cleared and has_table(database, name):
                continue
            if name in filled and not is_filled(database, name):
                return name, f"table {name} was dropped, or all its rows were removed"
        return "", ""


class JobState(SqlJobState["DuckDBPyConnection"]):
    """State of a job in the tables of a DuckDB file, see `SqlJobState`.

    No call takes a lock, because no other process has the file open during the call.

    Args:
        table: the result table.
        name: the job's name.
        topic: the topic that the offsets belong to.
        topic_id: the topic's id; 0: unknown.
        relations: the tables that the offsets belong to: the result table and, if there is one, the table of rejects.
    """

    statements = STATEMENTS

    def __init__(self, table: str, name: str, topic: str, topic_id: int, relations: Sequence[str]) -> None:
        super().__init__(table, name, topic, topic_id)
        self.marks = Marks(self, topic_id, relations)

    def table(self, name: str) -> str:
        return quoted(name)

    def literal(self, value: str | int) -> str:
        return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(int(value))

    def names(self, columns: Sequence[str]) -> str:
        return ", ".join(map(quoted, columns))

    def execute(self, database: DuckDBPyConnection, statement: str) -> list[tuple[Any, ...]]:
        return database.execute(statement).fetchall()

    def is_there(self, database: DuckDBPyConnection) -> bool:
        return has_table(database, "ratchet_sink_offsets")

    def has_table(self, database: DuckDBPyConnection, name: str) -> bool:
        return has_table(database, name)

    def is_same_table(self, result: str) -> bool:
        return result.lower() == self.result.lower()  # to DuckDB, quoted or not

    def lock(self, database: DuckDBPyConnection) -> None:
        """Do nothing: the open file is the lock."""

    # -- last sequences

    def sequences(self, database: DuckDBPyConnection) -> int:
        """Return the number of the sequence manifest that belongs to the stored offsets; 0: there is none."""
        if not has_table(database, "ratchet_sink_sequences"):
            return 0
        found = self.run(
            database, "SELECT manifest FROM ratchet_sink_sequences WHERE result = {result} AND job = {job}"
        )
        return int(found[0][0]) if found else 0

    def move_sequences(self, database: DuckDBPyConnection, number: int) -> None:
        """Store the number of a new sequence manifest."""
        self.run(
            database,
            "INSERT OR REPLACE INTO ratchet_sink_sequences VALUES ({result}, {job}, {number})",
            number=self.literal(number),
        )
