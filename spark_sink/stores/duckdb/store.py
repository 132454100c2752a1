"""Results in one DuckDB file on the driver's machine.

Tasks write Parquet files next to the database; the driver reads them, and changes rows, offsets and generation in one
transaction. The file is open during a call only, so that other processes can read it between calls.
"""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import OptionRefused, StoreError
from kafka_ratchet.spark_sink.extras import require_package
from kafka_ratchet.spark_sink.files.local import LocalFolder
from kafka_ratchet.spark_sink.files.parquet import WrittenFile, file_prefix, write_files
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.distinct import HASHES
from kafka_ratchet.spark_sink.rows.write_mode import APPEND, WriteMode
from kafka_ratchet.spark_sink.spark.dialect import arrow_schema
from kafka_ratchet.spark_sink.stores.decision import Decision, Replacement
from kafka_ratchet.spark_sink.stores.duckdb.file import DatabaseFile, has_table, quoted, same_key
from kafka_ratchet.spark_sink.stores.duckdb.job_state import TABLES, JobState
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.merge_sql import PlainDialect, changes
from kafka_ratchet.spark_sink.stores.orphans import Orphan
from kafka_ratchet.spark_sink.stores.sequence_files import SequenceFiles
from kafka_ratchet.spark_sink.stores.sql_store import SqlStore
from kafka_ratchet.spark_sink.stores.stored_write_mode import write_mode_text


def staging_prefix(path: Path, table: str, job: str) -> str:
    """Return the name prefix of folders for a job's staged rows; the generation follows it."""
    digest = hashlib.sha256(f"{table}\0{job}".encode()).hexdigest()[:12]
    return f".{path.name}.{digest}.staged-"


def orphan_folders(path: Path, table: str, staged: list[str], generations: Mapping[str, int]) -> Iterator[Orphan]:
    """List staging folders of fenced jobs, see `TableStore.orphans`.

    Args:
        path: the database file.
        table: the result table.
        staged: names of the folders next to the file, listed before `generations` was read.
        generations: newest generation of each job.
    """
    beside = LocalFolder(path.parent)
    for job, newest in generations.items():
        prefix = staging_prefix(path, table, job)
        for name in staged:
            generation = name.removeprefix(prefix).partition("-")[0]
            if name.startswith(prefix) and generation.isdecimal() and int(generation) < newest:
                files = beside.files(name)
                modified_s = max((file.modified_s for file in files), default=0.0)
                remove = partial(shutil.rmtree, path.parent / name)
                yield Orphan(name, sum(file.bytes for file in files), modified_s, remove)


if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from kafka_ratchet.spark_sink.rows.judging.task import Known


class _Dialect(PlainDialect):
    union = f"list_sort(list_distinct(list_concat({{target}}, {{source}})))[1:{HASHES}]"
    size = "len({hashes})"
    last = f"({{hashes}})[{HASHES}]"


def add(
    database: DuckDBPyConnection, table_name: str, write_mode: WriteMode, *, deletes: bool, columns: Sequence[str] = ()
) -> int:
    """Write the rows of the view `source` into the table.

    All names in the SQL are quoted, and it contains no values.

    Args:
        database: connection in the commit's transaction.
        table_name: the table.
        write_mode: effect of the rows on the table.
        deletes: True if the view has a column `DELETED`.
        columns: columns of the rows, if the table has further columns; the values in these stay. Empty: the table has
            no further columns.

    Returns:
        Number of inserted and updated rows, as DuckDB counts them.
    """
    table = quoted(table_name)
    insert = f"INSERT INTO {table} BY NAME SELECT * FROM source"  # noqa: S608
    if write_mode.kind == "append":
        return changed_rows(database, insert)
    same = same_key(database, "source", write_mode.row_key)
    if write_mode.kind == "upsert" and columns:
        return _merged(database, table, write_mode.row_key, same, columns, deletes=deletes)
    if write_mode.kind == "upsert":
        database.execute(f"DELETE FROM {table} AS target USING source WHERE {same}")  # noqa: S608
        kept = f"INSERT INTO {table} BY NAME SELECT * EXCLUDE ({DELETED}) FROM source WHERE NOT {DELETED}"  # noqa: S608
        return changed_rows(database, kept if deletes else insert)
    new_values = ", ".join(f"{quoted(name)} = {value}" for name, value in changes(write_mode, _Dialect()).items())
    new = f"NOT EXISTS (SELECT 1 FROM {table} AS target WHERE {same})"  # noqa: S608
    database.execute(f"CREATE TEMP TABLE ratchet_new AS SELECT * FROM source WHERE {new}")  # noqa: S608
    update = f"UPDATE {table} AS target SET {new_values} FROM source WHERE {same}"  # noqa: S608
    changed = changed_rows(database, update)
    changed += changed_rows(database, f"INSERT INTO {table} BY NAME SELECT * FROM ratchet_new")  # noqa: S608
    database.execute("DROP TABLE ratchet_new")
    return changed


def _merged(
    database: DuckDBPyConnection, table: str, key: Sequence[str], same: str, columns: Sequence[str], *, deletes: bool
) -> int:
    """Update rows column by column, so that other jobs' columns keep their values."""
    if deletes:
        database.execute(f"DELETE FROM {table} AS target USING source WHERE {same} AND source.{DELETED}")  # noqa: S608
    kept = f" AND NOT source.{DELETED}" if deletes else ""
    names = ", ".join(map(quoted, columns))
    new = f"NOT EXISTS (SELECT 1 FROM {table} AS target WHERE {same}){kept}"  # noqa: S608
    database.execute(f"CREATE TEMP TABLE ratchet_new AS SELECT {names} FROM source WHERE {new}")  # noqa: S608
    # Without the key: DuckDB removes and adds a row if a column with an index changes.
    values = ", ".join(f"{name} = source.{name}" for name in map(quoted, columns) if name not in map(quoted, key))
    update = f"UPDATE {table} AS target SET {values} FROM source WHERE {same}{kept}"  # noqa: S608
    changed = changed_rows(database, update)
    changed += changed_rows(database, f"INSERT INTO {table} BY NAME SELECT * FROM ratchet_new")  # noqa: S608
    database.execute("DROP TABLE ratchet_new")
    return changed


def changed_rows(database: DuckDBPyConnection, statement: str) -> int:
    """Execute a statement, and return the number of rows that it changed."""
    [(count,)] = database.execute(statement).fetchall()
    return int(count)


@dataclass(frozen=True)
class _Staged:
    """Rows for a coming commit, in files that tasks wrote; or the number of a sequence manifest."""

    target: str
    """Table that the rows are added to; empty for a manifest."""
    folder: Path | None = None
    written: Sequence[WrittenFile] = ()
    deletes: bool = False
    """True if the rows have a column `DELETED`."""
    manifest: int = 0
    """Number of the sequence manifest; 0: these are rows."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.written)

    def kept(self, rows: Any) -> int:
        """Return the number of rows in a dataset of the files, without deletions."""
        import pyarrow.dataset as ds

        return self.rows if not self.deletes else int(rows.count_rows(filter=~ds.field(DELETED)))

    @property
    def files(self) -> list[str]:
        return [] if self.folder is None else [str(self.folder / file.name) for file in self.written]

    def dataset(self) -> Any:
        """Return a dataset of the files, for DuckDB to scan.

        DuckDB would interpret a path in SQL as a pattern.
        """
        import pyarrow.dataset as ds

        return ds.dataset(self.files, format="parquet")


class DuckDBStore(SqlStore["DuckDBPyConnection", "pa.Schema", _Staged]):
    """Result store in one table of a DuckDB file on a disk of this machine.

    Network disks are unsuitable: DuckDB relies on file locks, which such disks do not keep.
    """

    all_totals = True
    keeps_sequences = True
    evolves = True
    needs_local_master = "store duckdb keeps its results in one file on the driver's machine"

    def _prepare(self, location: TableLocation) -> None:
        require_package("duckdb", "store duckdb needs duckdb")
        path, table = location.path, location.table
        if not table or "\0" in table:
            raise OptionRefused(f"table {table!r}: a table's name must not be empty or contain NUL. Choose another")
        if "://" in path or path.startswith(":") or "\0" in path:
            raise OptionRefused(f"path {path!r}: a DuckDB result is a file on this machine. Give the path of a file")
        self._where = self._path = Path(path).absolute()
        self._file = DatabaseFile(self._path)
        self._staged_prefix = staging_prefix(self._path, table, self._name)
        self._result, self._rejected = table, f"{table}_rejects"
        self._state: JobState = JobState(table, self._name, self._topic, self._topic_id, self._relations)
        self._state.marks.cleared = self._rejected
        self._columns: pa.Schema = None
        self._sequence_files: SequenceFiles | None = None
        if self._write_mode.judged is not None:
            beside = LocalFolder(self._path.with_name(f"{self._path.name}_sequences"))
            of_table = hashlib.sha256(table.encode()).hexdigest()[:12]  # its name may have any character
            self._sequence_files = SequenceFiles(beside, (of_table,), self._name, self._write_mode.judged)

    def _reading(self) -> AbstractContextManager[DuckDBPyConnection]:
        return self._file.reading()

    def offsets(self) -> dict[int, int]:
        stored = super().offsets()
        if not self.judges:
            return stored
        self.require_write_mode()
        return self._with_sequences()

    def require_sequences(self) -> None:
        """See `JudgingStore`."""
        self._with_sequences()

    def _with_sequences(self) -> dict[int, int]:
        """Check the last sequences against the stored offsets, and return these offsets."""
        with self._reading() as database:
            stored, number = self._state.stored(database), self._state.sequences(database)
            if self._sequence_files is not None:
                self._sequence_files.require(number, stored)
        return stored

    def known_sequences(self) -> Known | None:
        """See `JudgingStore`."""
        return None if self._sequence_files is None else self._sequence_files.known()

    def scan(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with self._reading() as database:
            # All at once: while the file is open no job can commit to it.
            whole = database.sql(self._select(schema.names)).to_arrow_table()
        yield from whole.to_batches()

    def orphans(self, *, needed: bool = True) -> Iterator[Orphan]:
        if not self._path.is_file():
            raise StoreError(f"{self._path}: there is no result file. Check the path")
        staged = LocalFolder(self._path.parent).folders()
        with self._reading() as database:
            generations = self._state.generations(database)
        yield from orphan_folders(self._path, self._result, staged, generations)

    def reset_offsets(self, offsets: dict[int, int], decision: Decision) -> int:
        """Store an operator's offsets as a new generation, and the decision in `ratchet_sink_decisions`.

        Returns:
            The new generation.
        """
        with self._file.writing() as database:
            database.execute(TABLES)
            write_mode = write_mode_text(self._write_mode)
            generation = self._state.reset(database, self._path, offsets, decision, write_mode)
        return generation

    def columns(self) -> StructType | None:
        from pyspark.sql.pandas.types import from_arrow_schema

        with self._reading() as database:
            if not has_table(database, self._result):
                return None
            found = database.table(quoted(self._result)).limit(0).to_arrow_table().schema
            return from_arrow_schema(found, prefer_timestamp_ntz=True)

    def open(self, schema: StructType) -> dict[int, int]:

        tables = self._wanted(schema)
        self._file.make_folder()
        with self._file.writing() as database:
            database.execute(TABLES)
            self._require_consistent(database)  # before a dropped table is created again
            self._require_write_mode(database)
            for table, columns in tables.items():
                self._file.create_table(database, table, columns)
                self._require_columns(database, table, columns)
            self._require_same_topic(database)
            stored = self._state.stored(database)
            if self._sequence_files is not None:
                self._sequence_files.open(self._state.sequences(database), stored)
            generation = self._state.take_over(database)
            if self._evolve:
                self._file.add_columns(database, self._result, tables[self._result])
        self._remove_staged(before=generation)
        self._columns, self._generation = tables[self._result], generation
        return stored

    def _columns_of(self, schema: StructType) -> pa.Schema:
        return arrow_schema(schema)

    def _require_columns(self, database: DuckDBPyConnection, table: str, columns: pa.Schema) -> None:
        if not has_table(database, table):
            return
        if table == self._evolving:
            self._file.missing_columns(database, table, columns)
        else:
            self._file.require_columns(database, table, columns)

    def _require_types(self, database: DuckDBPyConnection) -> None:
        for table in self._relations:
            self._file.require_types(database, table, self._columns_at(table))

    def _in_transaction(self, generation: int, change: Callable[[DuckDBPyConnection], None]) -> None:
        with self._file.writing() as database:
            change(database)

    def _stage(self, generation: int, table: str, dataframe: DataFrame) -> _Staged:
        return self._stage_in(generation, table, self._columns_at(table), dataframe)

    def _stage_in(self, generation: int, table: str, columns: pa.Schema, dataframe: DataFrame) -> _Staged:
        """Write rows with these columns into files of a new folder, in Spark's tasks."""
        import pyarrow as pa

        folder = self._path.with_name(f"{self._staged_prefix}{generation}-{uuid.uuid4().hex[:16]}")
        folder.mkdir(mode=0o700)
        deletes = DELETED in dataframe.columns
        arrow = columns.append(pa.field(DELETED, pa.bool_())) if deletes else columns
        try:
            written = write_files(dataframe, str(folder), arrow, file_prefix(self._name, generation))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return _Staged(table, folder, written, deletes)

    def _stage_sequences(self, generation: int, sequences: DataFrame, end: Mapping[int, int]) -> list[_Staged]:
        if self._sequence_files is None:
            return []
        return [_Staged("", manifest=self._sequence_files.stage(sequences, generation, end))]

    def _stage_replacement(self, generation: int, table: str, replacement: Replacement) -> _Staged:
        columns = self._columns if table == self._result else arrow_schema(replacement.rows.schema)
        staged = self._stage_in(generation, table, columns, replacement.rows)
        try:
            replacement.require_staged(self._where, staged.rows)
        except StoreError:
            self._discard([staged], is_committed=False)
            raise
        return staged

    def _move(self, database: DuckDBPyConnection, staged: _Staged) -> None:
        if staged.manifest:
            self._state.move_sequences(database, staged.manifest)
        if not staged.files:
            return
        rows, table = staged.dataset(), staged.target
        database.register("source", rows)
        columns: Sequence[str] = ()
        if table == self._result and self._file.foreign_columns(database, table, self._columns):
            columns = self._columns.names
        write_mode = self._write_mode if table == self._result else APPEND
        stored = add(database, table, write_mode, deletes=staged.deletes, columns=columns)
        self._require_stored(table, staged.kept(rows), stored)
        database.unregister("source")

    def _replace(self, database: DuckDBPyConnection, replacement: Replacement, staged: _Staged) -> None:
        table = staged.target
        if replacement.gone.num_rows:
            database.register("gone", replacement.gone)
            same = same_key(database, "gone", replacement.identity)
            database.execute(f"DELETE FROM {quoted(table)} AS target USING gone WHERE {same}")  # noqa: S608
            database.unregister("gone")
        if staged.files:
            database.register("source", staged.dataset())
            insert = f"INSERT INTO {quoted(table)} BY NAME SELECT * FROM source"  # noqa: S608
            self._require_stored(table, staged.rows, changed_rows(database, insert))
            database.unregister("source")

    def _discard(self, staged: Sequence[_Staged], *, is_committed: bool) -> None:
        for each in staged:
            if each.folder is not None:
                shutil.rmtree(each.folder, ignore_errors=True)
        if is_committed and self._sequence_files is not None and any(each.manifest for each in staged):
            self._sequence_files.adopt_staged()

    def _require_stored(self, table: str, given: int, stored: int) -> None:
        if stored != given:
            raise StoreError(
                f"{self._path}: table {table} stored {stored} rows instead of {given}. Nothing was added and no offset "
                "moved. Look for keys with several rows in the table, then run the job again"
            )

    def _remove_staged(self, before: int) -> None:
        """Remove staging folders of generations older than `before`: their jobs are fenced and cannot commit them."""
        for folder in self._path.parent.iterdir():
            if folder.name.startswith(self._staged_prefix):
                generation = folder.name.removeprefix(self._staged_prefix).partition("-")[0]
                if generation.isdecimal() and int(generation) < before:
                    shutil.rmtree(folder, ignore_errors=True)
