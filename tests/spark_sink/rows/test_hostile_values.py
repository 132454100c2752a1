"""JSON values at the edges of Spark's and the stores' types: in its column unchanged, or kept whole as not parsed."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable
from typing import Any, Final

from kafka_ratchet.spark_sink.job.run_state import RunSummary
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from tests.spark_sink.sites import Site

COLUMNS = (
    "s string, i int, l long, b byte, f float, d double, m decimal(38,18), q decimal(9,2), days array<date>, day date, "
    "at timestamp, ntz timestamp_ntz, bin binary, map map<string,string>, mi map<string,int>, "
    "deep array<map<string,string>>, times array<timestamp>, named map<string,timestamp>, "
    "st struct<t: timestamp, m: map<string,int>>"
)

WHOLE: Final = "kept whole"
DIGITS = b"1" * 1001
INFINITY = math.inf


def utc(*moment: int) -> datetime.datetime:
    return datetime.datetime(*moment).replace(tzinfo=datetime.UTC)  # type: ignore[arg-type]


OTHERS = [name.encode() for name in ("i", "l", "b", "f", "d", "m", "q", "day", "at", "ntz", "bin")]
"""Columns of one value other than text."""

VALUES: list[tuple[bytes, Any]] = [
    # text
    (rb'{"s":"\ud800\udc00"}', "\U00010000"),
    (rb'{"s":"\\ud800"}', r"\ud800"),
    (b'{"s":"a\x00b"}', WHOLE),
    (b'{"s":"' + DIGITS + b'"}', DIGITS.decode()),
    (b'{"s":' + DIGITS + b"}", WHOLE),
    (b'{"s":"\xff"}', WHOLE),
    # maps with a key twice
    (b'{"map":{"a":"1","a":"2"}}', WHOLE),
    (b'{"map":{"a":"1","a":"1"}}', WHOLE),
    (rb'{"map":{"a":"1","\u0061":"2"}}', WHOLE),
    (b'{"mi":{"a":1,"b":1,"a":2}}', WHOLE),
    (b'{"deep":[{"a":"1"},{"a":"1","a":"2"}]}', WHOLE),
    (b'{"st":{"m":{"a":1,"a":2}}}', WHOLE),
    (b'{"map":{"a":null,"A":"1","":"2"}}', {"a": None, "A": "1", "": "2"}),
    # numbers
    *((b'{"%s":%s}' % (name, DIGITS), WHOLE) for name in (b"i", b"l", b"b", b"d", b"f", b"m", b"q", b"unknown")),
    (b'{"m":1e1000000000}', WHOLE),
    (b'{"q":1e-1000000000}', WHOLE),
    (b'{"d":1e400}', WHOLE),
    (b'{"d":-1e400}', WHOLE),
    (b'{"f":1e39}', WHOLE),
    (b'{"d":4.9e-324}', 5e-324),
    (b'{"d":NaN}', math.nan),
    (b'{"f":"NaN"}', math.nan),
    (b'{"d":"Infinity"}', INFINITY),
    (b'{"d":-Infinity}', -INFINITY),
    (b'{"l":9223372036854775807}', 2**63 - 1),
    (b'{"l":-9223372036854775808}', -(2**63)),
    (b'{"l":9223372036854775808}', WHOLE),
    (b'{"i":2147483648}', WHOLE),
    (b'{"b":200}', WHOLE),
    (b'{"m":99999999999999999999.999999999999999999}', decimal.Decimal("99999999999999999999.999999999999999999")),
    (b'{"m":100000000000000000000}', WHOLE),
    # times
    (b'{"at":"0001-01-01T00:00:00Z"}', utc(1, 1, 1)),
    (b'{"at":"1582-10-10T00:00:00Z"}', utc(1582, 10, 10)),
    (b'{"at":"1500-02-29T00:00:00Z"}', WHOLE),
    (b'{"at":"1883-11-18T12:03:57-05:00"}', utc(1883, 11, 18, 17, 3, 57)),
    (b'{"at":"9999-12-31T23:59:59.999999Z"}', utc(9999, 12, 31, 23, 59, 59, 999999)),
    (b'{"at":"294247-01-10T04:00:54.775807Z"}', WHOLE),
    (b'{"at":"12:34:56"}', WHOLE),  # of the day on which it is read
    (b'{"at":"T12:34:56Z"}', WHOLE),
    (rb'{"at":"\u00312:34:56"}', WHOLE),
    *((b'{"at":"%s12:34:56"}' % blank, WHOLE) for blank in (rb"\t", rb"\n \r", rb"\f", rb"\b", rb"\u0001", b"\x7f")),
    *(
        (b'{"at":"%s"}' % text, WHOLE)  # Spark also drops each GMT
        for text in (b"T12", b"T1:2", b"12:34GMT", b"GMT12:34", b"1GMT2:34", b"TGMT12:34", rb"\tGMT 12:34")
    ),
    (rb'{"times":[null,"\t12:34:56"]}', WHOLE),
    (rb'{"at":"\t2024-01-31T12:34:56 GMT"}', utc(2024, 1, 31, 12, 34, 56)),
    (rb'{"at":"\u0032024"}', utc(2024, 1, 1)),
    (rb'{"s":"' + rb"\n" * 20_000 + rb'","at":1}', utc(1970, 1, 1, 0, 0, 1)),
    (rb'{"s":"T' + rb"GMT" * 20_000 + rb'","at":1}', utc(1970, 1, 1, 0, 0, 1)),
    (b'{"at":-62135596800}', utc(1, 1, 1)),
    (b'{"at":253402300799}', utc(9999, 12, 31, 23, 59, 59)),
    (b'{"at":9223372036854775807}', WHOLE),  # one second before 1970, as Spark reads it
    (b'{"at":-9223372036854775808}', WHOLE),
    (b'{"at":18446744073711}', WHOLE),  # 1970-01-01T00:00:01.448384
    (b'{"at":1790000000000000000}', WHOLE),
    (b'{"st":{"t":18446744073711}}', WHOLE),
    (b'{"times":[1,18446744073711]}', WHOLE),
    (b'{"named":{"a":18446744073711}}', WHOLE),
    (b'{"l":18446744073711,"at":1}', utc(1970, 1, 1, 0, 0, 1)),
    (b'{"ntz":"1582-10-10T00:00:00"}', datetime.datetime(1582, 10, 10)),
    (b'{"ntz":"12:34:56"}', WHOLE),
    (b'{"day":"0001-01-01"}', datetime.date(1, 1, 1)),
    (b'{"day":"1582-10-10"}', datetime.date(1582, 10, 10)),
    (b'{"day":"9999-12-31"}', datetime.date(9999, 12, 31)),
    (b'{"day":"+5881580-07-11"}', WHOLE),  # DuckDB's infinity
    *(
        (b'{"day":"%s"}' % text, WHOLE)  # days since 1970, as Spark reads them
        for text in (
            b"5",
            b"-5",
            b"+5",
            b"123",
            b"20261128",
            b"9999999",
            rb"\u0035",
            "\u0662\u0660\u0662\u0666".encode(),
        )
    ),
    (b'{"day":5}', WHOLE),
    (b'{"days":["2024-01-31","5"]}', WHOLE),
    (b'{"days":["2024-01-31"],"day":"2024-02-29"}', datetime.date(2024, 2, 29)),
    (b'{"day":"2024"}', datetime.date(2024, 1, 1)),
    (rb'{"day":" \u0032024-01"}', datetime.date(2024, 1, 1)),
    (b'{"s":"5","day":"2024-01-31"}', datetime.date(2024, 1, 31)),
    (b'{"ntz":"2024-01-31"}', datetime.datetime(2024, 1, 31)),
    (b'{"ntz":" 2024-01-31T01:02:03.5"}', datetime.datetime(2024, 1, 31, 1, 2, 3, 500_000)),
    *(
        (b'{"ntz":"%s"}' % text, WHOLE)
        for text in (b"2024-02-30", b"2024-01-31T00:00:00Z", b"2024-01-31T24:00", b"2024")
    ),
    (b'{"ntz":2024}', WHOLE),
    *((b'{"%s":"x"}' % name, WHOLE) for name in OTHERS),
    *((b'{"%s":{}}' % name, WHOLE) for name in OTHERS),
    *((b'{"%s":[[]]}' % name, WHOLE) for name in OTHERS),
    *((b'{"%s":true}' % name, WHOLE) for name in OTHERS),
    # shape
    (b"[" * 1500 + b"]" * 1500, WHOLE),
    (b'{"unknown":' * 1500 + b"1" + b"}" * 1500, WHOLE),
    (b'{"' + b"k" * 60_000 + b'":1}', WHOLE),
    (b'{"bin":"!"}', WHOLE),
    (b"", WHOLE),
]

NO_NUL = [(rb'{"s":"a\u0000b"}', "a\0b"), (rb'{"map":{"a\u0000":"1"}}', {"a\0": "1"})]
"""Values that stores with `restricted_values` cannot hold."""


def test_each_value_is_unchanged_or_kept_whole(
    site: Site, new_topic: Callable[..., str], write: Callable[..., None], ingest: Callable[..., RunSummary]
) -> None:
    topic = new_topic(partitions=1)
    restricted = site.make().restricted_values
    sent = [*VALUES, *((value, WHOLE if restricted else held) for value, held in NO_NUL)]
    write(topic, [value for value, _ in sent])
    assert ingest(topic, RowPipeline(COLUMNS)).rows == len(sent)
    assert ingest(topic, RowPipeline(COLUMNS)).rows == 0
    rows = sorted(site.rows(), key=lambda row: row["_kafka_offset"])
    assert len(rows) == len(sent)
    for row, (value, held) in zip(rows, sent, strict=True):
        is_number = isinstance(held, float)
        expected = WHOLE if is_number and not math.isfinite(held) and not site.holds_infinity else held
        assert same(found(row), expected), value[:80]
        assert row["_kafka_value"] == (value if expected == WHOLE else None), value[:80]


def found(row: dict[str, Any]) -> Any:
    """The value of the only column that has one; of two, the last."""
    values = [value for name, value in row.items() if name[0] != "_" and value is not None]
    if not values:
        return WHOLE
    return dict(values[-1]) if isinstance(values[-1], list) else values[-1]


def same(one: Any, other: Any) -> bool:
    return bool(one == other) or (one != one and other != other)
