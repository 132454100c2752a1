"""A real MariaDB for tests and fault runs, in a folder of its own. Its programs are the distribution's.

No package registry that Python or Java knows carries a server of MySQL or MariaDB.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kafka_ratchet.app.local.ports import free_port
from kafka_ratchet.errors import SetupError

PATIENCE_S = 60.0
"""A server that is not up by then will not be; it takes some seconds."""

STOP_PATIENCE_S = 30.0
"""How long a server may take to stop before it is killed, in seconds."""

HOW_TO_INSTALL = (
    "Install one: 'apt install mariadb-server' (Debian, Ubuntu), 'dnf install mariadb-server' (Fedora), "
    "'brew install mariadb' (macOS)"
)


class Programs(NamedTuple):
    """What makes a folder of data, and what serves it."""

    install: str
    server: str


def find_mariadb() -> Programs | None:
    """The distribution's programs; None where they are not installed."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/libexec", "/usr/local/sbin"])
    install, server = shutil.which("mariadb-install-db", path=path), shutil.which("mariadbd", path=path)
    return Programs(install, server) if install and server else None


class MariadbServer:
    """A server on a free port of 127.0.0.1, with a random password; `run_mariadb` starts it.

    Args:
        programs: see `find_mariadb`.
        folder: for its data; must be empty and, where this process is root, passable for others.
    """

    user = "ratchet"

    def __init__(self, programs: Programs, folder: Path) -> None:
        self._programs, self._data, self._log = programs, folder / "data", folder / "log"
        self._server: subprocess.Popen[bytes] | None = None
        # The server refuses to run as root, so that it runs as somebody without rights.
        self._as_user = _unprivileged() if os.geteuid() == 0 else None
        self.password = secrets.token_hex(16)
        if self._as_user is not None:
            shutil.chown(folder, self._as_user)
        done = subprocess.run(
            [programs.install, "--no-defaults", f"--datadir={self._data}", "--skip-test-db", "--skip-name-resolve",
             "--auth-root-authentication-method=normal"],
            user=self._as_user, extra_groups=None if self._as_user is None else [],
            capture_output=True, text=True, cwd="/",
        )  # fmt: skip
        if done.returncode:
            raise SetupError(f"mariadb-install-db failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        # Before it listens anywhere: the password, and a database for results. Others than this user cannot get in.
        self._first = folder / "first.sql"
        self._first.touch(mode=0o600)
        self._first.write_text(
            "DROP USER IF EXISTS 'root'@'localhost', ''@'localhost';\n"
            f"CREATE OR REPLACE USER '{self.user}'@'127.0.0.1' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO '{self.user}'@'127.0.0.1' WITH GRANT OPTION;\n"
            "CREATE DATABASE IF NOT EXISTS results;\n"
        )
        if self._as_user is not None:
            shutil.chown(self._first, self._as_user)
        self._socket = folder / "socket"
        self.port = free_port()  # it is stopped and started again here

    @property
    def url(self) -> str:
        """Its address with a database, without the password."""
        return f"mysql://{self.user}@127.0.0.1:{self.port}/results"

    def start(self) -> None:
        """Start it, and wait until it takes connections.

        Raises:
            SetupError: it does not.
        """
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(
                [
                    self._programs.server,
                    "--no-defaults",
                    f"--datadir={self._data}",
                    f"--socket={self._socket}",
                    f"--pid-file={self._data}/pid",
                    f"--port={self.port}",
                    "--bind-address=127.0.0.1",
                    "--skip-name-resolve",
                    f"--init-file={self._first}",
                    # Nothing of the data has to outlive the machine, and little is in it.
                    "--innodb-flush-log-at-trx-commit=2",
                    "--innodb-buffer-pool-size=64M",
                    # Not what the store needs: a session of its own mode has to set these right.
                    "--sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT",
                    "--default-storage-engine=MyISAM",
                    "--character-set-server=latin1",
                    "--default-time-zone=+05:30",
                ],
                user=self._as_user,
                extra_groups=None if self._as_user is None else [],
                stdout=log,
                stderr=log,
                cwd="/",
            )
        deadline = time.monotonic() + PATIENCE_S
        while not self._answers():
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise SetupError(f"MariaDB does not start:\n{self._log.read_text('utf-8', 'replace')[-2000:]}")
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop it: SIGTERM ends its sessions and writes everything down, SIGKILL does nothing of it."""
        if self._server is None:
            return
        self._server.send_signal(how)
        try:
            self._server.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._server = None

    def crash(self) -> None:
        """Leave it as after a crash."""
        self.stop(signal.SIGKILL)

    def _answers(self) -> bool:
        import pymysql

        try:
            pymysql.connect(
                host="127.0.0.1", port=self.port, user=self.user, password=self.password, connect_timeout=5
            ).close()
            return True
        except pymysql.OperationalError:
            return False


@contextmanager
def run_mariadb() -> Iterator[MariadbServer]:
    """A running server, gone at the end.

    Raises:
        SetupError: there is none on this machine, or it does not start.
    """
    programs = find_mariadb()
    if programs is None:
        raise SetupError(f"there is no MariaDB on this machine. {HOW_TO_INSTALL}")
    # Of its own, directly below the folder for temporary files: the server's user has to get there.
    folder = Path(tempfile.mkdtemp(prefix="ratchet-mariadb-"))
    server = None
    try:
        server = MariadbServer(programs, folder)
        server.start()
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged() -> str:
    import pwd

    for name in ("mysql", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise SetupError("MariaDB does not run as root, and there is neither a user mysql nor nobody to run it as")
