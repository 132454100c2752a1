"""A real PgBouncer in front of a PostgreSQL, for tests and fault runs.

Its program is the distribution's.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from faults.database_server import DatabaseServer, running
from faults.postgres import PostgresServer
from kafka_ratchet.errors import SetupError

HOW_TO_INSTALL = "Install one: 'apt install pgbouncer' (Debian, Ubuntu), 'brew install pgbouncer' (macOS)"


def find_pgbouncer() -> str | None:
    """Return the path of the distribution's program; None where it is not installed."""
    return shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))


class Pgbouncer(DatabaseServer):
    """Connection pooler with two sessions to the server, which clients share by transaction, session or statement.

    Args:
        program: path from `find_pgbouncer`.
        server: PostgreSQL server that the pooler connects to.
        pool_mode: "transaction", "session" or "statement".
        folder: folder for the settings.
    """

    title, own_user = "PgBouncer", "postgres"
    stops, crashes = signal.SIGINT, signal.SIGKILL

    def __init__(self, program: str, server: PostgresServer, pool_mode: str, folder: Path) -> None:
        super().__init__(folder)
        self._program = program
        self.password = server.password
        self._settings = folder / "settings.ini"
        users = folder / "users"
        users.write_text(f'"{server.user}" "{server.password}"\n')
        self._settings.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = scram-sha-256\nauth_file = {users}\npool_mode = {pool_mode}\n"
            "default_pool_size = 2\nmax_client_conn = 50\n"
        )
        for path in (users, self._settings):
            self._give(path)

    @property
    def url(self) -> str:
        """Return the pooler's address, without the password."""
        return f"postgresql://{self.user}@127.0.0.1:{self.port}/postgres"

    def _command(self) -> Sequence[str | Path]:
        return [self._program, self._settings]

    def _answers(self) -> bool:
        import psycopg

        try:
            with psycopg.connect(self.url, password=self.password, connect_timeout=5, autocommit=True):
                return True
        except psycopg.OperationalError:
            return False


@contextmanager
def run_pgbouncer(server: PostgresServer, pool_mode: str = "transaction") -> Iterator[Pgbouncer]:
    """Yield a running pooler in front of a server; stop it at the end.

    Raises:
        SetupError: PgBouncer is not installed, or does not start.
    """
    program = find_pgbouncer()
    if program is None:
        raise SetupError(f"there is no PgBouncer on this machine. {HOW_TO_INSTALL}")
    with running(partial(Pgbouncer, program, server, pool_mode), "pgbouncer") as pooler:
        yield pooler
