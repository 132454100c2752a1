"""Gate for the size and the order of the code: what is too large, too small or in a circle only becomes less.

`python -m tests.test_house` prints today's offenders. A function past a bound is listed here with its reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Final

import pytest

from tests.folders import ROOT, TOOLS, package_files, python_files

LONGEST_FUNCTION: Final = 60
"""Lines, with the docstring."""
MOST_BRANCHES: Final = 15
"""Ways through a function, as McCabe counts them, without those of functions inside."""
MOST_PARAMETERS: Final = 7
"""Without `self` and `cls`."""
SMALLEST_MODULE: Final = 60
"""Lines. A smaller module with one importer belongs to it, or its docstring has a line after `SEPARATE`."""
SEPARATE: Final = "\nSeparate module: "
MOST_FILES: Final = 25
"""Python files of a folder, without its folders."""
BRANCHES: Final = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.match_case,
    ast.comprehension,
)
Function = ast.FunctionDef | ast.AsyncFunctionDef
LEFT: Final = {"small module with one importer": 0, "folder with too many files": 1, "circle of two folders": 0}
"""Offenders of the other rules, at most: lower them after a clean-up."""
EXCEPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "command: each option is a parameter, with its type and help": (
        "app/cli/dead_letters.py replay",
        "app/cli/dead_letters.py show",
        "app/cli/forget.py forget",
        "app/cli/publish.py publish",
        "app/cli/reader.py resume",
        "app/cli/reader.py status",
        "app/cli/repair.py repair",
        "app/cli/resume.py resume",
        "app/cli/sink.py resume",
        "app/cli/sink.py run",
        "app/cli/state.py import_",
        "app/cli/status.py status",
        "app/cli/survey.py survey",
        "app/cli/tables.py tables",
        "app/cli/verify.py verify",
        "app/cli/why.py why",
        "bench/cli.py compare",
        "bench/cli.py recovery",
        "bench/cli.py run",
        "faults/cli.py everything",
        "faults/cli.py sink",
    ),
    "compiled pass: its arrays are parameters, and a call between passes costs time": (
        "agents/kernels.py write_headers",
        "app/survey/json_check.py is_plain",
        "app/survey/kernels.py _fields_of",
        "app/survey/kernels.py find_fields",
        "app/survey/seen.py classify",
        "app/survey/seen.py order",
        "app/verify/columns/exact.py same_records",
        "app/operations/recounting.py count_passing",
        "tables/activity.py tally",
        "tables/map/aging.py keep",
        "tables/map/aging.py quiet",
        "tables/map/aging.py touch",
        "tables/map/entries.py _read_extras",
        "tables/map/entries.py load",
        "tables/map/entries.py write_entries",
        "rule/kernels.py find",
        "rule/kernels.py insert",
        "rule/kernels.py judge",
        "rule/kernels.py locate",
        "tables/map/moves.py absent",
        "tables/map/moves.py rehash",
        "rule/windows.py judge",
        "transport/batch/chunk.py read_chunk",
        "transport/batch/dropped.py append_headers",
        "transport/batch/kernels.py read_records",
        "transport/batch/rows.py write_rows",
        "transport/publishing/encode.py _by_partition",
        "transport/publishing/encode.py _write",
    ),
    "runs in Spark's executors: pyspark sends one function by value, with all that it calls": (
        "spark_sink/files/parquet.py _task",
        "spark_sink/files/parquet.py _task.write",
        "spark_sink/files/statistics.py statistics_maker",
        "spark_sink/files/statistics.py statistics_maker.make",
        "spark_sink/rows/avro/task.py reader",
        "spark_sink/rows/judging/task.py _partitions",
        "spark_sink/rows/registry/protobuf_task.py message.read",
        "spark_sink/stores/postgres/tasks.py _committing",
        "spark_sink/stores/postgres/tasks.py _committing.write",
        "spark_sink/stores/postgres/tasks.py commit_partitions",
    ),
    "terminal output: a line for each figure to show": (
        "app/cli/verify.py _show",
        "app/cli/verify.py _show_results",
    ),
    "table in the form of branches: one for each kind, type or option": (
        "app/status/problems.py _of_stream",
        "app/status/metrics.py _families",
        "app/operations/resume.py Resume._planned",
        "spark_sink/rows/avro/resolution.py Resolution._record",
        "spark_sink/rows/avro/resolution.py default_value",
        "spark_sink/rows/write_mode.py table_schema",
        "spark_sink/spark/kafka_options.py java_options",
    ),
    "verdicts of a comparison: a branch for each way in which two logs differ": (
        "app/verify/__init__.py _Comparison._compare",
        "app/verify/decided.py DecidedPartition.compare",
        "app/verify/letters.py Letters.compare",
        "app/verify/results.py ResultTable._read_keyed",
        "app/why/explain.py Explanation._arrivals",
        "app/why/result.py _find",
    ),
    "answers of several workers and of Kafka: a branch for each that may be missing": (
        "app/status/cluster_view.py ClusterView._ask",
        "app/status/cluster_view.py ClusterView.lookup",
        "app/status/cluster_view.py ClusterView.own_table",
        "app/status/own_tables.py merge_tables",
    ),
    "steps in a fixed order: what follows depends on every one before": (
        "app/verify/__init__.py _verify",
        "app/worker/topics.py prepare",
        "spark_sink/job/first_unread.py first_unread_timestamps",
        "spark_sink/job/structured.py run_structured",
        "spark_sink/rows/columns.py rows",
        "transport/lane.py Lane._take_over",
    ),
    "constructor or function with keywords: each is a setting or a part that the caller makes": (
        "app/status/server.py StatusServer.__init__",
        "app/verify/columns/choice.py ColumnComparison.__init__",
        "app/verify/columns/exact.py _look",
        "app/verify/columns/exact.py exact_partitions",
        "app/verify/compare.py ExpectedPartition.__init__",
        "app/verify/policies.py check_intervals",
        "app/verify/replay/partition.py ReplayedPartition.__init__",
        "app/verify/state.py StateWriter.add",
        "app/worker/application.py Application.__init__",
        "app/worker/stream.py Stream.__init__",
        "bench/recovery.py recovery",
        "app/faust_host/producer.py send_at_once.send",
        "faults/environment.py Environment.__init__",
        "faults/sink.py _StoreFaults.__init__",
        "faults/sink_environment.py SinkEnvironment.__init__",
        "producers/named.py NamedProducer.__init__",
        "reader/reader.py Reader.__init__",
        "spark_sink/files/parquet.py _written",
        "spark_sink/files/parquet.py write_partitioned_files",
        "spark_sink/stores/table_store.py TableStore.__init__",
        "tables/committed_partition.py CommittedPartition.__init__",
        "tables/partition.py SequencePartition.__init__",
        "tables/store.py Store.write",
        "tables/table.py Sequences.__init__",
        "transport/batch/chunk.py Heads._check",
        "transport/client/cluster.py Cluster.fetch",
        "transport/lane.py Lane.__init__",
        "transport/move.py PartitionMove.__init__",
        "transport/publishing/producer.py BatchProducer.__init__",
        "transport/publishing/sender.py BatchSender.__init__",
    ),
}
"""Functions past a bound, by reason."""


@cache
def sources() -> dict[Path, ast.Module]:
    """Return the product's modules and those of its tools, by path."""
    paths = [*package_files(), *python_files(*TOOLS)]
    return {path.relative_to(ROOT): ast.parse(path.read_text("utf-8")) for path in paths}


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield the functions of a module with their names, those of classes and functions too."""
    for node in ast.iter_child_nodes(tree):
        name = f"{prefix}{node.name}" if isinstance(node, Function | ast.ClassDef) else prefix
        if isinstance(node, Function):
            yield name, node
        yield from functions(node, f"{name}." if name != prefix else prefix)


def complexity(function: Function) -> int:
    """Count the ways through a function."""
    found, ahead = 1, list(ast.iter_child_nodes(function))
    while ahead:
        node = ahead.pop()
        if not isinstance(node, Function | ast.ClassDef):
            found += isinstance(node, BRANCHES)
            ahead += ast.iter_child_nodes(node)
    return found


def parameters(function: Function) -> int:
    """Count the parameters that a caller gives."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(each.arg not in ("self", "cls") for each in named)


def name_of(path: Path) -> str:
    """Return the name of a module from the root of the repository."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.Module) -> set[str]:
    """Return the modules that may be meant by the imports of one, those in functions too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("kafka_ratchet.") for name in found}


@cache
def importers() -> dict[str, set[str]]:
    """Return the modules that import each."""
    found: dict[str, set[str]] = {name_of(path): set() for path in sources()}
    for path, tree in sources().items():
        for name in imports(tree) & found.keys() - {name_of(path)}:
            found[name].add(name_of(path))
    return found


def circles(arrows: dict[str, set[str]]) -> list[str]:
    """Return the pairs that reach each other."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        ahead = [start]
        while ahead:
            new = arrows.get(ahead.pop(), set()) - found
            found |= new
            ahead += new
        return found

    reach = {name: reached(name) for name in arrows}
    return [f"{a} - {b}" for a, b in combinations(sorted(arrows), 2) if b in reach[a] and a in reach[b]]


@cache
def offenders() -> dict[str, list[str]]:
    """Return what breaks each rule, by name."""
    every = [(f"{path} {name}", one) for path, tree in sources().items() for name, one in functions(tree)]
    lengths = {where: (one.end_lineno or one.lineno) - one.lineno + 1 for where, one in every}
    sizes = {path: len((ROOT / path).read_text("utf-8").splitlines()) for path in sources()}
    folders: dict[Path, int] = {}
    arrows: dict[str, set[str]] = {}
    for path in sources():
        folders[path.parent] = folders.get(path.parent, 0) + 1
        for importer in importers()[name_of(path)]:
            arrows.setdefault(importer.split(".")[0], set()).add(path.with_suffix("").parts[0])
    return {
        "function that is too long": [
            f"{where}: {length}" for where, length in lengths.items() if length > LONGEST_FUNCTION
        ],
        "function with too many branches": [
            f"{where}: {complexity(one)}" for where, one in every if complexity(one) > MOST_BRANCHES
        ],
        "function with too many parameters": [
            f"{where}: {parameters(one)}" for where, one in every if parameters(one) > MOST_PARAMETERS
        ],
        "small module with one importer": [
            f"{path}: {size}, imported by {next(iter(importers()[name_of(path)]))}"
            for path, size in sizes.items()
            if size < SMALLEST_MODULE
            and len(importers()[name_of(path)]) == 1
            and SEPARATE not in (ast.get_docstring(sources()[path]) or "")
            and not path.stem.startswith("__")
        ],
        "folder with too many files": [f"{folder}: {count}" for folder, count in folders.items() if count > MOST_FILES],
        "circle of two folders": circles(arrows),
    }


def test_functions_past_a_bound_are_listed_with_a_reason() -> None:
    now = offenders()
    past = {offender.rsplit(": ", 1)[0] for rule, found in now.items() if rule not in LEFT for offender in found}
    listed = [name for names in EXCEPTIONS.values() for name in names]
    assert not past - set(listed), "shorten it, or say why not in EXCEPTIONS"
    assert not set(listed) - past, "take it out of EXCEPTIONS: it keeps the bounds"
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("rule", LEFT)
def test_splinters_and_circles_only_become_fewer(rule: str) -> None:
    found = offenders()[rule]
    assert len(found) <= LEFT[rule], f"{rule}: {sorted(found)}"


def written(text: str) -> Function:
    return next(function for _, function in functions(ast.parse(text)))


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        ("def f(): pass", 1),
        ("def f(a):\n if a: pass\n elif a > 1: pass\n else: pass", 3),
        ("def f(a):\n for b in a:\n  while b: b = [c for c in b if c]", 4),
        ("async def f():\n try: pass\n except OSError: pass\n def g():\n  if 1: pass", 2),
    ],
)
def test_ways_through_a_function_are_counted(text: str, ways: int) -> None:
    assert complexity(written(text)) == ways


def test_parameters_are_counted_without_the_object() -> None:
    assert parameters(written("def f(self, a, /, b, *, c=1, **more): pass")) == 3


def test_a_circle_through_a_third_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a - b", "a - c", "b - c"]


if __name__ == "__main__":
    for rule, found in offenders().items():
        print(f"{rule}: {len(found)}", *sorted(found), sep="\n  ")
