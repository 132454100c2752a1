"""The doc pages name tests and fault scenarios that are there: a promise without its test fails here.

A row of guarantees.md names what shows it in its last column, as a path from the root of the repository,
`tests/folder/test_file.py` or `tests/folder/test_file.py::test_name`, or as a scenario of a fault run: `faults`: name,
`faults sink`: name, `faults producer`: name. Several are separated by a comma or a semicolon.
"""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from faults import schedule
from faults.run import SHORT

ROOT = Path(__file__).parents[1]
GUARANTEES = ROOT / "docs" / "guide" / "guarantees.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

TEST = re.compile(r"`([\w./-]*\btest_\w+\.py[^`]*)`")
"""Whatever looks like a test file, so that one named by half its path is not passed over."""
SCENE = re.compile(r"`(?:ratchet )?faults(?: (\w+))?`: ([a-z]\w+)")
LAST_COLUMN = "shown by"


def wrong_rows(text: str) -> list[str]:
    """What is wrong with the tables of a page whose rows have to name their tests."""
    wrong, in_table = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            in_table = False
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not in_table:
            in_table = True
            if cells[-1] != LAST_COLUMN:
                wrong.append(f"line {number}: a row outside a table whose last column is {LAST_COLUMN!r}")
            continue
        if set(line) <= set("|-: "):
            continue
        named = [*TEST.findall(cells[-1]), *SCENE.findall(cells[-1])]
        if not named:
            wrong.append(f"line {number}: {cells[0]!r} names no test")
        wrong += [f"line {number}: {each}" for each in wrong_names(cells[-1])]
    return wrong


def wrong_names(text: str) -> list[str]:
    """The tests and scenarios in a piece of text that are not there."""
    wrong = [reason for named in TEST.findall(text) if (reason := wrong_test(named))]
    for kind, name in SCENE.findall(text):
        if name not in scenarios(kind):
            wrong.append(
                f"`ratchet faults {kind}` has no scenario {name!r}; it has {', '.join(sorted(scenarios(kind)))}"
            )
    return wrong


def wrong_test(named: str) -> str | None:
    path, *test = named.split("::")
    if not path.startswith("tests/") or ".." in path or len(test) > 1:
        return f"{named}: write tests/folder/test_file.py or tests/folder/test_file.py::test_name"
    if not (ROOT / path).is_file():
        return f"{path} is not there"
    there = functions_in(ROOT / path)
    if not there:
        return f"{path} has no test"
    if test and test[0] not in there:
        return f"{path} has no {test[0]}"
    return None


@cache
def functions_in(path: Path) -> frozenset[str]:
    """The test functions of a file that are not skipped for good."""
    functions = [
        each
        for each in ast.parse(path.read_text("utf-8")).body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test_")
    ]
    return frozenset(each.name for each in functions if not any(map(_never_runs, each.decorator_list)))


def _never_runs(mark: ast.expr) -> bool:
    return ast.unparse(mark).partition("(")[0] in {"pytest.mark.skip", "pytest.mark.xfail"}


@cache
def scenarios(kind: str) -> frozenset[str]:
    """The scenarios of `ratchet faults`, `faults sink` or `faults producer`, found in the code that plays them."""
    if kind == "":
        plays = ast.parse((ROOT / "faults" / "run.py").read_text("utf-8"))
        called = {node.attr for node in ast.walk(plays) if isinstance(node, ast.Attribute)}
        called |= {node.id for node in ast.walk(plays) if isinstance(node, ast.Name)}
        drawn = {field.name for field in fields(schedule.FaultCounts) if hasattr(schedule.Schedule, f"_{field.name}")}
        struck = {name for name in drawn if getattr(SHORT.schedule, name) > 0}
        return frozenset(struck | (called & functions_that_count()))
    path = ROOT / "faults" / f"{kind}.py"
    if not path.is_file():
        return frozenset()
    # There a scenario is what the run's result counts.
    counted = {
        ast.unparse(node.target)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.AugAssign)
    }
    return frozenset(name.rpartition("result.")[2] for name in counted if "result." in name)


def functions_that_count() -> set[str]:
    """Functions of faults/ that return a difference and a number: what happened to the events of a scenario."""
    return {
        each.name
        for path in (ROOT / "faults").glob("*.py")
        for each in ast.parse(path.read_text("utf-8")).body
        if isinstance(each, ast.FunctionDef) and each.returns and ast.unparse(each.returns) == "tuple[Difference, int]"
    }


def test_every_row_of_the_guarantees_names_a_test_that_is_there() -> None:
    assert wrong_rows(GUARANTEES.read_text("utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    assert wrong_names(page.read_text("utf-8")) == []


TABLE = "| what happens | what is promised | shown by |\n|---|---|---|\n| killed | goes on | {} |\n"


@pytest.mark.parametrize(
    "shown_by",
    [
        "`tests/app/worker/test_worker.py`",
        "`tests/app/worker/test_worker.py::test_no_stream_is_refused`; [decision](x.md)",
        "`tests/transport/test_lane.py::test_the_broker_is_killed_and_comes_back`: an async one",
        "`faults`: worker_kills",
        "`faults`: zombies, `faults`: lost_changelogs; [why](x.md)",
        "`ratchet faults sink`: kills",
        "`faults producer`: producer_kills",
    ],
)
def test_a_row_that_names_what_is_there(shown_by: str) -> None:
    assert wrong_rows(TABLE.format(shown_by)) == []


@pytest.mark.parametrize(
    ("shown_by", "said"),
    [
        ("", "names no test"),
        ("the usual tests; [decision](x.md)", "names no test"),
        ("`tests/app/conftest.py`", "names no test"),
        ("`tests/app/test_nowhere.py`", "is not there"),
        ("`tests/app/worker/test_worker.py`, `test_growth.py`", "test_growth.py: write tests/folder"),
        ("`tests/../tests/app/test_worker.py`", "write tests/folder"),
        ("`tests/app/worker/test_worker.py::test_nothing`", "has no test_nothing"),
        ("`tests/app/worker/test_worker.py::test_no_stream`", "has no test_no_stream"),
        ("`faults`: worker_kills; `faults`: earthquakes", "no scenario 'earthquakes'"),
        ("`faults`, `faults sink`", "names no test"),
        ("`faults sink`: worker_kills", "no scenario 'worker_kills'"),
        ("`faults flood`: rain", "no scenario 'rain'"),
        ("`faults`: functions_that_count", "no scenario 'functions_that_count'"),
    ],
)
def test_a_row_that_names_what_is_not_there(shown_by: str, said: str) -> None:
    assert said in "\n".join(wrong_rows(TABLE.format(shown_by)))


def test_a_row_outside_a_table_is_no_row() -> None:
    page = TABLE.format("`faults`: zombies") + "\n| killed twice | goes on | `faults`: zombies |\n"
    (said,) = wrong_rows(page)
    assert said == "line 5: a row outside a table whose last column is 'shown by'"
