"""Log lines as JSON: one object a line whatever is logged, with what it belongs to, and without secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from kafka_ratchet.app.cli import run
from kafka_ratchet.app.log_setup import configure
from kafka_ratchet.spark_sink.cli import EXIT_REFUSED, main
from kafka_ratchet.spark_sink.log_lines import JsonFormatter, process_name
from kafka_ratchet.spark_sink.secrets import keep
from kafka_ratchet.transport.correlation import correlate
from kafka_ratchet.transport.lane_spec import LaneSpec

ROOT = Path(__file__).parents[2]
CANARY = 'canary-"9%\\log'
SPEC = LaneSpec("in", 3, "out", "dead", "shop", "shop/in/3", stream="orders")
WHERE = {"stream": "orders", "topic": "in", "partition": 3, "offset": 41, "transaction": "shop/in/3"}

Lines = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _hooks_of_this_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = logging.getLogger()
    handlers = root.handlers[:]
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers


def lines(capfd: pytest.CaptureFixture[str]) -> Lines:
    return [json.loads(line) for line in capfd.readouterr().err.splitlines()]


def test_a_line_is_an_object_with_what_it_belongs_to(capfd: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")
    structlog.get_logger("shop").info("two\nlines", of=np.int64(3), share=float("nan"), by=b"\xff", mine={"a": (1,)})
    correlate(lambda: SPEC.correlation(41))
    try:
        structlog.get_logger("kafka_ratchet.x").warning("at work", offset=40)
        logging.getLogger("somebody.else").error("as %s", "said")
    finally:
        correlate(None)
    logging.getLogger("somebody.else").warning("afterwards")
    plain, ours, theirs, after = lines(capfd)
    assert list(plain)[:5] == ["timestamp", "level", "event", "logger", "worker"]
    assert {**plain, "timestamp": ""} == {
        "timestamp": "", "level": "info", "event": "two\nlines", "logger": "shop", "worker": process_name(),
        "of": 3, "share": "nan", "by": "b'\\xff'", "mine": {"a": [1]},
    }  # fmt: skip
    assert ours == {**ours, **WHERE, "offset": 40, "level": "warning"}
    assert theirs == {**theirs, **WHERE, "level": "error", "event": "as said", "logger": "somebody.else"}
    assert not after.keys() & WHERE.keys()


async def test_each_task_has_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")

    async def work(partition: int) -> None:
        spec = LaneSpec("in", partition, "out", "dead", "shop", f"shop/in/{partition}")
        offset = 0
        correlate(lambda: spec.correlation(offset))
        await asyncio.sleep(0)
        offset = partition * 10
        await asyncio.to_thread(structlog.get_logger("shop").info, "in a thread")

    await asyncio.gather(work(1), work(2))
    structlog.get_logger("shop").info("beside")
    *both, beside = lines(capfd)
    assert sorted((each["partition"], each["offset"]) for each in both) == [(1, 10), (2, 20)]
    assert "partition" not in beside


def test_an_error_is_text_in_a_field_and_secrets_are_hidden(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_ratchet.spark_sink.secrets._kept", {})
    keep([CANARY, "41414141", "timestamp"])  # a password may be anything, and must not break a line
    configure("info", "json")
    try:
        raise RuntimeError(f"cannot log in with {CANARY}")
    except RuntimeError:
        logging.getLogger("library").exception("failed with %s", CANARY)
        structlog.get_logger("ours").exception("failed", offset=41414141, given={CANARY: [CANARY]})
    told = capfd.readouterr().err
    library, ours = [json.loads(line) for line in told.splitlines()]
    assert "canary" not in told
    for each in (library, ours):
        assert "RuntimeError: cannot log in with ***" in each["exception"]
        assert each["exception"].startswith("Traceback")
    assert (library["event"], ours["offset"], ours["given"]) == ("failed with ***", 41414141, {"***": ["***"]})


def test_what_ends_a_process_is_a_line_too() -> None:
    code = (
        "import threading, warnings; from kafka_ratchet.app.log_setup import configure; configure('info', 'json')\n"
        "warnings.warn('an old option')\n"
        "def fail(): raise RuntimeError('broken')\n"
        "thread = threading.Thread(target=fail); thread.start(); thread.join(); fail()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    warned, *both = [json.loads(line) for line in done.stderr.splitlines()]
    assert (warned["logger"], warned["level"]) == ("py.warnings", "warning")
    assert [(each["level"], "RuntimeError: broken" in each["exception"]) for each in both] == [("critical", True)] * 2


def test_a_command_ends_with_a_line(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ratchet.toml").write_text(
        'bootstrap = "127.0.0.1:1"\nkafka_timeout_s = 0.2\nlog_format = "json"\n'
        '[streams.orders]\ninput = "i"\noutput = "o"\ndead_letters = "d"\n'
    )
    assert run(["worker"]) == 2
    *before, last = lines(capfd)
    assert "does not answer yet" in before[0]["event"]
    assert last["level"] == "error"
    assert "127.0.0.1:1" in last["event"]


def test_the_sinks_job_logs_the_same_way(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    words = ["--bootstrap=127.0.0.1:1", "--topic=out", "--name=totals", f"--path={tmp_path}"]
    assert main([*words, "--kafka-option=socket.timeout.ms=x", "--log-format=json"]) == EXIT_REFUSED
    said = lines(capfd)
    assert said
    assert {each["sink"] for each in said} == {"totals"}
    assert said[-1] == {**said[-1], "level": "error", "topic": "out", "worker": process_name()}
    assert said[-1]["event"].startswith("refused: ")


def test_a_record_of_logging_as_a_line() -> None:
    record = logging.LogRecord("spark_sink", logging.INFO, "f.py", 1, "%d rows", (3,), None)
    record.created = 1_700_000_000.25
    line = json.loads(JsonFormatter({"sink": "totals"}).format(record))
    assert line.pop("worker") == process_name()
    assert line == {
        "timestamp": "2023-11-14T22:13:20.250000Z", "level": "info", "event": "3 rows", "logger": "spark_sink",
        "sink": "totals",
    }  # fmt: skip
