"""Variables that an agent of a Faust program keeps between its events, found in the source."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

CONTAINERS: Final = frozenset({"dict", "list", "set", "defaultdict", "Counter", "deque", "OrderedDict", "bytearray"})
CHANGES: Final = frozenset(
    {"append", "appendleft", "add", "extend", "insert", "setdefault", "update", "pop", "popleft", "remove", "discard"}
)
"""Methods that change a container."""
MEMORY: Final = (
    "kept in memory between events: a restart or rollback begins without it, and its events do not come again. Keep "
    "it in a table"
)


def kept_variables(agent: ast.AsyncFunctionDef, module: ast.Module, stream: str) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the variables that one event of an agent changes and the next one reads.

    Each comes with the first statement that changes it.

    Args:
        agent: the agent's function
        module: its module
        stream: name of the stream's parameter
    """
    loops = list(_loops(agent, stream))
    looped = [each for loop in loops for each in ast.walk(loop)]
    inside = set(map(id, looped))
    before = {name: value for each in ast.walk(agent) if id(each) not in inside for name, value in _bound(each)}
    shared = {name: value for each in module.body for name, value in _bound(each)}
    declared = {name for each in ast.walk(agent) if isinstance(each, ast.Global) for name in each.names}
    own = {name for each in looped for name, _ in _bound(each)} - before.keys() - declared
    held = {name for name, value in {**shared, **before}.items() if name not in own and _is_container(value)}
    read = _first_reads(looped)
    found: dict[str, ast.stmt] = {}
    for each in looped:
        if isinstance(each, ast.stmt):
            kept = {*_rebound(each, read)} & (before.keys() | declared) | {*_changed(each)} & held
            found |= {name: each for name in sorted(kept - found.keys())}
    yield from found.items()


def _first_reads(nodes: Iterable[ast.AST]) -> dict[str, int]:
    """Return the first line that reads each variable."""
    found: dict[str, int] = {}
    for each in nodes:
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
            found[each.id] = min(each.lineno, found.get(each.id, each.lineno))
    return found


def _loops(agent: ast.AsyncFunctionDef, stream: str) -> Iterator[ast.AsyncFor]:
    """Yield the loops over an agent's events; without one that names the stream, all asynchronous loops."""
    loops = [each for each in ast.walk(agent) if isinstance(each, ast.AsyncFor)]
    own = [
        loop for loop in loops if any(isinstance(each, ast.Name) and each.id == stream for each in ast.walk(loop.iter))
    ]
    yield from own or loops


def _bound(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=False)
                yield from ((each.id, value) for each, value in pairs if isinstance(each, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id, node.value


def _rebound(node: ast.stmt, read: dict[str, int]) -> Iterator[str]:
    """Yield the variables that a statement sets from their own earlier value, or after a read of it.

    read: first line of the loop that reads a variable
    """
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    yield from (name for name, _ in _bound(node) if name in read and read[name] <= node.lineno)


def _changed(node: ast.stmt) -> Iterator[str]:
    """Yield the variables whose container a statement changes."""
    if isinstance(node, ast.Assign | ast.Delete):
        targets = node.targets
    else:
        targets = [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []
    changed = [each.value for each in targets if isinstance(each, ast.Subscript)]
    if isinstance(node, ast.Expr | ast.Assign | ast.Return):
        calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
        changed += [each.value for each in calls if isinstance(each, ast.Attribute) and each.attr in CHANGES]
    for value in changed:
        while isinstance(value, ast.Subscript):
            value = value.value
        if isinstance(value, ast.Name):
            yield value.id


def _is_container(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return name in CONTAINERS
    return isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp)
