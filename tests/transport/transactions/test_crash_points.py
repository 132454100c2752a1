"""Crash points: the process is killed the chosen time that it comes to one."""

from __future__ import annotations

import os
import signal

import pytest

from kafka_ratchet.transport.transactions import crash_points


@pytest.mark.parametrize(("text", "at"), [("judged", [1]), ("judged:1", [1]), ("judged:3", [3]), ("saved:2", [])])
def test_the_process_is_killed_once_at_the_chosen_time(
    monkeypatch: pytest.MonkeyPatch, text: str, at: list[int]
) -> None:
    passed, killed = list[str](), list[int]()

    def kill(process: int, by: int) -> None:
        assert (process, by) == (os.getpid(), signal.SIGKILL)
        killed.append(len(passed))

    monkeypatch.setattr(os, "kill", kill)
    plan = crash_points._Plan(text)
    for _ in range(4):
        plan("fetched")
        passed.append("judged")
        plan("judged")
    assert killed == at


def test_a_start_passes_no_point(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = list[int]()
    monkeypatch.setattr(os, "kill", lambda process, by: killed.append(by))
    plan = crash_points._Plan("offered")
    with crash_points.not_counted():
        plan("offered")
    assert not killed
    plan("offered")
    assert killed == [signal.SIGKILL]


def test_an_unknown_point_is_refused() -> None:
    with pytest.raises(ValueError, match=r"TRANSPORT_CRASH_AT=judge: unknown crash point; write one of fenced, "):
        crash_points._Plan("judge")
