"""A real PostgreSQL for tests and fault runs, from the distribution's package, in a folder of its own."""

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

from app._embedded import free_port
from errors import SetupError

PATIENCE_S = 60.0
"""A server that is not up by then will not be; it takes a second or two."""

STOP_PATIENCE_S = 30.0
"""How long a server may take to stop before it is killed, in seconds."""


def find_postgres() -> Path | None:
    """Folder of `initdb` and `postgres`: Debian keeps them out of PATH, one folder per version."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: -int(folder.parent.name))
    for folder in [*versions, *(Path(part) for part in os.environ.get("PATH", "").split(os.pathsep) if part)]:
        if all(os.access(folder / program, os.X_OK) for program in ("initdb", "postgres")):
            return folder
    return None


class PostgresServer:
    """A server on a free port of 127.0.0.1, with a random password; `run_postgres` starts it.

    Args:
        programs: folder of its programs.
        folder: for its data; must be empty and, where this process is root, passable for others.
    """

    user = "ratchet"

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._data = folder / "data"
        self._log = folder / "log"
        self._server: subprocess.Popen[bytes] | None = None
        # The server refuses to run as root, so that it runs as somebody without rights.
        self._as_user = _unprivileged() if os.geteuid() == 0 else None
        self.password = secrets.token_hex(16)
        secret = folder / "password"
        secret.write_text(self.password)
        if self._as_user is not None:
            shutil.chown(folder, self._as_user)
            shutil.chown(secret, self._as_user)
        self._run("initdb", f"--pgdata={self._data}", f"--username={self.user}", f"--pwfile={secret}",
                  "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync")  # fmt: skip
        secret.unlink()
        self.port = free_port()  # it is stopped and started again here

    @property
    def url(self) -> str:
        """Its address, without the password."""
        return f"postgresql://{self.user}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it, and wait until it takes connections.

        Raises:
            SetupError: it does not.
        """
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "", "fsync": "off"}
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(
                [
                    self._programs / "postgres",
                    "-D",
                    self._data,
                    *(f"--{key}={value}" for key, value in settings.items()),
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
                raise SetupError(f"PostgreSQL does not start:\n{self._log.read_text('utf-8', 'replace')[-2000:]}")
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT ends its sessions and writes everything down, SIGQUIT leaves it as after a crash."""
        if self._server is None:
            return
        self._server.send_signal(how)
        try:
            self._server.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._server = None

    def _answers(self) -> bool:
        import psycopg

        try:
            with psycopg.connect(self.url, password=self.password, connect_timeout=5):
                return True
        except psycopg.OperationalError:
            return False

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments],
            user=self._as_user,
            extra_groups=None if self._as_user is None else [],
            capture_output=True,
            text=True,
            cwd="/",
        )
        if done.returncode:
            raise SetupError(f"{program} failed: {done.stderr.strip()}")


@contextmanager
def run_postgres() -> Iterator[PostgresServer]:
    """A running server, gone at the end.

    Raises:
        SetupError: there is none on this machine, or it does not start.
    """
    programs = find_postgres()
    if programs is None:
        raise SetupError(
            "there is no PostgreSQL on this machine. Install one: 'apt install postgresql' (Debian, Ubuntu), "
            "'dnf install postgresql-server' (Fedora), 'brew install postgresql' (macOS)"
        )
    # Of its own, directly below the folder for temporary files: the server's user has to get there.
    folder = Path(tempfile.mkdtemp(prefix="ratchet-postgres-"))
    server = None
    try:
        server = PostgresServer(programs, folder)
        server.start()
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged() -> str:
    import pwd

    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise SetupError("PostgreSQL does not run as root, and there is neither a user postgres nor nobody to run it as")
