"""The store for Iceberg alone, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.table import metadata
from pyspark.sql.types import StringType, StructField, StructType

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.files.local import LocalFolder
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.decision import RepairNote, Replacement
from kafka_ratchet.spark_sink.stores.iceberg.store import orphan_files
from tests.spark_sink.sites import IcebergSite
from tests.spark_sink.stores.test_touched import commit_of, made


def test_a_file_of_a_snapshot_is_no_orphan(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = made(tmp_path / "warehouse", schema)
    commit = commit_of(table, WriteMode("upsert", ("k",)))
    commit.write(table, pa.table([[1], [1]], schema=schema), {"ratchet-sink.job.generation": "2"}, 0)
    data = Path(table.location().removeprefix("file://"), "data")
    assert list(data.iterdir())
    left = data / f"part-job.1-{0:032x}.zstd.parquet"
    left.touch()
    assert [orphan.name for orphan in orphan_files(table, LocalFolder(data))] == [left.name]


def test_a_holder_notices_a_table_of_a_newer_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = IcebergSite(tmp_path).make()
    store.open(StructType([StructField("who", StringType())]))
    monkeypatch.setattr(metadata, "SUPPORTED_TABLE_FORMAT_VERSION", 1)
    rows, note = Replacement(("who",), cast("Any", None), cast("Any", None), 0), RepairNote("someone", "", "", {})
    with pytest.raises(OptionRefused, match="the table has format version 2"):
        store.repair(rows, None, {}, note)
