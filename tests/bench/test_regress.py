"""Measurements that count as slower than the recorded ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.measure import Measured
from bench.regress import CASES, FLOOR, RECORDED, Ratios, as_markdown, ratios, record, recorded, slower
from bench.subjects import SUBJECTS
from kafka_ratchet.errors import BenchFailed


def run(rate: int, cpu: float) -> Measured:
    return Measured("ratchet", 1.0, rate, cpu, 1.0, 100, verified=True)


def of(throughput: tuple[float, float, float], cpu: tuple[float, float, float]) -> Ratios:
    measures = {"throughput": throughput, "cpu": cpu}
    return {
        "by key": {name: dict(zip(("median", "min", "max"), found, strict=True)) for name, found in measures.items()}
    }


def test_ratios_are_to_the_floor_of_the_same_round() -> None:
    found = ratios({FLOOR: [run(1000, 0.5), run(500, 1.0)], "by key": [run(800, 1.0), run(450, 1.2)]})
    assert found == of((0.85, 0.8, 0.9), (1.6, 1.2, 2.0))


@pytest.mark.parametrize(
    ("now", "is_slower"),
    [
        (of((0.8, 0.7, 0.9), (1.5, 1.4, 1.6)), False),
        (of((0.75, 0.65, 0.85), (1.6, 1.5, 1.7)), False),  # the ranges overlap
        (of((0.66, 0.64, 0.69), (1.5, 1.4, 1.6)), True),  # slower in every round
        (of((0.8, 0.7, 0.9), (1.8, 1.7, 1.9)), True),  # more CPU in every round
        (of((0.95, 0.92, 0.97), (1.2, 1.1, 1.3)), False),  # better
    ],
)
def test_slower_is_what_is_worse_in_every_round(now: Ratios, is_slower: bool) -> None:
    before = of((0.8, 0.7, 0.9), (1.5, 1.4, 1.6))
    assert slower(now, before) == (["by key"] if is_slower else [])
    assert ("SLOWER" in as_markdown(now, before)) is is_slower


def test_a_hundredth_is_not_slower_however_even_the_rounds_were() -> None:
    assert slower(of((0.79, 0.79, 0.79), (1.51, 1.51, 1.51)), of((0.8, 0.8, 0.8), (1.5, 1.5, 1.5))) == []


def test_a_case_that_was_never_recorded_is_shown_and_not_slower(tmp_path: Path) -> None:
    now = of((0.1, 0.1, 0.1), (9.0, 9.0, 9.0))
    assert recorded(tmp_path / "none.json") == {}
    assert slower(now, {}) == []
    assert "| by key | 0.10 (0.10-0.10) | - | 9.00 (9.00-9.00) | - |  |" in as_markdown(now, {})


def test_what_is_recorded_comes_back_and_a_damaged_file_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "regress.json"
    now = of((0.8, 0.7, 0.9), (1.5, 1.4, 1.6))
    record(now, path)
    assert recorded(path) == now
    path.write_text("{")
    with pytest.raises(BenchFailed, match="--record"):
        recorded(path)


def test_what_the_repository_has_is_of_cases_that_there_are() -> None:
    assert set(recorded(RECORDED)) <= set(CASES) - {FLOOR}
    assert {case.subject for case in CASES.values()} <= set(SUBJECTS)
