"""Compaction of a Delta table, in log entries marked as no change of data; see `stores.compact`.

delta-rs has an `optimize` of its own, which is not used: the names of its files contain no job and no generation, so
that vacuum could never remove the files of a killed run. In a partitioned table it also names folders after the
partition values, and not every file system accepts such names.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.files.parquet import WrittenFile, file_prefix, require_files, write_batches
from kafka_ratchet.spark_sink.stores.compactor import ATTEMPTS, DataFile, Replacement, require_newest
from kafka_ratchet.spark_sink.stores.delta.actions import generation_key, newest_generation
from kafka_ratchet.spark_sink.stores.delta.consistency import require_plain_log
from kafka_ratchet.spark_sink.stores.delta.partitions import TYPES, as_text
from kafka_ratchet.spark_sink.stores.delta.vacuum import PLAIN_NAME
from kafka_ratchet.spark_sink.stores.store import COMPACTION

if TYPE_CHECKING:
    from deltalake import DeltaTable

FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Table features that allow a commit to replace a file by another with the same rows, without further actions. They do
not include deletion vectors, row ids, column mapping, change data and clustering."""

LEGACY_WRITER = 2
"""Highest writer version with no other features than `appendOnly` and `invariants`."""


class DeltaCompactor:
    """Compaction steps for one Delta table, see `compactor.Compactor`.

    Args:
        folder: the table's folder.
        table: the open table.

    Raises:
        OptionRefused: the table has a feature or property that forbids rewriting files.
    """

    def __init__(self, folder: Folder, table: DeltaTable) -> None:
        self._folder, self._table = folder, table
        self._require_plain()

    def look(self) -> list[DataFile]:
        """List the files directly in the table's folder, if the log has their row count."""
        self._table.update_incremental()
        self._require_plain()
        found = self._actions().to_pylist()
        columns = self._table.metadata().partition_columns
        values = [{name: as_text(each[f"partition.{name}"]) for name in columns} for each in found]
        return [
            DataFile(each["path"], each["size_bytes"], each["num_records"], json.dumps(partition), partition)
            for each, partition in zip(found, values, strict=True)
            if each["num_records"] is not None and PLAIN_NAME.fullmatch(each["path"])
        ]

    def count(self) -> tuple[int, int]:
        """Return the number of files and of bytes that the log lists."""
        sizes = self._actions()["size_bytes"].to_pylist()
        return len(sizes), sum(sizes)

    def take_over(self) -> int:
        """Commit a log entry with the compaction's next generation in a separate `txn` action."""
        from deltalake.exceptions import CommitFailedError

        for attempt in range(1, ATTEMPTS + 1):
            generation = newest_generation(self._table, COMPACTION) + 1
            try:
                self._commit([], generation)
            except CommitFailedError:
                if attempt == ATTEMPTS:
                    raise
                self._table.update_incremental()
                continue
            return generation
        raise AssertionError

    def rewrite(self, files: Sequence[DataFile], generation: int) -> DataFile:
        """Write the rows of the files, one file after the other; a column that a file lacks is null."""
        import pyarrow as pa
        import pyarrow.dataset as ds

        whole = pa.schema(self._table.schema().to_arrow())
        schema = pa.schema([field for field in whole if field.name not in files[0].entry])  # the log has the others
        paths = [self._folder.inside(file.name) for file in files]
        # A file from before a column was added lacks it, and reads as null; Spark's own files may have INT96.
        parquet = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
        rows = ds.dataset(paths, schema, parquet, filesystem=self._folder.filesystem)
        made = write_batches(
            rows.to_batches(use_threads=False),
            schema,
            self._folder.inside(),
            file_prefix(COMPACTION, generation),
            self._folder.filesystem,
        )
        return DataFile(made.name, made.bytes, made.rows, files[0].partition, files[0].entry, made.statistics)

    def replace(self, replacements: Sequence[Replacement], generation: int) -> bool:
        """Commit a log entry with added and removed files, marked as no change of data."""
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction, RemoveAction

        require_newest(self._folder, newest_generation(self._table, COMPACTION), generation)
        written = [WrittenFile(each.new.name, each.new.rows, each.new.bytes) for each in replacements]
        require_files(self._folder, written)
        now_ms = int(time.time() * 1000)
        actions: list[Any] = [
            AddAction(new.name, new.bytes, new.entry, now_ms, False, new.statistics)
            for new in (each.new for each in replacements)
        ]
        actions += [
            RemoveAction(old.name, False, now_ms, old.bytes, old.entry) for each in replacements for old in each.old
        ]
        try:
            self._commit(actions, generation)
        except CommitFailedError:
            return False
        require_files(self._folder, written, f"Version {self._table.version()} of the table names it")
        return True

    def remove(self, file: DataFile) -> None:
        """Delete the file from the table's folder."""
        self._folder.remove(file.name)

    def _actions(self) -> Any:
        import pyarrow as pa

        return pa.table(self._table.get_add_actions(flatten=True))

    def _commit(self, actions: list[Any], generation: int) -> None:
        """Commit the actions as the version after the one that `look` read.

        Raises:
            CommitFailedError: another writer has committed that version first.
        """
        from deltalake import CommitProperties
        from deltalake.transaction import Transaction

        properties = CommitProperties(
            max_commit_retries=0, app_transactions=[Transaction(generation_key(COMPACTION), generation)]
        )
        self._table.create_write_transaction(
            actions,
            mode="append",
            schema=self._table.schema(),
            partition_by=self._table.metadata().partition_columns,
            commit_properties=properties,
        )

    def _require_plain(self) -> None:
        require_plain_files(self._table, self._folder)


def require_plain_files(table: DeltaTable, folder: Folder) -> None:
    """Refuse a table with files that cannot be rewritten from their rows alone.

    Raises:
        OptionRefused: the table has a feature or property that forbids rewriting files.
    """
    require_plain_log(table, folder)
    protocol = table.protocol()
    named = {*(protocol.writer_features or ()), *(protocol.reader_features or ())} - FEATURES
    types = {field.name: getattr(field.type, "type", "") for field in table.schema().fields}
    other = [name for name in table.metadata().partition_columns if types[name] not in TYPES]
    named |= {f"partitions of {types[name]} ({name})" for name in other}
    old = not protocol.writer_features and protocol.min_writer_version > LEGACY_WRITER
    if named or old:
        what = ", ".join(sorted(named)) or f"writer version {protocol.min_writer_version}"
        raise OptionRefused(
            f"{folder}: the table has {what}, which Ratchet would lose when it rewrites files. Nothing was "
            "changed. Remove this property of the table with the engine that set it. To compact the table, run "
            "OPTIMIZE of that engine instead"
        )
