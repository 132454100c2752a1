"""A raw topic into a table: rows, offsets and last sequences agree, wherever a commit is broken off."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_ratchet.spark_sink.errors import OptionRefused, RuleDiffers, SecondJob, SequencesLost, SinkError, StoreError
from kafka_ratchet.spark_sink.job.access import Access
from kafka_ratchet.spark_sink.job.commit import commit_records
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.resume import plan_resume
from kafka_ratchet.spark_sink.job.run_state import RunState
from kafka_ratchet.spark_sink.job.spec import JobSpec
from kafka_ratchet.spark_sink.job.start import require_first_job
from kafka_ratchet.spark_sink.rows.columns import record_schema
from kafka_ratchet.spark_sink.rows.judging.rule import JudgeRule
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores import crash_points, sequence_files
from kafka_ratchet.spark_sink.stores.decision import decide
from kafka_ratchet.spark_sink.stores.judging_store import JudgingStore
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.open_store import make_store, rejects_location
from kafka_ratchet.spark_sink.stores.results import read_rows
from kafka_ratchet.spark_sink.stores.vacuum import vacuum
from tests.spark_sink.rows.judging.test_judge import KAFKA, RULES, WHEN, Plain, drawn, read_by_spark
from tests.spark_sink.sites import Site, param, params
from tests.tables.fetched_records import Sent

POSTGRES = param("postgres", by_default=False)
FILES = params("delta", "duckdb", "iceberg")
IN_FILES = pytest.mark.parametrize("site", FILES, indirect=True)
JUDGING = pytest.mark.parametrize("site", [*FILES, POSTGRES], indirect=True)
AND_A_BUCKET = pytest.param("delta-s3", marks=pytest.mark.long)
POINTS = ("before-write", "before-sequences", "before-commit", "between-commits", "in-commit", "after-commit")


class Broken(Exception):
    """A kill, as this process can have it."""


class Raw:
    """A raw topic of two partitions, and the job that reads it into a table."""

    def __init__(self, location: TableLocation, spark: SparkSession, rule: JudgeRule) -> None:
        self.location, self.spark, self.rule = location, spark, rule
        self.records: list[list[Sent]] = [[], []]
        self.run = RunState(lambda _: None)

    @property
    def pipeline(self) -> RowPipeline:
        return RowPipeline(None, WriteMode(judged=self.rule), rejects=True)

    def store(self, name: str = "job", topic: str = "t") -> JudgingStore:
        return cast("JudgingStore", make_store(self.location, name, topic, 7, self.pipeline))

    def commit(
        self,
        store: JudgingStore,
        start: dict[int, int],
        end: dict[int, int],
        read: Callable[[DataFrame], DataFrame] = read_by_spark,
    ) -> None:
        rows = [
            (r.key, r.value, "t", partition, offset, WHEN, 0, list(r.headers) or None)
            for partition, part in enumerate(self.records)
            for offset, r in enumerate(part)
            if start.get(partition, 0) <= offset < end.get(partition, 0)
        ]
        records = read(self.spark.createDataFrame(rows, KAFKA))
        commit_records(records, start, end, Job("", "t", "job", self.pipeline), store, self.run)

    def found(self) -> dict[tuple[int, int], list[str]]:
        """Per record what the two tables have of it."""
        found: dict[tuple[int, int], list[str]] = {}
        for partition, offset in read_rows(self.location, ["_kafka_partition", "_kafka_offset"]):
            found.setdefault((partition, offset), []).append("fresh")
        for partition, offset, reason in read_rows(
            rejects_location(self.location), ["_kafka_partition", "_kafka_offset", "_reason"]
        ):
            found.setdefault((partition, offset), []).append(reason)
        return found

    def expected(self, end: dict[int, int]) -> dict[tuple[int, int], list[str]]:
        return {
            (partition, offset): [verdict]
            for partition, part in enumerate(self.records)
            for offset, verdict in enumerate(Plain(self.rule).judge(part, 0) if part else [])
            if verdict != "duplicate" and offset < end[partition]
        }


@pytest.fixture
def break_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """break_at(point) has the next commit end there; "" has none."""
    asked = [""]

    def passing(point: str) -> None:
        if point == asked[0]:
            asked[0] = ""
            raise Broken(point)

    monkeypatch.setattr(crash_points, "passing", passing)
    return lambda point: asked.__setitem__(0, point)


@pytest.mark.parametrize("site", [*FILES, POSTGRES, AND_A_BUCKET], indirect=True)
@pytest.mark.parametrize("rule", [pytest.param(RULES[0], marks=pytest.mark.long), RULES[5]], ids=["numbers", "window"])
def test_rows_offsets_and_sequences_agree_after_any_break(
    site: Site, spark: SparkSession, rule: JudgeRule, break_at: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence_files, "FANOUT", 3)
    chance = random.Random(f"{site.location.kind} {rule}")
    raw = Raw(site.location, spark, rule)
    raw.records = [[drawn(rule, chance) for _ in range(200)] for _ in range(2)]
    end, points = {0: 0, 1: 0}, [*POINTS, ""]
    chance.shuffle(points)
    while points or any(end[p] < 200 for p in end):
        store = raw.store()
        store.open(raw.pipeline.schema(spark))
        stored = {0: 0, 1: 0} | store.offsets()
        assert stored == end
        point = points.pop() if points else ""
        break_at(point)
        until = {p: min(200, at + chance.randint(15, 30)) for p, at in end.items()}
        if until == end:
            break
        try:
            raw.commit(store, stored, until)
            end = until
        except (Broken, SinkError):
            end = {0: 0, 1: 0} | raw.store().offsets()
            assert end in (until, stored)
        store.close()
        break_at("")
    store = raw.store()  # what is left: in two commits of one holder
    stored = store.open(raw.pipeline.schema(spark))
    for to in (150, 200):
        if any(stored[p] < to for p in stored):
            until = {p: max(at, to) for p, at in stored.items()}
            raw.commit(store, stored, until)
            stored = until
    assert raw.found() == raw.expected(stored)
    assert store.known_sequences() is not None
    if site.location.kind == "postgres" or "://" in site.location.path:
        return
    left = list(Path(site.folder).rglob("manifest-*.json"))
    assert len(left) == 2, left  # the one that counts, and the one before
    assert len(list(Path(site.folder).rglob("*equences/**/part-*.parquet"))) < 12


def made(site: Site, spark: SparkSession, rule: JudgeRule = RULES[0]) -> Raw:
    """A table with one commit."""
    raw = Raw(site.location, spark, rule)
    chance = random.Random(1)
    raw.records = [[drawn(rule, chance) for _ in range(20)] for _ in range(2)]
    store = raw.store()
    store.open(raw.pipeline.schema(spark))
    raw.commit(store, {0: 0, 1: 0}, {0: 10, 1: 10})
    store.close()
    return raw


def folder_of_sequences(site: Site) -> Path:
    [manifest, *_] = Path(site.folder).rglob("manifest-*.json")
    return manifest.parent


@IN_FILES
def test_sequences_that_are_gone_or_put_back_are_refused(site: Site, spark: SparkSession, tmp_path: Path) -> None:
    raw = made(site, spark)
    folder, copy = folder_of_sequences(site), tmp_path / "copy"
    shutil.copytree(folder, copy)
    store = raw.store()
    stored = store.open(raw.pipeline.schema(spark))
    raw.commit(store, stored, {0: 20, 1: 20})
    newer = tmp_path / "newer"
    shutil.copytree(folder, newer)

    def refused(words: str) -> None:
        asks: tuple[Callable[[], object], ...] = (
            lambda: raw.store().offsets(),
            lambda: raw.store().open(raw.pipeline.schema(spark)),
        )
        for ask in asks:
            with pytest.raises(SequencesLost, match=words):
                ask()

    shutil.rmtree(folder)
    refused("is gone")
    shutil.copytree(copy, folder)  # as of the commit before
    refused("is gone")
    shutil.rmtree(folder)
    shutil.copytree(newer, folder)
    assert raw.store().offsets() == {0: 20, 1: 20}
    [part, *_] = folder.glob("part-*.parquet")
    part.write_bytes(part.read_bytes()[:-1])
    refused("another size")
    for each in folder.glob("manifest-*.json"):
        each.write_text("[]")
    refused("cannot be read")


@JUDGING
def test_another_rule_another_topic_and_no_judging_are_refused(site: Site, spark: SparkSession) -> None:
    raw = made(site, spark)
    others: list[WriteMode] = [
        WriteMode(),
        WriteMode(judged=replace(RULES[0], topic="u")),
        WriteMode(judged=replace(RULES[0], identity=("key",))),
        WriteMode(judged=replace(RULES[0], reorder_window=10)),
    ]
    for write_mode in others:
        topic = "u" if write_mode.judged and write_mode.judged.topic == "u" else "t"
        other = make_store(
            raw.location, "job", topic, 7, RowPipeline(None, write_mode, rejects=bool(write_mode.judged))
        )
        for ask in (other.require_write_mode, lambda other=other: other.open(raw.pipeline.schema(spark))):
            with pytest.raises(RuleDiffers, match="has committed its own judging"):
                ask()
    assert raw.store().offsets() == {0: 10, 1: 10}
    assert raw.store("second").other_jobs() == ["job"]


@JUDGING
def test_a_table_of_judged_records_takes_no_raw_ones(site: Site, spark: SparkSession) -> None:
    raw = Raw(site.location, spark, RULES[0])
    plain = RowPipeline()
    store = make_store(raw.location, "job", "out", 7, plain)
    store.open(plain.schema(spark))
    rows = spark.createDataFrame([(0, 0, WHEN, None, b"v")], plain.schema(spark))
    store.commit(rows, {0: 0}, {0: 1})
    with pytest.raises(RuleDiffers, match="has committed records that workers have judged, and is set to"):
        raw.store().require_write_mode()


@JUDGING
def test_a_commit_without_sequences_is_a_mistake(site: Site, spark: SparkSession) -> None:
    raw = made(site, spark)
    store = raw.store()
    stored = store.open(raw.pipeline.schema(spark))
    rows = spark.createDataFrame([], raw.pipeline.schema(spark))
    rejects = spark.createDataFrame([], "_kafka_partition int, _kafka_offset long, _kafka_timestamp timestamp, _kafka_key binary, _kafka_value binary, _reason string")  # fmt: skip # noqa: E501
    with pytest.raises(ValueError, match="a commit needs last sequences if the store judges"):
        store.commit(rows, stored, {0: 11, 1: 10}, rejects)


@JUDGING
def test_a_partition_that_two_tasks_have_judged_is_refused(site: Site, spark: SparkSession) -> None:
    """Spark's Kafka source does not split a partition; where something made it, each would pass what the other has."""
    raw = made(site, spark)
    store = raw.store()
    stored = store.open(raw.pipeline.schema(spark))
    again = Sent(b"k", b"v", (("ratchet-producer", b"c"), ("ratchet-sequence", b"7")))
    raw.records[0] += [again] * 10

    def split(records: DataFrame) -> DataFrame:
        # Not a union: from 4.1 on, Spark gives two parts of one partition each to one task.
        return records.repartition(3, F.col("offset") < 25).sortWithinPartitions("offset")

    with pytest.raises(StoreError, match=r"two tasks read one Kafka partition of this commit|a second time"):
        raw.commit(store, stored, {0: 30, 1: 10}, split)
    assert raw.store().offsets() == stored
    raw.commit(store, stored, {0: 30, 1: 10})
    assert raw.found() == raw.expected({0: 30, 1: 10})


@JUDGING
def test_a_job_on_the_other_side_of_the_workers_asks_first(site: Site) -> None:
    """Another name, and the stream's output in place of its input: the same records, and another topic."""
    location = site.location
    pipeline = RowPipeline(None, WriteMode(judged=RULES[0]), rejects=True)
    one = make_store(location, "job", "t", 7, pipeline)
    one.open(record_schema())
    one.reset_offsets({0: 10}, decide("latest", "as if it had committed so far"))
    access = Access(url=location.url, password=location.password)
    spec = JobSpec("localhost:1", "out", "second", location.kind, location.path, location.table, other_topic="t")
    job = spec.job(spec.pipeline(), access)
    store = spec.result_store(spec.pipeline(), access, 0)
    with pytest.raises(SecondJob, match="job job already writes the same stream to this table"):
        require_first_job(job, store)
    require_first_job(replace(job, second_job=True), store)
    require_first_job(replace(spec, other_topic="u").job(spec.pipeline(), access), store)


@JUDGING
def test_nobody_decides_other_offsets_than_the_sequences_have(site: Site) -> None:
    pipeline = RowPipeline(None, WriteMode(judged=RULES[0]), rejects=True)
    store = make_store(site.location, "job", "t", 7, pipeline)
    store.open(record_schema())
    planner = TopicPlanner("localhost:1", "t", {})  # it is not asked: the store refuses first
    for source in ("table", "earliest", "latest", "0:5"):
        with pytest.raises(OptionRefused, match="needs the last sequences that were committed with the stored"):
            plan_resume(store, planner, source, "why")
    other = make_store(site.location, "job", "out", 7, RowPipeline())
    with pytest.raises(OptionRefused, match="other offsets or another topic"):
        plan_resume(make_store(site.location, "job", "t", 8, pipeline), planner, "earliest", "a new topic")
    assert other.offsets() == {}
    if site.location.kind == "postgres":
        return
    store.reset_offsets({0: 10}, decide("stored", "offsets without sequences"))
    with pytest.raises(SequencesLost, match="the table has offsets, but no sequences"):
        plan_resume(store, planner, "stored", "go on")


@IN_FILES
def test_another_file_of_the_same_size_is_refused(site: Site, spark: SparkSession) -> None:
    raw = made(site, spark)
    file = next(each for each in site.folder.rglob("part-job*.parquet") if "sequences" in str(each.parent))
    data = bytearray(file.read_bytes())
    raw.store().require_sequences()
    data[-20] ^= 1
    file.write_bytes(data)
    for ask in (
        raw.store().offsets,
        raw.store().require_sequences,
        lambda: raw.store().open(raw.pipeline.schema(spark)),
    ):
        with pytest.raises(SequencesLost, match="is another file of the same size, or damaged"):
            ask()


@IN_FILES
def test_clean_ups_leave_them_alone(site: Site, spark: SparkSession) -> None:
    raw = made(site, spark)
    if site.location.kind == "delta":
        table = DeltaTable(site.location.path)
        table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        table.create_checkpoint()
    vacuum(site.location, older_than_s=-60)
    raw.store().require_sequences()
    assert raw.store().offsets() == {0: 10, 1: 10}


@pytest.mark.parametrize("site", [POSTGRES], indirect=True)
@pytest.mark.parametrize("harm", ["TRUNCATE {}", "DROP TABLE {}", "ALTER TABLE {} RENAME TO elsewhere"])
def test_a_table_of_sequences_that_is_emptied_or_gone_is_refused(site: Site, spark: SparkSession, harm: str) -> None:
    raw = made(site, spark)
    schema, _, table = site.location.table.rpartition(".")
    with psycopg.connect(site.location.url, password=site.location.password, autocommit=True) as database:
        name = sql.Identifier(*filter(None, [schema]), f"{table}_sequences")
        database.execute(sql.SQL(harm).format(name))
    for ask in (
        raw.store().offsets,
        lambda: raw.store().open(raw.pipeline.schema(spark)),
        raw.store().require_sequences,
    ):
        with pytest.raises(SequencesLost, match="would be added once more"):
            ask()


@pytest.mark.parametrize("site", [POSTGRES], indirect=True)
def test_sequences_of_a_table_that_was_dropped_before_are_refused(site: Site, spark: SparkSession) -> None:
    """Who begins anew drops what has the table's name, and the job's offsets: all records would count as known."""
    raw = made(site, spark)
    schema, _, table = site.location.table.rpartition(".")
    gone = [table, f"{table}_rejects", "ratchet_sink_jobs", "ratchet_sink_offsets", "ratchet_sink_marks"]
    with psycopg.connect(site.location.url, password=site.location.password, autocommit=True) as database:
        for name in gone:
            database.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(*filter(None, [schema]), name)))
    words = "_sequences has last sequences of job job, but the job's stored offsets are missing"
    for ask in (raw.store().offsets, lambda: raw.store().open(raw.pipeline.schema(spark))):
        with pytest.raises(SequencesLost, match=words):
            ask()
    with psycopg.connect(site.location.url, password=site.location.password, autocommit=True) as database:
        dropped = sql.Identifier(*filter(None, [schema]), f"{table}_sequences")
        database.execute(sql.SQL("DROP TABLE {}").format(dropped))
    store = raw.store()
    store.open(raw.pipeline.schema(spark))
    raw.commit(store, {0: 0, 1: 0}, {0: 10, 1: 10})
    assert raw.found() == raw.expected({0: 10, 1: 10})


@pytest.mark.usefixtures("folder_store")
def test_a_store_that_keeps_none_is_refused_by_name(tmp_path: Path) -> None:
    pipeline = RowPipeline(None, WriteMode(judged=RULES[0]), rejects=True)
    with pytest.raises(OptionRefused, match=r"store folder cannot commit last sequences .* delta, postgres"):
        make_store(TableLocation("folder", str(tmp_path)), "job", "t", 7, pipeline)


def file_of(name: str, rows: int) -> sequence_files.SequenceFile:
    return sequence_files.SequenceFile(name, rows, 1, 0)


def test_runs_of_one_size_become_one() -> None:
    """However many commits there are, the files are few, and each row is written again a few times only."""
    runs: list[sequence_files.Run] = []
    written = most = 0
    for n in range(5_000):
        runs.append(sequence_files.Run(100, (file_of(f"{n}", 100),)))
        joined, kept = sequence_files._to_join(runs)
        if joined:
            rows = sum(run.rows for run in joined)
            written += rows
            runs = [*kept, sequence_files.Run(rows, (file_of(f"m{n}", rows),))]
        most = max(most, len(runs))
    assert sum(run.rows for run in runs) == 500_000
    assert most <= 5 * sequence_files.FANOUT
    assert written <= 6 * 500_000


def test_a_task_reads_of_a_file_only_where_the_identities_may_be(tmp_path: Path) -> None:
    names = [b"%04d" % n for n in range(1_000)]
    table = pa.table({"_kafka_partition": pa.array([3] * 1_000, pa.int32()), "_identity": names, "_last": range(1_000)})
    path = tmp_path / "part"
    pq.write_table(table, path, row_group_size=100)
    look = sequence_files.looking([(str(path), 3)], None, has_seen=False)
    asked = [b"0555", b"no such", b"0599", b"", b"0500"]
    assert sorted(look(3, asked)) == [(b"0500", 500, None), (b"0555", 555, None), (b"0599", 599, None)]
    assert {name: last for name, last, _ in look(3, names[::7])} == {b"%04d" % n: n for n in range(0, 1_000, 7)}
    assert list(look(2, asked)) == []
    whole = bytearray(path.read_bytes())
    with pq.ParquetFile(path) as file:
        for number in (*range(5), *range(6, 10)):
            group = file.metadata.row_group(number)
            for column in map(group.column, range(3)):
                begin = column.dictionary_page_offset or column.data_page_offset
                whole[begin : begin + column.total_compressed_size] = bytes(column.total_compressed_size)
    path.write_bytes(whole)  # nothing is left of the other nine groups
    assert sorted(look(3, asked)) == [(b"0500", 500, None), (b"0555", 555, None), (b"0599", 599, None)]
    with pytest.raises(OSError):  # noqa: PT011 - pyarrow's own words
        list(look(3, [b"0700"]))
