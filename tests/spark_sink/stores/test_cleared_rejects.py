"""An operator empties the rejects table: the job goes on, and the result table stays guarded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import duckdb
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from psycopg import sql
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from faults.mariadb import MariadbServer
from kafka_ratchet.spark_sink.errors import RowsLost
from kafka_ratchet.spark_sink.job.job import run_batch
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.run_state import RunSummary
from kafka_ratchet.spark_sink.rows.columns import record_schema
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import DeltaSite, DuckDBSite, IcebergSite, MysqlSite, PostgresSite, Site, param

PIPELINE = RowPipeline("n int", rejects=True)
STORES = [param("delta"), *(param(kind, by_default=False) for kind in ("postgres", "duckdb", "iceberg"))]


def empty(site: Site, ending: str, how: str) -> None:
    """Empty the result table or its rejects by another client."""
    if isinstance(site, PostgresSite):
        with site.connect() as database:
            statement = "TRUNCATE {}" if how == "TRUNCATE" else "DELETE FROM {}"
            database.execute(sql.SQL(statement).format(sql.Identifier(site.schema, site.table + ending)))
    elif isinstance(site, MysqlSite):
        with site.connect() as cursor:
            cursor.execute(f"{'TRUNCATE' if how == 'TRUNCATE' else 'DELETE FROM'} {site.name(ending)}")
    elif isinstance(site, DuckDBSite):
        with duckdb.connect(site.path) as database:
            table = quoted_plain(site.table + ending)
            database.execute(f"{'TRUNCATE' if how == 'TRUNCATE' else 'DELETE FROM'} {table}")
    elif isinstance(site, DeltaSite):
        DeltaTable(site.path + ending).delete()
    elif isinstance(site, IcebergSite):
        catalog = SqlCatalog("ratchet", uri=f"sqlite:///{site.path / 'catalog.db'}", warehouse=f"file://{site.path}")
        catalog.load_table(f"ratchet.results{ending}").delete()
        catalog.close()


def quoted_plain(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def produce(broker: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker})
    for value in values:
        producer.produce(topic, value, None, 0)
    assert producer.flush(60) == 0


@pytest.mark.parametrize("how", ["DELETE", "TRUNCATE"])
@pytest.mark.parametrize("site", STORES, indirect=True)
def test_an_emptied_rejects_table_does_not_stop_the_job(
    site: Site, how: str, broker: str, new_topic: Callable[..., str], ingest: Callable[..., RunSummary]
) -> None:
    goes_on(site, how, broker, new_topic(partitions=1), ingest)


@pytest.mark.matrix
@pytest.mark.parametrize("how", ["DELETE", "TRUNCATE"])
def test_an_emptied_rejects_table_on_mariadb(
    mariadb: MariadbServer, request: pytest.FixtureRequest, how: str, broker: str, new_topic: Callable[..., str]
) -> None:
    site = MysqlSite(mariadb, f"cleared {how} {id(request)}")

    def ingest(topic: str, pipeline: RowPipeline) -> RunSummary:
        planner = TopicPlanner(broker, topic, {})
        store = site.make("job", topic, planner.topic_id(), pipeline.write_mode, record_schema())
        spark = request.getfixturevalue("spark")
        return run_batch(Job(broker, topic, "job", pipeline), planner, store, lambda: nullcontext(spark))

    goes_on(site, how, broker, new_topic(partitions=1), ingest)


def goes_on(site: Site, how: str, broker: str, topic: str, ingest: Callable[..., RunSummary]) -> None:
    produce(broker, topic, b'{"n": 1}', b"one", b"two")
    ingest(topic, PIPELINE)
    assert (len(site.rows()), len(site.rows(rejects=True))) == (1, 2)
    empty(site, "_rejects", how)
    assert site.rows(rejects=True) == []
    produce(broker, topic, b'{"n": 2}', b"three")
    found = ingest(topic, PIPELINE)
    assert (found.rows, found.rejects) == (1, 1)
    assert sorted(row["n"] for row in site.rows()) == [1, 2]
    assert [bytes(row["_kafka_value"]) for row in site.rows(rejects=True)] == [b"three"]
    empty(site, "_rejects", how)
    produce(broker, topic, b'{"n": 3}')  # a commit without a reject
    assert ingest(topic, PIPELINE).rows == 1
    assert ingest(topic, PIPELINE).rows == 0
    empty(site, "", how)  # the result itself is another matter
    produce(broker, topic, b'{"n": 4}')
    with pytest.raises(RowsLost):
        ingest(topic, PIPELINE)


@pytest.mark.parametrize("site", [param("duckdb"), param("postgres", by_default=False)], indirect=True)
def test_rejects_are_not_read_again_after_the_result_alone_was_emptied(site: Site, spark: SparkSession) -> None:
    reads_rejects_once(site, spark)


@pytest.mark.matrix
def test_rejects_are_not_read_again_on_mariadb(
    mariadb: MariadbServer, request: pytest.FixtureRequest, spark: SparkSession
) -> None:
    reads_rejects_once(MysqlSite(mariadb, f"result alone {id(request)}"), spark)


def reads_rejects_once(site: Site, spark: SparkSession) -> None:
    plain, record = "_kafka_partition int, _kafka_offset long, n int", "_kafka_partition int, _kafka_offset long"
    rejects = struct_of(record)
    holder = site.make(rejects=rejects)
    holder.open(struct_of(plain))
    holder.commit(spark.createDataFrame([(0, 0, 1)], plain), {0: 0}, {0: 2}, spark.createDataFrame([(0, 1)], record))
    empty(site, "", "TRUNCATE")
    for ending, shown in (("_rejects", None), ("", {})):
        check = site.make(rejects=rejects).check()
        assert check.row_offsets == shown
        assert ("--from table" in check.trouble) == (shown is not None)
        assert "--from stored" in check.trouble
        empty(site, ending, "TRUNCATE")
