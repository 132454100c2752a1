"""Results in one DuckDB file on the machine of the driver.

Tasks write Parquet files beside the database; the driver reads them, and changes rows, offsets and generation in one
transaction. The file is open during a call only, so that others can read it in between.
"""

from __future__ import annotations

import hashlib
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from kafka_ratchet.spark_sink.errors import OptionRefused, RowsLost, StoreError, first_line
from kafka_ratchet.spark_sink.files.parquet import stem, write_files
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.write_mode import APPEND, COUNT_COLUMN, Shape
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores import topic_id as topic_ids
from kafka_ratchet.spark_sink.stores.decision import Decision, Held
from kafka_ratchet.spark_sink.stores.rule import require_rule, rule_of
from kafka_ratchet.spark_sink.stores.store import (
    other_topic,
    require_columns,
    require_holder,
    require_names,
    require_start,
    rows_lost,
)
from kafka_ratchet.spark_sink.stores.topic_id import StoredId

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

LOCK_PATIENCE_S = 30.0
"""How long a call waits for another process that has the file open, in seconds: another job's commit, or a reader."""

LOCK_PAUSE_S = 0.1
"""Between two attempts to open the file, in seconds."""

CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
"""A result file fetches no code from anywhere; Parquet is part of DuckDB's wheel."""

BOOK = """
CREATE TABLE IF NOT EXISTS ratchet_sink_jobs
    (result VARCHAR, job VARCHAR, generation BIGINT NOT NULL, PRIMARY KEY (result, job));
CREATE TABLE IF NOT EXISTS ratchet_sink_offsets
    (result VARCHAR, job VARCHAR, topic VARCHAR, "partition" INTEGER, next BIGINT NOT NULL, identity BIGINT NOT NULL,
     PRIMARY KEY (result, job, topic, "partition"));
CREATE TABLE IF NOT EXISTS ratchet_sink_marks
    (result VARCHAR, job VARCHAR, topic VARCHAR, relation VARCHAR, topic_id VARCHAR NOT NULL, filled BOOLEAN NOT NULL,
     PRIMARY KEY (result, job, topic, relation));
CREATE TABLE IF NOT EXISTS ratchet_sink_rules
    (result VARCHAR, job VARCHAR, rule VARCHAR NOT NULL, PRIMARY KEY (result, job));
CREATE TABLE IF NOT EXISTS ratchet_sink_decisions
    (result VARCHAR, job VARCHAR, topic VARCHAR, decided TIMESTAMP NOT NULL, decision VARCHAR NOT NULL);
"""
"""A table is marked as filled where a commit has left rows in it: one that is empty or gone later was put back."""


OF_JOB = "WHERE result = ? AND job = ? AND topic = ?"


class DuckDBStore:
    """A `ResultStore` over one table of a DuckDB file; jobs of different names may share it.

    Args:
        path: the database file, on a disk of this machine; DuckDB takes locks that networks do not keep.
        table: the result table; rejects go to the table with `_rejects` behind its name.
        name: the job's name; a job that opens the store fences the older one of its name.
        topic: the topic the offsets belong to.
        topic_identity: `TopicPlanner.identity()`; 0 switches the comparison off.
        shape: what the rows do to the table.
        rejects: columns of the rejects table; None: commits bring no rejects.

    Raises:
        OptionRefused: a name or the path cannot be used, or duckdb is not installed.
    """

    narrow = False
    one_machine = "store duckdb keeps its results in one file on the driver's machine"

    def __init__(
        self,
        path: str,
        table: str,
        name: str,
        topic: str,
        topic_identity: int = 0,
        shape: Shape = APPEND,
        *,
        rejects: StructType | None = None,
    ) -> None:
        require_names(name, topic)
        try:
            import duckdb  # noqa: F401
        except ImportError:
            raise OptionRefused("store duckdb needs duckdb: pip install 'kafka-ratchet[duckdb]'") from None
        if not table or "\0" in table:
            raise OptionRefused(f"table {table!r} is no name of a table")
        if "://" in path or path.startswith(":") or "\0" in path:
            raise OptionRefused(f"path {path!r}: a DuckDB result is a file on this machine. Name one")
        self._path = Path(path).absolute()
        self._staging = staging_prefix(self._path, table, name)
        self._table, self._rejected = table, f"{table}_rejects"
        self._name, self._topic, self._topic_identity = name, topic, topic_identity
        self._shape, self._rejects = shape, rejects
        self._generation: int | None = None
        self._arrow: Any = None

    def generation(self) -> int:
        """See `ResultStore.generation`."""
        with self.reading() as database:
            return self._newest(database)

    def offsets(self) -> dict[int, int]:
        """See `ResultStore.offsets`."""
        with self.reading() as database:
            self._require_sound(database)
            self._require_same_topic(database)
            return self._stored(database)

    def held(self) -> Held:
        """See `ResultStore.held`."""
        with self.reading() as database:
            if not self._newest(database):
                raise StoreError(f"{self._path}: job and table have never met. Run the sink first")
            stored, what = self._stored(database), self._broken(database)
            is_other = self._known_topic(database).is_other(self._topic_identity)
            of_rows = None if is_other or what == self._rejected else {} if what else stored
            return Held(stored, of_rows, str(self._lost(what)) if what else "", is_other)

    def put(self, offsets: dict[int, int], decision: Decision) -> int:
        """See `ResultStore.put`; decisions are kept in the table `ratchet_sink_decisions`."""
        with self._writing() as database:
            database.execute(BOOK)
            generation, before = self._newest(database) + 1, self._stored(database)
            decision.require_seen(self._path, before)
            rules = (self._rule(database), rule_of(self._shape))
            database.execute(
                "INSERT OR REPLACE INTO ratchet_sink_jobs VALUES (?, ?, ?)", [self._table, self._name, generation]
            )
            database.execute(f"DELETE FROM ratchet_sink_offsets {OF_JOB}", self._key)  # noqa: S608
            self._move(database, offsets)
            database.execute(
                "INSERT INTO ratchet_sink_decisions VALUES (?, ?, ?, current_timestamp, ?)",
                [*self._key, decision.as_json(before, offsets, rules)],
            )
        return generation

    def columns(self) -> StructType | None:
        """See `ResultStore.columns`."""
        from pyspark.sql.pandas.types import from_arrow_schema

        with self.reading() as database:
            if not self._has(database, self._table):
                return None
            return from_arrow_schema(database.table(quoted(self._table)).limit(0).to_arrow_table().schema)

    def require_fits(self, schema: StructType) -> None:
        """See `ResultStore.require_fits`."""
        from pyspark.sql.pandas.types import to_arrow_schema

        with self.reading() as database:
            for table, wanted in ((self._table, schema), (self._rejected, self._rejects)):
                found = database.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = ?", [table]).fetchall()
                if wanted is not None and found:
                    self._require_columns(database, table, to_arrow_schema(wanted))

    def require_rule(self) -> None:
        """See `ResultStore.require_rule`."""
        with self.reading() as database:
            require_rule(self._path, self._name, self._rule(database), self._shape)

    def open(self, schema: StructType) -> dict[int, int]:
        """See `ResultStore.open`."""
        from pyspark.sql.pandas.types import to_arrow_schema

        self._make_folder()
        arrow = to_arrow_schema(schema)
        with self._writing() as database:
            database.execute(BOOK)
            self._require_sound(database)  # before a table that was dropped is made anew
            require_rule(self._path, self._name, self._rule(database), self._shape)
            self._create_table(database, self._table, arrow)
            if self._rejects is not None:
                self._create_table(database, self._rejected, to_arrow_schema(self._rejects))
            self._require_same_topic(database)
            generation, stored = self._newest(database) + 1, self._stored(database)
            database.execute(
                "INSERT OR REPLACE INTO ratchet_sink_jobs VALUES (?, ?, ?)", [self._table, self._name, generation]
            )
        self._remove_staged(before=generation)
        self._arrow, self._generation = arrow, generation
        return stored

    def commit(
        self, dataframe: DataFrame, start: dict[int, int], end: dict[int, int], rejects: DataFrame | None = None
    ) -> int:
        """See `ResultStore.commit`."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        generation = require_start(self._generation, start, end)
        if (rejects is None) != (self._rejects is None):
            raise ValueError("rejects go to a store that was made with rejects")
        with self.reading() as database:  # before the work, so that a fenced job writes no more files
            self._require_holder(database, generation, start)
        crash_points.passing("before-write")
        folder = self._path.with_name(f"{self._staging}{generation}-{uuid.uuid4().hex[:16]}")
        folder.mkdir(mode=0o700)
        try:
            deletes = DELETED in dataframe.columns
            arrow = self._arrow.append(pa.field(DELETED, pa.bool_())) if deletes else self._arrow
            written = write_files(dataframe, str(folder), arrow, stem(self._name, generation))
            brought = _Brought(folder, written, deletes)
            rejected = _Brought(folder, [])
            if rejects is not None:
                schema = to_arrow_schema(rejects.schema)
                rejected = _Brought(folder, write_files(rejects, str(folder), schema, stem(self._name, generation)))
            crash_points.passing("before-commit")
            self._commit(brought, rejected, generation, start, end)
        except Exception:
            if not self._is_committed(generation, end):
                raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        crash_points.passing("after-commit")
        return brought.rows

    def close(self) -> None:
        """See `ResultStore.close`. The file is open during a call only."""
        self._generation = None

    def _commit(
        self, brought: _Brought, rejected: _Brought, generation: int, start: Mapping[int, int], end: Mapping[int, int]
    ) -> None:
        with self._writing() as database:
            self._require_holder(database, generation, start)
            self._require_sound(database)
            if brought.files:
                database.register("brought", brought.dataset())
                self._add(database, deletes=brought.deletes)
                database.unregister("brought")
            if rejected.files:
                database.register("rejected", rejected.dataset())
                database.execute(f"INSERT INTO {quoted(self._rejected)} BY NAME SELECT * FROM rejected")  # noqa: S608
                database.unregister("rejected")
            self._move(database, end)
            crash_points.passing("in-commit")

    def _add(self, database: DuckDBPyConnection, *, deletes: bool) -> None:
        """Bring the rows of the view `brought` into the table. All names are quoted, and there are no values in it.

        deletes: the view has a column `DELETED`.
        """
        table = quoted(self._table)
        insert = f"INSERT INTO {table} BY NAME SELECT * FROM brought"  # noqa: S608
        if self._shape.kind == "append":
            database.execute(insert)
            return
        same = " AND ".join(f"held.{name} IS NOT DISTINCT FROM brought.{name}" for name in map(quoted, self._shape.key))
        if self._shape.kind == "upsert":
            database.execute(f"DELETE FROM {table} AS held USING brought WHERE {same}")  # noqa: S608
            kept = f"INSERT INTO {table} BY NAME SELECT * EXCLUDE ({DELETED}) FROM brought WHERE NOT {DELETED}"  # noqa: S608
            database.execute(kept if deletes else insert)
            return
        added = map(quoted, [COUNT_COLUMN, *self._shape.sums])
        changes = ", ".join(f"{name} = held.{name} + brought.{name}" for name in added)
        new = f"NOT EXISTS (SELECT 1 FROM {table} AS held WHERE {same})"  # noqa: S608
        database.execute(f"CREATE TEMP TABLE ratchet_new AS SELECT * FROM brought WHERE {new}")  # noqa: S608
        database.execute(f"UPDATE {table} AS held SET {changes} FROM brought WHERE {same}")  # noqa: S608
        database.execute(f"INSERT INTO {table} BY NAME SELECT * FROM ratchet_new")  # noqa: S608
        database.execute("DROP TABLE ratchet_new")

    # -- what is stored

    def _newest(self, database: DuckDBPyConnection) -> int:
        if not self._has_book(database):
            return 0
        found = database.execute(
            "SELECT generation FROM ratchet_sink_jobs WHERE result = ? AND job = ?", [self._table, self._name]
        ).fetchone()
        return int(found[0]) if found else 0

    def generations(self) -> dict[str, int]:
        """The newest holder of each job that writes to the result table."""
        with self.reading() as database:
            if not self._has_book(database):
                return {}
            found = database.execute("SELECT job, generation FROM ratchet_sink_jobs WHERE result = ?", [self._table])
            return dict(found.fetchall())

    def _stored(self, database: DuckDBPyConnection) -> dict[int, int]:
        return {partition: offset for partition, offset, _ in self._entries(database)}

    def _entries(self, database: DuckDBPyConnection) -> list[tuple[int, int, int]]:
        if not self._has_book(database):
            return []
        return database.execute(
            'SELECT "partition", next, identity FROM ratchet_sink_offsets '
            'WHERE result = ? AND job = ? AND topic = ? ORDER BY "partition"',
            [self._table, self._name, self._topic],
        ).fetchall()

    def _rule(self, database: DuckDBPyConnection) -> str:
        if not self._newest(database) or not self._has(database, "ratchet_sink_rules"):
            return ""
        found = database.execute(
            "SELECT rule FROM ratchet_sink_rules WHERE result = ? AND job = ?", [self._table, self._name]
        ).fetchall()
        return str(found[0][0]) if found else ""

    def _has_book(self, database: DuckDBPyConnection) -> bool:
        return self._has(database, "ratchet_sink_offsets")

    def _is_committed(self, generation: int, end: Mapping[int, int]) -> bool:
        """After an error, what the file itself says.

        Raises:
            Fenced: another job has taken over.
        """
        try:
            with self.reading() as database:
                self._require_holder(database, generation, None)
                return self._stored(database).items() >= end.items()
        except StoreError:
            return False  # what happened first is the better sentence

    def _require_holder(self, database: DuckDBPyConnection, generation: int, start: Mapping[int, int] | None) -> None:
        newest, stored = self._newest(database), self._stored(database)
        require_holder(self._name, self._topic, self._path, generation, newest, stored, start)

    def _require_same_topic(self, database: DuckDBPyConnection) -> None:
        known = self._known_topic(database)
        if known.is_other(self._topic_identity):
            raise other_topic(self._topic, self._path, self._stored(database), known, self._topic_identity)

    def _known_topic(self, database: DuckDBPyConnection) -> StoredId:
        first_bits = max((identity for _, _, identity in self._entries(database)), default=0)
        found: list[tuple[str]] = []
        if self._has(database, "ratchet_sink_marks"):
            found = database.execute(f"SELECT topic_id FROM ratchet_sink_marks {OF_JOB}", self._key).fetchall()  # noqa: S608
        return StoredId(max((text for (text,) in found), default=""), first_bits)

    # -- whether the tables are those that the offsets belong to

    @property
    def _key(self) -> list[str]:
        return [self._table, self._name, self._topic]

    @property
    def _relations(self) -> list[str]:
        return [self._table, *([] if self._rejects is None else [self._rejected])]

    def _move(self, database: DuckDBPyConnection, end: Mapping[int, int]) -> None:
        """Store these offsets, which tables they belong to, and by which rule rows came there."""
        rule = [self._table, self._name, rule_of(self._shape)]
        database.execute("INSERT OR REPLACE INTO ratchet_sink_rules VALUES (?, ?, ?)", rule)
        for partition, offset in end.items():
            database.execute(
                "INSERT OR REPLACE INTO ratchet_sink_offsets VALUES (?, ?, ?, ?, ?, ?)",
                [*self._key, partition, offset, topic_ids.first_bits(self._topic_identity)],
            )
        for relation in self._relations:
            database.execute(
                "INSERT OR REPLACE INTO ratchet_sink_marks VALUES (?, ?, ?, ?, ?, ?)",
                [*self._key, relation, topic_ids.text(self._topic_identity), self._is_filled(database, relation)],
            )

    def _broken(self, database: DuckDBPyConnection) -> str:
        """The table that is empty or gone and was not; empty: none."""
        if not self._stored(database):
            return ""
        marks: dict[str, bool] = {}
        if self._has(database, "ratchet_sink_marks"):
            select = f"SELECT relation, filled FROM ratchet_sink_marks {OF_JOB}"  # noqa: S608
            marks = dict(database.execute(select, self._key).fetchall())
        filled = {relation for relation, is_filled in marks.items() if is_filled}
        if self._table not in marks and not self._has(database, self._table):
            filled.add(self._table)  # an earlier version has left no mark, and made the table before any offset
        return next((name for name in self._relations if name in filled and not self._is_filled(database, name)), "")

    def _lost(self, relation: str) -> RowsLost:
        what = f"table {relation} was dropped, or all its rows were removed"
        return rows_lost(self._path, what, relation == self._table)

    def _require_sound(self, database: DuckDBPyConnection) -> None:
        """Raise `RowsLost` where a table has been emptied or dropped since the offsets were committed."""
        what = self._broken(database)
        if what:
            raise self._lost(what)

    def _is_filled(self, database: DuckDBPyConnection, relation: str) -> bool:
        if not self._has(database, relation):
            return False
        return bool(database.execute(f"SELECT 1 FROM {quoted(relation)} LIMIT 1").fetchall())  # noqa: S608

    def _has(self, database: DuckDBPyConnection, relation: str) -> bool:
        return bool(database.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = ?", [relation]).fetchall())

    # -- tables and the file

    def _create_table(self, database: DuckDBPyConnection, table: str, schema: pa.Schema) -> None:
        database.register("wanted", schema.empty_table())
        create = f"CREATE TABLE IF NOT EXISTS {quoted(table)} AS SELECT * FROM wanted LIMIT 0"  # noqa: S608
        database.execute(create)
        database.unregister("wanted")
        self._require_columns(database, table, schema)

    def _require_columns(self, database: DuckDBPyConnection, table: str, schema: pa.Schema) -> None:
        database.register("wanted", schema.empty_table())
        expected = _described(database, "wanted")
        present = _described(database, quoted(table))
        database.unregister("wanted")
        require_columns(self._path, present, expected, table)

    @contextmanager
    def _writing(self) -> Iterator[DuckDBPyConnection]:
        """The file in one transaction, which commits unless something is raised."""
        import duckdb

        try:
            with self._connect(read_only=False) as database:
                database.begin()
                yield database
                database.commit()
        except duckdb.Error as error:
            self._refuse(error)

    @contextmanager
    def reading(self) -> Iterator[DuckDBPyConnection]:
        """The file as it is; an empty database where there is none."""
        import duckdb

        try:
            with self._connect(read_only=True) if self._path.exists() else duckdb.connect() as database:
                yield database
        except duckdb.Error as error:
            self._refuse(error)

    def _connect(self, *, read_only: bool) -> DuckDBPyConnection:
        """Wait for a process that has the file open now: holders have it during a commit only."""
        import duckdb

        deadline = time.monotonic() + LOCK_PATIENCE_S
        while True:
            try:
                return duckdb.connect(str(self._path), read_only=read_only, config=CONFIG)
            except duckdb.IOException as error:
                if "lock" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(LOCK_PAUSE_S)

    def _make_folder(self) -> None:
        if self._path.is_dir():
            raise StoreError(f"{self._path} is a folder, not a DuckDB file. Choose another path")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{self._path}: its folder cannot be made ({error.strerror}). Choose another") from None

    def _remove_staged(self, before: int) -> None:
        """Remove what holders before this one have left. One that still lives is fenced, whatever it finds."""
        for folder in self._path.parent.iterdir():
            if folder.name.startswith(self._staging):
                generation = folder.name.removeprefix(self._staging).partition("-")[0]
                if generation.isdecimal() and int(generation) < before:
                    shutil.rmtree(folder, ignore_errors=True)

    def _refuse(self, error: Exception) -> NoReturn:
        raise StoreError(
            f"{self._path}: {first_line(error)}. Look at the file and its rights, then run again"
        ) from None


@dataclass(frozen=True)
class _Brought:
    """Rows on their way, as the tasks wrote them."""

    folder: Path
    written: list[tuple[str, int, int]]
    deletes: bool = False
    """Whether they have a column `DELETED`."""

    @property
    def rows(self) -> int:
        return sum(rows for _, rows, _ in self.written)

    @property
    def files(self) -> list[str]:
        return [str(self.folder / name) for name, _, _ in self.written]

    def dataset(self) -> Any:
        """For DuckDB to scan. As an object, because a path in SQL would be read as a pattern."""
        import pyarrow.dataset as ds

        return ds.dataset(self.files, format="parquet")


def read_duckdb(path: str, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Those columns of a table, in no order.

    Raises:
        StoreError: there is no such table, or it cannot be read.
    """
    store = DuckDBStore(path, table, "reader", "none")
    with store.reading() as database:
        names = ", ".join(map(quoted, columns))
        found: list[tuple[Any, ...]] = database.execute(f"SELECT {names} FROM {quoted(table)}").fetchall()  # noqa: S608
    return found


def staging_prefix(path: Path, table: str, job: str) -> str:
    """How folders with a job's rows on their way begin, beside the database; its holder's generation comes next."""
    digest = hashlib.sha256(f"{table}\0{job}".encode()).hexdigest()[:12]
    return f".{path.name}.{digest}.staged-"


def _described(database: DuckDBPyConnection, relation: str) -> dict[str, str]:
    found = database.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()  # noqa: S608
    return {str(column): str(data_type) for column, data_type, *_ in found}


def quoted(name: str) -> str:
    """A name as DuckDB's SQL writes it, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'
