"""Columns of an Iceberg table are found by their ids, whatever other programs do to the names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, StringType
from pyspark.sql import SparkSession

from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import IcebergSite

COLUMNS = (
    "who string, town string, amount long, more struct<a: int, b: array<string>>, _kafka_partition int, "
    "_kafka_offset long"
)


def _add(table: Table) -> None:
    with table.update_schema() as update:
        update.rename_column("who", "name")
    with table.update_schema() as update:
        update.add_column("who", LongType())


def _swap(table: Table) -> None:
    with table.update_schema() as update:
        update.rename_column("who", "between")
    with table.update_schema() as update:
        update.rename_column("town", "who")
    with table.update_schema() as update:
        update.rename_column("between", "town")


def _drop(table: Table) -> None:
    with table.update_schema() as update:
        update.delete_column("amount")
    with table.update_schema() as update:
        update.add_column("amount", StringType())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_add, {"name": ["ann"], "who": [None], "town": ["ulm"], "amount": [7]}),
        (_swap, {"town": ["ann"], "who": ["ulm"], "amount": [7]}),
        (_drop, {"who": ["ann"], "town": ["ulm"], "amount": [None]}),
    ],
)
def test_old_rows_keep_their_values(
    change: Callable[[Table], None], expected: dict[str, list[object]], spark: SparkSession, tmp_path: Path
) -> None:
    site = IcebergSite(tmp_path)
    store = site.make()
    store.open(struct_of(COLUMNS))
    row = ("ann", "ulm", 7, (1, ["x"]), 0, 0)
    assert store.commit(spark.createDataFrame([row], COLUMNS), {0: 0}, {0: 1}) == 1
    store.close()
    catalog = SqlCatalog("ratchet", uri=f"sqlite:///{site.path / 'catalog.db'}", warehouse=f"file://{site.path}")
    table = catalog.load_table("ratchet.results")
    change(table)
    found = catalog.load_table("ratchet.results").scan().to_arrow().to_pydict()
    catalog.close()
    assert {name: found[name] for name in expected} == expected
    assert found["more"] == [{"a": 1, "b": ["x"]}]
    assert _ids(next(site.path.rglob("*.parquet"))) == _named(table.metadata.schemas[0])


def _ids(path: Path) -> dict[str, int]:
    schema = pq.read_schema(path)
    return {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in schema}


def _named(schema: Schema) -> dict[str, int]:
    return {field.name: field.field_id for field in schema.fields}
