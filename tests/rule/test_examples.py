"""The table of examples, run against worker, verify both ways, and survey; Spark's has a test where Spark is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rule import implementations
from tests.rule.examples import EXAMPLES, VERDICTS, Example
from tests.rule.implementations import (
    as_counted,
    by_columns,
    by_survey,
    by_verify,
    by_worker,
    candidate_for,
    places_of,
    without_reasons,
)

ROOT = Path(__file__).parents[2]


def named(examples: tuple[Example, ...]) -> list[object]:
    return [pytest.param(each, id=each.name) for each in examples]


def verdicts(example: Example) -> list[str]:
    return [record.verdict for record in example.records]


def test_each_example_has_a_name_of_its_own_and_each_verdict_an_example() -> None:
    assert len({each.name for each in EXAMPLES}) == len(EXAMPLES) >= 25
    assert {*VERDICTS} <= {verdict for each in EXAMPLES for verdict in verdicts(each)}


@pytest.mark.parametrize("example", named(EXAMPLES))
def test_a_worker_judges_as_the_table_says(example: Example) -> None:
    assert by_worker(example) == verdicts(example)


def test_a_worker_judges_so_without_a_compiler() -> None:
    """The passes are plain Python where Numba is switched off."""
    script = (
        "from tests.rule.examples import EXAMPLES; from tests.rule.implementations import by_worker\n"
        "for each in EXAMPLES: assert by_worker(each) == [r.verdict for r in each.records], each.name"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("example", named(EXAMPLES))
def test_verify_judges_record_by_record_as_the_table_says(example: Example) -> None:
    assert by_verify(example) == [*without_reasons(verdicts(example))]


@pytest.mark.parametrize("example", named(tuple(each for each in EXAMPLES if places_of(each) is not None)))
def test_verify_judges_columns_as_the_table_says(example: Example) -> None:
    assert by_columns(example) == [*without_reasons(verdicts(example))]


@pytest.mark.parametrize("example", named(tuple(each for each in EXAMPLES if candidate_for(each) is not None)))
def test_a_survey_counts_what_the_table_says(example: Example) -> None:
    assert by_survey(example) == as_counted(example)


def test_most_examples_are_asked_of_every_implementation() -> None:
    for asked in (places_of, candidate_for):
        assert sum(asked(each) is not None for each in EXAMPLES) >= 15, asked.__name__
    assert implementations.INVALID not in VERDICTS
