"""Mutants: small changes of the code that no test notices. `python -m bench.mutants --seed 35 --number 200`.

The seed draws one operator, constant, condition or statement of the packages below. The tests of its package run
over the change in a forked process with all libraries loaded; the files stay unchanged. Where the file has functions
that Numba compiles, Numba is switched off and the tests of those run alone: its cache would hold them unchanged.
A mutant is killed where a test fails or takes too long.
Texts, log lines, errors and annotations are left alone.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = {
    "rule": (("rule", "tables", "agents"), ("tests/rule", "tests/tables", "tests/agents", "tests/testing")),
    "commit": (("transport",), ("tests/transport",)),
    "stores": (("spark_sink/stores",), ("tests/spark_sink/stores", "tests/spark_sink/job")),
}
"""Folders of the code and of its tests, by the name of the part."""
LIMIT_S: Final = 900.0
"""Seconds after which a run of tests counts as an endless loop."""
PRELOADED: Final = ("numba", "confluent_kafka", "aiokafka", "faust", "pyarrow", "pytest", "rocksdict")

COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}

UNCHANGED: Final = ("returns", "decorator_list")


@dataclass(frozen=True)
class Mutant:
    """One change of the code: the place, and the line before and after the change."""

    part: str
    file: str
    line: int
    before: str
    after: str
    source: str


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the syntax nodes of the code in order, without errors, logs and other untested parts."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Raise | ast.AnnAssign | ast.arguments | ast.Assert | ast.JoinedStr):
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = ast.unparse(node.func)
            if "log." in called or called.split(".")[-1] in ("debug", "info", "warning", "error", "exception"):
                continue
        yield node
        yield from nodes(node)


def changes(node: ast.AST) -> list[ast.AST]:
    """Return the possible changes of a node."""
    changed = copy.deepcopy(node)
    if isinstance(changed, ast.Compare) and type(changed.ops[0]) in COMPARISONS:
        changed.ops[0] = COMPARISONS[type(changed.ops[0])]()
        return [changed]
    if isinstance(changed, ast.BoolOp):
        changed.op = ast.Or() if isinstance(changed.op, ast.And) else ast.And()
        return [changed]
    if isinstance(changed, ast.BinOp | ast.AugAssign) and type(changed.op) in OPERATORS:
        changed.op = OPERATORS[type(changed.op)]()
        return [changed]
    if isinstance(changed, ast.UnaryOp) and isinstance(changed.op, ast.Not):
        return [changed.operand]
    if isinstance(changed, ast.Constant) and isinstance(changed.value, int):  # bool is one
        changed.value = not changed.value if isinstance(changed.value, bool) else changed.value + 1
        return [changed]
    if isinstance(changed, ast.If | ast.While | ast.IfExp):
        changed.test = ast.UnaryOp(ast.Not(), changed.test)
        return [changed]
    if isinstance(changed, ast.Expr) and isinstance(changed.value, ast.Call | ast.Await):
        return [ast.Pass()]
    return []


def mutants_of(part: str, path: Path) -> list[Mutant]:
    """Return every mutant of a file."""
    tree = ast.parse(path.read_text("utf-8"))
    found: list[Mutant] = []
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        for parent in [function, *nodes(function)]:
            for name, value in ast.iter_fields(parent):
                slots = value if isinstance(value, list) else [value]
                for at, node in enumerate(slots):
                    if isinstance(node, ast.AST) and hasattr(node, "lineno") and name not in UNCHANGED:
                        found += _of_node(part, path, tree, parent, name, at, node)
    return list({(each.line, each.before, each.after): each for each in found}.values())


def _of_node(
    part: str, path: Path, tree: ast.Module, parent: ast.AST, name: str, at: int, node: ast.AST
) -> Iterator[Mutant]:
    value = getattr(parent, name)
    for changed in changes(node):
        before = ast.unparse(node).splitlines()[0]
        ast.copy_location(changed, node)
        if isinstance(value, list):
            value[at] = changed
        else:
            setattr(parent, name, changed)
        source = ast.unparse(ast.fix_missing_locations(tree))
        if isinstance(value, list):
            value[at] = node
        else:
            setattr(parent, name, node)
        line = int(getattr(node, "lineno", 0))
        yield Mutant(part, str(path.relative_to(ROOT)), line, before, ast.unparse(changed).splitlines()[0], source)


def chosen(part: str, seed: int, number: int) -> list[Mutant]:
    """Return mutants of a part, drawn at random: first a line of code, then one of its mutants."""
    dice = random.Random(f"{seed} {part}")
    files = sorted(path for folder in PACKAGES[part][0] for path in (ROOT / folder).rglob("*.py"))
    lines = [len(path.read_text("utf-8").splitlines()) for path in files]
    drawn: dict[tuple[str, int, str, str], Mutant] = {}
    while len(drawn) < number:
        found = mutants_of(part, dice.choices(files, lines)[0])
        if found:
            mutant = dice.choice(found)
            drawn[mutant.file, mutant.line, mutant.before, mutant.after] = mutant
    return list(drawn.values())


def is_compiled(file: str) -> bool:
    """Return True if Numba compiles functions of the file."""
    return "@compiled" in (ROOT / file).read_text("utf-8")


def survives(mutant: Mutant | None, tests: list[str], output: Path, *, plain: bool) -> tuple[bool, float]:
    """Run tests over a mutant in a child of this process; None: over the code as it is.

    plain: with Numba switched off, and the tests of compiled functions alone.
    """
    began, child = time.monotonic(), os.fork()
    if child == 0:
        try:
            os.setsid()
            log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os._exit(_run_tests(mutant, tests, plain=plain))
        except BaseException:
            traceback.print_exc()
            os._exit(70)
    while time.monotonic() - began < LIMIT_S:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == 0, time.monotonic() - began
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False, time.monotonic() - began


def _run_tests(mutant: Mutant | None, tests: list[str], *, plain: bool) -> int:
    import numba
    import pytest

    if plain:
        os.environ["NUMBA_DISABLE_JIT"] = "1"
        numba.config.DISABLE_JIT = 1
    if mutant is not None:
        _load_instead(ROOT / mutant.file, mutant.source)
    chosen = "--plain-kernels" if plain else "--quick"
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", chosen, f"--timeout={LIMIT_S / 3:g}"]
    return int(pytest.main([*options, *tests]))


def _load_instead(file: Path, source: str) -> None:
    """Replace the source that an import of this file runs."""
    load = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        if Path(loader.path).resolve() == file.resolve():
            return compile(source, loader.path, "exec")
        return load(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]


def nearest_first(mutant: Mutant, tests: tuple[str, ...]) -> list[str]:
    """Return the tests of a part, those of the mutant's own file first."""
    near = ROOT / "tests" / Path(mutant.file).with_name(f"test_{Path(mutant.file).name}")
    folders = [*tests]
    return [*([str(near.relative_to(ROOT))] if near.is_file() else []), *folders]


def _unchanged_passes(drawn: dict[str, list[Mutant]], folder: Path) -> bool:
    """Run the tests over the unchanged code, in the same way as for the drawn mutants."""
    for name, plain in sorted({(name, is_compiled(each.file)) for name, mutants in drawn.items() for each in mutants}):
        log = folder / f"{name}{'-plain' if plain else ''}.log"
        passes, seconds = survives(None, [*PACKAGES[name][1]], log, plain=plain)
        kind = ", plain kernels" if plain else ""
        told = "passes" if passes else f"FAILS, see {log},"
        print(f"{name}{kind}: unchanged code {told} in {seconds:.0f} s", flush=True)
        if not passes:
            return False
    return True


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seed", type=int, default=35)
    asked.add_argument("--number", type=int, default=200, help="of mutants, a third of them in each part")
    asked.add_argument("--part", choices=PACKAGES, action="append")
    asked.add_argument("--minutes", type=float, default=60.0)
    asked.add_argument("--folder", type=Path, default=ROOT / "build" / "mutants")
    arguments = asked.parse_args()
    os.chdir(ROOT)
    for name in PRELOADED:
        __import__(name)
    parts = arguments.part or [*PACKAGES]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    drawn = {part: chosen(part, arguments.seed, -(-arguments.number // len(parts))) for part in parts}
    if not _unchanged_passes(drawn, arguments.folder):
        return 1
    deadline, killed, survived = time.monotonic() + arguments.minutes * 60, 0, 0
    with (arguments.folder / "mutants.ndjson").open("w") as report:
        for mutant in (each for row in zip(*drawn.values(), strict=True) for each in row):
            if time.monotonic() > deadline:
                break
            tests = nearest_first(mutant, PACKAGES[mutant.part][1])
            lives, seconds = survives(mutant, tests, arguments.folder / "mutant.log", plain=is_compiled(mutant.file))
            survived, killed = survived + lives, killed + (not lives)
            what = {name: value for name, value in asdict(mutant).items() if name != "source"}
            report.write(json.dumps({**what, "survived": lives, "seconds": round(seconds, 1)}) + "\n")
            report.flush()
            if lives:
                print(f"survived: {mutant.file}:{mutant.line}: {mutant.before} -> {mutant.after}", flush=True)
    print(f"{killed + survived} mutants: {killed} killed, {survived} survived")
    return 0


if __name__ == "__main__":
    sys.exit(main())
