"""Interface between a job and a store; each folder under stores/ implements it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from kafka_ratchet.spark_sink.errors import Fenced, OptionRefused, RowsAhead, RowsLost, SchemaDiffers
from kafka_ratchet.spark_sink.rows.columns import RECORD, RECORD_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from kafka_ratchet.spark_sink.stores.decision import Decision, RepairNote, Replacement, StoreCheck

JOB_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
"""Pattern of job names. Names become part of keys in every store, and the pattern's characters need no escaping in
any."""

COMPACTION = "ratchet-compact"
"""Name that `compact` uses instead of a job's name, in file names and for its generations."""

TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""Pattern of topic names: Kafka's own rule (org.apache.kafka.common.internals.Topic)."""


RUN_FIRST = "Run the sink first, or check the path"
"""Remedy in the error of a reader that finds no table."""


class ResultStore(Protocol):
    """Table of rows with the next offsets to read from Kafka, both changed in one action.

    The store alone knows how far the job has read; there is no checkpoint that could disagree. A stored offset is the
    next one to read, per partition number; partition numbers may have gaps. The run that opened the store last is its
    holder. Each opening increases the generation, and a commit of an older generation is refused.
    """

    restricted_values: int = False
    """Restriction of the values of rows. True: text must not contain NUL, and times must be in the years 1 to 9999;
    other values count as not parsed, see `columns.rows`. `columns.FINITE_TOO`: numbers must be finite as well.
    `columns.SHORT_KEYS`: keys must be short as well."""

    needs_local_master: str = ""
    """Reason why Spark has to run on the driver's machine (master local); empty: executors may run anywhere."""

    judges: bool = False
    """True if the job reads a raw topic and judges its records. The store is then a `judging_store.JudgingStore`, and
    each commit has last sequences."""

    def generation(self) -> int:
        """Read the newest generation without taking over; 0: no run has taken over yet.

        Raises:
            StoreError: the store cannot be read.
        """
        ...

    def offsets(self) -> dict[int, int]:
        """Read the stored offsets without taking over; empty: no commit yet.

        Raises:
            TopicRecreated: the offsets belong to another topic of the same name.
            RowsLost: the table was put back, emptied or replaced, but the offsets were not.
            StoreError: the store cannot be read.
        """
        ...

    def first_offsets(self) -> dict[int, int]:
        """Return the offsets where `--start` began the first run.

        A partition without an offset began with the topic. An operator's later decision for lower offsets lowers these
        offsets.

        Raises:
            StoreError: the store cannot be read.
        """
        return {}

    def check_before_commit(self, check: Callable[[], object]) -> None:
        """Set a check for `commit`, `replace` and `repair`, to call between staging and commit.

        Spark reads a topic by its name while the rows are staged. The check finds out whether the topic was created
        again during this time. An error of the check ends the commit, and no staged row becomes visible. Commits by
        tasks (`in_tasks`) do not call the check.
        """
        ...

    def check(self) -> StoreCheck:
        """Read the state of the table and its faults, for `ratchet sink resume`.

        Raises:
            StoreError: the store cannot be read, or there is no table.
        """
        ...

    def other_jobs(self) -> list[str]:
        """Return the names of other jobs with offsets of this topic in the table, sorted.

        Raises:
            StoreError: the store cannot be read.
        """
        ...

    def columns(self) -> StructType | None:
        """Read the columns of the table in Spark's types; None: there is no table, or no job made it.

        Raises:
            OptionRefused: Spark's types do not follow from the table's.
            StoreError: the store cannot be read.
        """
        ...

    def column_names(self) -> list[str] | None:
        """Return the names of the table's columns, in the table's order; None: there is no table, or no job made it.

        Raises:
            StoreError: the store cannot be read.
        """
        found = self.columns()
        return None if found is None else list(found.names)

    def require_fits(self, schema: StructType) -> None:
        """Refuse an existing table with other columns, as `open` would, but change nothing.

        Raises:
            SchemaDiffers: the columns differ.
            OptionRefused: the store does not support a column's name or type.
            StoreError: the store cannot be read.
        """
        ...

    def require_write_mode(self) -> None:
        """Refuse another kind, key or sums than in the job's commits, without taking over.

        Raises:
            WriteModeDiffers: the write modes differ.
            StoreError: the store cannot be read.
        """
        ...

    def open(self, schema: StructType) -> dict[int, int]:
        """Take over with a new generation, which fences older runs, and return the stored offsets.

        Raises:
            SchemaDiffers: the table has other columns.
            WriteModeDiffers: see `require_write_mode`.
            TopicRecreated: the stored offsets belong to another topic of the same name.
            RowsLost: see `offsets`.
            StoreError: the store cannot be read or written.
        """
        ...

    def commit(
        self,
        dataframe: DataFrame,
        start: dict[int, int],
        end: dict[int, int],
        rejects: DataFrame | None = None,
        sequences: DataFrame | None = None,
    ) -> int:
        """Make the rows of `dataframe` and the offsets `end` visible in one atomic action.

        A store may use one action per Kafka partition. A failed call may then have committed some partitions, each with
        its rows and its offset; the next `open` returns these offsets.

        Args:
            dataframe: rows of the records from `start` up to but not including `end`. A row with true in the column
                `columns.DELETED` removes the table's row with its key, if there is one.
            start: expected stored offsets.
            end: next offset of each partition after the commit; at least one differs from `start`.
            rejects: rows for the rejects table, which become visible in the same action or, with `PairedStore`, in an
                earlier one. A store with `rejects` requires them in every commit; another store refuses them.
            sequences: changed last sequences, one row per identity; all those of a Kafka partition are in one partition
                of the frame. The sequences become valid in the same action. A store that `judges` requires them in
                every commit; another store refuses them.

        Returns:
            Number of committed rows, without rejects.

        Raises:
            Fenced: another job has taken over; nothing of this call is visible.
            TablePutBack: the table was put back to an earlier state; nothing of this call is visible.
            RowsLost: see `offsets`; nothing of this call is visible.
            SchemaDiffers: the table's columns were changed since `open`; nothing of this call is visible.
            StoreError: the store cannot be written; nothing of this call is visible, unless the error came after the
                commit: a committed file was removed, or the store did not answer and then could not be read. The next
                `open` returns the offsets that apply.
        """
        ...

    def other_sources(self) -> list[str]:
        """Return the other jobs and topics with rows in the table, as texts for messages.

        Raises:
            StoreError: the store cannot be read.
        """
        ...

    def replace(
        self, dataframe: DataFrame, first: dict[int, int], last: dict[int, int], rejects: DataFrame | None = None
    ) -> int:
        """Replace the rows of a range of records in one atomic action; the stored offsets stay.

        Args:
            dataframe: rows of the records from `first` up to but not including `last`.
            first: first offset of each partition of the range.
            last: offset after the range in each partition; it is not above the stored offset.
            rejects: as in `commit`.

        Returns:
            Number of new rows, without rejects.

        Raises:
            OptionRefused: the store cannot replace rows, or the table has rows that do not name their record.
            Fenced: see `commit`, which also describes further errors of this method.
        """
        ...

    def reset_offsets(self, offsets: dict[int, int], decision: Decision) -> int:
        """Replace the stored offsets by an operator's, and fence every run. Store this job's write mode, too.

        Args:
            offsets: new next offset of each partition; the store forgets the offsets of all other partitions.
            decision: decision to store with the offsets.

        Returns:
            The new generation, which fences earlier runs.

        Raises:
            StoreError: the store cannot be read or written, or there is no table.
        """
        ...

    def require_repairable(self) -> None:
        """Refuse a table with rows that `repair` cannot replace, without taking over.

        Raises:
            OptionRefused: the store cannot replace rows, or the table has a feature that forbids it.
        """
        ...

    def repair(
        self, rows: Replacement | None, rejects: Replacement | None, start: Mapping[int, int], note: RepairNote
    ) -> None:
        """Replace rows in one atomic action; stored offsets and all other rows stay as they are.

        A store with a separate table of rejects replaces rejects in an earlier action. Repeating the call has no
        further effect.

        Args:
            rows: replacement of rows in the result table; None: none.
            rejects: replacement of rows in the rejects table; None: none.
            start: expected stored offsets.
            note: record of the repair, stored in the same action.

        Raises:
            Fenced: another job has taken over; nothing of this call is visible.
            RowsLost: see `offsets`; nothing of this call is visible.
            OptionRefused: the store cannot replace rows, or the table has a feature that forbids it.
            StoreError: see `commit`.
        """
        ...

    def close(self) -> None:
        """Release the store's resources; the next `open` works without this call too."""
        ...


def require_names(name: str, topic: str) -> None:
    """Refuse names of job or topic that would be ambiguous inside a store's keys.

    Raises:
        OptionRefused: a name contains a forbidden character, is too long, or is reserved.
    """
    if name == COMPACTION:
        raise OptionRefused(
            f"job name {name!r} is reserved for the files of `ratchet sink compact`. Choose another name"
        )
    if not JOB_NAME.fullmatch(name):
        raise OptionRefused(f"job name {name!r}: use a lower-case letter, then at most 62 of a-z, 0-9, '_' and '-'")
    if not TOPIC_NAME.fullmatch(topic) or topic in {".", ".."}:
        raise OptionRefused(f"{topic!r} is not a Kafka topic name: 1 to 249 letters, digits, '.', '_' or '-'")


def require_local_master(store: ResultStore, master: str | None) -> None:
    """Refuse Spark executors on other machines if the store is on the driver's disk.

    Raises:
        OptionRefused: the store works on one machine only, and Spark's master is not local.
    """
    if store.needs_local_master and not (master or "").startswith("local"):
        raise OptionRefused(
            f"{store.needs_local_master}, and Spark runs on {master or 'other machines'}. Choose store postgres, or "
            "delta in a folder that all machines share; or run Spark on one machine (--master local[*])"
        )


def next_generation(newest: int, wanted: int | None, who: str) -> int:
    """Return the generation to take over with: `wanted`, or one more than the newest.

    Raises:
        Fenced: `wanted` is not above the newest.
    """
    if wanted is not None and newest >= wanted:
        raise Fenced(
            f"{who}: generation {newest} has taken over from {wanted}. Let the other run continue, or choose another "
            "table for this one"
        )
    return newest + 1 if wanted is None else wanted


NEW_TOPIC = (
    "The stored offsets mean nothing in the new topic. `ratchet sink resume --from earliest` reads it from its "
    "beginning into the same table; a record that both topics contain then has two rows. For a mirrored topic, name "
    "the offsets at which to continue (--from 0:OFFSET,1:OFFSET)"
)


def rows_lost(where: object, what: str, known: bool = True) -> RowsLost:
    """Return the error for a table with rows that no longer match its offsets.

    Args:
        where: the table, as messages name it.
        what: sentence about the change of the table, without a full stop.
        known: True if the table or its history shows the offsets that match the rows.
    """
    ways = [
        "--from table continues after the last rows of the table, so that each missing record is read again"
        if known
        else "--from earliest or --from 0:OFFSET,1:OFFSET reads again from there",
        "--from stored continues without the missing rows",
    ]
    return RowsLost(
        f"{where}: {what}. The stored offsets are still those of the last commit, so that the job would silently skip "
        "missing rows. "
        f"Undo that change of the table, or decide with `ratchet sink resume`: {'; '.join(ways)}"
    )


def rows_without_record(where: object, table: str | None = None) -> OptionRefused:
    """Return the error for a replay in a table with rows that do not name their record.

    Args:
        where: the table, as messages name it.
        table: name of the table, where a store has several; None: the path is the table.
    """
    named = "the table" if table is None else f"table {table}"
    return OptionRefused(
        f"{where}: {named} has rows with null in {' or '.join(RECORD)}, such as those of a job whose sql or transform "
        "left out these columns. A replay would not find such rows, and would add the rows of their records a second "
        "time. Nothing was replaced. Fill another table from the topic, or set both columns in these rows"
    )


NAME_OFFSETS = (
    "name the offset after the last row or reject of each partition (0:OFFSET,1:OFFSET), or choose latest if the table "
    "has every record"
)
"""Ways to continue a table with rows after its offsets."""


def rows_ahead(where: object, what: str, known: bool = False) -> RowsAhead:
    """Return the error for a table with rows after its offsets.

    Args:
        where: the table, as messages name it.
        what: sentence about the change of the offsets, without a full stop.
        known: True if the table's history shows the offsets that match the rows.
    """
    ways = "--from table continues after the last rows of the table" if known else f"with --from, {NAME_OFFSETS}"
    return RowsAhead(
        f"{where}: {what}. The table may have rows after the stored offsets, and the job would add them a second time. "
        f"Undo that change, or decide with `ratchet sink resume`: {ways}"
    )


FORMER_RECORD_COLUMNS: Final = ("_partition", "_offset", "_timestamp", "_key", "_value")
"""Former names of the columns about a row's record, used before the first release."""


def require_record_columns(where: object, present: Iterable[str], table: str | None = None) -> None:
    """Refuse a table that still has former names of record columns, such as `_partition`.

    Iceberg reserves the name `_partition` for its own metadata, and Spark cannot read a table with such a column.

    Args:
        where: the table, as messages name it.
        present: columns of the table.
        table: name of the table, where a store has several; None: the path is the table.

    Raises:
        SchemaDiffers: the table has such columns; the message contains statements that rename them.
    """
    former = [name for name in FORMER_RECORD_COLUMNS if name in present]
    if not {"_partition", "_offset"} <= set(former) or set(RECORD_COLUMNS) & set(present):
        return  # other columns may have such names
    named = "the table" if table is None else f"table {table}"
    statements = "; ".join(
        f"ALTER TABLE {'TABLE' if table is None else table} RENAME COLUMN {name} TO _kafka{name}" for name in former
    )
    hint = " (write the table's name for TABLE)" if table is None else ""
    raise SchemaDiffers(
        f"{where}: {named} has the columns {', '.join(former)}, but the names of record columns now begin with "
        f"_kafka_. Rename them with {statements}{hint}; then start the job again"
    )


def without_free(present: Mapping[str, str], expected: Mapping[str, str], free: Collection[str]) -> dict[str, str]:
    """Return the types of the table's columns, without columns that only other jobs fill.

    See `require_columns` for the arguments.
    """
    return {name: kind for name, kind in present.items() if name in expected or name not in free}


def require_columns(
    where: object,
    present: Mapping[str, str],
    expected: Mapping[str, str],
    table: str | None = None,
    free: Collection[str] = (),
) -> None:
    """Refuse a table with other column names or types than the job's.

    Args:
        where: the table, as messages name it.
        present: types of the table's columns, by name.
        expected: types of the job's columns, by name.
        table: name of the table, where a store has several; None: the path is the table.
        free: names of columns that a writer may leave out, because they may be null or get a value from the table.

    Raises:
        SchemaDiffers: a column is missing or has another type, or a further column is not free.
    """
    require_record_columns(where, present, table)
    present = without_free(present, expected, free)
    of_table, another = ("", "path") if table is None else (f" of {table}", "table")
    for column in [*expected, *present]:
        if column not in expected:
            raise SchemaDiffers(
                f"{where}: column {column}{of_table} is {present[column]} in the table and absent in this job, but the "
                "table requires a value in it. Allow null in the column or give it a default, add the column to the "
                f"job, or choose another {another}"
            )
        if present.get(column) != expected[column]:
            raise SchemaDiffers(
                f"{where}: column {column}{of_table} is {present.get(column, 'absent')} in the table and "
                f"{expected[column]} in this job. Give the job the table's columns, or another {another}"
            )


def tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows of an Arrow table as tuples, in the form of `TableStore.rows`."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
