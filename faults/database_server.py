"""Base class of the real database servers for tests and fault runs, PostgreSQL and MariaDB."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, TypeVar

from kafka_ratchet.app.local.ports import free_port
from kafka_ratchet.errors import SetupError

PATIENCE_S = 60.0
"""Seconds until a started server must accept connections."""

STOP_PATIENCE_S = 30.0
"""Seconds that a stopped server has to end before it is killed."""


class DatabaseServer:
    """Database server on a free port of 127.0.0.1, with a random password; `running` starts it.

    A subclass creates the data in its constructor. It defines the command that starts the server, the check for
    connections, and the signals that stop it.

    Args:
        folder: empty folder for the data. If this process is root, other users must be able to enter the folder.
    """

    title: ClassVar[str]
    """Name of the server in messages."""

    own_user: ClassVar[str]
    """User that the distribution's package creates for the server."""

    stops: ClassVar[signal.Signals]
    """Signal at which the server ends its sessions and writes all data to its files."""

    crashes: ClassVar[signal.Signals]
    """Signal at which the server ends as in a crash."""

    user = "ratchet"

    def __init__(self, folder: Path) -> None:
        self._data, self._log = folder / "data", folder / "log"
        self._server: subprocess.Popen[bytes] | None = None
        # The server refuses to run as root, so it runs as a user without rights.
        self._as_user = self._unprivileged() if os.geteuid() == 0 else None
        self._give(folder)
        self.password = secrets.token_hex(16)
        self.port = free_port()  # it is stopped and started again here

    @property
    def url(self) -> str:
        """Return the server's address, without the password."""
        raise NotImplementedError

    def _command(self) -> Sequence[str | Path]:
        """Return the program that serves the data, with its arguments."""
        raise NotImplementedError

    def _answers(self) -> bool:
        """Return True if the server accepts connections."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the server, and wait until it accepts connections.

        Raises:
            SetupError: the server has ended, or accepts no connection in time.
        """
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(
                self._command(),
                user=self._as_user,
                extra_groups=None if self._as_user is None else [],
                stdout=log,
                stderr=log,
                cwd="/",
            )
        deadline = time.monotonic() + PATIENCE_S
        while not self._answers():
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise SetupError(f"{self.title} does not start:\n{self._log.read_text('utf-8', 'replace')[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server as an operator does."""
        self._end(self.stops)

    def crash(self) -> None:
        """End the server as in a crash."""
        self._end(self.crashes)

    def _end(self, how: signal.Signals) -> None:
        if self._server is None:
            return
        self._server.send_signal(how)
        try:
            self._server.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._server = None

    def _give(self, path: Path) -> None:
        """Make the server's user the owner of a file or folder."""
        if self._as_user is not None:
            shutil.chown(path, self._as_user)

    def _run(self, program: Path, *arguments: str) -> None:
        """Run one of the server's other programs to its end."""
        done = subprocess.run(
            [program, *arguments],
            user=self._as_user,
            extra_groups=None if self._as_user is None else [],
            capture_output=True,
            text=True,
            cwd="/",
        )
        if done.returncode:
            raise SetupError(f"{program.name} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")

    def _unprivileged(self) -> str:
        import pwd

        for name in (self.own_user, "nobody"):
            try:
                return pwd.getpwnam(name).pw_name
            except KeyError:
                continue
        raise SetupError(
            f"{self.title} does not run as root, and neither of the users {self.own_user} and nobody exists to run it"
        )


Server = TypeVar("Server", bound=DatabaseServer)


@contextmanager
def running(make: Callable[[Path], Server], name: str) -> Iterator[Server]:
    """Yield a running server; stop it and remove its folder at the end.

    Args:
        make: function that makes the server, given an empty folder.
        name: part of the folder's name.

    Raises:
        SetupError: the server does not start.
    """
    # A new folder directly below that for temporary files, which the server's user can reach.
    folder = Path(tempfile.mkdtemp(prefix=f"ratchet-{name}-"))
    server = None
    try:
        server = make(folder)
        server.start()
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
