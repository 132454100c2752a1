"""Modules loaded by the start of a command, and objects left by it: facts, no durations."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kafka_ratchet.app.cli import run
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.worker import process

ENGINE = {"aiohttp", "aiokafka", "confluent_kafka", "faust", "llvmlite", "numba", "numpy", "rocksdict"}
NEVER = {"aiohttp_jinja2", "deltalake", "duckdb", "jinja2", "pandas", "psycopg", "pyarrow", "pyspark"}
ASKED_FOR = {"opentelemetry", "prometheus_client"}
"""Loaded where a setting says so, or with the first scrape."""


def loaded_by(*arguments: str) -> set[str]:
    """Every module that a command imports, as Python itself reports it."""
    told = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "kafka_ratchet", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={name: value for name, value in os.environ.items() if not name.startswith("RATCHET_")},
    )
    return set(re.findall(r"^import time:[ \d]+\|[ \d]+\| +(\S+)$", told.stderr, re.MULTILINE))


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["worker", "--help"], ["verify", "--help"]])
def test_help_loads_no_engine(arguments: list[str]) -> None:
    modules = loaded_by(*arguments)
    assert "kafka_ratchet.app.cli" in modules
    assert not packages(modules) & (ENGINE | NEVER)
    assert "kafka_ratchet.app.settings" not in modules


def test_a_worker_loads_what_it_needs_and_no_more(tmp_path: Path) -> None:
    """Up to the question whether there is a Kafka, which comes when everything is imported."""
    (tmp_path / "ratchet.toml").write_text(
        f"""
app = "start"
bootstrap = "127.0.0.1:1"
kafka_timeout_s = 0.1
state_folder = "{tmp_path / "state"}"

[streams.events]
input = "orders"
output = "unique"
dead_letters = "rejected"
""",
        "utf-8",
    )
    modules = loaded_by("worker", "--config", str(tmp_path / "ratchet.toml"))
    assert {"kafka_ratchet.app.worker.process", "kafka_ratchet.transport.lane"} <= modules
    assert packages(modules) >= ENGINE
    assert not packages(modules) & (NEVER | ASKED_FOR)
    assert "rich.console" not in modules  # structlog asks for `rich`, and is told that there is none
    others = {f"kafka_ratchet.app.{name}" for name in ("web", "verify", "why", "survey", "demo", "doctor")}
    assert not modules & (others | {"kafka_ratchet.app.local.embedded_kafka", "kafka_ratchet.app.worker.processes"})


def test_what_a_start_has_made_is_no_garbage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: list[tuple[bool, int]] = []

    async def served(*_: Any) -> None:
        found.append((gc.isenabled(), gc.get_freeze_count()))

    monkeypatch.setattr(process, "_serve", served)
    gc.disable()
    try:
        process.serve(Settings(state_folder=tmp_path), "127.0.0.1:1", process.PreparedTopics({}, {}))
    finally:
        gc.enable()
        gc.unfreeze()
    ((is_enabled, frozen),) = found
    assert is_enabled
    assert frozen > 10_000


def test_a_worker_that_is_refused_leaves_the_collector_at_work(tmp_path: Path) -> None:
    assert run(["worker", "--config", str(tmp_path / "none.toml")]) == 2
    assert gc.isenabled()
