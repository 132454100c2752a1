"""The design page names files, functions and folders that are there, and every folder of the repository."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "design.md"
PLACE = re.compile(r"`([\w/]+\.py)(?:::([\w.]+))?`")
STEP = re.compile(r"^(\d+)\. (.*?)(?=^\d+\. |^\*\*|^The same |^Without |\Z)", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"^( *)([\w/]+\.py)::([\w.]+)(?: as (\w+))?$")
MOST_FILES = 12
"""Files on the way of a record from its fetch to its commit."""
LONGEST_LINE = 100
FEWEST_STEPS, FEWEST_PLACES = 17, 40


class Call(NamedTuple):
    """One line of the page's calls. attribute: name by which its caller calls it."""

    depth: int
    path: str
    name: str
    attribute: str


def calls() -> list[Call]:
    block = PAGE.read_text("utf-8").partition("```calls\n")[2].partition("```")[0]
    matches = [CALL.match(line) for line in block.splitlines()]
    assert matches
    return [
        Call(len(match[1]) // 4, match[2], match[3], match[4] or match[3].rpartition(".")[2])
        for match in matches
        if match is not None or pytest.fail("a line of the calls has another form")
    ]


def called_in(path: str, name: str) -> set[str]:
    """Names and attributes that a function's code refers to."""
    body: list[ast.stmt] = ast.parse((ROOT / path).read_text("utf-8")).body
    node: ast.AST | None = None
    for part in name.split("."):
        node = next(each for each in body if part in names_of(each))
        body = getattr(node, "body", [])
    assert node is not None
    found = [each for each in ast.walk(node) if isinstance(each, ast.Name | ast.Attribute)]
    return {each.id if isinstance(each, ast.Name) else each.attr for each in found}


def wrong_call(caller: Call, call: Call) -> str:
    """Return why one function does not call another; "" where it does."""
    if call.attribute in called_in(caller.path, caller.name):
        return ""
    return f"{caller.path}::{caller.name} does not call {call.name} as {call.attribute}"


def wrong_place(path: str, name: str) -> str:
    """Return why a file, or a name in it, is missing; "" where it is there."""
    if not (ROOT / path).is_file():
        return f"{path} is not there"
    body: list[ast.stmt] = ast.parse((ROOT / path).read_text("utf-8")).body
    for part in filter(None, name.split(".")):
        found = [node for node in body if part in names_of(node)]
        if not found:
            return f"{path} has no {name}"
        body = getattr(found[0], "body", [])
    return ""


def names_of(node: ast.stmt) -> set[str]:
    """Names that a statement defines: of a function, a class or an assignment."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def section(title: str) -> str:
    text = PAGE.read_text("utf-8")
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def places(text: str) -> list[tuple[str, str]]:
    """Files and the names in them, in the page's order; those of the folder table are folders' own."""
    return [(path, name) for path, name in PLACE.findall(text) if "/" in path]


def test_every_file_and_function_that_the_page_names_is_there() -> None:
    named = places(PAGE.read_text("utf-8"))
    assert len(named) >= FEWEST_PLACES
    assert [wrong for path, name in named if (wrong := wrong_place(path, name))] == []


def test_each_step_of_the_way_names_its_function_and_the_steps_are_numbered() -> None:
    steps = STEP.findall(section("The way of a record"))
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    assert len(steps) >= FEWEST_STEPS
    assert [number for number, text in steps if not any(name for _, name in places(text))] == []


def test_the_way_goes_through_the_folders_in_their_order() -> None:
    first = [places(text)[0][0].partition("/")[0] for _, text in STEP.findall(section("The way of a record"))]
    order = ["producers", "transport", "agents", "tables", "transport", "tables", "spark_sink"]
    walked = [folder for number, folder in enumerate(first) if number == 0 or first[number - 1] != folder]
    # The lane calls the tables to commit, and the delivery takes the agent's outputs back to it.
    assert walked == order


def test_the_folder_table_has_every_folder_and_no_other() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    folders = {f"{path.partition('/')[0]}/" for path in listed if "/" in path and not path.startswith(".")}
    rows = re.findall(r"^\| `([\w./]+)` \|(.*)$", section("Folders"), re.MULTILINE)
    folders.discard("kafka_ratchet.egg-info/")  # entry points, which a build would write
    assert {folder for folder, _ in rows} == folders | {"errors.py"}
    inner = [f"{folder}{each}" for folder, text in rows for each in re.findall(r"`(\w+(?:/|\.py))`", text)]
    assert [each for each in inner if not (ROOT / each).exists()] == []


def test_the_links_of_the_page_lead_to_pages() -> None:
    links = re.findall(r"\]\(([\w./-]+\.md)\)", PAGE.read_text("utf-8"))
    assert links
    assert [link for link in links if not (PAGE.parent / link).is_file()] == []


def test_the_page_is_short_and_wrapped() -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    assert [line for line in lines if len(line) > LONGEST_LINE and not line.startswith("|")] == []


def test_each_function_on_the_way_is_there_and_is_called_by_the_one_above_it() -> None:
    way = calls()
    assert [wrong for call in way if (wrong := wrong_place(call.path, call.name))] == []
    callers: dict[int, Call] = {}
    broken = []
    for call in way:
        if call.depth:
            broken.append(wrong_call(callers[call.depth - 1], call))
        callers[call.depth] = call
    assert [each for each in broken if each] == []
    ends = [call.name for call in way]
    assert ends[0] == "Lane._consume"
    assert {"Lane._fetch", "judge", "TransactionalProducer.produce", "TransactionalProducer.commit"} <= set(ends)


def test_the_way_from_fetch_to_commit_goes_through_at_most_a_dozen_files() -> None:
    files = list(dict.fromkeys(call.path for call in calls()))
    assert len(files) <= MOST_FILES, files


def test_a_call_that_is_gone_is_found() -> None:
    work = Call(1, "transport/lane.py", "Lane._work", "_work")
    assert wrong_call(work, Call(2, "transport/lane.py", "Lane._process", "_process")) == ""
    commit = Call(2, "transport/lane.py", "Lane._commit", "_commit")
    assert wrong_call(work, commit) == "transport/lane.py::Lane._work does not call Lane._commit as _commit"


@pytest.mark.parametrize(
    ("path", "name", "said"),
    [
        ("transport/lane.py", "", ""),
        ("transport/lane.py", "Lane._commit", ""),
        ("transport/lane_spec.py", "LEGAL", ""),
        ("transport/nowhere.py", "", "transport/nowhere.py is not there"),
        ("transport/lane.py", "Lane._nothing", "transport/lane.py has no Lane._nothing"),
        ("transport/lane.py", "_commit", "transport/lane.py has no _commit"),
    ],
)
def test_a_place_that_is_there_or_not(path: str, name: str, said: str) -> None:
    assert wrong_place(path, name) == said
