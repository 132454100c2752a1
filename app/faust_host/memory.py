"""Search of a Faust program's source for variables that an agent keeps between its events."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

CONTAINERS: Final = frozenset(
    {"dict", "list", "set", "defaultdict", "Counter", "deque", "OrderedDict", "bytearray"}
    | {"Queue", "LifoQueue", "PriorityQueue", "SimpleQueue"}
)
GROWS: Final = frozenset({"append", "appendleft", "extend", "popleft", "put", "put_nowait", "get_nowait"})
"""Names of methods that change a container, and that no Faust table has."""
CHANGES: Final = GROWS | {"add", "insert", "setdefault", "update", "pop", "remove", "discard", "clear"}
"""Names of all methods that change a container."""
CHANGERS: Final = frozenset(
    {"heappush", "heappop", "heappushpop", "heapreplace", "insort", "insort_left", "insort_right", "next"}
)
"""Names of functions that change their first argument."""
CALLS_MOST: Final = 5
"""Maximum number of nested calls from an agent to the function that changes a variable."""
MEMORY: Final = (
    "kept in memory between events: a restart or rollback begins without it, and its events do not come again. Keep "
    "it in a table"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def kept_variables(agent: Function, module: ast.Module, stream: str) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the variables that one event of an agent changes and the next one reads.

    Each comes with the first statement that changes it.

    Args:
        agent: the agent's function
        module: its module
        stream: name of the stream's parameter
    """
    found: dict[str, ast.stmt] = {}
    left, seen = [(agent, stream)], {agent.name}
    while left:
        function, parameter = left.pop()
        for name, statement in _kept_in(function, module, parameter):
            found.setdefault(name, statement)
        for helper, its_parameter in _helpers(function, module, parameter):
            if helper.name not in seen:
                seen.add(helper.name)
                left.append((helper, its_parameter))
    yield from found.items()


def _kept_in(agent: Function, module: ast.Module, stream: str) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the variables kept by a function with a loop over the events."""
    looped = [each for loop in _loops(agent, stream) for each in ast.walk(loop)]
    declared = _names_of(agent, ast.Global)
    before, outer = _outside(agent, module, looped, declared)
    held = {name for name, value in outer.items() if _is_container(value)}
    held |= {name for name, value in outer.items() if name in before and isinstance(value, ast.Subscript)}
    made = {name for name, value in outer.items() if isinstance(value, ast.Call)}
    stored = _stored(looped)
    read = _first_reads(looped)
    for each in (node for node in looped if isinstance(node, ast.stmt)):
        kept = {*_rebound(each, read)} & (before | declared)
        kept |= {*_changed(each)} & held | {*_advanced(each)} & (held | made)
        kept |= {text for root, text in _attributes(each, looped) if root not in stored}
        kept |= {*_through_calls(each, agent, module, outer), *_enumerated(each, stream)}
        yield from ((name, each) for name in sorted(kept))


def _outside(
    agent: Function, module: ast.Module, looped: list[ast.AST], declared: set[str]
) -> tuple[set[str], dict[str, ast.expr]]:
    """Return the variables that exist outside an agent's loop.

    Args:
        agent: function with the loop
        module: its module
        looped: nodes of the loop
        declared: variables of the module that the function binds.

    Returns:
        (names of the variables bound before the loop; by name, the value assigned to each of these and of the module's
        variables). The dict omits names that the loop itself binds as new local variables.
    """
    inside = set(map(id, looped))
    before = {name: value for each in ast.walk(agent) if id(each) not in inside for name, value in _bound(each)}
    shared = {name: value for each in module.body for name, value in _bound(each)}
    own = {name for each in looped for name, _ in _bound(each)} - before.keys() - declared
    return {*before}, {name: value for name, value in {**shared, **before}.items() if name not in own}


def _names_of(function: Function, *kinds: type) -> set[str]:
    """Return the variables that `global` or `nonlocal` statements name."""
    return {name for each in ast.walk(function) if isinstance(each, kinds) for name in getattr(each, "names", ())}


def _stored(nodes: Iterable[ast.AST]) -> set[str]:
    return {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def _through_calls(
    statement: ast.stmt, agent: Function, module: ast.Module, outer: dict[str, ast.expr]
) -> Iterator[str]:
    """Yield the variables changed by functions that a statement calls, directly or through other functions.

    Args:
        statement: statement in the loop over the events
        agent: function with the loop
        module: its module
        outer: variables bound before the loop or in the module
    """
    functions = {each.name: each for each in ast.walk(agent) if isinstance(each, Function) and each is not agent}
    functions |= {each.name: each for each in module.body if isinstance(each, Function) and each.name not in functions}
    classes = {each.name: each for each in module.body if isinstance(each, ast.ClassDef)}
    held = {name for name, value in outer.items() if _is_container(value)}
    left: list[tuple[list[ast.AST], int]] = [([*_inner(statement)], CALLS_MOST)]
    seen = set[int]()
    while left:
        nodes, depth = left.pop()
        for call in (each for each in nodes if isinstance(each, ast.Call)):
            of, function = _method(call, outer, classes)
            if isinstance(call.func, ast.Name):
                function = functions.get(call.func.id)
            if function is not None and depth and id(function) not in seen:
                seen.add(id(function))
                left.append(([*ast.walk(function)], depth - 1))
                yield from _changed_by(function, held, of)


def _changed_by(function: Function, held: set[str], of: str) -> Iterator[str]:
    """Yield the names of outer variables that a function changes.

    Args:
        function: function that the loop calls
        held: names of containers outside the function
        of: if the function is a method, the caller's variable with the method's object; else ""
    """
    nodes = list(ast.walk(function))
    declared = _names_of(function, ast.Global, ast.Nonlocal)
    own = {each.arg for each in nodes if isinstance(each, ast.arg)} | _stored(nodes) - declared
    read = dict.fromkeys(_first_reads(nodes), 0)
    first = function.args.args[0].arg if of and function.args.args else ""
    for each in nodes:
        if isinstance(each, ast.stmt):
            yield from sorted({*_rebound(each, read)} & declared | {*_changed(each), *_advanced(each)} & (held - own))
            for root, text in _attributes(each, nodes):
                if root == first:
                    yield f"{of}{text.removeprefix(first)}"
                elif root not in own:
                    yield text


def _method(
    call: ast.Call, outer: dict[str, ast.expr], classes: dict[str, ast.ClassDef]
) -> tuple[str, Function | None]:
    """Return the variable before the dot of a method call, and the method.

    The method is None unless the variable gets its object outside the loop, from a class of the module.
    """
    if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
        return "", None
    name, wanted = call.func.value.id, call.func.attr
    made = outer.get(name)
    kind = classes.get(made.func.id) if isinstance(made, ast.Call) and isinstance(made.func, ast.Name) else None
    methods = (each for each in (kind.body if kind else ()) if isinstance(each, Function) and each.name == wanted)
    return name, next(methods, None)


def _helpers(function: Function, module: ast.Module, stream: str) -> Iterator[tuple[Function, str]]:
    """Yield each module function called with the stream, as `pairs(stream)`, and its parameter for the stream."""
    functions = {each.name: each for each in module.body if isinstance(each, Function)}
    for call in ast.walk(function):
        helper = functions.get(call.func.id) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else None
        if helper is not None and isinstance(call, ast.Call):
            for given, parameter in zip(call.args, helper.args.args, strict=False):
                if any(isinstance(each, ast.Name) and each.id == stream for each in ast.walk(given)):
                    yield helper, parameter.arg


def _enumerated(node: ast.stmt, stream: str) -> Iterator[str]:
    """Yield the text `STREAM.enumerate()` if the statement is an `async for` over that call."""
    called = node.iter.func if isinstance(node, ast.AsyncFor) and isinstance(node.iter, ast.Call) else None
    if isinstance(called, ast.Attribute) and called.attr == "enumerate":
        if any(isinstance(each, ast.Name) and each.id == stream for each in ast.walk(called)):
            yield f"{stream}.enumerate()"


def _first_reads(nodes: Iterable[ast.AST]) -> dict[str, int]:
    """Return the first line that reads each variable."""
    found: dict[str, int] = {}
    for each in nodes:
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
            found[each.id] = min(each.lineno, found.get(each.id, each.lineno))
    return found


def _loops(agent: Function, stream: str) -> Iterator[ast.AsyncFor]:
    """Yield the loops over an agent's events: those that name the stream; without any, all asynchronous loops."""
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


def _inner(node: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a statement, but not the expressions of statements nested in it."""
    left: list[ast.AST] = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
    while left:
        each = left.pop()
        if isinstance(each, ast.expr):
            yield each
        left += ast.iter_child_nodes(each)


def _rebound(node: ast.stmt, read: dict[str, int]) -> Iterator[str]:
    """Yield the variables that a statement sets, if the loop reads their earlier value.

    read: by variable, the first line of the loop that reads it
    """
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    named = (each.target.id for each in _inner(node) if isinstance(each, ast.NamedExpr))
    bound = (name for name, _ in _bound(node))
    yield from (name for name in (*bound, *named) if name in read and read[name] <= node.lineno)


def _changed(node: ast.stmt) -> Iterator[str]:
    """Yield the variables with a container that the statement changes."""
    if isinstance(node, ast.Assign | ast.Delete):
        targets = node.targets
    else:
        targets = [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []
    changed = [each.value for each in targets if isinstance(each, ast.Subscript)]
    calls = [each.func for each in _inner(node) if isinstance(each, ast.Call)]
    changed += [each.value for each in calls if isinstance(each, ast.Attribute) and each.attr in CHANGES]
    for value in changed:
        while isinstance(value, ast.Subscript):
            value = value.value
        if isinstance(value, ast.Name):
            yield value.id


def _advanced(node: ast.stmt) -> Iterator[str]:
    """Yield the variables that a statement changes by a function call, as in `next(numbers)` or `heappush(heap, x)`."""
    for each in _inner(node):
        if isinstance(each, ast.Call) and each.args and isinstance(each.args[0], ast.Name):
            name = each.func.attr if isinstance(each.func, ast.Attribute) else getattr(each.func, "id", "")
            if name in CHANGERS:
                yield each.args[0].id


def _attributes(node: ast.stmt, nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield the attributes that a statement sets from an earlier value, or changes as containers.

    Each item is (variable at the attribute's beginning, text of the attribute), such as ("self", "self.count").

    nodes: all nodes of the loop, which may read the attribute
    """
    changed: list[ast.expr] = []
    if isinstance(node, ast.AugAssign):
        changed.append(node.target)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            text = ast.unparse(target) if isinstance(target, ast.Attribute) else ""
            loads = (each for each in nodes if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load))
            if text and any(ast.unparse(each) == text for each in loads):
                changed.append(target)
    calls = (each.func for each in _inner(node) if isinstance(each, ast.Call))
    changed += [each.value for each in calls if isinstance(each, ast.Attribute) and each.attr in GROWS]
    for each in changed:
        root = each
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(each, ast.Attribute) and isinstance(root, ast.Name):
            yield root.id, ast.unparse(each)


def _is_container(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return name in CONTAINERS
    return isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp)
