"""Values at the edges of the types in tables with a key: no record ends a job, and each is a row or a reject."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable

import pytest

from kafka_ratchet.spark_sink.job.run_state import RunSummary
from kafka_ratchet.spark_sink.rows.columns import LONGEST_KEY
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.rows.windows import Windows
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from tests.spark_sink.rows.test_hostile_values import COLUMNS, NO_NUL, VALUES
from tests.spark_sink.sites import Site

HOUR = 3600
KEY = ("s", "day", "at", "l")
"""Columns of the key: text, a date, a time and a number."""


def noise(size: int) -> str:
    """Return text that no server compresses."""
    return base64.b85encode(random.Random(size).randbytes(size)).decode()[:size]


KEYS = ["", "a", "A", "a ", " a", "\u00e4", "a\u0308", "\U0001f600", *map(noise, (LONGEST_KEY, LONGEST_KEY + 1, 9_000))]
"""Keys that a collation or an index may take for others, or not take."""


@pytest.mark.parametrize("site", ["delta", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_each_key_has_a_row_of_its_own_or_is_a_reject(
    site: Site, new_topic: Callable[..., str], write: Callable[..., None], ingest: Callable[..., RunSummary]
) -> None:
    topic = new_topic(partitions=1)
    write(topic, [json.dumps({"s": key, "l": n}).encode() for n, key in enumerate(KEYS * 2)])
    pipeline = RowPipeline("s string, l long", WriteMode("upsert", ("s",)), rejects=True)
    assert ingest(topic, pipeline).rows >= len(KEYS) - 2
    assert ingest(topic, pipeline).rows == 0
    held = KEYS[:-2] if site.location.kind == "postgres" else KEYS
    found = {row["s"]: row["l"] for row in site.rows()}
    assert found == {key: len(KEYS) + n for n, key in enumerate(held)}
    assert len(site.rows(rejects=True)) == 2 * (len(KEYS) - len(held))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["upsert", "totals", "windows"])
def test_no_value_ends_a_job_in_any_mode(
    kind: str, site: Site, new_topic: Callable[..., str], write: Callable[..., None], ingest: Callable[..., RunSummary]
) -> None:
    """Each record is in the table, by its key, or a reject; and another run has nothing left to do."""
    topic = new_topic(partitions=1)
    values = [value for value, _ in [*VALUES, *NO_NUL]]
    write(topic, values)
    modes = {
        "upsert": WriteMode("upsert", KEY),
        "totals": WriteMode("totals", KEY, ("q", "i"), averages=("q",), mins=("d", "f"), maxes=("d", "ntz", "b")),
        "windows": WriteMode("totals", ("_kafka_partition",), ("q", "i"), Windows("at", HOUR, HOUR // 4)),
    }
    if site.location.kind == "mysql":  # which has counts and sums alone
        modes["totals"] = WriteMode("totals", KEY, ("q", "i"))
        modes.pop("windows")
    if kind not in modes or not site.rejects:
        pytest.skip("this store has no such table")
    pipeline = RowPipeline(COLUMNS, modes[kind], rejects=True)
    ingest(topic, pipeline)
    assert ingest(topic, pipeline).rows == 0
    rows, rejects = site.rows(), site.rows(rejects=True)
    counted = len(rows) if kind == "upsert" else sum(row["_records"] for row in rows)
    print(f"FIGURES {site.location.kind} {kind}: {len(values)} values, {len(rows)} rows, {len(rejects)} rejects")
    if kind == "totals":
        assert counted + len(rejects) == len(values)
    assert 0 < counted
    assert {row["_kafka_offset"] for row in rejects} <= set(range(len(values)))
