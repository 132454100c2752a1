"""Numba's cache on disk after an update of the sources: old code is compiled again, and ends no start."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numba
import pytest

from kafka_ratchet.transport.batch import compiled
from kafka_ratchet.transport.batch.compiled import PACKAGE, SHARED, stamp_of

NUMBA_VERSION = pickle.dumps(numba.__version__)
pytestmark = pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")

TAKES_A_CLASS = """
import numpy as np
from {place} import Pair
from kafka_ratchet.transport.batch.compiled import compiled

@compiled()
def second(pair):
    return pair.second

found = second(Pair(1, 2))
"""
PAIR = """
from typing import NamedTuple

class Pair(NamedTuple):
    first: int
    second: int
"""
CALLS_ANOTHER = """
from number_of_rule import number
from kafka_ratchet.transport.batch.compiled import compiled

@compiled()
def twice():
    return 2 * number()

found = twice()
"""
ANOTHER = """
from kafka_ratchet.transport.batch.compiled import compiled

@compiled()
def number():
    return {number}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules, which are forgotten at the end."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def imported(file: Path, text: str, *, is_dated: bool = True) -> ModuleType:
    """Write a module and import it, as a new process would. is_dated: a change moves its time."""
    times = file.stat().st_mtime_ns + (1_000_000_000 if is_dated else 0) if file.exists() else None
    file.write_text(text)
    if times is not None:
        os.utime(file, ns=(times, times))
    importlib.invalidate_caches()
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def test_a_class_that_moved_does_not_end_the_start(folder: Path) -> None:
    """The index of the earlier version names the class where it was."""
    imported(folder / "old_place.py", PAIR)
    imported(folder / "judging_rule.py", TAKES_A_CLASS.format(place="old_place"))
    assert list(folder.glob("__pycache__/judging_rule.second-*.nbi"))
    del sys.modules["old_place"]
    (folder / "old_place.py").unlink()
    imported(folder / "new_place.py", PAIR)
    module = imported(folder / "judging_rule.py", TAKES_A_CLASS.format(place="new_place"))
    assert module.found == 2
    again = imported(folder / "judging_rule.py", TAKES_A_CLASS.format(place="new_place") + "\n")
    assert again.found == 2


@pytest.mark.parametrize(
    "content",
    [b"", b"\x80\x05", b"no pickle", NUMBA_VERSION + b"\x80\x04cnowhere\nnothing\n."],
    ids=["empty", "cut off", "text", "class"],
)
def test_an_index_that_cannot_be_read_is_none(content: bytes, folder: Path) -> None:
    file = folder / "judging_rule.py"
    assert imported(file, ANOTHER.format(number=1)).number() == 1
    (index,) = folder.glob("__pycache__/*.nbi")
    index.write_bytes(content)
    assert imported(file, ANOTHER.format(number=1), is_dated=False).number() == 1
    assert index.read_bytes() != content


def test_code_is_not_kept_when_a_function_that_it_calls_has_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba looks at the file of the caller alone."""
    monkeypatch.setattr(compiled, "SHARED", ("number_of_rule.py",))
    found = []
    for number in (1, 3):
        imported(folder / "number_of_rule.py", ANOTHER.format(number=number))
        monkeypatch.setattr(compiled, "STAMP", stamp_of(folder))
        found.append(imported(folder / "calling_rule.py", CALLS_ANOTHER, is_dated=False).found)
    assert found == [2, 6]


def test_an_archive_has_no_files_to_date(tmp_path: Path) -> None:
    assert stamp_of(tmp_path / "archive.zip") == ()
    assert len(stamp_of(PACKAGE)) == len(SHARED)


def module_file(name: str) -> str:
    return f"{name.removeprefix('kafka_ratchet.').replace('.', '/')}.py"


def taken_in(file: Path) -> set[str]:
    """Files of the package with the names that compiled functions of a module use."""
    tree = ast.parse(file.read_text())
    origins: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kafka_ratchet."):
            for alias in node.names:
                below = module_file(f"{node.module}.{alias.name}")
                origins[alias.asname or alias.name] = (
                    below if (PACKAGE / below).exists() else module_file(str(node.module))
                )
    functions = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any("compiled" in ast.dump(each) for each in node.decorator_list)
    ]
    bodies = [statement for function in functions for statement in function.body]
    used = {node.id for body in bodies for node in ast.walk(body) if isinstance(node, ast.Name)}
    return {origin for name, origin in origins.items() if name in used}


def test_all_files_that_compiled_code_takes_in_are_dated() -> None:
    """A file missing in SHARED would leave old code in the cache when it changes."""
    folders = ("agents", "app", "rule", "tables", "topic_log", "transport")
    files = [file for folder in folders for file in (PACKAGE / folder).rglob("*.py")]
    with_compiled = [file for file in files if "@compiled(" in file.read_text()]
    assert len(with_compiled) > 15
    assert not [file for file in files if "njit(" in file.read_text() and file.name != "compiled.py"]
    needed = set().union(*map(taken_in, with_compiled))
    assert needed <= set(SHARED), sorted(needed - set(SHARED))
    assert "rule/kernels.py" in needed
