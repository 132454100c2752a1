"""What becomes of a value: columns where it is a JSON object of the declared types, its own bytes otherwise."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from kafka_ratchet.spark_sink.errors import OptionRefused, SchemaDiffers
from kafka_ratchet.spark_sink.job.run_state import RunSummary
from kafka_ratchet.spark_sink.rows.columns import FINITE_TOO, json_schema, rows
from kafka_ratchet.spark_sink.rows.decoded import NOT_PARSED, PARSED

COLUMNS = "id string, n int NOT NULL, inner struct<at: timestamp, tags: array<string>>"

WHOLE: list[tuple[bytes, tuple[object, ...]]] = [
    (b'{"id":"a","n":1}', ("a", 1, None)),
    (b'  {"id":"a","n":1}\n', ("a", 1, None)),
    (b"{}", (None, None, None)),
    (b'{"other":1,"ID":"case matters"}', (None, None, None)),
    (b'{"id":null,"n":null}', (None, None, None)),
    (b'{"id":{"deep":[1]}}', ('{"deep":[1]}', None, None)),
    (b'{"id":"},null]","other":[{},null]}', ("},null]", None, None)),
    (b'{"other":[{}]}', (None, None, None)),
    (
        '{"id":"ü\\u0000\\"]","inner":{"at":"2020-01-01T00:00:00Z","tags":["}","{"]}}'.encode(),
        ('ü\x00"]', None, {"at": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), "tags": ["}", "{"]}),
    ),
]

NOT_WHOLE: list[bytes] = [
    b"",
    b"  ",
    b"no json",
    b"null",
    b"12",
    b'"text"',
    b"[]",
    b'[{"id":"a"}]',
    b'{"id":"a"',
    b'{"id":"a"}{"id":"b"}',
    b'{"id":"a"}\n{"id":"b"}',
    b'{"id":"a"},{"id":"b"}',
    b'{"id":"a"} and more',
    b'{"id":"a"}}',
    b'{"id":"a"}]',
    b'{"id":"a"}]x',
    b'{"id":"a"}],[{"id":"b"}',
    b'{"id":"a"},null',
    b'{"id":"a"},null]x',
    b'{"id":"a"} , null ] x',
    b'{"id":"a"},{"id":"b"}]x',
    b'{"id":"a","n":"one"}',
    b'{"id":"a","n":1.5}',
    b'{"id":"a","n":99999999999}',
    b'{"id":"a","inner":{"at":"yesterday"}}',
    b'{"id":"\xff"}',
    b"\xef\xbb\xbf{}",
    b"\x00\xff" * 50,
    b"[" * 3000,
]


def test_every_value_is_either_in_its_columns_or_kept_whole(
    new_topic: Callable[..., str],
    write: Callable[..., None],
    run: Callable[..., RunSummary],
    rows: Callable[..., list[tuple[object, ...]]],
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [*(value for value, _ in WHOLE), *NOT_WHOLE, None])
    run(topic, COLUMNS)
    expected = [(*columns, None) for _, columns in WHOLE]
    expected += [(None, None, None, value) for value in NOT_WHOLE]
    expected += [(None, None, None, None)]  # a record without a value
    assert rows("id", "n", "inner", "_kafka_value") == expected


@pytest.mark.parametrize("column", ["n decimal(12,2)", "n byte", "n double", "at timestamp", "l array<decimal(3,1)>"])
def test_a_value_that_is_no_object_is_kept_whole_also_where_columns_are_looked_at(
    spark: SparkSession, column: str
) -> None:
    """An empty value has no first element: Spark in ANSI mode ended the job with INVALID_ARRAY_INDEX, at each start."""
    values = [value for value in NOT_WHOLE if b'"n"' not in value and b'"inner"' not in value]
    records = spark.createDataFrame(
        [(0, offset, None, None, bytearray(value)) for offset, value in enumerate(values)],
        "partition int, offset long, timestamp timestamp, key binary, value binary",
    )
    columns = f"id string, {column}, inner struct<{column}>"
    read = rows(records, columns, restricted_values=FINITE_TOO).orderBy("_kafka_offset").collect()
    assert [(bytes(row._kafka_value), row._ratchet_state) for row in read] == [(value, NOT_PARSED) for value in values]


def test_a_run_with_other_columns_is_refused_by_name_and_leaves_the_table_alone(
    new_topic: Callable[..., str], write: Callable[..., None], run: Callable[..., RunSummary], table: str
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [b'{"id":"a"}'])
    run(topic, "id string")
    write(topic, [b'{"id":"b"}'])
    version = DeltaTable(table).version()
    for columns, sentence in [
        ("id long", "column id is .*string.* in the table and .*long.* in this job"),
        ("id string, more int", "column more is absent in the table"),
    ]:
        with pytest.raises(SchemaDiffers, match=sentence):
            run(topic, columns)
    assert DeltaTable(table).version() == version


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ("_kafka_offset long", "'_kafka_offset': the name is one of Ratchet's own"),
        ("_KAFKA_VALUE string", "'_KAFKA_VALUE': the name is one of Ratchet's own"),
        ("a int, A int", "'A': there are two of that name"),
        ("`a b` int", "'a b': a name must not"),
        ("a struct<`x=y`: int>", "'x=y': a name must not"),
        ("a interval day to second", "'interval' at character 3 where a type"),
        ("a variant", "'variant' at character 3 where a type"),
        ("a array<void>", "'void' at character 9 where a type"),
        ("a int; drop table x", "is not Spark DDL"),
        ("int", "it ends where a type"),
        ("", "names no column"),
    ],
)
def test_columns_that_the_table_cannot_have_are_refused(spark: SparkSession, columns: str, sentence: str) -> None:
    with pytest.raises(OptionRefused, match=sentence):
        json_schema(columns)


@pytest.mark.parametrize(
    ("column", "whole", "not_whole"),
    [
        ("byte", {"127": 127, "-128": -128, "null": None}, ["200", "128", "-129", "256", "1.0"]),
        (
            "decimal(12,2)",
            {
                "1.50": "1.50",
                "1.500": "1.50",
                "-0.01": "-0.01",
                "1e2": "100.00",
                '"7.5"': "7.50",
                "9999999999.99": None,
            },
            [
                "1.005",
                "0.001",
                "10000000000",
                "1e-3",
                *('"1,5"', '"1,000.50"', '",5"', '"5,"', '"-,5"', '"1,e1"', '"\u0661,\u0665"'),
                *(r'"1\u002c5"', r'"\u0031,5"', r'"\u0661,\u0665"'),
            ],
        ),
        (
            "decimal(12,2)",
            {"1.5" + "0" * 40: "1.50", "150e-2": "1.50", "0e-99": "0.00", '"0.015e+2"': "1.50"},
            ["1." + "0" * 40 + "1", '"1.' + "0" * 28 + '4"', "1e-40", "155e-3", '"1' + "0" * 40 + '1e-41"'],
        ),
        (
            "decimal(38,0)",
            {"9" * 38: "9" * 38, "2.0": "2", "1.5e1": "15", "-20e-1": "-2", '"3.0"': "3"},
            [
                "1" + "0" * 38,
                *("1.5", "-0.4", '"1.5"', "15e-1", r'"1\u002e5"', '"\u0661.\u0665"', "1" * 37 + ".5"),
            ],
        ),
        ("decimal(38,1)", {"1.5": "1.5", "1.50": "1.5"}, ["1.05", "1.55", "105e-2", '"1.04"']),
    ],
)
def test_a_number_that_its_column_cannot_hold_unchanged_is_kept_whole(
    spark: SparkSession, column: str, whole: dict[str, object], not_whole: list[str]
) -> None:
    """from_json makes -56 of the byte 200, rounds decimals off, and reads "1,5" as 15, also where it is escaped."""
    forms = [
        '{{"n":{0}}}',
        r'{{"\u006e":{0}}}',
        '{{"s":{{"n":{0}}}}}',
        '{{"m":{{"k":[{{"n":{0}}}]}}}}',
        '{{"list":[{0}]}}',
        '{{"list":[null, {0}]}}',
        '{{"named":{{"x":{0}}}}}',
    ]
    values = [(form.format(number), number) for number in [*whole, *not_whole] for form in forms]
    records = spark.createDataFrame(
        [(0, offset, None, None, bytearray(value.encode())) for offset, (value, _) in enumerate(values)],
        "partition int, offset long, timestamp timestamp, key binary, value binary",
    )
    n = f"n {column}"
    columns = (
        f"{n}, s struct<{n}>, m map<string, array<struct<{n}>>>, list array<{column}>, named map<string, {column}>"
    )
    read = rows(records, columns).orderBy("_kafka_offset").collect()
    for (value, number), row in zip(values, read, strict=True):
        kept = number in not_whole
        assert (row._kafka_value is not None) == kept, value
        assert row._ratchet_state == (NOT_PARSED if kept else PARSED)
        held = [
            row.n,
            row.s and row.s.n,
            row.m and row.m["k"][0].n,
            row.list and row.list[-1],
            row.named and row.named["x"],
        ]
        found = next((each for each in held if each is not None), None)
        expected = None if kept else whole[number] or (None if number == "null" else number)
        assert (None if found is None else str(found)) == (None if expected is None else str(expected)), value


def record_of(spark: SparkSession, value: bytes) -> DataFrame:
    return spark.createDataFrame(
        [(0, 0, None, None, bytearray(value))],
        "partition int, offset long, timestamp timestamp, key binary, value binary",
    )


def test_places_in_another_column_are_no_places_of_a_decimal(spark: SparkSession) -> None:
    value = b'{"n":2.0,"x":1.5,"id":"1.5","list":[1e-3],"other":"a \\"1.5"}'
    (row,) = rows(record_of(spark, value), "id string, list array<double>, x double, n decimal(38,0)").collect()
    assert (row.id, row.list, row.x, str(row.n), row._kafka_value) == ("1.5", [0.001], 1.5, "2", None)


def test_a_text_with_a_comma_in_another_column_is_no_decimal(spark: SparkSession) -> None:
    value = b'{"id":"1,5","list":["1,5"],"n":2}'
    (row,) = rows(record_of(spark, value), "id string, list array<string>, n decimal(2,1)").collect()
    assert (row.id, row.list, str(row.n), row._kafka_value) == ("1,5", ["1,5"], "2.0", None)
