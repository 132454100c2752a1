"""Interface of a store to the job, for a folder under stores/ to implement."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from kafka_ratchet.spark_sink.errors import Fenced, OptionRefused, RowsLost, SchemaDiffers
from kafka_ratchet.spark_sink.rows.columns import RECORD_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from kafka_ratchet.spark_sink.stores.decision import Decision, RepairNote, Replacement, StoreCheck

JOB_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
"""Pattern of job names, which become part of keys in every store: this alphabet is plain in all of them."""

COMPACTION = "ratchet-compact"
"""Name in the files and generations of `compact`, in place of a job's."""

TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""Pattern of topic names: Kafka's own rule (org.apache.kafka.common.internals.Topic)."""


RUN_FIRST = "Run the sink first, or check the path"
"""Remedy for a reader without a table."""


class ResultStore(Protocol):
    """Rows and the Kafka offsets they reach to, changed together or not at all.

    The store alone knows how far the job has read; no checkpoint exists that could disagree. Offsets are "next to
    read", per partition number; partition numbers may have gaps. The run that opened the store last is its holder; the
    generation counts them, and a commit of an earlier one is refused.
    """

    restricted_values: int = False
    """Restriction of values. True: text may have no NUL, and times lie in the years 1 to 9999; `columns.rows` keeps
    other values whole. `columns.FINITE_TOO`: numbers have to be finite as well."""

    needs_local_master: str = ""
    """Reason why Spark may run on the driver's machine only (master local); empty: executors may be anywhere."""

    judges: bool = False
    """True: the job reads a raw topic, the store is a `judging_store.JudgingStore`, and each commit brings last
    sequences."""

    def generation(self) -> int:
        """Read the newest holder's number without taking over; 0: there was none yet.

        Raises:
            StoreError: the store cannot be read.
        """
        ...

    def offsets(self) -> dict[int, int]:
        """Read the stored offsets without taking over; empty: there was no commit.

        Raises:
            TopicRecreated: they belong to another topic of the same name.
            RowsLost: the table was put back, emptied or replaced, and they were not.
            StoreError: the store cannot be read.
        """
        ...

    def check(self) -> StoreCheck:
        """Read the state of the table and its faults, for `ratchet sink resume`.

        Raises:
            StoreError: the store cannot be read, or there is none.
        """
        ...

    def other_jobs(self) -> list[str]:
        """Return the names of other jobs with records of this topic in the table, in order.

        Raises:
            StoreError: the store cannot be read.
        """
        ...

    def columns(self) -> StructType | None:
        """Read the columns of the table in Spark's types; None: there is no table, or no job's.

        Raises:
            OptionRefused: Spark's types do not follow from the table's.
            StoreError: the store cannot be read.
        """
        ...

    def column_names(self) -> list[str] | None:
        """Return the names of the table's columns, in its order; None: there is no table, or no job's.

        Raises:
            StoreError: the store cannot be read.
        """
        found = self.columns()
        return None if found is None else list(found.names)

    def require_fits(self, schema: StructType) -> None:
        """Compare an existing table with these columns as `open` does, without changes.

        Raises:
            SchemaDiffers: it has others.
            OptionRefused: the store cannot have such columns.
            StoreError: the store cannot be read.
        """
        ...

    def require_write_mode(self) -> None:
        """Compare kind, key and sums with those of the job's commits, without taking over.

        Raises:
            WriteModeDiffers: they differ.
            StoreError: the store cannot be read.
        """
        ...

    def open(self, schema: StructType) -> dict[int, int]:
        """Take over with a new generation, which fences every older holder; create a missing table.

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

        A store may have one action per Kafka partition: then a failed call may have committed some partitions, each
        with its rows and its offset, and the next `open` returns their offsets.

        Args:
            dataframe: the rows of the records from `start` up to, not including, `end`. A row with true in a column
                `columns.DELETED` removes the table's row of its key, if there is one.
            start: expected stored offsets.
            end: differs from `start` in at least one partition.
            rejects: rows of the rejects table, which become visible in the same action or, with `PairedStore`, in one
                before it; required in every commit of a store with `rejects`, and in no other.
            sequences: changed last sequences, one row for each identity, those of a Kafka partition in one partition of
                the frame; they count from the same action on. Required in every commit of a store that `judges`, and in
                no other.

        Returns:
            Number of committed rows, without rejects.

        Raises:
            Fenced: another job has taken over; nothing of this call is visible.
            RowsLost: see `offsets`; nothing of this call is visible.
            SchemaDiffers: the table's columns were changed since `open`; nothing of this call is visible.
            StoreError: the store cannot be written; nothing of this call is visible.
        """
        ...

    def other_sources(self) -> list[str]:
        """Return other jobs and topics with rows in the table, as messages name them.

        Raises:
            StoreError: the store cannot be read.
        """
        ...

    def replace(
        self, dataframe: DataFrame, first: dict[int, int], last: dict[int, int], rejects: DataFrame | None = None
    ) -> int:
        """Replace the rows of a range of records in one atomic action. Offsets stay.

        Args:
            dataframe: rows of the records from `first` up to, not including, `last`.
            first: first offset of each partition of the range.
            last: offset after the last one of each; none is above the stored one.
            rejects: as in `commit`.

        Returns:
            Number of new rows, without rejects.

        Raises:
            OptionRefused: the store cannot replace rows.
            Fenced: see `commit`; likewise the others.
        """
        ...

    def reset_offsets(self, offsets: dict[int, int], decision: Decision) -> int:
        """Replace the stored offsets and the stored write mode by an operator's decision.

        Fences every holder.

        Args:
            offsets: next offset of each partition; other partitions have none.
            decision: kept with them.

        Returns:
            Generation of the change.

        Raises:
            StoreError: the store cannot be read or written, or there is none.
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
        """Replace rows in one atomic action; leave offsets and all other rows as they are.

        A store with rejects in a table apart replaces those in an action before it. A second time has no effect.

        Args:
            rows: rows of the result; None: none.
            rejects: rows of the rejects table; None: none.
            start: expected stored offsets.
            note: kept with the action.

        Raises:
            Fenced: another job has taken over; nothing of this call is visible.
            RowsLost: see `offsets`; likewise.
            OptionRefused: the store cannot replace rows, or the table has a feature that forbids it.
            StoreError: the store cannot be written; likewise.
        """
        ...

    def close(self) -> None:
        """Release all resources of the store. The next `open` does not depend on this call."""
        ...


def require_names(name: str, topic: str) -> None:
    """Refuse names that could be ambiguous inside a store's keys.

    Raises:
        OptionRefused: the job's name or the topic's name has a forbidden character, or is taken.
    """
    if name == COMPACTION:
        raise OptionRefused(f"job name {name!r}: files that `ratchet sink compact` writes have it. Choose another")
    if not JOB_NAME.fullmatch(name):
        raise OptionRefused(f"job name {name!r}: use a lower-case letter, then at most 62 letters, digits, '_' or '-'")
    if not TOPIC_NAME.fullmatch(topic) or topic in {".", ".."}:
        raise OptionRefused(f"{topic!r} is not a Kafka topic name: 1 to 249 letters, digits, '.', '_' or '-'")


def require_local_master(store: ResultStore, master: str | None) -> None:
    """Refuse executors on other machines, if the store is on the driver's disk.

    Raises:
        OptionRefused: the store is for one machine, and Spark's master is not local.
    """
    if store.needs_local_master and not (master or "").startswith("local"):
        raise OptionRefused(
            f"{store.needs_local_master}, and Spark runs on {master or 'other machines'}. Choose store postgres, or "
            "delta in a folder that all machines share; or run Spark on one machine (--master local[*])"
        )


def next_generation(newest: int, wanted: int | None, who: str) -> int:
    """Return the number to take over with: `wanted`, or one more than the newest.

    Raises:
        Fenced: `wanted` is not above the newest.
    """
    if wanted is not None and newest >= wanted:
        raise Fenced(
            f"{who}: generation {newest} has taken over from {wanted}. Let the other job go on, or give this one a "
            "name of its own"
        )
    return newest + 1 if wanted is None else wanted


NEW_TOPIC = (
    "The stored offsets mean nothing in the new one. `ratchet sink resume --from earliest` reads it from its beginning "
    "into the same table, where rows that both have are then there twice; a mirrored topic goes on at the offsets that "
    "you name (--from 0:OFFSET,1:OFFSET)"
)


def rows_lost(where: object, what: str, known: bool = True) -> RowsLost:
    """Return the error for a table that no longer matches its offsets.

    Args:
        where: the store, as messages name it.
        what: the change of the table, as a sentence without its end.
        known: whether the offsets that fit the rows are known.
    """
    ways = [
        "--from table sets the offsets to the end of the table's rows, so that the rest is read again, each once"
        if known
        else "--from earliest or --from 0:OFFSET,1:OFFSET reads again from there",
        "--from stored goes on without the rows",
    ]
    return RowsLost(
        f"{where}: {what}, and the offsets stored in it are those of before. Going on would leave rows out without a "
        f"word. Undo it, or decide with `ratchet sink resume`: {'; '.join(ways)}"
    )


FORMER_RECORD_COLUMNS: Final = ("_partition", "_offset", "_timestamp", "_key", "_value")
"""Names of the record columns before the first release."""


def require_record_columns(where: object, present: Iterable[str], table: str | None = None) -> None:
    """Refuse a table with record columns of a former name.

    Iceberg reserves the name `_partition` for its metadata: Spark cannot read a table with such a column.

    Args:
        where: the store, as messages name it.
        present: columns of the table.
        table: its name, where a store has several; None: the path is the table.

    Raises:
        SchemaDiffers: with the statements that rename them.
    """
    former = [name for name in FORMER_RECORD_COLUMNS if name in present]
    if not {"_partition", "_offset"} <= set(former) or set(RECORD_COLUMNS) & set(present):
        return  # other columns may have such names
    named = "the table" if table is None else f"table {table}"
    statements = "; ".join(
        f"ALTER TABLE {'TABLE' if table is None else table} RENAME COLUMN {name} TO _kafka{name}" for name in former
    )
    raise SchemaDiffers(
        f"{where}: {named} has the columns {', '.join(former)}, and record columns begin with _kafka_ now. Rename "
        f"them, then start the job again: {statements}"
    )


def without_free(present: Mapping[str, str], expected: Mapping[str, str], free: Collection[str]) -> dict[str, str]:
    """Return the columns of a table without other jobs' free ones; see `require_columns`."""
    return {name: kind for name, kind in present.items() if name in expected or name not in free}


def require_columns(
    where: object,
    present: Mapping[str, str],
    expected: Mapping[str, str],
    table: str | None = None,
    free: Collection[str] = (),
) -> None:
    """Compare names and types of columns.

    Args:
        where: the store, as messages name it.
        present: the table's columns.
        expected: the job's columns.
        table: its name, where a store has several; None: the path is the table.
        free: columns of others that a writer may leave out: null, a default or the table's own value is in them.

    Raises:
        SchemaDiffers: they are not the same, but for free ones.
    """
    require_record_columns(where, present, table)
    present = without_free(present, expected, free)
    of_table, another = ("", "path") if table is None else (f" of {table}", "table")
    for column in [*expected, *present]:
        if column not in expected:
            raise SchemaDiffers(
                f"{where}: column {column}{of_table} is {present[column]} in the table and absent in this job, and may "
                "not be left out. Let it be null or give it a default in the table, name it in columns, or choose "
                f"another {another}"
            )
        if present.get(column) != expected[column]:
            raise SchemaDiffers(
                f"{where}: column {column}{of_table} is {present.get(column, 'absent')} in the table and "
                f"{expected[column]} in this job. Give the job the table's columns, or another {another}"
            )


def tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows of an Arrow table, in the form of `TableStore.rows`."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
