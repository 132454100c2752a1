"""Commit to an Iceberg table: files or merged rows, and the job's properties, in one snapshot."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import StoreError, refuse_several_rows
from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.files.parquet import Values, file_prefix
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.iceberg.files import arrow_schema_of, data_file, live_files, rows_of, write_rows
from kafka_ratchet.spark_sink.stores.iceberg.lineage import (
    MARKS_KEY,
    OFFSETS_KEY,
    mark_key,
    marks,
    rows_key,
    total_rows,
)
from kafka_ratchet.spark_sink.stores.iceberg.merge import merged, split
from kafka_ratchet.spark_sink.stores.iceberg.partitions import require_partitions_of
from kafka_ratchet.spark_sink.stores.iceberg.touched import groups, may_have_records, parts, touched, without_records

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table, Transaction

KEEP_KEY = "history.expire.min-snapshots-to-keep"

KEEP_SNAPSHOTS = 20
"""Number of newest snapshots to keep, whatever their age."""

AGE_KEY = "history.expire.max-snapshot-age-ms"

MAX_AGE_MS = 900_000
"""Minimum milliseconds to keep a snapshot: queries of ten minutes still find its files. Each commit reads and writes
the list of all snapshots: with Iceberg's own five days, a stream would become slower with every commit."""

RETRIES = {"commit.retry.num-retries": "0"}
"""Number of retries by pyiceberg: a retry would commit onto a newer snapshot that the job has not checked.

The table has this property too, for jobs of an earlier version; `begin` does not depend on it.
"""

EXPIRED_AT_ONCE = 20
"""Minimum number of old snapshots for a commit to expire them."""


MANIFESTS = 100
"""Number of manifests after which a commit ends with an append without files. pyiceberg leaves a manifest in each
snapshot that removes files, and merges manifests only in appends. The number is that of Iceberg's
`commit.manifest.min-count-to-merge`."""


@dataclass(frozen=True)
class Commit:
    """Writer of the commits of one generation of a job.

    Args:
        job: the job's name.
        generation: generation of this run; 0: none yet.
        write_mode: effect of the rows on the table.
        folder: folder of the table's files.
        by_ids: True if another writer may have given the columns other names in the files; see `data_file`.
    """

    job: str
    generation: int
    write_mode: WriteMode
    folder: Folder
    by_ids: bool = False

    def write(
        self,
        table: Table,
        rows: list[str] | pa.Table,
        properties: Mapping[str, str],
        added: int,
        partitions: Mapping[str, Values] | None = None,
        sort_order: int | None = None,
    ) -> None:
        """Commit rows on top of the snapshot of `table`.

        Args:
            table: the table.
            rows: paths of Parquet files to add, or rows with a key to merge.
            properties: table properties to set in the same commit.
            added: number of rows in the files.
            partitions: partition values of each file by path, if the table has partitions.
            sort_order: id of the sort order of the files' rows; None: the rows are not sorted.

        Raises:
            CommitFailedException: the catalog has a newer snapshot than `table`.
            StoreError: the files have another number of rows than `added`, or the table has several rows of a key of
                `rows`.
        """
        from pyiceberg.typedef import Record

        mark, summary = self._summary(table, properties)
        total = (total_rows(table) or 0) + added
        # pyiceberg's `add_files` takes no files with field ids: it would find columns by their names.
        files = [
            data_file(table, path, Record(*(partitions[path] if partitions else ())), sort_order, by_ids=self.by_ids)
            for path in (rows if isinstance(rows, list) else ())
        ]
        if isinstance(rows, list) and (written := sum(file.record_count for file in files)) != added:
            raise StoreError(
                f"{table.location()}: the files of a commit contain {written} rows instead of {added}. Nothing was "
                "committed; run the job again"
            )
        with begin(table) as transaction:
            if not isinstance(rows, list):
                total = self._merge(table, transaction, rows, summary)
            elif not rows:
                _write_nothing(transaction, summary)
            else:
                with transaction.update_snapshot(snapshot_properties=summary).merge_append() as producer:
                    for file in files:
                        producer.append_data_file(file)
            self._note(table, transaction, properties, mark, total)

    def _summary(self, table: Table, properties: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """Return a new mark for a commit, and the snapshot properties that contain it."""
        mark = uuid.uuid4().hex[:16]
        return mark, {
            MARKS_KEY: json.dumps({**(marks(table) or {}), self.job: mark}),
            OFFSETS_KEY: json.dumps({"mark": mark, "topics": self._topics({**table.properties, **properties})}),
        }

    def _note(
        self, table: Table, transaction: Transaction, properties: Mapping[str, str], mark: str, total: int
    ) -> None:
        """Set the job's properties, and expire old snapshots."""
        from pyiceberg.table.update.snapshot import ExpireSnapshots

        noted = {mark_key(self.job): mark, rows_key(self.job): str(total)}
        transaction.set_properties({**properties, **noted})
        expired = _expired(table)
        if expired:
            with ExpireSnapshots(transaction) as expire:
                expire.by_ids(expired)

    def replace(
        self,
        table: Table,
        files: Mapping[str, Values],
        properties: Mapping[str, str],
        first: Mapping[int, int],
        last: Mapping[int, int],
    ) -> None:
        """Replace the rows of a range of records, in one snapshot.

        Args:
            table: the table.
            files: partition values of each Parquet file with new rows, by path.
            properties: table properties to set in the same commit.
            first: first offset of the range in each partition.
            last: offset after the range in each partition.

        Raises:
            CommitFailedException: see `write`.
            OptionRefused: a file to rewrite has other partitions than the table has now.
        """
        from pyiceberg.typedef import Record

        mark, summary = self._summary(table, properties)
        new = [data_file(table, path, Record(*partition)) for path, partition in files.items()]
        tasks = live_files(table)
        total = sum(task.file.record_count for task in tasks) + sum(file.record_count for file in new)
        old = []
        named = file_prefix(self.job, self.generation)
        for task in tasks:
            if not may_have_records(table, task.file, first, last):
                continue
            left = list(without_records(rows_of(table, [task]), first, last))
            rows = sum(batch.num_rows for batch in left)
            if rows == task.file.record_count:
                continue
            old.append(task)
            total += rows - task.file.record_count
            if rows:
                require_partitions_of(table.location(), table, task, "Nothing was replaced")
                new.append(write_rows(table, self.folder, left, named, task.file.partition))
        with begin(table) as transaction:
            if not old and not new:
                _write_nothing(transaction, summary)
            else:
                with transaction.update_snapshot(snapshot_properties=summary).overwrite() as producer:
                    for task in old:
                        producer.delete_data_file(task.file)
                    for file in new:
                        producer.append_data_file(file)
            self._note(table, transaction, properties, mark, total)

    def _merge(self, table: Table, transaction: Transaction, rows: pa.Table, summary: dict[str, str]) -> int:
        """Merge `rows` into the table, by rewriting the data files that hold their keys.

        The driver holds `rows` and one group of these files at a time, see `touched.GROUP_BYTES`.

        Returns:
            Number of rows in the table's files afterwards.

        Raises:
            StoreError: the table has several rows of a key of `rows`.
        """
        import pyarrow as pa
        from pyiceberg.manifest import DataFile
        from pyiceberg.typedef import Record

        plain = rows.select([name for name in rows.column_names if name != DELETED]).schema
        tasks = live_files(table)
        key = self.write_mode.row_key
        old = touched(table, tasks, rows, key)
        whole = arrow_schema_of(table.schema(), with_ids=False)
        foreign = [field for field in whole if field.name not in plain.names]
        wanted = pa.schema([*plain, *foreign])
        table_bytes = sum(task.file.file_size_in_bytes for task in tasks)
        # The name has the holder, as with tasks' files, so that vacuum recognises it.
        named = file_prefix(self.job, self.generation)
        new, left, divided = list[DataFile](), rows, groups(table, old, key)
        for number, group in enumerate(divided, 1):  # one group in memory at a time
            target = pa.Table.from_batches(rows_of(table, group), whole).select(wanted.names).cast(wanted)
            source = left
            if len(divided) > 1:
                found, left = split(left, target, key)
                if len(found) < len(split(rows, target, key)[0]):  # an earlier group has a row of one of its keys
                    refuse_several_rows(table.location(), key)
                source = found if number < len(divided) else source
            for part in parts(merged(target, source, self.write_mode, table.location()), key, table_bytes):
                new.append(write_rows(table, self.folder, part.to_batches(), named, Record()))
        return self._replace_files(table, transaction, old, new, summary)

    def repair(self, table: Table, old: list[FileScanTask], new: list[DataFile], properties: Mapping[str, str]) -> None:
        """Replace files in one commit; see `write` for the errors.

        Args:
            table: the table.
            old: files to remove.
            new: files to add.
            properties: table properties to set in the same commit.
        """
        mark, summary = self._summary(table, properties)
        with begin(table) as transaction:
            total = self._replace_files(table, transaction, old, new, summary)
            self._note(table, transaction, properties, mark, total)

    def _replace_files(
        self,
        table: Table,
        transaction: Transaction,
        old: list[FileScanTask],
        new: list[DataFile],
        summary: dict[str, str],
    ) -> int:
        """Remove some files and add others, in one snapshot.

        A snapshot without files ends the commit if the table has more than `MANIFESTS` manifests, or no file changes.

        Returns:
            Number of rows in the table's files afterwards.
        """
        tasks = live_files(table)
        many = len(snapshot.manifests(table.io)) > MANIFESTS if (snapshot := table.current_snapshot()) else False
        if old or new:
            with transaction.update_snapshot(snapshot_properties={} if many else summary).overwrite() as producer:
                for task in old:
                    producer.delete_data_file(task.file)
                for file in new:
                    producer.append_data_file(file)
        if many or not (old or new):  # neither, if all deletions were of missing rows
            # The last snapshot of the commit has the mark of its base.
            with transaction.update_snapshot(snapshot_properties=summary).merge_append():
                pass
        gone = {task.file.file_path for task in old}
        kept = sum(task.file.record_count for task in tasks if task.file.file_path not in gone)
        return kept + sum(file.record_count for file in new)

    def _topics(self, properties: Mapping[str, str]) -> dict[str, dict[str, int]]:
        """Return the stored offsets of each topic that the job has read."""
        prefix = f"ratchet-sink.{self.job}."
        return {
            key.removeprefix(prefix): json.loads(value)["offsets"]
            for key, value in properties.items()
            if key.startswith(prefix) and key != generation_key(self.job)
        }


def begin(table: Table) -> Transaction:
    """Return a transaction that fails if the catalog has a newer snapshot than `table`.

    pyiceberg would retry on the newer snapshot, as often as a property in its copy of the table's metadata says. An
    operator may have set the property, so each transaction sets it to 0 in the copy.
    """
    share_snapshots(table)
    properties = {**table.properties, **RETRIES}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    return table.transaction()


def share_snapshots(table: Table) -> None:
    """Make copies of the table's metadata share its snapshots.

    pyiceberg copies the metadata about fifteen times in each commit, with all snapshots, which never change. With 160
    snapshots the copying took nine tenths of a commit.
    """
    shared = _shared()
    for each in [*table.metadata.snapshots, *table.metadata.snapshot_log]:
        if (kind := shared.get(type(each))) is not None:
            object.__setattr__(each, "__class__", kind)


@cache
def _shared() -> dict[type[Any], type[Any]]:
    """Return a subclass of each snapshot class; copying an object of the subclass returns the same object."""
    from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry

    def itself(self: object, memo: object = None) -> object:
        return self

    return {
        kind: type(f"Shared{kind.__name__}", (kind,), {"__deepcopy__": itself, "__module__": __name__})
        for kind in (Snapshot, SnapshotLogEntry)
    }


def _write_nothing(transaction: Transaction, summary: dict[str, str]) -> None:
    """Commit a snapshot without files, so that a commit of an older generation fails."""
    with transaction.update_snapshot(snapshot_properties=summary).fast_append():
        pass


def _expired(table: Table) -> list[int]:
    """Return the ids of the snapshots to expire: old ones without a branch or tag, except the newest ones.

    The list is empty until it would have at least `EXPIRED_AT_ONCE` ids, or as many as the table keeps, if fewer.
    """
    keep = max(1, int(table.properties.get(KEEP_KEY, KEEP_SNAPSHOTS)))
    since_ms = time.time() * 1000 - int(table.properties.get(AGE_KEY, MAX_AGE_MS))
    snapshots = sorted(table.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)[:-keep]
    named = {reference.snapshot_id for reference in table.refs().values()}
    old = [each.snapshot_id for each in snapshots if each.timestamp_ms < since_ms and each.snapshot_id not in named]
    return old if len(old) >= min(keep, EXPIRED_AT_ONCE) else []


def generation_key(job: str) -> str:
    """Return the name of the table property with a job's newest generation."""
    return f"ratchet-sink.{job}.generation"


def newest_generation(table: Table, job: str) -> int:
    """Return a job's newest generation; 0: no run has taken over yet."""
    return int(table.properties.get(generation_key(job), "0"))
