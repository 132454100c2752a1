"""Check that a Delta table's rows and properties agree with a job's `txn` actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import OptionRefused, RowsLost, StoreError, first_line
from kafka_ratchet.spark_sink.files.bucket import Folder
from kafka_ratchet.spark_sink.files.parquet import FILE_NAME
from kafka_ratchet.spark_sink.rows.columns import RECORD
from kafka_ratchet.spark_sink.stores.delta.actions import (
    newest_generation,
    rows_key,
    stored_offsets,
    stored_write_mode,
    version_key,
)
from kafka_ratchet.spark_sink.stores.delta.log import KEYED, NO_ENTRY, Log, read_entry
from kafka_ratchet.spark_sink.stores.delta.table import open_table
from kafka_ratchet.spark_sink.stores.delta.transactions import TransactionReader
from kafka_ratchet.spark_sink.stores.store import rows_ahead, rows_lost
from kafka_ratchet.spark_sink.stores.stored_write_mode import has_key

if TYPE_CHECKING:
    from deltalake import DeltaTable

FORGETTING = "delta.setTransactionRetentionDuration"
"""Table property with the time after which Delta's writers drop `txn` actions, and so generation and offsets."""

MAPPING = "delta.columnMapping.mode"
"""Table property that gives columns other names in the files; the job's files use the table's names."""


class ConsistencyCheck:
    """Check of one table against the offsets that a job has stored in its log.

    Args:
        folder: the table's folder.
        job: the job's name.
        topic: the topic that the offsets belong to.
        transactions: reader of the table's `txn` actions.
    """

    def __init__(self, folder: Folder, job: str, topic: str, transactions: TransactionReader) -> None:
        self._folder, self._name, self._topic, self._transactions = folder, job, topic, transactions

    def require(self, table: DeltaTable, *, may_be_emptied: bool = False) -> None:
        """Refuse a table with rows that contradict its `txn` actions, or that may lose these actions.

        Args:
            table: the table at its newest version.
            may_be_emptied: True accepts a table without rows, because an operator may delete all rows.

        Raises:
            OptionRefused: a property of the table would lose offsets or rows.
            RowsLost: the table was restored or replaced, or has lost its `txn` actions.
            StoreError: the log cannot be read.
        """
        require_plain_log(table, self._folder)
        known = self._transactions.of(table)
        if newest_generation(known, self._name) == 0:
            self._require_no_traces(table)
            return
        log = Log(self._folder, table, self._name)
        try:
            since = known.transaction_version(version_key(self._name))
            since = log.last_of_job() if since is None else since  # an earlier version has noted none
            found = None if since is None else log.break_since(since, may_be_emptied=may_be_emptied)
            if found is None:
                return
            if found.kind == "unknown" and has_key(stored_write_mode(known, self._name)):
                found = replace(found, operation=KEYED)
            elif found.kind == "unknown":
                rows = table.count()
                if rows == known.transaction_version(rows_key(self._name)) or (may_be_emptied and not rows):
                    return
            is_known = self.row_offsets(table) is not None
        except OSError as error:
            raise StoreError(
                f"{self._folder}: its Delta log cannot be read ({first_line(error)}). Check that the files in "
                "_delta_log are complete and readable"
            ) from None
        raise rows_lost(self._folder, found.sentence, is_known)

    def _require_no_traces(self, table: DeltaTable) -> None:
        """Refuse a table with the job's files or a clone's rows, but without a generation of the job.

        The log of such a table has lost its `txn` actions, or the table is a copy without them.
        """
        names = (FILE_NAME.fullmatch(uri.rpartition("/")[2]) for uri in table.file_uris())
        found, clone = any(written and written["job"] == self._name for written in names), None
        log = Log(self._folder, table, self._name)
        try:
            # A merge's files have other names, but its entries name the job. A clone's entries and OPTIMIZE name none.
            found = found or log.last_of_job() is not None
            clone = log.clone_of_rows() if not found and table.count() else None
        except OSError as error:
            raise StoreError(
                f"{self._folder}: its Delta log cannot be read ({first_line(error)}). Check that the files in "
                "_delta_log are complete and readable"
            ) from None
        what = f"the table has rows that job {self._name} wrote, but its log has no offsets of that job"
        if found:
            what += ": the offsets were erased, or the table is a clone"
        elif clone is not None:
            what = (
                f"the table is a clone (version {clone} of its log), and a clone has the rows of job {self._name} "
                "without its offsets if the job wrote the original"
            )
        if found or clone is not None:
            raise rows_ahead(self._folder, what, self.row_offsets(table) is not None)

    def require_same_table(self, table_id: str, version: int) -> None:
        """Refuse a table that replaced the one that the job opened.

        Args:
            table_id: id of the opened table.
            version: version of the job's last entry in its log.

        Raises:
            RowsLost: the folder contains another table, or an older state of its log.
        """
        try:
            user_metadata = {} if (entry := read_entry(self._folder, version)) is None else entry.user_metadata
        except OSError:
            user_metadata = {}
        if user_metadata.get("job") == self._name and user_metadata.get("table") == table_id:
            return
        now = open_table(self._folder)  # the entry may have been cleaned up
        if (
            now is None
            or str(now.metadata().id) != table_id
            or (now.transaction_version(version_key(self._name)) or 0) < version
        ):
            raise RowsLost(
                f"{self._folder}: the table was removed or recreated while job {self._name} wrote to it. Nothing more "
                "was added. Run the job again; start a streaming query with a new checkpoint. The job then begins at "
                "the offsets that the present table stores"
            )

    def row_offsets(self, table: DeltaTable) -> dict[int, int] | None:
        """Return each partition's next offset, derived from the rows; None: the log no longer shows it."""
        try:
            return self._row_offsets(table)
        except OSError as error:
            raise StoreError(
                f"{self._folder}: its Delta log cannot be read ({first_line(error)}). Check that the files in "
                "_delta_log are complete and readable"
            ) from None

    def _row_offsets(self, table: DeltaTable) -> dict[int, int] | None:
        log = Log(self._folder, table, self._name)
        version = log.version_of_rows()
        if version is None:
            return None
        if version < 0:
            return None if self._may_have_own_row(table, version) else {}
        then = log.as_of(version)
        if then is not None and newest_generation(then, self._name):
            return stored_offsets(then, self._name, self._topic)
        user_metadata = {} if (entry := read_entry(self._folder, version)) is None else entry.user_metadata
        if user_metadata.get("topic") != self._topic:
            return None
        return {int(partition): offset for partition, offset in user_metadata["offsets"].items()}

    def _may_have_own_row(self, table: DeltaTable, version: int) -> bool:
        """Return whether the table may have rows of the job, although no entry of the job wrote them.

        `INSERT OVERWRITE t SELECT * FROM t` writes such rows, as do CREATE OR REPLACE TABLE AS SELECT and a clone.

        Args:
            table: the table.
            version: `NO_ENTRY` or `REPLACED`.

        Returns:
            True also if rows do not contain partition and offset of their record, or cannot be read.
        """
        from deltalake.exceptions import DeltaError

        known = self._transactions.of(table)
        if not newest_generation(known, self._name):
            return bool(table.count())
        if version == NO_ENTRY or not table.count():
            return False
        stored = [each for each in stored_offsets(known, self._name, self._topic).items() if each[1] > 0]
        if not set(RECORD) <= {field.name for field in table.schema().fields}:
            return bool(stored)
        try:
            return bool(stored) and _has_row_below(table, dict(stored))
        except DeltaError:  # to pyarrow, rows with deletion vectors are unreadable
            return True


def _has_row_below(table: DeltaTable, offsets: Mapping[int, int]) -> bool:
    """Return whether the table has the row of a record below the offset of its partition."""
    import pyarrow.dataset as ds

    partition, offset = (ds.field(name) for name in RECORD)
    below = [(partition == each) & (offset < end) for each, end in offsets.items()]
    return bool(table.to_pyarrow_dataset().head(1, columns=list(RECORD), filter=reduce(or_, below)).num_rows)


def require_plain_log(table: DeltaTable, folder: Folder) -> None:
    """Refuse a table with properties that would lose offsets or rows of the job.

    Raises:
        OptionRefused: the table has such a property.
    """
    properties = table.metadata().configuration
    if FORGETTING in properties:
        raise OptionRefused(
            f"{folder}: the table has the property {FORGETTING} = {properties[FORGETTING]!r}, which erases the job's "
            f"offsets after that time; the job would then add its rows once more. Remove the property: ALTER TABLE "
            f"delta.`{folder}` UNSET TBLPROPERTIES ('{FORGETTING}')"
        )
    if properties.get(MAPPING, "none") != "none":
        raise OptionRefused(
            f"{folder}: the table has the property {MAPPING} = {properties[MAPPING]!r}, so that readers would not find "
            "the job's columns in its files. Nothing was added. Remove the mapping, which rewrites the files: ALTER "
            f"TABLE delta.`{folder}` DROP FEATURE columnMapping (with a Delta release that can drop it); or choose "
            "another path"
        )
