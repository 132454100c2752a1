"""Sessions with a MySQL or MariaDB server, and quoting for its SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from kafka_ratchet.spark_sink.errors import OptionRefused, StoreError
from kafka_ratchet.spark_sink.extras import require_package

if TYPE_CHECKING:
    from typing import TypeAlias

    from pymysql.connections import Connection
    from pymysql.cursors import Cursor

    Database: TypeAlias = Connection[Cursor]

URL = "mysql://user@host:3306/database"
"""Form of a url, for messages."""

CONNECT_TIMEOUT_S = 10
"""Seconds to wait for a connection."""

IDLE_S = 20
"""Seconds after which the server ends a silent session of the driver. The driver never pauses within a transaction, so
the server ends only the session of a frozen driver. This frees the session's locks, even if no user has the right to
KILL the session."""

LOCK_TIMEOUT_S = 50
"""Seconds to wait for another session's lock: more than `IDLE_S`, after which a frozen session ends."""

OF_SESSION = (
    # Strict: a value that does not fit is an error and never cut off. The whole mode is set, because other modes change
    # the meaning of a quotation mark or a backslash.
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION'",
    "SET SESSION time_zone = '+00:00'",
    f"SET SESSION lock_wait_timeout = {LOCK_TIMEOUT_S}, innodb_lock_wait_timeout = {LOCK_TIMEOUT_S}",
    # Each statement sees committed rows; and jobs that share a table lock rows, not the gaps between them.
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)
"""Statements that begin every session, in the driver and in the tasks."""

OF_DRIVER = f"SET SESSION wait_timeout = {IDLE_S}, net_write_timeout = 3600"
"""Further statement that begins a session of the driver. A session of a task has no such limit: between two batches it
may wait for Kafka, without an open transaction."""

MARIADB, MYSQL = (10, 6), (8, 0, 23)
"""Oldest versions with invisible columns, and with CREATE TABLE statements that survive a crash of the server."""

OPTIONS = frozenset({"unix_socket", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_identity"})
"""Options that a url may have after its `?`; without ssl_*, the session is encrypted if the server offers it."""


class Server(NamedTuple):
    """Properties of a database server on which the SQL in its sessions depends."""

    collation: str
    """Collation that distinguishes 'a', 'A' and 'a '; MySQL and MariaDB have no such collation in common."""
    folds_names: bool
    """True if the server treats `Results` and `results` as one table."""


@dataclass(frozen=True)
class Address:
    """Address of a database server.

    Args:
        parameters: arguments of `pymysql.connect`; may include a password.
        database: name of the database in the url; may be empty.
        host: name of the host, for messages.
    """

    parameters: Mapping[str, Any] = field(repr=False)
    database: str
    host: str


def read_url(url: str, password: str | None) -> Address:
    """Parse the url of a database into arguments for PyMySQL.

    Args:
        url: see `MysqlStore`.
        password: password that replaces the one in the url; None: the url's password counts.

    Raises:
        OptionRefused: the url cannot be read, or PyMySQL is not installed. The message does not contain the url, which
            may have a password.
    """
    require_package("pymysql", "store mysql needs pymysql in the driver and in the executors")
    if not url:
        raise OptionRefused(f"store mysql needs a url. Write: {URL}")
    wrong = OptionRefused(f"the url of the database cannot be read. Write: {URL}")
    try:
        parts = urlsplit(url)
        port, options = parts.port or 3306, dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError:
        raise wrong from None
    if parts.scheme not in {"mysql", "mariadb"} or not (parts.hostname or "unix_socket" in options):
        raise wrong
    if unknown := sorted(set(options) - OPTIONS):
        raise OptionRefused(
            f"the url of the database has unknown options: {', '.join(unknown)}. Known are: "
            f"{', '.join(sorted(OPTIONS))}"
        )
    if "ssl_verify_identity" in options and options["ssl_verify_identity"] not in {"true", "false"}:
        raise OptionRefused("the url of the database: ssl_verify_identity must be true or false")
    parameters: dict[str, Any] = {**options, "host": parts.hostname or "localhost", "port": port}
    if "ssl_verify_identity" in options:
        parameters["ssl_verify_identity"] = options["ssl_verify_identity"] == "true"
    if "ssl_ca" in options:  # PyMySQL would take any certificate
        parameters["ssl_verify_cert"] = True
    parameters["user"] = unquote(parts.username or "")
    # As bytes: PyMySQL sends text as Latin-1.
    parameters["password"] = (unquote(parts.password or "") if password is None else password).encode()
    database = unquote(parts.path.removeprefix("/"))
    parameters |= {"charset": "utf8mb4", "connect_timeout": CONNECT_TIMEOUT_S, "autocommit": True}
    return Address(parameters, database, parts.hostname or options["unix_socket"])


@contextmanager
def session(address: Address) -> Iterator[tuple[Database, Server]]:
    """Connect the driver for the duration of one call.

    Raises:
        pymysql.Error: the server refuses, or does not answer.
        StoreError: the server is too old.
    """
    import pymysql

    with closing(pymysql.connect(**address.parameters, program_name="ratchet-sink")) as database:
        for statement in (*OF_SESSION, OF_DRIVER):
            execute(database, statement)
        # The sum is sent to the server: a proxy answers the plain function without it.
        [(version, folds_names, number)] = execute(
            database, "SELECT VERSION(), @@lower_case_table_names, CONNECTION_ID() + 0"
        )
        _require_direct(address, database, int(number))
        yield database, Server(_collation(str(version)), bool(int(folds_names)))


def _require_direct(address: Address, database: Database, number: int) -> None:
    """Refuse a connection to a proxy that shares sessions of the server between its clients.

    Args:
        address: address of the connection.
        database: the connection.
        number: id of the session by CONNECTION_ID().

    Raises:
        StoreError: the server's greeting named another session.
    """
    greeted = int(database.thread_id())  # type: ignore[no-untyped-call]
    if greeted != number % 2**32:  # four bytes of the greeting hold it
        raise StoreError(
            f"{address.host}: the connection leads to a pooler (ProxySQL, MaxScale or another one), because the "
            f"greeting names session {greeted} and the server names session {number}. A pooler shares sessions of the "
            "server between programs, so settings and locks of this job could reach another program, or be lost "
            "between two statements. Nothing was written. Let the url name the server itself, or a proxy that passes "
            "connections through (HAProxy)"
        )


def _collation(version: str) -> str:
    is_mariadb = "mariadb" in version.lower()
    # A MariaDB may call itself 5.5.5-10.11.19-MariaDB, for old clients.
    text = version.removeprefix("5.5.5-") if is_mariadb else version
    numbers = tuple(int(part) for part in text.partition("-")[0].split(".") if part.isdecimal())
    if numbers < (MARIADB if is_mariadb else MYSQL):
        raise StoreError(
            f"the server is {version}; store mysql needs MariaDB {'.'.join(map(str, MARIADB))} or MySQL "
            f"{'.'.join(map(str, MYSQL))} or newer. Upgrade the server"
        )
    return "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"


@contextmanager
def transaction(database: Database) -> Iterator[None]:
    """Run a transaction and commit it, unless the caller raises."""
    import pymysql

    database.begin()
    try:
        yield
    except BaseException:
        with suppress(pymysql.Error):  # the server rolls a lost session back
            database.rollback()
        raise
    database.commit()


def execute(database: Database, statement: str) -> list[tuple[Any, ...]]:
    """Execute a statement without parameters, and return its rows, if it has any."""
    with database.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def quoted(*names: str) -> str:
    """Quote names with any characters for SQL, and join them by dots."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def literal(value: str | int) -> str:
    """Return a value as SQL. Text is written in hexadecimal digits, which mean the same in every sql_mode."""
    return f"_utf8mb4 X'{value.encode().hex()}'" if isinstance(value, str) else str(int(value))


def spoken(error: Exception) -> Exception:
    """Return the error with the server's message first and the error number after it."""
    if len(error.args) == 2 and isinstance(error.args[0], int) and error.args[1]:
        return type(error)(f"{error.args[1]} (error {error.args[0]})")
    return error
