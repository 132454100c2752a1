"""Avro values: what the specification says of bytes, and that no bytes of a stranger end the job."""

from __future__ import annotations

import datetime
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.job.run_state import RunSummary
from kafka_ratchet.spark_sink.rows.avro.avro import AvroValues, avro_values, task
from kafka_ratchet.spark_sink.rows.avro.task import reader, whole
from kafka_ratchet.spark_sink.rows.columns import STATE, record_schema
from kafka_ratchet.spark_sink.rows.decoded import CHUNK_BYTES, NO_VALUE, NOT_PARSED, PARSED
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.spark.dialect import arrow_schema
from tests.spark_sink.sites import Site, params

SCHEMA = {
    "type": "record",
    "name": "event",
    "namespace": "org.example",
    "fields": [
        {"name": "who", "type": "string"},
        {"name": "n", "type": ["null", "int"], "default": None},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": [{"type": "long", "logicalType": "local-timestamp-micros"}, "null"]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["A", "B"]}},
        {"name": "again", "type": "kind"},
        {"name": "hash", "type": {"type": "fixed", "name": "hash", "size": 2}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "sizes", "type": {"type": "map", "values": "float"}},
        {
            "name": "inner",
            "type": {
                "type": "record",
                "name": "inner",
                "fields": [
                    {"name": "ok", "type": "boolean"},
                    {"name": "x", "type": "double"},
                    {"name": "nano", "type": {"type": "long", "logicalType": "timestamp-nanos"}},
                    {"name": "days", "type": {"type": "array", "items": {"type": "int", "logicalType": "date"}}},
                ],
            },
        },
    ],
}
VALUES = AvroValues(json.dumps(SCHEMA))


def number(n: int) -> bytes:
    """Avro's long, written down from the specification."""
    n, out = (n << 1) ^ (n >> 63), bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def text(value: bytes) -> bytes:
    return number(len(value)) + value


def event(
    who: bytes = b"Zo\xc3\xab", at_ms: int = 1_709_251_199_999, day: int = 19_782, digits: bytes = b"\xff"
) -> bytes:
    parts = [
        text(who),
        number(1) + number(-(2**31)),
        text(digits),
        number(at_ms),
        number(0) + number(1),
        number(day),
        number(1),
        number(0),
        b"\x00\xff",
        number(-2) + number(4) + number(0) + number(1) + text(b"t") + number(0),  # a block that says its size
        number(1) + text(b"k") + struct.pack("<f", 0.5) + number(1) + text(b"l") + struct.pack("<f", -1) + number(0),
        b"\x01" + struct.pack("<d", 2.5) + number(2**63 - 1) + number(1) + number(0) + number(0),
    ]
    return b"".join(parts)


UTC = datetime.UTC
SAID: dict[str, Any] = {
    "who": "Zoë",
    "n": -(2**31),
    "amount": Decimal("-0.01"),
    "at": datetime.datetime(2024, 2, 29, 23, 59, 59, 999_000, tzinfo=UTC),
    "local": datetime.datetime(1970, 1, 1, 0, 0, 0, 1),
    "day": datetime.date(2024, 2, 29),
    "kind": "B",
    "again": "A",
    "hash": b"\x00\xff",
    "tags": [None, "t"],
    "sizes": [("k", 0.5), ("l", -1.0)],
    "inner": {"ok": True, "x": 2.5, "nano": 2**63 - 1, "days": [datetime.date(1970, 1, 1)]},
}


def decoded(
    values: list[bytes | None], avro: AvroValues = VALUES, restricted_values: bool = False
) -> list[dict[str, Any]]:
    """What the executors make of these values."""
    import pyarrow as pa

    record, n = arrow_schema(record_schema()), len(values)
    columns = [[0] * n, list(range(n)), [0] * n, [None] * n, values]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, record.types, strict=True)], schema=record
    )
    rows = [row for made in task(avro, restricted_values=restricted_values)([batch]) for row in made.to_pylist()]
    for row, value in zip(rows, values, strict=True):
        state = NO_VALUE if value is None else PARSED if row["_kafka_value"] is None else NOT_PARSED
        assert row.pop(STATE) == state
    return rows


def test_executors_need_nothing_of_this_package(tmp_path: Path) -> None:
    (tmp_path / "task").write_bytes(cloudpickle.dumps(task(VALUES, restricted_values=True)))  # type: ignore[no-untyped-call]
    script = (
        "import pickle, sys; task = pickle.load(open('task', 'rb')); list(task([])); print('spark_sink' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-I", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


@pytest.mark.parametrize(
    ("schema", "data", "value"),
    [  # the examples of the specification (binary encoding)
        ("long", "80 01", 64),
        ("long", "7f", -64),
        ("long", "01", -1),
        ("string", "06 66 6f 6f", "foo"),
        ({"type": "array", "items": "long"}, "04 06 36 00", [3, 27]),
        (["null", "string"], "02 02 61", "a"),
        (["null", "string"], "00", None),
        ({"type": "record", "name": "t", "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]},
         "36 06 66 6f 6f", {"a": 27, "b": "foo"}),
    ],
)  # fmt: skip
def test_bytes_of_the_specification_say_what_it_says(schema: Any, data: str, value: object) -> None:
    outer = {"type": "record", "name": "r", "fields": [{"name": "f", "type": schema}]}
    plan = AvroValues(json.dumps(outer)).plan
    assert whole(bytes.fromhex(data), b"", reader(plan, restricted_values=False)) == {"f": value}


def test_a_whole_event_is_in_its_columns_and_anything_else_is_kept_whole() -> None:
    [row] = decoded([event()])
    assert {name: row[name] for name in SAID} == SAID
    assert row["_kafka_value"] is None
    first, last = -62_135_596_800_000, 253_402_300_799_999
    good = [event(b""), event(at_ms=first), event(at_ms=last), event(day=-719_162), event(digits=b"\x00" * 60)]
    bad = [
        *(event()[:cut] for cut in range(len(event()))),
        event() + b"\x00",
        event() + event(),
        event(b"\xff"),
        event(at_ms=first - 1),
        event(at_ms=last + 1),
        event(at_ms=-(2**63)),
        event(day=2_932_897),
        event(digits=b""),
        event(digits=(10**38).to_bytes(17, "big")),
        event(digits=b"\x00" * 65),
        b"\x00\x00\x00\x00\x07" + event(),
    ]
    rows = decoded([*good, *bad, None])
    assert [row["_kafka_value"] for row in rows] == [None] * len(good) + bad + [None]
    assert all(row[name] is None for row in rows[len(good) :] for name in SAID)
    assert rows[4]["amount"] == 0
    [check, kept] = decoded([event(b"a\0")]) + decoded([event(b"a\0")], restricted_values=True)
    assert (check["who"], check["_kafka_value"], kept["who"], kept["_kafka_value"]) == (
        "a\0",
        None,
        None,
        event(b"a\0"),
    )


def test_lengths_and_counts_beyond_the_value_are_no_reason_to_make_room_for_them() -> None:
    schemas: list[Any] = ["bytes", "string", {"type": "array", "items": "long"}, {"type": "map", "values": "long"}]
    for schema in schemas:
        outer = {"type": "record", "name": "r", "fields": [{"name": "f", "type": schema}]}
        read = reader(AvroValues(json.dumps(outer)).plan, restricted_values=False)
        for n in (2**31, 2**40, 2**62, 2**63 - 1, -1, -(2**31), -(2**63)):
            for rest in (b"", number(2**62), number(-1) * 2, number(0) * 100):
                assert whole(number(n) + rest, b"", read) is None
        assert whole(b"\xff" * 9 + b"\x02", b"", read) is None  # 65 bits
        assert whole(b"\x80" * 100_000, b"", read) is None


@settings(max_examples=600, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 3), st.binary(max_size=12)), max_size=4), st.booleans())
@example([], True)
def test_mutated_values_are_kept_whole_or_held_whole(
    changes: list[tuple[int, int, bytes]], restricted_values: bool
) -> None:
    value = event()
    for at, cut, more in changes:
        value = value[:at] + more + value[at + cut :]
    before, row, after = decoded([event(), value, event()], restricted_values=restricted_values)
    assert before == after | {"_kafka_offset": 0}
    assert {name: before[name] for name in SAID} == SAID
    if row["_kafka_value"] is None:
        assert row["who"] is not None
        assert row["inner"] is not None
    else:
        assert row["_kafka_value"] == value
        assert all(row[name] is None for name in SAID)


def test_values_are_taken_apart_a_few_at_a_time() -> None:
    big = event(b"x" * (CHUNK_BYTES // 2))
    rows = decoded([big, big, big, None, event(), big])
    assert [len(row["who"] or "") for row in rows] == [CHUNK_BYTES // 2] * 3 + [0, 3, CHUNK_BYTES // 2]
    assert [row["_kafka_offset"] for row in rows] == list(range(6))


@pytest.mark.parametrize("site", params("delta", "postgres-tasks"), indirect=True)
def test_values_of_a_topic_with_a_registrys_id(
    site: Site,
    ingest: Callable[..., RunSummary],
    new_topic: Callable[..., str],
    write: Callable[..., None],
    tmp_path: Path,
) -> None:
    file = tmp_path / "event.avsc"
    file.write_text(json.dumps(SCHEMA), "utf-8")
    topic = new_topic(partitions=2)
    values = [b"\0\0\0\0\x07" + event(), b"\0\0\0\0\x08" + event(), event(), b"\0\0\0\0\x07", None]
    for partition in (0, 1):
        write(topic, values, partition)
        write(topic, values, partition, commit=False)
    pipeline = RowPipeline(avro=avro_values(str(file), 7), rejects=site.rejects)
    assert ingest(topic, pipeline).rows == (4 if site.rejects else 10)
    rows = sorted(site.rows(), key=lambda row: (row["_kafka_offset"], row["_kafka_partition"]))
    assert [(row["_kafka_partition"], row["_kafka_offset"], row["who"]) for row in rows[:2]] == [
        (0, 0, "Zoë"),
        (1, 0, "Zoë"),
    ]
    for name in ("n", "amount", "at", "local", "day", "kind", "hash", "tags"):
        assert rows[0][name] == SAID[name]
    found = sorted(site.rows(rejects=True) if site.rejects else rows[2:], key=lambda row: row["_kafka_offset"])
    assert [row["_kafka_value"] for row in found if row["_kafka_value"] is not None] == [
        v for v in values[1:4] for _ in (0, 1)
    ]
    assert {row["_kafka_partition"] for row in found} == {0, 1}


def record(*fields: object) -> str:
    return json.dumps({"type": "record", "name": "r", "fields": list(fields)})


def one(schema: object) -> str:
    return record({"name": "f", "type": schema})


DEEP = 40
NESTED: Any = "int"
for _ in range(DEEP):
    NESTED = {"type": "array", "items": NESTED}


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("{", "is no JSON"),
        ('{"type":' * 5000, "is no JSON"),
        ('"string"', "must be records"),
        (one("null"), 'type "null" is not defined'),
        (one(["null"]), "a union may have null and one other"),
        (one(["int", "string"]), "a union may have null and one other"),
        (one(["null", "int", "string"]), "a union may have null and one other"),
        (one("elsewhere"), 'type "elsewhere" is not defined'),
        (one(["null", "r"]), '"r" contains itself'),
        (one({"type": "fixed", "name": "x", "size": 0}), "a size of at least 1"),
        (one({"type": "enum", "name": "x", "symbols": []}), "has no symbols"),
        (one({"type": "enum", "name": "x y", "symbols": ["A"]}), "not a valid name of a type"),
        (one({"type": "record", "name": "r", "fields": []}), "defined twice"),
        (one({"type": "record", "name": "x", "fields": []}), "has no fields"),
        (one({"type": "array"}), "has no items"),
        (one(7), "7 is not a type"),
        (one(NESTED), "nested more than 32 deep"),
        (record({"name": "a b", "type": "int"}), "is not a field"),
        (record({"name": "a", "type": "int"}, {"name": "A", "type": "int"}), '"A" occurs twice'),
        (record({"name": "_kafka_offset", "type": "int"}), "one of Ratchet's own"),
        ("no/such.avsc", "the file cannot be read"),
        ("\0", "the file cannot be read"),
    ],
)
def test_schemas_that_no_table_can_have_are_refused(schema: str, sentence: str) -> None:
    with pytest.raises(OptionRefused, match=sentence):
        avro_values(schema)
    with pytest.raises(OptionRefused, match="0 to 4294967295"):
        avro_values(json.dumps(SCHEMA), -1)
