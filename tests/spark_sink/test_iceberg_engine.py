"""`engine="spark"` for Iceberg tables: what it refuses, and with Iceberg's runtime its checks and kills."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kafka_ratchet.spark_sink import exactly_once
from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.iceberg import spark_writer
from kafka_ratchet.spark_sink.stores.iceberg.store import IcebergStore
from kafka_ratchet.spark_sink.stores.location import TableLocation
from tests.folders import ROOT
from tests.spark_sink.spark.environment import python_with, require_checks_pass
from tests.spark_sink.stores.other_spark import RELEASE
from tests.spark_sink.test_twenty_lines import FORMS, RECORDS, OwnJob, fill
from tests.spark_sink.under_iceberg_spark import __file__ as CHECKS
from tests.spark_sink.under_iceberg_spark import iceberg_spark_settings

NewTopic = Callable[..., str]


@pytest.mark.parametrize(
    ("mode", "named", "match"),
    [
        (WriteMode("upsert", ("id",)), "`prod`.`ns`.`t`", r"kind upsert needs a merge\. Leave engine out"),
        (WriteMode("totals", ("id",)), "`prod`.`ns`.`t`", r"kind totals needs a merge\. Leave engine out"),
        (WriteMode("append"), "", r"by their names in Spark's catalog\. Give the table's name there"),
    ],
)
def test_what_the_engine_cannot_do_is_refused(mode: WriteMode, named: str, match: str, tmp_path: Path) -> None:
    location = TableLocation("iceberg", str(tmp_path), "ns.t", engine="spark", spark_name=named)
    with pytest.raises(OptionRefused, match=match):
        IcebergStore(location, "orders", "events", 0, mode)
    assert not list(tmp_path.iterdir())


def test_a_session_without_iceberg_and_spark_connect(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"catalog": {"path": str(tmp_path)}, "engine": "spark"}
    sink, topic = exactly_once("iceberg:ns.t", job="orders", **options), new_topic(1)
    with pytest.raises(OptionRefused, match=r"no Iceberg runtime. Start Spark with --packages org\.apache\.iceberg:"):
        next(sink.batches(spark, bootstrap=broker, topic=topic))
    monkeypatch.setattr(spark_writer, "is_connect", lambda: True)
    with pytest.raises(OptionRefused, match="by classic Spark"):
        next(sink.batches(spark, bootstrap=broker, topic=topic))
    assert not list(tmp_path.iterdir())


@pytest.mark.long  # minutes on a machine at rest, and another release of Spark
@pytest.mark.timeout(1800)
def test_the_checks_in_a_spark_with_iceberg(broker: str) -> None:
    require_checks_pass(python_with(RELEASE), CHECKS, broker)


@pytest.mark.long
@pytest.mark.timeout(3600)  # five starts of Spark
def test_killed_around_each_commit_and_without_its_checkpoint(
    broker: str, new_topic: NewTopic, spark: SparkSession, tmp_path: Path
) -> None:
    topic, warehouse, total = new_topic(2), tmp_path / "warehouse", 0
    spark.createDataFrame([(0, "a"), (1, "b"), (2, "c")], "town int, name string").write.parquet(
        str(tmp_path / "towns")
    )
    for folder in (warehouse, tmp_path / "job"):
        folder.mkdir()
    names = [broker, topic, str(tmp_path / "towns"), str(tmp_path / "checkpoint"), "ratchet.ns.orders"]
    python, settings = python_with(RELEASE), iceberg_spark_settings(warehouse)
    environment = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(python)}
    job = OwnJob(python, tmp_path / "job", [*names, json.dumps({"engine": "spark"})], settings, environment)
    sink = exactly_once("iceberg:ns.orders", job="orders", catalog={"path": str(warehouse)})
    store, seen = IcebergStore(TableLocation("iceberg", str(warehouse), "ns.orders"), "orders", topic), []
    for form in FORMS:
        for point in ("before-commit:2", "after-commit:2"):
            fill(broker, topic, range(total, total + RECORDS))
            total += RECORDS
            assert job.run(form, point) == -signal.SIGKILL, job.log.read_text()
            seen.append(store.count())
            assert sum(sink.offsets(topic).values()) == seen[-1]
    # A commit of a hundred offsets before the point, two where the second one is done.
    assert seen == [100, 300, 400, 600]
    shutil.rmtree(tmp_path / "checkpoint")
    assert job.run(FORMS[0]) == 0, job.log.read_text()
    assert sorted(number for (number,) in store.rows(["id"])) == list(range(total))
