"""Sessions with a MySQL or MariaDB server, and how names and values come into a statement."""

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
"""What an address looks like, for messages."""

CONNECT_TIMEOUT_S = 10
"""How long a connection may take, in seconds."""

IDLE_S = 20
"""After how many seconds the server ends a driver's session that says nothing. No step of a driver pauses amid a
transaction, so that one that is frozen there keeps its locks for so long at most, also where nobody may KILL it."""

LOCK_TIMEOUT_S = 50
"""How long a statement waits for another session's lock, in seconds: longer than a frozen session can live."""

OF_SESSION = (
    # Strict: a value that does not fit is an error and never cut off. The mode is set whole, because others change
    # what a quotation mark or a backslash is.
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION'",
    "SET SESSION time_zone = '+00:00'",
    f"SET SESSION lock_wait_timeout = {LOCK_TIMEOUT_S}, innodb_lock_wait_timeout = {LOCK_TIMEOUT_S}",
    # Each statement sees what is committed; and jobs that share a table lock rows, not the gaps between them.
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)
"""What every session begins with, in the driver and in the tasks."""

OF_DRIVER = f"SET SESSION wait_timeout = {IDLE_S}, net_write_timeout = 3600"
"""A task has no such limit: between two batches it may wait for Kafka, and it keeps no transaction open meanwhile."""

MARIADB, MYSQL = (10, 6), (8, 0, 23)
"""The oldest versions whose CREATE TABLE survives a crash of the server and that know invisible columns."""

OPTIONS = frozenset({"unix_socket", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_identity"})
"""What may stand behind the `?` of a url; without ssl_*, encryption is used where the server offers it."""


class Server(NamedTuple):
    """What a session has to know of its server."""

    collation: str
    """By which 'a', 'A' and 'a ' are three values: none that has it is in both makes."""
    folds_names: bool
    """Whether `Results` and `results` are one table."""


@dataclass(frozen=True)
class Address:
    """Where a database is.

    Args:
        parameters: of `pymysql.connect`; may have a password in them.
        database: the one that is named in the url; may be empty.
        host: for messages.
    """

    parameters: Mapping[str, Any] = field(repr=False)
    database: str
    host: str


def read_url(url: str, password: str | None) -> Address:
    """The address for PyMySQL.

    Args:
        url: see `MysqlStore`.
        password: wins over one in the url.

    Raises:
        OptionRefused: it cannot be read, or PyMySQL is not installed. The url is not shown: it may have a password.
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
            f"the url of the database has {', '.join(unknown)}; there are: {', '.join(sorted(OPTIONS))}"
        )
    if "ssl_verify_identity" in options and options["ssl_verify_identity"] not in {"true", "false"}:
        raise OptionRefused("the url of the database: ssl_verify_identity is true or false")
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
    """A connection of the driver's, for the time of one call.

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
    """Refuse a connection to a proxy with its own sessions of the server.

    Args:
        address: of the connection.
        database: the connection.
        number: of the session, as the server counts it.

    Raises:
        StoreError: the greeting has named another session.
    """
    greeted = int(database.thread_id())  # type: ignore[no-untyped-call]
    if greeted != number % 2**32:  # four bytes of the greeting hold it
        raise StoreError(
            f"{address.host}: the connection leads to a pooler (ProxySQL, MaxScale or another one): it is session "
            f"{greeted} of that and session {number} of the server. Settings and locks of a session would stay with "
            "other programs, or be lost between two statements. Nothing was written. Let the url name the server "
            "itself, or a proxy that passes connections through (HAProxy)"
        )


def _collation(version: str) -> str:
    is_mariadb = "mariadb" in version.lower()
    # A MariaDB may call itself 5.5.5-10.11.19-MariaDB, for clients of old.
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
    """Commits unless something is raised."""
    import pymysql

    database.begin()
    try:
        yield
    except BaseException:
        with suppress(pymysql.Error):  # one that is lost is rolled back by the server
            database.rollback()
        raise
    database.commit()


def execute(database: Database, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement as it stands; its rows, if it has any."""
    with database.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def quoted(*names: str) -> str:
    """Names as SQL writes them, with dots between, whatever characters they have."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def literal(value: str | int) -> str:
    """A value as SQL writes it. Text is written in hexadecimal digits: no sql_mode changes what those mean."""
    return f"_utf8mb4 X'{value.encode().hex()}'" if isinstance(value, str) else str(int(value))


def spoken(error: Exception) -> Exception:
    """The same error with the server's sentence first and its number behind it."""
    if len(error.args) == 2 and isinstance(error.args[0], int) and error.args[1]:
        return type(error)(f"{error.args[1]} (error {error.args[0]})")
    return error
