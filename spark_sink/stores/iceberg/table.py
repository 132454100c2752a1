"""The Iceberg table of a catalog: found, made, and compared with a job's columns."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import refuse
from kafka_ratchet.spark_sink.spark.dialect import arrow_schema
from kafka_ratchet.spark_sink.stores.iceberg.catalog import IcebergCatalog
from kafka_ratchet.spark_sink.stores.iceberg.commit import KEEP_KEY, KEEP_SNAPSHOTS
from kafka_ratchet.spark_sink.stores.store import require_columns

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql.types import StructType

NAMESPACE = "ratchet"

RETRIES = {"commit.retry.num-retries": "0"}
"""pyiceberg would put a commit behind one that it was not compared with, and its properties over the newer ones."""

UPKEEP = {
    KEEP_KEY: str(KEEP_SNAPSHOTS),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
}
"""Properties of a new table; they are the user's to change."""

SCHEMA_KEY = "ratchet-sink.schema"
"""Property with the columns as Spark describes them: Iceberg has fewer types, so its own would not tell all apart."""


def find_table(catalog: IcebergCatalog, name: str) -> Table | None:
    """The table, where there is one; raises StoreError where it cannot be read."""
    from pyiceberg.exceptions import NoSuchTableError

    if not catalog.is_there():
        return None
    try:
        return catalog.connect().load_table(f"{NAMESPACE}.{name}")
    except NoSuchTableError:
        return None
    except Exception as error:
        refuse(catalog, error, "the folder and its rights")


def open_or_create(catalog: IcebergCatalog, name: str, schema: StructType) -> Table:
    """The table, made where there is none.

    Raises:
        SchemaDiffers: it is there with other columns.
        StoreError: it can be neither read nor made.
    """
    try:
        catalog.make()
        opened = catalog.connect()
        opened.create_namespace_if_not_exists(NAMESPACE)
        table = opened.create_table_if_not_exists(
            f"{NAMESPACE}.{name}",
            arrow_schema(schema),
            properties={**RETRIES, **UPKEEP, SCHEMA_KEY: schema.json()},
        )
    except Exception as error:
        refuse(catalog, error, "the folder and its rights")
    require_same_columns(catalog, table, schema)
    return table


def require_same_columns(catalog: IcebergCatalog, table: Table, schema: StructType) -> None:
    """Raise SchemaDiffers where the table has other columns."""
    described = json.loads(table.properties.get(SCHEMA_KEY, '{"fields": []}'))["fields"]
    stored = {field["name"]: _described(field["type"]) for field in described}
    present = {field.name: stored.get(field.name, str(field.field_type)) for field in table.schema().fields}
    expected = {field.name: _described(field.dataType.jsonValue()) for field in schema.fields}
    require_columns(catalog, present, expected)


def _described(data_type: object) -> str:
    return data_type if isinstance(data_type, str) else json.dumps(data_type, sort_keys=True)
