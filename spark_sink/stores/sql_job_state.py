"""State of a job in a database, in tables apart from the rows: generation, offsets, write mode and decisions.

The state is in the tables `ratchet_sink_jobs`, `_offsets`, `_marks`, `_rules` and `_decisions` next to the result
table, and each call is part of its caller's transaction. A subclass for each database quotes names and values, and runs
statements; its `Statements` contain the SQL that differs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from kafka_ratchet.spark_sink import topic_ids
from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.stores.decision import Decision, RepairNote, first_after
from kafka_ratchet.spark_sink.stores.store import rows_without_record
from kafka_ratchet.spark_sink.topic_ids import StoredTopicId

Database = TypeVar("Database")
DatabaseIn = TypeVar("DatabaseIn", contravariant=True)

BOOKKEEPING = ("jobs", "offsets", "marks", "rules", "decisions")
"""Names of the tables with the state of jobs, without their prefix `ratchet_sink_`."""

OFFSETS = "ratchet_sink_offsets"
"""Name of the table with the offsets."""

OF_JOB = "WHERE result = {result} AND job = {job} AND topic = {topic}"


class Statements(NamedTuple):
    """SQL statements that differ between databases; see `SqlJobState.text` for their placeholders `{...}`."""

    stored: str
    """Query for each partition and its next offset, for one job and topic, ordered by partition."""
    move: str
    """Statement that stores `{next}` and `{identity}` for `{partition}`, whether or not it has an offset already."""
    take_over: str
    """Statement that increases the job's generation by one; the first is 1."""
    note_write_mode: str
    """Statement that stores `{write_mode}` for the job, whether or not it has one already."""
    decide: str
    """Statement that adds `{decision}` for job and topic, with the present time."""


class Marks(Protocol[DatabaseIn]):
    """Stored facts about the job's tables, such as a table's id and whether it had rows.

    A later difference shows that a table was dropped, created again, restored or emptied.
    """

    cleared: str
    """Name of the rejects table; an operator may delete all of its rows. Empty text: there is no such table."""

    def note(self, database: DatabaseIn) -> None:
        """Store marks of the tables as they are now."""
        ...

    def inconsistency(self, database: DatabaseIn) -> tuple[str, str]:
        """Return the name of a table that changed since `note`, and a sentence about the change; else two empty texts.

        The job must have stored offsets.
        """
        ...


class SqlJobState(Generic[Database]):
    """State of one job for one topic, in tables of a database.

    Args:
        result: name of the result table, as the state's tables contain it.
        name: the job's name.
        topic: the topic that the offsets belong to.
        topic_id: the topic's id; 0: unknown.
    """

    statements: ClassVar[Statements]

    marks: Marks[Database]
    """Stored facts about the job's tables; a subclass sets this field."""

    def __init__(self, result: str, name: str, topic: str, topic_id: int) -> None:
        self.result, self._name, self._topic, self._topic_id = result, name, topic, topic_id

    # -- steps of each database

    def table(self, name: str) -> Any:
        """Return the quoted name of a table next to the result table."""
        raise NotImplementedError

    def literal(self, value: str | int) -> Any:
        """Return a value as SQL; text may contain any character."""
        raise NotImplementedError

    def names(self, columns: Sequence[str]) -> Any:
        """Return column names as SQL: quoted, and separated by commas."""
        raise NotImplementedError

    def execute(self, database: Database, statement: Any) -> list[tuple[Any, ...]]:
        """Execute SQL that `text` returned, and return its rows, if it has any."""
        raise NotImplementedError

    def is_there(self, database: Database) -> bool:
        """Return whether the tables for generations and offsets exist."""
        raise NotImplementedError

    def has_table(self, database: Database, name: str) -> bool:
        """Return whether a table exists next to the result table."""
        raise NotImplementedError

    def is_filled(self, database: Database, name: str) -> bool:
        """Return whether a table exists next to the result table and has a row."""
        if not self.has_table(database, name):
            return False
        return bool(self.run(database, "SELECT 1 FROM {table} LIMIT 1", table=self.table(name)))

    def _composed(self, statement: str, parts: Mapping[str, Any]) -> Any:
        """Replace the placeholders of a statement by names and values."""
        return statement.format(**parts)

    def is_same_table(self, result: str) -> bool:
        """Return whether `result` is another spelling of the name of this job's result table.

        Args:
            result: name of a result table, as the state's tables contain it.
        """
        return False

    def table_of(self, result: str) -> str:
        """Return the name of a result table without schema or database.

        `table` and `has_table` take such a name.

        Args:
            result: name of the result table, as the state's tables contain it.
        """
        return result

    # -- statements

    def text(self, statement: str, **parts: Any) -> Any:
        """Return a statement with names and values in place of its placeholders `{...}`.

        Args:
            statement: SQL with `{...}` for each name or value.
            parts: names and values as SQL from `table`, `literal` or `names`. They need not contain the tables in
                `BOOKKEEPING`, nor `{result}`, `{job}`, `{topic}` and `{identity}` (the topic's).
        """
        known = {name: self.table(f"ratchet_sink_{name}") for name in BOOKKEEPING}
        values: dict[str, str | int] = {
            "result": self.result,
            "job": self._name,
            "topic": self._topic,
            "identity": topic_ids.first_bits(self._topic_id),
        }
        return self._composed(statement, {**known, **{n: self.literal(v) for n, v in values.items()}, **parts})

    def run(self, database: Database, statement: str, **parts: Any) -> list[tuple[Any, ...]]:
        """Execute a statement with parts, see `text`; return its rows, if any."""
        return self.execute(database, self.text(statement, **parts))

    # -- generation and offsets

    def generation(self, database: Database) -> int:
        """Return the job's newest generation; 0: no run has taken over yet."""
        if not self.is_there(database):
            return 0
        found = self.run(database, "SELECT generation FROM {jobs} WHERE result = {result} AND job = {job}")
        return int(found[0][0]) if found else 0

    def generations(self, database: Database) -> dict[str, int]:
        """Return the newest generation of each job of the result table; empty: there are none."""
        if not self.is_there(database):
            return {}
        return dict(self.run(database, "SELECT job, generation FROM {jobs} WHERE result = {result}"))

    def take_over(self, database: Database) -> int:
        """Increase the job's generation, after waiting for a running commit, and return it.

        Raises:
            StoreError: a trigger or rule prevented the change, so that the older run would not be fenced.
        """
        before = self.generation(database)
        self.run(database, self.statements.take_over)
        taken = self.generation(database)
        if taken <= before:
            raise StoreError(
                f"the new generation of job {self._name} was not stored: the table has {taken}, and had {before} "
                "before. A trigger or rule of table ratchet_sink_jobs has refused or changed the generation. Nothing "
                "was committed. Drop that trigger or rule, then start the job again"
            )
        return taken

    def lock(self, database: Database) -> None:
        """Lock the job's generation until the transaction ends, so that a take-over has to wait."""
        self.run(database, "SELECT generation FROM {jobs} WHERE result = {result} AND job = {job} FOR UPDATE")

    def stored(self, database: Database) -> dict[int, int]:
        """Return the stored next offset of each partition."""
        if not self.is_there(database):
            return {}
        found = self.run(database, self.statements.stored)
        return {int(partition): int(offset) for partition, offset in found}

    def first(self, database: Database) -> dict[int, int]:
        """Return the first offset of the table's records in each partition, from the stored decisions.

        See `ResultStore.first_offsets`.
        """
        if not self.has_table(database, "ratchet_sink_decisions"):
            return {}
        found = self.run(database, f"SELECT decision FROM {{decisions}} {OF_JOB} ORDER BY decided")  # noqa: S608
        decisions = [each for (text,) in found if "after" in (each := json.loads(text))]
        first: dict[int, int] = {}
        # The start first, whatever the clock of the database says: later decisions only lower its offsets.
        for decision in sorted(decisions, key=lambda each: bool(each["before"])):
            before, after = ({int(p): at for p, at in decision[name].items()} for name in ("before", "after"))
            first = first_after(first, before, after)
        return first

    def move(self, database: Database, end: Mapping[int, int]) -> None:
        """Store the next offset of some partitions."""
        for partition, offset in end.items():
            self.run(database, self.statements.move, partition=self.literal(partition), next=self.literal(offset))

    def commit(self, database: Database, end: Mapping[int, int], write_mode: str) -> None:
        """Store the next offsets, marks of the tables, and the text of the write mode.

        Raises:
            StoreError: a trigger or rule prevented the change of an offset.
        """
        self.move(database, end)
        stored = self.stored(database)
        if wrong := [str(partition) for partition in end if stored.get(partition) != end[partition]]:
            raise StoreError(
                f"the offsets of partitions {', '.join(wrong)} were not stored as given: a trigger or rule of table "
                "ratchet_sink_offsets has refused or changed them. Nothing was committed. Drop that trigger or rule, "
                "then start the job again"
            )
        self.marks.note(database)
        self.note_write_mode(database, write_mode)

    def reset(
        self,
        database: Database,
        where: object,
        offsets: Mapping[int, int],
        decision: Decision,
        write_mode: str,
        changed: tuple[str, str] | None = None,
    ) -> int:
        """Take the table over as a new generation, and store the offsets that an operator chose.

        Args:
            database: connection during a transaction.
            where: the store, as messages name it.
            offsets: new next offset of each partition.
            decision: decision to store with the offsets.
            write_mode: write mode of the rows to come.
            changed: result of `inconsistency` before sessions of the job were ended; None: the caller ended none.

        Returns:
            The new generation.

        Raises:
            StoreError: the stored offsets are not those that the operator saw, or a table changed.
        """
        generation, before = self.take_over(database), self.stored(database)
        decision.require_seen(where, before)
        # A TRUNCATE may have waited for an ended session; the new marks would describe the emptied table.
        if changed is not None and changed != (now := self.inconsistency(database)):
            raise StoreError(
                f"{where}: {now[1] or 'a table was restored'} since the decision was made. Nothing was changed. Run "
                "the command again"
            )
        record = decision.as_json(before, offsets, (self.write_mode(database), write_mode))
        self.run(database, f"DELETE FROM {{offsets}} {OF_JOB}")  # noqa: S608
        self.commit(database, offsets, write_mode)
        self.run(database, self.statements.decide, decision=self.literal(record))
        return generation

    def note_repair(self, database: Database, note: RepairNote) -> None:
        """Store the record of a repair, and marks of the tables as they are now."""
        self.marks.note(database)
        self.run(database, self.statements.decide, decision=self.literal(note.as_json()))

    # -- tables of the offsets

    def other_jobs(self, database: Database) -> list[str]:
        """Return the names of other jobs with stored offsets of the topic, sorted."""
        if not self.is_there(database):
            return []
        found = self.run(
            database,
            "SELECT job, max(identity) FROM {offsets} WHERE result = {result} AND job <> {job} AND topic = {topic} "
            "GROUP BY job ORDER BY job",
        )
        return [str(job) for job, identity in found if not StoredTopicId("", int(identity)).is_other(self._topic_id)]

    def other_sources(self, database: Database) -> list[str]:
        """Return other jobs and topics with stored offsets for the table, for messages."""
        if not self.is_there(database):
            return []
        found = self.run(
            database,
            "SELECT DISTINCT job, topic FROM {offsets} WHERE result = {result} AND NOT (job = {job} AND "
            "topic = {topic}) ORDER BY job, topic",
        )
        return [f"job {job} (topic {topic})" for job, topic in found]

    def remove_records(self, database: Database, name: str, first: Mapping[int, int], last: Mapping[int, int]) -> None:
        """Delete the rows of a range of records, in the caller's transaction.

        Args:
            database: connection during the transaction.
            name: name of the table.
            first: first offset of the range in each partition.
            last: offset after the range in each partition.

        Raises:
            OptionRefused: the table has rows that do not name their record.
            StoreError: the table still has some of these rows.
        """
        unnamed = "SELECT 1 FROM {table} WHERE _kafka_partition IS NULL OR _kafka_offset IS NULL LIMIT 1"
        if self.run(database, unnamed, table=self.table(name)):
            raise rows_without_record(f"topic {self._topic}", name)
        for partition, end in sorted(last.items()):
            parts = {
                "table": self.table(name),
                "number": self.literal(partition),
                "begin": self.literal(first[partition]),
                "end": self.literal(end),
            }
            of_range = "_kafka_partition = {number} AND _kafka_offset >= {begin} AND _kafka_offset < {end}"
            self.run(database, f"DELETE FROM {{table}} WHERE {of_range}", **parts)  # noqa: S608
            [(left,)] = self.run(database, f"SELECT count(*) FROM {{table}} WHERE {of_range}", **parts)  # noqa: S608
            if left:
                raise StoreError(
                    f"table {name} still has {left} rows of partition {partition}, offsets {first[partition]} to "
                    f"{end - 1}, which were to be replaced: a trigger or rule has prevented their deletion. Nothing "
                    "was changed. Drop that trigger or rule, then run the job again"
                )

    def other_name(self, database: Database) -> str:
        """Return another name under which a job already fills the result table; empty: no other name.

        If there are several, a name that this job itself has used comes first. Earlier versions let several jobs fill
        one table, each under another name; such jobs continue to run.
        """
        if not self.is_there(database) or self.generation(database):
            return ""
        found = self.run(database, "SELECT result, job FROM {jobs} WHERE result <> {result} ORDER BY result")
        same = [(str(name), job) for name, job in found if self.is_same_table(str(name))]
        ours = [name for name, job in same if job == self._name]
        if ours or not same or self.generations(database):
            return ours[0] if ours else ""
        return same[0][0]

    def gone_table(self, database: Database) -> str:
        """Return the name of a missing table that may be the former name of the result table; empty: there is none.

        The missing table has stored offsets of the topic. The result table has rows, but no job with a stored state.
        """
        name = self.table_of(self.result)
        if not self.is_there(database) or self.generations(database) or not self.is_filled(database, name):
            return ""
        found = self.run(
            database,
            "SELECT DISTINCT result FROM {offsets} WHERE result <> {result} AND topic = {topic} ORDER BY result",
        )
        known = (str(each) for (each,) in found)
        return next((each for each in known if not self.has_table(database, self.table_of(each))), "")

    def known_topic(self, database: Database) -> StoredTopicId:
        """Return the id of the topic that the stored offsets belong to."""
        if not self.is_there(database):
            return StoredTopicId()
        [(first_bits,)] = self.run(database, f"SELECT max(identity) FROM {{offsets}} {OF_JOB}")  # noqa: S608
        noted = None
        if self.has_table(database, "ratchet_sink_marks"):  # those of an earlier version had none
            [(noted,)] = self.run(database, f"SELECT max(topic_id) FROM {{marks}} {OF_JOB}")  # noqa: S608
        return StoredTopicId(str(noted or ""), int(first_bits or 0))

    def inconsistency(self, database: Database) -> tuple[str, str]:
        """Return a table changed since the last commit, and a sentence about the change; else two empty texts.

        If the job has lost its offsets, the table is that of the offsets.
        """
        if self.stored(database):
            return self.marks.inconsistency(database)
        name = self.table_of(self.result)
        if self._has_lost_offsets(database) and self.is_filled(database, name):
            return OFFSETS, (
                f"table {name} has rows, and {OFFSETS} has no offsets of job {self._name}, which has "
                f"committed: the offsets were removed, or {OFFSETS} was restored without them"
            )
        return "", ""

    def _has_lost_offsets(self, database: Database) -> bool:
        """Return whether the job's offsets were lost.

        The job has committed, no offset of any topic is stored, and no operator has removed the offsets.
        """
        if not self.write_mode(database):
            return False
        of_job = "WHERE result = {result} AND job = {job}"
        if self.run(database, f"SELECT 1 FROM {{offsets}} {of_job} LIMIT 1"):  # noqa: S608
            return False
        if not self.has_table(database, "ratchet_sink_decisions"):
            return True
        found = self.run(database, f"SELECT decision FROM {{decisions}} {of_job}")  # noqa: S608
        return not any(json.loads(text).get("after") == {} for (text,) in found)

    def write_mode(self, database: Database) -> str:
        """Return the stored text of the rows' write mode; empty: none is stored."""
        if not self.generation(database) or not self.has_table(database, "ratchet_sink_rules"):
            return ""
        found = self.run(database, "SELECT rule FROM {rules} WHERE result = {result} AND job = {job}")
        return str(found[0][0]) if found else ""

    def note_write_mode(self, database: Database, write_mode: str) -> None:
        """Store the text of the rows' write mode."""
        self.run(database, self.statements.note_write_mode, write_mode=self.literal(write_mode))
