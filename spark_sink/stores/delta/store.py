"""Results in a Delta Lake table, in a folder or bucket, committed by delta-rs.

Executors write Parquet files into the table's folder; readers do not see them until the driver names them in the log.
The same log entry contains `txn` actions (Delta protocol, "Transaction Identifiers"): one per Kafka partition with the
next offset, and one with the generation. Delta keeps these actions through log clean-up, checkpoints and compaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.files.parquet import (
    file_prefix,
    require_files,
    write_files,
    write_partitioned_files,
)
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.identities import Identities
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.decision import Decision, RepairNote, Replacement, first_after
from kafka_ratchet.spark_sink.stores.delta import vacuum
from kafka_ratchet.spark_sink.stores.delta.actions import (
    first_actions,
    generation_key,
    newest_generation,
    offset_actions,
    sequences_key,
    stored_first,
    stored_id,
    stored_offsets,
    stored_write_mode,
    version_key,
    write_mode_actions,
)
from kafka_ratchet.spark_sink.stores.delta.commit import (
    JobEntry,
    has_row_without_record,
    replace_range,
    write_actions,
    write_entry,
)
from kafka_ratchet.spark_sink.stores.delta.compact import DeltaCompactor, require_plain_files
from kafka_ratchet.spark_sink.stores.delta.consistency import ConsistencyCheck, require_plain_log
from kafka_ratchet.spark_sink.stores.delta.log import read_entry
from kafka_ratchet.spark_sink.stores.delta.merge import require_plain
from kafka_ratchet.spark_sink.stores.delta.partitions import (
    partition_values,
    require_partitions,
    with_partition_columns,
    with_partitions,
    without_partitions,
)
from kafka_ratchet.spark_sink.stores.delta.repair import actions_of, require_repairable, rewrite
from kafka_ratchet.spark_sink.stores.delta.rules import require_no_rules
from kafka_ratchet.spark_sink.stores.delta.spark_merge import SparkMerge
from kafka_ratchet.spark_sink.stores.delta.spark_merge import actions_of as replaced_files
from kafka_ratchet.spark_sink.stores.delta.spark_writer import SparkFiles, SparkWriter, require_delta_spark
from kafka_ratchet.spark_sink.stores.delta.table import (
    add_columns,
    free_columns,
    missing_columns,
    open_or_create,
    open_table,
    require_fits,
    table_folder,
    types_of,
)
from kafka_ratchet.spark_sink.stores.delta.transactions import TransactionReader, jobs_of, sources_of
from kafka_ratchet.spark_sink.stores.delta.vacuum import STAGING
from kafka_ratchet.spark_sink.stores.location import ENGINE, TableLocation
from kafka_ratchet.spark_sink.stores.optimistic import OptimisticStore, Staged
from kafka_ratchet.spark_sink.stores.orphans import Orphan
from kafka_ratchet.spark_sink.stores.sequence_files import FOLDER, SequenceFiles
from kafka_ratchet.spark_sink.stores.store import require_columns, rows_without_record, tuples
from kafka_ratchet.spark_sink.stores.stored_write_mode import write_mode_text
from kafka_ratchet.spark_sink.topic_ids import StoredTopicId

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from kafka_ratchet.spark_sink.rows.judging.rule import JudgeRule


class DeltaStore(OptimisticStore["DeltaTable"]):
    """Result store in one Delta table: `location` names its folder, or s3://bucket/folder."""

    has_tables = False
    evolves = True
    engines = (ENGINE,)
    all_totals = True
    keeps_sequences = True
    partitions = True

    _spark_writer: SparkWriter | None = None
    """Writer that uses delta-spark; None: the job's own tasks write the files."""

    def _prepare(self, location: TableLocation) -> None:
        require_plain(self._write_mode)
        self._where = self._folder = table_folder(location.path, location.storage_options)
        self._transactions = TransactionReader(self._folder)
        self._consistency = ConsistencyCheck(self._folder, self._name, self._topic, self._transactions)
        if location.engine and self._write_mode.more_than_sums:
            raise OptionRefused(
                f"engine {location.engine} supports only counts and sums as totals, and no windows, averages, minima, "
                "maxima or distinct values. Leave engine out: delta-rs then merges the rows in the driver"
            )
        if location.engine:
            self._spark_writer = SparkWriter(self._folder, self._partition_by)
        self._by_spark: SparkFiles | None = None
        """Files that delta-spark wrote for the next commit."""
        self._merge_by_spark: SparkMerge | None = None
        """Merge of the next commit's rows by Spark."""
        self._attempt = -1
        self._table_id, self._version = "", -1
        """Id of the opened table, and version of this job's last entry in its log."""
        self._columns: dict[str, str] = {}
        self._write_mode_actions: dict[str, int] = {}
        """`txn` actions that store a changed write mode with the next commit; empty: the log has it already."""

    @staticmethod
    def require_engine(spark: SparkSession) -> None:
        require_delta_spark(spark)

    @classmethod
    def rejects_at(cls, location: TableLocation) -> TableLocation:
        return replace(location, path=f"{location.path.rstrip('/')}_rejects")

    def count(self) -> int:
        return self._for_reading().count()

    def rows(self, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        return tuples(self._for_reading().to_pyarrow_dataset().to_table(columns=list(columns)))

    def scan(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        yield from self._for_reading().to_pyarrow_dataset().to_batches(columns=schema.names)

    def scan_records(self, schema: pa.Schema, partition: int, first: int, last: int) -> Iterator[pa.RecordBatch]:
        import pyarrow.dataset as ds

        where = (
            (ds.field("_kafka_partition") == partition)
            & (ds.field("_kafka_offset") >= first)
            & (ds.field("_kafka_offset") <= last)
        )
        yield from self._for_reading().to_pyarrow_dataset().to_batches(columns=schema.names, filter=where)

    def commits(self) -> Iterator[tuple[str, Mapping[int, int]]]:
        table = self._find()
        for version in range(-1 if table is None else table.version(), -1, -1):
            if (entry := read_entry(self._folder, version)) is None:
                return  # cleaned up
            metadata = entry.user_metadata
            if metadata.get("job") == self._name and metadata.get("topic") == self._topic:
                yield f"version {version}", {int(number): offset for number, offset in metadata["offsets"].items()}

    def orphans(self, *, needed: bool = True) -> Iterator[Orphan]:
        return vacuum.orphans(self._folder, needed=needed)

    def compactor(self) -> DeltaCompactor:
        return DeltaCompactor(self._folder, self._existing())

    def columns(self) -> StructType | None:
        from pyspark.sql.types import StructType

        table = self._find()
        # Spark and Delta describe schemas in the same JSON.
        found = None if table is None else StructType.fromJson(json.loads(table.schema().to_json()))
        return None if found is None else without_partitions(found, self._partition_by)

    # -- the table

    def _find(self) -> DeltaTable | None:
        return open_table(self._folder)

    def _find_or_make(self, schema: StructType) -> DeltaTable:
        whole = with_partitions(schema, self._partition_by)
        table = open_or_create(self._folder, whole, [field.name for field in self._partition_by])
        self._require_fits(table, schema)
        return table

    def _refresh(self, table: DeltaTable) -> None:
        from deltalake.exceptions import DeltaError

        try:
            table.update_incremental()
        except DeltaError as error:
            self._refuse(error)

    def _require_fits(self, table: DeltaTable, schema: StructType) -> None:
        self._require_no_rules(table)
        require_partitions(self._folder, table, self._partition_by)
        if self._evolve:
            missing_columns(self._folder, table, with_partitions(schema, self._partition_by))
        else:
            require_fits(self._folder, table, with_partitions(schema, self._partition_by))

    def _require_no_rules(self, table: DeltaTable) -> None:
        merges, by_spark = bool(self._write_mode.row_key), self._spark_writer is not None
        require_no_rules(table, self._folder, merges, by_spark=by_spark)

    def _version_of(self, table: DeltaTable) -> object:
        return table.version()

    # -- the job's state in the table

    def _newest(self, table: DeltaTable) -> int:
        return newest_generation(self._transactions.of(table), self._name)

    def _stored(self, table: DeltaTable) -> dict[int, int]:
        return stored_offsets(self._transactions.of(table), self._name, self._topic)

    def _first(self, table: DeltaTable) -> dict[int, int]:
        return stored_first(self._transactions.of(table), self._name, self._topic)

    def _stored_id(self, table: DeltaTable) -> StoredTopicId:
        return stored_id(self._transactions.of(table), self._name, self._topic)

    def other_jobs(self) -> list[str]:
        table = self._find()
        if table is None:
            return []
        known = self._transactions.of(table)
        return [
            job
            for job in sorted(jobs_of(self._folder, table) - {self._name})
            if stored_offsets(known, job, self._topic)
            and not stored_id(known, job, self._topic).is_other(self._topic_id)
        ]

    def other_sources(self) -> list[str]:
        found = sources_of(self._folder, self._existing()) - {(self._name, self._topic)}
        return [f"job {job} (topic {topic})" for job, topic in sorted(found)]

    def _stored_write_mode(self, table: DeltaTable) -> str:
        return stored_write_mode(self._transactions.of(table), self._name)

    def _stored_sequences(self, table: DeltaTable) -> int:
        return self._transactions.of(table).transaction_version(sequences_key(self._name)) or 0

    def _files_of_sequences(self, table: DeltaTable, rule: JudgeRule) -> SequenceFiles:
        return SequenceFiles(self._folder, (FOLDER,), self._name, rule)

    def _require_consistent(self, table: DeltaTable) -> None:
        self._consistency.require(table, may_be_emptied=self.may_be_emptied)

    def _row_offsets(self, table: DeltaTable) -> dict[int, int] | None:
        return self._consistency.row_offsets(table)

    def _require_holder(self, table: DeltaTable, start: Mapping[int, int] | None) -> None:
        require_plain_log(table, self._folder)  # first: with the property, the generation may be gone already
        self._require_no_rules(table)
        super()._require_holder(table, start)
        require_columns(self._folder, types_of(table.schema()), self._columns, free=free_columns(table.schema()))

    # -- what changes it

    def _is_conflict(self, error: Exception) -> bool:
        from deltalake.exceptions import CommitFailedError

        return isinstance(error, CommitFailedError)

    def _is_failure(self, error: Exception) -> bool:
        from deltalake.exceptions import DeltaError

        return isinstance(error, DeltaError | OSError)

    def _write_take_over(
        self, table: DeltaTable, generation: int, offsets: Mapping[int, int] | None, decision: Decision | None
    ) -> None:
        stored = self._stored(table)
        actions, note = {generation_key(self._name): generation}, {}
        if decision is not None and offsets is not None:
            require_plain_log(table, self._folder)
            write_mode = write_mode_text(self._write_mode)
            # Part of the entry's userMetadata, which DESCRIBE HISTORY shows.
            note["resume"] = json.loads(decision.as_json(stored, offsets, (self._stored_write_mode(table), write_mode)))
            actions |= self._offset_actions(offsets) | write_mode_actions(self._name, write_mode)
            actions |= first_actions(self._name, self._topic, first_after(self._first(table), stored, offsets))
            stored = dict(offsets)
        entry = JobEntry(self._name, self._topic, generation, stored, note, actions)
        write_entry(table, self._folder, entry, [], self._write_mode)

    def _after_take_over(self, table: DeltaTable, schema: StructType) -> None:
        self._version = self._transactions.of(table).transaction_version(version_key(self._name)) or 0
        if self._evolve:  # last of all checks, because a refused job changes nothing
            add_columns(self._folder, table, with_partitions(schema, self._partition_by))
        self._table_id = str(table.metadata().id)
        wanted = with_partitions(schema, self._partition_by).names
        self._columns = {name: kind for name, kind in types_of(table.schema()).items() if name in wanted}
        write_mode = write_mode_text(self._write_mode)
        self._write_mode_actions = (
            {} if self._stored_write_mode(table) == write_mode else write_mode_actions(self._name, write_mode)
        )
        self._remove_staged(before=self._newest(table))

    def _remove_staged(self, before: int) -> None:
        """Remove staged files of generations older than `before`: their jobs are fenced and cannot commit them."""
        with suppress(OSError):  # it only takes space, and vacuum reports the fault
            for name in self._folder.folders(STAGING):
                job, _, generation = name.rpartition(".")
                if job == self._name and generation.isdecimal() and int(generation) < before:
                    self._folder.remove_folder(STAGING, name)

    def commit(
        self,
        dataframe: DataFrame,
        start: dict[int, int],
        end: dict[int, int],
        rejects: DataFrame | None = None,
        sequences: DataFrame | None = None,
    ) -> int:
        if self._table is not None:
            self._consistency.require_same_table(self._table_id, self._version)
        return super().commit(dataframe, start, end, rejects, sequences)

    def _staging(self, generation: int) -> list[str]:
        """Return the nested folders for staged rows of a merge; empty: files go into the table's own folder."""
        return [STAGING, f"{self._name}.{generation}"] if self._write_mode.row_key else []

    def _stage(self, table: DeltaTable, dataframe: DataFrame, generation: int) -> Staged:
        import pyarrow as pa

        if self._spark_writer is not None and not self._write_mode.row_key:
            return self._stage_by_spark(self._spark_writer, table, dataframe)
        inner = self._staging(generation)
        self._folder.make(*inner)
        whole = pa.schema(table.schema().to_arrow())
        schema = pa.schema([field for field in whole if field.name in self._columns])
        if DELETED in dataframe.columns:
            schema = schema.append(pa.field(DELETED, pa.bool_()))
        folder, name = self._folder.inside(*inner), file_prefix(self._name, generation)
        if self._partition_by:
            return self._stage_partitions(table, dataframe, schema, name)
        written = write_files(dataframe, folder, schema, name, self._folder.filesystem)
        if self._spark_writer is not None:
            paths = [self._folder.inside(*inner, file.name) for file in written]
            added = [each.name for each in self._write_mode.aggregates] if self._write_mode.kind == "totals" else []
            self._merge_by_spark = SparkMerge(
                self._spark_writer, self._write_mode.row_key, dataframe.sparkSession, paths, schema.names, added
            )
        return Staged(sum(file.rows for file in written), written, aside=bool(inner))

    def _look_again(self, table: DeltaTable) -> None:
        """Refresh the table, and check that no other run has taken it over."""
        self._refresh(table)
        self._require_holder(table, None)

    def _stage_by_spark(self, writer: SparkWriter, table: DeltaTable, dataframe: DataFrame) -> Staged:
        names = [field.name for field in table.schema().fields if field.name in self._columns]
        rows = dataframe.select(["`" + name.replace("`", "``") + "`" for name in names])
        self._by_spark = writer.write(table, rows, partial(self._look_again, table))
        return Staged(sum(file.rows for file in self._by_spark.files), self._by_spark.files)

    def _stage_partitions(self, table: DeltaTable, dataframe: DataFrame, schema: pa.Schema, prefix: str) -> Staged:
        import pyarrow as pa

        fields = self._partition_by
        of_job = pa.schema([field for field in schema if field.name in dataframe.columns])
        in_log = [field.column for field in fields if not field.unit]
        found = write_partitioned_files(
            dataframe, self._folder.inside(), of_job, prefix, self._folder.filesystem, fields, in_log
        )
        for _, values in found:
            partition_values(self._folder, table, fields, values)  # refused before anything is committed
        files = [file for file, _ in found]
        return Staged(sum(file.rows for file in files), files, partitions={file.name: values for file, values in found})

    def _require_own_engine(self) -> None:
        """Refuse to repair or replace rows in a job with `engine`.

        delta-rs would write the new rows without checking the table's rules.
        """
        if self._spark_writer is not None:
            raise OptionRefused(f"{self._folder}: engine spark cannot repair or replace rows. Leave engine out")

    def _require_repairable(self, table: DeltaTable) -> None:
        self._require_own_engine()
        require_repairable(table, self._folder)

    def _stage_repair(self, table: DeltaTable, rows: Replacement, generation: int) -> Staged:
        """Write the rows of a repair into the table's folder, as an append does."""
        import pyarrow as pa

        if not rows.count:
            return Staged(0)
        whole, name = pa.schema(table.schema().to_arrow()), file_prefix(self._name, generation)
        schema = pa.schema([field for field in whole if field.name in self._columns])
        if self._partition_by:
            return self._stage_partitions(table, rows.rows, schema, name)
        written = write_files(rows.rows, self._folder.inside(), schema, name, self._folder.filesystem)
        return Staged(sum(file.rows for file in written), written)

    def _write_repair(
        self, table: DeltaTable, rows: Replacement, staged: Staged, generation: int, note: RepairNote
    ) -> None:
        self._attempt = table.version() + 1
        rewritten = rewrite(table, self._folder, Identities(rows.gone), file_prefix(self._name, generation))
        partitions = {
            name: partition_values(self._folder, table, self._partition_by, values)
            for name, values in staged.partitions.items()
        }
        stored = self._stored(table)
        actions = {generation_key(self._name): generation, **self._offset_actions(stored)}
        entry = JobEntry(self._name, self._topic, generation, stored, {"repair": note.as_dict()}, actions)
        crash_points.passing("in-commit")
        # After a failure the files stay for vacuum: the version may exist all the same.
        write_actions(table, entry, actions_of(rewritten, staged.files, partitions))

    def _offset_actions(self, offsets: Mapping[int, int]) -> dict[str, int]:
        return offset_actions(self._name, self._topic, self._topic_id, offsets)

    def _require_staged(self, table: DeltaTable, staged: Staged) -> None:
        if not staged.aside:
            require_files(self._folder, staged.files)  # a clean-up removes files that no entry names yet

    def _write(self, table: DeltaTable, staged: Staged, generation: int, end: Mapping[int, int]) -> None:
        # The merge comes first: delta-spark may find a newer version, and `table` is refreshed to it.
        merged = self._merged_files(table) if self._merge_by_spark is not None and staged.files else None
        self._attempt = table.version() + 1
        stored = self._stored(table)
        moved = {partition: offset for partition, offset in end.items() if stored.get(partition) != offset}
        # The number of partitions is that of the last one, which is always written.
        moved |= {partition: end[partition] for partition in [max(end)]}
        actions = {generation_key(self._name): generation, **self._offset_actions(moved), **self._write_mode_actions}
        if staged.sequences:
            actions[sequences_key(self._name)] = staged.sequences
        entry = JobEntry(self._name, self._topic, generation, end, {}, actions)
        if merged is not None:
            crash_points.passing("in-commit")
            # After a failure the files stay for vacuum: the version may exist all the same.
            write_actions(table, entry, merged)
            return
        partitions = {
            name: partition_values(self._folder, table, self._partition_by, values)
            for name, values in staged.partitions.items()
        }
        if self._spark_writer is not None and self._by_spark is not None:
            self._spark_writer.require_same_rules(table, self._by_spark)
            partitions = self._by_spark.partitions
        write_entry(table, self._folder, entry, staged.files, self._write_mode, partitions)

    def _merged_files(self, table: DeltaTable) -> list[Any]:
        """Write the commit's merged rows by Spark; return the actions that replace files."""
        if self._merge_by_spark is None:
            raise RuntimeError("a merge of no staged rows")
        try:
            written, old = self._merge_by_spark.write(table, partial(self._look_again, table))
        except Exception:
            self._look_again(table)  # a successor removes files staged before it
            raise
        return replaced_files(written, old)

    def _stage_replacement(self, table: DeltaTable, dataframe: DataFrame, generation: int) -> Staged:
        import pyarrow as pa

        self._require_own_engine()
        require_plain_files(table, self._folder)
        if has_row_without_record(table):
            raise rows_without_record(self._folder)
        inner = [STAGING, f"{self._name}.{generation}"]
        self._folder.make(*inner)
        rows = with_partition_columns(dataframe, self._partition_by)
        whole = pa.schema(table.schema().to_arrow())
        schema = pa.schema([field for field in whole if field.name in rows.columns])
        folder, name = self._folder.inside(*inner), file_prefix(self._name, generation)
        written = write_files(rows, folder, schema, name, self._folder.filesystem)
        return Staged(sum(file.rows for file in written), written)

    def _write_replacement(
        self, table: DeltaTable, staged: Staged, generation: int, first: Mapping[int, int], last: Mapping[int, int]
    ) -> None:
        self._attempt = table.version() + 1
        note = {"replay": {"from": dict(first), "to": dict(last), "rows": staged.rows}}
        stored = self._stored(table)
        entry = JobEntry(self._name, self._topic, generation, stored, note, {generation_key(self._name): generation})
        files = [self._folder.inside(STAGING, f"{self._name}.{generation}", file.name) for file in staged.files]
        replace_range(table, self._folder, entry, files, (first, last))
        self._version = self._attempt
        with suppress(OSError):  # the commit is done
            self._folder.remove_folder(STAGING, f"{self._name}.{generation}")

    def _after_commit(self) -> None:
        self._version, self._write_mode_actions = self._attempt, {}

    def _finish(self, table: DeltaTable, staged: Staged) -> None:
        if not self._write_mode.row_key:
            require_files(self._folder, staged.files, f"Version {self._version} of the table names it")
            return
        with suppress(OSError):  # the commit is done
            for file in staged.files:
                self._folder.remove(file.name, *self._staging(self._generation or 0))
