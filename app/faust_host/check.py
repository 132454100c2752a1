"""Findings about a Faust program, from its source alone.

A statement is exact (its effects happen exactly once), exact under a condition, or refused.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

from kafka_ratchet.app.faust_host.memory import MEMORY, kept_variables
from kafka_ratchet.app.worker.program import names_in, not_there
from kafka_ratchet.errors import SettingsError

Verdict = Literal["exact", "rule", "refused"]

TABLES: Final = frozenset({"Table", "SetTable", "GlobalTable", "SetGlobalTable"})
GLOBAL: Final = frozenset({"GlobalTable", "SetGlobalTable"})
WINDOWS: Final = frozenset({"tumbling", "hopping", "using_window"})
OUTSIDE: Final = {
    "timer": "timer",
    "crontab": "crontab",
    "task": "task",
    "command": "command",
    "page": "page",
    "table_route": "page",
    "topic_route": "page",
    "on_rebalance": "signal",
}
"""Names of the decorators that make a function run outside transactions."""
AGENTS: Final = frozenset({"agent", "actor"})
NO_ACK: Final = frozenset({"noack", "noack_take"})
TAKES: Final = frozenset({"take", "take_events", "take_with_timestamp"})
JOINS: Final = frozenset({"combine", "left_join", "inner_join", "outer_join"})
ASKS: Final = frozenset({"ask", "ask_nowait", "map", "kvmap", "join", "kvjoin"})
TASKS: Final = frozenset({"create_task", "ensure_future", "gather", "wait_for"})
AWAY: Final = frozenset({"run_in_executor", "to_thread", "add_future", "call_soon", "call_later"})
"""Names of methods that run a function outside the agent. The object of the method does not matter."""

ASK: Final = "consumers see the request only after a commit, which would have to wait for the answer"
WINDOW: Final = "windows go by the events' time, and close in order when a record's time passes their end"
TAKE: Final = "a list ends with the batch of its partition; `within` is ignored"
OUT: Final = "runs in no transaction: Faust's own producer sends, and tables are read as committed"
TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
READ_ONLY: Final = "each worker reads the table's topic; a look-up is not part of the transaction"
OPERATIONS: Final = (
    "its topic has operations on sets, so that a look-up finds nothing. Have an agent send whole sets to a topic, and "
    "read that topic with app.GlobalTable"
)
FROM_EARLIEST: Final = "a partition without a committed offset begins with its first record, so that none is lost"
PARTITIONS: Final = "the function runs once for each partition"


class Finding(NamedTuple):
    """Finding about one statement of a Faust program.

    Attributes:
        verdict: exact, rule (exact under a condition) or refused
        file: path of the module
        line: number of the line
        what: the statement
        why: the condition, or the reason of the refusal
    """

    verdict: Verdict
    file: str
    line: int
    what: str
    why: str = ""

    @property
    def heading(self) -> str:
        """Return the verdict as the command prints it."""
        return {"exact": "exact", "rule": "by this rule", "refused": f"refused at line {self.line}"}[self.verdict]


@dataclass
class DefinedNames:
    """Topics, tables, agents and functions that a program's modules define, by name."""

    topics: set[str] = field(default_factory=set)
    channels: set[str] = field(default_factory=set)
    tables: dict[str, str] = field(default_factory=dict)
    """Kind of each table, by the table's name."""
    expiring: set[str] = field(default_factory=set)
    """Names of the tables with windows that expire."""
    agents: dict[str, ast.AsyncFunctionDef] = field(default_factory=dict)
    reads: dict[str, str] = field(default_factory=dict)
    """Name of each agent's topic, by agent. An agent is missing here if its decorator names no topic."""
    functions: dict[str, ast.AsyncFunctionDef] = field(default_factory=dict)
    """Async functions of all modules by name."""


def check_program(text: str, folder: Path | None = None) -> list[Finding]:
    """Return the findings in a program's source.

    Args:
        text: MODULE:NAME, as `shop:app`
        folder: folder to search first for the module; None: the working folder

    Raises:
        SettingsError: the module does not exist, or cannot be read.
    """
    return check_files(modules_of(text, folder or Path.cwd()))


def check_files(paths: Iterable[Path]) -> list[Finding]:
    """Return the findings in the source of modules, by module and line.

    Raises:
        SettingsError: a file cannot be read.
    """
    trees = {path: _parsed(path) for path in paths}
    names = DefinedNames()
    for tree in trees.values():
        _define(tree, names)
    found = [finding for path, tree in trees.items() for finding in _Checker(path, tree, names).findings()]
    return sorted({(each.file, each.line, each.what): each for each in found}.values(), key=lambda each: each[1:3])


def refuse_shown(paths: Iterable[Path]) -> None:
    """Refuse a program with statements that cannot have their effects exactly once.

    Raises:
        SettingsError: the program has such statements; the message has one line for each.
    """
    wrong = [each for each in check_files(paths) if each.verdict == "refused"]
    if wrong:
        raise SettingsError(
            "\n".join(f"{Path(each.file).name}:{each.line}: {each.what} cannot be exact: {each.why}" for each in wrong)
        )


def topics_named(paths: Iterable[Path]) -> set[str]:
    """Return the topics that a program names as text in calls, such as `app.send("alerts", ...)`."""
    found: set[str] = set()
    for path in paths:
        functions = (
            each for each in ast.walk(_parsed(path)) if isinstance(each, ast.AsyncFunctionDef | ast.FunctionDef)
        )
        for each in (inner for function in functions for inner in ast.walk(function)):
            if not isinstance(each, ast.Call) or not isinstance(each.func, ast.Attribute):
                continue
            receiver = each.func.value
            name = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
            is_app = name.endswith("app")
            if each.func.attr in ("forward", "echo") or (is_app and each.func.attr in ("send", "topic")):
                texts = each.args if each.func.attr in ("topic", "echo") else each.args[:1]
                found |= {str(text.value) for text in texts if isinstance(text, ast.Constant)}
    return {name for name in found if TOPIC_NAME.fullmatch(name)}


def in_memory(paths: Iterable[Path]) -> list[str]:
    """Return a sentence on each variable that keeps a value between an agent's events.

    A restart loses such a value.
    """
    return [
        f"{Path(each.file).name}:{each.line}: {each.what} is {each.why}"
        for each in check_files(paths)
        if each.why == MEMORY
    ]


def modules_of(text: str, folder: Path) -> list[Path]:
    """Return the files of a program: its module, and the modules of the program that it imports."""
    module, _ = names_in(text, "--faust")
    roots = [folder, *(Path(each or ".") for each in sys.path)]
    first = _find(module, roots)
    if first is None:
        raise not_there(text, "--faust", module, folder)
    found, left = dict[Path, None](), [(first, module)]
    while left:
        path, name = left.pop(0)
        if path in found:
            continue
        found[path] = None
        package = _find(name.partition(".")[0], roots) if path is first and _discovers(_parsed(path)) else None
        if path.name == "__init__.py" and "." not in name:
            package = path
        if package is not None and package.name == "__init__.py":  # Faust discovers the modules of its package
            left += [(each, name) for each in sorted(package.parent.rglob("*.py")) if "test" not in each.stem]
        for wanted in _imports(_parsed(path), name, is_package=path.name == "__init__.py"):
            other = _find(wanted, [first.parent if "." not in module else folder, folder])
            if other is not None:
                left.append((other, wanted))
    return list(found)


def _discovers(tree: ast.Module) -> bool:
    """Return True if an app of a module discovers the modules of its package."""
    found = (_argument(each, "autodiscover") for each in ast.walk(tree) if isinstance(each, ast.Call))
    return any(each is not None and not (isinstance(each, ast.Constant) and not each.value) for each in found)


def _find(module: str, roots: Iterable[Path]) -> Path | None:
    inner = Path(*module.split("."))
    for root in roots:
        for path in (root / inner.with_suffix(".py"), root / inner / "__init__.py"):
            if path.is_file():
                return path.resolve()
    return None


def _imports(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[str]:
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".") if node.level and package else []
            base = base[: len(base) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            if name:
                yield name
            yield from (f"{name}.{alias.name}" if name else alias.name for alias in node.names)


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        raise SettingsError(f"{path}: cannot be read: {error}") from None


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of a chain such as `app.Table(...).tumbling(...)`, the last one first."""
    while isinstance(node, ast.Call):
        yield node
        node = node.func.value if isinstance(node.func, ast.Attribute) else node.func


def _called(call: ast.Call) -> str:
    """Return the name of the called function or method."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _receiver(call: ast.Call) -> str:
    value = call.func.value if isinstance(call.func, ast.Attribute) else None
    return value.id if isinstance(value, ast.Name) else ""


def _argument(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


class RegisteredFunction(NamedTuple):
    """Function that a call `app.agent(topic)(function)` registers as an agent, instead of a decorator.

    Attributes:
        name: name of the function
        options: the call of `agent`
        given: arguments that `functools.partial` gives before the stream
    """

    name: str
    options: ast.Call
    given: list[ast.expr]


def _bound(node: ast.AST) -> RegisteredFunction | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Call) or len(node.args) != 1:
        return None
    if not isinstance(node.func.func, ast.Attribute) or node.func.func.attr not in AGENTS:
        return None
    target, *given = [node.args[0]]
    if isinstance(target, ast.Call) and _called(target) == "partial" and target.args:
        target, *given = target.args
    name = target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""
    return RegisteredFunction(name, node.func, given)


def _define(tree: ast.Module, names: DefinedNames) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef):
            names.functions.setdefault(node.name, node)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            _assign(node.targets[0].id, node.value, names)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            _assign(node.target.id, node.value, names)
        elif (bound := _bound(node)) is not None and bound.name in names.functions:
            names.agents[bound.name] = names.functions[bound.name]
            if bound.options.args and isinstance(bound.options.args[0], ast.Name):
                names.reads[bound.name] = bound.options.args[0].id
        elif isinstance(node, ast.AsyncFunctionDef) and (decorator := _decorator(node, AGENTS)):
            names.agents[node.name] = node
            if isinstance(decorator, ast.Call) and decorator.args and isinstance(decorator.args[0], ast.Name):
                names.reads[node.name] = decorator.args[0].id


def _assign(name: str, value: ast.expr, names: DefinedNames) -> None:
    calls = list(_calls(value))
    kinds = [_called(call) for call in calls]
    if "topic" in kinds:
        names.topics.add(name)
    if "channel" in kinds:
        names.channels.add(name)
    if kind := next((each for each in kinds if each in TABLES), None):
        names.tables[name] = kind
        if any(_called(call) in WINDOWS and _expires(call) for call in calls):
            names.expiring.add(name)
    elif calls and (source := _root(calls[-1])) in names.tables:  # table = counts.relative_to_now()
        names.tables[name] = names.tables[source]
        if source in names.expiring:
            names.expiring.add(name)


def _root(call: ast.Call) -> str:
    value: ast.AST = call.func
    while isinstance(value, ast.Attribute):
        value = value.value
    return value.id if isinstance(value, ast.Name) else ""


def _expires(call: ast.Call) -> bool:
    most = 1 if _called(call) == "tumbling" else 2
    return _argument(call, "expires") is not None or len(call.args) > most


def _decorator(node: ast.AsyncFunctionDef | ast.FunctionDef, wanted: Iterable[str]) -> ast.expr | None:
    for each in node.decorator_list:
        name = _called(each) if isinstance(each, ast.Call) else each.attr if isinstance(each, ast.Attribute) else ""
        if name in wanted:
            return each
    return None


def _stream_of(node: ast.AsyncFunctionDef, given: Sequence[ast.expr]) -> str:
    """Return the name of an agent's stream. given: arguments that `functools.partial` gives before it."""
    names = [each.arg for each in node.args.args]
    names = names[1:] if names[:1] == ["self"] else names
    return names[len(given)] if len(names) > len(given) else ""


class _Checker:
    """Checker of one module, which collects the findings."""

    def __init__(self, path: Path, tree: ast.Module, names: DefinedNames) -> None:
        self._file, self._tree, self._names = str(path), tree, names

    def _at(self, node: ast.expr | ast.stmt, verdict: Verdict, what: str, why: str = "") -> Finding:
        return Finding(verdict, self._file, node.lineno, what, why)

    def findings(self) -> Iterator[Finding]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call):
                yield from self._call(node)
                if (bound := _bound(node)) is not None:
                    yield from self._bound_agent(bound)
            elif isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
                if isinstance(node, ast.AsyncFunctionDef) and (decorator := _decorator(node, AGENTS)):
                    yield from self._agent(node, decorator)
                elif outside := next((each for each in OUTSIDE if _decorator(node, {each})), None):
                    yield from self._outside(node, OUTSIDE[outside])
        yield from self._shared()

    def _call(self, call: ast.Call) -> Iterator[Finding]:
        name = _called(call)
        if name == "App":
            if _argument(call, "producer_partitioner") is not None:
                why = "Ratchet chooses the partition of a key as Kafka's own producers do (murmur2)"
                yield self._at(call, "refused", "producer_partitioner", why)
            reset = _argument(call, "consumer_auto_offset_reset")
            if isinstance(reset, ast.Constant) and reset.value != "earliest":
                yield self._at(call, "refused", f"consumer_auto_offset_reset={reset.value!r}", FROM_EARLIEST)
            for setting in ("processing_guarantee", "stream_publish_on_commit"):
                if _argument(call, setting) is not None:
                    yield self._at(call, "rule", setting, "not used: Ratchet commits in transactions")
        elif name == "topic" and _argument(call, "pattern") is not None:
            yield self._at(call, "refused", "app.topic(pattern=...)", "Ratchet must know the topics before it starts")
        elif name in NO_ACK:
            yield self._at(call, "refused", f"stream.{name}()", "offsets commit with the effects of their records")
        elif name in TABLES:
            yield from self._table(call, name)
        elif name in WINDOWS:
            yield self._at(call, "rule", f"{name} windows", WINDOW)

    def _table(self, call: ast.Call, kind: str) -> Iterator[Finding]:
        first = call.args[0] if call.args else _argument(call, "name")
        label = f"{kind} {ast.unparse(first)}" if first is not None else kind
        if kind == "SetGlobalTable":
            yield self._at(call, "refused", label, OPERATIONS)
        elif kind in GLOBAL:
            yield self._at(call, "rule", label, READ_ONLY)
        elif _argument(call, "changelog_topic") is not None:
            yield self._at(
                call, "rule", label, "each write is also a record of its changelog_topic, in the transaction"
            )
        else:
            yield self._at(call, "exact", label)

    def _bound_agent(self, bound: RegisteredFunction) -> Iterator[Finding]:
        """Yield the findings on `app.agent(topic)(function)`.

        If the function is not found, only the options of `agent` are checked.
        """
        node = self._names.functions.get(bound.name)
        if node is not None:
            yield from self._agent(node, bound.options, bound.given)
        else:
            label = f"agent {bound.name}".rstrip()
            yield from self._in_memory(bound.options, label) or [self._at(bound.options, "exact", label)]

    def _in_memory(self, options: ast.Call, label: str) -> list[Finding]:
        """Return a refusal if the agent reads or fills a channel in memory; else an empty list.

        options: call of `agent` with its options; label: name of the agent, for the finding
        """
        channel = options.args[0] if options.args else _argument(options, "channel")
        if channel is not None and self._is_channel(channel):
            why = "a channel in memory is lost when its worker ends. Give the agent a topic"
            return [self._at(options, "refused", label, why)]
        sinks = _argument(options, "sink")
        if isinstance(sinks, ast.List | ast.Tuple) and any(map(self._is_channel, sinks.elts)):
            why = "the channel in memory is lost when its worker ends. Name a topic as the sink"
            return [self._at(options, "refused", label, why)]
        return []

    def _is_channel(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call):
            return _called(node) == "channel"
        return isinstance(node, ast.Name) and node.id in self._names.channels

    def _agent(
        self, node: ast.AsyncFunctionDef, decorator: ast.expr, given: Sequence[ast.expr] = ()
    ) -> Iterator[Finding]:
        """Yield the findings on an agent. given: arguments that `functools.partial` gives before the stream."""
        options = decorator if isinstance(decorator, ast.Call) else None
        label = f"agent {node.name}"
        if options is not None and (refused := self._in_memory(options, label)):
            yield from refused
            return
        wrong = list(self._in_agent(node, given))
        kept = [
            self._at(line, "rule", f"variable {name} of agent {node.name}", MEMORY)
            for name, line in kept_variables(node, self._tree, _stream_of(node, given))
        ]
        several = options is not None and any(
            _argument(options, each) is not None for each in ("concurrency", "isolated_partitions")
        )
        if several:
            yield self._at(node, "rule", label, PARTITIONS)
        elif options is not None and self._function_sinks(options):
            yield self._at(
                node, "rule", label, "a sink that is a function may be called again for a record after a crash"
            )
        elif not kept and not any(each.verdict == "refused" for each in wrong):
            yield self._at(node, "exact", label)
        yield from kept
        yield from wrong

    def _function_sinks(self, options: ast.Call) -> bool:
        sinks = _argument(options, "sink")
        if not isinstance(sinks, ast.List | ast.Tuple):
            return False
        known = self._names.topics | self._names.agents.keys() | self._names.channels
        return any(
            isinstance(each, ast.Lambda | ast.Name) and getattr(each, "id", "") not in known for each in sinks.elts
        )

    def _in_agent(self, node: ast.AsyncFunctionDef, given: Sequence[ast.expr]) -> Iterator[Finding]:
        names, parameters = self._names, [each.arg for each in node.args.args]
        parameters = parameters[1:] if parameters[:1] == ["self"] else parameters
        stream = _stream_of(node, given)
        channels = names.channels | {
            name for name, each in zip(parameters, given, strict=False) if self._is_channel(each)
        }
        for each in ast.walk(node):
            if isinstance(each, ast.Call):
                name, receiver = _called(each), _receiver(each)
                if name in ASKS and receiver in names.agents:
                    yield self._at(each, "refused", f"{receiver}.{name}() within agent {node.name}", ASK)
                elif name in JOINS or (name == "join" and receiver == stream):
                    why = "Faust's joins are not finished. Keep one side in a table"
                    yield self._at(each, "refused", "a join of streams", why)
                elif name == "add_processor" and receiver == stream and self._steps_later(node, each):
                    why = "the step sends the records as they are. Add the processor after it"
                    yield self._at(each, "refused", "a processor before group_by() or through()", why)
                elif name in TAKES:
                    yield self._at(each, "rule", f"stream.{name}()", TAKE)
                elif name in ("send", "put") and receiver in channels:
                    why = "a channel in memory is lost when its worker ends. Send to a topic"
                    yield self._at(each, "refused", f"{receiver}.{name}() within agent {node.name}", why)
                elif name in ("send", "send_soon", "cast") and self._is_own(node, receiver):
                    why = "the agent would read its own records, for ever"
                    yield self._at(each, "refused", f"{receiver}.{name}() within agent {node.name}", why)
                elif _runs_away(name, receiver):
                    why = "a task, thread or callback that the agent starts neither sends nor writes tables"
                    yield self._at(each, "rule", f"{name}() within agent {node.name}", why)
            elif isinstance(each, ast.BinOp) and isinstance(each.op, ast.BitAnd) and self._is_stream(each, stream):
                yield self._at(each, "refused", "a join of streams", "Faust's joins are not finished")
            elif (table := _written(each)) in names.tables and names.tables[table] in GLOBAL:
                assert isinstance(each, ast.stmt)  # noqa: S101 - an assignment
                yield self._at(each, "refused", f"a write to global table {table}", READ_ONLY)

    @staticmethod
    def _steps_later(node: ast.AsyncFunctionDef, call: ast.Call) -> bool:
        calls = (each for each in ast.walk(node) if isinstance(each, ast.Call) and each.lineno > call.lineno)
        return any(_called(each) in ("group_by", "through") for each in calls)

    def _is_own(self, node: ast.AsyncFunctionDef, receiver: str) -> bool:
        return receiver == node.name or (bool(receiver) and self._names.reads.get(node.name) == receiver)

    @staticmethod
    def _is_stream(node: ast.BinOp, stream: str) -> bool:
        sides = (node.left, node.right)
        return any(
            (isinstance(side, ast.Name) and side.id == stream)
            or (isinstance(side, ast.Call) and _called(side) == "stream")
            for side in sides
        )

    def _outside(self, node: ast.AsyncFunctionDef | ast.FunctionDef, kind: str) -> Iterator[Finding]:
        wrong = []
        for each in ast.walk(node):
            if isinstance(each, ast.Call) and _called(each) == "stream" and isinstance(each.func, ast.Attribute):
                why = "its offsets would commit apart from its effects. Write an agent"
                wrong.append(self._at(each, "refused", f"a stream over a topic in {kind} {node.name}", why))
            elif (table := _written(each)) in self._names.tables:
                assert isinstance(each, ast.stmt)  # noqa: S101 - an assignment
                why = "tables are written in the transaction of an event. Send a record to an agent that writes"
                wrong.append(self._at(each, "refused", f"a write to table {table} in {kind} {node.name}", why))
        yield from wrong or [self._at(node, "rule", f"{kind} {node.name}", OUT)]

    def _shared(self) -> Iterator[Finding]:
        """Yield findings on tables that several agents of this module use."""
        users: dict[str, list[ast.AsyncFunctionDef]] = {}
        here = {node for node in ast.walk(self._tree) if isinstance(node, ast.AsyncFunctionDef)}
        for agent in self._names.agents.values():
            for table in {
                each.id for each in ast.walk(agent) if isinstance(each, ast.Name)
            } & self._names.tables.keys():
                users.setdefault(table, []).append(agent)
        for table, agents in users.items():
            if len(agents) < 2 or agents[0] not in here or self._names.tables[table] in GLOBAL:
                continue
            named = " and ".join(agent.name for agent in agents)
            if table in self._names.expiring:
                why = "its windows expire, and the agents take each batch one after the other. Use it in one agent"
                yield self._at(agents[-1], "refused", f"table {table} in agents {named}", why)
            elif len({self._names.reads.get(agent.name, agent.name) for agent in agents}) > 1:
                why = "their topics meet in one stream, partition by partition"
                yield self._at(agents[-1], "rule", f"table {table} in agents {named}", why)


def _runs_away(name: str, receiver: str) -> bool:
    """Return True if a call runs a function or coroutine outside the agent's own task."""
    return name in AWAY or (name in TASKS and receiver in ("asyncio", "loop", ""))


def _written(node: ast.AST) -> str:
    """Return the name of the variable that a statement changes by key, such as `counts[word] = 1`; else ""."""
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    else:
        targets = node.targets if isinstance(node, ast.Delete) else []
    for target in targets:
        value: ast.AST = target
        while isinstance(value, ast.Subscript):
            value = value.value
            if isinstance(value, ast.Name):
                return value.id
    return ""
