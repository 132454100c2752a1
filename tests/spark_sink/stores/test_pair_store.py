"""Rejects in a table of their own where a commit is one table's: each once in both, wherever the job ends."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from kafka_ratchet.spark_sink.errors import Fenced, SchemaDiffers, StoreError, TopicRecreated
from kafka_ratchet.spark_sink.rows.columns import record_schema
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.open_store import make_store, rejects_location
from kafka_ratchet.spark_sink.stores.pair import PairedStore
from kafka_ratchet.spark_sink.stores.store import ResultStore
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import LOCAL, Site, params

ROWS, REJECTS = (
    "_kafka_partition int, _kafka_offset long",
    "_kafka_partition int, _kafka_offset long, _kafka_value binary",
)

CommitTo = Callable[[ResultStore, int, int], int]


class Died(BaseException):
    """The holder ends here, and nothing of its own runs any more."""


@pytest.fixture(params=params("delta", "iceberg"))
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return LOCAL[request.param](tmp_path)


def ddl(text: str) -> StructType:
    return struct_of(text)


def make(site: Site) -> PairedStore:
    store = site.make(rejects=ddl(REJECTS))
    assert isinstance(store, PairedStore)
    return store


@pytest.fixture
def commit(spark: SparkSession) -> CommitTo:
    """commit(store, start, end): of the offsets between them, even ones are rows and the others rejects."""

    def to(store: ResultStore, start: int, end: int) -> int:
        read = spark.range(start, end, 1, 1).selectExpr(
            "0 AS _kafka_partition", "id AS _kafka_offset", "encode(id, 'utf-8') AS _kafka_value"
        )
        rows, rejects = read.where("_kafka_offset % 2 = 0").drop("_kafka_value"), read.where("_kafka_offset % 2 = 1")
        return store.commit(rows, {0: start}, {0: end}, rejects)

    return to


def remove(location: TableLocation) -> None:
    if location.kind == "delta":
        shutil.rmtree(location.path)
        return
    path = Path(location.path)
    with closing(SqlCatalog("ratchet", uri=f"sqlite:///{path / 'catalog.db'}", warehouse=f"file://{path}")) as catalog:
        catalog.drop_table(f"ratchet.{location.table}")


def offsets(site: Site, *, rejects: bool = False) -> list[int]:
    return sorted(row["_kafka_offset"] for row in site.rows(rejects))


def test_whoever_dies_between_the_two_commits_leaves_each_record_once(
    pair: Site, commit: CommitTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    for point, time in [("between-commits", 1), ("before-commit", 2)]:
        passed: list[str] = []

        def die(here: str, there: str = point, times: int = time, seen: list[str] = passed) -> None:
            seen.append(here)
            if seen.count(there) == times:
                raise Died

        store = make(pair)
        at = store.open(ddl(ROWS)).get(0, 0)
        with monkeypatch.context() as patch:
            patch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", die)
            with pytest.raises(Died):
                commit(store, at, at + 6)
        # Rejects are there, rows not: the next job goes on in other steps, and begins or ends amid them.
        assert offsets(pair, rejects=True) == list(range(1, at + 6, 2))
        assert offsets(pair) == list(range(0, at, 2))
        store = make(pair)
        assert store.open(ddl(ROWS)) == ({0: at} if at else {})
        commit(store, at, at + 3)
        if at:
            commit(store, at + 3, at + 8)
        reached = store.offsets()[0]
        assert offsets(pair) == list(range(0, reached, 2))
        assert offsets(pair, rejects=True) == list(range(1, max(reached, at + 6), 2))


def test_a_record_that_parsed_before_its_commit_was_cut_and_does_not_now_is_refused(
    pair: Site, commit: CommitTo, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(point: str) -> None:
        if point == "between-commits":
            raise Died

    store = make(pair)
    store.open(ddl(ROWS))
    with monkeypatch.context() as patch:
        patch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", die)
        with pytest.raises(Died):
            commit(store, 0, 6)
    store = make(pair)
    assert store.open(ddl(ROWS)) == {}
    rows = spark.createDataFrame([(0, 0), (0, 4)], ROWS)
    rejects = spark.createDataFrame([(0, 1, b"1"), (0, 2, b"2"), (0, 3, b"3"), (0, 5, b"5")], REJECTS)
    with pytest.raises(StoreError, match=r"partition 0, offset 2 \(1 such records\): .* neither table would have"):
        store.commit(rows, {}, {0: 6}, rejects)
    assert (offsets(pair), offsets(pair, rejects=True)) == ([], [1, 3, 5])
    commit(store, 0, 6)  # what had changed is as it was
    assert (offsets(pair), offsets(pair, rejects=True)) == ([0, 2, 4], [1, 3, 5])


def test_a_frozen_holder_is_fenced_whichever_table_it_comes_back_to(
    pair: Site, commit: CommitTo, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = make(pair), make(pair)
    older.open(ddl(ROWS))

    def freeze(point: str) -> None:
        if point == "between-commits":
            monkeypatch.undo()
            assert newer.open(ddl(ROWS)) == {}
            commit(newer, 0, 2)

    monkeypatch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", freeze)
    with pytest.raises(Fenced, match="generation 2 has taken over from 1"):
        commit(older, 0, 4)
    assert (offsets(pair), offsets(pair, rejects=True)) == ([0], [1, 3])
    for rejects in ([(0, 5, b"late")], []):  # one is stopped by the rejects table, the other by the rows'
        with pytest.raises(Fenced, match="generation 2 has taken over from 1"):
            older.commit(spark.createDataFrame([(0, 0)], ROWS), {0: 0}, {0: 6}, spark.createDataFrame(rejects, REJECTS))
    commit(newer, 2, 6)
    assert (offsets(pair), offsets(pair, rejects=True)) == ([0, 2, 4], [1, 3, 5])
    assert make(pair).generation() == 2


def test_of_two_that_start_together_one_holds_both_tables(
    pair: Site, commit: CommitTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(pair).open(ddl(ROWS))
    one, other = make(pair), make(pair)
    take_rejects = one._rejects.open

    def let_the_other_be_first(schema: StructType, generation: int | None = None) -> dict[int, int]:
        other.open(ddl(ROWS))
        return take_rejects(schema, generation)

    monkeypatch.setattr(one._rejects, "open", let_the_other_be_first)
    with pytest.raises(Fenced, match="generation 3 has taken over from 2"):
        one.open(ddl(ROWS))
    commit(other, 0, 4)
    take_rows = one._rows.open
    starts = [lambda: make(pair).open(ddl(ROWS)), dict]

    def be_late(schema: StructType, generation: int | None = None) -> dict[int, int]:
        starts.pop(0)()
        return take_rows(schema, generation)

    monkeypatch.undo()
    monkeypatch.setattr(one._rows, "open", be_late)
    assert one.open(ddl(ROWS)) == {0: 4}  # the number was taken, and the next one was not
    assert one.generation() == 5
    commit(one, 4, 6)
    assert (offsets(pair), offsets(pair, rejects=True)) == ([0, 2, 4], [1, 3, 5])


def test_rejects_that_are_switched_on_later_begin_there(pair: Site, commit: CommitTo, spark: SparkSession) -> None:
    alone = pair.make()
    alone.open(ddl(ROWS))
    alone.commit(spark.createDataFrame([(0, 0), (0, 2)], ROWS), {0: 0}, {0: 4})
    store = make(pair)
    assert store.open(ddl(ROWS)) == {0: 4}
    commit(store, 4, 8)
    assert (offsets(pair), offsets(pair, rejects=True)) == ([0, 2, 4, 6], [5, 7])
    with pytest.raises(ValueError, match="in every commit"):
        store.commit(spark.createDataFrame([], ROWS), {0: 8}, {0: 9})
    with pytest.raises(SchemaDiffers, match="column more"):
        make(pair).open(ddl(ROWS + ", more int"))
    commit(store, 8, 10)  # a refusal fences nobody


def test_rejects_of_a_table_that_is_gone_are_refused(pair: Site, commit: CommitTo, spark: SparkSession) -> None:
    """Who begins anew removes the table. What was rejected by other columns or another rule may be a row now."""
    store = make(pair)
    store.open(ddl(ROWS))
    commit(store, 0, 4)
    remove(pair.location)
    for ask in (make(pair).offsets, lambda: make(pair).open(ddl(ROWS))):
        with pytest.raises(StoreError, match=r"rejects up to offsets \{0: 4\}, and .*, remove both"):
            ask()
    assert pair.make().generation() == 0
    remove(rejects_location(pair.location))
    store = make(pair)
    assert store.open(ddl(ROWS)) == {}
    rows = spark.createDataFrame([(0, 0), (0, 1)], ROWS)
    store.commit(rows, {0: 0}, {0: 2}, spark.createDataFrame([], REJECTS))
    assert (offsets(pair), make(pair).offsets()) == ([0, 1], {0: 2})


def test_rejects_of_another_topic_are_refused_before_anybody_is_fenced(
    pair: Site, commit: CommitTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(point: str) -> None:
        if point == "between-commits":
            raise Died

    store = pair.make(topic_id=1111, rejects=ddl(REJECTS))
    store.open(ddl(ROWS))
    with monkeypatch.context() as patch:
        patch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", die)
        with pytest.raises(Died):
            commit(store, 0, 2)
    with pytest.raises(TopicRecreated, match="topic events is not the one"):
        pair.make(topic_id=2222, rejects=ddl(REJECTS)).open(ddl(ROWS))
    commit(store, 0, 2)
    assert (offsets(pair), offsets(pair, rejects=True)) == ([0], [1])


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_whole_job_killed_between_the_two_commits(
    pair: Site,
    command: Callable[..., subprocess.CompletedProcess[str]],
    new_topic: Callable[..., str],
    write: Callable[..., None],
) -> None:
    topic, totals = new_topic(partitions=2), pair.location.kind == "iceberg"
    for partition in (0, 1):
        write(topic, [b'{"n":%d}' % n if n % 3 else b"broken %d" % n for n in range(300)], partition)
        write(topic, [b"aborted"] * 30, partition, commit=False)
    arguments = [f"--store={pair.location.kind}", f"--path={pair.location.path}", f"--table={pair.location.table}"]
    arguments += [f"--topic={topic}", "--name=job", "--columns=n long", "--rejects"]
    arguments += ["--kind=totals", "--key=_kafka_partition", "--sum=n"] if totals else []
    for point, size in [("between-commits", 70), ("between-commits:2", 50), ("before-commit:4", 110)]:
        killed = command(*arguments, f"--max-records={size}", SPARK_SINK_CRASH_AT=point)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = command(*arguments, "--max-records=120", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["offsets"] == {"0": 332, "1": 332}
    if totals:
        total = sum(n for n in range(300) if n % 3)
        found = {row["_kafka_partition"]: (row["_records"], int(row["n"])) for row in pair.rows()}
        assert found == {0: (200, total), 1: (200, total)}
    else:
        rows = sorted((row["_kafka_partition"], row["n"]) for row in pair.rows())
        assert rows == [(p, n) for p in (0, 1) for n in range(300) if n % 3]
    rejects = sorted(
        (row["_kafka_partition"], row["_kafka_offset"], row["_kafka_value"]) for row in pair.rows(rejects=True)
    )
    assert rejects == [(p, n, b"broken %d" % n) for p in (0, 1) for n in range(0, 300, 3)]


def test_the_rejects_lie_beside_the_rows() -> None:
    assert rejects_location(TableLocation("delta", "a/results/")).path == "a/results_rejects"
    assert rejects_location(TableLocation("iceberg", "a", "t")) == TableLocation("iceberg", "a", "t_rejects")
    pipeline = RowPipeline("who string", rejects=True)
    assert isinstance(make_store(TableLocation("delta", "x"), "job", "events", 0, pipeline), PairedStore)
    assert isinstance(make_store(TableLocation("iceberg", "x"), "job", "events", 0, pipeline), PairedStore)
    assert pipeline.rejects
    assert record_schema().names[-1] == "_kafka_value"


def test_rejects_of_other_columns_are_noticed_before_a_job_opens_the_tables(pair: Site) -> None:
    rows = StructType([StructField("_kafka_partition", IntegerType()), StructField("_kafka_offset", LongType())])
    rejects = StructType([*rows.fields, StructField("_kafka_value", BinaryType())])
    pair.make(rejects=rejects).open(rows)
    pair.make(rejects=rejects).require_fits(rows)
    with pytest.raises(SchemaDiffers, match="column more"):
        pair.make(rejects=StructType([*rejects.fields, StructField("more", LongType())])).require_fits(rows)
