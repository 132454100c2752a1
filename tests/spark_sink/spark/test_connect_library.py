"""The library by way of Spark Connect: a script of the user's, in a process without Java.

pyspark's extra `connect` is not among the tests' packages, so it is the environments of test_releases that run this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.postgres import PostgresServer
from kafka_ratchet.spark_sink.spark.versions import RELEASES, installed_release
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.results import read_rows
from tests.folders import ROOT
from tests.spark_sink.spark.connect_server import connect_server
from tests.spark_sink.test_library import fill

pytestmark = [
    getattr(pytest.mark, "spark-versions"),
    pytest.mark.long,
    pytest.mark.skipif(installed_release() is RELEASES["3.5"], reason="pyspark 3.5 has no server of Spark Connect"),
]

JOB = """\
import json, sys
from pyspark.sql import SparkSession, functions as F
from kafka_ratchet.spark_sink import exactly_once
from kafka_ratchet.spark_sink.errors import SinkError

form, kafka, topic, checkpoint, target, options = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
assert type(spark).__module__ == "pyspark.sql.connect.session"

def enrich(records):
    towns = spark.createDataFrame([(0, "Graz"), (1, "Linz"), (2, "Wien")], "town int, name string")
    order = F.from_json(F.col("value").cast("string"), "id long, town int").alias("order")
    read = records.select("partition", "offset", order)
    hours = F.expr("timestamp_seconds(3600 * order.id)").alias("at")
    return read.select("partition", "offset", "order.*", hours).join(towns, "town")

spark.conf.set("spark.sql.session.timeZone", "America/New_York")
before = {row["key"]: row["value"] for row in spark.sql("SET").collect()}
sink = exactly_once(target, job="orders", **json.loads(options))
try:
    if form == "batches":
        for batch in sink.batches(spark, bootstrap=kafka, topic=topic, max_records=20):
            sink.commit(enrich(batch.records), batch)
        print(json.dumps(sink.offsets(topic)))
    elif form == "records":
        batch = next(sink.batches(spark, bootstrap=kafka, topic=topic))
        rows = batch.records.orderBy("partition", "offset").collect()
        print(json.dumps([[type(value).__name__ for value in rows[0]], [row["sequence"] for row in rows],
                          [row["producer"] for row in rows], batch.records.columns]))
    else:
        stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka).option("subscribe", topic)
        stream = stream.options(includeHeaders="true", startingOffsets="earliest").load()
        def step(frame, number):
            exactly_once(target, job="orders").batch(frame, number)
        functions = {"step": step, "lambda": lambda frame, number: sink.batch(frame, number)}
        function = functions[form] if form in functions else sink.batch
        query = stream.writeStream.foreachBatch(function).option("checkpointLocation", checkpoint)
        query.trigger(availableNow=True).start().awaitTermination()
except Exception as error:
    print(type(error).__name__, error, "<-", error.__context__)
    sys.exit(1)
assert before == {row["key"]: row["value"] for row in spark.sql("SET").collect()}
"""


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server, for all tests of this file."""
    pytest.importorskip("grpc", reason="runs in an environment of test_releases")
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(remote: str, broker: str, tmp_path: Path) -> Run:
    """run(form, topic, target, **options) is one run of the script."""
    (tmp_path / "job.py").write_text(JOB)

    def start(form: str, topic: str, target: str, **options: Any) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "job.py", form, broker, topic, str(tmp_path / "checkpoint"), target]
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("SPARK", "PYSPARK"))}
        given = {"SPARK_REMOTE": remote, "JAVA_HOME": "/nowhere", "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [*words, json.dumps(options)], env={**kept, **given}, cwd=tmp_path, capture_output=True, text=True
        )

    return start


def exactly(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(params=["delta", "postgres", "duckdb", "iceberg"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any], TableLocation]:
    """Target and options, as a user writes them, and the table for a reader."""
    folder = tmp_path / "tables"
    folder.mkdir()
    match request.param:
        case "delta":
            return str(folder / "orders"), {}, TableLocation("delta", str(folder / "orders"))
        case "duckdb":
            file = folder / "results.duckdb"
            return f"duckdb:{file}?table=orders", {}, TableLocation("duckdb", str(file), "orders")
        case "iceberg":
            location = TableLocation("iceberg", str(folder), "sales.orders")
            return "iceberg:sales.orders", {"catalog": {"path": str(folder)}}, location
    postgres: PostgresServer = request.getfixturevalue("postgres")
    table = f"orders_{uuid.uuid4().hex}"
    location = TableLocation("postgres", "", table, postgres.url, postgres.password)
    return f"{postgres.url}?table={table}", {"password": postgres.password}, location


def test_a_loop_commits_each_record_once(
    broker: str, new_topic: Callable[..., str], run: Run, place: tuple[str, dict[str, Any], TableLocation]
) -> None:
    topic, (target, options, location) = new_topic(2), place
    for first in (0, 30):
        fill(broker, topic, range(first, first + 30))
        assert exactly(run("batches", topic, target, **options)) == {"0": (first + 30) // 2, "1": (first + 30) // 2}
    rows = [(n, town, name, at.timestamp()) for n, town, name, at in read_rows(location, ["id", "town", "name", "at"])]
    assert sorted(rows) == [(n, n % 3, ("Graz", "Linz", "Wien")[n % 3], 3600 * n) for n in range(60)]


def test_upserts(
    broker: str,
    new_topic: Callable[..., str],
    run: Run,
    place: tuple[str, dict[str, Any], TableLocation],
) -> None:
    topic, (target, options, location) = new_topic(1), place
    fill(broker, topic, range(30), partitions=1)
    exactly(run("batches", topic, target, kind="upsert", key="town", **options))
    assert sorted(read_rows(location, ["town", "id", "_kafka_offset"])) == [(0, 27, 27), (1, 28, 28), (2, 29, 29)]


def test_totals(
    broker: str,
    new_topic: Callable[..., str],
    run: Run,
    place: tuple[str, dict[str, Any], TableLocation],
) -> None:
    topic, (target, options, location) = new_topic(1), place
    fill(broker, topic, range(30), partitions=1)
    exactly(run("batches", topic, target, kind="totals", key="town", sums="id", **options))
    assert sorted((row[0], int(row[1])) for row in read_rows(location, ["town", "id"])) == [
        (0, 135),
        (1, 145),
        (2, 155),
    ]


def test_the_columns_of_records(broker: str, new_topic: Callable[..., str], run: Run, tmp_path: Path) -> None:
    topic = new_topic(1)
    fill(broker, topic, range(4), partitions=1)
    types, sequences, producers, names = exactly(run("records", topic, str(tmp_path / "t")))
    assert types == "bytes bytes str int int datetime int list NoneType NoneType".split()
    assert names == "key value topic partition offset timestamp timestampType headers sequence producer".split()
    assert sequences == [None, 1, None, 3]
    assert producers == [None, "meter", None, "meter"]


def test_foreach_batch_is_refused_where_it_is_called(
    broker: str, new_topic: Callable[..., str], run: Run, tmp_path: Path
) -> None:
    topic = new_topic(1)
    fill(broker, topic, range(4), partitions=1)
    for form in ("foreachBatch", "lambda", "step"):
        refused = run(form, topic, str(tmp_path / "t"))
        assert refused.returncode == 1
        assert "Loop over sink.batches" in refused.stdout, refused.stdout
    assert not (tmp_path / "t").exists()
