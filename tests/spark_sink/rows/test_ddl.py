"""Columns as text: read without Spark, and as Spark reads them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructField,
    StructType,
)

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.rows.columns import nullable
from kafka_ratchet.spark_sink.rows.ddl import TYPES, read_ddl
from tests.spark_sink.ddl import struct_of


@pytest.mark.parametrize(
    "text",
    [
        "user string, amount double",
        " user  STRING ,\n\tamount\tDouble ",
        "user: string, in: int",
        "`a-b``c` long, `in` struct<at: timestamp, `x.y` array<map<string, decimal(5,2)>>>",
        "a decimal, b DECIMAL(9), c dec(9,2), d numeric(38,38)",
        "a int NOT NULL, b int COMMENT 'net', c int not null comment \"x, y string\"",
        "a struct<b int NOT NULL, c: string COMMENT 'x'>",
        "a ARRAY<ARRAY<INT>>, b map<int,array<struct<x:byte>>>",
        "array int, map string, struct long, comment int, `not` int",
        "a1 int, _x int",
        ", ".join(f"c{number} {name}" for number, name in enumerate(TYPES)),
    ],
)
def test_what_is_read_is_what_spark_reads(spark: SparkSession, text: str) -> None:
    sparks = struct_of(text)
    assert nullable(read_ddl(text)) == nullable(StructType([StructField(f.name, f.dataType) for f in sparks.fields]))


LEAF: st.SearchStrategy[DataType] = st.sampled_from(sorted(set(TYPES.values()))).map(
    lambda name: StructField.fromJson({"name": "", "type": name, "nullable": True, "metadata": {}}).dataType
) | st.integers(1, 38).flatmap(lambda digits: st.integers(0, digits).map(lambda places: DecimalType(digits, places)))
NAME = st.text("abcÜ 0_`.'<", min_size=1, max_size=5)


def of(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    fields = st.lists(st.builds(StructField, NAME, inner), min_size=1, max_size=3)
    return st.builds(ArrayType, inner) | st.builds(MapType, inner, inner) | st.builds(StructType, fields)


def ddl(data_type: DataType) -> str:
    def fields(struct: StructType, between: str) -> str:
        return ", ".join(f"`{f.name.replace('`', '``')}`{between}{ddl(f.dataType)}" for f in struct.fields)

    if isinstance(data_type, ArrayType):
        return f"array<{ddl(data_type.elementType)}>"
    if isinstance(data_type, MapType):
        return f"map<{ddl(data_type.keyType)}, {ddl(data_type.valueType)}>"
    return f"struct<{fields(data_type, ': ')}>" if isinstance(data_type, StructType) else data_type.simpleString()


@given(st.lists(st.tuples(NAME, st.recursive(LEAF, of, max_leaves=6)), min_size=1, max_size=4))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_schema_comes_back_from_its_text(columns: list[tuple[str, DataType]]) -> None:
    text = ", ".join(f"`{name.replace('`', '``')}` {ddl(data_type)}" for name, data_type in columns)
    assert read_ddl(text) == StructType([StructField(name, data_type) for name, data_type in columns])


@given(st.text("abc int<>(),:`'1 \n-", max_size=40) | st.text(max_size=20))
@settings(max_examples=500, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(OptionRefused):
        read_ddl(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "names no column"),
        ("user", r"it ends where a type \(boolean, .*struct<name: ...>\) is expected"),
        ("user strin", "'strin' at character 6 where a type"),
        ("user string,", "it ends where a name"),
        ("user string amount int", "'amount' at character 13 where ',' or the end"),
        ("a-b int", "'-' at character 2 has no meaning here"),
        ("a decimal(39,2)", "1 to 38 digits"),
        ("a decimal(2,3)", "no more places"),
        ("a decimal(x)", "a number of digits"),
        ("a array<int", "it ends where '>'"),
        ("a map<int>", "'>' at character 10 where ','"),
        ("a struct<>", "'>' at character 10 where a name"),
        ("a int NOT", "NULL after NOT"),
        ("a varchar(3)", "'varchar' at character 3"),
        ("a int COMMENT x", "a text in quotes"),
        ("a " + "array<" * 40 + "int" + ">" * 40, "types are nested more than 32 deep"),
    ],
)
def test_what_is_no_ddl_is_refused_with_the_place(text: str, reason: str) -> None:
    with pytest.raises(OptionRefused, match=reason):
        read_ddl(text)


def test_no_jvm_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_jvm(*_: Any, **__: Any) -> None:
        raise AssertionError("Spark was asked")

    monkeypatch.setattr("pyspark.sql.types._parse_datatype_string", no_jvm)
    assert read_ddl("a int").names == ["a"]
