"""Marks of the tables that the offsets in a PostgreSQL database belong to; the marks reveal a replaced table.

Rows and offsets are in one database, so a backup restored as a whole, or to a point in time, is consistent. But the
result table alone may be dropped, created again, restored, or truncated. Each commit stores the server's number (oid)
of that table, and that of the table of offsets: restoring a whole dump changes both numbers. If only the number of the
table of offsets has changed, the offsets are not those of the rows. On another server a number may be the same by
chance, so each commit also stores the server's own identifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink import topic_ids
from kafka_ratchet.spark_sink.stores.sql_job_state import OF_JOB, OFFSETS, SqlJobState

if TYPE_CHECKING:
    from kafka_ratchet.spark_sink.stores.postgres.types import Database


SERVER = ""
"""Value in place of a table's name for the mark of the server; no table has an empty name."""


class Marks:
    """Marks of a job's tables, stored in `ratchet_sink_marks`.

    Args:
        state: the job's state.
        topic_id: the topic's id; 0: unknown.
        relations: names of the tables that the offsets belong to, the result table first.
    """

    cleared = ""
    """See `sql_job_state.Marks`."""

    def __init__(self, state: SqlJobState[Database], topic_id: int, relations: Sequence[str]) -> None:
        self._state, self._topic_id, self._relations = state, topic_id, relations

    def note(self, database: Database) -> None:
        """Store marks of the tables as they are now, in the caller's transaction."""
        self._state.run(database, f"DELETE FROM {{marks}} {OF_JOB}")  # noqa: S608
        looks = {relation: self._look(database, relation) for relation in self._relations}
        offsets_oid = self._look(database, OFFSETS)[0]
        for relation, (oid, filenode, filled) in {**looks, SERVER: (self._server(database), 0, False)}.items():
            self._state.run(
                database,
                "INSERT INTO {marks} VALUES ({result}, {job}, {topic}, {relation}, {topic_id}, {oid}, {filenode}, "
                "{offsets_oid}, {filled})",
                relation=self._state.literal(relation),
                topic_id=self._state.literal(topic_ids.text(self._topic_id)),
                oid=self._state.literal(oid),
                filenode=self._state.literal(filenode),
                offsets_oid=self._state.literal(offsets_oid),
                filled=self._state.literal(filled),
            )

    def inconsistency(self, database: Database) -> tuple[str, str]:
        """Return a table changed after its mark was stored, and a sentence about the change; else two empty texts.

        The sentence has no full stop. The job must have stored offsets.
        """
        if not self._state.has_table(database, "ratchet_sink_marks"):
            first = self._relations[0]
            return ("", "") if self._look(database, first)[0] else (first, f"table {first} was dropped")
        offsets_oid = self._look(database, OFFSETS)[0]
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
            if was_oid == 0:
                continue  # an operator has decided without a table
            if not oid:
                return relation, f"table {relation} was dropped"
            if (oid, offsets_oid) != (was_oid, was_offsets_oid):
                are_both_others = oid != was_oid and offsets_oid != was_offsets_oid
                if are_both_others or self._is_other_server(database, noted.get(SERVER, [0])[0]):
                    continue  # all comes from a dump, which is of one moment
                changed = OFFSETS if oid == was_oid else relation
                return changed, f"table {changed} is another one: dropped and recreated, or restored alone"
            if was_filled and not filled and relation != self.cleared:
                # TRUNCATE gives a table another file. A partitioned table has none of its own.
                how = "TRUNCATE" if filenode != was_filenode else "DELETE, or TRUNCATE of its partitions"
                if self._is_unlogged(database, relation):
                    how = f"a crash of PostgreSQL, which empties UNLOGGED tables, or {how}"
                return relation, f"table {relation} was emptied ({how})"
        return "", ""

    def number(self, database: Database, relation: str) -> tuple[int, int]:
        """Return a table's oid, and its file's number, which a TRUNCATE changes."""
        return self._look(database, relation)[:2]

    def _is_other_server(self, database: Database, noted: int) -> bool:
        """Return whether another server stored the marks; False if one of the two identifiers is unknown."""
        return noted != 0 and self._server(database) not in {0, noted}

    def _server(self, database: Database) -> int:
        """Return the server's identifier, which initdb chose; 0: this user may not read it."""
        [(is_allowed,)] = self._state.run(
            database, "SELECT has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')"
        )
        if not is_allowed:
            return 0
        [(identifier,)] = self._state.run(database, "SELECT system_identifier FROM pg_catalog.pg_control_system()")
        return int(identifier)

    def _is_unlogged(self, database: Database, relation: str) -> bool:
        name = self._state.literal(self._state.table(relation).as_string(None))
        found = self._state.run(
            database, "SELECT relpersistence = 'u' FROM pg_class WHERE oid = to_regclass({name})", name=name
        )
        return bool(found and found[0][0])

    def _look(self, database: Database, relation: str) -> tuple[int, int, bool]:
        """Return the oid of a table, its file number, and whether it has rows; oid 0: the table does not exist."""
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
