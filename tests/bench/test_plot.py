"""The picture of a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.compare import Comparison
from bench.plot import plot
from kafka_ratchet.errors import BenchFailed
from tests.bench.test_compare import run


def test_every_subject_has_its_bars_and_figures(tmp_path: Path) -> None:
    compared = Comparison(
        {
            "ratchet": [run("ratchet", rate, 1.2) for rate in (800_000, 900_000, 850_000)],
            "kafka-streams": [run("kafka-streams", 190_000, 9.7)] * 3,
        }
    )
    told = tmp_path / "told.json"
    told.write_text("{}\n" + json.dumps(compared.as_dict()) + "\n", "utf-8")
    plot(told, tmp_path / "one.svg")
    plot(told, tmp_path / "two.svg")
    drawn = (tmp_path / "one.svg").read_text("utf-8")
    assert drawn == (tmp_path / "two.svg").read_text("utf-8")
    texts = {element.text for element in ElementTree.fromstring(drawn).iter() if element.tag.endswith("}text")}  # noqa: S314
    assert {"Ratchet, by key", "Kafka Streams exactly_once_v2, tuned", "850", "190", "1.2", "9.7"} <= texts


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"runs": {"nobody": [{}]}}', '{"runs": {"ratchet": []}}', '{"runs": 1}', "\udcff"]
)
def test_what_is_no_comparison_is_refused(tmp_path: Path, text: str) -> None:
    told = tmp_path / "told.json"
    told.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BenchFailed, match="not an output of"):
        plot(told, tmp_path / "none.svg")
