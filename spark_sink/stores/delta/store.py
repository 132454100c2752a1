"""Results in a Delta Lake table in a local folder, a mounted one or a bucket, committed by delta-rs.

Executors write Parquet files into the table's folder; they are invisible until the driver names them in the log. The
same log entry carries `txn` actions (Delta protocol, "Transaction Identifiers"), which the format keeps through log
clean-up, checkpoints and compaction: one per Kafka partition with the next offset, one with the generation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import SinkError, StoreError
from kafka_ratchet.spark_sink.files.parquet import require_files, stem, write_files
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.write_mode import APPEND, Shape
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.decision import Decision, Held
from kafka_ratchet.spark_sink.stores.delta import vacuum
from kafka_ratchet.spark_sink.stores.delta.actions import (
    generation_key,
    newest_generation,
    offset_actions,
    rule_actions,
    stored_id,
    stored_offsets,
    stored_rule,
    version_key,
)
from kafka_ratchet.spark_sink.stores.delta.commit import JobEntry, write_entry
from kafka_ratchet.spark_sink.stores.delta.merge import require_plain
from kafka_ratchet.spark_sink.stores.delta.sound import Soundness, require_plain_log
from kafka_ratchet.spark_sink.stores.delta.table import (
    open_or_create,
    open_table,
    refuse,
    require_fits,
    table_folder,
    types_of,
)
from kafka_ratchet.spark_sink.stores.delta.vacuum import STAGING
from kafka_ratchet.spark_sink.stores.orphans import Orphan
from kafka_ratchet.spark_sink.stores.place import Place
from kafka_ratchet.spark_sink.stores.rule import require_rule, rule_of
from kafka_ratchet.spark_sink.stores.store import (
    RUN_FIRST,
    TableStore,
    next_generation,
    other_topic,
    require_columns,
    require_holder,
    require_names,
    require_start,
    tuples,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

COMMIT_ATTEMPTS = 100
"""How often a commit is tried again after another writer of the table was first. Each of those is a success of somebody
else (another job, a compaction), so this many in a row means that something is wrong."""


class DeltaStore(TableStore):
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

    rejects_apart = True

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
        self._sound = Soundness(self._folder, name, topic)
        self._generation: int | None = None
        self._table: DeltaTable | None = None
        self._table_id, self._version = "", -1
        """Of the table that was opened, and of this holder's last entry in its log."""
        self._columns: dict[str, str] = {}
        self._rule_actions: dict[str, int] = {}
        """Of this holder's next commit; none where the log has them."""

    @classmethod
    def at(cls, place: Place, name: str, topic: str, topic_identity: int = 0, shape: Shape = APPEND,
           *, rejects: StructType | None = None, in_tasks: bool = False) -> DeltaStore:  # fmt: skip
        """See `TableStore.at`."""
        return cls(place.path, name, topic, topic_identity, shape, storage_options=place.storage_options)

    @classmethod
    def rejects_at(cls, place: Place) -> Place:
        """See `TableStore.rejects_at`."""
        return replace(place, path=f"{place.path.rstrip('/')}_rejects")

    def count(self) -> int:
        """See `TableStore.count`."""
        return self._existing(RUN_FIRST).count()

    def rows(self, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """See `TableStore.rows`."""
        return tuples(self._existing(RUN_FIRST).to_pyarrow_dataset().to_table(columns=list(columns)))

    def scan(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See `TableStore.scan`."""
        yield from self._existing(RUN_FIRST).to_pyarrow_dataset().to_batches(columns=schema.names)

    def orphans(self, *, needed: bool = True) -> Iterator[Orphan]:
        """See `TableStore.orphans`."""
        return vacuum.orphans(self._folder, needed=needed)

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
        stored, is_other = self._stored(table), stored_id(table, self._name, self._topic).is_other(self._topic_identity)
        try:
            self._sound.require(table)
        except SinkError as error:
            return Held(stored, None if is_other else self._sound.of_rows(table), str(error), is_other)
        return Held(stored, None if is_other else stored, "", is_other)

    def put(self, offsets: dict[int, int], decision: Decision, generation: int | None = None) -> int:
        """See `ResultStore.put`; the decision is in the entry's userMetadata, which DESCRIBE HISTORY shows."""
        table = self._existing()
        require_plain_log(table, self._folder)
        actions = offset_actions(self._name, self._topic, self._topic_identity, offsets) | rule_actions(
            self._name, rule_of(self._shape)
        )
        taken, _ = self._take_over(table, generation, actions, offsets, decision)
        return taken

    def make(self, schema: StructType) -> None:
        """See `Numbered.make`."""
        open_or_create(self._folder, schema)

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
            require_fits(self._folder, table, schema)

    def require_rule(self) -> None:
        """See `ResultStore.require_rule`."""
        table = open_table(self._folder)
        if table is not None:
            self._require_rule(table)

    def open(self, schema: StructType, generation: int | None = None) -> dict[int, int]:
        """See `Numbered.open`."""
        self.require_rule()  # before the columns, which another kind may have others of
        table = open_or_create(self._folder, schema)
        taken, stored = self._take_over(table, generation)
        self._table, self._generation = table, taken
        self._version = table.transaction_version(version_key(self._name)) or 0
        self._table_id = str(table.metadata().id)
        self._columns = types_of(table.schema())
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
        self._sound.require_same_table(self._table_id, self._version)
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
        transactions = {
            self._generation_key: generation,
            **offset_actions(self._name, self._topic, self._topic_identity, end),
            **self._rule_actions,
        }
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
                refuse(self._folder, failure)
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
            refuse(self._folder, error)

    def _newest(self, table: DeltaTable) -> int:
        return newest_generation(table, self._name)

    def _stored(self, table: DeltaTable) -> dict[int, int]:
        return stored_offsets(table, self._name, self._topic)

    def _is_committed(self, table: DeltaTable, end: Mapping[int, int]) -> bool:
        return self._newest(table) == self._generation and self._stored(table) == end

    def _require_unchanged(self, table: DeltaTable, start: Mapping[int, int]) -> None:
        require_plain_log(table, self._folder)  # first: with the property, the generation may be gone already
        newest, stored = self._newest(table), self._stored(table)
        require_holder(self._name, self._topic, self._folder, self._generation, newest, stored, start)
        self._sound.require(table)
        require_columns(self._folder, types_of(table.schema()), self._columns)

    def _require_same_topic(self, table: DeltaTable) -> None:
        known = stored_id(table, self._name, self._topic)
        if known.is_other(self._topic_identity):
            raise other_topic(self._topic, self._folder, self._stored(table), known, self._topic_identity)

    def _require_rule(self, table: DeltaTable) -> None:
        require_rule(self._folder, self._name, stored_rule(table, self._name), self._shape)

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
                refuse(self._folder, error)
            return taken, stored
        raise StoreError(
            f"{self._folder}: other writers were faster {COMMIT_ATTEMPTS} times in a row. Run the job again"
        )

    def _existing(self, remedy: str = "Look at the path") -> DeltaTable:
        table = open_table(self._folder)
        if table is None:
            raise StoreError(f"{self._folder}: there is no result table. {remedy}")
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
        entry = JobEntry(self._name, self._topic, generation, end, note or {}, transactions)
        write_entry(table, self._folder, entry, written, self._shape)
