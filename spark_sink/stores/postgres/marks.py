"""Marks of the tables that the offsets in a PostgreSQL database belong to, so that a replaced table is noticed.

The database keeps rows and offsets together, so a backup restored as a whole, or to a point in time, agrees with
itself. Other changes hit the result table alone: it is dropped, created again, restored alone, or TRUNCATEd. Each
commit notes the server's number of the table, and that of the bookkeeping's own table: a dump restored as a whole
changes both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink import topic_ids
from kafka_ratchet.spark_sink.stores.sql_job_state import OF_JOB, SqlJobState

if TYPE_CHECKING:
    from kafka_ratchet.spark_sink.stores.postgres.types import Database


class Marks:
    """Rows of `ratchet_sink_marks` about a job.

    Args:
        state: the job's state.
        topic_id: the topic's id, or 0.
        relations: the tables that the offsets belong to, the result first.
    """

    cleared = ""
    """See `sql_job_state.Marks`."""

    def __init__(self, state: SqlJobState[Database], topic_id: int, relations: Sequence[str]) -> None:
        self._state, self._topic_id, self._relations = state, topic_id, relations

    def note(self, database: Database) -> None:
        """Note the tables that the offsets belong to, in the caller's transaction."""
        self._state.run(database, f"DELETE FROM {{marks}} {OF_JOB}")  # noqa: S608
        for relation in self._relations:
            oid, filenode, filled = self._look(database, relation)
            self._state.run(
                database,
                "INSERT INTO {marks} VALUES ({result}, {job}, {topic}, {relation}, {topic_id}, {oid}, {filenode}, "
                "{offsets_oid}, {filled})",
                relation=self._state.literal(relation),
                topic_id=self._state.literal(topic_ids.text(self._topic_id)),
                oid=self._state.literal(oid),
                filenode=self._state.literal(filenode),
                offsets_oid=self._state.literal(self._look(database, "ratchet_sink_offsets")[0]),
                filled=self._state.literal(filled),
            )

    def inconsistency(self, database: Database) -> tuple[str, str]:
        """Return which table has changed since the last note, and how; empty: none.

        The text is a sentence without its end. Only for a job with offsets.
        """
        if not self._state.has_table(database, "ratchet_sink_marks"):
            first = self._relations[0]
            return ("", "") if self._look(database, first)[0] else (first, f"table {first} was dropped")
        offsets_oid = self._look(database, "ratchet_sink_offsets")[0]
        found = self._state.run(
            database,
            f"SELECT relation, oid, filenode, offsets_oid, filled FROM {{marks}} {OF_JOB}",  # noqa: S608
        )
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
                return relation, f"table {relation} is another one: dropped and recreated, or restored alone"
            if was_filled and not filled and relation != self.cleared:
                # TRUNCATE gives a table another file. A partitioned table has none of its own.
                how = "TRUNCATE" if filenode != was_filenode else "DELETE, or TRUNCATE of its partitions"
                return relation, f"table {relation} was emptied ({how})"
        return "", ""

    def number(self, database: Database, relation: str) -> tuple[int, int]:
        """Return the table's oid and the number of its file: a TRUNCATE changes the second."""
        return self._look(database, relation)[:2]

    def _look(self, database: Database, relation: str) -> tuple[int, int, bool]:
        """Return oid, file number and presence of rows of a table; oid 0: it does not exist."""
        if not self._state.has_table(database, relation):
            return 0, 0, False
        # Rows first: within a transaction that locks the table against its clearing.
        [(filled,)] = self._state.run(
            database, "SELECT EXISTS (SELECT 1 FROM {table})", table=self._state.table(relation)
        )
        [(oid, filenode)] = self._state.run(
            database,
            "SELECT to_regclass({name})::oid::bigint, pg_relation_filenode(to_regclass({name}))",
            name=self._state.literal(self._state.table(relation).as_string(None)),
        )
        return int(oid or 0), int(filenode or 0), bool(filled)
