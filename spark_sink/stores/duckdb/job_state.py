"""What a DuckDB file keeps about a job beside its rows: generation, offsets, write mode, and which tables had rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.stores import topic_ids
from kafka_ratchet.spark_sink.stores.decision import Decision
from kafka_ratchet.spark_sink.stores.duckdb.file import has_table, is_filled
from kafka_ratchet.spark_sink.stores.topic_ids import StoredId

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
"""A table is marked as filled where a commit has left rows in it: one that is empty or gone later was put back."""

OF_JOB = "WHERE result = ? AND job = ? AND topic = ?"


class JobState:
    """The state of one job and topic. Every call is part of its caller's transaction.

    Args:
        table: the result table.
        name: the job's name.
        topic: the topic the offsets belong to.
        topic_id: its id, or 0.
        relations: the tables that the offsets belong to: the result's, and where there is one, the rejects'.
    """

    def __init__(self, table: str, name: str, topic: str, topic_id: int, relations: list[str]) -> None:
        self._table, self._name, self._topic, self._topic_id = table, name, topic, topic_id
        self._relations, self._key = relations, [table, name, topic]

    def generation(self, database: DuckDBPyConnection) -> int:
        """Number of the newest holder; 0: there was none."""
        return self.generations(database).get(self._name, 0)

    def generations(self, database: DuckDBPyConnection) -> dict[str, int]:
        """The newest holder of each job that writes to the result table."""
        if not _is_there(database):
            return {}
        found = database.execute("SELECT job, generation FROM ratchet_sink_jobs WHERE result = ?", [self._table])
        return dict(found.fetchall())

    def take_over(self, database: DuckDBPyConnection) -> int:
        """Count the generation on by one, and return it."""
        generation = self.generation(database) + 1
        database.execute(
            "INSERT OR REPLACE INTO ratchet_sink_jobs VALUES (?, ?, ?)", [self._table, self._name, generation]
        )
        return generation

    def stored(self, database: DuckDBPyConnection) -> dict[int, int]:
        """Next offset of each partition."""
        return {partition: offset for partition, offset, _ in self._entries(database)}

    def _entries(self, database: DuckDBPyConnection) -> list[tuple[int, int, int]]:
        if not _is_there(database):
            return []
        return database.execute(
            'SELECT "partition", next, identity FROM ratchet_sink_offsets '
            'WHERE result = ? AND job = ? AND topic = ? ORDER BY "partition"',
            self._key,
        ).fetchall()

    def other_jobs(self, database: DuckDBPyConnection) -> list[str]:
        """Names of other jobs that have offsets of the topic, in order."""
        if not _is_there(database):
            return []
        found = database.execute(
            "SELECT job, max(identity) FROM ratchet_sink_offsets WHERE result = ? AND job <> ? AND topic = ? "
            "GROUP BY job ORDER BY job",
            self._key,
        ).fetchall()
        return [job for job, identity in found if not StoredId("", identity).is_other(self._topic_id)]

    def write_mode(self, database: DuckDBPyConnection) -> str:
        """Write mode of the rows, as `write_mode_text` has it; empty: none, or an earlier version wrote them."""
        if not self.generation(database) or not has_table(database, "ratchet_sink_rules"):
            return ""
        found = database.execute(
            "SELECT rule FROM ratchet_sink_rules WHERE result = ? AND job = ?", [self._table, self._name]
        ).fetchall()
        return str(found[0][0]) if found else ""

    def sequences(self, database: DuckDBPyConnection) -> int:
        """Number of the manifest of last sequences that belongs to the offsets; 0: there is none."""
        if not has_table(database, "ratchet_sink_sequences"):
            return 0
        found = database.execute(
            "SELECT manifest FROM ratchet_sink_sequences WHERE result = ? AND job = ?", [self._table, self._name]
        ).fetchall()
        return int(found[0][0]) if found else 0

    def move_sequences(self, database: DuckDBPyConnection, number: int) -> None:
        """Store another one."""
        database.execute(
            "INSERT OR REPLACE INTO ratchet_sink_sequences VALUES (?, ?, ?)", [self._table, self._name, number]
        )

    def known_topic(self, database: DuckDBPyConnection) -> StoredId:
        """The id of the topic that the offsets belong to."""
        first_bits = max((identity for _, _, identity in self._entries(database)), default=0)
        found: list[tuple[str]] = []
        if has_table(database, "ratchet_sink_marks"):
            found = database.execute(f"SELECT topic_id FROM ratchet_sink_marks {OF_JOB}", self._key).fetchall()  # noqa: S608
        return StoredId(max((text for (text,) in found), default=""), first_bits)

    def move(self, database: DuckDBPyConnection, end: Mapping[int, int], write_mode: str) -> None:
        """Store these offsets, which tables they belong to, and the write mode of the rows."""
        database.execute(
            "INSERT OR REPLACE INTO ratchet_sink_rules VALUES (?, ?, ?)", [self._table, self._name, write_mode]
        )
        for partition, offset in end.items():
            database.execute(
                "INSERT OR REPLACE INTO ratchet_sink_offsets VALUES (?, ?, ?, ?, ?, ?)",
                [*self._key, partition, offset, topic_ids.first_bits(self._topic_id)],
            )
        for relation in self._relations:
            database.execute(
                "INSERT OR REPLACE INTO ratchet_sink_marks VALUES (?, ?, ?, ?, ?, ?)",
                [*self._key, relation, topic_ids.text(self._topic_id), is_filled(database, relation)],
            )

    def replace(
        self, database: DuckDBPyConnection, offsets: Mapping[int, int], write_mode: str, decision: Decision
    ) -> None:
        """Store these offsets in place of what there is, and who has decided so."""
        told = decision.as_json(self.stored(database), offsets, (self.write_mode(database), write_mode))
        database.execute(f"DELETE FROM ratchet_sink_offsets {OF_JOB}", self._key)  # noqa: S608
        self.move(database, offsets, write_mode)
        database.execute(
            "INSERT INTO ratchet_sink_decisions VALUES (?, ?, ?, current_timestamp, ?)", [*self._key, told]
        )

    def inconsistency(self, database: DuckDBPyConnection) -> tuple[str, str]:
        """A table that is empty or gone, and was not."""
        if not self.stored(database):
            return "", ""
        marks: dict[str, bool] = {}
        if has_table(database, "ratchet_sink_marks"):
            select = f"SELECT relation, filled FROM ratchet_sink_marks {OF_JOB}"  # noqa: S608
            marks = dict(database.execute(select, self._key).fetchall())
        filled = {relation for relation, was_filled in marks.items() if was_filled}
        if self._table not in marks and not has_table(database, self._table):
            filled.add(self._table)  # an earlier version has left no mark, and made the table before any offset
        for name in self._relations:
            if name in filled and not is_filled(database, name):
                return name, f"table {name} was dropped, or all its rows were removed"
        return "", ""


def _is_there(database: DuckDBPyConnection) -> bool:
    return has_table(database, "ratchet_sink_offsets")
