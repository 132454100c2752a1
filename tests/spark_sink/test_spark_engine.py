"""`engine="spark"`: what it refuses, and in processes with delta-spark its checks and kills."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from kafka_ratchet.spark_sink import exactly_once
from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.windows import Windows
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.delta import spark_writer
from kafka_ratchet.spark_sink.stores.delta.store import DeltaStore
from kafka_ratchet.spark_sink.stores.location import TableLocation
from tests.folders import ROOT
from tests.spark_sink.spark.environment import require_checks_pass
from tests.spark_sink.test_twenty_lines import FORMS, RECORDS, OwnJob, fill
from tests.spark_sink.under_delta_spark import __file__ as CHECKS
from tests.spark_sink.under_delta_spark import delta_spark_settings
from tests.spark_sink.under_delta_spark_totals import __file__ as TOTALS
from tests.spark_sink.under_delta_spark_upserts import __file__ as UPSERTS

NewTopic = Callable[..., str]


@pytest.mark.parametrize(
    ("target", "options", "named"),
    [
        ("/lake/t", {"engine": "flink"}, "engine 'flink' is unknown; write one of delta-rs, spark"),
        (
            "duckdb:/lake/t.duckdb",
            {"engine": "spark"},
            "engine spark is for Delta and Iceberg tables, and not for store duckdb",
        ),
    ],
)
def test_what_the_engine_cannot_do_is_refused(target: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionRefused, match=named):
        exactly_once(target, job="orders", **options)


@pytest.mark.parametrize(
    ("target", "options", "named"),
    [
        ("s3://lake/t", {}, "and not to buckets"),
        (
            "/lake/t",
            {"kind": "upsert", "key": "id", "partition_by": ["town"]},
            "partition_by is for kind append",
        ),
        (
            "/lake/t",
            {"kind": "totals", "key": "id", "partition_by": ["town"]},
            "partition_by is for kind append",
        ),
        ("/lake/t", {"partition_by": ["day(at)"]}, "by plain columns, and not by days or hours"),
    ],
)
def test_tables_that_the_engine_does_not_write(target: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionRefused, match=named):
        exactly_once(target, job="orders", engine="spark", **options).offsets("events")


@pytest.mark.parametrize(
    "more",
    [
        {"windows": Windows("at", 3600, 3600)},
        {"averages": ("n",)},
        {"mins": ("n",)},
        {"maxes": ("n",)},
        {"distinct": ("n",)},
    ],
    ids=lambda more: next(iter(more)),
)
def test_totals_that_are_more_than_sums(more: dict[str, Any], tmp_path: Path) -> None:
    location, mode = TableLocation("delta", str(tmp_path / "t"), engine="spark"), WriteMode("totals", ("id",), **more)
    with pytest.raises(OptionRefused, match=r"supports only counts and sums.*Leave engine out"):
        DeltaStore(location, "orders", "events", 0, mode)
    DeltaStore(replace(location, engine=""), "orders", "events", 0, mode)


def test_a_session_without_delta_spark_and_spark_connect(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, topic = exactly_once(str(tmp_path / "t"), job="orders", engine="spark"), new_topic(1)
    with pytest.raises(OptionRefused, match=r"has no delta-spark. Start Spark with --packages io\.delta:delta-spark"):
        next(sink.batches(spark, bootstrap=broker, topic=topic))
    monkeypatch.setattr(spark_writer, "is_connect", lambda: True)
    with pytest.raises(OptionRefused, match="by classic Spark"):
        next(sink.batches(spark, bootstrap=broker, topic=topic))
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    "checks",
    [
        pytest.param(CHECKS, id="appends", marks=[pytest.mark.matrix, pytest.mark.timeout(900)]),
        # Minutes on a machine at rest.
        pytest.param(UPSERTS, id="upserts", marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
        pytest.param(TOTALS, id="totals", marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
)
def test_the_checks_in_a_spark_with_delta_spark(broker: str, checks: str) -> None:
    require_checks_pass(sys.executable, checks, broker)


@pytest.mark.long
@pytest.mark.timeout(3600)  # five starts of Spark
def test_killed_around_each_commit_and_without_its_checkpoint(
    broker: str, new_topic: NewTopic, spark: SparkSession, tmp_path: Path
) -> None:
    topic, table, total = new_topic(2), tmp_path / "orders", 0
    spark.createDataFrame([(0, "a"), (1, "b"), (2, "c")], "town int, name string").write.parquet(
        str(tmp_path / "towns")
    )
    (folder := tmp_path / "job").mkdir()
    names = [broker, topic, str(tmp_path / "towns"), str(tmp_path / "checkpoint"), str(table)]
    arguments = [*names, json.dumps({"engine": "spark"})]
    job = OwnJob(Path(sys.executable), folder, arguments, delta_spark_settings(), {"PYTHONPATH": str(ROOT)})
    seen = []
    for form in FORMS:
        for point in ("before-commit:2", "after-commit:2"):
            fill(broker, topic, range(total, total + RECORDS))
            total += RECORDS
            assert job.run(form, point) == -signal.SIGKILL, job.log.read_text()
            seen.append(len(ids(table)))
    # A commit of a hundred offsets before the point, two where the second one is done.
    assert seen == [100, 300, 400, 600]
    shutil.rmtree(tmp_path / "checkpoint")
    assert job.run(FORMS[0]) == 0, job.log.read_text()
    assert ids(table) == list(range(total))


@pytest.mark.long
@pytest.mark.timeout(3600)  # five starts of Spark
def test_an_upsert_killed_around_its_commits(
    broker: str, new_topic: NewTopic, spark: SparkSession, tmp_path: Path
) -> None:
    topic, table = new_topic(2), tmp_path / "orders"
    spark.createDataFrame([(0, "a"), (1, "b"), (2, "c")], "town int, name string").write.parquet(
        str(tmp_path / "towns")
    )
    (folder := tmp_path / "job").mkdir()
    names = [broker, topic, str(tmp_path / "towns"), str(tmp_path / "checkpoint"), str(table)]
    options = json.dumps({"engine": "spark", "kind": "upsert", "key": "id"})
    settings, environment = delta_spark_settings(), {"PYTHONPATH": str(ROOT)}
    job = OwnJob(Path(sys.executable), folder, [*names, options], settings, environment)
    fill(broker, topic, range(RECORDS))
    fill(broker, topic, range(RECORDS))  # every key once more
    sink, seen = exactly_once(str(table), job="orders", kind="upsert", key="id"), []
    for point in ("before-commit:2", "in-commit:2", "after-commit:2"):
        assert job.run(FORMS[1], point) == -signal.SIGKILL, job.log.read_text()
        seen.append(sum(sink.offsets(topic).values()))
    assert seen == [100, 200, 400]
    assert job.run(FORMS[1]) == 0, job.log.read_text()
    assert ids(table) == list(range(RECORDS))
    assert sum(sink.offsets(topic).values()) == 2 * RECORDS
    found = DeltaTable(str(table)).to_pyarrow_table(columns=["_kafka_offset"])["_kafka_offset"].to_pylist()
    assert min(found) >= RECORDS // 2  # the later record of each key


@pytest.mark.long
@pytest.mark.timeout(3600)  # six starts of Spark
def test_totals_killed_around_a_commit_and_without_their_checkpoint(
    broker: str, new_topic: NewTopic, spark: SparkSession, tmp_path: Path
) -> None:
    topic, table, checkpoint, total = new_topic(2), tmp_path / "towns_in_total", tmp_path / "checkpoint", 0
    spark.createDataFrame([(0, "a"), (1, "b"), (2, "c")], "town int, name string").write.parquet(
        str(tmp_path / "towns")
    )
    (folder := tmp_path / "job").mkdir()
    names = [broker, topic, str(tmp_path / "towns"), str(checkpoint), str(table)]
    arguments = [*names, json.dumps({"engine": "spark", "kind": "totals", "key": "town", "sums": "id"})]
    environment = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    job = OwnJob(Path(sys.executable), folder, arguments, delta_spark_settings(), environment)
    sink, seen = exactly_once(str(table), job="orders", kind="totals", key="town", sums="id"), []
    for form in FORMS:
        for point in ("before-commit:2", "in-commit:2", "after-commit:2"):
            fill(broker, topic, range(total, total + RECORDS))
            total += RECORDS
            assert job.run(form, point) == -signal.SIGKILL, job.log.read_text()
            stored = sink.offsets(topic)
            seen.append(sum(stored.values()))
            # `fill` writes even numbers to one partition and odd ones to the other.
            assert totals_of(table) == totals(n for n in range(total) if n // 2 < stored.get(n % 2, 0))
        shutil.rmtree(checkpoint, ignore_errors=True)
    assert seen == sorted(seen)
    assert 0 < seen[0] < seen[-1] < total
    assert job.run(FORMS[0]) == 0, job.log.read_text()
    assert totals_of(table) == totals(range(total))


def totals(numbers: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Count the records and add up their numbers, for each town."""
    found: dict[int, tuple[int, int]] = {}
    for number in numbers:
        count, total = found.get(number % 3, (0, 0))
        found[number % 3] = count + 1, total + number
    return found


def totals_of(table: Path) -> dict[int, tuple[int, int]]:
    rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    found = {row["town"]: (row["_records"], int(row["id"])) for row in rows}
    assert len(found) == len(rows)
    return found


def ids(table: Path) -> list[int]:
    return sorted(DeltaTable(str(table)).to_pyarrow_table(columns=["id"])["id"].to_pylist())
