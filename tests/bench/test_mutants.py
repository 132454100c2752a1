"""Mutants reach the functions that tests have imported already, and meet the tests that run their line."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import coverage
import pytest

from bench.mutants import drawing, trials
from bench.mutants.drawing import Mutant, code_of, mutants_of
from bench.mutants.trials import Measured, change
from tests.folders import ROOT

SOURCE = '''
def counted(values):
    """A nested function and a statement of several lines."""

    def inner(value):
        return value + 1

    return [
        inner(value)
        for value in values
        if value > 10
    ]
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setattr(drawing, "ROOT", tmp_path)
    file = tmp_path / "changed_by_mutants.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("changed_by_mutants", file)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    yield loaded
    del sys.modules[spec.name]


def _mutant(module: ModuleType, before: str) -> Mutant:
    return next(each for each in mutants_of("rule", Path(str(module.__file__))) if each.before == before)


@pytest.mark.parametrize(
    ("before", "after"), [("value + 1", [10, 11]), ("value > 10", [11, 12, 13]), ("1", [13, 14]), ("10", [13])]
)
def test_a_function_that_is_imported_already_runs_the_mutant(module: ModuleType, before: str, after: list[int]) -> None:
    counted = module.counted
    assert counted([10, 11, 12]) == [12, 13]
    assert change(str(module.__file__), code_of(_mutant(module, before)))
    assert counted([10, 11, 12]) == after


def test_the_statement_of_a_mutant_is_all_its_lines(module: ModuleType) -> None:
    assert _mutant(module, "value > 10").lines == (8, 12)
    assert _mutant(module, "value + 1").lines == (6, 6)


def test_a_mutant_meets_the_passing_tests_of_its_lines_the_quickest_file_first(tmp_path: Path) -> None:
    data = coverage.CoverageData(str(tmp_path / "data"))
    file = str(tmp_path / "module.py")
    for context in ("a.py::slow", "b.py::quick", "a.py::quick", "b.py::fails"):
        data.set_context(context)
        data.add_lines({file: [3]})
    data.set_context("")
    data.add_lines({file: [1]})
    measured = Measured(data, {"a.py::slow": 5.0, "a.py::quick": 0.5, "b.py::quick": 1.0, "b.py::other": 0.1})
    assert measured.tests_of(file, (2, 4)) == (["b.py::quick", "a.py::quick", "a.py::slow"], False)
    assert measured.tests_of(file, (7, 7)) == ([], False)
    everything, at_import = measured.tests_of(file, (1, 1))
    assert set(everything) == {"a.py::slow", "a.py::quick", "b.py::quick", "b.py::other"}
    assert at_import


FORKS = """
import os, sys
from pathlib import Path
from bench.mutants.trials import Tests, Trial

folder, limit = Path(sys.argv[1]), sys.argv[2]
module, test = folder / "with_a_limit.py", folder / "test_limit.py"
module.write_text("LIMIT = 7")
test.write_text("from with_a_limit import LIMIT\\ndef test_limit(): assert LIMIT == 7")
tests = Tests("limit", [], ["-c", os.devnull, "--rootdir", str(folder)], [], plain=False)
code = compile(f"LIMIT = {limit}", str(module), "exec")
answer = tests._try_at_import(5, Trial(str(module), code, [f"{test}::test_limit"], at_import=True), folder)
print((answer.number, answer.outcome, answer.reason))
"""


@pytest.mark.parametrize(
    ("limit", "answer"), [(7, (5, "survived", "")), (8, (5, "killed", "test_limit.py::test_limit: assert 8 == 7"))]
)
def test_a_mutant_of_an_import_meets_the_tests_of_its_line(tmp_path: Path, limit: int, answer: object) -> None:
    """It forks, which a process of tests with threads of Kafka clients may not survive."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV"))}
    words = [sys.executable, "-c", FORKS, str(tmp_path), str(limit)]
    done = subprocess.run(words, cwd=ROOT, env=kept, capture_output=True, text=True, timeout=200)
    assert done.stdout.splitlines()[-1:] == [str(answer)], done.stderr


TRIALS = """
import os, sys
from pathlib import Path
from bench.mutants.trials import Tests, Trial

folder, most_s = Path(sys.argv[1]).resolve(), float(sys.argv[2])
module, test = folder / "with_a_rule.py", folder / "test_rule.py"
options = ["-c", os.devnull, "--rootdir", str(folder)]
tests = Tests("rule", [str(test)], options, [str(folder)], plain=False, apart=True, most_s=most_s, without=("left",))
measured = tests.measure(folder)
code = compile(module.read_text().replace("> 7", ">= 7"), str(module), "exec")
names = sorted(measured.tests_of(str(module), (3, 3))[0])
trials = [Trial(str(module), code, [name], at_import=False) for name in names]
trials.append(Trial(str(module), code, ["test_rule.py::test_far", "test_rule.py::test_near"], at_import=False))
answers = {each.number: each for each in tests.try_all(trials, measured, folder, float("inf"))}
for number, answer in sorted(answers.items()):
    print(",".join(trials[number].tests), answer.outcome, answer.reason)
"""
RULE = """
def rule(value):
    return value > 7
"""
TESTS_OF_RULE = """
import os, signal
from pathlib import Path
import pytest
from with_a_rule import rule

@pytest.fixture
def small():
    assert not rule(7)

@pytest.fixture
def left(): ...

def test_far(): assert rule(9)
def test_left_out(left): assert not rule(7)
def test_near(): assert not rule(7)
def test_crashes(): rule(7) and os.kill(os.getpid(), signal.SIGSEGV)
def test_ends(): rule(7) and os._exit(3)
def test_fixture(small): assert rule(9)
def test_once():
    assert rule(9)
    Path(__file__).with_name("made").mkdir()
"""


@pytest.mark.parametrize(
    ("seconds", "of_two"),
    [(60, "killed test_rule.py::test_near: assert not True"), (0, "undecided passed 1 of 2 tests")],
)
def test_only_a_failed_test_that_passes_without_the_mutant_kills_it(tmp_path: Path, seconds: int, of_two: str) -> None:
    (tmp_path / "with_a_rule.py").write_text(RULE)
    (tmp_path / "test_rule.py").write_text(TESTS_OF_RULE)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV"))}
    words = [sys.executable, "-c", TRIALS, str(tmp_path), str(seconds)]
    done = subprocess.run(words, cwd=ROOT, env=kept, capture_output=True, text=True, timeout=300)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith("test_rule.py::"))
    begins = {
        "crashes": "undecided signal 11",
        "ends": "undecided exit code 3",
        "far": "survived",
        "fixture": "undecided setup of test_rule.py::test_fixture: assert not True",
        "near": "killed test_rule.py::test_near: assert not True",
        "once": "undecided without the mutant too, it does not pass: test_rule.py::test_once: FileExistsError",
        "far,test_rule.py::test_near": of_two,
    }
    assert said.keys() == {f"test_rule.py::test_{name}" for name in begins}, done.stderr
    assert {name: said[f"test_rule.py::test_{name}"][: len(answer)] for name, answer in begins.items()} == begins


@pytest.mark.parametrize(
    ("code", "said", "answer"),
    [
        (0, "survived", ("survived", "")),
        (0, "killed a.py::one: assert 1 == 2", ("killed", "a.py::one: assert 1 == 2")),
        (1, "", ("undecided", "endless")),
        (-9, "", ("undecided", "endless")),
        (-11, "", ("undecided", "signal 11")),
        (70, "", ("undecided", "exit code 70")),
    ],
)
def test_a_crash_is_no_failed_test(code: int, said: str, answer: tuple[str, str]) -> None:
    assert trials.ending(code, said) == answer
