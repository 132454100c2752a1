"""For how long a run has had something to commit and committed nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from kafka_ratchet.spark_sink.errors import KafkaUnavailable, RegistryUnavailable, SparkFailed
from kafka_ratchet.spark_sink.job.plan import OffsetRange
from kafka_ratchet.spark_sink.job.run_state import CAUSES, Commit, Repeatable, RunState

PAGE = Path(__file__).parents[3] / "docs/reference/stalls.md"


def test_a_run_stalls_from_when_there_is_something_to_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    run = RunState()
    run.note_offsets(OffsetRange("t", {0: 0}, {0: 5}), {0: 5})
    now[0] += 50
    assert run.stalled_s() == 0
    run.note_offsets(OffsetRange("t", {0: 0}, {0: 9}), {0: 5})
    now[0] += 50
    run.note_offsets(OffsetRange("t", {0: 0}, {0: 12}), {0: 5})  # it looks again, and commits nothing
    assert run.stalled_s() == 50
    run.note_commit(Commit(1, 4, {0: 5}, {0: 9}, 1.0))
    now[0] += 7
    assert run.stalled_s() == 7  # there is more
    run.note_commit(Commit(2, 3, {0: 9}, {0: 12}, 1.0))
    assert run.stalled_s() == 0
    run.note_failure(KafkaUnavailable("nobody answers"))
    now[0] += 3
    assert (run.stalled_s(), run.failures) == (3, 1)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (None, "commit"),
        (KafkaUnavailable("away"), "no-answer"),
        (RegistryUnavailable("away"), "registry"),
        (SparkFailed("lost a task"), "spark"),
    ],
)
def test_a_standstill_has_a_cause(error: Repeatable | None, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    run = RunState()
    run.note_offsets(OffsetRange("t", {0: 0}, {0: 9}), {0: 5})
    if error is not None:
        run.note_failure(error)
    now[0] += 14
    assert run.standstill() == ""
    now[0] += 2
    assert run.standstill() == cause
    run.note_commit(Commit(1, 4, {0: 5}, {0: 9}, 1.0))
    assert run.standstill() == ""


def test_the_reference_has_the_causes_of_a_run_and_no_others() -> None:
    assert set(get_args(Repeatable)) == CAUSES.keys()
    section = PAGE.read_text("utf-8").partition("\n## A sink\n")[2]
    told = set(re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE))
    by_the_command = {"halted"}  # `ratchet sink status` alone: a job with this cause has ended
    assert told - by_the_command == {*CAUSES.values(), "commit", "open-transaction"}


def test_transactions_that_end_are_no_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    run = RunState()
    for end in (5, 6, 7):  # each look finds another transaction of a worker
        run.note_offsets(OffsetRange("t", {0: 0}, {0: end}, high={0: end + 2}), {0: end})
        now[0] += 10
        assert run.standstill() == ""
    run.note_offsets(OffsetRange("t", {0: 0}, {0: 7}, high={0: 12}), {0: 7})
    now[0] += 10
    assert run.standstill() == "open-transaction"
    run.note_offsets(OffsetRange("t", {0: 0}, {0: 12}), {0: 12})
    assert run.standstill() == ""
