"""What the executors write has to be where the driver commits; a store that is one machine's says so."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from kafka_ratchet.spark_sink.errors import OptionRefused, StoreError
from kafka_ratchet.spark_sink.files.parquet import write_files
from kafka_ratchet.spark_sink.stores.store import require_local_master
from tests.spark_sink.sites import Site

NUMBERS = pa.schema([("id", pa.int64())])


def test_executors_without_the_folder_are_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"the executor on .* has no such folder.*mount it on all machines"):
        write_files(spark.range(3), str(tmp_path / "not here"), NUMBERS, "part-job.1")


def test_a_folder_that_is_another_one_for_the_executors_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Relative to where the executors are, "." is one folder, and to where the driver is, another.
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match=r"an executor wrote part-.* there, but the driver does not find it"):
        write_files(spark.range(3), ".", NUMBERS, "part-job.1")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("master", ["spark://127.0.0.1:7077", "yarn", "k8s://https://127.0.0.1:6443", None])
def test_stores_of_one_machine_refuse_a_cluster(site: Site, master: str | None) -> None:
    store = site.make()
    if site.location.kind in {"duckdb", "iceberg"}:
        with pytest.raises(OptionRefused, match=rf"store {site.location.kind} keeps its .* one .*file on the driver's"):
            require_local_master(store, master)
    else:
        require_local_master(store, master)
    require_local_master(store, "local[4]")
