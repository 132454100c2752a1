"""Statistics of Parquet files in a Delta log: what readers leave files out by must be true of every row."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_ratchet.spark_sink.files.parquet import write_batches
from kafka_ratchet.spark_sink.files.statistics import statistics_maker

UTC = datetime.UTC


def said(folder: Path, *rows: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    table = pa.Table.from_pylist(list(rows), schema)
    found: dict[str, Any] = json.loads(write_batches(table.to_batches(), schema, str(folder), "part-job.1").statistics)
    return found


def test_least_and_greatest_values_and_nulls_of_each_type(tmp_path: Path) -> None:
    schema = pa.schema(
        {
            "n": pa.int64(),
            "who": pa.string(),
            "list": pa.list_(pa.struct({"a": pa.int32(), "b": pa.string()})),
            "amount": pa.decimal128(12, 2),
            "large": pa.decimal128(38, 2),
            "heat": pa.float64(),
            "at": pa.timestamp("us", "UTC"),
            "local": pa.timestamp("us"),
            "day": pa.date32(),
            "is": pa.bool_(),
            "raw": pa.binary(),
            "never": pa.int32(),
        }
    )
    at = datetime.datetime(2026, 11, 28, 9, 0, 0, 123456, UTC)
    one = {
        "n": 2**62 + 1,
        "who": "Zoë",
        "list": [{"a": 1, "b": "x"}, None],
        "amount": Decimal("-1.10"),
        "large": Decimal("1"),
        "heat": -0.5,
        "at": at,
        "local": at.replace(tzinfo=None),
        "day": at.date(),
        "is": True,
        "raw": b"\0",
        "never": None,
    }
    other = {"n": -7, "who": None, "amount": Decimal("22.00"), "heat": 3.5}
    found = said(tmp_path, one, other, schema=schema)
    assert found["numRecords"] == 2
    assert found["minValues"] == {
        "n": -7, "who": "Zoë", "amount": -1.1, "heat": -0.5, "at": "2026-11-28T09:00:00.123Z",
        "local": "2026-11-28T09:00:00.123", "day": "2026-11-28",
    }  # fmt: skip
    assert found["maxValues"] == {
        "n": 2**62 + 1, "who": "Zoë", "amount": 22.0, "heat": 3.5, "at": "2026-11-28T09:00:00.124Z",
        "local": "2026-11-28T09:00:00.124", "day": "2026-11-28",
    }  # fmt: skip
    nulls = {name: 1 for name in ("who", "large", "at", "local", "day", "is", "raw")}
    assert found["nullCount"] == {"n": 0, "amount": 0, "heat": 0, "never": 2, **nulls}


def test_values_that_bound_nothing_are_left_out(tmp_path: Path) -> None:
    schema = pa.schema(
        {"heat": pa.float64(), "cold": pa.float32(), "who": pa.string(), "at": pa.timestamp("us", "UTC")}
    )
    text = "ü" * 40
    found = said(
        tmp_path,
        {"heat": float("nan"), "cold": float("-inf"), "who": text, "at": 2**60},
        {"heat": 1.0, "cold": 2.0, "who": "\U0010ffff" * 33, "at": 0},
        schema=schema,
    )
    assert found["minValues"] == {"heat": 1.0, "who": "ü" * 32}
    assert found["maxValues"] == {"cold": 2.0, "who": "\U0010ffff" * 33}
    assert found["maxValues"]["who"].encode() >= ("\U0010ffff" * 33).encode()
    assert found["nullCount"] == {"heat": 0, "cold": 0, "who": 0, "at": 0}


def test_a_long_text_is_cut_so_that_it_stays_a_bound(tmp_path: Path) -> None:
    schema = pa.schema({"who": pa.string()})
    text = "a" * 40
    found = said(tmp_path, {"who": text}, schema=schema)
    assert (found["minValues"]["who"] <= text, found["maxValues"]["who"] >= text) == (True, True)
    assert len(found["maxValues"]["who"]) == 33


@pytest.mark.parametrize(("indexed", "expected"), [(1, {"a", "_kafka_offset"}), (-1, {"a", "b", "_kafka_offset"})])
def test_as_many_columns_as_the_table_says(tmp_path: Path, indexed: int, expected: set[str]) -> None:
    schema = pa.schema({"a": pa.int32(), "b": pa.int32(), "_kafka_offset": pa.int64()})
    path = tmp_path / "x.parquet"
    pq.write_table(pa.Table.from_pylist([{"a": 1, "b": 2, "_kafka_offset": 3}], schema), path)
    found = json.loads(statistics_maker(indexed)(pq.read_metadata(path), schema, ()))
    assert set(found["minValues"]) == set(found["nullCount"]) == expected


def test_several_row_groups_have_one_answer(tmp_path: Path) -> None:
    schema = pa.schema({"n": pa.int32(), "who": pa.string()})
    path = tmp_path / "x.parquet"
    table = pa.table({"n": pa.array([3, None, None, 1], pa.int32()), "who": [None, None, "b", "c"]})
    pq.write_table(table.cast(schema), path, row_group_size=2)
    found = json.loads(statistics_maker()(pq.read_metadata(path), schema, ()))
    assert (found["minValues"], found["maxValues"]) == ({"n": 1, "who": "b"}, {"n": 3, "who": "c"})
    assert found["nullCount"] == {"n": 2, "who": 2}
