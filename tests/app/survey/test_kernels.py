"""Fields, headers and numbers as the compiled passes find them, held against Python's own reading."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafka_ratchet.app.survey import kernels
from kafka_ratchet.app.survey.places import joined, joined_paths
from kafka_ratchet.rule.kernels import hash_of
from kafka_ratchet.rule.parts import ABSENT, GUESS, REPEATED, TEXT, find_headers
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from tests.app.survey.batches import batch_of
from tests.app.survey.plain_count import PlainRecord

PATHS = ("id", "a", "a.id", "a.b.id", "a.b.c.id", "b.id", "é")
NAMES = st.sampled_from(["id", "a", "b", "c", "é", "x", "", "i"])
TEXTS = st.text(st.characters(blacklist_characters='"\\', blacklist_categories=("Cs", "Cc")), max_size=4)
"""Without escapes: these are compared as they are written."""
LEAVES = st.none() | st.booleans() | st.integers(-5, 10**20) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
OBJECTS = st.dictionaries(
    NAMES,
    st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)),
    max_size=4,
)


def fields(value: bytes | None) -> tuple[dict[str, bytes], int]:
    batch = batch_of([PlainRecord(0, 0, 1, b"k", value, (("x", b'":"1"}'),))])
    starts, lengths = np.zeros((2, len(PATHS), 1), np.int64)
    masks = np.zeros(kernels.DEPTH_MOST + 1, np.uint64)
    broken = kernels.find_fields(batch.data, batch.columns, *joined_paths(PATHS), masks, starts, lengths)
    found = {
        path: batch.data[start : start + length].tobytes()
        for path, start, length in zip(PATHS, starts[:, 0], lengths[:, 0], strict=True)
        if length >= 0
    }
    return found, broken


def plain(value: Any, path: str) -> bytes | None:
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value).encode()


@settings(max_examples=100, deadline=None)
@given(OBJECTS, st.sampled_from([None, 1]))
def test_fields_are_those_that_json_reads(value: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    found, broken = fields(text.encode())
    assert broken == 0
    assert found == {path: each for path in PATHS if (each := plain(value, path)) is not None}, text


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40) | st.text('{}[]":,\\ aid1-', max_size=40).map(str.encode))
@example(b"{")
@example(b'{"')
@example(b'{"id":"\\')
@example(b'{"id":')
@example(b'{"id":1')
@example(b'{"id":"1')
@example(b'{"a":{"b":{"c":{"id":1}}')
def test_what_is_no_json_ends_within_its_bytes(value: bytes) -> None:
    """The header behind the value would make it whole: nothing of it may be read."""
    found, broken = fields(value)
    try:
        whole = json.loads(value)
    except (ValueError, RecursionError):
        whole = None
    assert broken == 0 or not isinstance(whole, dict)
    assert not (broken and found)
    assert all(text in value for text in found.values())


@pytest.mark.parametrize(
    "value",
    [b"[" * 200_000, b'{"id":' * 50_000, b'{"id":' + b"[" * 200_000 + b"]" * 200_000 + b"}"],
    ids=["lists", "objects", "whole"],
)
def test_deep_json_takes_no_stack(value: bytes) -> None:
    assert fields(value) == ({}, int(not value.endswith(b"}")))


def test_the_last_of_equal_names_counts_and_null_has_no_value() -> None:
    assert fields(b'{"id":1,"id":"2"}')[0] == {"id": b"2"}
    assert fields(b'{"id":1,"id":null}')[0] == {}
    assert fields(None) == ({}, 1)


def test_a_quote_behind_a_backslash_ends_nothing_and_stays_as_it_is_written() -> None:
    value = json.dumps({"x": 'a","id":1', 'y"': {"id": 2}, "id": "b\\", "b": {"id": "\x07"}}).encode()
    assert fields(value) == ({"id": b"b" + b"\\" * 2, "b.id": b"\\" + b"u0007"}, 0)


def headers(batch: RecordBatch, names: tuple[str, ...]) -> list[dict[str, bytes | int]]:
    starts, lengths = np.zeros((2, len(names), batch.count), np.int64)
    find_headers(batch.data, batch.columns, *joined(names), starts, lengths)
    return [
        {
            name: batch.data[start : start + length].tobytes() if length >= 0 else int(length)
            for name, start, length in zip(names, starts[:, i], lengths[:, i], strict=True)
        }
        for i in range(batch.count)
    ]


def test_headers_are_found_by_their_whole_name_and_not_where_there_are_two() -> None:
    several = (("x", b"1"), ("xy", b"2"), ("n", None), ("x", b"3"), ("y", b""))
    long = b"\xff" * 70_000
    records = [PlainRecord(0, 0, 1, None, None, several), PlainRecord(0, 1, 1, None, None, (("xy", long),))]
    absent = ABSENT
    assert headers(batch_of(records), ("x", "xy", "n", "y", "missing")) == [
        {"x": REPEATED, "xy": b"2", "n": -1, "y": b"", "missing": absent},
        {"x": absent, "xy": long, "n": absent, "y": absent, "missing": absent},
    ]


@pytest.mark.parametrize(
    ("text", "in_header", "in_field"),
    [
        (b"0", 0, 0),
        (b"0012", 12, 12),
        (b"9223372036854775807", 2**63 - 1, 2**63 - 1),
        (b"9223372036854775808", -1, -1),
        (b"1" * 40, -1, -1),
        (b"-1", -1, -1),
        (b"1.5", -1, -1),
        (b"", -1, -1),
        (b"12345678", 12345678, 12345678),
        ((300).to_bytes(8, "big"), 300, -1),
        ((2**63).to_bytes(8, "big"), -1, -1),
    ],
)
def test_numbers_are_read_as_a_worker_reads_them(text: bytes, in_header: int, in_field: int) -> None:
    data = np.frombuffer(text + b"99", np.uint8)
    for form, expected in ((GUESS, in_header), (TEXT, in_field)):
        numbers = np.zeros(1, np.int64)
        kernels.read_numbers(data, np.zeros(1, np.int64), np.array([len(text)]), form, numbers)
        assert numbers[0] == expected


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(0, 2**63))
def test_hashes_differ_where_bytes_do(one: bytes, other: bytes, seed: int) -> None:
    def hashed(text: bytes) -> int:
        # Other bytes stand around it, which do not count.
        around = np.frombuffer(b"#" + text + other, np.uint8)
        return int(hash_of(around, 1, len(text), np.uint64(seed)))

    assert (hashed(one) == hashed(other)) == (one == other)
    assert hashed(one) != hashed(one + b"\0")


def test_of_what_a_record_is_made_counts_for_the_whole_of_it() -> None:
    different = [
        PlainRecord(0, 0, 1, b"ab", b"c"),
        PlainRecord(0, 1, 1, b"a", b"bc"),
        PlainRecord(0, 2, 1, None, b"abc"),
        PlainRecord(0, 3, 1, b"", b"abc"),
        PlainRecord(0, 4, 1, b"abc", None),
        PlainRecord(0, 5, 1, b"abc", b""),
        PlainRecord(0, 6, 1, b"ab", b"c", (("x", None),)),
        PlainRecord(0, 7, 1, b"ab", b"c", (("x", b""),)),
    ]
    batch = batch_of([*different, different[0]._replace(offset=8, timestamp_ms=7)])
    values, wholes = np.zeros((2, batch.count), np.uint64)
    kernels.hash_records(batch.data, batch.columns, np.uint64(3), values, wholes)
    assert len(set(wholes.tolist())) == len(different)
    assert wholes[0] == wholes[8]
    assert values[4] != values[5]
    assert values[0] == values[6]  # headers may differ
    assert values[0] != values[1]  # the key may not
