"""Checks of totals with `engine="spark"`, in a Spark with Delta's own writer; see `under_delta_spark`."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_ratchet.spark_sink import exactly_once
from kafka_ratchet.spark_sink.errors import (
    Fenced,
    OptionRefused,
    SchemaDiffers,
    SinkError,
    SparkFailed,
    StoreError,
    WriteModeDiffers,
)
from kafka_ratchet.spark_sink.library import Engine, Sink
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode, reduced, table_schema
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.delta.spark_writer import SparkWriter
from kafka_ratchet.spark_sink.stores.delta.store import DeltaStore
from kafka_ratchet.spark_sink.stores.delta.vacuum import STAGING
from kafka_ratchet.spark_sink.stores.location import TableLocation
from tests.spark_sink.stores.test_spark_sums import CASES, MODE, OF_STORES, Case, Row, arithmetic, in_order
from tests.spark_sink.under_delta_spark import ENGINES, spark
from tests.spark_sink.under_delta_spark_upserts import contents, fill, let_others_commit, note, rows

NewTopic = Callable[..., str]
MakeRows = Callable[[DataFrame], DataFrame]
pytestmark = pytest.mark.timeout(1200)
TOWNS = ["Graz", "", None, "Süd / 50%"]
_ = spark  # a fixture


def events(draw: random.Random, count: int, keys: int = 20) -> list[dict[str, Any]]:
    """Draw events; some have null as a key or as a number."""
    return [
        {
            "id": draw.choice([None, *range(keys)]),
            "town": draw.choice(TOWNS),
            "n": draw.choice([None, 2**63 - 1, -(2**63), draw.randrange(100)]),
            "amount": draw.choice([None, "0.0000000001", "-99999999999.9999999999"]),
        }
        for _ in range(count)
    ]


def rows_of(records: DataFrame) -> DataFrame:
    event = F.from_json(F.col("value").cast("string"), "id int, town string, n long, amount string").alias("event")
    found = records.select("partition", "offset", event).select("partition", "offset", "event.*")
    return found.withColumn("amount", F.col("amount").cast("decimal(28,10)"))


def totals(path: Path, engine: Engine, **options: Any) -> Sink:
    key, sums = options.pop("key", ("id", "town")), options.pop("sums", ("n", "amount"))
    return exactly_once(str(path), job="orders", kind="totals", key=key, sums=sums, engine=engine, **options)


def run(sink: Sink, spark: SparkSession, broker: str, topic: str, of: MakeRows = rows_of, **options: Any) -> int:
    batches = sink.batches(spark, bootstrap=broker, topic=topic, **options)
    return sum(sink.commit(of(batch.records), batch) for batch in batches)


def made(path: Path, *fields: Field, sums: bool = True) -> DeltaTable:
    """Make a table with the columns of the totals, and more."""
    kinds = {"id": "integer", "town": "string", "_records": "long"}
    kinds |= {"n": "decimal(38,0)", "amount": "decimal(38,10)"} if sums else {}
    return DeltaTable.create(
        str(path), Schema([*(Field(name, PrimitiveType(kind)) for name, kind in kinds.items()), *fields])
    )


def counted(sent: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, ...], tuple[int, int, Decimal]]:
    """Count the records and sums of each key in a plain loop."""
    found: dict[tuple[Any, ...], tuple[int, int, Decimal]] = defaultdict(lambda: (0, 0, Decimal(0)))
    for event in sent:
        key = event["id"], event["town"]
        count, n, amount = found[key]
        found[key] = count + 1, n + (event["n"] or 0), amount + Decimal(event["amount"] or 0)
    return dict(found)


def sums_of(path: Path) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    found = rows(path)
    by_key = {(row["id"], row["town"]): (row["_records"], row["n"], row["amount"]) for row in found}
    assert len(by_key) == len(found)
    return by_key


def state(path: Path, topic: str) -> tuple[list[str], dict[int, int]]:
    """Return the table's rows and the stored offsets."""
    return contents(path), exactly_once(str(path), job="orders").offsets(topic)


def store(path: Path, engine: str, mode: WriteMode = MODE, **options: Any) -> DeltaStore:
    return DeltaStore(TableLocation("delta", str(path), engine=engine), "orders", "events", 0, mode, **options)


def by_store(spark: SparkSession, case: Case, path: Path, engine: str) -> list[Row]:
    """Commit the rows of a case to a table with its other rows."""
    kinds = {"town": "string", "open": "boolean", "_records": "long", "n": f"decimal(38,{case.places})"}
    schema = Schema([Field(name, PrimitiveType(kind)) for name, kind in {**kinds, "note": "string"}.items()])
    table, columns = DeltaTable.create(str(path), schema), pa.schema(schema.to_arrow())
    stored = [dict(zip(columns.names, row, strict=True)) for row in case.stored()]
    write_deltalake(table, pa.Table.from_pylist(stored, columns), mode="append")
    given, results = case.given(spark), store(path, engine)
    results.open(table_schema(MODE, given.schema))
    try:
        results.commit(reduced(given, MODE), {0: 0}, {0: 7})
    finally:
        assert store(path, "").offsets() == ({} if case.refused else {0: 7})
    return [tuple(row.values()) for row in rows(path)]


@pytest.mark.parametrize("name", OF_STORES)
def test_cases_by_both_engines(spark: SparkSession, name: str, tmp_path: Path) -> None:
    case = next(each for each in CASES if each.name == name)
    for engine in ("spark", ""):
        path = tmp_path / f"by {engine}"
        with arithmetic(spark, "false"):
            if not case.refused:
                assert in_order(by_store(spark, case, path, engine)) == in_order(case.expected())
            else:
                with pytest.raises(StoreError, match=case.refused if engine else None):
                    by_store(spark, case, path, engine)
                assert in_order([tuple(row.values()) for row in rows(path)]) == in_order(case.stored())


def test_the_table_is_that_of_the_embedded_engine(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    draw, topic, sent = random.Random(33), new_topic(2), []
    paths = {name: tmp_path / f"{name} of Zoë #1" for name in (*ENGINES, "turns")}
    writers: dict[str, tuple[Engine, ...]] = {"spark": ("spark",), "delta-rs": ("delta-rs",), "turns": ENGINES}
    for path in paths.values():
        made(path, Field("note", PrimitiveType("string")))
    for turn in range(3):
        sent += (new := events(draw, [60, 1, 40][turn]))
        fill(broker, topic, new)
        slice_of = draw.choice([40, 1000])
        for name, path in paths.items():
            with totals(path, writers[name][turn % len(writers[name])]) as sink:
                assert run(sink, spark, broker, topic, max_records=slice_of) > 0
                assert run(sink, spark, broker, topic) == 0
            assert sums_of(path) == counted(sent)
            note(path, f"turn {turn}")
        assert contents(paths["spark"]) == contents(paths["turns"]) == contents(paths["delta-rs"])
    assert {row["note"] for row in rows(paths["spark"])} > {None}
    spark.sql(f"OPTIMIZE delta.`{paths['spark']}`")
    for path in paths.values():
        DeltaTable(str(path)).delete("id = 7")
    fill(broker, topic, new := [*events(draw, 30), {"id": 7, "town": "", "n": 5, "amount": "0.5"}])
    for name in ENGINES:
        with totals(paths[name], name) as sink:
            run(sink, spark, broker, topic)
    assert state(paths["spark"], topic) == state(paths["delta-rs"], topic)
    seven = {key: row for key, row in counted(new).items() if key[0] == 7}
    assert {key: row for key, row in sums_of(paths["spark"]).items() if key[0] == 7} == seven
    assert not any((paths["spark"] / STAGING).rglob("*.parquet"))
    read = spark.read.format("delta").load(str(paths["spark"])).collect()
    assert len(read) == len(contents(paths["spark"]))


def test_columns_are_added_to_a_table_and_stay_null_in_its_rows(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(2)
    fill(broker, topic, [{"id": n % 3, "town": "Graz", "n": n, "amount": "1"} for n in range(6)])
    for engine in ENGINES:
        table = made(path := tmp_path / engine, sums=False)
        schema = pa.schema(table.schema().to_arrow())
        write_deltalake(table, pa.Table.from_pylist([{"id": 0, "town": "Graz", "_records": 4}], schema), mode="append")
        with pytest.raises(SchemaDiffers, match="column n"):
            run(totals(path, engine), spark, broker, topic)
        with totals(path, engine, evolve=True) as sink:
            assert run(sink, spark, broker, topic) == 3
        one = Decimal(1)
        found = {key: row for (key, _), row in sums_of(path).items()}
        assert found == {0: (6, None, None), 1: (2, 5, 2 * one), 2: (2, 7, 2 * one)}
    assert state(tmp_path / "spark", topic) == state(tmp_path / "delta-rs", topic)


def failing(records: DataFrame) -> DataFrame:
    return rows_of(records).withColumn("n", F.raise_error("a value that nobody reads").cast("long"))


REFUSED: dict[str, tuple[type[SinkError], str, dict[str, Any], MakeRows]] = {
    "a sum of doubles": (
        OptionRefused,
        "column 'n' of type double cannot be added up exactly",
        {},
        lambda records: rows_of(records).withColumn("n", F.col("n").cast("double")),
    ),
    "a sum of wide decimals": (
        OptionRefused,
        "column 'n' of type decimal.29,0. cannot be added up exactly",
        {},
        lambda records: rows_of(records).withColumn("n", F.col("n").cast("decimal(29,0)")),
    ),
    "a key of doubles": (
        OptionRefused,
        "column 'id' of type double cannot be a key",
        {},
        lambda records: rows_of(records).withColumn("id", F.col("id").cast("double")),
    ),
    "a missing column": (OptionRefused, "needs column 'n'", {}, lambda records: rows_of(records).drop("n")),
    "another type": (
        SchemaDiffers,
        "column id is .*integer.* in the table and .*long.* in this job",
        {},
        lambda records: rows_of(records).withColumn("id", F.col("id").cast("long")),
    ),
    "other sums": (WriteModeDiffers, "sums", {"sums": ("n",)}, rows_of),
    "another key": (WriteModeDiffers, "key", {"key": "id"}, rows_of),
    "a row that Spark cannot compute": (SparkFailed, "a value that nobody reads", {}, failing),
}


def test_both_engines_refuse(spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path) -> None:
    topic, six = new_topic(2), [{"id": n % 3, "town": "Graz", "n": n} for n in range(6)]
    fill(broker, topic, six)
    for engine in ENGINES:
        run(totals(tmp_path / engine, engine), spark, broker, topic)
    fill(broker, topic, six)
    for engine in ENGINES:
        before = state(tmp_path / engine, topic)
        for error, sentence, options, of in REFUSED.values():
            with pytest.raises(error, match=sentence):
                run(totals(tmp_path / engine, engine, **options), spark, broker, topic, of)
            assert state(tmp_path / engine, topic) == before


@pytest.mark.parametrize("engine", ENGINES)
def test_properties_of_the_table_that_are_refused(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path, engine: Engine
) -> None:
    topic = new_topic(2)
    fill(broker, topic, [{"id": n, "town": "Graz", "n": n} for n in range(6)])
    made(path := tmp_path / "t").alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(OptionRefused, match=r"delta\.appendOnly = 'true', and upserts and totals change its rows"):
        run(totals(path, engine), spark, broker, topic)
    assert state(path, topic) == ([], {})


def test_commits_of_others_amid_a_merge(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, path = new_topic(2), tmp_path / "t"
    for _ in range(2):
        fill(broker, topic, [{"id": n, "town": "Graz", "n": n} for n in range(20)])
        with totals(path, "spark") as sink:
            run(sink, spark, broker, topic)
    row = {"id": 77, "town": "Graz", "_records": 3, "n": Decimal(30), "amount": Decimal(0)}
    others = let_others_commit(monkeypatch, spark, path, row)
    fill(broker, topic, [{"id": n, "town": "Graz", "n": 500} for n in (1, 5, 77)])
    with totals(path, "spark") as sink:
        assert run(sink, spark, broker, topic) == 3
    assert not others
    found = {row["id"]: (row["_records"], row["n"]) for row in rows(path)}
    assert len(rows(path)) == len(found)
    assert found == {**{n: (2, 2 * n) for n in range(20)}, 1: (3, 502), 5: (1, 500), 77: (4, 530)}


def test_a_zombie_is_fenced_amid_its_merge(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, path, write, sent = new_topic(2), tmp_path / "t", SparkWriter.write_in, []
    for engine in ENGINES:
        sent += (new := [{"id": n, "town": "Graz", "n": n, "amount": None} for n in range(20)])
        fill(broker, topic, new)
        older, newer = totals(path, "spark"), totals(path, engine)
        batch = next(older.batches(spark, bootstrap=broker, topic=topic))

        def then_take_over(self: SparkWriter, *given: Any, newer: Sink = newer) -> Any:
            written = write(self, *given)
            monkeypatch.setattr(SparkWriter, "write_in", write)
            run(newer, spark, broker, topic)
            return written

        monkeypatch.setattr(SparkWriter, "write_in", then_take_over)
        for _ in range(2):
            with pytest.raises(Fenced):
                older.commit(rows_of(batch.records), batch)
        assert sums_of(path) == counted(sent)


class Died(BaseException):
    """End of a job at a point of a commit; nothing of it runs on."""


def test_deaths_around_each_step_of_a_commit(
    spark: SparkSession, broker: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, path, sent, read = new_topic(2), tmp_path / "t", [], []
    draw = random.Random(33)
    for point in ("before-commit", "in-commit", "after-commit", "in-commit", "before-write"):
        fill(broker, topic, new := events(draw, 20, keys=4))
        sent += new

        def die(here: str, point: str = point) -> None:
            if here == point:
                raise Died

        with monkeypatch.context() as patch:
            patch.setattr(crash_points, "passing", die)
            with pytest.raises(Died):
                run(totals(path, "spark"), spark, broker, topic)
        stored = exactly_once(str(path), job="orders").offsets(topic)
        assert sums_of(path) == counted(each for n, each in enumerate(sent) if n // 2 < stored.get(n % 2, 0))
        read.append(sum(stored.values()))
    assert read == [0, 0, 60, 60, 60]
    run(totals(path, "spark"), spark, broker, topic)
    assert sums_of(path) == counted(sent)
