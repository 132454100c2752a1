"""Avro's schema resolution: what fastavro reads, and no number that a column does not hold unchanged."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from kafka_ratchet.spark_sink.rows.avro import schema as avro_schema
from kafka_ratchet.spark_sink.rows.avro.avro import AvroValues
from kafka_ratchet.spark_sink.rows.avro.resolution import Resolution
from kafka_ratchet.spark_sink.rows.avro.task import decode
from kafka_ratchet.spark_sink.rows.ddl import read_ddl

NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}, {"name": "v", "type": "int"}],
}
WRITER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "skipped", "type": ["null", "string", NODE, {"type": "map", "values": ["Node", "double"]}]},
        {"name": "i", "type": "int"},
        {"name": "l", "type": "long"},
        {"name": "f", "type": "float"},
        {"name": "u", "type": ["int", "null", "double"]},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "b", "type": "bytes"},
        {"name": "a", "type": {"type": "array", "items": {"type": "map", "values": "float"}}},
        {"name": "x", "type": {"type": "fixed", "name": "X", "size": 2}},
    ],
}
READER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "whole", "type": "long", "aliases": ["i"]},
        {"name": "l", "type": ["null", "double"]},
        {"name": "f", "type": "double"},
        {"name": "u", "type": ["null", "double"]},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "C"], "default": "C"}},
        {"name": "b", "type": "bytes"},
        {"name": "a", "type": {"type": "array", "items": {"type": "map", "values": "double"}}},
        {"name": "x", "type": {"type": "fixed", "name": "X", "size": 2}},
        {"name": "new", "type": {"type": "record", "name": "N", "fields": [{"name": "n", "type": "int"}]},
         "default": {"n": 7}},
    ],
}  # fmt: skip

SMALL = st.integers(-(2**31), 2**31 - 1)
FLOATS = st.floats(width=32, allow_nan=False)
ITEMS = st.lists(st.dictionaries(st.text(max_size=4), FLOATS, max_size=3), max_size=3)
NODES = st.recursive(
    st.builds(lambda v: {"next": None, "v": v}, SMALL),
    lambda inner: st.builds(lambda n, v: {"next": n, "v": v}, inner, SMALL),
)
SKIPPED = (
    st.none() | st.text(max_size=5) | NODES | st.dictionaries(st.text(max_size=3), NODES | st.floats(), max_size=2)
)
RECORDS = st.fixed_dictionaries(
    {
        "skipped": SKIPPED,
        "i": SMALL,
        "l": st.integers(-(2**53), 2**53),
        "f": FLOATS,
        "u": SMALL | st.none() | st.floats(allow_nan=False),
        "e": st.sampled_from(["A", "B"]),
        "b": st.binary(max_size=5),
        "a": ITEMS,
        "x": st.binary(min_size=2, max_size=2),
    }
)


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def plain(value: Any) -> Any:
    """A map as a dictionary: tasks have it as pairs."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return dict(value) if value and isinstance(value[0], tuple) else [plain(each) for each in value]
    return value


def resolved(writer: Any, columns: StructType | str, reader: Any = None) -> Resolution:
    kept = read_ddl(columns) if isinstance(columns, str) else columns
    return Resolution(avro_schema.parsed(writer), kept, None if reader is None else avro_schema.parsed(reader))


@settings(max_examples=200, deadline=None)
@given(RECORDS)
def test_what_is_read_is_what_fastavro_reads(value: dict[str, Any]) -> None:
    made = resolved(WRITER, AvroValues(json.dumps(READER)).columns, READER)
    assert (made.refused, made.left_out) == ([], ["skipped"])
    read, data = decode(made.plan, False), written(WRITER, value)
    found = plain(read(data, 0))
    wanted = fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(WRITER), fastavro.parse_schema(READER))
    found["a"] = [each or {} for each in found["a"]]
    assert found == wanted
    assert read(data[:-1], 0) is None
    assert read(data + b"\0", 0) is None
    assert read(b"12345" + data, 5) is not None


def one(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": "f", "type": kind}]}


def timed(kind: str, logical: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical, **more}


@pytest.mark.parametrize(
    ("writer", "value", "column", "found"),
    [
        ("long", 5, "int", 5),
        ("long", 2**31, "int", None),
        ("long", 2**53 + 1, "double", None),
        ("long", 2**53, "double", 2.0**53),
        ("int", 2**24 + 1, "float", None),
        ("double", 0.1, "float", None),
        ("double", float("inf"), "float", float("inf")),
        ("float", 0.5, "double", 0.5),
        ("string", "5", "int", None),
        ("bytes", b"\xff", "string", None),
        ("bytes", b"ok", "string", "ok"),
        (timed("long", "timestamp-millis"), 7, "timestamp", 7000),
        (timed("long", "timestamp-millis"), 7, "timestamp_ntz", None),
        (timed("long", "timestamp-millis"), 7, "bigint", None),
        ("long", 7, "timestamp", None),
        (timed("int", "date"), 7, "timestamp", None),
        (timed("bytes", "decimal", precision=4, scale=1), b"\x01", "timestamp", None),
        (timed("bytes", "decimal", precision=4, scale=1), b"\x01\x00", "decimal(5,2)", "25.60"),
        (timed("bytes", "decimal", precision=4, scale=1), b"\x01\x00", "decimal(3,2)", None),
        (timed("bytes", "decimal", precision=4, scale=3), b"\x01\x00", "decimal(9,2)", None),
        (["null", "int", "string"], 3, "int", 3),
        (["null", "int", "string"], "x", "int", None),
        ({"type": "array", "items": "int"}, [1], "array<bigint>", [1]),
        ({"type": "array", "items": "int"}, [1], "array<string>", None),
    ],
)
def test_a_number_that_the_column_does_not_hold_does_not_parse(
    writer: Any, value: Any, column: str, found: Any
) -> None:
    raw = writer["type"] if isinstance(writer, dict) and "logicalType" in writer else writer
    read = decode(resolved(one(writer), f"f {column}").plan, False)(written(one(raw), {"f": value}), 0)
    assert (None if read is None else str(read["f"]) if column.startswith("decimal") else read["f"]) == found


def test_a_decimal_of_more_digits_than_a_column_has_is_its_bytes() -> None:
    wide = timed("bytes", "decimal", precision=64, scale=2)
    columns = AvroValues(json.dumps(one(wide))).columns
    assert columns.simpleString() == "struct<f:binary>"
    for reader in (None, one(wide)):
        made = resolved(one(wide), columns, reader)
        assert made.refused == []
        assert decode(made.plan, 0)(written(one("bytes"), {"f": b"\1\2"}), 0) == {"f": b"\1\2"}
    defaulted = {**one(wide), "fields": [*one(wide)["fields"], {"name": "g", "type": wide, "default": "\u00ff"}]}
    made = resolved(one(wide), AvroValues(json.dumps(defaulted)).columns, defaulted)
    assert decode(made.plan, 0)(written(one("bytes"), {"f": b""}), 0) == {"f": b"", "g": b"\xff"}
    assert resolved(one({**wide, "precision": 38}), "f binary").refused


@pytest.mark.parametrize("kind", ["float", "double"])
def test_nan_without_a_column_does_not_matter(kind: str) -> None:
    schema = {**one("int"), "fields": [{"name": "x", "type": kind}, *one("int")["fields"]]}
    data = written(schema, {"x": float("nan"), "f": 3})
    assert decode(resolved(schema, "f int").plan, 2)(data, 0) == {"f": 3}
    assert decode(resolved(schema, f"x {kind}, f int").plan, 2)(data, 0) is None


def test_null_and_missing_fields_are_what_the_readers_schema_says() -> None:
    nullable, wanted = one(["null", "int"]), one("int")
    made = resolved(nullable, "f int", wanted)
    assert made.refused == ["field f: null, which the job's schema does not allow"]
    assert decode(made.plan, False)(written(nullable, {"f": None}), 0) is None
    assert decode(made.plan, False)(written(nullable, {"f": 3}), 0) == {"f": 3}
    assert decode(resolved(nullable, "f int").plan, False)(written(nullable, {"f": None}), 0) == {"f": None}
    more = {**wanted, "fields": [*wanted["fields"], {"name": "g", "type": "int"}]}
    assert resolved(one("int"), "f int, g int", more).refused[0].startswith("field g: not in schema r")
    other = {**one("int"), "name": "q"}
    assert resolved(other, "f int", wanted).refused == ["record q, and not r"]
    assert resolved(other, "f int", {**wanted, "aliases": ["q"]}).refused == []
    assert resolved(one("int"), "g int").refused == ["none of the fields of r is a column"]


def test_references_are_written_out_once() -> None:
    named = {"shop.Place": {"type": "record", "name": "Place", "namespace": "shop",
                            "fields": [{"name": "town", "type": "string"}]}}  # fmt: skip
    schema = {"type": "record", "name": "shop.Order", "fields": [
        {"name": "a", "type": "Place"}, {"name": "b", "type": ["null", "shop.Place"]}]}  # fmt: skip
    found = avro_schema.self_contained(schema, named)
    assert AvroValues(json.dumps(found)).columns.simpleString() == "struct<a:struct<town:string>,b:struct<town:string>>"
    assert [each.node.kind for each in avro_schema.parsed(schema, named).fields] == ["record", "union"]


@pytest.mark.parametrize(
    "schema", ["nothing", 7, {}, {"type": "record", "name": "x"}, ["int", "no"], {"type": "fixed"}]
)
def test_what_is_no_schema_is_a_sentence(schema: Any) -> None:
    with pytest.raises(avro_schema.SchemaWrong):
        avro_schema.parsed(schema)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_raise(data: bytes) -> None:
    decode(resolved(WRITER, AvroValues(json.dumps(READER)).columns, READER).plan, True)(data, 0)


def test_a_list_in_itself_is_passed_over_as_deep_as_python_goes() -> None:
    fields = [{"name": "n", "type": NODE}, {"name": "k", "type": "int"}]
    made = resolved({"type": "record", "name": "r", "fields": fields}, "k int")
    read = decode(made.plan, False)
    assert read(b"\2" * 50 + b"\0" + b"\2" * 51 + b"\4", 0) == {"k": 2}
    assert read(b"\2" * 100_000, 0) is None
