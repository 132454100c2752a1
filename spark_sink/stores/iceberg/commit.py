"""One commit of an Iceberg table: files or merged rows, and the job's properties, in one snapshot."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.files.parquet import file_prefix, write_file
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.iceberg.lineage import (
    MARKS_KEY,
    OFFSETS_KEY,
    mark_key,
    marks,
    rows_key,
    total_rows,
)
from kafka_ratchet.spark_sink.stores.iceberg.merge import merged

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

KEEP_KEY = "history.expire.min-snapshots-to-keep"

KEEP_SNAPSHOTS = 20
"""pyiceberg copies the list of all snapshots some twenty times in each commit, so that a stream would become slower
with every one. Of more than twice as many, this number is left, in the same commit; newer ones have their rows too."""


@dataclass(frozen=True)
class Commit:
    """Commits of one holder.

    Args:
        job: the job's name.
        generation: the holder's; 0: it has none yet.
        write_mode: what the rows do to the table.
        folder: of the table's files.
    """

    job: str
    generation: int
    write_mode: WriteMode
    folder: Folder

    def write(self, table: Table, rows: list[str] | pa.Table, properties: Mapping[str, str], added: int) -> None:
        """One commit; it fails unless the newest snapshot is the one that `table` was refreshed to.

        Args:
            table: the table.
            rows: Parquet files to add, or rows with a key to bring in.
            properties: to set.
            added: how many rows the files have.
        """
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.table.update.snapshot import ExpireSnapshots

        mark = uuid.uuid4().hex[:16]
        summary = {
            MARKS_KEY: json.dumps({**(marks(table) or {}), self.job: mark}),
            OFFSETS_KEY: json.dumps({"mark": mark, "topics": self._topics({**table.properties, **properties})}),
        }
        total = (total_rows(table) or 0) + added
        with table.transaction() as transaction:
            if not len(rows):
                with transaction.update_snapshot(snapshot_properties=summary).fast_append():
                    pass  # a snapshot without files, at which a commit of the holder before fails
            elif not isinstance(rows, list):
                plain = [name for name in rows.column_names if name != DELETED]
                target = table.scan().to_arrow().cast(rows.select(plain).schema)
                whole = merged(target, rows, self.write_mode)
                if len(target):
                    # The last snapshot of the commit is the one that says what it stands on.
                    transaction.delete(AlwaysTrue(), {} if len(whole) else summary)
                if len(whole):
                    # Under a name that says whose it is, as tasks have them, so that vacuum can tell.
                    stemmed = file_prefix(self.job, self.generation)
                    name = write_file(whole, self.folder.inside(), stemmed, self.folder.filesystem)
                    transaction.add_files([f"{table.location()}/data/{name}"], summary, check_duplicate_files=False)
                elif not len(target):
                    with transaction.update_snapshot(snapshot_properties=summary).fast_append():
                        pass  # deletions of rows that are not there
                total = whole.num_rows
            else:  # names are new, and a look through all is slow
                transaction.add_files(rows, summary, check_duplicate_files=False)
            noted = {mark_key(self.job): mark, rows_key(self.job): str(total)}
            transaction.set_properties({**properties, **noted})
            expired = _expired(table)
            if expired:
                with ExpireSnapshots(transaction) as expire:
                    expire.by_ids(expired)

    def _topics(self, properties: Mapping[str, str]) -> dict[str, dict[str, int]]:
        """Offsets of each topic that the job has read."""
        prefix = f"ratchet-sink.{self.job}."
        return {
            key.removeprefix(prefix): json.loads(value)["offsets"]
            for key, value in properties.items()
            if key.startswith(prefix) and key != generation_key(self.job)
        }


def _expired(table: Table) -> list[int]:
    """Snapshots to forget: all but the newest, of which there are twice as many now, and those that have a name."""
    keep = max(1, int(table.properties.get(KEEP_KEY, KEEP_SNAPSHOTS)))
    snapshots = sorted(table.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
    if len(snapshots) <= 2 * keep:
        return []
    named = {reference.snapshot_id for reference in table.refs().values()}
    return [snapshot.snapshot_id for snapshot in snapshots[:-keep] if snapshot.snapshot_id not in named]


def generation_key(job: str) -> str:
    """Property with the number of a job's newest holder."""
    return f"ratchet-sink.{job}.generation"


def newest_generation(table: Table, job: str) -> int:
    """Number of the newest holder; 0: there was none."""
    return int(table.properties.get(generation_key(job), "0"))
