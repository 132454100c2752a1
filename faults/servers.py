"""Database servers available on this machine, by the kind of store in the registry of stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final

from faults.database_server import DatabaseServer
from faults.mariadb import find_mariadb, run_mariadb
from faults.postgres import find_postgres, run_postgres

SERVERS: Final[Mapping[str, Callable[[], AbstractContextManager[DatabaseServer]]]] = {
    "postgres": run_postgres,
    "mysql": run_mariadb,
}


def can_run(kind: str) -> bool:
    """Return True if this machine has the server for this kind of store. A store without a server can always run."""
    found = {"postgres": find_postgres, "mysql": find_mariadb}
    return kind not in found or found[kind]() is not None
