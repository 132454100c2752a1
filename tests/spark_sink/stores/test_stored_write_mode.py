"""The text that a job keeps of its write mode, and what is said where another one comes."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_ratchet.spark_sink.errors import OptionRefused, WriteModeDiffers
from kafka_ratchet.spark_sink.rows.windows import read_windows
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.delta.store import DeltaStore
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.stored_write_mode import require_write_mode, write_mode_text

HOURS = WriteMode("totals", ("who",), ("n",), read_windows("1 hour", None, "at"), mins=("n", "m"))


def test_counts_and_sums_have_the_text_that_earlier_versions_have_stored() -> None:
    text = '{"kind": "totals", "key": ["who"], "sums": ["a", "n"]}'
    assert write_mode_text(WriteMode("totals", ("who",), ("n", "a"))) == text


def test_the_same_in_other_words_is_the_same() -> None:
    others = read_windows("60 Minutes", "3600 seconds", "at")
    require_write_mode(
        "there", "job", write_mode_text(HOURS), WriteMode("totals", ("who",), ("n",), others, mins=("m", "n"))
    )


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (WriteMode("totals", ("who",), ("n",), mins=("n", "m")), "(key who; sums n; mins m, n). "),
        (
            WriteMode("totals", ("who",), ("n",), read_windows("1 hour", "5 minutes", "at"), mins=("n", "m")),
            "(key who; sums n; mins m, n; windows of 3600 s, each 300 s, by at). ",
        ),
        (
            WriteMode("totals", ("who",), ("n",), read_windows("1 hour", None, "_kafka_timestamp"), mins=("n", "m")),
            "(key who; sums n; mins m, n; windows of 3600 s, by _kafka_timestamp). ",
        ),
        (WriteMode("totals", ("who",), ("n",), HOURS.windows, maxes=("n", "m")), "maxes m, n; windows of"),
        (WriteMode("totals", ("who",), ("n",), HOURS.windows, averages=("n",), mins=("n", "m")), "averages n; "),
    ],
)
def test_both_sides_are_said(other: WriteMode, sentence: str) -> None:
    with pytest.raises(WriteModeDiffers) as raised:
        require_write_mode("there", "job", write_mode_text(HOURS), other)
    text = str(raised.value)
    assert "by kind totals (key who; sums n; mins m, n; windows of 3600 s, by at), and is set to kind totals " in text
    assert sentence in text.partition("is set to")[2]


@pytest.mark.parametrize(
    "more",
    [
        {"windows": read_windows("1 hour", None, "at")},
        {"averages": ("n",)},
        {"mins": ("n",)},
        {"maxes": ("n",)},
        {"distinct": ("n",)},
    ],
)
def test_a_store_that_goes_by_key_and_sums_refuses_more(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    location = TableLocation("delta", "/nowhere")
    DeltaStore(location, "job", "events", write_mode=WriteMode("totals", ("who",), ("n",), **more))
    monkeypatch.setattr(DeltaStore, "all_totals", False)
    DeltaStore(location, "job", "events", write_mode=WriteMode("totals", ("who",), ("n",)))
    with pytest.raises(OptionRefused, match="store delta supports only counts and sums as totals"):
        DeltaStore(location, "job", "events", write_mode=WriteMode("totals", ("who",), ("n",), **more))
