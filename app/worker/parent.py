"""Parent of worker processes: forks them, replaces dead ones, and ends all of them on request.

A forked process has everything that the parent has imported and compiled, within milliseconds. It lacks the parent's
threads, but inherits the locks that they hold. So the parent must have no other thread (`refuse_threads`), and thus no
client of Kafka and no store. The parent has no event loop either, and only waits for signals.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import structlog

from kafka_ratchet.errors import RatchetError, SettingsError, SetupError

log = structlog.get_logger(__name__)

REFUSED: Final = 2
"""Exit code of a process that cannot work and has reported why. It is not started again."""
LATER: Final = 75
"""Exit code of a process that cannot work yet (EX_TEMPFAIL of sysexits.h). It is started again after a pause."""
CRASHED: Final = 1

STEADY_S: Final = 5.0
"""Seconds after which a process counts as steady. A steady process that dies is replaced at once.

A process that dies earlier is replaced at once only the first time, and later after pauses: the cause of a death
at the start is likely to recur.
"""
PAUSE_FIRST_S: Final = 1.0
PAUSE_MOST_S: Final = 30.0

SENTENCE_BYTES: Final = 32_768
"""Maximum number of bytes of a process's message that it cannot work. A pipe buffers that much without a reader."""

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


class NotReady(Exception):
    """Reason why a process cannot work yet. The parent starts it again after a pause."""


@dataclass(frozen=True, slots=True)
class ProcessRole:
    """Name and work of one process under the parent.

    name: name in the log, and in `ps` and `top`, which show 15 characters
    work: function that runs in the process, and returns after SIGTERM
    ends_last: True to end the process after all others
    """

    name: str
    work: Callable[[], None]
    ends_last: bool = False


@dataclass(slots=True)
class _Process:
    role: ProcessRole
    pid: int | None = None
    began: float = 0.0
    deaths: int = 0
    """Number of deaths in a row since the last steady run."""
    due: float | None = 0.0
    """Time of the next start, by the monotonic clock; None: the process runs, or is not started again."""
    code: int = 0
    refusal: int = -1
    """Descriptor for the parent to read the process's message that it cannot work."""


class Parent:
    """Supervisor that keeps one process of each role running.

    Args:
        roles: roles, in the order of their processes' starts.
        stop_within_s: seconds after SIGTERM until a process is killed.
        steady_s: see `STEADY_S`.
        pause_s: first pause before a restart, in seconds; each further one is twice as long, up to `PAUSE_MOST_S`.
    """

    def __init__(
        self,
        roles: Sequence[ProcessRole],
        stop_within_s: float,
        *,
        steady_s: float = STEADY_S,
        pause_s: float = PAUSE_FIRST_S,
    ) -> None:
        self._processes = [_Process(role) for role in roles]
        self._stop_within_s, self._steady_s, self._pause_s = stop_within_s, steady_s, pause_s
        self._alive = os.pipe()
        """Pipe without data. Its write end closes when the parent dies; the processes notice at the read end."""
        self._stops = False
        self._refusal: str | None = None
        self.replaced = memoryview(mmap.mmap(-1, 8 * len(roles))).cast("Q")
        """Number of replaced processes by role, in memory shared with all processes."""

    def run(self) -> int:
        """Run the processes until SIGTERM or SIGINT, then end them.

        Returns:
            exit code: 0, or 1 if a process did not end properly on request

        Raises:
            RatchetError: a process cannot work; the text is its own message. The others have ended.
            SettingsError: the parent has more than its main thread.
        """
        with self._signals() as wake:
            try:
                while not self._stops and self._refusal is None:
                    self._start_due()
                    self._wait(wake, self._next_due())
                    self._reap()
            finally:
                code = self._end(wake)
        if self._refusal is not None:
            raise RatchetError(self._refusal)
        return code

    @contextmanager
    def _signals(self) -> Iterator[socket.socket]:
        """Handle signals, and yield a socket that becomes readable when one arrives."""

        def stop(_number: int, _frame: object) -> None:
            self._stops = True

        def ended(_number: int, _frame: object) -> None:
            """Do nothing: Python has already written to the socket."""

        wake, write = socket.socketpair()
        wake.setblocking(False)
        write.setblocking(False)
        before = {number: signal.signal(number, stop) for number in _STOP_SIGNALS}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, ended)
        signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        try:
            yield wake
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
            wake.close()
            write.close()

    def _wait(self, wake: socket.socket, limit_s: float | None) -> None:
        select.select([wake], [], [], limit_s)
        with suppress(BlockingIOError):
            wake.recv(4096)

    def _next_due(self) -> float | None:
        """Return the seconds until the next process is started; None if none is due."""
        waits = [each.due for each in self._processes if each.due is not None]
        return max(0.0, min(waits) - time.monotonic()) if waits else None

    def _start_due(self) -> None:
        for process in self._processes:
            if process.due is not None and process.due <= time.monotonic() and not self._stops:
                self._start(process)

    def _start(self, process: _Process) -> None:
        refuse_threads()
        own, read, write = os.getpid(), *os.pipe()
        # A signal that came before the process has handlers of its own would wake, and stop, its parent.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [*_STOP_SIGNALS, signal.SIGCHLD])
        try:
            pid = os.fork()
            if not pid:
                os.close(read)
                _become(process.role, own, write, self._watch_parent)
        except OSError as error:
            os.close(read)
            log.error("a process cannot be forked", process=process.role.name, reason=str(error))
            self._put_off(process)
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(write)
        process.pid, process.began, process.due, process.refusal = pid, time.monotonic(), None, read

    def _watch_parent(self) -> None:
        """Start a thread that kills this process some time after its parent has died.

        It runs in the child process. A user's program may block the main thread and so ignore SIGTERM; without a
        parent nothing else would kill it.
        """
        read, write = self._alive
        os.close(write)
        threading.Thread(target=_end_after, args=(read, self._stop_within_s), name="parent", daemon=True).start()

    def _reap(self) -> None:
        """Collect the ended processes, and plan the restart of each that may start again."""
        for process in self._processes:
            if process.pid is None:
                continue
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if not pid:
                continue
            process.code = os.waitstatus_to_exitcode(status)
            process.pid = None
            sentence = _read_message(process.refusal)
            if self._stops or self._refusal is not None:
                continue
            if process.code == REFUSED and sentence:
                self._refusal = sentence
            else:
                self._replace(process, pid)

    def _replace(self, process: _Process, pid: int) -> None:
        self.replaced[self._processes.index(process)] += 1
        if time.monotonic() - process.began >= self._steady_s:
            process.deaths = 0
        again_in_s = self._put_off(process, at_once=process.code != LATER)
        signalled = process.code < 0
        log.warning(
            "a process has ended; starting it again",
            process=process.role.name,
            pid=pid,
            **{"signal" if signalled else "exit_code": abs(process.code)},
            again_in_s=again_in_s,
        )
        process.code = 0

    def _put_off(self, process: _Process, *, at_once: bool = False) -> float:
        """Set the time of a process's next start, and return the seconds until then."""
        process.deaths += 1
        pauses = process.deaths - at_once
        pause_s = min(PAUSE_MOST_S, self._pause_s * 2 ** min(pauses - 1, 16)) if pauses else 0.0
        process.due = time.monotonic() + pause_s
        return pause_s

    def _end(self, wake: socket.socket) -> int:
        """End all processes, and those with `ends_last` after the others; return the exit code."""
        self._stops = True
        deadline = time.monotonic() + self._stop_within_s
        for last in (False, True):
            ending = [each for each in self._processes if each.role.ends_last == last]
            for process in ending:
                if process.pid is not None:  # not waited for before `_reap`, so that the id is of no other process
                    os.kill(process.pid, signal.SIGTERM)
            while any(each.pid is not None for each in ending):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    for process in ending:
                        if process.pid is not None:
                            log.error("a process did not end in time; killed", process=process.role.name)
                            os.kill(process.pid, signal.SIGKILL)
                self._wait(wake, max(0.1, left_s))
                self._reap()
        # A process stopped before it listened ends by the signal.
        fine = {0, *(-number for number in _STOP_SIGNALS)}
        return 0 if all(each.code in fine for each in self._processes) else CRASHED


def _read_message(refusal: int) -> str:
    """Read the message of an ended process from its descriptor, and close the descriptor."""
    os.set_blocking(refusal, False)  # it may have left a process of its own, which holds the other end
    with os.fdopen(refusal, "rb", buffering=0) as pipe:
        return (pipe.read(SENTENCE_BYTES) or b"").decode("utf-8", "replace")


def refuse_threads() -> None:
    """Refuse a fork while this process has more than its main thread.

    Raises:
        SettingsError: this process has more threads.
    """
    main = threading.main_thread().native_id
    names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    tasks = [task for task in Path("/proc/self/task").iterdir() if task.name != str(main)]
    if names or tasks:
        which = ", ".join(names) or ", ".join((task / "comm").read_text().strip() for task in tasks)
        raise SettingsError(
            f"processes: there are threads before the processes are forked ({which}), and a forked process would lack "
            "them. Start threads in an agent or a timer, not while a module is imported. A library that starts threads "
            "by itself often has a variable to prevent it, such as OPENBLAS_NUM_THREADS=1. Or set processes = 1"
        )


def ask(work: Callable[[], bytes]) -> bytes:
    """Run `work` in a forked process, and return its result. So the threads of `work` end with that process.

    Raises:
        RatchetError: `work` has raised one; the text is the same.
        SetupError: the process ended without a result.
        SettingsError: this process has more than its main thread.
    """
    refuse_threads()
    own, answer, write = os.getpid(), *os.pipe()
    refusal, refuse = os.pipe()

    def write_result() -> None:
        with os.fdopen(write, "wb") as pipe:
            pipe.write(work())

    if not (pid := os.fork()):
        _become(ProcessRole("ratchet/prepare", write_result), own, refuse)
    os.close(write)
    os.close(refuse)
    with os.fdopen(answer, "rb") as pipe, os.fdopen(refusal, "rb") as message:
        result, sentence = pipe.read(), message.read().decode("utf-8", "replace")
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if sentence:
        raise RatchetError(sentence)
    if code:
        ended = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        raise SetupError(f"the process that prepares the topics has ended {ended}; start the worker again")
    return result


def _end_after(alive: int, within_s: float) -> None:
    """Wait for the parent's death, and kill this process some seconds later.

    alive: read end of a pipe; only the parent holds its write end
    """
    os.read(alive, 1)
    time.sleep(within_s)
    os.kill(os.getpid(), signal.SIGKILL)


def _become(role: ProcessRole, parent: int, refusal: int, first: Callable[[], None] = lambda: None) -> NoReturn:
    """Run `first` and then a role's work in a newly forked process, and end the process.

    Never returns, so that no `finally` and no `with` of the parent's code runs in the child.
    """
    code = CRASHED
    try:
        signal.set_wakeup_fd(-1)
        for number in (*_STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        _end_with(parent, role.name)
        first()  # while signals are blocked: a thread of its own is to take none
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [*_STOP_SIGNALS, signal.SIGCHLD])
        role.work()
        code = 0
    except RatchetError as error:
        os.write(refusal, str(error).encode("utf-8", "replace")[:SENTENCE_BYTES])
        code = REFUSED
    except NotReady as error:
        log.warning("a process cannot work yet, and will be started again", process=role.name, reason=str(error))
        code = LATER
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else CRASHED if ended.code else 0
    except BaseException:
        sys.excepthook(*sys.exc_info())  # which leaves secrets out
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _end_with(parent: int, name: str) -> None:
    """Have Linux send SIGTERM to this process when its parent dies, and set the process's name.

    Linux sends the signal when the forking thread of the parent ends; the parent has only one thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
    if os.getppid() != parent:  # it died before
        os._exit(0)
