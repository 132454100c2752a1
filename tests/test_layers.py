"""Permitted imports: the packages' order, no circles, and no private name from another package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import kafka_ratchet
from tests.folders import PACKAGES, ROOT, TOOLS, package_files, python_files

ORDER = [
    "errors",
    "producers",
    # On the plain install, like the producer.
    "reader",
    # Kafka's bytes and requests, what is committed, and the lane that brings them together.
    "transport.batch",
    # What a record's verdict is.
    "rule",
    "transport.client",
    "transport.transactions",
    "transport.publishing",
    "transport",
    # Topics read for commands, the page and checks.
    "topic_log",
    "tables.map",
    "tables",
    "agents",
    # The job ships to a Spark cluster without the rest.
    "spark_sink.errors",
    "spark_sink.extras",
    "spark_sink.secrets",
    "spark_sink.topic_ids",
    "spark_sink.log_lines",
    "spark_sink.spark",
    "spark_sink.files",
    "spark_sink.rows",
    "spark_sink.stores",
    "spark_sink.job",
    "spark_sink.targets",
    "spark_sink.library",
    "spark_sink",
    # JSON of documents, which packages below declare.
    "app.inspect.document",
    "app.clone",
    "app.names",
    "app.partitioner",
    "app.mistakes",
    "app.extras",
    "app.version",
    "app.settings_sections",
    "app.sinks",
    "app.streams",
    "app.repartition",
    "app.settings",
    "app.event_loop",
    "app.log_setup",
    "app.processed",
    "app.local",
    "app.status",
    "app.survey",
    "app.worker",
    "app.operations",
    # Faust programs on lanes; Faust itself loads it by its entry points.
    "app.faust_host",
    "app.doctor",
    "app.dead_letters",
    "testing",
    "app.verify",
    "app.repair",
    "app.compare",
    "app.why",
    "app.inspect",
    "app.web",
    "app.demo",
    "app",
    "app.cli",
    "verify",
]
"""Each imports only itself and what stands above it in this list."""

ALONE = {
    "producers": {"errors"},
    "reader": {"errors", "producers"},
    "rule": {"errors", "transport"},
    "spark_sink": {"rule"},
    "topic_log": {"errors", "producers", "transport"},
    "transport": {"errors", "producers"},
}
"""Packages that need nothing of the others but these."""


def modules() -> dict[str, Path]:
    return {name_of(path): path for path in package_files()}


PROSE = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", *(f"{folder}/**/*.py" for folder in (*PACKAGES, *TOOLS)))
    for path in ROOT.glob(pattern)
    if path.name != "own-store.md"  # it names the store that its reader is to write
)


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = modules()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def imports(name: str) -> tuple[tuple[str, str, int], ...]:
    """(module, name in it, line) of each import of ours, those in functions as well."""
    return tuple(_imports(name))


def _imports(name: str) -> Iterator[tuple[str, str, int]]:
    for node in ast.walk(parsed(MODULES[name])):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: a relative import"
            module = (node.module or "").removeprefix("kafka_ratchet").removeprefix(".")
            if (node.module or "").startswith("kafka_ratchet"):
                yield from ((module, alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("kafka_ratchet."):
                    yield alias.name.removeprefix("kafka_ratchet."), "", node.lineno


@cache
def target(module: str, name: str) -> str:
    """The module that an imported name is defined in, through the packages that pass it on."""
    if not module and name in kafka_ratchet.__all__:
        return kafka_ratchet._WHERE[name]
    for _ in range(4):
        inner = f"{module}.{name}" if module else name
        if inner in MODULES:
            return inner
        if MODULES.get(module, Path()).name != "__init__.py":
            return module
        passed_on = [found for found, imported, _ in imports(module) if imported == name]
        if not passed_on:
            return module
        module = passed_on[0]
    return module


@cache
def layer(module: str) -> str:
    """The longest entry of ORDER that the module is in."""
    return max((each for each in ORDER if module == each or module.startswith(f"{each}.")), key=len)


@cache
def arrows() -> list[tuple[str, str, int]]:
    """(module, one that it imports, line). Not at import: every process of the tests collects this file."""
    return sorted(
        (name, target(module, imported), line)
        for name in MODULES
        for module, imported, line in imports(name)
        if module.split(".")[0] in {*PACKAGES, "errors"} or not module
    )


def test_every_module_is_in_a_layer() -> None:
    assert len(MODULES) > 200
    assert {layer(name) for name in MODULES} == set(ORDER)


def test_every_module_is_used() -> None:
    """One that is imported by its tests alone may be tested and yet do nothing: the tree's move once lost an import."""
    used = {other for name, other, _ in arrows() if name != other}
    # kafka_ratchet.spark_sink.stores.registry; `--app`; pytest_plugins
    loaded_by_name = re.compile(
        r"spark_sink\.stores\.\w+\.store|agents\.examples\.\w+|testing\.fixtures|app\.faust_host\.transport"
    )
    assert not [
        name
        for name, path in MODULES.items()
        if name not in used and path.stem not in ("__init__", "__main__") and not loaded_by_name.fullmatch(name)
    ]


def test_nothing_imports_what_stands_above_it() -> None:
    wrong = [
        f"{MODULES[name]}:{line}: {name} ({layer(name)}) imports {other} ({layer(other)})"
        for name, other, line in arrows()
        if ORDER.index(layer(name)) < ORDER.index(layer(other))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", ALONE)
def test_packages_that_stand_alone(package: str) -> None:
    needed = {other.split(".")[0] for name, other, _ in arrows() if name.split(".")[0] == package} - {package}
    assert needed == ALONE[package]


def test_no_file_imports_itself_through_others() -> None:
    # A package's __init__ passes on what its files define; its own imports are those of whoever asks it.
    graph: dict[str, set[str]] = {}
    for name, other, _ in arrows():
        if MODULES[name].name != "__init__.py" and name != other:
            graph.setdefault(name, set()).add(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_private_name_is_used_from_outside_its_package() -> None:
    wrong = [
        f"{MODULES[name]}:{line}: {module}.{imported}"
        for name in MODULES
        for module, imported, line in imports(name)
        if any(part.startswith("_") and not part.startswith("__") for part in [*module.split("."), imported])
        and not name.startswith(module.split("._")[0])
    ]
    assert not wrong, "\n".join(wrong)


NAME = re.compile(r"kafka_ratchet((?:\.\w+)+)")


@pytest.mark.parametrize("path", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_prose_names_is_there(path: Path) -> None:
    """Find the module, and the name in it, of each dotted name in a page, a docstring or a comment."""
    wrong = []
    for found in NAME.finditer(path.read_text("utf-8")):
        parts = found[1].strip(".").split(".")
        known = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in MODULES), 0)
        behind = parts[known : known + 1]
        names = defined(".".join(parts[:known])) if known else kafka_ratchet.__all__
        if behind != ["__file__"] and not {*behind} <= {*names}:
            wrong.append(found[0])
    assert not wrong


@cache
def defined(module: str) -> set[str]:
    """Names that a module has."""
    found: set[str] = set()
    for node in parsed(MODULES[module]).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update(name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
    return found


def test_the_short_names_are_not_imported() -> None:
    """Nothing may be imported under two names: `from tables import` would load a second copy in a clone."""
    short = [
        f"{path}:{node.lineno}"
        for path in python_files(*PACKAGES, *TOOLS, "tests")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom | ast.Import)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        if name.split(".")[0] in {*PACKAGES, "errors"}
    ]
    assert not short
