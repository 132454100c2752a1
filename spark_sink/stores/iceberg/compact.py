"""Compaction of an Iceberg table, in snapshots that keep the jobs' marks; see `stores.compact`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.files.parquet import WrittenFile, file_prefix, require_files
from kafka_ratchet.spark_sink.stores.compactor import ATTEMPTS, DataFile, Replacement, require_newest
from kafka_ratchet.spark_sink.stores.iceberg.commit import begin, generation_key, newest_generation
from kafka_ratchet.spark_sink.stores.iceberg.files import file_name, live_files, rows_of, write_rows
from kafka_ratchet.spark_sink.stores.iceberg.lineage import MARKS_KEY, marks
from kafka_ratchet.spark_sink.stores.store import COMPACTION

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table

NEWEST_FORMAT = 2
"""Highest table format that can be compacted: format 3 gives each row a number, which a rewritten file would have to
keep."""


class IcebergCompactor:
    """Compaction steps for one Iceberg table, see `compactor.Compactor`.

    Args:
        where: the catalog, as messages name it.
        table: the table.
        folder: folder of the table's files.

    Raises:
        OptionRefused: the table has a format that cannot be compacted.
    """

    def __init__(self, where: object, table: Table, folder: Folder) -> None:
        self._where, self._table, self._folder = where, table, folder
        self._tasks: list[FileScanTask] = []
        if table.metadata.format_version > NEWEST_FORMAT:
            raise OptionRefused(
                f"{where}: the table has format {table.metadata.format_version} with row numbers, which Ratchet would "
                "lose when it rewrites files. Compact the table with the engine that chose this format "
                "(rewrite_data_files)"
            )

    def look(self) -> list[DataFile]:
        """List the files with the table's current partition spec and without delete files."""
        self._table.refresh()
        self._tasks = live_files(self._table)
        spec = self._table.metadata.default_spec_id
        return [
            DataFile(
                task.file.file_path,
                task.file.file_size_in_bytes,
                task.file.record_count,
                repr(task.file.partition),
                task,
            )
            for task in self._tasks
            if not task.delete_files and task.file.spec_id == spec
        ]

    def count(self) -> tuple[int, int]:
        """Return the number of files and of bytes in the snapshot."""
        return len(self._tasks), sum(task.file.file_size_in_bytes for task in self._tasks)

    def take_over(self) -> int:
        """Commit the compaction's next generation, in a snapshot without files."""
        from pyiceberg.exceptions import CommitFailedException

        for attempt in range(1, ATTEMPTS + 1):
            generation = newest_generation(self._table, COMPACTION) + 1
            try:
                self._commit([], generation)
            except CommitFailedException:
                if attempt == ATTEMPTS:
                    raise
                self._table.refresh()
                continue
            return generation
        raise AssertionError

    def rewrite(self, files: Sequence[DataFile], generation: int) -> DataFile:
        """Write the rows of the files into one new file, in pyiceberg's reading order."""
        prefix = file_prefix(COMPACTION, generation)
        rows = rows_of(self._table, [file.entry for file in files])
        written = write_rows(self._table, self._folder, rows, prefix, files[0].entry.file.partition)
        return DataFile(written.file_path, written.file_size_in_bytes, written.record_count, entry=written)

    def replace(self, replacements: Sequence[Replacement], generation: int) -> bool:
        """Commit a snapshot with the new files in place of the old ones and with the same rows."""
        from pyiceberg.exceptions import CommitFailedException

        require_newest(self._where, newest_generation(self._table, COMPACTION), generation)
        written = [WrittenFile(file_name(each.new.name), each.new.rows, each.new.bytes) for each in replacements]
        require_files(self._folder, written)
        try:
            self._commit(replacements, generation)
        except CommitFailedException:
            return False
        require_files(self._folder, written, "The table's newest snapshot names it")
        return True

    def remove(self, file: DataFile) -> None:
        """Delete the file from the table's folder."""
        self._folder.remove(file_name(file.name))

    def _commit(self, replacements: Sequence[Replacement], generation: int) -> None:
        """Commit a snapshot on top of the one that `look` read.

        Raises:
            CommitFailedException: another writer was first.
        """
        passed_on = marks(self._table)
        summary = {} if passed_on is None else {MARKS_KEY: json.dumps(passed_on)}
        with begin(self._table) as transaction:
            changing = transaction.update_snapshot(snapshot_properties=summary)
            # Even without files it is a snapshot, at which an older run's commit fails.
            with changing.overwrite() if replacements else changing.fast_append() as producer:
                for each in replacements:
                    for old in each.old:
                        producer.delete_data_file(old.entry.file)
                    producer.append_data_file(each.new.entry)
            transaction.set_properties({generation_key(COMPACTION): str(generation)})
