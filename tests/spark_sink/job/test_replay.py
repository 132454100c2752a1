"""`ratchet sink replay`: rows of a range are made once more and replace those of the table, in one version."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from kafka_ratchet.spark_sink.errors import Fenced, OffsetsLost, OptionRefused, TopicRecreated
from kafka_ratchet.spark_sink.job.control import read_place
from kafka_ratchet.spark_sink.job.job import run_batch
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.replay import run_replay
from kafka_ratchet.spark_sink.job.run_state import RunSummary
from kafka_ratchet.spark_sink.rows.columns import record_schema
from kafka_ratchet.spark_sink.rows.partition_by import partition_fields
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline, sql_transform
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.delta.store import DeltaStore
from kafka_ratchet.spark_sink.stores.iceberg.store import IcebergStore
from tests.spark_sink.damage import change
from tests.spark_sink.sites import LOCAL, SERVED, DeltaSite, MysqlSite, PostgresSite, Site, params
from tests.topic_config import recreate_topic, set_topic_config

NewTopic = Callable[..., str]
Replay = Callable[..., RunSummary]
Ingest = Callable[..., RunSummary]

PLACE = "_kafka_partition, _kafka_offset FROM records"
BEFORE = RowPipeline("n int", transform=sql_transform(f"SELECT n, {PLACE}"))
AFTER = RowPipeline("n int", transform=sql_transform(f"SELECT n * 10 AS n, {PLACE}"))


@pytest.fixture
def topic(broker: str, new_topic: NewTopic) -> str:
    """A topic of two partitions with the numbers 0 to 7 and 100 to 103."""
    name = new_topic(partitions=2)
    produce(broker, name, {0: range(8), 1: range(100, 104)})
    return name


def produce(broker: str, topic: str, values: dict[int, range]) -> None:
    producer = Producer({"bootstrap.servers": broker})
    for partition, numbers in values.items():
        for number in numbers:
            producer.produce(topic, json.dumps({"n": number}).encode(), None, partition)
    assert producer.flush(60) == 0


@pytest.fixture
def replay(broker: str, spark: SparkSession, site: Site) -> Replay:
    """replay(topic, pipeline, begin, end) into the site."""

    def run(topic: str, pipeline: RowPipeline, begin: str, end: str) -> RunSummary:
        planner = TopicPlanner(broker, topic, {})
        rejects = record_schema() if pipeline.rejects else None
        store = site.make("job", topic, planner.topic_id(), pipeline.write_mode, rejects)
        job = replace(
            Job(broker, topic, "job", pipeline),
            start=read_place("--from", begin, "earliest"),
            until=read_place("--to", end, "stored"),
        )
        return run_replay(job, planner, store, lambda: nullcontext(spark))

    return run


def numbers(site: Site) -> list[int]:
    return sorted(row["n"] for row in site.rows())


def test_the_rows_of_a_range_are_replaced_and_offsets_stay(
    site: Site, topic: str, broker: str, ingest: Ingest, replay: Replay
) -> None:
    ingest(topic, BEFORE, max_records=4)
    before = site.make("job", topic).offsets()
    assert numbers(site) == [*range(8), *range(100, 104)]
    assert replay(topic, AFTER, "0:2,1:1", "0:5,1:2").rows == 4
    assert numbers(site) == sorted([0, 1, 20, 30, 40, 5, 6, 7, 100, 1010, 102, 103])
    assert site.make("job", topic).offsets() == before
    # Once more is the same; and the job goes on behind it.
    assert replay(topic, AFTER, "0:2,1:1", "0:5,1:2").rows == 4
    produce(broker, topic, {0: range(8, 10)})
    assert ingest(topic, AFTER).rows == 2
    assert numbers(site) == sorted([0, 1, 20, 30, 40, 5, 6, 7, 80, 90, 100, 1010, 102, 103])
    assert replay(topic, AFTER, "earliest", "stored").rows == 14
    assert numbers(site) == sorted([*range(0, 100, 10), *range(1000, 1040, 10)])


def test_rows_that_are_none_any_more_go_and_a_record_may_become_several(
    site: Site, topic: str, ingest: Ingest, replay: Replay
) -> None:
    ingest(topic, BEFORE)
    none = replace(BEFORE, transform=sql_transform(f"SELECT n, {PLACE} LIMIT 0"))
    assert replay(topic, none, "0:2", "0:8").rows == 0
    assert numbers(site) == [0, 1, *range(100, 104)]
    several = f"SELECT explode(array(n, -n)) AS n, {PLACE}"
    assert replay(topic, replace(BEFORE, transform=sql_transform(several)), "0:1", "0:4").rows == 6
    assert numbers(site) == sorted([0, 1, -1, 2, -2, 3, -3, *range(100, 104)])


def test_a_replay_that_dies_leaves_the_rows_of_before_and_one_that_is_fenced_changes_nothing(
    site: Site, topic: str, ingest: Ingest, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        """The process ends here."""

    ingest(topic, BEFORE)
    there = numbers(site)
    for at in ("before-write", "before-commit"):

        def die(point: str, at: str = at) -> None:
            if point == at:
                raise Died

        monkeypatch.setattr(crash_points, "passing", die)
        with pytest.raises(Died):
            replay(topic, AFTER, "earliest", "stored")
        assert numbers(site) == there

    def taken(point: str) -> None:
        if point == "before-commit":
            monkeypatch.setattr(crash_points, "passing", lambda _: None)
            successor = site.make("job", topic, 0, AFTER.write_mode)
            columns = successor.columns()
            assert columns is not None
            successor.open(columns)

    monkeypatch.setattr(crash_points, "passing", taken)
    with pytest.raises(Fenced):
        replay(topic, AFTER, "earliest", "stored")
    assert numbers(site) == there
    assert ingest(topic, AFTER).rows == 0


def test_ranges_and_tables_that_cannot_be_replayed(
    site: Site, topic: str, broker: str, ingest: Ingest, replay: Replay
) -> None:
    with pytest.raises(OptionRefused, match="has no records of topic"):
        replay(topic, BEFORE, "earliest", "stored")
    ingest(topic, BEFORE)
    there = numbers(site)
    for begin, end, sentence in [
        ("0:2", "0:9", r"--to 0:9: the table has read .*/0 only up to offset 8"),
        ("0:2", "0:5,1:2", r"--from 0:2 names no offset for partition 1"),
        ("0:5", "0:2", r"--from 0:5: in partition 0 this start lies after the end, --to 0:2"),
        ("4:0", "4:1", "has no partition 4"),
    ]:
        with pytest.raises(OptionRefused, match=sentence):
            replay(topic, AFTER, begin, end)
    without = replace(AFTER, transform=sql_transform("SELECT n FROM records"))
    with pytest.raises((OptionRefused, OffsetsLost, Exception), match=r"_kafka_partition"):
        replay(topic, without, "earliest", "stored")
    second = site.make("second", topic)
    columns = second.columns()
    assert columns is not None
    second.open(columns)
    # Markers only: offsets of the second job, and no row.
    second.commit(empty(site, columns), {0: 0}, {0: 1})
    with pytest.raises(OptionRefused, match=rf"rows of job second \(topic {topic}\), and a row"):
        replay(topic, AFTER, "earliest", "stored")
    assert numbers(site) == there


@pytest.mark.parametrize("site", params(*LOCAL, *SERVED, by_default=("iceberg", "duckdb", "postgres")), indirect=True)
def test_rows_without_their_record_are_not_doubled(site: Site, topic: str, ingest: Ingest, replay: Replay) -> None:
    """Such as the rows of before a job's sql kept partition and offset."""
    ingest(topic, BEFORE)
    there = numbers(site)
    for column in ("_kafka_offset", "_kafka_partition"):
        change(site, f"{column} = NULL", "n = 3")
        with pytest.raises(OptionRefused, match=r"null in _kafka_partition or _kafka_offset.* Nothing was replaced"):
            replay(topic, AFTER, "0:2", "0:5")
        assert numbers(site) == there
        change(site, f"{column} = {0 if column == '_kafka_partition' else 3}", "n = 3")
    replay(topic, AFTER, "0:2", "0:5")
    assert numbers(site) == sorted([0, 1, 20, 30, 40, 5, 6, 7, *range(100, 104)])


@pytest.mark.parametrize("site", ["delta"], indirect=True)
def test_a_compacted_topic_cannot_be_replayed(
    site: Site, topic: str, broker: str, ingest: Ingest, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(topic, BEFORE)
    there = numbers(site)
    for policy in ("compact", "compact,delete"):
        set_topic_config(AdminClient({"bootstrap.servers": broker}), topic, "cleanup.policy", policy)
        with pytest.raises(OptionRefused, match=rf"topic {topic} has cleanup\.policy={policy}.*removed"):
            replay(topic, AFTER, "earliest", "stored")
    assert numbers(site) == there
    refused: Future[Any] = Future()
    refused.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))

    def refuse(_: AdminClient, resources: list[Any], **__: Any) -> dict[Any, Future[Any]]:
        return dict.fromkeys(resources, refused)

    with monkeypatch.context() as patch:
        patch.setattr(AdminClient, "describe_configs", refuse)
        with pytest.raises(OptionRefused, match=r"DescribeConfigs on topic"):
            replay(topic, AFTER, "earliest", "stored")
    assert numbers(site) == there


def empty(site: Site, columns: Any) -> Any:
    session = SparkSession.getActiveSession()
    assert session is not None
    return session.createDataFrame([], columns)


@pytest.mark.parametrize("site", params(*LOCAL, *SERVED, by_default=("postgres",)), indirect=True)
def test_rejects_are_replaced_with_the_rows_or_the_replay_is_refused(
    site: Site, broker: str, new_topic: NewTopic, ingest: Ingest, replay: Replay
) -> None:
    if not site.rejects:
        pytest.skip("this site has no rejects")
    topic = new_topic(partitions=1)
    producer = Producer({"bootstrap.servers": broker})
    for value in (b'{"n": 1}', b'{"n": "two"}', b'{"n": 3000000000}', b'{"n": 4}'):
        producer.produce(topic, value, None, 0)
    assert producer.flush(60) == 0
    pipeline = RowPipeline("n int", rejects=True)
    ingest(topic, pipeline)
    assert (len(site.rows()), len(site.rows(rejects=True))) == (2, 2)
    if site.location.kind in ("delta", "iceberg"):
        with pytest.raises(OptionRefused, match="this store keeps rejects in a separate table"):
            replay(topic, pipeline, "earliest", "stored")
        return
    assert replay(topic, pipeline, "0:1", "0:4").rows == 1
    assert (len(site.rows()), len(site.rows(rejects=True))) == (2, 2)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_partitions_of_the_table_stay(kind: str, topic: str, broker: str, spark: SparkSession, tmp_path: Path) -> None:
    site = LOCAL[kind](tmp_path)
    made = DeltaStore if kind == "delta" else IcebergStore
    fields = partition_fields(("n", "day(_kafka_timestamp)"))
    planner = TopicPlanner(broker, topic, {})
    pipeline = RowPipeline("n int")

    def store() -> Any:
        return made(site.location, "job", topic, planner.topic_id(), partition_by=fields)

    run_batch(Job(broker, topic, "job", pipeline), planner, store(), lambda: nullcontext(spark))
    there = sorted(site.rows(), key=lambda row: row["n"])
    job = replace(
        Job(broker, topic, "job", pipeline), start=read_place("--from", "0:2"), until=read_place("--to", "0:6")
    )
    assert run_replay(job, planner, store(), lambda: nullcontext(spark)).rows == 4
    assert sorted(site.rows(), key=lambda row: row["n"]) == there
    if kind == "delta":
        actions = pa.table(DeltaTable(site.location.path).get_add_actions(flatten=True))
        assert sorted(set(actions["partition.n"].to_pylist())) == [*range(8), *range(100, 104)]


@pytest.mark.matrix
def test_a_topic_that_is_created_again_while_spark_reads_it(
    topic: str, broker: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = DeltaSite(tmp_path)
    planner, stage = TopicPlanner(broker, topic, {}), DeltaStore._stage_replacement
    run_batch(Job(broker, topic, "job", BEFORE), planner, site.make("job", topic), lambda: nullcontext(spark))
    before = numbers(site)

    def stage_of_another_topic(self: DeltaStore, *given: Any) -> Any:
        recreate_topic(broker, topic, 2)
        produce(broker, topic, {0: range(500, 520), 1: range(600, 620)})
        staged = stage(self, *given)
        assert staged.rows == 3
        return staged

    monkeypatch.setattr(DeltaStore, "_stage_replacement", stage_of_another_topic)
    job = replace(Job(broker, topic, "job", AFTER), start=read_place("--from", "0:2"), until=read_place("--to", "0:5"))
    with pytest.raises(TopicRecreated, match="deleted and created again while the job read it"):
        run_replay(job, planner, site.make("job", topic), lambda: nullcontext(spark))
    assert numbers(site) == before


@pytest.mark.matrix
def test_on_mariadb(mariadb: Any, topic: str, broker: str, spark: SparkSession, tmp_path: Path) -> None:
    site = MysqlSite(mariadb, f"replay of {tmp_path.name}"[:56])
    planner = TopicPlanner(broker, topic, {})
    run_batch(Job(broker, topic, "job", BEFORE), planner, site.make("job", topic), lambda: nullcontext(spark))
    job = replace(Job(broker, topic, "job", AFTER), start=read_place("--from", "0:2"), until=read_place("--to", "0:5"))
    run_replay(job, planner, site.make("job", topic), lambda: nullcontext(spark))
    assert numbers(site) == sorted([0, 1, 20, 30, 40, 5, 6, 7, *range(100, 104)])


def test_a_trigger_that_keeps_rows_is_an_error(
    postgres: Any, topic: str, broker: str, spark: SparkSession, tmp_path: Path
) -> None:
    site = PostgresSite(postgres, f"schema of {tmp_path.name}")
    planner = TopicPlanner(broker, topic, {})
    run_batch(Job(broker, topic, "job", BEFORE), planner, site.make("job", topic), lambda: nullcontext(spark))
    there = numbers(site)
    with site.connect() as database:
        database.execute(
            f'CREATE FUNCTION "{site.schema}".keep() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NULL; END$$'
        )
        table = '"' + site.table.replace('"', '""') + '"'
        database.execute(
            f'CREATE TRIGGER keeps BEFORE DELETE ON "{site.schema}".{table} '
            f'FOR EACH ROW EXECUTE FUNCTION "{site.schema}".keep()'
        )
    job = replace(Job(broker, topic, "job", AFTER), start=read_place("--from", "0:2"), until=read_place("--to", "0:5"))
    with pytest.raises(Exception, match="still has 3 rows of partition 0, offsets 2 to 4"):
        run_replay(job, planner, site.make("job", topic), lambda: nullcontext(spark))
    assert numbers(site) == there
