"""Texts of values, addresses and pairs."""

from __future__ import annotations

import ipaddress
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, get_args
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from kafka_ratchet.app.compare.address import Address, table_names
from kafka_ratchet.app.compare.bounds import Bound, seconds
from kafka_ratchet.app.compare.column_texts import rows_of, texts_of, values_of
from kafka_ratchet.app.compare.columns import ValueLocation, pairs
from kafka_ratchet.app.compare.side import RequestedValues
from kafka_ratchet.app.compare.values import (
    Kind,
    common,
    content_of,
    content_parts,
    converter,
    exact,
    identity_of,
    text_of,
)
from kafka_ratchet.errors import SettingsError

KAFKA, TABLE = Address.parse("kafka:t"), Address.parse("csv:t.csv")
PLACE = ValueLocation("column", "x")
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
        (Decimal("1" + "0" * 60 + ".00"), "1" + "0" * 60),
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
        (ipaddress.ip_interface("10.0.0.1/8"), "10.0.0.1/8"),
        ({"a": ipaddress.ip_address("::1")}, '{"a":"::1"}'),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))), "0001-01-01T00:00:00+05:00"),
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
        ("timestamp", 1_767_323_045_000_000, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("timestamp", 1_767_323_045_000_000_000, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("date", "2026-01-02T00:00:00Z", date(2026, 1, 2)),
        ("date", "2026-01-01T23:30:00-05:00", date(2026, 1, 2)),
        ("date", 20_455, date(2026, 1, 2)),
        ("date", 1_767_312_000_000, date(2026, 1, 2)),
        ("day", 20_455, date(2026, 1, 2)),
        ("day", "2026-01-02 00:00:00+00", date(2026, 1, 2)),
        ("day", datetime(2026, 1, 2), date(2026, 1, 2)),
        ("time", "-01:30:00", timedelta(hours=-1, minutes=-30)),
        ("time", "10:11:12.500", time(10, 11, 12, 500_000)),
        ("time", "10:11:12", timedelta(hours=10, minutes=11, seconds=12)),
        ("time", "24:00:00", timedelta(hours=24)),
        ("time", "10:11:12+02:00", "10:11:12.000+02"),
        ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
        ("padded", "ab", "ab   "),
        ("boolean", 1, True),
        ("untyped", Decimal("1.5"), "1.50"),
        ("untyped", None, ""),
    ],
)
def test_one_text_for_both_sides(kind: Kind, left: Any, right: Any) -> None:
    text = converter(kind)
    assert text(left) == text(right)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("number", "five"),
        ("timestamp", "soon"),
        ("number", "1_000"),
        ("uuid", "a0ee"),
        ("time", "25:00"),
        ("date", "20000-01-01"),
    ],
)
def test_what_does_not_fit_stays_as_it_is(kind: Kind, value: Any) -> None:
    assert converter(kind)(value) == value


ARRAYS: list[tuple[Any, list[Any]]] = [
    (pa.int64(), [0, -5, 2**63 - 1, 2**53 + 1, None]),
    (pa.uint8(), [0, 255]),
    (pa.string(), ["a", "", None, "Łódź", "x" * 64]),
    (pa.large_string(), ["{}", "[1]", '{"b": 1, "a": 2}', "a\\b", "a\x1fb", "a\0b", "x" * 300, "ż" * 200]),
    (pa.string(), ["5", "5.0", "007", "+5", "-0", "-0.00", "1e3", ".5", "5.", "0.1", "12345678901234567", "9" * 40]),
    (pa.string(), ["true", "T", "2026-01-02T03:04:05+02:00", "2026-01-02", "NaN", "inf", "-", "1_000", "１"]),
    (pa.string(), ["2026-01-02T03:04:05Z", "2026-01-02 03:04:05.25-11:30", "2026-01-02T03:04:05.123456", None, "soon"]),
    (pa.string(), ["2026-02-30T03:04:05Z", "2026-02-28T03:04:05Z", "2026-02-28T23:59:60Z", "2026-02-28T24:00:00"]),
    (pa.string(), ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-02-28T03:04:05.1234567Z"]),
    (pa.string(), ["2026-01-01 00:00:00+00", "2026-01-01 00:00:00.5-03:30", "infinity", "20000-01-01 00:00:00+00"]),
    (pa.string(), ["0044-03-15 00:00:00+00 BC", "2026-01-01 00:00:00+0230", "2026-01-01T00:00:00-05"]),
    (pa.string(), ["2026-02-28T03:04:05+24:00", "2026-02-28t03:04:05z", "2026-02-28T03:04", "20260228T030405Z"]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a", None]),
    (pa.float64(), [1.5, -0.0, 3.0, 1e300, 1e-9, float("nan"), float("inf"), 0.1, 1e15, 1e16, 123456.789, None]),
    (pa.float32(), [1.5, 0.1, None]),
    (pa.decimal128(12, 2), [Decimal("1.50"), Decimal("100.00"), Decimal("-0.00"), Decimal("0.05"), None]),
    (pa.decimal128(38, 10), [Decimal("0.0000000001"), Decimal("1.0000000000"), Decimal("1" * 28 + ".5")]),
    (pa.decimal128(10, 0), [Decimal(100), Decimal(0)]),
    (pa.decimal128(10, -2), [Decimal("1E+2"), Decimal("1.2E+5")]),
    (pa.bool_(), [True, False, None]),
    (pa.timestamp("us"), [datetime(2026, 1, 2, 3, 4, 5, 600_000), datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59)]),
    (pa.timestamp("ms", "Europe/Vienna"), [datetime(2026, 7, 2, 3, 4, 5, tzinfo=UTC), None]),
    (pa.timestamp("ns", "UTC"), [datetime(2026, 1, 2, 3, 4, 5, 123_456, tzinfo=UTC)]),
    (pa.date32(), [date(2026, 1, 2), None]),
    (pa.binary(), [b"abc", b"\xff\x00", b'{"b": 1}', None]),
    (pa.binary(), [b"abc", b"5.0"]),
    (pa.time64("ns"), [time(10, 11, 12, 500_000), None]),
    (pa.time32("s"), [time(10, 11, 12)]),
    (pa.map_(pa.string(), pa.int64()), [[("k", 1), ("a", 2)], [], None]),
    (pa.struct([("x", pa.int64())]), [{"x": 1}, None]),
    (pa.map_(pa.string(), pa.map_(pa.string(), pa.int64())), [[("k", [("a", 2)]), ("l", None)], None]),
    (pa.list_(pa.float64()), [[1.0, 2.5], []]),
    (pa.null(), [None]),
]
KINDS = get_args(Kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(len(ARRAYS)))
def test_a_whole_column_has_the_texts_of_its_values(number: int, kind: Kind) -> None:
    type_, values = ARRAYS[number]
    column = pa.array(values, type_)
    expected = [converter(kind)(value) for value in values_of(column)]
    assert texts_of(column, kind).to_pylist() == expected
    assert texts_of(values_of(column), kind).to_pylist() == expected
    for wanted in (RequestedValues([(PLACE, kind)]), RequestedValues([(PLACE, kind)] * 2, [(PLACE, kind)] * 2)):
        both = [wanted.texts()([value] * len(wanted.places)) for value in values_of(column)]
        rows = rows_of([column] * len(wanted.places), wanted)
        assert list(zip(rows.identities.to_pylist(), rows.contents.to_pylist(), strict=True)) == both


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "values",
    [
        [1, Decimal("2.50"), None, Decimal("1E+400"), Decimal("1.0000000000000000000000000000000001")],
        [10**40, 5, None],
        ["a", 5, None, True, b"b", [1], {"b": 1.5, "a": None}],
        [True, None],
        [datetime(2026, 1, 2, 3, 4, 5, 600), datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=-5))), None],
        [datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))), datetime(9999, 12, 31, 23, 59, 59, 999_999)],
        [datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=ZoneInfo("Europe/Vienna")) for fold in (0, 1)],
        [None],
        [],
    ],
)
def test_lists_of_values_have_the_texts_of_their_values(values: list[Any], kind: Kind) -> None:
    assert texts_of(values, kind).to_pylist() == [converter(kind)(value) for value in values]


def test_lone_surrogates_are_kept_apart() -> None:
    wanted = RequestedValues([(PLACE, "any")])
    texts = ["\ud800", "\ud801", "\\ud800", "a\0", "a\\x00"]
    found = rows_of([texts], wanted).identities
    assert len(set(found)) == len(texts)
    for text, identity in zip(texts[2:], found[2:], strict=True):
        assert rows_of([[text]], wanted).identities.to_pylist() == [identity]


def test_numbers_of_identities_are_not_rounded() -> None:
    for kind in ("number", "float64", "float32", "untyped"):
        text = converter(exact(kind))
        assert len({text(value) for value in ("7", "007", "7.0", "+7", 2**53, 2**53 + 1, Decimal("7.01"))}) == 7
        assert text(7) == text("7") == text(7.0) == text(Decimal("7.00"))


def test_times_of_one_day_are_several_identities() -> None:
    text = converter(exact("date"))
    times = [
        "2026-01-02T03:00:00Z",
        "2026-01-02 05:00",
        datetime(2026, 1, 2, 7),
        date(2026, 1, 2),
        "2026-01-02T00:00:01",
    ]
    assert len({text(value) for value in times}) == len(times)


def test_maps_are_objects_at_any_depth() -> None:
    inner = pa.map_(pa.string(), pa.int64())
    for type_, value, text in (
        (pa.map_(pa.string(), inner), [("k", [("b", 1), ("a", 2)])], '{"k":{"a":"2","b":"1"}}'),
        (pa.list_(inner), [[("b", 1)], None], '[{"b":"1"},null]'),
        (pa.struct([("m", inner), ("n", pa.int64())]), {"m": [("b", 1)], "n": 5}, '{"m":{"b":"1"},"n":"5"}'),
    ):
        assert texts_of(pa.array([value, None], type_), "any").to_pylist() == [text, None]


def test_leading_zeros_of_a_csv_file_are_no_number() -> None:
    text = converter("untyped")
    assert text("00501") != text("501")
    assert text("0.50") == text(".5") == text(Decimal("0.5"))


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


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("postgresql://h/d?table=a#b", "%23"),
        ("postgres://h/d?table=a&table=b", "2 tables"),
        ("duckdb:f?table=t&schema=x", "schema"),
        ("postgresql://me:secret@[::1/d?table=t", "brackets"),
    ],
)
def test_no_part_of_an_address_is_dropped(text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as error:
        Address.parse(text)
    assert "secret" not in str(error.value)


def test_options_of_a_server_stay_as_libpq_reads_them() -> None:
    address = Address.parse("postgresql:///d?host=/tmp/x&table=a%23b&options=-c%20search_path%3Dx")
    assert (address.place, address.table) == ("postgresql:///d?host=%2Ftmp%2Fx&options=-c%20search_path%3Dx", "a#b")
    assert Address.parse("duckdb:/a?b.duckdb?table=t").place == "/a?b.duckdb"


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
    for wrong in ("-1", "soon", "nan", -300, float("nan"), float("inf"), "9" * 400):
        with pytest.raises(SettingsError):
            seconds(wrong, "x")
