"""Results in a Delta Lake table in a local folder, a mounted one or a bucket, committed by delta-rs.

Executors write Parquet files into the table's folder; they are invisible until the driver names them in the log. The
same log entry carries `txn` actions (Delta protocol, "Transaction Identifiers"), which the format keeps through log
clean-up, checkpoints and compaction: one per Kafka partition with the next offset, one with the generation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kafka_ratchet.spark_sink.errors import OptionRefused, RowsLost, SchemaDiffers, SinkError, StoreError, first_line
from kafka_ratchet.spark_sink.files.bucket import BucketFolder
from kafka_ratchet.spark_sink.files.local import LocalFolder
from kafka_ratchet.spark_sink.files.parquet import require_files, stem, write_files
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.write_mode import APPEND, Shape
from kafka_ratchet.spark_sink.stores import crash_points, topic_id
from kafka_ratchet.spark_sink.stores.decision import Decision, Held
from kafka_ratchet.spark_sink.stores.delta.log import Folder, read_entry
from kafka_ratchet.spark_sink.stores.delta.merge import merge, require_plain
from kafka_ratchet.spark_sink.stores.delta.sound import (
    Soundness,
    generation_key,
    newest_generation,
    require_plain_log,
    rule_actions,
    stored_offsets,
    stored_rule,
    topic_key,
)
from kafka_ratchet.spark_sink.stores.rule import require_rule, rule_of
from kafka_ratchet.spark_sink.stores.store import (
    next_generation,
    other_topic,
    require_columns,
    require_holder,
    require_names,
    require_start,
)
from kafka_ratchet.spark_sink.stores.topic_id import StoredId

if TYPE_CHECKING:
    from deltalake import DeltaTable, Schema
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

COMMIT_ATTEMPTS = 100
"""How often a commit is tried again after another writer of the table was first. Each of those is a success of somebody
else (another job, a compaction), so this many in a row means that something is wrong."""

UNKNOWN_ROWS = 2**62
"""Noted where a merge decides how many rows there are; no table has as many."""

STAGING = "_ratchet_staged"
"""Folder in the table's for rows that a merge reads; Delta's own clean-up leaves names with an underscore alone."""


class DeltaStore:
    """A `ResultStore` over one Delta table; jobs of different names and topics may share it.

    Args:
        path: folder of the table, or s3://bucket/folder.
        name: the job's name; a job that opens the store fences the older one of its name.
        topic: the topic the offsets belong to.
        topic_identity: `TopicPlanner.identity()`; 0 switches the comparison off.
        shape: what the rows do to the table.
        storage_options: how a bucket is reached, see `_bucket.OPTIONS`.

    Raises:
        OptionRefused: a name, the path or an option cannot be used.
    """

    narrow = False
    one_machine = ""

    def __init__(
        self,
        path: str,
        name: str,
        topic: str,
        topic_identity: int = 0,
        shape: Shape = APPEND,
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        require_names(name, topic)
        require_plain(shape)
        self._shape = shape
        self._folder = table_folder(path, storage_options)
        self._name = name
        self._topic = topic
        self._topic_identity = topic_identity
        self._generation_key = generation_key(name)
        self._topic_key = topic_key(name, topic)
        self._sound = Soundness(self._folder, name, topic)
        self._generation: int | None = None
        self._table: DeltaTable | None = None
        self._table_id, self._version = "", -1
        """Of the table that was opened, and of this holder's last entry in its log."""
        self._columns: dict[str, str] = {}
        self._rule_actions: dict[str, int] = {}
        """Of this holder's next commit; none where the log has them."""

    def generation(self) -> int:
        """See `ResultStore.generation`."""
        table = open_table(self._folder)
        return 0 if table is None else self._newest(table)

    def offsets(self) -> dict[int, int]:
        """See `ResultStore.offsets`."""
        table = open_table(self._folder)
        if table is None:
            return {}
        self._sound.require(table)
        self._require_same_topic(table)
        return self._stored(table)

    def held(self) -> Held:
        """See `ResultStore.held`."""
        table = self._existing()
        stored, is_other = self._stored(table), self._stored_id(table).is_other(self._topic_identity)
        try:
            self._sound.require(table)
        except SinkError as error:
            return Held(stored, None if is_other else self._sound.of_rows(table), str(error), is_other)
        return Held(stored, None if is_other else stored, "", is_other)

    def put(self, offsets: dict[int, int], decision: Decision, generation: int | None = None) -> int:
        """See `ResultStore.put`; the decision is in the entry's userMetadata, which DESCRIBE HISTORY shows."""
        table = self._existing()
        require_plain_log(table, self._folder)
        actions = self._offset_actions(offsets) | rule_actions(self._name, rule_of(self._shape))
        taken, _ = self._take_over(table, generation, actions, offsets, decision)
        return taken

    def make(self, schema: StructType) -> None:
        """See `Numbered.make`."""
        self._open_or_create(schema)

    def columns(self) -> StructType | None:
        """See `ResultStore.columns`."""
        from pyspark.sql.types import StructType

        table = open_table(self._folder)
        # Spark and Delta describe schemas in the same JSON.
        return None if table is None else StructType.fromJson(json.loads(table.schema().to_json()))

    def require_fits(self, schema: StructType) -> None:
        """See `ResultStore.require_fits`."""
        table = open_table(self._folder)
        if table is not None:
            self._require_fits(table, schema)

    def require_rule(self) -> None:
        """See `ResultStore.require_rule`."""
        table = open_table(self._folder)
        if table is not None:
            self._require_rule(table)

    def open(self, schema: StructType, generation: int | None = None) -> dict[int, int]:
        """See `Numbered.open`."""
        self.require_rule()  # before the columns, which another kind may have others of
        table = self._open_or_create(schema)
        taken, stored = self._take_over(table, generation)
        self._table, self._generation = table, taken
        self._version = table.transaction_version(self._sound.version_key) or 0
        self._table_id = str(table.metadata().id)
        self._columns = _types(table.schema())
        rule = rule_of(self._shape)
        self._rule_actions = {} if stored_rule(table, self._name) == rule else rule_actions(self._name, rule)
        self._remove_staged(before=taken)
        return stored

    def commit(
        self, dataframe: DataFrame, start: dict[int, int], end: dict[int, int], rejects: DataFrame | None = None
    ) -> int:
        """See `ResultStore.commit`."""
        import pyarrow as pa
        from deltalake.exceptions import CommitFailedError, DeltaError

        generation = require_start(self._generation, start, end)
        if rejects is not None:
            raise ValueError("a commit is one table's: rejects go to a store of their own")
        table = self._table
        if table is None:
            raise RuntimeError("commit() after close()")
        self._require_same_table()
        self._refresh(table)
        self._require_unchanged(table, start)  # before the work, so that a fenced job writes no more files
        crash_points.passing("before-write")
        inner = [STAGING, f"{self._name}.{generation}"] if self._shape.key else []
        self._folder.make(*inner)
        try:
            schema = pa.schema(table.schema().to_arrow())
            if DELETED in dataframe.columns:
                schema = schema.append(pa.field(DELETED, pa.bool_()))
            written = write_files(
                dataframe,
                self._folder.inside(*inner),
                schema,
                stem(self._name, generation),
                self._folder.filesystem,
            )
        except Exception:
            self._refresh(table)
            self._require_unchanged(table, start)  # a successor removes what was staged before it
            raise
        transactions = {self._generation_key: generation, **self._offset_actions(end), **self._rule_actions}
        crash_points.passing("before-commit")
        for _ in range(COMMIT_ATTEMPTS):
            failure: DeltaError | OSError
            if not self._shape.key:
                require_files(self._folder, written)  # a clean-up takes files that no entry names yet
            attempt = table.version() + 1
            try:
                self._write(table, written, transactions, generation, end)
                break
            except (DeltaError, OSError) as error:  # a successor removes what was staged before it
                failure = error
            self._refresh(table)
            if self._is_committed(table, end):
                break  # the log entry was in place; what failed came after it, such as a checkpoint
            self._require_unchanged(table, start)
            if not isinstance(failure, CommitFailedError):
                self._refuse(failure)
        else:
            raise StoreError(
                f"{self._folder}: other writers were faster {COMMIT_ATTEMPTS} times in a row. Run the job again"
            )
        self._version, self._rule_actions = attempt, {}
        crash_points.passing("after-commit")
        if not self._shape.key:
            require_files(self._folder, written, f"Version {self._version} of the table names it")
        if self._shape.key:
            with suppress(OSError):  # the commit is done
                for name, _, _ in written:
                    self._folder.remove(name, *inner)
        return sum(rows for _, rows, _ in written)

    def close(self) -> None:
        """See `ResultStore.close`."""
        self._table = None

    def _remove_staged(self, before: int) -> None:
        """Remove what holders before this one have left. One that still lives is fenced, whatever it finds."""
        with suppress(OSError):  # it takes space and no more; vacuum says what is wrong
            for name in self._folder.folders(STAGING):
                job, _, generation = name.rpartition(".")
                if job == self._name and generation.isdecimal() and int(generation) < before:
                    self._folder.remove_folder(STAGING, name)

    def _refresh(self, table: DeltaTable) -> None:
        from deltalake.exceptions import DeltaError

        try:
            table.update_incremental()
        except DeltaError as error:
            self._refuse(error)

    def _newest(self, table: DeltaTable) -> int:
        return newest_generation(table, self._name)

    def _stored(self, table: DeltaTable) -> dict[int, int]:
        return stored_offsets(table, self._name, self._topic)

    def _stored_id(self, table: DeltaTable) -> StoredId:
        high, low, rest = (
            table.transaction_version(f"{self._topic_key}/identity{part}") for part in ("", "-low", "-rest")
        )
        if high is None or low is None or rest is None:
            return StoredId("", high or 0)
        return StoredId(topic_id.text(topic_id.of_parts(high, low, rest)), high)

    def _offset_actions(self, end: Mapping[int, int]) -> dict[str, int]:
        """The `txn` actions that say how far the topic is read."""
        actions = {f"{self._topic_key}/{partition}": offset for partition, offset in end.items()}
        actions[f"{self._topic_key}/partitions"] = max(end, default=-1) + 1
        if self._topic_identity:
            names = [f"{self._topic_key}/identity{part}" for part in ("", "-low", "-rest")]
            actions |= dict(zip(names, topic_id.parts(self._topic_identity), strict=True))
        return actions

    def _is_committed(self, table: DeltaTable, end: Mapping[int, int]) -> bool:
        return self._newest(table) == self._generation and self._stored(table) == end

    def _require_unchanged(self, table: DeltaTable, start: Mapping[int, int]) -> None:
        require_plain_log(table, self._folder)  # first: with the property, the generation may be gone already
        newest, stored = self._newest(table), self._stored(table)
        require_holder(self._name, self._topic, self._folder, self._generation, newest, stored, start)
        self._sound.require(table)
        require_columns(self._folder, _types(table.schema()), self._columns)

    def _require_same_topic(self, table: DeltaTable) -> None:
        known = self._stored_id(table)
        if known.is_other(self._topic_identity):
            raise other_topic(self._topic, self._folder, self._stored(table), known, self._topic_identity)

    def _require_rule(self, table: DeltaTable) -> None:
        require_rule(self._folder, self._name, stored_rule(table, self._name), self._shape)

    # -- whether rows and offsets still belong together

    def _require_same_table(self) -> None:
        """The log of the table that was opened, and not one that has been made in its place since."""
        held = self._version
        try:
            about = {} if (entry := read_entry(self._folder, held)) is None else entry.about
        except OSError:
            about = {}
        if about.get("job") == self._name and about.get("table") == self._table_id:
            return
        now = open_table(self._folder)  # the entry may have been cleaned up
        if (
            now is None
            or str(now.metadata().id) != self._table_id
            or (now.transaction_version(self._sound.version_key) or 0) < held
        ):
            raise RowsLost(
                f"{self._folder}: the table was removed or made anew while job {self._name} wrote to it. Nothing more "
                "was added; run the job again, and it begins where the table that is there now says"
            )

    # -- writing

    def _take_over(
        self,
        table: DeltaTable,
        generation: int | None,
        actions: Mapping[str, int] | None = None,
        offsets: Mapping[int, int] | None = None,
        decision: Decision | None = None,
    ) -> tuple[int, dict[int, int]]:
        """An entry with a new generation, and where given, other offsets.

        Returns:
            Generation and offsets.
        """
        from deltalake.exceptions import CommitFailedError, DeltaError

        for _ in range(COMMIT_ATTEMPTS):
            self._refresh(table)
            note: dict[str, object] = {}
            if decision is None:
                self._sound.require(table)
                self._require_same_topic(table)
                self._require_rule(table)
            else:
                decision.require_seen(self._folder, self._stored(table))
                rules = (stored_rule(table, self._name), rule_of(self._shape))
                note["resume"] = json.loads(decision.as_json(self._stored(table), offsets or {}, rules))
            stored = self._stored(table) if offsets is None else dict(offsets)
            taken = next_generation(self._newest(table), generation, f"job {self._name} on {self._folder}")
            try:
                self._write(table, [], {self._generation_key: taken, **(actions or {})}, taken, stored, note)
            except CommitFailedError:
                continue  # another writer was first; it may have taken the same generation
            except DeltaError as error:
                self._refuse(error)
            return taken, stored
        raise StoreError(
            f"{self._folder}: other writers were faster {COMMIT_ATTEMPTS} times in a row. Run the job again"
        )

    def _existing(self) -> DeltaTable:
        table = open_table(self._folder)
        if table is None:
            raise StoreError(f"{self._folder}: there is no result table. Look at the path")
        return table

    def _write(
        self,
        table: DeltaTable,
        written: Sequence[tuple[str, int, int]],
        transactions: Mapping[str, int],
        generation: int,
        end: Mapping[int, int],
        note: Mapping[str, object] | None = None,
    ) -> None:
        from deltalake import CommitProperties
        from deltalake.transaction import AddAction, RemoveAction, Transaction

        # Other keys than userMetadata make the commit unreadable for delta-spark. No retries inside delta-rs: it
        # would put this commit behind one that it has not compared itself with.
        about = {"job": self._name, "topic": self._topic, "generation": generation, "offsets": dict(end)}
        about |= {"table": str(table.metadata().id), **(note or {})}
        # Its own version, which is the next one or none; and how many rows the table then has, where that is known.
        transactions = {**transactions, self._sound.version_key: table.version() + 1}
        merged = self._shape.key and written
        rows = UNKNOWN_ROWS if merged else table.count() + sum(rows for _, rows, _ in written)
        transactions[self._sound.rows_key] = rows
        properties = CommitProperties(
            custom_metadata={"userMetadata": json.dumps(about)},
            max_commit_retries=0,
            app_transactions=[Transaction(key, version) for key, version in transactions.items()],
        )
        if self._shape.key and written:
            files = [self._folder.inside(STAGING, f"{self._name}.{generation}", name) for name, _, _ in written]
            if merge(table, files, self._folder.filesystem, self._shape, properties):
                return
            written = []  # staged rows are no files of the table
        now_ms = int(time.time() * 1000)
        added: list[AddAction | RemoveAction] = [
            AddAction(name, size, {}, now_ms, True, json.dumps({"numRecords": rows})) for name, rows, size in written
        ]
        table.create_write_transaction(added, mode="append", schema=table.schema(), commit_properties=properties)

    def _open_or_create(self, schema: StructType) -> DeltaTable:
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        wanted = Schema.from_json(schema.json())
        table = open_table(self._folder)
        if table is None:
            self._create_folder()
            try:
                DeltaTable.create(self._folder.uri, schema=wanted, mode="ignore", storage_options=self._folder.options)
            except DeltaError as error:
                # Two jobs may create it together: then the other one's table is there now.
                if open_table(self._folder) is None:
                    self._refuse(error)
            table = DeltaTable(self._folder.uri, storage_options=self._folder.options)
        self._require_fits(table, schema)
        return table

    def _require_fits(self, table: DeltaTable, schema: StructType) -> None:
        from deltalake import Schema

        if table.metadata().partition_columns:
            raise SchemaDiffers(
                f"{self._folder}: the table is partitioned, and not one of Ratchet's. Choose another path"
            )
        require_columns(self._folder, _types(table.schema()), _types(Schema.from_json(schema.json())))

    def _create_folder(self) -> None:
        try:
            self._folder.make()
        except OSError as error:
            raise StoreError(
                f"{self._folder}: the table's folder cannot be made ({error.strerror}). Choose another path"
            ) from None

    def _refuse(self, error: Exception) -> NoReturn:
        raise StoreError(
            f"{self._folder}: {first_line(error)}. Look at the folder and its rights, then run again"
        ) from None


def _types(schema: Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema.fields}


def table_folder(path: str, storage_options: Mapping[str, str] | None = None) -> Folder:
    """The folder of a table.

    Raises:
        OptionRefused: delta-rs cannot keep a table there, or an option cannot be used.
    """
    if "://" in path:
        return BucketFolder(path, storage_options or {})
    if "%" in str(Path(path).absolute()):
        # delta-rs 1.6 reads %20 in a folder's name as a blank when it writes and not when it reads.
        raise OptionRefused(f"path {path!r}: the folder's name may not contain '%'. Choose another")
    return LocalFolder(Path(path).absolute())


def open_table(folder: Folder) -> DeltaTable | None:
    """The table in that folder, or None where there is none.

    Raises:
        StoreError: something else is there, or it cannot be read.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    if isinstance(folder, LocalFolder) and folder.path.exists() and not folder.path.is_dir():
        raise StoreError(f"{folder} is a file, not the folder of a Delta table. Choose another path")
    try:
        if not DeltaTable.is_deltatable(folder.uri, folder.options):
            return None
        return DeltaTable(folder.uri, storage_options=folder.options)
    except (DeltaError, OSError) as error:
        raise StoreError(f"{folder}: the Delta table cannot be read: {first_line(error)}") from None
