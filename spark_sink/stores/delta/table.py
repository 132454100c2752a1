"""Delta table in a folder: functions that open it, create it, and compare its columns with a job's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import OptionRefused, StoreError, first_line, refuse
from kafka_ratchet.spark_sink.files.bucket import BucketFolder, Folder
from kafka_ratchet.spark_sink.files.local import LocalFolder
from kafka_ratchet.spark_sink.stores.evolution import changes
from kafka_ratchet.spark_sink.stores.store import require_columns, without_free

if TYPE_CHECKING:
    from deltalake import DeltaTable, Field, Schema
    from pyspark.sql.types import StructType

ADD_ATTEMPTS = 100
"""Attempts to add columns while other writers commit first."""

NO_WIDENING = "delta-rs, which writes the table, has no type widening"
"""Sentence for errors about column types that `evolve` cannot widen. Delta's own table feature is `typeWidening`."""


def table_folder(path: str, storage_options: Mapping[str, str] | None = None) -> Folder:
    """Return the folder of a table at a path.

    Raises:
        OptionRefused: delta-rs cannot keep a table at this path, or a storage option cannot be used.
    """
    if "://" in path:
        return BucketFolder(path, storage_options or {})
    if "%" in str(Path(path).absolute()):
        # delta-rs 1.6 reads %20 in a folder's name as a blank when it writes and not when it reads.
        raise OptionRefused(f"path {path!r}: the folder's name may not contain '%'. Choose another path")
    return LocalFolder(Path(path).absolute())


def open_table(folder: Folder) -> DeltaTable | None:
    """Open the table in a folder; None: the folder contains no table.

    Raises:
        StoreError: the path is a file, or the table cannot be read.
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
        raise StoreError(
            f"{folder}: the Delta table cannot be read: {first_line(error)}. Check that its _delta_log is readable and "
            "complete"
        ) from None


def open_or_create(folder: Folder, schema: StructType, partitions: Sequence[str] = ()) -> DeltaTable:
    """Open the table in a folder, or create it; columns of an existing table are not compared.

    Args:
        folder: the table's folder.
        schema: all columns of a new table.
        partitions: partition columns of a new table.

    Raises:
        StoreError: the table can be neither read nor created.
    """
    from deltalake import DeltaTable, Schema
    from deltalake.exceptions import DeltaError

    wanted = Schema.from_json(schema.json())
    table = open_table(folder)
    if table is None:
        try:
            folder.make()
        except OSError as error:
            raise StoreError(
                f"{folder}: the table's folder cannot be made ({error.strerror}). Choose another path"
            ) from None
        try:
            DeltaTable.create(
                folder.uri,
                schema=wanted,
                mode="ignore",
                partition_by=list(partitions),
                storage_options=folder.options,
            )
        except DeltaError as error:
            # Two jobs may create it together: then the other one's table exists now.
            if open_table(folder) is None:
                refuse(folder, error, "the folder and its rights")
        table = DeltaTable(folder.uri, storage_options=folder.options)
    return table


def require_fits(folder: Folder, table: DeltaTable, schema: StructType) -> None:
    """Refuse a table with other columns than the job's.

    Raises:
        SchemaDiffers: the columns differ.
    """
    from deltalake import Schema

    wanted = types_of(Schema.from_json(schema.json()))
    require_columns(folder, types_of(table.schema()), wanted, free=free_columns(table.schema()))


def missing_columns(folder: Folder, table: DeltaTable, schema: StructType) -> list[Field]:
    """Return the columns that the job has and the table lacks.

    Raises:
        SchemaDiffers: the columns differ in another way.
    """
    from deltalake import Field, Schema

    wanted = Schema.from_json(schema.json())
    present = without_free(types_of(table.schema()), types_of(wanted), free_columns(table.schema()))
    found = changes(folder, present, types_of(wanted), lambda *_: False, NO_WIDENING)
    new = {change.column for change in found}
    return [Field(field.name, field.type, nullable=True) for field in wanted.fields if field.name in new]


def add_columns(folder: Folder, table: DeltaTable, schema: StructType) -> None:
    """Add the job's missing columns to the table in one log entry; existing rows have null in them.

    Raises:
        SchemaDiffers: see `missing_columns`.
        StoreError: the table cannot be written.
    """
    from deltalake import CommitProperties
    from deltalake.exceptions import CommitFailedError, DeltaError

    for _ in range(ADD_ATTEMPTS):
        fields = missing_columns(folder, table, schema)
        if not fields:
            return
        try:
            table.alter.add_columns(fields, commit_properties=CommitProperties(max_commit_retries=0))
        except CommitFailedError:
            table.update_incremental()  # another writer was first, perhaps with these columns
        except DeltaError as error:
            refuse(folder, error, "the folder and its rights")
    raise StoreError(f"{folder}: other writers committed first {ADD_ATTEMPTS} times in a row. Run the job again")


def free_columns(schema: Schema) -> set[str]:
    """Return the names of the columns that may be null."""
    return {field.name for field in schema.fields if field.nullable}


def types_of(schema: Schema) -> dict[str, str]:
    """Return the type of each column, by column name."""
    return {field.name: str(field.type) for field in schema.fields}
