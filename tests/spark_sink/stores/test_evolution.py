"""`evolve = "add"`: a table gets the columns of a job, or the job is refused and the table stays as it is."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from kafka_ratchet.spark_sink.errors import Fenced, OptionRefused, SchemaDiffers
from kafka_ratchet.spark_sink.rows.columns import record_schema
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.compact import compact
from kafka_ratchet.spark_sink.stores.evolution import ColumnChange, changes
from kafka_ratchet.spark_sink.stores.iceberg import touched
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.open_store import make_store
from kafka_ratchet.spark_sink.stores.postgres.types import INTEGERS, widens
from kafka_ratchet.spark_sink.stores.store import ResultStore
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import LOCAL, Site, params

EVOLVING = pytest.mark.parametrize(
    "site",
    [
        *params("delta", "duckdb", "iceberg", "postgres"),
        pytest.param("mysql", marks=pytest.mark.long),
    ],
    indirect=True,
)

BEFORE = "who string, n int, x float, d decimal(9,2), _kafka_partition int, _kafka_offset long"
MORE = (
    "more struct<a:int>, who string, n int, x float, d decimal(9,2), when timestamp, _kafka_partition int, "
    "_kafka_offset long"
)
WIDER = "who string, n long, x double, d decimal(20,{places}), _kafka_partition int, _kafka_offset long"
NARROWED = {
    "postgres": "column n is bigint in the table and integer in this job",
    "mysql": "column n is bigint in the table and int in this job",
    "duckdb": "column n is BIGINT in the table and INTEGER in this job",
    "iceberg": "column n is long in the table and integer in this job",
}


def ddl(text: str) -> StructType:
    return struct_of(text)


def store(site: Site, *, evolve: bool = True, key: tuple[str, ...] = ()) -> ResultStore:
    write_mode = WriteMode("upsert", key) if key else WriteMode("append")
    pipeline = RowPipeline("who string", write_mode, rejects=bool(key))
    return make_store(site.location, "job", "events", 0, pipeline, evolve=evolve)


def test_types_that_become_wider() -> None:
    for one, other in itertools.product(INTEGERS, INTEGERS):
        assert widens(one, other) == (INTEGERS.index(one) < INTEGERS.index(other))
    assert widens("real", "double precision")
    assert widens("numeric(9,2)", "numeric(11,4)")
    for before, after in (
        ("double precision", "real"),
        ("numeric(9,2)", "numeric(9,4)"),  # two digits before the point fewer
        ("numeric(9,2)", "numeric(10,1)"),
        ("integer", "double precision"),
        ("integer", "text"),
        ("text", "jsonb"),
        ("date", "timestamp without time zone"),
    ):
        assert not widens(before, after)


def test_what_has_to_be_done_and_what_cannot_be() -> None:
    present = {"a": "integer", "b": "text"}
    found = changes("t", present, {"c": "date", "a": "bigint", "b": "text"}, widens, "why")
    assert found == [ColumnChange("c", "date", True), ColumnChange("a", "bigint", False)]
    assert changes("t", present, present, widens, "why") == []
    with pytest.raises(SchemaDiffers, match="t: column b is text in the table and absent in this job"):
        changes("t", present, {"a": "integer"}, widens, "why")
    with pytest.raises(SchemaDiffers, match=r"column b is text in the table and integer in this job.*: why"):
        changes("t", present, {"a": "integer", "b": "integer"}, widens, "why")


def test_a_store_that_adds_no_columns_refuses_the_setting(folder_store: None, tmp_path: Path) -> None:
    location = TableLocation("folder", str(tmp_path / "x"))
    with pytest.raises(OptionRefused, match=r"adds no columns to an existing table.*for delta and "):
        make_store(location, "job", "events", 0, RowPipeline("who string"), evolve=True)
    make_store(location, "job", "events", 0, RowPipeline("who string"))


@EVOLVING
def test_columns_appear_and_rows_that_are_there_have_null(site: Site, spark: SparkSession) -> None:
    older = store(site, evolve=False)
    older.open(ddl(BEFORE))
    older.commit(spark.createDataFrame([("a", 1, 0.5, None, 0, 0)], BEFORE), {0: 0}, {0: 1})
    with pytest.raises(SchemaDiffers, match="column more"):
        store(site, evolve=False).require_fits(ddl(MORE))
    newer = store(site)
    newer.require_fits(ddl(MORE))
    assert newer.generation() == 1
    assert newer.open(ddl(MORE)) == {0: 1}
    row = ((7,), "b", 2, 0.25, None, None, 0, 1)
    assert newer.commit(spark.createDataFrame([row], MORE), {0: 1}, {0: 2}) == 1
    with pytest.raises(Fenced):
        older.commit(spark.createDataFrame([("z", 9, 0.5, None, 0, 1)], BEFORE), {0: 1}, {0: 2})
    found = sorted(site.rows(), key=lambda each: each["who"])
    assert [(each["who"], each["n"], each["more"], each["when"]) for each in found] == [
        ("a", 1, None, None),
        ("b", 2, {"a": 7}, None),
    ]
    again = store(site, evolve=False)  # the setting may go
    assert again.open(ddl(MORE)) == {0: 2}
    assert again.commit(spark.createDataFrame([row], MORE), {0: 2}, {0: 3}) == 1
    for kept in (False, True):
        if site.location.kind != "iceberg":  # the others cannot tell it from a column of somebody else
            store(site, evolve=kept).require_fits(ddl(BEFORE))
            continue
        with pytest.raises(SchemaDiffers, match="in the table and absent in this job"):
            store(site, evolve=kept).require_fits(ddl(BEFORE))


@EVOLVING
def test_types_become_wider_where_the_store_can(site: Site, spark: SparkSession) -> None:
    older = store(site, evolve=False)
    older.open(ddl(BEFORE))
    older.commit(spark.createDataFrame([("a", 2**31 - 1, 0.1, None, 0, 0)], BEFORE), {0: 0}, {0: 1})
    if site.location.kind == "delta":
        wider = WIDER.format(places=2)
        with pytest.raises(SchemaDiffers, match=r"column n is .*integer.* in the table and .*long.*no type widening"):
            store(site).require_fits(ddl(wider))
        with pytest.raises(SchemaDiffers):
            store(site).open(ddl(wider))
        assert older.generation() == 1
        return
    wider = WIDER.format(places=2 if site.location.kind == "iceberg" else 4)
    if site.location.kind == "iceberg":
        with pytest.raises(SchemaDiffers, match="decimals get more digits with as many places"):
            store(site).require_fits(ddl(WIDER.format(places=4)))
    newer = store(site)
    newer.open(ddl(wider))
    newer.commit(spark.createDataFrame([("b", 2**40, 1e300, None, 0, 1)], wider), {0: 1}, {0: 2})
    found = sorted(site.rows(), key=lambda each: each["who"])
    assert [each["n"] for each in found] == [2**31 - 1, 2**40]
    assert found[0]["x"] == pytest.approx(0.1, rel=1e-6)
    assert found[1]["x"] == 1e300
    with pytest.raises(SchemaDiffers, match=NARROWED[site.location.kind]):
        store(site).require_fits(ddl(BEFORE))


@EVOLVING
def test_rows_with_a_key_get_new_columns_too(site: Site, spark: SparkSession) -> None:
    older = store(site, evolve=False, key=("who",))
    old, new = "who string, n int", "who string, n int, more string"
    rejects = spark.createDataFrame([], record_schema())
    older.open(ddl(old))
    older.commit(spark.createDataFrame([("a", 1), ("b", 1)], old), {0: 0}, {0: 2}, rejects)
    newer = store(site, key=("who",))
    assert newer.open(ddl(new)) == {0: 2}
    newer.commit(spark.createDataFrame([("b", 2, "x"), ("c", 3, None)], new), {0: 2}, {0: 4}, rejects)
    found = sorted((each["who"], each["n"], each["more"]) for each in site.rows() if each["who"] != "b")
    assert found == [("a", 1, None), ("c", 3, None)]
    assert [each["more"] for each in site.rows() if each["who"] == "b"] == ["x"]


class Died(BaseException):
    """The holder ends here."""


@EVOLVING
def test_a_job_that_is_killed_before_the_change_leaves_it_to_the_next(
    site: Site, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise Died

    store(site, evolve=False).open(ddl(BEFORE))
    change = {
        "delta": "kafka_ratchet.spark_sink.stores.delta.store.add_columns",
        "duckdb": "kafka_ratchet.spark_sink.stores.duckdb.file.DatabaseFile.add_columns",
        "iceberg": "kafka_ratchet.spark_sink.stores.iceberg.store.add_columns",
        "mysql": "kafka_ratchet.spark_sink.stores.mysql.tables.Tables.evolve",
        "postgres": "kafka_ratchet.spark_sink.stores.postgres.tables.Tables.evolve",
    }[site.location.kind]
    with monkeypatch.context() as patch:
        patch.setattr(change, die)
        with pytest.raises(Died):
            store(site).open(ddl(MORE))
    newer = store(site)
    newer.open(ddl(MORE))
    row = ((7,), "b", 2, 0.25, None, None, 0, 0)
    assert newer.commit(spark.createDataFrame([row], MORE), {0: 0}, {0: 1}) == 1
    assert [each["more"] for each in site.rows()] == [{"a": 7}]


HOSTILE = 'x"; drop table y; -- `.z'


@pytest.mark.parametrize("site", params("delta", "duckdb", "iceberg"), indirect=True)
def test_names_that_mean_something_elsewhere_are_names(site: Site, spark: SparkSession) -> None:
    text = "who string, n int, _kafka_partition int, _kafka_offset long"
    quoted = "`" + HOSTILE.replace("`", "``") + "`"
    more = f"{text}, {quoted} int, s struct<{quoted}:int>"
    older = store(site, evolve=False)
    older.open(ddl(text))
    older.commit(spark.createDataFrame([("a", 1, 0, 0)], text), {0: 0}, {0: 1})
    newer = store(site)
    newer.open(ddl(more))
    newer.commit(spark.createDataFrame([("b", 2, 0, 1, 3, (4,))], ddl(more)), {0: 1}, {0: 2})
    found = sorted(site.rows(), key=lambda each: each["_kafka_offset"])
    assert [(each["who"], each[HOSTILE], each["s"]) for each in found] == [
        ("a", None, None),
        ("b", 3, {HOSTILE: 4}),
    ]
    columns = newer.columns()
    assert columns is not None
    assert columns.names == ["who", "n", "_kafka_partition", "_kafka_offset", HOSTILE, "s"]
    assert [row["who"] for row in site.rows() if row["n"] == 1] == ["a"]


def test_a_merge_finds_a_key_in_a_file_from_before_its_type_was_wider(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(touched, "FOLDED_BYTES", 0)
    site = LOCAL["iceberg"](tmp_path)
    rejects = spark.createDataFrame([], record_schema())
    older = store(site, evolve=False, key=("n",))
    older.open(ddl("n int, v string"))
    older.commit(spark.createDataFrame([(1, "a"), (2, "b")], "n int, v string"), {0: 0}, {0: 2}, rejects)
    newer = store(site, key=("n",))
    newer.open(ddl("n long, v string"))
    rows = spark.createDataFrame([(2, "c"), (2**40, "d")], "n long, v string")
    newer.commit(rows, {0: 2}, {0: 4}, rejects)
    assert sorted((row["n"], row["v"]) for row in site.rows()) == [(1, "a"), (2, "c"), (2**40, "d")]
    [done, _] = compact(site.location, execute=True)
    assert done.files == 1
