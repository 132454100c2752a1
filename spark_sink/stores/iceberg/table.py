"""Iceberg table of a catalog: functions that open it, create it, and compare its columns with a job's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import OptionRefused, StoreError, refuse
from kafka_ratchet.spark_sink.rows.partition_by import PartitionField
from kafka_ratchet.spark_sink.spark.dialect import arrow_schema
from kafka_ratchet.spark_sink.stores.evolution import DECIMAL, ColumnChange, changes, is_larger
from kafka_ratchet.spark_sink.stores.iceberg.catalog import IcebergCatalog
from kafka_ratchet.spark_sink.stores.iceberg.commit import (
    AGE_KEY,
    KEEP_KEY,
    KEEP_SNAPSHOTS,
    MAX_AGE_MS,
    RETRIES,
    begin,
)
from kafka_ratchet.spark_sink.stores.iceberg.partitions import add_partitions
from kafka_ratchet.spark_sink.stores.store import require_columns, without_free

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.types import IcebergType
    from pyspark.sql.types import StructType

NAMESPACE = "ratchet"

UPKEEP = {
    KEEP_KEY: str(KEEP_SNAPSHOTS),
    AGE_KEY: str(MAX_AGE_MS),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
}
"""Properties of a new table; users may change them."""

ADD_ATTEMPTS = 100
"""Attempts to add columns while other writers commit first."""

INTEGERS = ("byte", "short", "integer", "long")
WIDENINGS = "integers become larger integers, float becomes double, and decimals get more digits with as many places"

NAMES = {"int": "integer", "timestamptz": "timestamp", "timestamp": "timestamp_ntz"}
"""Spark's names of types, by Iceberg's names, for types with two different names."""

BORROWED = {"byte": "integer", "short": "integer"}
"""Types of Spark that Iceberg stores as a larger type."""

SCHEMA_KEY = "ratchet-sink.schema"
"""Table property with the columns as Spark describes them. Several types of Spark are one type in Iceberg."""


def whole_name(name: str) -> str:
    """Return a table's name with its namespace; a name without a dot is in `ratchet`."""
    return name if "." in name else f"{NAMESPACE}.{name}"


def find_table(catalog: IcebergCatalog, name: str) -> Table | None:
    """Open the table; None: it does not exist.

    Raises:
        StoreError: the table cannot be read.
    """
    from pyiceberg.exceptions import NoSuchTableError

    if not catalog.is_there():
        return None
    try:
        return catalog.connect().load_table(whole_name(name))
    except NoSuchTableError:
        return None
    except Exception as error:
        refuse(catalog, error, "the folder and its rights")


def open_or_create(
    catalog: IcebergCatalog, name: str, schema: StructType, partition_by: Sequence[PartitionField] = ()
) -> Table:
    """Open the table, or create it in one step; columns and partitions of an existing table are not compared.

    Raises:
        StoreError: the table can be neither read nor created.
    """
    from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

    try:
        catalog.make()
        opened = catalog.connect()
        opened.create_namespace_if_not_exists(whole_name(name).rpartition(".")[0])
        properties = {**RETRIES, **UPKEEP, SCHEMA_KEY: schema.json()}
        whole = whole_name(name)
        if not partition_by or opened.table_exists(whole):
            return opened.create_table_if_not_exists(whole, arrow_schema(schema), properties=properties)
        with suppress(TableAlreadyExistsError, CommitFailedException):  # another job has just created it
            with opened.create_table_transaction(whole, arrow_schema(schema), properties=properties) as transaction:
                add_partitions(transaction, partition_by)
        return opened.load_table(whole)
    except Exception as error:
        refuse(catalog, error, "the folder and its rights")


def require_format(where: object, table: Table) -> None:
    """Refuse a table with a format version that pyiceberg cannot write.

    Raises:
        OptionRefused: the format version is newer.
    """
    from pyiceberg.table.metadata import SUPPORTED_TABLE_FORMAT_VERSION

    if table.metadata.format_version > SUPPORTED_TABLE_FORMAT_VERSION:
        raise OptionRefused(
            f"{where}: the table has format version {table.metadata.format_version}, and pyiceberg writes versions up "
            f"to {SUPPORTED_TABLE_FORMAT_VERSION}. Nothing was added and no offset moved. No statement lowers the "
            "version: choose another table"
        )


def require_same_columns(catalog: IcebergCatalog, table: Table, schema: StructType) -> None:
    """Refuse a table with other columns than the job's.

    Raises:
        SchemaDiffers: the columns differ.
    """
    require_columns(catalog, _types(table), _wanted(schema), free=_free(table))


def missing_columns(catalog: IcebergCatalog, table: Table, schema: StructType) -> list[ColumnChange]:
    """Return the changes that give the table the job's columns.

    Raises:
        SchemaDiffers: the columns differ in a way that cannot be changed.
    """
    wanted = _wanted(schema)
    return changes(catalog, without_free(_types(table), wanted, _free(table)), wanted, _widens, WIDENINGS)


def add_columns(catalog: IcebergCatalog, table: Table, schema: StructType) -> None:
    """Apply the changes of `missing_columns` in one version of the table's metadata; new columns are null in old rows.

    Raises:
        SchemaDiffers: see `missing_columns`.
        StoreError: the table cannot be written.
    """
    from pyiceberg.exceptions import CommitFailedException

    for _ in range(ADD_ATTEMPTS):
        if not missing_columns(catalog, table, schema):
            return
        new = [field for field in schema.fields if field.name not in table.schema().column_names]
        kept = [schema[field.name] for field in table.schema().fields if field.name in schema.names]
        try:
            with begin(table) as transaction:
                with transaction.update_schema() as update:
                    update.union_by_name(arrow_schema(schema))
                # The order is the table's, with new columns last.
                transaction.set_properties({SCHEMA_KEY: type(schema)([*kept, *new]).json()})
            return
        except CommitFailedException:
            table.refresh()  # another writer was first, perhaps with these columns
        except Exception as error:
            refuse(catalog, error, "the folder and its rights")
    raise StoreError(f"{catalog}: other writers committed first {ADD_ATTEMPTS} times in a row. Run the job again")


def _types(table: Table) -> dict[str, str]:
    """Return the type of each column by name.

    The type is Spark's if a job created the column and its type was not changed since, else Iceberg's.
    """
    stored = _made(table)
    found = {}
    for field in table.schema().fields:
        kind = spark_type(field.field_type)
        made = stored.get(field.name, kind)
        # Another writer may have changed the type since; several of Spark's types are one of Iceberg's.
        found[field.name] = _described(made if borrowed(made) == kind else kind)
    return found


def _made(table: Table) -> dict[str, Any]:
    """Return the type of each column that a job created, by the column's name.

    A type has the form of Spark's JSON of a schema.
    """
    fields = json.loads(table.properties.get(SCHEMA_KEY, '{"fields": []}'))["fields"]
    return {field["name"]: field["type"] for field in fields}


def _free(table: Table) -> set[str]:
    """Return the columns that may be null and that no job created."""
    made = _made(table)
    return {field.name for field in table.schema().fields if not field.required and field.name not in made}


def borrowed(kind: Any) -> Any:
    """Return the type that a type of Spark has after a round trip through Iceberg.

    Iceberg stores some types of Spark as a larger type, see `BORROWED`. Both types are in the form of a schema's JSON.
    """
    if isinstance(kind, str):
        return BORROWED.get(kind, kind)
    inner = {name: borrowed(kind[name]) for name in ("elementType", "keyType", "valueType") if name in kind}
    if kind["type"] == "struct":
        inner["fields"] = [{**field, "type": borrowed(field["type"])} for field in kind["fields"]]
    return {**kind, **inner}


def spark_type(kind: IcebergType) -> Any:
    """Return Spark's description of an Iceberg type, in the form of a schema's JSON."""
    from pyiceberg.types import ListType, MapType
    from pyiceberg.types import StructType as Struct

    if isinstance(kind, Struct):
        fields = [(field.name, spark_type(field.field_type), not field.required) for field in kind.fields]
        listed = [{"name": name, "type": inner, "nullable": null, "metadata": {}} for name, inner, null in fields]
        return {"type": "struct", "fields": listed}
    if isinstance(kind, ListType):
        element = spark_type(kind.element_type)
        return {"type": "array", "elementType": element, "containsNull": not kind.element_required}
    if isinstance(kind, MapType):
        return {
            "type": "map",
            "keyType": spark_type(kind.key_type),
            "valueType": spark_type(kind.value_type),
            "valueContainsNull": not kind.value_required,
        }
    name = str(kind)
    digits = DECIMAL.fullmatch(name.replace(" ", ""))
    return digits[0] if digits else NAMES.get(name, name)


def _wanted(schema: StructType) -> dict[str, str]:
    return {field.name: _described(field.dataType.jsonValue()) for field in schema.fields}


def _widens(before: str, after: str) -> bool:
    """Return whether Iceberg can change the first type into the second; decimals must keep their decimal places."""
    old, new = DECIMAL.fullmatch(before), DECIMAL.fullmatch(after)
    if old and new and old[2] != new[2]:
        return False
    return is_larger(before, after, INTEGERS) or (before, after) == ("float", "double")


def _described(data_type: object) -> str:
    return data_type if isinstance(data_type, str) else json.dumps(data_type, sort_keys=True)
