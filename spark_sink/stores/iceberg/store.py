"""Results in an Apache Iceberg table, committed by pyiceberg into a catalog: by default a SQLite file in the folder.

Tasks write Parquet files into the table's folder; readers do not see them until the driver commits a snapshot that
names them. Offsets and generation are properties of the table, set in the same commit. The catalog accepts a commit
only if the newest snapshot is still the one that the job has checked. A take-over makes a snapshot too, so that every
later commit of the fenced job fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink import topic_ids
from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.extras import require_package
from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.files.parquet import (
    FILE_NAME,
    file_prefix,
    require_files,
    require_values,
    write_files,
    write_partitioned_files,
)
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.identities import Identities
from kafka_ratchet.spark_sink.spark.dialect import to_arrow
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.decision import Decision, RepairNote, Replacement, first_after
from kafka_ratchet.spark_sink.stores.iceberg.catalog import IcebergCatalog
from kafka_ratchet.spark_sink.stores.iceberg.commit import RETRIES, Commit, generation_key, newest_generation
from kafka_ratchet.spark_sink.stores.iceberg.compact import IcebergCompactor
from kafka_ratchet.spark_sink.stores.iceberg.files import arrow_schema_of, data_file, data_location
from kafka_ratchet.spark_sink.stores.iceberg.lineage import (
    commits_of_job,
    inconsistency,
    is_created_again,
    marks,
    offsets_of_rows,
    replacement,
    total_rows,
)
from kafka_ratchet.spark_sink.stores.iceberg.partitions import require_partitions, sorted_by
from kafka_ratchet.spark_sink.stores.iceberg.repair import require_repairable, rewrite
from kafka_ratchet.spark_sink.stores.iceberg.spark_writer import Paths, SparkFiles, SparkWriter, require_iceberg_spark
from kafka_ratchet.spark_sink.stores.iceberg.table import (
    SCHEMA_KEY,
    add_columns,
    find_table,
    missing_columns,
    open_or_create,
    require_format,
    require_same_columns,
)
from kafka_ratchet.spark_sink.stores.location import ENGINE, TableLocation
from kafka_ratchet.spark_sink.stores.optimistic import OptimisticStore, Staged
from kafka_ratchet.spark_sink.stores.orphans import Orphan, files_of_older_holders
from kafka_ratchet.spark_sink.stores.sequence_files import FOLDER, SequenceFiles
from kafka_ratchet.spark_sink.stores.store import rows_ahead, rows_lost, rows_without_record, tuples
from kafka_ratchet.spark_sink.stores.stored_write_mode import has_key, write_mode_text
from kafka_ratchet.spark_sink.topic_ids import StoredTopicId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from kafka_ratchet.spark_sink.rows.judging.rule import JudgeRule


def orphan_files(table: Table, folder: Folder) -> Iterator[Orphan]:
    """List the files of fenced jobs that no snapshot names, see `TableStore.orphans`.

    Args:
        table: the table.
        folder: folder of the table's files.
    """
    files = folder.files() if folder.is_there() else []
    table.refresh()
    # Files of every snapshot, because readers may look at older ones; most manifests are in many of them.
    manifests = {m.manifest_path: m for snapshot in table.snapshots() for m in snapshot.manifests(table.io)}
    entries = (entry for manifest in manifests.values() for entry in manifest.fetch_manifest_entry(table.io))
    named = {entry.data_file.file_path.rpartition("/")[2] for entry in entries}
    unnamed = [file for file in files if file.name not in named]
    yield from files_of_older_holders(folder, unnamed, partial(newest_generation, table))


TABLE_NAME = re.compile(r"(?:[A-Za-z0-9_]{1,100}\.){0,3}[A-Za-z0-9_]{1,100}")
"""Pattern of table names. Names become folder names, where the pattern's characters need no escaping. The name may
begin with a namespace."""

DECISIONS_KEPT = 20
"""Number of the newest decisions of operators that the table's properties keep."""

LOCAL_CATALOG = "store iceberg keeps its catalog in one SQLite file on the driver's machine, unless you name another"


class IcebergStore(OptimisticStore["Table"]):
    """Result store in one Iceberg table; its default namespace is `ratchet`.

    `location` names the folder of the tables, or s3://bucket/folder; see `IcebergCatalog`.
    """

    all_totals = True
    keeps_sequences = True
    evolves = True
    engines = (ENGINE,)
    partitions = True
    restricted_values = True  # pyiceberg cannot commit a file with times outside the years of Python's datetime

    _spark_writer: SparkWriter | None = None
    """Writer that uses Iceberg's own writer for Spark; None: the job's own tasks write the files."""
    _by_spark: SparkFiles | None = None
    """Files that Iceberg's writer wrote for the next commit."""

    def _prepare(self, location: TableLocation) -> None:
        require_package("pyiceberg.catalog.sql", "store iceberg needs pyiceberg")
        self._where = self._catalog = IcebergCatalog(location.path, location.storage_options, location.catalog)
        self.needs_local_master = "" if location.catalog else LOCAL_CATALOG
        if self._topic == "generation":
            raise OptionRefused(
                "topic 'generation': store iceberg has a table property of that name. Choose another output topic, or "
                "another store"
            )
        if not TABLE_NAME.fullmatch(location.table):
            raise OptionRefused(
                f"table {location.table!r}: a table's name has at most 100 letters, digits and '_'. To name the "
                "namespace too, write NAMESPACE.TABLE"
            )
        self._table_name = location.table
        if location.engine:
            self._spark_writer = self._writer_of(location)
        self._topic_key = f"ratchet-sink.{self._name}.{self._topic}"
        self._first_key = f"ratchet-sink-first.{self._name}.{self._topic}"
        self._write_mode_key = f"ratchet-sink-rule.{self._name}"
        self._schema: StructType | None = None
        self._sort_order: int | None = None
        """Id of the sort order of the staged files' rows; None: the rows are not sorted."""

    def _writer_of(self, location: TableLocation) -> SparkWriter:
        """Return the writer of `location.engine`.

        Raises:
            OptionRefused: the job changes rows, or the table is not named as in Spark's catalog.
        """
        if self._write_mode.row_key:
            raise OptionRefused(
                f"engine {location.engine} can only append to Iceberg tables, and kind {self._write_mode.kind} needs a "
                "merge. Leave engine out: pyiceberg then merges the rows in the driver"
            )
        if not location.spark_name:
            raise OptionRefused(
                f"table {location.table}: engine {location.engine} writes Iceberg tables by their names in Spark's "
                "catalog. Give the table's name there, such as prod.sales.orders, or leave engine out"
            )
        return SparkWriter(self._catalog, location.spark_name)

    @staticmethod
    def require_engine(spark: SparkSession) -> None:
        require_iceberg_spark(spark)

    def count(self) -> int:
        return self._for_reading().scan().count()

    def rows(self, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        found = self._for_reading().scan(selected_fields=tuple(columns))
        return tuples(found.to_arrow().select(list(columns)))

    def scan(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        yield from self._for_reading().scan(selected_fields=tuple(schema.names)).to_arrow_batch_reader()

    def commits(self) -> Iterator[tuple[str, Mapping[int, int]]]:
        table = self._find()
        return iter(()) if table is None else commits_of_job(table, self._name, self._topic)

    def orphans(self, *, needed: bool = True) -> Iterator[Orphan]:
        table = self._existing() if needed else self._find()
        return iter(()) if table is None else orphan_files(table, self._data_folder(table))

    def compactor(self) -> IcebergCompactor:
        table = self._existing()
        return IcebergCompactor(self._catalog, table, self._data_folder(table))

    def columns(self) -> StructType | None:
        from pyspark.sql.types import StructType

        table = self._find()
        described = None if table is None else table.properties.get(SCHEMA_KEY)
        return None if described is None else StructType.fromJson(json.loads(described))

    # -- the table

    def _find(self) -> Table | None:
        return find_table(self._catalog, self._table_name)

    def _find_or_make(self, schema: StructType) -> Table:
        table = open_or_create(self._catalog, self._table_name, schema, self._partition_by)
        self._require_fits(table, schema)
        return table

    def _refresh(self, table: Table) -> None:
        try:
            table.refresh()
        except Exception as error:
            self._refuse(error)

    def _require_fits(self, table: Table, schema: StructType) -> None:
        require_format(self._catalog, table)
        require_partitions(self._catalog, table, self._partition_by)
        if self._evolve:
            missing_columns(self._catalog, table, schema)
        else:
            require_same_columns(self._catalog, table, schema)

    def _data_folder(self, table: Table) -> Folder:
        return self._catalog.data_folder(data_location(table))

    def _version_of(self, table: Table) -> object:
        return table.metadata_location

    # -- the job's state in the table

    def _newest(self, table: Table) -> int:
        return newest_generation(table, self._name)

    def _entry(self, table: Table) -> Any:
        return json.loads(table.properties.get(self._topic_key, '{"offsets": {}}'))

    def _stored(self, table: Table) -> dict[int, int]:
        return {int(partition): offset for partition, offset in self._entry(table)["offsets"].items()}

    def _first(self, table: Table) -> dict[int, int]:
        return {int(partition): at for partition, at in json.loads(table.properties.get(self._first_key, "{}")).items()}

    def _stored_id(self, table: Table) -> StoredTopicId:
        entry = self._entry(table)
        return StoredTopicId(entry.get("topic_id", ""), entry.get("identity", 0))

    def other_jobs(self) -> list[str]:
        table = self._find()
        found = []
        for key, text in {} if table is None else table.properties.items():
            prefix, _, rest = key.partition(".")
            job, _, topic = rest.partition(".")
            if prefix == "ratchet-sink" and topic == self._topic and job != self._name:
                entry = json.loads(text)
                known = StoredTopicId(entry.get("topic_id", ""), entry.get("identity", 0))
                if entry["offsets"] and not known.is_other(self._topic_id):
                    found.append(job)
        return sorted(found)

    def other_sources(self) -> list[str]:
        found = []
        for key, text in self._existing().properties.items():
            prefix, _, rest = key.partition(".")
            job, _, topic = rest.partition(".")
            if prefix == "ratchet-sink" and topic and (job, topic) != (self._name, self._topic):
                if topic != "generation" and json.loads(text)["offsets"]:
                    found.append(f"job {job} (topic {topic})")
        return sorted(found)

    def _stored_write_mode(self, table: Table) -> str:
        return str(table.properties.get(self._write_mode_key, ""))

    def _stored_sequences(self, table: Table) -> int:
        return int(self._entry(table).get("sequences", 0))

    def _files_of_sequences(self, table: Table, rule: JudgeRule) -> SequenceFiles:
        return SequenceFiles(self._catalog.data_folder(f"{table.location()}/data"), (FOLDER,), self._name, rule)

    def _require_holder(self, table: Table, start: Mapping[int, int] | None) -> None:
        require_format(self._catalog, table)
        super()._require_holder(table, start)
        if self._schema is not None:
            require_partitions(self._catalog, table, self._partition_by)
            require_same_columns(self._catalog, table, self._schema)

    def _require_consistent(self, table: Table) -> None:
        if self._newest(table):
            keyed = has_key(self._stored_write_mode(table))
            what = inconsistency(table, self._name, has_key=keyed, may_be_emptied=self.may_be_emptied)
            what = what or self._replaced(table)
            if what:
                raise rows_lost(self._catalog, what, self._row_offsets(table) is not None)
        if what := self._lost_offsets(table):
            raise rows_ahead(self._catalog, what, self._row_offsets(table) is not None)

    def _lost_offsets(self, table: Table) -> str:
        """Describe how the table lost the offsets of its rows; empty text: it has them, or no such rows.

        Properties go by UNSET TBLPROPERTIES, one or all, and the rows' snapshots remain.
        """
        if total_rows(table) == 0:
            return ""
        if not self._newest(table):
            # A rewrite gives files other names, and expired snapshots leave no marks.
            has_rows = self._name in (marks(table) or {}) or self._has_own_file(table)
            what = f"the table has rows that job {self._name} wrote, but no offsets of that job"
        else:
            has_rows = self._topic_key not in table.properties and self._last_offsets(table) is not None
            what = (
                f"the table has rows that job {self._name} wrote from topic {self._topic}, but no offsets of that topic"
            )
        return f"{what}: the offsets were removed, or the table is a copy" if has_rows else ""

    def _last_offsets(self, table: Table) -> dict[int, int] | None:
        """Return the offsets in the job's newest snapshot with offsets of the topic; None: there is none."""
        return next((found for _, found in commits_of_job(table, self._name, self._topic) if found), None)

    def _has_own_file(self, table: Table) -> bool:
        """Return whether the table still has a file that this job wrote, by the files' names."""
        try:
            files = [task.file.file_path.rpartition("/")[2] for task in table.scan().plan_files()]
        except Exception as error:
            self._refuse(error)
        return any(found and found["job"] == self._name for found in map(FILE_NAME.fullmatch, files))

    def _replaced(self, table: Table) -> str:
        """Describe how another writer replaced all rows of the job; empty text: a row of the job remains."""
        found = replacement(table, self._name, may_be_emptied=self.may_be_emptied)
        if not found or self._has_own_row(table):
            return ""
        if _names_records(table) or not total_rows(table):
            return f"all rows of the table were replaced or removed ({found})"
        # An UPDATE of one row replaces its file, which may be the only one.
        return (
            f"every file of the table was replaced ({found}), and rows without partition and offset do not show "
            "whether rows of the job are missing. If that change only altered some rows, none is missing"
        )

    def _has_own_row(self, table: Table) -> bool:
        """Return whether the table still has a row from below the stored offsets.

        Returns:
            True if no offset above 0 is stored. Otherwise False if rows do not contain partition and offset.
        """
        stored = [(partition, offset) for partition, offset in self._stored(table).items() if offset > 0]
        if not stored or not _names_records(table):
            return not stored
        parts = [f"_kafka_partition = {partition} and _kafka_offset < {offset}" for partition, offset in stored]
        try:
            return any(len(table.scan(each, ("_kafka_offset",), limit=1).to_arrow()) for each in parts)
        except Exception as error:
            self._refuse(error)

    def _row_offsets(self, table: Table) -> dict[int, int] | None:
        if self._lost_offsets(table):
            return self._last_offsets(table)
        if not self._replaced(table):
            found = offsets_of_rows(table, self._name, self._topic)
            may_be_copied = found == {} and is_created_again(table) and total_rows(table)
            return None if may_be_copied and (self._has_own_row(table) or not _names_records(table)) else found
        # Without partition and offset in the rows, a change of a single file may look like a replacement of all rows.
        return {} if _names_records(table) or not total_rows(table) else None

    # -- what changes it

    def _is_conflict(self, error: Exception) -> bool:
        from pyiceberg.exceptions import CommitFailedException

        # Every other error is a failure: pyiceberg passes on errors of SQLAlchemy, SQLite, Avro and the disk.
        return isinstance(error, CommitFailedException)

    def _properties(self, generation: int, offsets: Mapping[int, int] | None, sequences: int = 0) -> dict[str, str]:
        """Return the table properties that a commit sets.

        Args:
            generation: generation of this run.
            offsets: next offset of each partition, set with the write mode; None: leave both unchanged.
            sequences: number of the sequence manifest that belongs to the offsets; 0: there is none.
        """
        properties = {generation_key(self._name): str(generation)}
        if offsets is None:
            return properties
        entry = {
            "offsets": {str(partition): offset for partition, offset in offsets.items()},
            "identity": topic_ids.first_bits(self._topic_id),
            "topic_id": topic_ids.text(self._topic_id),
            **({"sequences": sequences} if sequences else {}),
        }
        return {
            **properties,
            self._topic_key: json.dumps(entry),
            self._write_mode_key: write_mode_text(self._write_mode),
        }

    def _write_take_over(
        self, table: Table, generation: int, offsets: Mapping[int, int] | None, decision: Decision | None
    ) -> None:
        properties = {**RETRIES, **self._properties(generation, offsets, self._stored_sequences(table))}
        if decision is not None and offsets is not None:
            record = decision.as_json(
                self._stored(table), offsets, (self._stored_write_mode(table), write_mode_text(self._write_mode))
            )
            properties |= self._with_decision(table, json.loads(record))
            if first := first_after(self._first(table), self._stored(table), offsets):
                properties[self._first_key] = json.dumps(first)
        self._commit_of(table, generation).write(table, [], properties, 0)
        self._refresh(table)

    def _commit_of(self, table: Table, generation: int) -> Commit:
        by_ids = self._spark_writer is not None
        return Commit(self._name, generation, self._write_mode, self._data_folder(table), by_ids)

    def _after_take_over(self, table: Table, schema: StructType) -> None:
        if self._evolve:  # last of all checks, because a refused job changes nothing
            add_columns(self._catalog, table, schema)
        self._schema = schema

    def _stage(self, table: Table, dataframe: DataFrame, generation: int) -> Staged:
        import pyarrow as pa

        if self._spark_writer is not None:
            return self._stage_by_spark(self._spark_writer, table, dataframe)
        folder = self._data_folder(table)
        folder.make()
        if self._write_mode.row_key:
            wanted = self._of_job(arrow_schema_of(table.schema(), with_ids=False), dataframe)
            if DELETED in dataframe.columns:
                wanted = wanted.append(pa.field(DELETED, pa.bool_()))
            rows = to_arrow(dataframe).select(wanted.names)
            require_values(f"{self._catalog}, table {self._table_name}", rows, wanted)
            rows = rows.cast(wanted)
            return Staged(rows.num_rows, arrow=rows)
        return self._stage_files(table, dataframe, folder, generation)

    def _stage_by_spark(self, writer: SparkWriter, table: Table, dataframe: DataFrame) -> Staged:
        """Write the rows into new files of the table by Iceberg's writer for Spark."""
        found = self._by_spark = writer.write(table, dataframe, partial(self._look_again, table))
        self._sort_order = found.sort_order
        return Staged(sum(file.rows for file in found.files), found.files, found.partitions)

    def _look_again(self, table: Table) -> None:
        """Refresh the table, and check that no other run has taken it over."""
        self._refresh(table)
        self._require_holder(table, None)

    def _require_own_engine(self) -> None:
        """Refuse to repair or replace rows in a job with `engine`."""
        if self._spark_writer is not None:
            raise OptionRefused(f"{self._catalog}: engine {ENGINE} cannot repair or replace rows. Leave engine out")

    def _stage_files(self, table: Table, dataframe: DataFrame, folder: Folder, generation: int) -> Staged:
        """Write the rows into new files of the table, in Spark's tasks."""
        self._sort_order, order = sorted_by(table, dataframe)
        if self._partition_by:
            return self._stage_partitions(table, dataframe, generation, order)
        schema = self._of_job(arrow_schema_of(table.schema(), with_ids=True), dataframe)
        prefix = file_prefix(self._name, generation)
        dataframe = dataframe.sortWithinPartitions(*order) if order else dataframe
        written = write_files(dataframe, folder.inside(), schema, prefix, folder.filesystem)
        return Staged(sum(file.rows for file in written), written)

    def _of_job(self, schema: pa.Schema, dataframe: DataFrame) -> pa.Schema:
        """Return the schema of the table's columns that the rows have; all other columns become null."""
        import pyarrow as pa

        return pa.schema([field for field in schema if field.name in dataframe.columns])

    def _require_repairable(self, table: Table) -> None:
        self._require_own_engine()
        require_repairable(self._catalog, table)

    def _stage_repair(self, table: Table, rows: Replacement, generation: int) -> Staged:
        if not rows.count:
            return Staged(0)
        folder = self._data_folder(table)
        folder.make()
        return self._stage_files(table, rows.rows, folder, generation)

    def _write_repair(self, table: Table, rows: Replacement, staged: Staged, generation: int, note: RepairNote) -> None:
        from pyiceberg.typedef import Record

        folder, prefix = self._data_folder(table), file_prefix(self._name, generation)
        old, new = rewrite(self._catalog, table, folder, Identities(rows.gone), prefix)
        for file in staged.files:
            partition = Record(*staged.partitions.get(file.name, ()))
            new.append(data_file(table, f"{data_location(table)}/{file.name}", partition))
        properties = self._properties(generation, self._stored(table), self._stored_sequences(table))
        properties |= self._with_decision(table, note.as_dict())
        crash_points.passing("in-commit")
        self._commit_of(table, generation).repair(table, old, new, properties)

    def _with_decision(self, table: Table, decision: dict[str, Any]) -> dict[str, str]:
        """Return the table property with the newest decisions, including the given one."""
        key = f"ratchet-sink-decisions.{self._name}"
        decisions = [*json.loads(table.properties.get(key, "[]")), decision]
        return {key: json.dumps(decisions[-DECISIONS_KEPT:])}

    def _stage_partitions(self, table: Table, dataframe: DataFrame, generation: int, order: Sequence[Column]) -> Staged:
        folder = self._data_folder(table)
        found = write_partitioned_files(
            dataframe,
            folder.inside(),
            self._of_job(arrow_schema_of(table.schema(), with_ids=True), dataframe),
            file_prefix(self._name, generation),
            folder.filesystem,
            self._partition_by,
            sorted_by=order,
        )
        files = [file for file, _ in found]
        return Staged(sum(file.rows for file in files), files, partitions={file.name: values for file, values in found})

    def _require_staged(self, table: Table, staged: Staged) -> None:
        require_files(self._place_of(table), staged.files)  # a clean-up removes files that no snapshot names yet

    def _place_of(self, table: Table) -> Folder | Paths:
        """Return the folder of the staged files, or `Paths` if Iceberg's writer for Spark writes the files."""
        return self._data_folder(table) if self._spark_writer is None else Paths(table)

    def _write(self, table: Table, staged: Staged, generation: int, end: Mapping[int, int]) -> None:
        within = f"{data_location(table)}/"
        if self._spark_writer is not None and self._by_spark is not None:
            self._spark_writer.require_same_fields(table, self._by_spark)
            within = ""
        files = [f"{within}{file.name}" for file in staged.files]
        rows = files if staged.arrow is None else staged.arrow
        partitions = {f"{within}{name}": values for name, values in staged.partitions.items()}
        properties = self._properties(generation, end, staged.sequences)
        self._commit_of(table, generation).write(table, rows, properties, staged.rows, partitions, self._sort_order)

    def _stage_replacement(self, table: Table, dataframe: DataFrame, generation: int) -> Staged:
        self._require_own_engine()
        unnamed = "_kafka_partition is null or _kafka_offset is null"
        try:
            found = table.scan(unnamed, ("_kafka_offset",), limit=1).to_arrow()
        except Exception as error:
            self._refuse(error)
        if len(found):
            raise rows_without_record(f"{self._catalog}, table {self._table_name}")
        return self._stage(table, dataframe, generation)

    def _write_replacement(
        self, table: Table, staged: Staged, generation: int, first: Mapping[int, int], last: Mapping[int, int]
    ) -> None:
        files = {f"{data_location(table)}/{file.name}": staged.partitions.get(file.name, ()) for file in staged.files}
        properties = {generation_key(self._name): str(generation)}
        self._commit_of(table, generation).replace(table, files, properties, first, last)
        self._refresh(table)

    def _finish(self, table: Table, staged: Staged) -> None:
        require_files(self._place_of(table), staged.files, "The table's newest snapshot names it")


def _names_records(table: Table) -> bool:
    """Return whether each row contains partition and offset of its record; rows of totals do not."""
    return {"_kafka_partition", "_kafka_offset"} <= {field.name for field in table.schema().fields}
