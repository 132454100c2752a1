"""Every command that a sentence of the product or a page of the docs advises has the options that it names."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from kafka_ratchet.app.cli import TOOLS, cli
from tests.folders import ROOT, package_files

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "guide").glob("*.md")),
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
]
SCRIPT = frozenset({"setup", "test", "docs", "image", "release", *TOOLS})
"""Commands of the script `./ratchet` of a clone."""
ADVICE = re.compile(r"`(?:\./)?ratchet ([a-z][^`]*)`")
GROUP: Any = typer.main.get_command(cli)


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the string literals of a module with their lines; a value that is filled in becomes `X`."""
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inner.update(id(part) for part in ast.walk(node) if part is not node)
    for node in ast.walk(tree):
        if id(node) in inner:
            continue
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def advised() -> Iterator[tuple[str, str]]:
    """Yield (place, words after `ratchet`) of each advice."""
    for path in package_files():
        for line, text in texts(ast.parse(path.read_text("utf-8"))):
            yield from ((f"{path.relative_to(ROOT)}:{line}", found[1]) for found in ADVICE.finditer(text))
    for path in PAGES:
        for number, text in enumerate(path.read_text("utf-8").splitlines(), 1):
            yield from ((f"{path.relative_to(ROOT)}:{number}", found[1]) for found in ADVICE.finditer(text))


def wrong(words: str) -> str:
    """Return what the command line does not have of an advice; empty: it has all."""
    command, path = GROUP, []
    rest = shlex.split(words.replace("\\|", "|"), posix=False)
    while rest and hasattr(command, "commands") and rest[0] in command.commands:
        command = command.commands[rest[0]]
        path.append(rest.pop(0))
    if not path:
        return "" if rest and rest[0] in SCRIPT else f"there is no command {rest[0]!r}"
    if hasattr(command, "commands") and rest and re.fullmatch(r"[a-z][a-z-]*", rest[0]):
        return f"{' '.join(path)} has no command {rest[0]!r}"
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    used = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", " ".join(rest))
    missing = [option for option in used if option not in known and option not in ("--help", "--version")]
    return f"{' '.join(path)} has no {', '.join(missing)}" if missing else ""


def test_every_advised_command_is_there() -> None:
    found = list(advised())
    assert len(found) > 300
    assert [f"{place}: `ratchet {words}`: {why}" for place, words in found if (why := wrong(words))] == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("resume --stream X --partition 3 --execute", ""),
        ("resume --partitions 3", "resume has no --partitions"),
        ("sink resum", "sink has no command 'resum'"),
        ("resumes", "there is no command 'resumes'"),
    ],
)
def test_an_advice_is_looked_at(words: str, why: str) -> None:
    assert wrong(words) == why
