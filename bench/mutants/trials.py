"""Runs of tests for mutants: records of the lines that each test runs, and processes that test a changed module."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import coverage

LIMIT_S: Final = 60.0
"""Seconds a test may take in addition to four times its measured time. Then it counts as an endless loop.

So many are needed because the first test in a process that calls a compiled function waits until Numba has loaded it.
"""
AT_IMPORT: Final = ""
"""Coverage context of lines that run outside of tests, while modules are imported and tests are collected."""
CRASHED: Final = "signal "
"""Beginning of the answer for a trial with a crashed process. A fork with Spark in it may crash without a mutant."""
SERVERS: Final = ("broker", "spark", "postgres", "mariadb", "s3", "kafka_jars")
"""Session fixtures that start servers; all mutants of a part share the servers."""


@dataclass(frozen=True)
class Trial:
    """Mutant, with the tests that run its line."""

    file: str
    code: CodeType
    tests: list[str]
    """Pytest node ids of the tests, the quickest first."""
    at_import: bool
    """True: the line also runs at import, so changing the loaded module would have no effect."""


class Measured:
    """Measurement of the unchanged code: for each passing test, the lines that it runs, and its seconds."""

    def __init__(self, data: coverage.CoverageData, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self.total_s = sum(seconds.values())
        self._contexts: Callable[[str], dict[int, list[str]]] = cache(data.contexts_by_lineno)

    def tests_of(self, file: str, lines: tuple[int, int]) -> tuple[list[str], bool]:
        """Return the tests that run one of the lines, and True if an import runs one too.

        The tests of one file stay together, because they share fixtures; files with quick tests come first.
        """
        contexts = self._contexts(file)
        found = {test for line in range(lines[0], lines[1] + 1) for test in contexts.get(line, ())}
        tests = found & self.seconds.keys()
        if AT_IMPORT in found and not tests:
            tests = set(self.seconds)
        files: dict[str, float] = {}
        for test in tests:
            name = test.partition("::")[0]
            files[name] = files.get(name, 0.0) + self.seconds[test]
        order = sorted(
            tests, key=lambda test: (files[test.partition("::")[0]], test.partition("::")[0], self.seconds[test])
        )
        return order, AT_IMPORT in found


@dataclass(frozen=True)
class Tests:
    """Runner of the tests of one part, in processes forked from this one."""

    name: str
    paths: list[str]
    selection: list[str]
    folders: list[str]
    """Folders of the code to record lines of."""
    plain: bool
    """True: Numba is switched off."""

    def measure(self, folder: Path) -> Measured:
        """Run all tests over the unchanged code, and return the measurement. folder: folder to store it in."""
        log = folder / f"{self.name}.log"
        child = _forked(log, lambda: self._measure(folder))
        os.waitpid(child, 0)
        return self.recorded(folder)

    def recorded(self, folder: Path) -> Measured:
        """Return the last measurement, as stored in the folder."""
        data = coverage.CoverageData(str(folder / f"{self.name}.coverage"))
        data.read()
        return Measured(data, json.loads((folder / f"{self.name}.seconds.json").read_text()))

    def _measure(self, folder: Path) -> int:
        file = folder / f"{self.name}.coverage"
        file.unlink(missing_ok=True)
        include = [f"{each}/*" for each in self.folders]
        measuring = coverage.Coverage(str(file), branch=True, include=include, config_file=False)
        measuring.start()
        recorder = _Recorder(measuring)
        code = self._pytest(self.paths, recorder)
        measuring.stop()
        measuring.save()
        (folder / f"{self.name}.seconds.json").write_text(json.dumps(recorder.seconds))
        return code

    def try_all(
        self, trials: list[Trial], measured: Measured, folder: Path, deadline: float
    ) -> Iterator[tuple[int, bool, float, str]]:
        """Yield number, survival, seconds and failed test of each trial, until the deadline.

        One process collects the tests and starts the servers. For each trial, a child of it changes the module and runs
        the tests.
        """
        untested = [number for number, trial in enumerate(trials) if not trial.tests]
        yield from ((number, True, 0.0, "") for number in untested)
        read, write = os.pipe()
        server = _Server(trials, measured.seconds, deadline, write)
        child = _forked(folder / f"{self.name}-mutants.log", lambda: self._pytest(self.paths, server))
        os.close(write)
        with os.fdopen(read) as answers:
            for line in answers:
                number, lives, seconds, failed = json.loads(line)
                yield number, lives, seconds, failed
        os.waitpid(child, 0)
        for number, trial in enumerate(trials):
            if trial.tests and trial.at_import and time.monotonic() < deadline:
                yield self._try_at_import(number, trial, folder)

    def _try_at_import(self, number: int, trial: Trial, folder: Path) -> tuple[int, bool, float, str]:
        def run() -> int:
            _load_instead(trial)
            return self._pytest(trial.tests, None)

        began = time.monotonic()
        code = _ended(_forked(folder / "mutant.log", run), LIMIT_S + 600)
        return number, code == 0, time.monotonic() - began, "" if code == 0 else "at import"

    def _pytest(self, paths: list[str], plugin: object | None) -> int:
        os.environ["CI"] = "true"  # Hypothesis draws the same examples each time
        if self.plain:
            os.environ["NUMBA_DISABLE_JIT"] = "1"
            import numba

            numba.config.DISABLE_JIT = 1
        import pytest

        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *self.selection]
        if plugin is None:
            return int(pytest.main([*options, "-x", *paths]))
        return int(pytest.main([*options, *paths], [plugin]))


class _Recorder:
    """Pytest plugin that gives each test a coverage context, and records the seconds of each passing test."""

    def __init__(self, measuring: coverage.Coverage) -> None:
        self.measuring = measuring
        self.seconds: dict[str, float] = {}
        self.failed = False

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed |= not report.passed

    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> bool:
        from _pytest.runner import runtestprotocol

        self.measuring.switch_context(item.nodeid)
        self.failed, began = False, time.monotonic()
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        runtestprotocol(item, nextitem=nextitem)
        if not self.failed:
            self.seconds[item.nodeid] = time.monotonic() - began
        self.measuring.switch_context(AT_IMPORT)
        return True


class _Server:
    """Pytest plugin that runs, instead of all tests once, the tests of each mutant in a fork."""

    def __init__(self, trials: list[Trial], seconds: dict[str, float], deadline: float, answers: int) -> None:
        self.trials = trials
        self.seconds = seconds
        self.deadline = deadline
        self.answers = answers

    def pytest_runtestloop(self, session: Any) -> bool:
        items = {item.nodeid: item for item in session.items}
        wanted = {test for trial in self.trials for test in trial.tests}
        self._start_servers([items[test] for test in sorted(wanted & items.keys(), key=self.seconds.__getitem__)])
        for number, trial in enumerate(self.trials):
            chosen = [items[test] for test in trial.tests if test in items]
            if not chosen or trial.at_import or time.monotonic() > self.deadline:
                continue
            began = time.monotonic()
            read, write = os.pipe()
            child = _forked(None, lambda: self._run(session, chosen, trial, write))  # noqa: B023 # it forks at once
            os.close(write)
            code = _ended(child, sum(self._limit(item) for item in chosen))
            with os.fdopen(read) as failed:
                answer = (number, code == 0, time.monotonic() - began, ending(code, failed.read()))
            os.write(self.answers, json.dumps(answer).encode() + b"\n")
        return True

    def _start_servers(self, items: list[Any]) -> None:
        """Run one test for each server, so that its session fixture starts; session fixtures do not end after it."""
        for server in SERVERS:
            item = next((each for each in items if server in getattr(each, "fixturenames", ())), None)
            if item is not None:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None if len(items) == 1 else items[0])

    def _limit(self, item: Any) -> float:
        return LIMIT_S + 4 * self.seconds[item.nodeid]

    def _run(self, session: Any, items: list[Any], trial: Trial, failed: int) -> int:
        _own_connections()
        if not change(trial.file, trial.code):
            os.write(failed, b"not changed")
            return 70
        for item, following in zip(items, [*items[1:], items[0]], strict=True):  # Spark stays for the next mutant
            faulthandler.dump_traceback_later(self._limit(item), exit=True)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                os.write(failed, item.nodeid.encode())
                return 1
        faulthandler.cancel_dump_traceback_later()
        return 0


def ending(code: int, failed: str) -> str:
    """Return the failed test of a child process, else the kind of its end; "": all its tests passed.

    code: exit code of the process; failed: node id of the failed test, or ""
    """
    if code == 0 or failed:
        return failed
    return f"{CRASHED}{-code}" if code < 0 and code != -signal.SIGKILL else "endless"


def change(file: str, code: CodeType) -> bool:
    """Replace the code of all existing functions of a file by their code in another version of the file.

    Returns:
        True if the code of a function has changed
    """
    codes: dict[tuple[str, int], CodeType] = {}

    def collect(part: CodeType) -> None:
        for each in part.co_consts:
            if isinstance(each, CodeType):
                codes[each.co_qualname, each.co_firstlineno] = each
                collect(each)

    collect(code)
    places: dict[str, bool] = {}
    changed = False
    for function in gc.get_objects():
        if type(function) is not FunctionType:
            continue
        old = function.__code__
        if old.co_filename not in places:
            places[old.co_filename] = os.path.realpath(old.co_filename) == file
        new = codes.get((old.co_qualname, old.co_firstlineno)) if places[old.co_filename] else None
        if new is not None and len(new.co_freevars) == len(old.co_freevars) and new != old:
            function.__code__ = new
            changed = True
    return changed


def _load_instead(trial: Trial) -> None:
    """Make a later import of the mutant's file run the changed code."""
    load = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        return trial.code if os.path.realpath(loader.path) == trial.file else load(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]


def _own_connections() -> None:
    """Drop the inherited connections to Spark's JVM in this fork, because its parent uses them."""
    context: Any = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    client = getattr(getattr(context, "_gateway", None), "_gateway_client", None)
    if client is not None:
        client.deque.clear()
        client.thread_connection = threading.local()


def _forked(log: Path | None, run: Callable[[], int]) -> int:
    """Fork a child process that runs a function, with its output in a file; return the process id."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if log is not None:
                output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(output, 1)
                os.dup2(output, 2)
            os._exit(run())
        except BaseException:
            traceback.print_exc()
            os._exit(70)
    return child


def _ended(child: int, limit_s: float) -> int:
    """Wait for the end of a child, and return its exit code; after the limit, kill it and its children."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL
