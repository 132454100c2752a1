"""Work that takes long is announced."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_ratchet.spark_sink.job import commit
from kafka_ratchet.spark_sink.job.run_log import log_end, log_run
from kafka_ratchet.spark_sink.job.run_state import RunState
from kafka_ratchet.spark_sink.log_lines import announced
from kafka_ratchet.spark_sink.spark import terminal


def test_work_that_takes_long_says_so_and_leaves_no_thread() -> None:
    lines: list[str] = []
    said = threading.Event()

    def say(text: str) -> None:
        lines.append(text)
        said.set()

    before = threading.active_count()
    with announced("compiling", say, first_s=0.01):
        assert said.wait(60)
    assert lines[0] == "compiling; 0 s so far"
    assert threading.active_count() == before


def test_quick_work_says_nothing() -> None:
    lines: list[str] = []
    with announced("compiling", lines.append, first_s=3600):
        pass
    assert lines == []


class Lines(logging.Handler):
    """The job's log lines, and an event for the first that counts seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.counted = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        if self.texts[-1].endswith(" s so far"):
            self.counted.set()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    """Log of the job, without a terminal."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    log, handler = logging.getLogger("spark_sink"), Lines()
    monkeypatch.setattr(log, "handlers", [handler])
    before = log.level
    log.setLevel(logging.INFO)
    yield handler
    log.setLevel(before)


def test_a_slow_start_of_spark_is_announced_without_a_terminal(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "announced", partial(announced, first_s=0.01))
    with terminal.starting("Spark"):
        assert lines.counted.wait(60)
    assert lines.texts[0] == "starting Spark"
    assert lines.texts[1].startswith("starting Spark; ")


def test_a_slow_commit_is_announced_with_its_offsets(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def frames(*_: object) -> Iterator[tuple[None, None, None]]:
        yield None, None, None

    def slow_commit(*_: object) -> int:
        assert lines.counted.wait(60)
        return 5

    monkeypatch.setattr(commit, "_frames", frames)
    monkeypatch.setattr(commit, "LONG_COMMIT_S", 0.01)
    nothing: Any = None
    store: Any = SimpleNamespace(commit=slow_commit)
    commit.commit_records(nothing, {0: 0, 1: 7}, {0: 5, 1: 7}, nothing, store, RunState(lambda _: None))
    assert lines.texts[0].startswith("reading and committing offsets 0: 0-5; ")


@pytest.mark.parametrize(
    ("mode", "end"),
    [("batch", "is up to date"), ("replay", "has the replayed rows"), ("stream", "was stopped after a commit")],
)
def test_the_last_line_names_the_end_of_each_mode(mode: str, end: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "spark_sink"):
        log_end(RunState(log_run), "/lake/orders", mode)
    assert f"/lake/orders {end}: 0 rows added" in caplog.text
