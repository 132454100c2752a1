"""The plain installation: what works in it, what names its extra, and that no import was forgotten."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from kafka_ratchet.app.cli import run
from kafka_ratchet.app.extras import OTHER_EXTRAS, WORKER_EXTRAS, missing_extra
from kafka_ratchet.spark_sink.cli import main as sink_main
from kafka_ratchet.spark_sink.extras import SINK_EXTRAS
from tests.folders import ROOT, package_files, python_files

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = SINK_EXTRAS | WORKER_EXTRAS | OTHER_EXTRAS
BROUGHT_BY = {
    "attrs": "confluent-kafka",
    "google": "confluent-kafka",
    "httpx2": "confluent-kafka",
    "jsonschema": "confluent-kafka",
    "referencing": "confluent-kafka",
    "jinja2": "aiohttp-jinja2",
    "markupsafe": "aiohttp-jinja2",
    "markdown_it": "rich",
    "mode": "faust-streaming",
    "py4j": "pyspark",
    "pydantic": "pydantic-settings",
    "pydantic_core": "pydantic-settings",
    "sqlalchemy": "pyiceberg",
    "yarl": "aiohttp",
}
"""Packages that come with another one, which is the one listed in pyproject.toml."""
LOOKED_FOR = {"matplotlib", "pytest"}
"""Used where they happen to be installed: `ratchet survey --plot`, and the plugin with fixtures for pytest."""

WITHOUT_EXTRAS = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *where: None if name in {names} else find(name, *where)  # as if not installed
from kafka_ratchet.app.cli import run
for arguments in {commands}:
    print("==", run(arguments), flush=True)
"""


def listed(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=~!;\s]", each, maxsplit=1)[0] for each in requirements}


def third_party() -> Iterator[tuple[str, str]]:
    for path in [*package_files(), *python_files("kafka_ratchet")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in (each.partition(".")[0] for each in names):
                if name not in sys.stdlib_module_names and name != "kafka_ratchet":
                    yield name, f"{path.relative_to(ROOT)}:{node.lineno}"


def test_every_import_is_a_dependency_or_in_the_extra_that_is_named_for_it() -> None:
    distributions = {
        name: {each.replace("_", "-").lower() for each in found} for name, found in packages_distributions().items()
    }
    plain = listed(PROJECT["dependencies"])
    extras = {extra: listed(packages) for extra, packages in PROJECT["optional-dependencies"].items()}
    wrong = []
    for name, where in third_party():
        brought_by = {BROUGHT_BY[name]} if name in BROUGHT_BY else distributions.get(name, set())
        allowed = extras[EXTRAS[name]] if name in EXTRAS else plain
        if name not in LOOKED_FOR and not brought_by & allowed:
            wrong.append(f"{where}: {name}")
    assert not wrong, "\n".join(wrong)


def test_the_extras() -> None:
    extras = PROJECT["optional-dependencies"]
    assert set(extras) == {
        "worker",
        "spark",
        "postgres",
        "duckdb",
        "mysql",
        "iceberg",
        "registry",
        "verify",
        "otel",
        "all",
    }
    assert extras["all"] == [f"kafka-ratchet[{','.join(sorted(set(extras) - {'all'}, key=list(extras).index))}]"]
    # `verify` brings packages of other extras together, and names itself where one is missing.
    assert set(EXTRAS.values()) == set(extras) - {"all", "verify"}


def without_extras(commands: list[list[str]], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RATCHET_")}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS.format(names=sorted(EXTRAS), commands=commands)],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"} | variables,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_the_plain_installation_publishes_and_lists_producers(
    broker: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=1)
    (tmp_path / "events.ndjson").write_text('{"n": 1}\n{"n": 2}\n')
    (tmp_path / "ratchet.toml").write_text(
        f'app = "{topic}"\nbootstrap = "{broker}"\n[streams.orders]\ninput = "{topic}"\noutput = "{topic}.out"\n'
        f'dead_letters = "{topic}.dead"\nidentity = "producer"\n'
    )
    publish = ["publish", "events.ndjson", "--producer", topic]
    done = without_extras([["--help"], ["--version"], publish, ["producers", "--json"]], tmp_path)
    assert done.stdout.count("== 0") == 4, done.stdout + done.stderr
    (page,) = [each for each in json.loads(done.stdout.splitlines()[-2])["topics"] if each["topic"] == topic]
    assert [(each["name"], each["published_records"]) for each in page["producers"]] == [(topic, 2)]
    assert page["problems"] == ["the workers' records are not shown; that needs: pip install 'kafka-ratchet[worker]'"]


@pytest.mark.parametrize("command", ["worker", "web", "tables", "verify", "setup"])
def test_a_command_without_its_extra_is_one_sentence(command: str, broker: str, tmp_path: Path) -> None:
    (tmp_path / "ratchet.toml").write_text(
        f'bootstrap = "{broker}"\n[streams.orders]\ninput = "in"\noutput = "out"\ndead_letters = "dead"\n'
    )
    done = without_extras([[command]], tmp_path)
    assert done.stdout == "== 2\n"
    assert re.fullmatch(
        r"ratchet: this needs the package \w+, which is not installed: pip install 'kafka-ratchet\[worker\]'\n",
        done.stderr,
    )


def raising(name: str) -> Callable[..., None]:
    def command(*_: object, **__: Any) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    return command


@pytest.mark.parametrize("name", ["their_module", "faust.no_such", "kafka_ratchet.no_such", None])
def test_what_no_extra_brings_keeps_its_traceback(name: str | None) -> None:
    assert missing_extra(ModuleNotFoundError("gone", name=name)) is None


def test_a_command_that_lacks_what_no_extra_brings_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_ratchet.app.cli.cli", raising("their_module"))
    with pytest.raises(ModuleNotFoundError):
        run(["setup"])


@pytest.mark.parametrize(("package", "extra"), [("pyspark", "spark"), ("deltalake", "spark"), ("psycopg", "postgres")])
def test_the_job_by_itself_names_the_extra(
    package: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kafka_ratchet.spark_sink.cli._run", raising(package))
    words = ["--bootstrap=127.0.0.1:1", "--topic=t", "--name=n", "--path=p", "--columns=a string"]
    assert sink_main(words) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"refused: this needs the package {package}, which is not installed: pip install 'kafka-ratchet[{extra}]'"
    )


def test_the_version_of_a_clone_is_its_projects(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"ratchet {PROJECT['version']}\n"


def test_vacuum_without_the_library_of_its_store_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.setenv("RATCHET_SINK__PATH", str(tmp_path))
    monkeypatch.delenv("RATCHET_CONFIG", raising=False)
    assert run(["sink", "vacuum"]) == 2
    assert "pip install 'kafka-ratchet[spark]'" in capsys.readouterr().err
