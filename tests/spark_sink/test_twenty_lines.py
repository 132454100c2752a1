"""A job of twenty lines with public names alone, from the wheel: killed over and over, its checkpoint deleted once."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from kafka_ratchet.app.local.jars import spark_jars
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.results import count
from tests.folders import ROOT
from tests.spark_sink.conftest import spark_jvm
from tests.spark_sink.stores.other_spark import other_spark
from tests.wheel import built, environment_with

JOB = """\
import json, sys
from pyspark.sql import SparkSession, functions as F
from kafka_ratchet.spark_sink import exactly_once

form, kafka, topic, towns, checkpoint, target, options = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()

def enrich(records):
    order = F.from_json(F.col("value").cast("string"), "id long, town int").alias("order")
    read = records.select("partition", "offset", F.expr("cast(headers[0].value AS string) AS source"), order)
    return read.select("partition", "offset", "source", "order.*").join(spark.read.parquet(towns), "town")

sink = exactly_once(target, job="orders", **json.loads(options))
if form == "batches":
    for batch in sink.batches(spark, bootstrap=kafka, topic=topic, max_records=100):
        sink.commit(enrich(batch.records), batch)
else:
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka).option("subscribe", topic)
    stream = stream.options(includeHeaders="true", startingOffsets="earliest", maxOffsetsPerTrigger="100")
    query = enrich(stream.option("kafka.isolation.level", "read_committed").load()).writeStream.foreachBatch(sink.batch)
    query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
"""
FORMS = ("foreachBatch", "batches")
MOMENTS = ("after-commit:2", "before-commit:2", "any")
"""Places of kills: between the table's commit and the checkpoint's, before a commit, and wherever the job is."""
NAMES = ("Graz", "Linz", "Wien")
RECORDS = 400
"""Records that are added before each kill: four commits."""


def fill(broker: str, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    for n in numbers:
        value = json.dumps({"id": n, "town": n % 3}).encode()
        producer.produce(topic, value, partition=n % 2, headers=[("source", b"s%d" % n)])
    assert producer.flush(30) == 0


class OwnJob:
    """The job in processes of its own, with a Spark that is set up by its `spark-defaults.conf`."""

    def __init__(
        self,
        python: Path,
        folder: Path,
        arguments: list[str],
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.log = folder, folder / "log"
        (folder / "job.py").write_text(JOB)
        conf = folder / "conf"
        conf.mkdir()
        chosen = {"spark.jars": ",".join(map(str, spark_jars())), "spark.master": "local[2]"}
        chosen |= {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", **(settings or {})}
        (conf / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in chosen.items()))
        self._words = [str(python), "job.py"]
        self._arguments = arguments
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("RATCHET_", "PYTHON"))}
        self._environment = {
            **kept,
            "SPARK_CONF_DIR": str(conf),
            "SPARK_LOCAL_IP": "127.0.0.1",
            **spark_jvm(),
            **(environment or {}),
        }

    def run(self, form: str, moment: str = "", wait: Callable[[], None] | None = None) -> int:
        """Return the exit code. moment: of `crash_points`; wait: returns when the whole job is to be killed."""
        crash = {"SPARK_SINK_CRASH_AT": moment} if moment else {}
        with (
            self.log.open("wb") as log,
            subprocess.Popen(
                [*self._words, form, *self._arguments],
                cwd=self.folder,
                env={**self._environment, **crash},
                stdout=log,
                stderr=log,
                start_new_session=True,
            ) as process,
        ):
            try:
                if wait is not None:
                    wait()
                    os.killpg(process.pid, signal.SIGKILL)
                return process.wait(300)
            finally:
                try:  # the JVM may outlive the driver
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        # Four starts of Spark: two minutes of a machine at rest.
        pytest.param("delta", 3, marks=[pytest.mark.long, getattr(pytest.mark, "spark-versions")]),
        pytest.param("delta", 20, marks=pytest.mark.long),
        pytest.param("iceberg", 20, marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(3600)  # a start of Spark for each kill, each a minute on a machine at load 20
def test_twenty_lines_are_exact(
    kind: str, kills: int, broker: str, new_topic: Callable[..., str], spark: SparkSession, tmp_path: Path
) -> None:
    assert len(JOB.replace("\n\n", "\n").splitlines()) <= 20
    draw, topic, checkpoint, total = random.Random(kills), new_topic(2), tmp_path / "checkpoint", 0
    spark.createDataFrame(list(enumerate(NAMES)), "town int, name string").write.parquet(str(tmp_path / "towns"))
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    at = TableLocation(kind, str(warehouse / "orders"))
    target, options, name = at.path, "{}", f"delta.`{at.path}`"
    if kind == "iceberg":
        at = TableLocation(kind, str(warehouse), "ratchet.orders")
        target, options = f"iceberg:{at.table}", json.dumps({"catalog": {"path": at.path}})
        name = f"ratchet.{at.table}"
    python = environment_with(built("wheel", ROOT, tmp_path / "wheel"), tmp_path / "environment") / "python"
    (folder := tmp_path / "job").mkdir()
    job = OwnJob(python, folder, [broker, topic, str(tmp_path / "towns"), str(checkpoint), target, options])

    def versions() -> set[str]:
        return {path.name for path in warehouse.rglob("*.json")}

    def wait_for_a_commit() -> None:
        before, deadline = versions(), time.monotonic() + 120
        while versions() <= before:
            assert time.monotonic() < deadline, job.log.read_text()
            time.sleep(0.01)
        time.sleep(draw.random())

    for n in range(kills):
        fill(broker, topic, range(total, total + RECORDS))
        total += RECORDS
        if n == kills // 2:
            shutil.rmtree(checkpoint)
        moment = MOMENTS[n % 3]
        at_any_moment = moment == "any"
        code = job.run(FORMS[n % 2], "" if at_any_moment else moment, wait=wait_for_a_commit if at_any_moment else None)
        assert code == -signal.SIGKILL, (n, job.log.read_text())
        assert 0 < count(at) < total
    assert job.run(FORMS[kills % 2]) == 0, job.log.read_text()
    rows = read(at) if kills < 20 else plain_spark(name, warehouse)
    assert sorted(row["id"] for row in rows) == list(range(total))
    assert all((row["source"], row["name"]) == (f"s{row['id']}", NAMES[row["id"] % 3]) for row in rows)


def read(at: TableLocation) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    found: list[dict[str, Any]] = DeltaTable(at.path).to_pyarrow_table().to_pylist()
    return found


def plain_spark(name: str, warehouse: Path) -> list[dict[str, Any]]:
    with other_spark(warehouse) as execute:
        return execute(f"SELECT * FROM {name}")  # noqa: S608
