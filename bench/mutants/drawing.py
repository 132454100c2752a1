"""Drawing of mutants, which are small changes of the code, at random by a seed."""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = {
    "rule": (("rule", "tables", "agents"), ("tests/rule", "tests/tables", "tests/agents", "tests/testing")),
    "commit": (("transport",), ("tests/transport",)),
    "stores": (("spark_sink/stores",), ("tests/spark_sink/stores", "tests/spark_sink/job")),
}
"""Folders of the code and of its tests, by name of the part."""

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
    """Change of the code: its file and line, and the line's text before and after the change."""

    part: str
    file: str
    line: int
    before: str
    after: str
    number: int
    """Number of the change among all changes of its file."""
    lines: tuple[int, int]
    """First and last line of the changed statement."""


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the syntax nodes that a mutant may change, in order: all but errors, logs, texts and annotations."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Raise | ast.AnnAssign | ast.arguments | ast.Assert | ast.JoinedStr):
            continue
        if _is_log_line(node):
            continue
        yield node
        yield from nodes(node)


def _is_log_line(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        called = ast.unparse(node.func)
        return "log." in called or called.split(".")[-1] in ("debug", "info", "warning", "error", "exception")
    return False


def changes(node: ast.AST) -> list[ast.AST]:
    """Return the nodes that may replace a node in a mutant."""
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
        if _is_log_line(changed.value):
            return []
        return [ast.Pass()]
    return []


def mutants_of(part: str, path: Path) -> list[Mutant]:
    """Return every mutant of a file."""
    tree = ast.parse(path.read_text("utf-8"))
    spans = _statements(tree)
    found: dict[tuple[int, str, str], Mutant] = {}
    for number, (node, changed) in enumerate(_changed(tree)):
        line = int(getattr(node, "lineno", 0))
        before, after = ast.unparse(node).splitlines()[0], ast.unparse(changed).splitlines()[0]
        lines = max((each for each in spans if each[0] <= line <= each[1]), default=(line, line))
        found[line, before, after] = Mutant(part, str(path.relative_to(ROOT)), line, before, after, number, lines)
    return list(found.values())


def code_of(mutant: Mutant) -> CodeType:
    """Return the compiled module of a mutant, with the line numbers of the file."""
    tree = ast.parse((ROOT / mutant.file).read_text("utf-8"))
    for number, _ in enumerate(_changed(tree)):
        if number == mutant.number:
            return compile(ast.fix_missing_locations(tree), str(ROOT / mutant.file), "exec")
    raise LookupError(mutant)


def _statements(tree: ast.AST) -> list[tuple[int, int]]:
    """Return first and last line of each statement; a statement with a body ends before the body."""
    spans = []
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None) or getattr(node, "cases", None)
            last = node.end_lineno or node.lineno
            if isinstance(body, list):
                first_inside = getattr(body[0], "lineno", None) or body[0].pattern.lineno
                last = max(node.lineno, first_inside - 1)
            spans.append((node.lineno, last))
    return spans


def _changed(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield each node and the node that replaces it; the tree has this change until the next one is requested."""
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        for parent in [function, *nodes(function)]:
            for name, value in ast.iter_fields(parent):
                slots = value if isinstance(value, list) else [value]
                for at, node in enumerate(slots):
                    if isinstance(node, ast.AST) and hasattr(node, "lineno") and name not in UNCHANGED:
                        yield from _of_node(parent, name, at, node)


def _of_node(parent: ast.AST, name: str, at: int, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    value = getattr(parent, name)
    for changed in changes(node):
        ast.copy_location(changed, node)
        if isinstance(value, list):
            value[at] = changed
        else:
            setattr(parent, name, changed)
        try:
            yield node, changed
        finally:
            if isinstance(value, list):
                value[at] = node
            else:
                setattr(parent, name, node)


def chosen(part: str, seed: int, number: int) -> list[Mutant]:
    """Return `number` mutants of a part, drawn at random: each time a line of code, then one of its mutants."""
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
