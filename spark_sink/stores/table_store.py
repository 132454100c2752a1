"""Base of every kind of store: a `ResultStore` with one table, which can be read without a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kafka_ratchet.spark_sink.errors import Fenced, OptionRefused, TablePutBack, TopicRecreated, refuse
from kafka_ratchet.spark_sink.rows.partition_by import PartitionField
from kafka_ratchet.spark_sink.rows.write_mode import APPEND, WriteMode
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.store import NEW_TOPIC, ResultStore, require_names
from kafka_ratchet.spark_sink.topic_ids import StoredTopicId, text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from kafka_ratchet.spark_sink.stores.compactor import Compactor
    from kafka_ratchet.spark_sink.stores.decision import RepairNote, Replacement
    from kafka_ratchet.spark_sink.stores.orphans import Orphan


REPLACING: Final = "delta, iceberg, postgres, mysql or duckdb"


class TableStore(ResultStore):
    """Base class of the kinds of stores that `registry.STORES` names.

    Such a store is a `ResultStore` with one table, which can be read without a job. Jobs of different names and topics
    may share the table. A subclass changes the defaults below; `docs/guide/own-store.md` describes its methods step by
    step.

    Args:
        location: location of the results.
        name: the job's name; a job that opens the store fences an older run of the same name.
        topic: the topic that the offsets belong to.
        topic_id: id from `TopicPlanner.topic_id()`; 0: it is not compared with the stored one.
        write_mode: effect of the rows on the table.
        rejects: columns of the rejects table; None: commits have no rejects. Always None with `rejects_apart`.
        in_tasks: True if each row comes from one record, so that each task may commit its own Kafka partition.
        evolve: True if `open` adds the job's columns to a table that lacks them; only with `evolves`.
        partition_by: partition columns of the table's files; only with `partitions`.

    Raises:
        OptionRefused: a name or the location cannot be used, or the store's package is not installed.
    """

    needs_path: bool = True
    """True if the store needs `TableLocation.path`: it has a folder or a file."""

    has_tables: bool = True
    """True if the store uses `TableLocation.table`; False: its folder is the table."""

    nested_columns: bool = True
    """True if lists, maps and structs keep their types; False: they are stored as text."""

    rejects_apart: bool = False
    """True if a commit changes one table only. A second store of this class, at `rejects_at`, then keeps the rejects,
    one commit ahead of the rows (see `pair`). Such a store implements `pair.NumberedStore`. False: one commit changes
    rows and rejects."""

    splits: bool = False
    """True if several tasks may read one Kafka partition for a commit."""

    partitions: bool = False
    """True if the store can separate the table's files by `partition_by`."""

    evolves: bool = False
    """True if `open` can add columns to an existing table."""

    engines: tuple[str, ...] = ()
    """Values of `TableLocation.engine` for writing files by another engine than the store's own."""

    all_totals: bool = False
    """True if commits support all of `WriteMode.row_key` and `WriteMode.aggregates`. False: only `key` and `sums`;
    windows, averages and other aggregates are refused."""

    keeps_sequences: bool = False
    """True if the store is a `judging_store.JudgingStore` when its write mode has `judged`."""

    _check_source: Callable[[], object] = bool
    """Check to call before staged rows become visible; `bool` checks nothing. See `check_before_commit`."""

    def __init__(
        self,
        location: TableLocation,
        name: str,
        topic: str,
        topic_id: int = 0,
        write_mode: WriteMode = APPEND,
        *,
        rejects: StructType | None = None,
        in_tasks: bool = False,
        evolve: bool = False,
        partition_by: Sequence[PartitionField] = (),
    ) -> None:
        require_names(name, topic)
        if write_mode.more_than_sums and not self.all_totals:
            raise OptionRefused(
                f"store {location.kind} supports only counts and sums as totals, and no windows, averages, minima, "
                "maxima or distinct values. Leave them out, or choose delta, postgres, duckdb or iceberg"
            )
        self._name, self._topic, self._topic_id, self._write_mode = name, topic, topic_id, write_mode
        self._rejects, self._in_tasks, self._evolve = rejects, in_tasks, evolve
        self.judges = write_mode.judged is not None
        self._partition_by = tuple(partition_by)
        self._generation: int | None = None
        """Generation of this run; None: the store is not open."""
        self._where: object = location
        """Name of the table in messages."""
        self._prepare(location)

    def _prepare(self, location: TableLocation) -> None:
        """Store the needed parts of the location, without contacting the store; the constructor's last step.

        Raises:
            OptionRefused: the location cannot be used, or the store's package is not installed.
        """
        raise NotImplementedError

    @staticmethod
    def require_engine(spark: SparkSession) -> None:
        """Refuse a Spark session that cannot use one of `engines`.

        Raises:
            OptionRefused: the session lacks a package or a setting.
        """

    @classmethod
    def rejects_at(cls, location: TableLocation) -> TableLocation:
        """Return the location of the rejects that belong to a result table."""
        return replace(location, table=f"{location.table}_rejects")

    def check_before_commit(self, check: Callable[[], object]) -> None:
        """Set a check, see `ResultStore.check_before_commit`."""
        self._check_source = check

    def count(self) -> int:
        """Count the rows of the table.

        Raises:
            SinkError: there is no such table, or it cannot be read.
        """
        raise NotImplementedError

    def rows(self, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Read some columns of all rows; the order of the rows is undefined.

        Raises:
            SinkError: there is no such table, or it cannot be read.
        """
        raise NotImplementedError

    def scan(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the columns of `schema` in batches, as of one commit.

        The types in a batch can be cast to the types in `schema`.

        Raises:
            Exception: there is no such table or column; `results.scan` converts the error to a `StoreError`.
        """
        raise NotImplementedError

    def scan_records(self, schema: pa.Schema, partition: int, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range of records in one Kafka partition, as `scan` does; other rows may come too."""
        return self.scan(schema)

    def other_jobs(self) -> list[str]:
        """Return no jobs: this kind of store does not know the names of its jobs."""
        return []

    def other_sources(self) -> list[str]:
        """Return no sources: this kind of store does not know the names of its jobs."""
        return []

    def replace(
        self, dataframe: DataFrame, first: dict[int, int], last: dict[int, int], rejects: DataFrame | None = None
    ) -> int:
        """Refuse the replacement: this kind of store cannot replace rows of single records."""
        raise OptionRefused(f"{self._where}: this kind of store cannot replace rows. Choose {REPLACING}")

    def require_repairable(self) -> None:
        """Refuse a repair if this kind of store does not implement `repair`."""
        if type(self).repair is TableStore.repair:
            raise self._repairs_nothing()

    def repair(
        self, rows: Replacement | None, rejects: Replacement | None, start: Mapping[int, int], note: RepairNote
    ) -> None:
        """Refuse the repair: this kind of store cannot replace rows."""
        raise self._repairs_nothing()

    def _repairs_nothing(self) -> OptionRefused:
        return OptionRefused(f"{self._where}: this kind of store cannot repair rows. Choose {REPLACING}")

    def commits(self) -> Iterator[tuple[str, Mapping[int, int]]]:
        """Yield the job's commits that the store still knows, newest first.

        Returns:
            Name of each commit, and the next offset of each partition.
        """
        return iter(())

    def orphans(self, *, needed: bool = True) -> Iterator[Orphan]:
        """Yield the orphans that fenced runs of any job left next to the table; see `vacuum`.

        Args:
            needed: True if a missing table is an error.

        Raises:
            StoreError: there is no such table.
        """
        raise NotImplementedError

    def is_there(self) -> bool:
        """Return whether the table exists; only stores with a separate table of rejects implement it."""
        return False

    def compactor(self) -> Compactor:
        """Return the steps of a compaction for a store made of files; see `compact.compact`.

        Raises:
            OptionRefused: the store is not made of files, or the table cannot be compacted.
            StoreError: there is no such table.
        """
        raise OptionRefused(
            f"{self._where}: the table is not a folder of files, so `ratchet sink compact` has nothing to do: the "
            "database itself reorganises its tables"
        )

    # -- comparisons of subclasses

    def _require_open(self) -> int:
        """Return the generation of this run.

        Raises:
            RuntimeError: the store is not open.
        """
        if self._generation is None:
            raise RuntimeError("the store is not open")
        return self._generation

    def _require_commit(
        self,
        start: Mapping[int, int],
        end: Mapping[int, int],
        rejects: DataFrame | None,
        sequences: DataFrame | None,
    ) -> int:
        """Check the arguments of a commit, and return the generation of this run.

        Raises:
            RuntimeError: the store is not open.
            ValueError: the arguments do not match the store's options. Both errors are mistakes in the calling code.
        """
        if self._generation is None:
            raise RuntimeError("commit() before open()")
        if start == end:
            raise ValueError("a commit needs at least one offset that moves")
        if back := [each for each, offset in end.items() if offset < start.get(each, 0)]:
            raise ValueError(
                f"a commit may not move the offset of partition {back[0]} back, from {start[back[0]]} to {end[back[0]]}"
            )
        if (rejects is None) != (self._rejects is None):
            raise ValueError("a commit needs rejects if the store was made with rejects, and may have none otherwise")
        if (sequences is not None) != self.judges:
            raise ValueError("a commit needs last sequences if the store judges, and may have none otherwise")
        return self._generation

    def _require_generation(
        self, generation: int | None, newest: int, stored: Mapping[int, int], start: Mapping[int, int] | None
    ) -> None:
        """Refuse to continue if another run has taken over, or has moved the stored offsets.

        Only stored partitions are compared, because a partition added to the topic is not in the store yet.

        Args:
            generation: generation of this run.
            newest: newest generation in the store.
            stored: stored offsets.
            start: expected stored offsets; None: they are not compared.

        Raises:
            Fenced: another run has taken over.
            TablePutBack: no other run has, and the table has an earlier generation or other offsets than expected.
        """
        moved = start is not None and any(start.get(partition) != offset for partition, offset in stored.items())
        if generation is not None and newest <= generation and (newest != generation or moved):
            raise TablePutBack(
                f"job {self._name} on {self._where}: the table was put back to an earlier state, or changed under "
                f"this run's name: the table has generation {newest} and topic {self._topic} up to {dict(stored)}, and "
                f"this run expects generation {generation} and {dict(start or {})}. This commit was not added. Run the "
                "job again, to continue from the table's offsets"
            )
        if newest != generation:
            raise Fenced(
                f"job {self._name} on {self._where}: generation {newest} has taken over from {generation} (topic "
                f"{self._topic} is read up to {dict(stored)}). Nothing of this commit was added. Let the other run "
                "continue, or choose another table for this one"
            )

    def _require_topic_id(self, known: StoredTopicId, stored: Mapping[int, int]) -> None:
        """Refuse stored offsets that belong to another topic of the same name."""
        if known.is_other(self._topic_id):
            raise TopicRecreated(
                f"topic {self._topic} is not the one that {self._where} has read (up to {dict(stored)}): its id is "
                f"{text(self._topic_id)}, and the id of the topic read so far was {known}. The topic was deleted and "
                f"created again, or this is another cluster. {NEW_TOPIC}"
            )

    def _refuse(self, error: Exception, look_at: str = "the folder and its rights") -> NoReturn:
        """Convert an error of the store's library or of the disk to one of this package, and raise it."""
        refuse(self._where, error, look_at)
