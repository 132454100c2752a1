"""A real MariaDB for tests and fault runs, with its data in a folder of its own.

Its programs are the distribution's: no package registry of Python or Java offers a server of MySQL or MariaDB.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from faults.database_server import DatabaseServer, running
from kafka_ratchet.errors import SetupError

HOW_TO_INSTALL = (
    "Install one: 'apt install mariadb-server' (Debian, Ubuntu), 'dnf install mariadb-server' (Fedora), "
    "'brew install mariadb' (macOS)"
)


class Programs(NamedTuple):
    """Paths of the programs that create MariaDB's data folder and serve it."""

    install: str
    server: str


def find_mariadb() -> Programs | None:
    """Return the paths of the distribution's programs; None where they are not installed."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/libexec", "/usr/local/sbin"])
    install, server = shutil.which("mariadb-install-db", path=path), shutil.which("mariadbd", path=path)
    return Programs(install, server) if install and server else None


class MariadbServer(DatabaseServer):
    """MariaDB server, started by `run_mariadb`; see `DatabaseServer`.

    Args:
        programs: paths from `find_mariadb`.
        folder: folder for the data.
    """

    title, own_user = "MariaDB", "mysql"
    stops, crashes = signal.SIGTERM, signal.SIGKILL

    def __init__(self, programs: Programs, folder: Path) -> None:
        super().__init__(folder)
        self._programs = programs
        self._run(Path(programs.install), "--no-defaults", f"--datadir={self._data}", "--skip-test-db",
                  "--skip-name-resolve", "--auth-root-authentication-method=normal")  # fmt: skip
        # Before it listens anywhere: the password, and a database for results. Others than this user cannot get in.
        self._first = folder / "first.sql"
        self._first.touch(mode=0o600)
        self._first.write_text(
            "DROP USER IF EXISTS 'root'@'localhost', ''@'localhost';\n"
            f"CREATE OR REPLACE USER '{self.user}'@'127.0.0.1' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO '{self.user}'@'127.0.0.1' WITH GRANT OPTION;\n"
            "CREATE DATABASE IF NOT EXISTS results;\n"
        )
        self._give(self._first)
        self._socket = folder / "socket"

    @property
    def url(self) -> str:
        """Return the server's address with a database, without the password."""
        return f"mysql://{self.user}@127.0.0.1:{self.port}/results"

    def _command(self) -> Sequence[str | Path]:
        return [
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
            # Unfit for the store: a session of its own mode has to set these right.
            "--sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT",
            "--default-storage-engine=MyISAM",
            "--character-set-server=latin1",
            "--default-time-zone=+05:30",
        ]

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
    """Yield a running server; stop it and remove its data at the end.

    Raises:
        SetupError: MariaDB is not installed, or does not start.
    """
    programs = find_mariadb()
    if programs is None:
        raise SetupError(f"there is no MariaDB on this machine. {HOW_TO_INSTALL}")
    with running(partial(MariadbServer, programs), "mariadb") as server:
        yield server
