"""A comparison's ratios, and subjects that really run."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.compare import Comparison, compare, plot
from bench.load import Load
from bench.measure import Measured
from kafka_ratchet.errors import BenchFailed


def run(subject: str, rate: int, cpu: float, verified: bool | None = True) -> Measured:
    return Measured(subject, 1.0, rate, cpu, 1.0, 100, verified)


def test_ratios_are_of_the_first_to_each_other_round_by_round() -> None:
    ours = [run("ratchet", 800, 1.0), run("ratchet", 900, 1.0), run("ratchet", 1000, 1.2)]
    theirs = [run("loop", 200, 4.0), run("loop", 100, 5.0), run("loop", 500, 4.0)]
    compared = Comparison({"ratchet": ours, "loop": theirs})
    told = compared.as_dict()
    assert told["throughput_ratio"] == {"median": 4.0, "min": 2.0, "max": 9.0}
    assert told["cpu_ratio"] == {"median": 0.25, "min": 0.2, "max": 0.3}
    assert told["verified"] is True
    assert "| 900 | 1.00 | 1.00 | 100 | yes |  |  |" in compared.as_markdown()
    assert "| yes | 4.0 (2.0-9.0) | 0.25 (0.2-0.3) |" in compared.as_markdown()


@pytest.mark.parametrize(("verified", "told", "shown"), [(None, True, "-"), (False, False, "NO")])
def test_a_wrong_output_is_told_and_none_is_not(verified: bool | None, told: bool, shown: str) -> None:
    compared = Comparison({"floor": [run("floor", 1, 1.0, verified)]})
    assert compared.verified is told
    assert f"| {shown} |" in compared.as_markdown()


def test_an_unknown_subject_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BenchFailed, match=r"no subject nobody\. The subjects are: ratchet, "):
        compare(["ratchet", "nobody"], Load(), 100, 1, print)


@pytest.mark.long  # half a minute for a tool of the repository, on which no guarantee stands
def test_the_worker_and_a_peer_run_to_the_end_and_are_right() -> None:
    compared = compare(["ratchet", "loop"], Load(records=20_000, keys=100), 100, 1, lambda run: None)
    (ours,), (theirs,) = compared.runs.values()
    assert ours.verified is theirs.verified is True
    assert ours.records_per_s > 0 < theirs.records_per_s
    assert theirs.cpu_s > 0 < theirs.broker_cpu_s  # ours may be done before anybody has looked


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
