"""Gate for the guarantees: every promise names a test or fault scenario, and every one that a page names exists.

A promise is one line of a page `docs/guide/guarantees-PART.md`: a bullet that ends with references, `[1] [2]`. The
section "Tests" defines each reference as a link with a title:

    [1]: ../../tests/folder/test_file.py "test_name"     the whole file without the title
    [2]: ../../faults/run.py "faults: worker_kills"      a scenario; also `faults sink: NAME`, `faults producer: NAME`

Other pages name tests in backticks, `tests/folder/test_file.py::test_name`, and scenarios as `faults`: name.
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
GUIDE = ROOT / "docs" / "guide"
PARTS = sorted(set(GUIDE.glob("guarantees-*.md")) - {GUIDE / "guarantees-limits.md"})
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FEWEST_PROMISES = 164
"""Promises of all parts together: none is withdrawn by accident."""
LONGEST_LINE = 100

TEST = re.compile(r"`([\w./-]*\btest_\w+\.py[^`]*)`")
"""Anything like a test file, so that half a path is found as well."""
SCENE = re.compile(r"`(?:ratchet )?faults(?: (\w+))?`: ([a-z]\w+)")
PROMISE = re.compile(r"- (\S.*: \S.*?)((?: \[\w+\])+)")
REFERENCE = re.compile(r"\[(\w+)\]")
DEFINITION = re.compile(r'^\[(\w+)\]: +(\S+)(?:\s+"([^"]*)")?$', re.MULTILINE)
SCENARIO = re.compile(r"faults(?: (\w+|--processes) ?\d*)?: (\w+)")


def promises(text: str) -> list[str]:
    """Return the bullets of a part, before its reasons and tests."""
    body = re.split(r"^## (?:Reasons|Tests)$", text, maxsplit=1, flags=re.MULTILINE)[0]
    return [line for line in body.splitlines() if line.lstrip().startswith(("- ", "* ", "|"))]


def wrong_promises(text: str) -> list[str]:
    """Return a sentence for each promise without a test, and for each definition without a target or a use."""
    defined = {key: (path, title) for key, path, title in DEFINITION.findall(text)}
    wrong, used = [], set[str]()
    for line in promises(text):
        found = PROMISE.fullmatch(line)
        if found is None:
            wrong.append(f"{line!r} is no promise: `- fault: what holds. [reference]`")
            continue
        if len(line) > LONGEST_LINE:
            wrong.append(f"{line!r} has {len(line)} characters")
        keys = REFERENCE.findall(found[2])
        used.update(keys)
        wrong += [f"{line!r}: [{key}] is not defined" for key in keys if key not in defined]
    wrong += [f"[{key}] shows no promise" for key in defined if key not in used]
    return wrong + [reason for each in defined.values() if (reason := wrong_target(*each))]


def wrong_target(path: str, title: str) -> str | None:
    """Return why a definition leads to no test or scenario; None where it does."""
    if not path.startswith("../../"):
        return f"{path}: write ../../tests/folder/test_file.py or ../../faults/run.py"
    path = path.removeprefix("../../")
    if not path.startswith("faults/"):
        return wrong_test(f"{path}::{title}" if title else path)
    if ".." in path or not (ROOT / path).is_file():
        return f"{path} is not there"
    found = SCENARIO.fullmatch(title)
    if found is None:
        return f'{path} {title!r}: write "faults: scenario" as the title'
    return wrong_scenario(found[1] or "", found[2])


def wrong_names(text: str) -> list[str]:
    """The tests and scenarios in a piece of text that are not there."""
    wrong = [reason for named in TEST.findall(text) if (reason := wrong_test(named))]
    return wrong + [reason for found in SCENE.findall(text) if (reason := wrong_scenario(*found))]


def wrong_scenario(kind: str, name: str) -> str | None:
    """Return why a fault run has no such scenario; None where it has it."""
    if name in scenarios(kind):
        return None
    return f"`ratchet faults {kind}` has no scenario {name!r}; it has {', '.join(sorted(scenarios(kind)))}"


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
    if kind == "--processes":
        plays = ast.parse((ROOT / "faults" / "run.py").read_text("utf-8"))
        changes = [
            node for node in ast.walk(plays) if isinstance(node, ast.Call) and ast.unparse(node.func) == "replace"
        ]
        added = {word.arg for node in changes for word in node.keywords if word.arg}
        return scenarios("") | {name for name in added if hasattr(schedule.Schedule, f"_{name}")}
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


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.stem)
def test_every_promise_names_a_test_that_is_there(part: Path) -> None:
    assert wrong_promises(part.read_text("utf-8")) == []


def test_the_parts_have_all_promises_and_the_first_page_has_all_parts() -> None:
    assert sum(len(promises(part.read_text("utf-8"))) for part in PARTS) >= FEWEST_PROMISES
    listed = re.findall(
        r"^- \[[^]]+\]\((guarantees-\w+\.md)\)", (GUIDE / "guarantees.md").read_text("utf-8"), re.MULTILINE
    )
    assert sorted(listed) == sorted(each.name for each in GUIDE.glob("guarantees-*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    assert wrong_names(page.read_text("utf-8")) == []


PART = "# Part\n\n## Crashes\n\n- Killed: goes on. [1]\n\n## Tests\n\n[1]: {}\n"
A_TEST = "../../tests/app/worker/test_worker.py"


@pytest.mark.parametrize(
    "target",
    [
        A_TEST,
        f'{A_TEST} "test_no_stream_is_refused"',
        f'{A_TEST}\n  "test_no_stream_is_refused"',
        '../../tests/transport/test_lane.py "test_the_broker_is_killed_and_comes_back"',
        '../../faults/run.py "faults: worker_kills"',
        '../../faults/run.py "faults --processes 2: process_kills"',
        '../../faults/sink.py "faults sink: kills"',
        '../../faults/producer.py "faults producer: producer_kills"',
    ],
)
def test_a_promise_with_a_target_that_is_there(target: str) -> None:
    assert wrong_promises(PART.format(target)) == []


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("../../tests/app/conftest.py", "has no test"),
        ("../../tests/app/test_nowhere.py", "is not there"),
        ("test_growth.py", "write ../../tests/folder"),
        ("../../tests/../tests/app/test_worker.py", "write tests/folder"),
        (f'{A_TEST} "test_nothing"', "has no test_nothing"),
        (f'{A_TEST} "test_no_stream"', "has no test_no_stream"),
        ('../../faults/run.py "faults: earthquakes"', "no scenario 'earthquakes'"),
        ('../../faults/run.py "faults: process_kills"', "no scenario 'process_kills'"),
        ('../../faults/run.py "faults --processes 2: earthquakes"', "no scenario 'earthquakes'"),
        ('../../faults/sink.py "faults sink: worker_kills"', "no scenario 'worker_kills'"),
        ('../../faults/run.py "faults flood: rain"', "no scenario 'rain'"),
        ('../../faults/run.py "faults: functions_that_count"', "no scenario 'functions_that_count'"),
        ('../../faults/nowhere.py "faults: worker_kills"', "is not there"),
        ("../../faults/run.py", "as the title"),
    ],
)
def test_a_promise_with_a_target_that_is_not_there(target: str, sentence: str) -> None:
    assert sentence in "\n".join(wrong_promises(PART.format(target)))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("- Frozen: goes on.", "is no promise"),
        ("- Frozen: goes on. [1], always", "is no promise"),
        ("- Frozen goes on. [1]", "is no promise"),
        ("- Frozen: goes on.\n  [1]", "is no promise"),
        ("  - Frozen: goes on.", "is no promise"),
        ("| frozen | goes on | [1] |", "is no promise"),
        ("- Frozen: goes on. [2]", "[2] is not defined"),
        (f"- Frozen: {'x' * 100}. [1]", "characters"),
    ],
)
def test_a_line_that_is_no_promise(line: str, sentence: str) -> None:
    page = PART.format(A_TEST).replace("## Tests", f"{line}\n\n## Tests")
    assert sentence in "\n".join(wrong_promises(page))


def test_a_definition_that_no_promise_uses() -> None:
    assert wrong_promises(PART.format(A_TEST) + f"[2]: {A_TEST}\n") == ["[2] shows no promise"]


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ("`tests/app/worker/test_worker.py`, `test_growth.py`", "test_growth.py: write tests/folder"),
        ("`tests/app/worker/test_worker.py::test_nothing`", "has no test_nothing"),
        ("`faults`: worker_kills; `faults`: earthquakes", "no scenario 'earthquakes'"),
        ("`faults sink`: worker_kills", "no scenario 'worker_kills'"),
        ("`ratchet faults sink`: rain", "no scenario 'rain'"),
    ],
)
def test_a_page_that_names_what_is_not_there(named: str, sentence: str) -> None:
    assert sentence in "\n".join(wrong_names(named))
