"""Columns of an Iceberg table are found by their ids, whatever other programs do to the names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, StringType
from pyspark.sql import SparkSession

from kafka_ratchet.spark_sink.errors import OptionRefused
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


def test_a_format_that_cannot_be_written_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    site, columns = IcebergSite(tmp_path), struct_of("who string, _kafka_partition int, _kafka_offset long")
    store, frame = site.make(), spark.createDataFrame([("ann", 0, 0)], columns)
    store.open(columns)
    catalog = SqlCatalog("ratchet", uri=f"sqlite:///{site.path / 'catalog.db'}", warehouse=f"file://{site.path}")
    metadata = Path(catalog.load_table("ratchet.results").metadata_location.removeprefix("file://"))
    catalog.close()
    # As another tool upgrades the table; pyiceberg cannot.
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "format-version": 3, "next-row-id": 0}))
    for refused in (lambda: store.commit(frame, {0: 0}, {0: 1}), lambda: site.make().open(columns)):
        with pytest.raises(OptionRefused, match=r"format version 3, and pyiceberg writes versions up to 2"):
            refused()
    assert site.rows() == []
