"""Totals of windows, averages, least and greatest values: what a plain loop over all records says, whenever it dies."""

from __future__ import annotations

import datetime
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from kafka_ratchet.spark_sink.job.run_state import RunSummary
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.rows.windows import read_windows
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from tests.spark_sink.sites import LOCAL, Site, params

Ingest = Callable[..., RunSummary]
Write = Callable[..., None]
Record = dict[str, Any]
Key = tuple[bool | None, str | None, datetime.datetime | None]

AT_LENGTH = pytest.mark.parametrize(
    "site",
    [
        *params("delta", "postgres", by_default=()),
        *(pytest.param(name, marks=pytest.mark.long) for name in LOCAL if name != "delta"),
    ],
    indirect=True,
)
"""A minute for each store: in the matrix one that merges files, and one of another SQL."""

COLUMNS = "flag boolean, who string, at timestamp, text string, amount decimal(12,2), n long, real double, day date"
MODE = WriteMode(
    "totals",
    ("flag", "who"),
    ("n",),
    read_windows("1 hour", "20 minutes", "at"),
    averages=("amount",),
    mins=("text", "real", "day", "at"),
    maxes=("text", "real", "amount", "n", "at"),
    distinct=("text", "n"),
)
LENGTH, SLIDE = datetime.timedelta(hours=1), datetime.timedelta(minutes=20)

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
FIRST = datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)

TIMES = [
    EPOCH + datetime.timedelta(days=19_800, minutes=7, microseconds=1),
    EPOCH + datetime.timedelta(days=19_800, minutes=20),  # the beginning of a window is in it
    EPOCH + datetime.timedelta(days=19_800, minutes=19, seconds=59, microseconds=999_999),
    EPOCH + datetime.timedelta(days=19_800, hours=1),
    EPOCH - datetime.timedelta(microseconds=1),
    EPOCH - datetime.timedelta(days=400, minutes=3),
    FIRST + datetime.timedelta(minutes=30),  # some of its windows would begin before the year 1
    FIRST + datetime.timedelta(minutes=50),
    None,
]
TEXTS = ["Z", "a", "z", "ä", "é", "", "10", "9", "😀", "\uffee", None]  # UTF-16 and most locales have another order
REALS = [0.0, -0.0, 1.5, -1e308, math.nan, math.inf, -math.inf, None]


class Died(BaseException):
    """The job ends here, and nothing of its own runs any more."""


def drawn(random: Random) -> Record:
    """Any record; a field of null may also be missing."""
    record = {
        "flag": random.choice([True, False, None]),
        "who": random.choice(["ann", "Ömer", None]),
        "at": random.choice(TIMES),
        "text": random.choice(TEXTS),
        "amount": random.choice([None, Decimal(random.randrange(-(10**12), 10**12)).scaleb(-2), Decimal("0.1")]),
        "n": random.choice([None, 2**63 - 1, -(2**63), random.randrange(-9, 9)]),
        "real": random.choice(REALS),
        "day": random.choice([None, datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)]),
    }
    return {name: value for name, value in record.items() if value is not None or random.random() < 0.5}


def said(record: Record) -> bytes:
    """As JSON, numbers as they are."""
    plain = {
        name: value.isoformat() if isinstance(value, datetime.date) else value
        for name, value in record.items()
        if name != "amount" or value is None
    }
    text = json.dumps(plain)
    if record.get("amount") is not None:
        text = f'{text[:-1]}{", " if plain else ""}"amount": {record["amount"]}}}'
    return text.encode()


def windows_of(at: datetime.datetime | None) -> list[datetime.datetime | None]:
    if at is None:
        return [None]
    newest = at - (at - EPOCH) % SLIDE
    if newest - FIRST < LENGTH - SLIDE:
        return [None]
    return [newest - SLIDE * n for n in range(3)]


def order(value: Any) -> Any:
    return (math.isnan(value), value) if isinstance(value, float) else value


def counted(records: Iterable[Record]) -> dict[Key, Record]:
    """What the table has to be."""
    groups: defaultdict[Key, list[Record]] = defaultdict(list)
    for record in records:
        for window in windows_of(record.get("at")):
            groups[record.get("flag"), record.get("who"), window].append(record)
    totals: dict[Key, Record] = {}
    for key, group in groups.items():
        of = {name: [each[name] for each in group if each.get(name) is not None] for name in drawn(Random(0)) | TIMED}
        total, count = sum(of["amount"], Decimal(0)), len(of["amount"])
        totals[key] = {
            "_records": len(group),
            "n": sum(of["n"]),
            "amount": total,
            "amount_count": count,
            "amount_avg": total / count if count else None,
            **{f"{name}_min": min(of[name], key=order, default=None) for name in MODE.mins},
            **{f"{name}_max": max(of[name], key=order, default=None) for name in MODE.maxes},
            **{f"{name}_distinct": len(set(of[name])) for name in MODE.distinct},
        }
    return totals


TIMED = {name: None for name in ("flag", "who", "at", "text", "amount", "n", "real", "day")}


def require_same(rows: list[Record], expected: dict[Key, Record]) -> None:
    found = {(row.pop("flag"), row.pop("who"), row.pop("_window")): row for row in map(dict, rows)}
    assert len(found) == len(rows)
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        for name in MODE.distinct:
            hashes = found[key].pop(f"{name}_hashes")
            assert (len(hashes), hashes) == (row[f"{name}_distinct"], sorted(set(hashes)))
        assert found[key].keys() == row.keys()
        for name, value in row.items():
            there = found[key][name]
            if name == "amount_avg" and value is not None:
                assert there == pytest.approx(float(value), rel=1e-14), (key, name)
            elif isinstance(value, float) and math.isnan(value):
                assert math.isnan(there), (key, name)
            else:
                assert there == value, (key, name)


@AT_LENGTH
def test_any_batches_and_any_deaths_leave_what_a_plain_loop_says(
    site: Site, ingest: Ingest, new_topic: Callable[..., str], write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, pipeline, random = new_topic(partitions=2), RowPipeline(COLUMNS, MODE, rejects=True), Random(64)
    records: list[Record] = []
    rejected = 0
    points: set[str] = set()
    for step in range(1, 9):
        batch = [drawn(random) for _ in range(random.randrange(1, 60))]
        records += batch
        values: list[bytes | None] = [*map(said, batch), b'{"at": "soon"}', None]
        rejected += 2
        random.shuffle(values)
        write(topic, values, step % 2)
        passed: list[str] = []

        def die(here: str, passed: list[str] = passed, last: int = step) -> None:
            passed.append(here)
            if len(passed) == last:
                points.add(here)
                raise Died

        with monkeypatch.context() as patch:
            patch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", die)
            try:
                ingest(topic, pipeline, max_records=random.randrange(20, 80))
            except Died:
                continue  # the next life finds the records of the next batch too
        require_same(site.rows(), counted(records))
    ingest(topic, pipeline)
    require_same(site.rows(), counted(records))
    assert len(site.rows(rejects=True)) == rejected
    assert points >= {"before-write", "before-commit", "after-commit"}
