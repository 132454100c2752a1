"""What Spark does not need to start for is refused before it starts, also where nothing is to be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_ratchet.spark_sink.cli import EXIT_REFUSED, main
from kafka_ratchet.spark_sink.errors import OptionRefused, SchemaDiffers, SecondJob, SinkError, WriteModeDiffers
from kafka_ratchet.spark_sink.job.job import run_batch, run_stream
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.job.resume import carry_out, plan_resume
from kafka_ratchet.spark_sink.job.structured import run_structured
from kafka_ratchet.spark_sink.rows.columns import record_schema
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from tests.spark_sink.sites import Site, delta_store

NewTopic = Callable[..., str]


class NoSpark:
    """In the place of a session: a start of Spark fails the test."""

    def __call__(self) -> AbstractContextManager[SparkSession]:
        raise AssertionError("Spark was started")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--columns=who strin"], "'strin' at character 5 where a type"),
        (["--columns=who string, who int"], "there are two of that name"),
        (["--columns=_kafka_offset int"], "one of Ratchet's own"),
        (["--columns=_ratchet_deleted int"], "one of Ratchet's own"),
        (
            ["--columns=x double", "--kind=totals", "--key=_kafka_key", "--sum=x", "--rejects"],
            "cannot be added up exactly",
        ),
        (["--columns=x int", "--kind=totals", "--key=_kafka_key", "--sum=y", "--rejects"], "needs column 'y'"),
        (["--columns=x int", "--kind=upsert", "--key=user", "--rejects"], "needs column 'user'"),
        (["--columns=x double", "--kind=upsert", "--key=x", "--rejects"], "cannot be a key"),
        (["--columns=x int", "--kind=totals", "--key=x", "--rejects", "--keep-value"], "no rows of single records"),
        (["--columns=x int", "--sql=SELECT 1", "--keep-value"], "keeps _kafka_value in every row"),
        (["--store=duckdb", "--master=spark://127.0.0.1:7077"], "Choose store postgres, or delta"),
    ],
)
@pytest.mark.parametrize("mode", ["batch", "stream", "structured"])
def test_options_that_contradict_each_other(
    broker: str,
    new_topic: NewTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mode: str,
    more: list[str],
    sentence: str,
) -> None:
    monkeypatch.setattr("kafka_ratchet.spark_sink.cli.spark_session", lambda *_: NoSpark()())
    where = [
        f"--bootstrap={broker}",
        f"--topic={new_topic(partitions=1)}",
        f"--path={tmp_path / 'x'}",
        "--name=job",
    ]
    assert main([*where, f"--mode={mode}", *more]) == EXIT_REFUSED
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_columns_of_a_table_that_is_there(
    site: Site, broker: str, new_topic: NewTopic, write: Callable[..., None], ingest: Callable[..., object]
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [b'{"who":"a","n":1}'])
    first = RowPipeline("who string, n long", rejects=site.rejects)
    ingest(topic, first)
    planner, rejects = TopicPlanner(broker, topic, {}), record_schema() if site.rejects else None
    store = site.make("job", topic, planner.topic_id(), first.write_mode, rejects)
    generation = store.generation()

    def run(pipeline: RowPipeline) -> None:  # nothing is to be read
        run_batch(Job(broker, topic, "job", pipeline), planner, store, NoSpark())

    run(first)
    for columns, said in [
        ("who string, n int", "column n"),
        ("who string, n long, more date", "column more"),
        ("who string, n string", "column n"),
    ]:
        with pytest.raises(SchemaDiffers, match=said):
            run(RowPipeline(columns, rejects=site.rejects))
    other = Job(broker, topic, "job", RowPipeline("who string, n int", rejects=site.rejects))
    for start in (run_stream, run_structured):
        with pytest.raises(SchemaDiffers, match="column n"):
            start(other, planner, store, NoSpark(), 0.1, None)  # type: ignore[arg-type]
    assert store.generation() == generation

    if "upsert" in site.kinds:  # the same columns by another rule
        by_key = RowPipeline("who string, n long", WriteMode("upsert", ("who",)), rejects=site.rejects)
        store = site.make("job", topic, planner.topic_id(), by_key.write_mode, rejects)
        with pytest.raises(WriteModeDiffers, match=r"by kind append, and is set to kind upsert \(key who\)"):
            run(by_key)
        for start in (run_stream, run_structured):
            with pytest.raises(WriteModeDiffers):
                start(Job(broker, topic, "job", by_key), planner, store, NoSpark(), 0.1, None)  # type: ignore[arg-type]
        plan = plan_resume(store, planner, "stored", "why")
        assert "is set to kind upsert (key who)" in plan.trouble
        assert carry_out(plan, store) == generation + 1
        run(by_key)


def test_a_second_job_over_a_topic_asks_first(
    broker: str,
    new_topic: NewTopic,
    write: Callable[..., None],
    spark: SparkSession,
    run: Callable[..., object],
    rows: Callable[..., list[tuple[object, ...]]],
    table: str,
) -> None:
    topic, another = new_topic(partitions=1), new_topic(partitions=1)
    write(topic, [b"a", b"b"])
    write(another, [b"c"])
    planner = TopicPlanner(broker, topic, {})
    store, job = delta_store(table, "two", topic, planner.topic_id()), Job(broker, topic, "two")

    @contextmanager
    def slow() -> Iterator[SparkSession]:
        run(topic, name="one")
        yield spark

    with pytest.raises(SecondJob, match=r"by job one, and not by this one.*--second-job"):
        run_batch(job, planner, store, slow)  # the other one committed while Spark was started
    with pytest.raises(SecondJob):
        run_batch(job, planner, store, NoSpark())
    for start in (run_stream, run_structured):
        with pytest.raises(SecondJob):
            start(job, planner, store, NoSpark(), 0.1, None)  # type: ignore[arg-type]
    assert store.generation() == 0

    run(another, name="two")  # another topic doubles nothing
    run_batch(replace(job, second_job=True), planner, store, lambda: nullcontext(spark))
    assert sorted(rows("_kafka_value")) == [(b"a",), (b"a",), (b"b",), (b"b",), (b"c",)]
    run_batch(job, planner, store, NoSpark())  # it has rows there: that was decided


def test_a_row_pipeline_knows_its_columns_without_spark() -> None:
    found = RowPipeline(
        "who string, n decimal(9,2)", WriteMode("totals", ("who",), ("n",)), rejects=True
    ).known_schema()
    assert found is not None
    assert found.simpleString() == "struct<who:string,_records:bigint,n:decimal(38,2)>"
    assert RowPipeline("infer").known_schema() is None
    with pytest.raises(OptionRefused, match="needs column 'x'"):
        RowPipeline("who string", WriteMode("totals", ("x",)), rejects=True).known_schema()
    assert issubclass(SchemaDiffers, SinkError)
