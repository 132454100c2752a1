"""Columns that stand for fields within objects: `customer_id bigint FROM customer.id`."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.columns import json_schema, rows, value_schema
from kafka_ratchet.spark_sink.rows.ddl import read_ddl, read_paths
from kafka_ratchet.spark_sink.rows.decoded import NOT_PARSED, PARSED
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.rows.undeclared import report_undeclared


def test_paths_are_read_and_are_no_part_of_the_columns() -> None:
    text = "order_id string, customer_id bigint FROM customer.id NOT NULL COMMENT 'x', `a.b` string from `c.d`.`e``f`"
    assert read_ddl(text) == StructType(
        [
            StructField("order_id", StringType()),
            StructField("customer_id", LongType()),
            StructField("a.b", StringType()),
        ]
    )
    assert read_paths(text) == {"customer_id": ("customer", "id"), "a.b": ("c.d", "e`f")}
    assert read_paths("from int, to int FROM from") == {"to": ("from",)}
    nested = value_schema(
        json_schema("a int FROM x.y, b int FROM x.z.w, c int"), read_paths("a int FROM x.y, b int FROM x.z.w")
    )
    assert nested.simpleString() == "struct<x:struct<y:int,z:struct<w:int>>,c:int>"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a int FROM", "it ends where a name"),
        ("a int FROM b.", "it ends where a name"),
        ("a int FROM b c", "'c' at character 14 where ',' or the end"),
        ("a struct<b: int FROM c>", "'FROM' at character 17"),
        ("a int FROM b, c int FROM b", "columns a and c both read field b"),
        ("a int, c int FROM a.b", "columns a and c both read field a. Leave one out"),
        ("a int FROM x.y.z, c string FROM x.y", "columns a and c both read field x.y"),
        (
            "a int FROM x.Y, c int FROM x.y",
            "column c reads field x.y, and another column reads x.Y: Spark ignores upper",
        ),
        ("a int FROM X.y, c int FROM x.z", "column c reads field x, and another column reads X"),
        ("a int FROM B, b int", "column b reads field b, and another column reads B"),
        ("a int FROM " + ".".join("b" * 33), "more than 32 names after FROM"),
    ],
)
def test_paths_that_cannot_be_read(text: str, sentence: str) -> None:
    with pytest.raises(OptionRefused, match=sentence):
        RowPipeline(text).known_schema()


def test_fields_come_out_of_objects_and_are_judged_as_columns_are(spark: SparkSession) -> None:
    values = [
        b'{"order":"a","customer":{"id":1,"at":"2026-11-28T09:00:00Z","paid":1.10}}',
        b'{"order":"b","customer":{}}',
        b'{"order":"c"}',
        b'{"order":"d","customer":null}',
        b'{"order":"e","customer":7}',
        b'{"order":"f","customer":{"id":1.5}}',
        b'{"order":"g","customer":{"paid":1.005}}',
        b'{"order":"h","customer":{"id":{"id":1}}}',
        b'{"order":"i","customer":[{"id":1}]}',
    ]
    records = spark.createDataFrame(
        [(0, offset, None, None, bytearray(value)) for offset, value in enumerate(values)],
        "partition int, offset long, timestamp timestamp, key binary, value binary",
    )
    columns = "order string, id bigint FROM customer.id, paid decimal(9,2) FROM customer.paid"
    found = rows(records, columns).orderBy("_kafka_offset").collect()
    assert found[0].asDict().keys() >= {"order", "id", "paid"}
    read = [(row.order, row.id, None if row.paid is None else str(row.paid), row._ratchet_state) for row in found]
    assert read == [
        ("a", 1, "1.10", PARSED),
        ("b", None, None, PARSED),
        ("c", None, None, PARSED),
        ("d", None, None, PARSED),
        *[(None, None, None, NOT_PARSED)] * 5,
    ]
    assert [row._kafka_value is None for row in found] == [True] * 4 + [False] * 5
    told = report_undeclared(RowPipeline(columns), "topic", records.limit(1))
    assert told == ("customer.at",)
