"""State of a job in a database, apart from its rows: generation, offsets, write mode, decisions.

The tables `ratchet_sink_jobs`, `_offsets`, `_marks`, `_rules` and `_decisions` next to the result hold it, and each
call is part of its caller's transaction. A subclass for each database writes names and values, and runs statements; its
`Statements` have the SQL that differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from kafka_ratchet.spark_sink import topic_ids
from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.stores.decision import Decision, RepairNote
from kafka_ratchet.spark_sink.topic_ids import StoredId

Database = TypeVar("Database")
DatabaseIn = TypeVar("DatabaseIn", contravariant=True)

BOOKKEEPING = ("jobs", "offsets", "marks", "rules", "decisions")
"""Tables of the bookkeeping, without `ratchet_sink_` in front."""

OF_JOB = "WHERE result = {result} AND job = {job} AND topic = {topic}"


class Statements(NamedTuple):
    """Statements with a different form in each database; see `SqlJobState.text` for the braces."""

    stored: str
    """Query for each partition and its next offset, of job and topic, in order."""
    move: str
    """Statement that stores `{next}` for `{partition}`, with `{identity}`, over an existing offset or not."""
    take_over: str
    """Statement that counts the job's generation on by one, from 1."""
    note_write_mode: str
    """Statement that stores `{write_mode}` for the job, over an existing one or not."""
    decide: str
    """Statement that adds `{decision}` for job and topic, with the time."""


class Marks(Protocol[DatabaseIn]):
    """Marks of the tables that the offsets belong to, so that a replaced table is noticed."""

    cleared: str
    """Table of the rejects, which an operator may empty; empty: there is none."""

    def note(self, database: DatabaseIn) -> None:
        """Note the tables as they are now."""
        ...

    def inconsistency(self, database: DatabaseIn) -> tuple[str, str]:
        """Describe a changed table, see `SqlJobState.inconsistency`; only for a job with offsets."""
        ...


class SqlJobState(Generic[Database]):
    """Bookkeeping of one job and topic.

    Args:
        result: the result table, as the bookkeeping names it.
        name: the job's name.
        topic: the topic.
        topic_id: the topic's id, or 0.
    """

    statements: ClassVar[Statements]

    marks: Marks[Database]
    """Marks of the tables; the subclass sets them."""

    def __init__(self, result: str, name: str, topic: str, topic_id: int) -> None:
        self.result, self._name, self._topic, self._topic_id = result, name, topic, topic_id

    # -- steps of each database

    def table(self, name: str) -> Any:
        """Return a table next to the result's, as SQL."""
        raise NotImplementedError

    def literal(self, value: str | int) -> Any:
        """Return a value as SQL, whatever characters it has."""
        raise NotImplementedError

    def names(self, columns: Sequence[str]) -> Any:
        """Return columns as SQL, with commas between."""
        raise NotImplementedError

    def execute(self, database: Database, statement: Any) -> list[tuple[Any, ...]]:
        """Execute SQL from `text`; return its rows, if it has any."""
        raise NotImplementedError

    def is_there(self, database: Database) -> bool:
        """Return whether the tables of generations and offsets exist."""
        raise NotImplementedError

    def has_table(self, database: Database, name: str) -> bool:
        """Return whether a table next to the result's exists."""
        raise NotImplementedError

    def _composed(self, statement: str, parts: Mapping[str, Any]) -> Any:
        """Fill a statement's braces with names and values."""
        return statement.format(**parts)

    def is_same_table(self, result: str) -> bool:
        """Return whether another name of the bookkeeping means the result table as well."""
        return False

    def table_of(self, result: str) -> str:
        """Return a result of the bookkeeping, as `table` and `has_table` take it."""
        return result

    # -- statements

    def text(self, statement: str, **parts: Any) -> Any:
        """Fill a statement with its names and values.

        Args:
            statement: statement with `{...}` for each of them.
            parts: parts as SQL of `table`, `literal` or `names`. The tables of the bookkeeping and `{result}`,
                `{job}`, `{topic}` and `{identity}` (of the topic) need not be given.
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
        """Execute a statement, see `text`; return its rows, if it has any."""
        return self.execute(database, self.text(statement, **parts))

    # -- generation and offsets

    def generation(self, database: Database) -> int:
        """Return the newest holder's number; 0: there was none."""
        if not self.is_there(database):
            return 0
        found = self.run(database, "SELECT generation FROM {jobs} WHERE result = {result} AND job = {job}")
        return int(found[0][0]) if found else 0

    def generations(self, database: Database) -> dict[str, int]:
        """Return the newest holder of each job of the result table; no bookkeeping: none."""
        if not self.is_there(database):
            return {}
        return dict(self.run(database, "SELECT job, generation FROM {jobs} WHERE result = {result}"))

    def take_over(self, database: Database) -> int:
        """Take a new generation, after waiting for a running commit.

        Raises:
            StoreError: a trigger or rule keeps it from being stored, so that the older holder would not be fenced.
        """
        before = self.generation(database)
        self.run(database, self.statements.take_over)
        taken = self.generation(database)
        if taken <= before:
            raise StoreError(
                f"the generation of job {self._name} was not stored: it is {taken} and was {before}. A trigger or rule "
                "of table ratchet_sink_jobs has refused or changed it. Nothing was committed. Drop it, then start the "
                "job again"
            )
        return taken

    def lock(self, database: Database) -> None:
        """Lock the generation until the transaction ends: a take-over waits, or came before."""
        self.run(database, "SELECT generation FROM {jobs} WHERE result = {result} AND job = {job} FOR UPDATE")

    def stored(self, database: Database) -> dict[int, int]:
        """Return the next offset of each partition."""
        if not self.is_there(database):
            return {}
        found = self.run(database, self.statements.stored)
        return {int(partition): int(offset) for partition, offset in found}

    def move(self, database: Database, end: Mapping[int, int]) -> None:
        """Store these offsets."""
        for partition, offset in end.items():
            self.run(database, self.statements.move, partition=self.literal(partition), next=self.literal(offset))

    def commit(self, database: Database, end: Mapping[int, int], write_mode: str) -> None:
        """Store these offsets, their tables' marks, and the rows' `write_mode_text`."""
        self.move(database, end)
        stored = self.stored(database)
        if wrong := [str(partition) for partition in end if stored.get(partition) != end[partition]]:
            raise StoreError(
                f"the offsets of partitions {', '.join(wrong)} were not stored as given: a trigger or rule of table "
                "ratchet_sink_offsets has refused or changed them. Nothing was committed. Drop it, then start the job "
                "again"
            )
        self.marks.note(database)
        self.note_write_mode(database, write_mode)

    def reset(
        self, database: Database, where: object, offsets: Mapping[int, int], decision: Decision, write_mode: str
    ) -> int:
        """Take over, and replace the stored offsets by an operator's decision.

        Args:
            database: connection during a transaction.
            where: the store, as messages name it.
            offsets: next offset of each partition.
            decision: kept with them.
            write_mode: write mode of the rows to come.

        Returns:
            New generation

        Raises:
            StoreError: the offsets are not those that the operator has seen.
        """
        generation, before = self.take_over(database), self.stored(database)
        decision.require_seen(where, before)
        told = decision.as_json(before, offsets, (self.write_mode(database), write_mode))
        self.run(database, f"DELETE FROM {{offsets}} {OF_JOB}")  # noqa: S608
        self.commit(database, offsets, write_mode)
        self.run(database, self.statements.decide, decision=self.literal(told))
        return generation

    def note_repair(self, database: Database, note: RepairNote) -> None:
        """Keep the record of a repair, and mark the tables as they are now."""
        self.marks.note(database)
        self.run(database, self.statements.decide, decision=self.literal(note.as_json()))

    # -- tables of the offsets

    def other_jobs(self, database: Database) -> list[str]:
        """Return the names of other jobs with offsets of the topic, in order."""
        if not self.is_there(database):
            return []
        found = self.run(
            database,
            "SELECT job, max(identity) FROM {offsets} WHERE result = {result} AND job <> {job} AND topic = {topic} "
            "GROUP BY job ORDER BY job",
        )
        return [str(job) for job, identity in found if not StoredId("", int(identity)).is_other(self._topic_id)]

    def other_sources(self, database: Database) -> list[str]:
        """Return other jobs and topics with offsets of the table."""
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
            first: first offset of each partition.
            last: offset after the last one of each.

        Raises:
            StoreError: the table keeps some of them.
        """
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
                    f"table {name} has kept {left} rows of partition {partition}, offsets {first[partition]} to "
                    f"{end - 1}, despite their replacement: a trigger or rule has refused it. Nothing was changed. "
                    "Drop it, then run again"
                )

    def other_name(self, database: Database) -> str:
        """Return the name by which this or any job fills the result table, if not by this one; empty: none.

        A job's own other name comes first. Earlier versions let jobs fill one table by several names, one for each:
        they go on.
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
        """Return a missing result of the topic that this new one with rows may be; empty: none.

        The result is not new if any job is known to fill it.
        """
        name = self.table_of(self.result)
        if not self.is_there(database) or self.generations(database) or not self.has_table(database, name):
            return ""
        if not self.run(database, "SELECT 1 FROM {table} LIMIT 1", table=self.table(name)):
            return ""
        found = self.run(
            database,
            "SELECT DISTINCT result FROM {offsets} WHERE result <> {result} AND topic = {topic} ORDER BY result",
        )
        known = (str(each) for (each,) in found)
        return next((each for each in known if not self.has_table(database, self.table_of(each))), "")

    def known_topic(self, database: Database) -> StoredId:
        """Return the id of the topic that the offsets belong to."""
        if not self.is_there(database):
            return StoredId()
        [(first_bits,)] = self.run(database, f"SELECT max(identity) FROM {{offsets}} {OF_JOB}")  # noqa: S608
        noted = None
        if self.has_table(database, "ratchet_sink_marks"):  # those of an earlier version had none
            [(noted,)] = self.run(database, f"SELECT max(topic_id) FROM {{marks}} {OF_JOB}")  # noqa: S608
        return StoredId(str(noted or ""), int(first_bits or 0))

    def inconsistency(self, database: Database) -> tuple[str, str]:
        """Describe a table other than the one of the offsets' commit; empty: none."""
        return self.marks.inconsistency(database) if self.stored(database) else ("", "")

    def write_mode(self, database: Database) -> str:
        """Return the rows' `write_mode_text`; empty: there are no rows, or an earlier version wrote them."""
        if not self.generation(database) or not self.has_table(database, "ratchet_sink_rules"):
            return ""
        found = self.run(database, "SELECT rule FROM {rules} WHERE result = {result} AND job = {job}")
        return str(found[0][0]) if found else ""

    def note_write_mode(self, database: Database, write_mode: str) -> None:
        """Store the text of the rows' write mode."""
        self.run(database, self.statements.note_write_mode, write_mode=self.literal(write_mode))
