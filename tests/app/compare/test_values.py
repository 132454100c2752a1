"""Texts of values, addresses and pairs."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from kafka_ratchet.app.compare.address import Address, table_names
from kafka_ratchet.app.compare.bounds import Bound, seconds
from kafka_ratchet.app.compare.columns import pairs
from kafka_ratchet.app.compare.values import (
    Kind,
    column_texts,
    common,
    content_of,
    content_parts,
    converter,
    identity_of,
    text_of,
)
from kafka_ratchet.errors import SettingsError

KAFKA, TABLE = Address.parse("kafka:t"), Address.parse("csv:t.csv")
ZONE = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (5, "5"),
        (5.0, "5"),
        (Decimal("5.00"), "5"),
        (Decimal("1E+3"), "1000"),
        (Decimal("-0.0"), "0"),
        (-0.0, "0"),
        (0.1, "0.1"),
        (Decimal("0.1000"), "0.1"),
        (1e300, "1E+300"),
        (10**38, "1" + "0" * 38),
        (Decimal("12345678901234567890.123456789012345678"), "12345678901234567890.123456789012345678"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (True, "true"),
        ("007", "007"),
        (" 5", " 5"),
        (b"abc", "abc"),
        (b"\xff\x00", "\\xff00"),
        (datetime(2026, 1, 2, 3, 4, 5, 600_000, UTC), "2026-01-02T03:04:05.6Z"),
        (datetime(2026, 1, 2, 5, 4, 5, tzinfo=ZONE), "2026-01-02T03:04:05Z"),
        (date(2026, 1, 2), "2026-01-02"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ({"b": 1.50, "a": [True, None]}, '{"a":[true,null],"b":"1.5"}'),
        ('{"b": 1.5, "a": [true, null]}', '{"a":[true,null],"b":"1.5"}'),
        ("{no JSON", "{no JSON"),
    ],
)
def test_text(value: Any, text: str | None) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize(
    ("kind", "left", "right"),
    [
        ("number", "5.0", 5),
        ("number", True, 1),
        ("float64", Decimal("0.1234567890123456789"), 0.1234567890123456789),
        ("float32", 0.1, 0.10000000149011612),
        ("timestamp", "2026-01-02T03:04:05+02:00", datetime(2026, 1, 2, 1, 4, 5)),
        ("timestamp", 1_767_323_045_000, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("date", "2026-01-02T00:00:00Z", date(2026, 1, 2)),
        ("boolean", 1, True),
        ("untyped", Decimal("1.5"), "1.50"),
        ("untyped", None, ""),
    ],
)
def test_one_text_for_both_sides(kind: Kind, left: Any, right: Any) -> None:
    text = converter(kind)
    assert text(left) == text(right)


@pytest.mark.parametrize(("kind", "value"), [("number", "five"), ("timestamp", "soon"), ("number", "1_000")])
def test_what_does_not_fit_stays_as_it_is(kind: Kind, value: Any) -> None:
    assert converter(kind)(value) == value


@pytest.mark.parametrize(
    ("type_", "kind", "values"),
    [
        (pa.int64(), "number", [0, -5, 2**63 - 1, None]),
        (pa.uint8(), "any", [0, 255]),
        (pa.string(), "any", ["a", "", None, "Łódź", "x" * 64]),
        (pa.string(), "any", ["{}", "[1]", "a\\b", "a\x1fb", "a\0b", "x" * 300]),
        (pa.dictionary(pa.int8(), pa.string()), "any", ["a", "b", "a"]),
        (pa.float64(), "float64", [1.5, -0.0, 3.0, 1e300, 1e-9, float("nan"), float("inf"), 0.1, None]),
        (pa.decimal128(12, 2), "number", [Decimal("1.50"), Decimal("100.00"), Decimal("-0.00"), Decimal("0.05"), None]),
        (pa.decimal128(38, 10), "number", [Decimal("0.0000000001"), Decimal("1.0000000000")]),
        (pa.decimal128(10, 0), "number", [Decimal(100), Decimal(0)]),
        (pa.bool_(), "boolean", [True, None]),
    ],
)
def test_a_whole_column_has_the_texts_of_its_values(type_: Any, kind: Kind, values: list[Any]) -> None:
    column = pa.array(values, type_)
    texts = column_texts(column, kind)
    if texts is not None:
        assert texts.to_pylist() == [converter(kind)(value) for value in column.to_pylist()]
        assert texts.to_pylist() == [None if each is None else identity_of([each]) for each in texts.to_pylist()]


def test_the_type_of_the_target_wins() -> None:
    assert common("any", "number") == "number"
    assert common("timestamp", "any") == "timestamp"
    assert common("any", "untyped") == "untyped"
    assert common("any", "any") == "any"


def test_identities_of_several_parts_are_not_confused() -> None:
    made = {identity_of(parts) for parts in (("a", "bc"), ("ab", "c"), ("a\x1fb", "c"), ("a", "b\x1fc"), ("a\\", "c"))}
    assert len(made) == 5
    assert identity_of(("a", None)) is None
    assert identity_of(("x" * 300,)) != identity_of(("x" * 299 + "y",))


def test_contents_are_read_back() -> None:
    parts = ["a\\N", None, "\x1f", ""]
    assert content_parts(content_of(parts)) == parts


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("kafka:orders", "kafka:orders"),
        ("postgresql://me:secret@db:5432/shop?table=public.orders&sslmode=require", None),
        ("mysql://me:secret@db/shop?table=orders", "mysql://db/shop?table=orders"),
        ("duckdb:/a/b.duckdb?table=t", "duckdb:/a/b.duckdb?table=t"),
        ("delta:s3://bucket/t", "delta:s3://bucket/t"),
    ],
)
def test_addresses(text: str, shown: str | None) -> None:
    assert str(Address.parse(text)) == (shown or "postgresql://db:5432/shop?table=public.orders")
    assert "secret" not in str(Address.parse(text))


@pytest.mark.parametrize(
    "text", ["orders", "kafka:", "oracle://h/d?table=t", "postgresql://me:secret@h/d", "duckdb:f", "mysql://h/d"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(SettingsError) as error:
        Address.parse(text)
    assert "secret" not in str(error.value)


def test_table_names() -> None:
    assert table_names('shop."a.b"') == ("shop", "a.b")
    for wrong in ("a..b", '"a', '"a"b'):
        with pytest.raises(SettingsError):
            table_names(wrong)


def test_pairs() -> None:
    (one,) = pairs("field:customer.id=customer_id", KAFKA, TABLE, "--by")
    assert (one.source.path, one.target.name) == (("customer", "id"), "customer_id")
    two = pairs(["header:event-id", "key=k"], KAFKA, TABLE, "--by")
    assert [(each.source.kind, each.target.name) for each in two] == [("header", "event-id"), ("key", "k")]
    (both,) = pairs("key", KAFKA, KAFKA, "--by")
    assert both.target.kind == "key"
    assert len(pairs('field:"a,b=c"=x,id', KAFKA, TABLE, "--by")) == 2
    for wrong in ("id=", ",", "id,id"):
        with pytest.raises(SettingsError):
            pairs(wrong, KAFKA, TABLE, "--by")


def test_bounds() -> None:
    now = 1_767_323_045_000
    assert Bound.parse("100", "--since", now) == Bound(offset=100)
    assert Bound.parse("1767323045000", "--since", 0) == Bound(ms=now)
    assert Bound.parse("0:5,3:9", "--since", 0).offsets == {0: 5, 3: 9}
    assert Bound.parse("2026-01-02T03:04:05Z", "--since", 0) == Bound(ms=now)
    assert Bound.parse("5m", "--since", now) == Bound(ms=now - 300_000)
    assert (seconds("500ms", "x"), seconds("2h", "x"), seconds("1.5", "x"), seconds(3, "x")) == (0.5, 7200, 1.5, 3)
    for wrong in ("-1", "soon", "nan"):
        with pytest.raises(SettingsError):
            seconds(wrong, "x")
