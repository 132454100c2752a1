"""One Spark for all in-process tests of the sink, and real topics with real transactions in them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from faults.mariadb import HOW_TO_INSTALL, MariadbServer, find_mariadb, run_mariadb
from faults.postgres import PostgresServer, run_postgres
from faults.sink_environment import quick_jvm
from kafka_ratchet.app.local.jars import spark_jars
from kafka_ratchet.app.local.spark_classes import kept_classes
from kafka_ratchet.spark_sink.job.job import run_batch
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.run_state import RunSummary
from kafka_ratchet.spark_sink.rows.columns import record_schema
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.spark.package import write_package
from kafka_ratchet.spark_sink.spark.session import spark_session
from kafka_ratchet.spark_sink.stores.registry import STORES
from tests.app.written_stream import NewTopic, Stage
from tests.markers import partition_ends, wait_for_marker
from tests.spark_sink.files.bucket import BucketSite, s3_server
from tests.spark_sink.followed import Follow, Followed
from tests.spark_sink.sites import (
    AT_LENGTH,
    IN_A_BUCKET,
    LOCAL,
    OF_THE_TESTS,
    ON_MARIADB,
    SERVED,
    FolderSite,
    MysqlSite,
    Site,
    delta_store,
    params,
)


@cache
def spark_jvm() -> dict[str, str]:
    """Variables of a process that starts Spark for seconds, with the classes that `./ratchet setup` has kept.

    Starts take half as long with them.
    """
    return quick_jvm(kept_classes())


ON_EVERY_STORE = (
    "test_rows_and_offsets_of_sparse_partitions_come_back",
    "test_a_holder_that_dies_at_any_step_leaves_rows_and_offsets_that_agree",
)
"""Tests of the matrix that the default tests run on every store all the same; all others on MariaDB stay there."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # pyspark drops the sockets of collect() without closing them.
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed.*socket:ResourceWarning"))
            if getattr(item, "originalname", "") in ON_EVERY_STORE:
                item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "matrix"]
            elif "mariadb" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.matrix)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with (
        warnings.catch_warnings(action="ignore", category=ResourceWarning),
        pytest.MonkeyPatch.context() as monkeypatch,
    ):
        for name, value in spark_jvm().items():
            monkeypatch.setenv(name, value)
        with spark_session("tests", [str(jar) for jar in spark_jars()], "local[1]") as session:
            yield session
        gc.collect()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with run_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariadbServer]:
    if find_mariadb() is None:
        pytest.skip(f"there is no MariaDB on this machine, so that the store for MySQL is not tested. {HOW_TO_INSTALL}")
    with run_mariadb() as server:
        yield server


Write = Callable[..., None]


@pytest.fixture
def write(broker: str) -> Write:
    """write(topic, values, partition=0, commit=True, keys=None) puts records there in one Kafka transaction."""

    def reset_offsets(
        topic: str,
        values: list[bytes | None],
        partition: int = 0,
        *,
        commit: bool = True,
        keys: list[bytes | None] | None = None,
    ) -> None:
        producer = Producer({"bootstrap.servers": broker, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(30)
        stable, last = partition_ends(broker, topic, partition)
        producer.begin_transaction()
        for key, value in zip(keys or [None] * len(values), values, strict=True):
            producer.produce(topic, value, key, partition)
        assert producer.flush(30) == 0
        if commit:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
        wait_for_marker(broker, topic, partition, last + len(values) + 1, behind_another=stable < last)

    return reset_offsets


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, str]]:
    """Storage options of a server of S3 with one bucket, `results`."""
    with s3_server() as options:
        yield options


@pytest.fixture
def folder_store() -> Iterator[None]:
    """What adding a store takes, beside its folder: one line in the table of stores."""
    with pytest.MonkeyPatch.context() as patch:  # one of its own: tests undo theirs midway
        patch.setitem(STORES, "folder", "tests.spark_sink.stores.folder_store:FolderStore")
        yield


def make_site(request: pytest.FixtureRequest, folder: Path) -> Site:
    """Make an empty site of the kind that a fixture was asked for."""
    if request.param == ON_MARIADB:
        return MysqlSite(request.getfixturevalue("mariadb"), f"base of {folder.name}"[:56])
    if request.param == IN_A_BUCKET:
        return BucketSite(folder.name, request.getfixturevalue("s3"))
    if request.param == OF_THE_TESTS:
        request.getfixturevalue("folder_store")
        return FolderSite(folder)
    if request.param in LOCAL:
        return LOCAL[request.param](folder)
    return SERVED[request.param](request.getfixturevalue("postgres"), f"schema of {folder.name}")


@pytest.fixture(params=[*params(*LOCAL, *SERVED), *AT_LENGTH])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """A result table of each kind."""
    return make_site(request, tmp_path)


@pytest.fixture
def ingest(broker: str, spark: SparkSession, site: Site) -> Callable[..., RunSummary]:
    """ingest(topic, pipeline, max_records=...) runs the batch job into the site."""

    def run(topic: str, pipeline: RowPipeline, max_records: int = 1_000_000) -> RunSummary:
        planner = TopicPlanner(broker, topic, {})
        rejects = record_schema() if pipeline.rejects else None
        store = site.make("job", topic, planner.topic_id(), pipeline.write_mode, rejects)
        return run_batch(Job(broker, topic, "job", pipeline, max_records), planner, store, lambda: nullcontext(spark))

    return run


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Path of a table that does not exist yet; its name is one that careless code gets wrong."""
    return str(tmp_path / "results of Zoë; $(id) #1")


@pytest.fixture
def run(broker: str, spark: SparkSession, table: str) -> Callable[..., RunSummary]:
    """run(topic, columns=None, max_records=..., name="job", second_job=False) runs the batch job in this process."""

    def start(
        topic: str,
        columns: str | None = None,
        max_records: int = 1_000_000,
        name: str = "job",
        *,
        second_job: bool = False,
    ) -> RunSummary:
        planner = TopicPlanner(broker, topic, {})
        store = delta_store(table, name, topic, planner.topic_id())
        job = Job(broker, topic, name, RowPipeline(columns), max_records, second_job=second_job)
        return run_batch(job, planner, store, lambda: nullcontext(spark))

    return start


@pytest.fixture
def rows(table: str) -> Callable[..., list[tuple[object, ...]]]:
    """rows(*columns) reads those columns of the table, ordered by partition and offset."""

    def read(*columns: str) -> list[tuple[object, ...]]:
        found = DeltaTable(table).to_pyarrow_dataset().to_table()
        found = found.sort_by([("_kafka_partition", "ascending"), ("_kafka_offset", "ascending")])
        return list(zip(*(found[column].to_pylist() for column in columns), strict=True))

    return read


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as one zip, as it goes to a cluster; beside it the script for spark-submit."""
    path = tmp_path_factory.mktemp("zip") / "spark_sink.zip"
    write_package(path)
    return path


@pytest.fixture
def command(broker: str, shipped: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """command(*arguments, **environment) runs the zipped job in a process group of its own, outside the checkout."""
    groups = []

    def start(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        words = [
            sys.executable,
            "-m",
            "kafka_ratchet.spark_sink",
            f"--bootstrap={broker}",
            "--master=local[1]",
            *arguments,
        ]
        words += ["--jars", ",".join(map(str, spark_jars()))]
        search = os.pathsep.join([str(shipped), *filter(None, [os.environ.get("PYTHONPATH")])])
        with subprocess.Popen(
            words,
            env={**os.environ, "PYTHONPATH": search, **spark_jvm(), **environment},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            groups.append(process.pid)
            out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    yield start
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            continue


@pytest.fixture
def follow(broker: str, new_topic: NewTopic, spark: SparkSession, site: Site) -> Follow:
    """follow(**sink) is a stream of two partitions and the site, with these settings of [sink]."""

    def any_time(partitions: int) -> str:
        return new_topic(partitions, message_timestamp_after_max_ms=2**63 - 1, retention_ms=-1)

    return lambda **sink: Followed(Stage(broker, any_time), site, spark, **sink)
