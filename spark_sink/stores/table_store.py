"""What every kind of store is made from: a `ResultStore` over one table, which can be read without a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kafka_ratchet.spark_sink.errors import Fenced, OptionRefused, TopicRecreated, refuse
from kafka_ratchet.spark_sink.rows.partition_by import PartitionField
from kafka_ratchet.spark_sink.rows.write_mode import APPEND, WriteMode
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.store import NEW_TOPIC, ResultStore, require_names
from kafka_ratchet.spark_sink.topic_ids import StoredId, text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from kafka_ratchet.spark_sink.stores.compactor import Compactor
    from kafka_ratchet.spark_sink.stores.decision import RepairNote, Replacement
    from kafka_ratchet.spark_sink.stores.orphans import Orphan


REPLACING: Final = "delta, iceberg, postgres, mysql or duckdb"


class TableStore(ResultStore):
    """A kind of store, as `registry.STORES` names it: a `ResultStore` over one table, which can be read without a job.

    Jobs of different names and topics may share the table. A subclass states what differs from these defaults.
    `docs/guide/own-store.md` goes through it step by step.

    Args:
        location: where the results are.
        name: the job's name; a job that opens the store fences the older one of its name.
        topic: the topic the offsets belong to.
        topic_id: `TopicPlanner.topic_id()`; 0 switches the comparison off.
        write_mode: what the rows do to the table.
        rejects: columns of the rejects table; None: commits bring no rejects. Never given with `rejects_apart`.
        in_tasks: the rows are the records one by one, so that each task may commit its own Kafka partition.
        evolve: add the job's columns to a table that lacks them, once it is taken over; only with `evolves`.
        partition_by: what the table's files are kept apart by; only with `partitions`.

    Raises:
        OptionRefused: a name or the location cannot be used, or the store's package is not installed.
    """

    needs_path: bool = True
    """False: the store has no folder or file, and `TableLocation.path` means nothing to it."""

    has_tables: bool = True
    """False: the folder is the table, and `TableLocation.table` means nothing to it."""

    nested_columns: bool = True
    """False: lists, maps and structures are kept as text."""

    rejects_apart: bool = False
    """True: a commit is one table's. Rejects then go to a second store of this class at `rejects_at`, one commit ahead
    of the rows (see `pair`), and `open`, `make` and `reset_offsets` are those of `pair.ExternallyNumbered`. False:
    `commit` takes both."""

    splits: bool = False
    """Permission for several tasks to read one Kafka partition for a commit."""

    partitions: bool = False
    """Whether the table's files can be kept apart by `partition_by`."""

    evolves: bool = False
    """Whether `open` can add columns to a table that is there."""

    all_totals: bool = False
    """True: commits go by `WriteMode.row_key` and the rule of each of `WriteMode.aggregates`. False: by `key` and
    `sums`, so that windows, averages and so on are refused."""

    keeps_sequences: bool = False
    """Whether it is a `judging_store.JudgingStore` where its write mode says `judged`."""

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
                f"store {location.kind} has totals of counts and sums only: it knows no windows, averages, minima, "
                "maxima and distinct values. Leave them out, or choose delta, postgres, duckdb or iceberg"
            )
        self._name, self._topic, self._topic_id, self._write_mode = name, topic, topic_id, write_mode
        self._rejects, self._in_tasks, self._evolve = rejects, in_tasks, evolve
        self.judges = write_mode.judged is not None
        self._partition_by = tuple(partition_by)
        self._generation: int | None = None
        """Of this holder, once it is open."""
        self._where: object = location
        """The table, as messages name it."""
        self._prepare(location)

    def _prepare(self, location: TableLocation) -> None:
        """Keep what is needed of the location; the last step of the constructor. Nothing is asked or made yet.

        Raises:
            OptionRefused: the location cannot be used, or the store's package is not installed.
        """
        raise NotImplementedError

    @classmethod
    def rejects_at(cls, location: TableLocation) -> TableLocation:
        """Where the rejects of a result are."""
        return replace(location, table=f"{location.table}_rejects")

    def count(self) -> int:
        """Rows of the table.

        Raises:
            SinkError: there is no such table, or it cannot be read.
        """
        raise NotImplementedError

    def rows(self, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Those columns of all rows, in no order; raises as `count` does."""
        raise NotImplementedError

    def scan(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The columns of `schema` batch by batch, as of one commit; the types may be others that can be cast to it.

        Raises:
            Exception: there is no such table or column; `results.scan` makes a sentence of it.
        """
        raise NotImplementedError

    def scan_records(self, schema: pa.Schema, partition: int, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """As `scan`, and rows of other records than a Kafka partition's from offset first to last may be left out."""
        return self.scan(schema)

    def other_jobs(self) -> list[str]:
        """None, where the store does not keep the names of its jobs."""
        return []

    def other_sources(self) -> list[str]:
        """None, where the store does not keep the names of its jobs."""
        return []

    def replace(
        self, dataframe: DataFrame, first: dict[int, int], last: dict[int, int], rejects: DataFrame | None = None
    ) -> int:
        """Refuse it, where the store cannot change rows of single records."""
        raise OptionRefused(f"{self._where}: this kind of store replaces no rows. Choose {REPLACING}")

    def require_repairable(self) -> None:
        """Refuse, where the store has no `repair` of its own; see `ResultStore`."""
        if type(self).repair is TableStore.repair:
            raise self._repairs_nothing()

    def repair(
        self, rows: Replacement | None, rejects: Replacement | None, start: Mapping[int, int], note: RepairNote
    ) -> None:
        """Refuse, where the store cannot replace rows; see `ResultStore`."""
        raise self._repairs_nothing()

    def _repairs_nothing(self) -> OptionRefused:
        return OptionRefused(f"{self._where}: a store of this kind cannot replace rows, so that nothing is repaired")

    def commits(self) -> Iterator[tuple[str, Mapping[int, int]]]:
        """The job's commits, the newest first, as far as the store still says; none where it does not keep them apart.

        Returns:
            the store's name for each, and the next offset of each partition
        """
        return iter(())

    def orphans(self, *, needed: bool = True) -> Iterator[Orphan]:
        """What holders of any job have left beside the table that a newer one has fenced; see `vacuum`.

        Args:
            needed: False: it is no mistake if there is no such table.

        Raises:
            StoreError: there is no such table.
        """
        raise NotImplementedError

    def is_there(self) -> bool:
        """Whether there is such a table; only for stores whose rejects are a table apart."""
        return False

    def compactor(self) -> Compactor:
        """What puts small files together, where the store is made of files; see `compact`.

        Raises:
            OptionRefused: it is not.
            StoreError: there is no such table.
        """
        raise OptionRefused(
            f"{self._where}: the table is no folder of files that become many, so there is nothing to compact. The "
            "database itself keeps it in order"
        )

    # -- what subclasses compare

    def _require_open(self) -> int:
        """Return the holder's generation."""
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
        """The holder's generation.

        Raises:
            RuntimeError: the store is not open.
            ValueError: what is to be committed is not what the store was made for. Both are mistakes in the code.
        """
        if self._generation is None:
            raise RuntimeError("commit() before open()")
        if start == end:
            raise ValueError("a commit needs at least one offset that moves")
        if (rejects is None) != (self._rejects is None):
            raise ValueError("rejects go to a store that was made with rejects, with every commit")
        if (sequences is not None) != self.judges:
            raise ValueError("last sequences go to a store that judges, with every commit")
        return self._generation

    def _require_generation(
        self, generation: int | None, newest: int, stored: Mapping[int, int], start: Mapping[int, int] | None
    ) -> None:
        """Compare what a holder knows with what the store has.

        Stored partitions only are compared: one that was added to the topic since is not in the store yet.

        Args:
            generation: the holder's.
            newest: the store's.
            stored: the store's offsets.
            start: what the holder takes for them; None: they are not compared.

        Raises:
            Fenced: another job has taken over.
        """
        moved = start is not None and any(start.get(partition) != offset for partition, offset in stored.items())
        if newest != generation or moved:
            raise Fenced(
                f"job {self._name} on {self._where}: generation {newest} has taken over from {generation} (topic "
                f"{self._topic} is read up to {dict(stored)}). This commit was not added; let the other job go on, or "
                "give this one a name of its own"
            )

    def _require_topic_id(self, known: StoredId, stored: Mapping[int, int]) -> None:
        """Raise `TopicRecreated` where the stored offsets belong to another topic of the name."""
        if known.is_other(self._topic_id):
            raise TopicRecreated(
                f"topic {self._topic} is not the one that {self._where} has read (up to {dict(stored)}): its id is "
                f"{text(self._topic_id)}, and that one's was {known}. It was deleted and created again, or this is "
                f"another cluster. {NEW_TOPIC}"
            )

    def _refuse(self, error: Exception, look_at: str = "the folder and its rights") -> NoReturn:
        """Raise an error of the store's library or the disk as one of ours."""
        refuse(self._where, error, look_at)
