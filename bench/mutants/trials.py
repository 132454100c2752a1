"""Runs of tests for mutants: records of the lines that each test runs, and processes that test a changed module."""

from __future__ import annotations

import faulthandler
import gc
import json
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from functools import cache, partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import coverage

LIMIT_S: Final = 60.0
"""Seconds a test may take in addition to four times its measured time. A longer run counts as an endless loop.

So many are needed because the first test in a process that calls a compiled function waits until Numba has loaded it.
"""
AT_IMPORT: Final = ""
"""Coverage context of lines that run outside of tests, while modules are imported and tests are collected."""
KILLED, SURVIVED, UNDECIDED = "killed", "survived", "undecided"
SERVERS: Final = ("broker", "spark", "postgres", "mariadb", "s3", "kafka_jars")
"""Session fixtures that start servers."""


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
        """Return the tests that run one of the lines, and True if an import runs a line too.

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
class Answer:
    """Outcome of one trial."""

    number: int
    outcome: str
    """`KILLED`, `SURVIVED` or `UNDECIDED`."""
    seconds: float
    reason: str
    """Failed test with its error if killed; the end of the process or the missing tests if undecided."""


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
    apart: bool = False
    """True: each trial starts its own servers, because a fork crashes once its parent has used Spark."""
    most_s: float = math.inf
    """Seconds after which a trial begins no further test, and ends undecided."""
    without: tuple[str, ...] = ()
    """Fixtures such as `spark`; tests that need one are left out."""

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

    def try_all(self, trials: list[Trial], measured: Measured, folder: Path, deadline: float) -> Iterator[Answer]:
        """Yield the answer of each trial until the deadline; a later answer of a trial replaces its earlier one.

        One process collects the tests and, unless trials are apart, starts the servers. For each trial, a child of it
        changes the module and runs the tests.
        """
        yield from (Answer(number, SURVIVED, 0.0, "") for number, trial in enumerate(trials) if not trial.tests)
        read, write = os.pipe()
        server = _Server(self, trials, measured.seconds, deadline, write)
        child = _forked(folder / f"{self.name}-mutants.log", lambda: self._pytest(self.paths, server))
        os.close(write)
        with os.fdopen(read) as answers:
            for line in answers:
                yield Answer(*json.loads(line))
        os.waitpid(child, 0)
        for number, trial in enumerate(trials):
            if trial.tests and trial.at_import and time.monotonic() < deadline:
                yield self._try_at_import(number, trial, folder)

    def _try_at_import(self, number: int, trial: Trial, folder: Path) -> Answer:
        def run(answers: int) -> int:
            _load_instead(trial)
            verdict = _Verdict()
            code = self._pytest(["-x", *trial.tests], verdict)
            os.write(answers, verdict.said().encode())
            return code

        return _answer(number, folder / "mutant.log", LIMIT_S + 600, run)

    def _pytest(self, paths: list[str], plugin: object) -> int:
        os.environ["CI"] = "true"  # Hypothesis draws the same examples each time
        if self.plain:
            os.environ["NUMBA_DISABLE_JIT"] = "1"
            import numba

            numba.config.DISABLE_JIT = 1
        import pytest

        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *self.selection]
        return int(pytest.main([*options, *paths], [plugin, _Without(self.without)]))


class _Without:
    """Pytest plugin that leaves out the tests that need one of the given fixtures."""

    def __init__(self, fixtures: tuple[str, ...]) -> None:
        self.fixtures = fixtures

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if not set(self.fixtures) & set(getattr(item, "fixturenames", ()))]


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


class _Verdict:
    """Pytest plugin that keeps the first failed test, and the first failed fixture."""

    def __init__(self) -> None:
        self.failed = self.unable = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if not report.failed:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        error = str(getattr(crash, "message", "")).partition("\n")[0][:200]
        if report.when == "call":
            self.failed = self.failed or f"{report.nodeid}: {error}"
        else:
            self.unable = self.unable or f"{report.when} of {report.nodeid}: {error}"

    def said(self, missing: str = "") -> str:
        """Return the outcome and its reason. missing: words on the tests that did not run, or "" """
        if self.failed:
            return f"{KILLED} {self.failed}"
        return f"{UNDECIDED} {self.unable or missing}" if self.unable or missing else SURVIVED


class _Server:
    """Pytest plugin that runs, instead of all tests once, the tests of each mutant in a fork."""

    def __init__(
        self, tests: Tests, trials: list[Trial], seconds: dict[str, float], deadline: float, answers: int
    ) -> None:
        self.tests = tests
        self.trials = trials
        self.seconds = seconds
        self.deadline = deadline
        self.answers = answers

    def pytest_runtestloop(self, session: Any) -> bool:
        items = {item.nodeid: item for item in session.items}
        wanted = {test for trial in self.trials for test in trial.tests}
        if not self.tests.apart:
            self._start_servers([items[test] for test in sorted(wanted & items.keys(), key=self.seconds.__getitem__)])
        killed = list[Answer]()
        tests_of = [self._in_order(each, items) for each in self.trials]
        for number in sorted(range(len(tests_of)), key=lambda number: self._limit(tests_of[number][:1])):
            trial, chosen = self.trials[number], tests_of[number]
            if not chosen or trial.at_import or time.monotonic() > self.deadline:
                continue
            answer = _answer(number, None, self._limit(chosen), partial(self._run, session, chosen, trial))
            self._send(answer)
            killed += [answer] if answer.outcome == KILLED else []
        passing = self._passing(session, [item for name, item in items.items() if any(_names(a, name) for a in killed)])
        for answer in killed:
            if not any(_names(answer, name) for name in passing):
                reason = f"without the mutant too, it does not pass: {answer.reason}"
                self._send(replace(answer, outcome=UNDECIDED, reason=reason))
        return True

    def _send(self, answer: Answer) -> None:
        os.write(self.answers, json.dumps(astuple(answer)).encode() + b"\n")

    def _in_order(self, trial: Trial, items: dict[str, Any]) -> list[Any]:
        """Return the tests, ordered by the number of servers that they need.

        Among equals, the module's own test file comes first.
        """
        chosen = [items[test] for test in trial.tests if test in items]
        if not self.tests.apart:
            return chosen
        path = Path(trial.file)
        own = (f"test_{path.stem}.py", f"test_{path.parent.name}_{path.stem}.py")
        return sorted(
            chosen,
            key=lambda item: (sum(name in item.fixturenames for name in SERVERS), Path(item.path).name not in own),
        )

    def _start_servers(self, items: list[Any]) -> None:
        """Run one test for each server, so that its session fixture starts; session fixtures do not end after it."""
        for server in SERVERS:
            item = next((each for each in items if server in getattr(each, "fixturenames", ())), None)
            if item is not None:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None if len(items) == 1 else items[0])

    def _limit(self, items: list[Any]) -> float:
        return sum(LIMIT_S + 4 * self.seconds[item.nodeid] for item in items)

    def _passing(self, session: Any, items: list[Any]) -> list[str]:
        """Return the tests that pass in a fork without a mutant."""
        passing = list[str]()

        def run(answers: int) -> int:
            for item, verdict in self._verdicts(session, items):
                if verdict.said() == SURVIVED:
                    os.write(answers, item.nodeid.encode() + b"\n")
                verdict.failed = verdict.unable = ""
            return self._ended(session)

        if items:
            passing += _said(None, self._limit(items), run)[1].splitlines()
        return passing

    def _run(self, session: Any, items: list[Any], trial: Trial, answers: int) -> int:
        if not change(trial.file, trial.code):
            os.write(answers, f"{UNDECIDED} not changed".encode())
            return 0
        began, missing, verdict = time.monotonic(), "", _Verdict()
        for number, (_, verdict) in enumerate(self._verdicts(session, items), 1):
            if verdict.failed:
                break
            if number < len(items) and time.monotonic() - began > self.tests.most_s:
                missing = f"passed {number} of {len(items)} tests, the others had no time"
                break
        os.write(answers, verdict.said(missing).encode())
        return self._ended(session)

    def _ended(self, session: Any) -> int:
        """Stop the servers that this fork has started, and return its exit code."""
        if self.tests.apart:
            faulthandler.dump_traceback_later(LIMIT_S, exit=True)
            session._setupstate.teardown_exact(None)  # noqa: SLF001 # no hook does it without a test
        return 0

    def _verdicts(self, session: Any, items: list[Any]) -> Iterator[tuple[Any, _Verdict]]:
        """Run the tests in this fork; yield each test with the verdict so far."""
        _own_connections()
        verdict = _Verdict()
        session.config.pluginmanager.register(verdict)
        for item, following in zip(items, [*items[1:], items[0]], strict=True):  # servers stay up after the last
            faulthandler.dump_traceback_later(self._limit([item]), exit=True)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            faulthandler.cancel_dump_traceback_later()
            yield item, verdict


def _names(answer: Answer, test: str) -> bool:
    return answer.reason.startswith(f"{test}: ")


def ending(code: int, said: str) -> tuple[str, str]:
    """Return the outcome and the reason of a trial.

    A process that ends without an answer has crashed or run too long, which no failed test explains.

    code: exit code of the process; said: its answer, or ""
    """
    if said:
        outcome, _, reason = said.partition(" ")
        return outcome, reason
    if code in (1, -signal.SIGKILL):  # of faulthandler, of `_ended`
        return UNDECIDED, "endless"
    return UNDECIDED, f"signal {-code}" if code < 0 else f"exit code {code}"


def _answer(number: int, log: Path | None, limit_s: float, run: Callable[[int], int]) -> Answer:
    """Run a trial in a fork; the function gets the file descriptor for its answer."""
    began = time.monotonic()
    outcome, reason = ending(*_said(log, limit_s, run))
    return Answer(number, outcome, time.monotonic() - began, reason)


def _said(log: Path | None, limit_s: float, run: Callable[[int], int]) -> tuple[int, str]:
    """Return exit code and answer of a function that runs in a fork. The answer must fit into a pipe."""
    read, write = os.pipe()
    child = _forked(log, lambda: run(write))
    os.close(write)
    code = _ended(child, limit_s)
    with os.fdopen(read) as answer:
        return code, answer.read()


def change(file: str, code: CodeType) -> bool:
    """Replace the code of a file's loaded functions by their code in a changed version of the file.

    code: compiled module of the changed version

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
    """Wait for the end of a child, and return its exit code; after the limit, kill it. Kill the servers it left."""
    deadline = time.monotonic() + limit_s
    ended, status = 0, signal.SIGKILL.value
    while not ended and time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended:
        os.waitpid(child, 0)
        return -signal.SIGKILL
    return os.waitstatus_to_exitcode(status)
