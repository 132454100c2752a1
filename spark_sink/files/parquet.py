"""Parquet files written in the executors: each task writes its rows to one file, and reports the file."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka_ratchet.spark_sink.errors import StoreError, refuse_rule
from kafka_ratchet.spark_sink.files.statistics import INDEXED, statistics_maker
from kafka_ratchet.spark_sink.spark.python_worker import Task, map_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

WRITTEN = "file string, rows long, bytes long, partition string, statistics string"
"""Columns of a task's report about a file, with the partition as JSON. A task without rows writes and reports
nothing."""

HOURS = {"day": 24, "hour": 1}

Values = tuple[str | int | bool | None, ...]
"""Values of a partition, field by field. Days and dates are numbers of days since 1970, hours are numbers of hours."""

NO_FOLDER = -1
"""Row count in the report of a task that does not find the folder. `file` is then the name of the task's machine."""

NULL_GIVEN = -2
"""Row count in the report of a task that found a null in a column NOT NULL. `file` is then that column."""

ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Uncompressed bytes that a task gathers before it writes a row group. Large row groups compress and scan better, and
Spark itself takes far more memory per task."""

REMEDY = (
    "Driver and executors must share the folder: mount it on all machines, run Spark on one machine "
    "(--master local[*]), or choose store postgres"
)


FILE_NAME = re.compile(r"part-(?P<job>[a-z][a-z0-9_-]{0,62})\.(?P<generation>\d{1,18})-[0-9a-f]{32}\.zstd\.parquet")
"""Pattern of a file's name, with job and generation of the writing run. Once a newer run has taken over, no file of an
older generation can be committed; see `stores.vacuum`."""


class WrittenFile(NamedTuple):
    """File that a task has written."""

    name: str
    rows: int
    bytes: int
    statistics: str = ""
    """Statistics of the file as JSON, see module `statistics`; empty: unknown."""


def file_prefix(job: str, generation: int) -> str:
    """Return the start of the file names of one job run; see `FILE_NAME`."""
    return f"part-{job}.{generation}"


def write_files(
    dataframe: DataFrame, folder: str, schema: Any, file_prefix: str, filesystem: Any = None
) -> list[WrittenFile]:
    """Write the rows into new files of a folder that driver and executors share.

    Only files in the tasks' reports count as written: killed, retried or speculative attempts use other names, and the
    driver gets no report of them.

    Args:
        dataframe: the rows.
        folder: absolute path of an existing folder, or a folder of `filesystem`.
        schema: `pyarrow.Schema` of the files; the rows are converted to its types.
        file_prefix: start of the file names, from the function `file_prefix`.
        filesystem: pyarrow's; None: the local one.

    Returns:
        The new files.

    Raises:
        StoreError: executors and driver see different folders.
        RuleBroken: a row has null in a column declared NOT NULL.
    """
    return [file for file, _ in _written(dataframe, folder, schema, file_prefix, filesystem, ())]


def write_partitioned_files(
    dataframe: DataFrame,
    folder: str,
    schema: Any,
    file_prefix: str,
    filesystem: Any,
    fields: Sequence[tuple[str, str]],
    left_out: Sequence[str] = (),
    *,
    sorted_by: Sequence[str | Column] = (),
    row_group_rows: int | None = None,
) -> list[tuple[WrittenFile, Values]]:
    """Write one file for each task and table partition, like `write_files`.

    The rows are sorted by partition within each task, so that a task has only one file open at a time.

    Args:
        dataframe: as in `write_files`.
        folder: as in `write_files`.
        schema: as in `write_files`.
        file_prefix: as in `write_files`.
        filesystem: as in `write_files`.
        fields: partition columns, each with its unit "day", "hour" or "".
        left_out: columns that the files omit.
        sorted_by: columns or expressions that the rows of a file are sorted by.
        row_group_rows: highest number of rows in a row group; None: pyarrow's default.
    """
    from pyspark.sql import functions as F

    columns = {column: F.col("`" + column.replace("`", "``") + "`") for column, _ in fields}
    units = [
        F.floor(columns[column].cast("double") / (3600 * HOURS[unit])) if unit else columns[column]
        for column, unit in fields
    ]
    plan = tuple((column, unit) for column, unit in fields)
    ordered = dataframe.sortWithinPartitions(*units, *sorted_by)
    return _written(ordered, folder, schema, file_prefix, filesystem, plan, tuple(left_out), row_group_rows)


def _written(
    dataframe: DataFrame,
    folder: str,
    schema: Any,
    file_prefix: str,
    filesystem: Any,
    plan: tuple[tuple[str, str], ...],
    left_out: tuple[str, ...] = (),
    row_group_rows: int | None = None,
) -> list[tuple[WrittenFile, Values]]:
    # By position: mapInArrow asks for columns by name, and mistakes a name with a backtick for a wrong one.
    plain = dataframe.toDF(*[f"c{n}" for n in range(len(dataframe.columns))])
    plain = plain.select([f"c{dataframe.columns.index(name)}" for name in schema.names])
    task = _task(folder, schema, file_prefix, filesystem, plan, left_out, row_group_rows)
    done = map_batches(plain, task, WRITTEN).collect()
    written = [
        (WrittenFile(row.file, row.rows, row.bytes, row.statistics), tuple(json.loads(row.partition))) for row in done
    ]
    for (name, rows, size, _), _ in written:
        if rows == NULL_GIVEN:
            refuse_rule(folder, null_given(name))
        if rows == NO_FOLDER:
            raise StoreError(f"{folder}: the executor on {name} has no such folder. {REMEDY}")
        # A folder of the same name on each machine: the table would name files that its readers do not find.
        if filesystem is None and not _is_here(Path(folder) / name, size):
            raise StoreError(f"{folder}: an executor wrote {name} there, but the driver does not find it. {REMEDY}")
    return written


def null_given(column: str) -> str:
    """Return the message for a null in a column that must not be null."""
    return f"column {column} is NOT NULL (required), and a row has null in it"


def require_values(folder: object, rows: pa.Table, schema: pa.Schema) -> None:
    """Check that columns declared NOT NULL have no nulls.

    Args:
        folder: the table's folder, for the message.
        rows: new rows of the table.
        schema: the table's schema.

    Raises:
        RuleBroken: a row has null in a column declared NOT NULL.
    """
    for field in schema:
        if not field.nullable and field.name in rows.column_names and rows[field.name].null_count:
            refuse_rule(folder, null_given(field.name))


def write_file(table: pa.Table, folder: str, file_prefix: str, filesystem: Any = None) -> str:
    """Write an Arrow table of the driver into one new file; other arguments as in `write_files`.

    Returns:
        Name of the file.
    """
    name = write_batches(table.to_batches(), table.schema, folder, file_prefix, filesystem).name
    return name


def write_batches(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, folder: str, file_prefix: str, filesystem: Any = None
) -> WrittenFile:
    """Write Arrow batches of the driver into one new file; other arguments as in `write_files`.

    Returns:
        Name, rows and bytes of the file.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    name = f"{file_prefix}-{uuid.uuid4().hex}.zstd.parquet"
    path = f"{folder}/{name}"
    rows, gathered = 0, list[pa.RecordBatch]()
    fractions = [field.name for field in schema if pa.types.is_floating(field.type)]
    with_nan = set[str]()
    with open(path, "xb") if filesystem is None else filesystem.open_output_stream(path) as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for batch in batches:
                gathered.append(batch)
                rows += batch.num_rows
                with_nan.update(name for name in fractions if pc.any(pc.is_nan(batch.column(name))).as_py())
                if sum(each.nbytes for each in gathered) >= ROW_GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(gathered, schema))
                    gathered = []
            if gathered:
                writer.write_table(pa.Table.from_batches(gathered, schema))
        file.flush()
        size = file.tell()
        if filesystem is None:
            os.fsync(file.fileno())
    footer = pq.read_metadata(path, filesystem=filesystem)
    return WrittenFile(name, rows, size, statistics_maker()(footer, schema, with_nan))


def require_files(folder: Any, written: Sequence[WrittenFile], named: str = "") -> None:
    """Check that the tasks' files still exist in full, before or after a commit.

    Args:
        folder: folder of the table or its data; see `LocalFolder.sizes`.
        written: the result of `write_files`.
        named: start of a sentence for the message, about the finished commit that names the files; empty before the
            commit.

    Raises:
        StoreError: a file is missing or has another size.
    """
    try:
        sizes = folder.sizes([file.name for file in written])
    except OSError as error:
        raise StoreError(
            f"{folder}: cannot read the sizes of a commit's files ({error.strerror}). Check the folder, then run "
            "the job again"
        ) from None
    for (name, _, size, _), found in zip(written, sizes, strict=True):
        if found != size:
            what = "is gone" if found is None else f"has {found} bytes in place of {size}"
            ways = (
                f"{named}, so that the table cannot be read. Restore the table's previous version, then run `ratchet "
                "sink resume --from table`"
                if named
                else "Nothing was committed; run the job again"
            )
            raise StoreError(
                f"{folder}: {name} {what}. A task of this commit had just written this file, so another program has "
                f"removed or changed it, such as a VACUUM with too short a retention. {ways}"
            )


def _is_here(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _task(
    folder: str,
    schema: Any,
    file_prefix: str,
    filesystem: Any,
    plan: tuple[tuple[str, str], ...],
    left_out: tuple[str, ...],
    row_group_rows: int | None,
    indexed: int = INDEXED,
) -> Task:
    # A nested function with its own imports: cloudpickle sends it by value, so executors need pyarrow and nothing else.
    row_group_bytes, no_folder, null_given, hours = ROW_GROUP_BYTES, NO_FOLDER, NULL_GIVEN, dict(HOURS)
    make_statistics = statistics_maker(indexed)

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        import json
        import os
        import socket
        import uuid
        from contextlib import suppress
        from itertools import groupby, pairwise

        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        told = pa.schema(
            {
                "file": pa.string(),
                "rows": pa.int64(),
                "bytes": pa.int64(),
                "partition": pa.string(),
                "statistics": pa.string(),
            }
        )
        kept = [name for name in schema.names if name not in left_out]
        in_file = pa.schema([schema.field(name) for name in kept])

        def report(file: str, rows: int, size: int = 0, partition: str = "[]", statistics: str = "") -> Any:
            row = {"file": file, "rows": rows, "bytes": size, "partition": partition, "statistics": statistics}
            return pa.RecordBatch.from_pylist([row], schema=told)

        if filesystem is None and not os.path.isdir(folder):
            # Reported and not raised: Spark would retry the task, and print a stack trace at the end.
            yield report(socket.gethostname(), no_folder)
            return

        class NullGiven(Exception):
            """Error for a null in a column declared NOT NULL."""

        def values_of(table: Any, column: str, unit: str) -> Any:
            values = table[column].combine_chunks()
            if unit:  # whole units since 1970, also for earlier times
                floor = pc.floor_temporal(values, unit=unit).cast("int64")
                return pc.divide(floor, hours[unit] * 3_600_000_000)
            return values.cast("int32") if pa.types.is_date32(values.type) else values

        def runs() -> Iterator[tuple[str, Any]]:
            """Yield pairs: a table partition as JSON text, and consecutive rows of that partition."""
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                table = pa.Table.from_batches([batch]).rename_columns(schema.names)
                for each in schema:
                    if not each.nullable and table[each.name].null_count:
                        raise NullGiven(each.name)
                table = table.cast(schema)
                found = [values_of(table, column, unit) for column, unit in plan]
                changes = pa.array([False] * (table.num_rows - 1), pa.bool_())
                for each in found:
                    one, other = each[:-1], each[1:]
                    differ = pc.fill_null(pc.not_equal(one, other), False)
                    changes = pc.or_(changes, pc.or_(differ, pc.xor(pc.is_null(one), pc.is_null(other))))
                cuts = [0, *(at + 1 for at in pc.indices_nonzero(changes).to_pylist()), table.num_rows]
                for begin, end in pairwise(cuts):
                    yield (
                        json.dumps([each[begin].as_py() for each in found]),
                        table.slice(begin, end - begin).select(kept),
                    )

        def write_partition(partition: str, tables: Any) -> Any:
            name = f"{file_prefix}-{uuid.uuid4().hex}.zstd.parquet"
            path = f"{folder}/{name}"
            file: Any = None
            writer: Any = None
            size = rows = gathered_bytes = 0
            gathered: list[Any] = []
            fractions = [field.name for field in in_file if pa.types.is_floating(field.type)]
            with_nan: set[str] = set()
            try:
                for _, table in tables:
                    with_nan.update(name for name in fractions if pc.any(pc.is_nan(table[name])).as_py())
                    if writer is None:
                        file = open(path, "xb") if filesystem is None else filesystem.open_output_stream(path)
                        writer = pq.ParquetWriter(file, in_file, compression="zstd", write_page_checksum=True)
                    gathered.append(table)
                    rows += table.num_rows
                    gathered_bytes += table.nbytes
                    if gathered_bytes >= row_group_bytes:
                        writer.write_table(pa.concat_tables(gathered), row_group_rows)
                        gathered, gathered_bytes = [], 0
                if gathered:
                    writer.write_table(pa.concat_tables(gathered), row_group_rows)
                writer.close()
                file.flush()
                size = file.tell()
                if filesystem is None:
                    # In a power failure, the commit that names this file must not survive it.
                    os.fsync(file.fileno())
                file.close()
                footer = pq.read_metadata(path, filesystem=filesystem)
                if footer.num_rows != rows:
                    raise RuntimeError(f"{path} has {footer.num_rows} rows, but {rows} were written to it")
                said = make_statistics(footer, in_file, with_nan)
            except BaseException:
                with suppress(OSError):  # the first error makes the better sentence
                    if filesystem is None:
                        os.unlink(path)
                    elif file is not None:
                        file.close()  # closing ends an upload
                        filesystem.delete_file(path)
                raise
            return report(name, rows, size, partition, said)

        try:
            for partition, tables in groupby(runs(), key=lambda run: run[0]):
                yield write_partition(partition, tables)
        except NullGiven as given:  # reported and not raised, as above
            yield report(str(given), null_given)

    return write
