"""Results in one DuckDB file on the driver's machine.

Tasks write Parquet files next to the database; the driver reads them, and changes rows, offsets and generation in one
transaction. The file is open during a call only, so that other processes can read it between calls.
"""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
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
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.spark.dialect import arrow_schema
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.decision import Decision, RepairNote, Replacement
from kafka_ratchet.spark_sink.stores.duckdb.file import DatabaseFile, Interrupted, has_table, quoted
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
    from duckdb import DuckDBPyConnection


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
        columns: columns of the rows, if the table has further columns, which keep their values; empty: it has none.

    Returns:
        Number of inserted and updated rows, as DuckDB counts them.
    """
    table = quoted(table_name)
    insert = f"INSERT INTO {table} BY NAME SELECT * FROM source"  # noqa: S608
    if write_mode.kind == "append":
        return changed_rows(database, insert)
    same = " AND ".join(f"target.{name} IS NOT DISTINCT FROM source.{name}" for name in map(quoted, write_mode.row_key))
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


if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from kafka_ratchet.spark_sink.rows.judging.task import Known


class DuckDBStore(SqlStore["DuckDBPyConnection", "pa.Schema"]):
    """Result store in one table of a DuckDB file on a disk of this machine.

    Network disks are unsuitable, because DuckDB relies on file locks that they do not keep.
    """

    all_totals = True
    keeps_sequences = True
    evolves = True
    needs_local_master = "store duckdb keeps its results in one file on the driver's machine"

    def _prepare(self, location: TableLocation) -> None:
        require_package("duckdb", "store duckdb needs duckdb")
        path, table = location.path, location.table
        if not table or "\0" in table:
            raise OptionRefused(f"table {table!r} contains a NUL character. Choose a name without it")
        if "://" in path or path.startswith(":") or "\0" in path:
            raise OptionRefused(f"path {path!r}: a DuckDB result is a file on this machine. Give the path of a file")
        self._where = self._path = Path(path).absolute()
        self._file = DatabaseFile(self._path)
        self._staging = staging_prefix(self._path, table, self._name)
        self._result, self._rejected = table, f"{table}_rejects"
        self._state: JobState = JobState(table, self._name, self._topic, self._topic_id, self._relations)
        self._state.marks.cleared = self._rejected
        self._arrow: Any = None
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
            return from_arrow_schema(found, prefer_timestamp_ntz=False)

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
        self._arrow, self._generation = tables[self._result], generation
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

    def commit(
        self,
        dataframe: DataFrame,
        start: dict[int, int],
        end: dict[int, int],
        rejects: DataFrame | None = None,
        sequences: DataFrame | None = None,
    ) -> int:
        import pyarrow as pa

        generation = self._require_commit(start, end, rejects, sequences)
        with self._reading() as database:  # before the work, so that a fenced job writes no more files
            self._require_holder(database, generation, start)
        crash_points.passing("before-write")
        folder = self._path.with_name(f"{self._staging}{generation}-{uuid.uuid4().hex[:16]}")
        folder.mkdir(mode=0o700)
        try:
            deletes = DELETED in dataframe.columns
            arrow = self._arrow.append(pa.field(DELETED, pa.bool_())) if deletes else self._arrow
            written = write_files(dataframe, str(folder), arrow, file_prefix(self._name, generation))
            staged = _Staged(folder, written, deletes)
            rejected = _Staged(folder, [])
            if rejects is not None:
                schema = arrow_schema(rejects.schema)
                rejected = _Staged(
                    folder, write_files(rejects, str(folder), schema, file_prefix(self._name, generation))
                )
            number = 0
            if sequences is not None and self._sequence_files is not None:
                crash_points.passing("before-sequences")
                number = self._sequence_files.stage(sequences, generation, end)
            crash_points.passing("before-commit")
            self._bring_in(staged, rejected, generation, start, end, number)
        except Interrupted:
            raise  # committed or not: the sender of the signal wants an end
        except Exception as failure:
            try:
                is_committed = self._is_committed(generation, end)
            except StoreError:
                raise failure from None  # the first error makes the better sentence
            if not is_committed:
                raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if self._sequence_files is not None:
            self._sequence_files.adopt_staged()
        crash_points.passing("after-commit")
        return staged.rows

    def replace(
        self, dataframe: DataFrame, first: dict[int, int], last: dict[int, int], rejects: DataFrame | None = None
    ) -> int:
        generation = self._require_open()
        with self._reading() as database:
            self._require_holder(database, generation, None)
        crash_points.passing("before-write")
        folder = self._path.with_name(f"{self._staging}{generation}-{uuid.uuid4().hex[:16]}")
        folder.mkdir(mode=0o700)
        try:
            prefix = file_prefix(self._name, generation)
            staged = _Staged(folder, write_files(dataframe, str(folder), self._arrow, prefix))
            rejected = _Staged(folder, [])
            if rejects is not None:
                rejected = _Staged(folder, write_files(rejects, str(folder), arrow_schema(rejects.schema), prefix))
            crash_points.passing("before-commit")
            with self._file.writing() as database:
                self._require_holder(database, generation, None)
                self._require_consistent(database)
                for table in self._relations:
                    self._state.remove_records(database, table, first, last)
                self._add_staged(database, staged, rejected)
                self._state.marks.note(database)
                crash_points.passing("in-commit")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        crash_points.passing("after-commit")
        return staged.rows

    def repair(
        self, rows: Replacement | None, rejects: Replacement | None, start: Mapping[int, int], note: RepairNote
    ) -> None:
        generation = self._require_open()
        with self._reading() as database:  # before the work, so that a fenced repair writes no files
            self._require_holder(database, generation, start)
        crash_points.passing("before-write")
        folder = self._path.with_name(f"{self._staging}{generation}-{uuid.uuid4().hex[:16]}")
        folder.mkdir(mode=0o700)
        try:
            staged = []
            for table, replacement in self._replaced(rows, rejects):
                arrow = self._arrow if table == self._result else arrow_schema(replacement.rows.schema)
                prefix = file_prefix(self._name, generation)
                found = _Staged(folder, write_files(replacement.rows, str(folder), arrow, prefix))
                replacement.require_staged(self._where, found.rows)
                staged.append((table, replacement, found))
            crash_points.passing("before-commit")
            with self._file.writing() as database:
                self._require_holder(database, generation, start)
                self._require_consistent(database)
                self._file.require_types(database, self._result, self._arrow)
                for table, replacement, found in staged:
                    self._replace(database, table, replacement, found)
                    crash_points.passing("replaced")
                self._state.note_repair(database, note)
                crash_points.passing("in-commit")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        crash_points.passing("after-commit")

    def _replace(self, database: DuckDBPyConnection, table: str, replacement: Replacement, staged: _Staged) -> None:
        """Delete the rows with the replacement's identities, and insert the staged rows."""
        if replacement.gone.num_rows:
            names = map(quoted, replacement.identity)
            same = " AND ".join(f"target.{name} IS NOT DISTINCT FROM gone.{name}" for name in names)
            database.register("gone", replacement.gone)
            database.execute(f"DELETE FROM {quoted(table)} AS target USING gone WHERE {same}")  # noqa: S608
            database.unregister("gone")
        if staged.files:
            database.register("source", staged.dataset())
            insert = f"INSERT INTO {quoted(table)} BY NAME SELECT * FROM source"  # noqa: S608
            self._require_stored(table, staged.rows, changed_rows(database, insert))
            database.unregister("source")

    def _bring_in(
        self,
        staged: _Staged,
        rejected: _Staged,
        generation: int,
        start: Mapping[int, int],
        end: Mapping[int, int],
        sequences: int,
    ) -> None:
        with self._file.writing() as database:
            self._require_holder(database, generation, start)
            self._require_consistent(database)
            self._add_staged(database, staged, rejected)
            self._state.commit(database, end, write_mode_text(self._write_mode))
            if sequences:
                self._state.move_sequences(database, sequences)
            crash_points.passing("in-commit")

    def _add_staged(self, database: DuckDBPyConnection, staged: _Staged, rejected: _Staged) -> None:
        """Add staged rows and rejects to their tables, in the caller's transaction."""
        self._file.require_types(database, self._result, self._arrow)
        if self._rejects is not None:
            self._file.require_types(database, self._rejected, arrow_schema(self._rejects))
        if staged.files:
            rows = staged.dataset()
            database.register("source", rows)
            foreign = self._file.foreign_columns(database, self._result, self._arrow)
            columns = self._arrow.names if foreign else ()
            stored = add(database, self._result, self._write_mode, deletes=staged.deletes, columns=columns)
            self._require_stored(self._result, staged.kept(rows), stored)
            database.unregister("source")
        if rejected.files:
            database.register("rejected", rejected.dataset())
            insert = f"INSERT INTO {quoted(self._rejected)} BY NAME SELECT * FROM rejected"  # noqa: S608
            self._require_stored(self._rejected, rejected.rows, changed_rows(database, insert))
            database.unregister("rejected")

    def _require_stored(self, table: str, given: int, stored: int) -> None:
        if stored != given:
            raise StoreError(
                f"{self._path}: {table} has stored {stored} of {given} rows. Nothing was added and no offset moved. "
                "Look for keys with several rows in the table, then run the job again"
            )

    def _remove_staged(self, before: int) -> None:
        """Remove staging folders of older generations. A job of such a generation is fenced, and cannot commit them."""
        for folder in self._path.parent.iterdir():
            if folder.name.startswith(self._staging):
                generation = folder.name.removeprefix(self._staging).partition("-")[0]
                if generation.isdecimal() and int(generation) < before:
                    shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class _Staged:
    """Files of rows that the tasks wrote for a coming commit."""

    folder: Path
    written: list[WrittenFile]
    deletes: bool = False
    """True if the rows have a column `DELETED`."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.written)

    def kept(self, rows: Any) -> int:
        """Return the number of rows in a dataset that go into the table."""
        import pyarrow.dataset as ds

        return self.rows if not self.deletes else int(rows.count_rows(filter=~ds.field(DELETED)))

    @property
    def files(self) -> list[str]:
        return [str(self.folder / file.name) for file in self.written]

    def dataset(self) -> Any:
        """Return a dataset of the files, for DuckDB to scan.

        DuckDB would interpret a path in SQL as a pattern.
        """
        import pyarrow.dataset as ds

        return ds.dataset(self.files, format="parquet")
