"""The parent of forked processes, with processes that do next to nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PATIENCE_S = 60.0

BEGIN = """
import os, signal, sys, threading, time
from kafka_ratchet.app.worker.parent import NotReady, Parent, ProcessRole, ask
from kafka_ratchet.errors import RatchetError, SettingsError

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def idle():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    say("idle", os.getpid())
    while True:
        time.sleep(60)
"""


class Forking:
    """A program with a parent in it, as a process of its own: this one has threads."""

    def __init__(self, folder: Path, program: str) -> None:
        self.output = folder / "output"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", BEGIN + program],
                stdout=output,
                stderr=output,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def said(self, word: str) -> list[str]:
        return [line.split(" ", 1)[1] for line in self.output.read_text().splitlines() if line.startswith(f"{word} ")]

    def wait_for(self, word: str, times: int) -> list[str]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            ended = self.process.poll() is not None  # looked at first: it may print and end in between
            if len(found := self.said(word)) >= times:
                return found
            assert not ended, self.output.read_text()
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.01)

    def end(self) -> int:
        return self.process.wait(PATIENCE_S)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_one_that_is_killed_is_replaced_and_all_end_when_asked(tmp_path: Path) -> None:
    forking = Forking(
        tmp_path,
        "p = Parent([ProcessRole('a', idle), ProcessRole('b', idle)], 30); code = p.run()\n"
        "say('replaced', *p.replaced); sys.exit(code)",
    )
    first = forking.wait_for("idle", 2)
    os.kill(int(first[1]), signal.SIGKILL)
    pids = [int(pid) for pid in forking.wait_for("idle", 3)]
    forking.process.terminate()
    assert forking.end() == 0
    assert sum(map(int, forking.said("replaced")[0].split())) == 1
    assert all(map(is_gone, pids))


def test_the_roles_that_end_last_do(tmp_path: Path) -> None:
    program = """
def last():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    say("idle", "last")
    try:
        time.sleep(60)
    finally:
        say("end last")
def first():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    say("idle", "first")
    try:
        time.sleep(60)
    finally:
        time.sleep(0.3)
        say("end first")
sys.exit(Parent([ProcessRole("l", last, ends_last=True), ProcessRole("f", first)], 30).run())
"""
    forking = Forking(tmp_path, program)
    forking.wait_for("idle", 2)
    forking.process.send_signal(signal.SIGINT)
    assert forking.end() == 0
    assert forking.said("end") == ["first", "last"]


def test_a_refusal_ends_all_with_its_sentence(tmp_path: Path) -> None:
    program = """
def refuse():
    while "idle" not in open("output").read():
        time.sleep(0.01)
    raise SettingsError("that cannot be")
try:
    Parent([ProcessRole("a", idle), ProcessRole("b", refuse), ProcessRole("c", refuse)], 30).run()
except RatchetError as error:
    say("refused", error)
"""
    forking = Forking(tmp_path, program)
    pid = forking.wait_for("idle", 1)[0]
    assert forking.end() == 0
    assert forking.said("refused") == ["that cannot be"]
    assert is_gone(int(pid))


def test_what_dies_at_its_start_is_started_after_pauses(tmp_path: Path) -> None:
    program = "Parent([ProcessRole('a', lambda: os._exit(7)), ProcessRole('b', idle)], 30, pause_s=0.01).run()"
    forking = Forking(tmp_path, program)
    deadline = time.monotonic() + PATIENCE_S
    while len(pauses := re.findall(r"again_in_s=([\d.]+)", forking.output.read_text())) < 6:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    forking.process.terminate()
    assert forking.end() == 0
    assert pauses[:6] == ["0.0", "0.01", "0.02", "0.04", "0.08", "0.16"]


def test_one_that_cannot_work_yet_is_tried_again(tmp_path: Path) -> None:
    program = """
def later():
    if not os.path.exists("there"):
        open("there", "w").close()
        raise NotReady("not yet")
    idle()
Parent([ProcessRole("a", later)], 30, pause_s=0.01).run()
"""
    forking = Forking(tmp_path, program)
    forking.wait_for("idle", 1)
    assert "again_in_s=0.01" in forking.output.read_text()
    forking.process.terminate()
    assert forking.end() == 0


def test_one_that_does_not_end_is_killed(tmp_path: Path) -> None:
    program = """
def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say("idle", os.getpid())
    time.sleep(600)
sys.exit(Parent([ProcessRole("a", deaf)], 0.2).run())
"""
    forking = Forking(tmp_path, program)
    pid = forking.wait_for("idle", 1)[0]
    forking.process.terminate()
    assert forking.end() == 1
    assert is_gone(int(pid))


def test_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    forking = Forking(tmp_path, "Parent([ProcessRole('a', idle), ProcessRole('b', idle)], 30).run()")
    pids = [int(pid) for pid in forking.wait_for("idle", 2)]
    forking.process.kill()
    forking.end()
    deadline = time.monotonic() + PATIENCE_S
    while not all(map(is_gone, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_that_does_not_heed_the_end_of_its_parent_is_killed(tmp_path: Path) -> None:
    program = """
def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as one whose event loop is blocked
    say("idle", os.getpid())
    while True:
        pass
Parent([ProcessRole("a", deaf)], 0.2).run()
"""
    forking = Forking(tmp_path, program)
    pid = int(forking.wait_for("idle", 1)[0])
    forking.process.kill()
    forking.end()
    deadline = time.monotonic() + PATIENCE_S
    while not is_gone(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_second_sigterm_changes_nothing(tmp_path: Path) -> None:
    program = """
def slow():
    signal.signal(signal.SIGTERM, lambda *_: say("asked", "once"))
    say("idle", os.getpid())
    while not os.path.exists("asked twice"):
        time.sleep(0.01)
    say("ended", "well")
sys.exit(Parent([ProcessRole("a", slow)], 30).run())
"""
    forking = Forking(tmp_path, program)
    forking.wait_for("idle", 1)
    forking.process.terminate()
    forking.wait_for("asked", 1)
    forking.process.terminate()
    (tmp_path / "asked twice").touch()
    assert forking.end() == 0
    assert forking.said("asked") == ["once"]
    assert forking.said("ended") == ["well"]


def test_a_parent_that_dies_while_it_forks_leaves_nobody_behind(tmp_path: Path) -> None:
    program = """
from kafka_ratchet.app.worker import parent
real = parent._end_with
def dies(pid, name):
    os.kill(pid, signal.SIGKILL)  # after the fork, before the process has asked to hear of it
    while os.getppid() == pid:
        time.sleep(0.01)
    try:
        real(pid, name)
    finally:
        say("went", "on")
parent._end_with = dies
def work():
    say("work", os.getpid())
Parent([ProcessRole("a", work)], 30).run()
"""
    forking = Forking(tmp_path, program)
    assert forking.end() == -signal.SIGKILL
    time.sleep(0.5)
    assert not forking.said("work")
    assert not forking.said("went")


def test_one_that_dies_as_soon_as_it_is_forked_is_replaced(tmp_path: Path) -> None:
    program = """
from kafka_ratchet.app.worker import parent
real = parent._end_with
def dies(pid, name):
    if not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    real(pid, name)
parent._end_with = dies
sys.exit(Parent([ProcessRole("a", idle)], 30).run())
"""
    forking = Forking(tmp_path, program)
    forking.wait_for("idle", 1)
    forking.process.terminate()
    assert forking.end() == 0


def test_threads_are_refused_by_name(tmp_path: Path) -> None:
    program = """
threading.Thread(target=time.sleep, args=(5,), name="of-mine", daemon=True).start()
try:
    Parent([ProcessRole("a", idle)], 30).run()
except SettingsError as error:
    say("refused", error)
"""
    forking = Forking(tmp_path, program)
    assert forking.end() == 0
    assert "(of-mine)" in forking.said("refused")[0]


@pytest.mark.parametrize(
    ("work", "answer"),
    [
        ("lambda: b'x' * 200_000", "200000"),
        ("lambda: (_ for _ in ()).throw(SettingsError('no'))", "RatchetError no"),
        ("lambda: os.kill(os.getpid(), 9)", "SetupError the process that prepares the topics has ended by signal 9"),
    ],
)
def test_work_is_done_in_a_process_of_its_own(tmp_path: Path, work: str, answer: str) -> None:
    program = f"""
try:
    say("answer", len(ask({work})))
except RatchetError as error:
    say("answer", type(error).__name__, error)
"""
    forking = Forking(tmp_path, program)
    assert forking.end() == 0
    assert forking.said("answer")[0].startswith(answer)
