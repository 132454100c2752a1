"""A comparison's ratios, and subjects that really run."""

from __future__ import annotations

import pytest

from bench.compare import Comparison, compare
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
    with pytest.raises(BenchFailed, match=r"no subject nobody\. There are: ratchet, "):
        compare(["ratchet", "nobody"], Load(), 100, 1, print)


@pytest.mark.long  # half a minute for a tool of the repository, on which no guarantee stands
def test_the_worker_and_a_peer_run_to_the_end_and_are_right() -> None:
    compared = compare(["ratchet", "loop"], Load(records=20_000, keys=100), 100, 1, lambda run: None)
    (ours,), (theirs,) = compared.runs.values()
    assert ours.verified is theirs.verified is True
    assert ours.records_per_s > 0 < theirs.records_per_s
    assert theirs.cpu_s > 0 < theirs.broker_cpu_s  # ours may be done before anybody has looked
