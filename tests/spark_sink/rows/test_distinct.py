"""Distinct values: the same hashes on every release of Spark, however the records fall into commits."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.distinct import HASHES, hashed
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline, sql_transform
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode, reduced, table_schema

HASH_OF = {
    "'ann'": 3_580_010_310_580_872_357,
    "'\u00d6mer'": 1_678_217_604_336_494_183,
    "''": 5_501_336_153_254_261_634,
    "X'616e6e'": 3_580_010_310_580_872_357,
    "7": 5_506_009_291_894_039_792,
    "CAST(7 AS tinyint)": 5_506_009_291_894_039_792,
    "'7'": 5_506_009_291_894_039_792,
    "true": 3_044_260_381_541_228_249,
    "date'1969-12-31'": 6_877_855_935_394_667_128,
    "timestamp'1969-12-31 23:59:59.999999'": 7_113_144_927_476_987_874,
    "timestamp_ntz'1969-12-31 23:59:59.999999'": 7_113_144_927_476_987_874,
}
"""XXH64 of the text with seed 42, without the lowest bit. With others, values that a table has would count again."""


@pytest.mark.parametrize(("value", "due"), HASH_OF.items())
def test_the_hash_of_a_value_never_changes(spark: SparkSession, value: str, due: int) -> None:
    row = spark.range(1).select(F.expr(value).alias("v"))
    ((found,),) = row.select(hashed(F.col("v"), row.schema["v"].dataType)).collect()
    assert found == due


def test_null_has_no_hash(spark: SparkSession) -> None:
    row = spark.range(1).select(F.lit(None).cast("string").alias("v"))
    ((found,),) = row.select(hashed(F.col("v"), row.schema["v"].dataType)).collect()
    assert found is None


def test_parts_have_the_hashes_of_the_whole(spark: SparkSession) -> None:
    write_mode = WriteMode("totals", ("k",), ("n",), mins=("n",), distinct=("id", "k", "id2"))
    rows = spark.range(9_000).select(
        F.when(F.col("id") % 3 > 0, F.col("id") % 3).alias("k"),
        F.col("id").alias("n"),
        F.concat(F.lit("user-"), F.col("id")).alias("id"),
        F.when(F.col("id") < 900, F.col("id") % 11).alias("id2"),
    )

    def lists(part: DataFrame) -> dict[int | None, tuple[Any, ...]]:
        made = reduced(part, write_mode)
        assert made.dtypes == [(f.name, f.dataType.simpleString()) for f in table_schema(write_mode, part.schema)]
        return {row["k"]: tuple(row) for row in made.collect()}

    whole = lists(rows)
    assert whole.keys() == {None, 1, 2}
    parts = [lists(rows.where(F.col("n") % 4 == number)) for number in range(4)]
    for key, (_, records, total, least, ids, keys, ids2, many, one, few) in whole.items():
        first = 0 if key is None else key
        assert (records, int(total), least) == (3_000, sum(range(first, 9_000, 3)), first)
        assert (one, len(keys), few, len(ids2)) == (0 if key is None else 1, 0 if key is None else 1, 11, 11)
        assert len(ids) == HASHES
        assert many == math.floor((HASHES - 1) * 2.0**63 / float(ids[-1])) == pytest.approx(3_000, rel=0.1)
        assert ids == sorted({hash_ for part in parts for hash_ in part[key][4]})[:HASHES]


@pytest.mark.parametrize("value", ["1.5BD", "1.5D", "array(1)", "struct(1)"])
def test_values_that_are_written_in_several_ways_are_refused(spark: SparkSession, value: str) -> None:
    write_mode = WriteMode("totals", ("_kafka_key",), distinct=("x",))
    query = f"SELECT _kafka_key, {value} AS x FROM records"  # noqa: S608
    pipeline = RowPipeline(None, write_mode, transform=sql_transform(query))
    with pytest.raises(OptionRefused, match="distinct values can be counted in columns of"):
        pipeline.schema(spark)
