"""Results in an Apache Iceberg table, committed by pyiceberg into a catalog: by default a SQLite file in the folder.

Tasks write Parquet files into the table's folder; they are invisible until the driver commits a snapshot that names
them. Offsets and generation are properties of the table, set in the same commit. Every commit, a take-over as well,
makes a snapshot: that the newest one is still the one it was compared with is what the catalog checks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import OptionRefused, SinkError, StoreError
from kafka_ratchet.spark_sink.files.bucket import BucketFolder
from kafka_ratchet.spark_sink.files.local import LocalFolder
from kafka_ratchet.spark_sink.files.parquet import FILE_NAME, require_files, stem, write_files
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.write_mode import APPEND, Shape
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores import topic_id as topic_ids
from kafka_ratchet.spark_sink.stores.decision import Decision, Held
from kafka_ratchet.spark_sink.stores.iceberg import vacuum
from kafka_ratchet.spark_sink.stores.iceberg.catalog import Lake
from kafka_ratchet.spark_sink.stores.iceberg.commit import Commit, generation_key, newest_generation
from kafka_ratchet.spark_sink.stores.iceberg.lineage import broken, offsets_of_rows
from kafka_ratchet.spark_sink.stores.iceberg.table import (
    RETRIES,
    SCHEMA_KEY,
    find_table,
    open_or_create,
    refuse,
    require_same_columns,
)
from kafka_ratchet.spark_sink.stores.orphans import Orphan
from kafka_ratchet.spark_sink.stores.place import Place
from kafka_ratchet.spark_sink.stores.rule import require_rule, rule_of
from kafka_ratchet.spark_sink.stores.store import (
    RUN_FIRST,
    TableStore,
    next_generation,
    other_topic,
    require_holder,
    require_names,
    require_start,
    rows_lost,
    tuples,
)
from kafka_ratchet.spark_sink.stores.topic_id import StoredId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

COMMIT_ATTEMPTS = 100
"""How often a commit is tried again after another writer of the table was first; each is a success of somebody else."""

TABLE_NAME = re.compile(r"[A-Za-z0-9_]{1,100}")
"""Table names become folders; this alphabet is plain in all of them."""

DECISIONS_KEPT = 20
"""Of who has decided where a job goes on, the newest so many stay in the table's properties."""

ONE_MACHINE = "store iceberg keeps its catalog in one SQLite file on the driver's machine, unless you name another"


class IcebergStore(TableStore):
    """A `ResultStore` over one Iceberg table; jobs of different names and topics may share it.

    Args:
        path: folder of the tables, or s3://bucket/folder; without `catalog` a folder on a disk of this machine.
        table: the result table, in the namespace `ratchet`.
        name: the job's name; a job that opens the store fences the older one of its name.
        topic: the topic the offsets belong to.
        topic_identity: `TopicPlanner.identity()`; 0 switches the comparison off.
        shape: what the rows do to the table.
        storage_options: how a bucket is reached, see `_bucket.OPTIONS`.
        catalog: properties of a catalog, in pyiceberg's names; see `Lake`.

    Raises:
        OptionRefused: a name, the path or an option cannot be used, or pyiceberg is not installed.
    """

    rejects_apart = True
    narrow = True  # pyiceberg cannot commit a file whose times lie outside the years of Python's datetime

    def __init__(
        self,
        path: str,
        table: str,
        name: str,
        topic: str,
        topic_identity: int = 0,
        shape: Shape = APPEND,
        *,
        storage_options: Mapping[str, str] | None = None,
        catalog: Mapping[str, str] | None = None,
    ) -> None:
        require_names(name, topic)
        try:
            import pyiceberg.catalog.sql  # noqa: F401
        except ImportError:
            raise OptionRefused("store iceberg needs pyiceberg: pip install 'kafka-ratchet[iceberg]'") from None
        self._lake = Lake(path, storage_options or {}, catalog or {})
        self.one_machine = "" if catalog else ONE_MACHINE
        if topic == "generation":
            raise OptionRefused("store iceberg has a property of that name: choose another output topic or store")
        if not TABLE_NAME.fullmatch(table):
            raise OptionRefused(f"table {table!r}: use letters, digits and '_', at most 100")
        self._table_name, self._name, self._topic, self._topic_identity = table, name, topic, topic_identity
        self._shape = shape
        self._generation_key = generation_key(name)
        self._topic_key, self._rule_key = f"ratchet-sink.{name}.{topic}", f"ratchet-sink-rule.{name}"
        self._generation: int | None = None
        self._table: Table | None = None
        self._schema: StructType | None = None

    @classmethod
    def at(cls, place: Place, name: str, topic: str, topic_identity: int = 0, shape: Shape = APPEND,
           *, rejects: StructType | None = None, in_tasks: bool = False) -> IcebergStore:  # fmt: skip
        """See `TableStore.at`."""
        return cls(
            place.path,
            place.table,
            name,
            topic,
            topic_identity,
            shape,
            storage_options=place.storage_options,
            catalog=place.catalog,
        )

    def count(self) -> int:
        """See `TableStore.count`."""
        return self._existing(RUN_FIRST).scan().count()

    def rows(self, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """See `TableStore.rows`."""
        found = self._existing(RUN_FIRST).scan(selected_fields=tuple(columns))
        return tuples(found.to_arrow().select(list(columns)))

    def scan(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See `TableStore.scan`."""
        yield from self._existing(RUN_FIRST).scan(selected_fields=tuple(schema.names)).to_arrow_batch_reader()

    def orphans(self, *, needed: bool = True) -> Iterator[Orphan]:
        """See `TableStore.orphans`."""
        table = self._existing() if needed else self.existing()
        return iter(()) if table is None else vacuum.orphans(table, self.data_folder(table))

    def generation(self) -> int:
        """See `ResultStore.generation`."""
        table = self.existing()
        return 0 if table is None else self._newest(table)

    def offsets(self) -> dict[int, int]:
        """See `ResultStore.offsets`."""
        table = self.existing()
        if table is None:
            return {}
        self._require_sound(table)
        self._require_same_topic(table)
        return self._stored(table)

    def held(self) -> Held:
        """See `ResultStore.held`."""
        table = self._existing()
        stored, is_other = self._stored(table), self._entry(table)[1].is_other(self._topic_identity)
        try:
            self._require_sound(table)
        except SinkError as error:
            return Held(stored, None if is_other else self._of_rows(table), str(error), is_other)
        return Held(stored, None if is_other else stored, "", is_other)

    def put(self, offsets: dict[int, int], decision: Decision, generation: int | None = None) -> int:
        """See `ResultStore.put`; decisions are a property of the table."""
        table = self._existing()
        key = f"ratchet-sink-decisions.{self._name}"
        kept = [
            *json.loads(table.properties.get(key, "[]")),
            json.loads(decision.as_json(self._stored(table), offsets, (self._rule(table), rule_of(self._shape)))),
        ]
        more = {
            key: json.dumps(kept[-DECISIONS_KEPT:]),
            self._topic_key: self._offset_entry(offsets),
            self._rule_key: rule_of(self._shape),
        }
        taken: int = self._take_over(table, generation, more, decision)
        return taken

    def make(self, schema: StructType) -> None:
        """See `Numbered.make`."""
        open_or_create(self._lake, self._table_name, schema)

    def columns(self) -> StructType | None:
        """See `ResultStore.columns`."""
        from pyspark.sql.types import StructType

        table = self.existing()
        described = None if table is None else table.properties.get(SCHEMA_KEY)
        return None if described is None else StructType.fromJson(json.loads(described))

    def require_fits(self, schema: StructType) -> None:
        """See `ResultStore.require_fits`."""
        table = self.existing()
        if table is not None:
            require_same_columns(self._lake, table, schema)

    def require_rule(self) -> None:
        """See `ResultStore.require_rule`."""
        table = self.existing()
        if table is not None:
            self._require_rule(table)

    def open(self, schema: StructType, generation: int | None = None) -> dict[int, int]:
        """See `Numbered.open`."""
        self.require_rule()  # before the columns, which another kind may have others of
        table = open_or_create(self._lake, self._table_name, schema)
        self._generation = self._take_over(table, generation)
        self._table, self._schema = table, schema
        return self._stored(table)

    def commit(
        self, dataframe: DataFrame, start: dict[int, int], end: dict[int, int], rejects: DataFrame | None = None
    ) -> int:
        """See `ResultStore.commit`."""
        import pyarrow as pa
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        generation = require_start(self._generation, start, end)
        if rejects is not None:
            raise ValueError("a commit is one table's: rejects go to a store of their own")
        table = self._table
        if table is None:
            raise RuntimeError("commit() after close()")
        self._refresh(table)
        self._require_holder(table, generation, start)  # before the work, so that a fenced job writes no more files
        crash_points.passing("before-write")
        folder = self.data_folder(table)
        folder.make()
        wanted = schema_to_pyarrow(table.schema(), include_field_ids=False)
        rows: list[str] | pa.Table
        count: int
        written: list[tuple[str, int, int]] = []
        if self._shape.key:
            if DELETED in dataframe.columns:
                wanted = wanted.append(pa.field(DELETED, pa.bool_()))
            rows = dataframe.toArrow().select(wanted.names).cast(wanted)
            count = rows.num_rows
        else:
            written = write_files(dataframe, folder.inside(), wanted, stem(self._name, generation), folder.filesystem)
            rows = [f"{table.location()}/data/{name}" for name, _, _ in written]
            count = sum(rows for _, rows, _ in written)
        properties = {
            self._generation_key: str(generation),
            self._topic_key: self._offset_entry(end),
            self._rule_key: rule_of(self._shape),
        }
        crash_points.passing("before-commit")
        for _ in range(COMMIT_ATTEMPTS):
            require_files(folder, written)  # a clean-up takes files that no snapshot names yet
            try:
                self._write(table, rows, properties, count)
                break
            except Exception as error:  # pyiceberg hands out errors of SQLAlchemy, SQLite, Avro and the disk
                failure = error
            self._refresh(table)
            if self._newest(table) == generation and self._stored(table) == end:
                break  # the commit is in place; what failed came after it
            self._require_holder(table, generation, start)
            if not isinstance(failure, CommitFailedException):
                refuse(self._lake, failure)
        else:
            raise StoreError(
                f"{self._lake}: other writers were faster {COMMIT_ATTEMPTS} times in a row. Run the job again"
            )
        crash_points.passing("after-commit")
        require_files(folder, written, "The table's newest snapshot names it")
        return count

    def close(self) -> None:
        """See `ResultStore.close`."""
        self._table = self._generation = None

    # -- what is stored

    def _newest(self, table: Table) -> int:
        return newest_generation(table, self._name)

    def _entry(self, table: Table) -> tuple[dict[int, int], StoredId]:
        stored = json.loads(table.properties.get(self._topic_key, '{"offsets": {}}'))
        known = StoredId(stored.get("topic_id", ""), stored.get("identity", 0))
        return {int(partition): offset for partition, offset in stored["offsets"].items()}, known

    def _offset_entry(self, offsets: Mapping[int, int]) -> str:
        return json.dumps(
            {
                "offsets": {str(partition): offset for partition, offset in offsets.items()},
                "identity": topic_ids.first_bits(self._topic_identity),
                "topic_id": topic_ids.text(self._topic_identity),
            }
        )

    def _stored(self, table: Table) -> dict[int, int]:
        return self._entry(table)[0]

    def _require_holder(self, table: Table, generation: int, start: Mapping[int, int]) -> None:
        newest, stored = self._newest(table), self._stored(table)
        require_holder(self._name, self._topic, self._lake, generation, newest, stored, start)
        self._require_sound(table)
        if self._schema is not None:
            require_same_columns(self._lake, table, self._schema)

    def _require_same_topic(self, table: Table) -> None:
        stored, known = self._entry(table)
        if known.is_other(self._topic_identity):
            raise other_topic(self._topic, self._lake, stored, known, self._topic_identity)

    def _rule(self, table: Table) -> str:
        return str(table.properties.get(self._rule_key, ""))

    def _require_rule(self, table: Table) -> None:
        require_rule(self._lake, self._name, self._rule(table), self._shape)

    def _require_sound(self, table: Table) -> None:
        """Raise `RowsLost` where the table's rows are not those that its properties stand for."""
        if self._newest(table):
            what = broken(table, self._name)
            if what:
                raise rows_lost(self._lake, what, self._of_rows(table) is not None)
            return
        try:
            files = [task.file.file_path.rpartition("/")[2] for task in table.scan().plan_files()]
        except Exception as error:
            refuse(self._lake, error)
        if any(found and found["job"] == self._name for found in map(FILE_NAME.fullmatch, files)):
            what = f"the table has rows that job {self._name} wrote, and no offsets: they were removed, or it is a copy"
            raise rows_lost(self._lake, what, self._of_rows(table) is not None)

    def _of_rows(self, table: Table) -> dict[int, int] | None:
        return offsets_of_rows(table, self._name, self._topic)

    def _take_over(
        self,
        table: Table,
        generation: int | None,
        more: Mapping[str, str] | None = None,
        decision: Decision | None = None,
    ) -> int:
        """A snapshot with a new generation, and where given, more properties."""
        from pyiceberg.exceptions import CommitFailedException

        for _ in range(COMMIT_ATTEMPTS):
            self._refresh(table)
            if decision is None:
                self._require_sound(table)
                self._require_same_topic(table)
                self._require_rule(table)
            else:
                decision.require_seen(self._lake, self._stored(table))
            taken = next_generation(self._newest(table), generation, f"job {self._name} on {self._lake}")
            try:
                self._write(table, [], {self._generation_key: str(taken), **RETRIES, **(more or {})})
            except CommitFailedException:
                continue  # another writer was first; it may have taken the same generation
            except Exception as error:
                refuse(self._lake, error)
            self._refresh(table)
            return int(taken)
        raise StoreError(f"{self._lake}: other writers were faster {COMMIT_ATTEMPTS} times in a row. Run the job again")

    def _existing(self, remedy: str = "Look at the path") -> Table:
        table = self.existing()
        if table is None:
            raise StoreError(f"{self._lake}: there is no result table {self._table_name}. {remedy}")
        return table

    # -- the table

    def _write(self, table: Table, rows: list[str] | pa.Table, properties: Mapping[str, str], added: int = 0) -> None:
        commit = Commit(self._name, self._generation or 0, self._shape, self.data_folder(table))
        commit.write(table, rows, properties, added)

    def data_folder(self, table: Table) -> LocalFolder | BucketFolder:
        """Where the table's files are."""
        return self._lake.data_folder(table.location())

    def existing(self) -> Table | None:
        """The table, where there is one; raises StoreError where it cannot be read."""
        return find_table(self._lake, self._table_name)

    def _refresh(self, table: Table) -> None:
        try:
            table.refresh()
        except Exception as error:
            refuse(self._lake, error)
