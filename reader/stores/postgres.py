"""Store in a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from kafka_ratchet.errors import DatabaseUnavailable, SettingsError

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]
    Cursor = psycopg.Cursor[tuple[Any, ...]]

APPLICATION: Final = "ratchet-reader"
"""Application name of a reader's session in pg_stat_activity; a transaction appends a space and the owner's id.

Between transactions a pooler gives the session to other programs, and a take-over must not end it then.
"""

LOCK_TIMEOUT_MS: Final = 10_000
"""Longest wait of a take-over for a row that another process has changed, in ms; then it tries again."""


RULES: Final = (
    "SELECT 'trigger ' || tgname AS name FROM pg_trigger WHERE tgrelid = to_regclass(%(table)s) AND NOT tgisinternal "
    "AND tgenabled <> 'D' UNION SELECT 'rule ' || rulename FROM pg_rewrite WHERE ev_class = to_regclass(%(table)s) "
    "AND rulename <> '_RETURN' UNION SELECT 'policy ' || polname FROM pg_policy WHERE polrelid = to_regclass(%(table)s)"
    " UNION SELECT 'row-level security' WHERE row_security_active(to_regclass(%(table)s)::oid) ORDER BY name"
)
"""Query for triggers, rules and policies of a table."""

CREATE_LOCK: Final = 0x7261746368657452
"""Advisory lock for creating the table: "ratchetR" in ASCII."""


class Postgres:
    """PostgreSQL database for rows and positions.

    Args:
        dsn: connection string of libpq. Put a password into PGPASSWORD or ~/.pgpass instead.
        connect_s: how long a connection may take, in seconds.
    """

    placeholder = "%s"

    def __init__(self, dsn: str = "", *, connect_s: float = 10.0) -> None:
        from psycopg import ProgrammingError, conninfo

        self._dsn, self._connect_s = dsn, connect_s
        try:
            known = conninfo.conninfo_to_dict(dsn)
        except ProgrammingError as error:
            raise SettingsError(f"PostgreSQL: the connection string is invalid ({error}). Correct it") from None
        host, name = known.get("host", "the default host"), known.get("dbname", "the default database")
        self.where = f"PostgreSQL {name} on {host}"

    def connect(self, owner: str) -> PostgresDatabase:
        """Connect once; see `Store.connect`."""
        import psycopg

        connection: Connection | None = None
        try:
            connection = psycopg.connect(
                self._dsn,
                autocommit=True,
                application_name=APPLICATION,
                connect_timeout=max(1, round(self._connect_s)),
                client_encoding="UTF8",
                prepare_threshold=None,  # a pooler gives the next transaction another server session
            )
            with connection.transaction():
                connection.execute("SELECT 1")
        except psycopg.Error as error:
            if connection is not None:
                connection.close()
            if isinstance(error, psycopg.errors.ProtocolViolation):
                raise SettingsError(
                    f"{self.where}: a pooler refuses transactions ({str(error).strip()}), but rows and positions "
                    "are committed together. Let it pool transactions or sessions, or connect to the server itself"
                ) from error
            raise DatabaseUnavailable(
                f"{self.where} cannot be reached: {str(error).strip()}. Check that the server runs, and the "
                "connection string"
            ) from error
        return PostgresDatabase(connection, owner)

    def is_away(self, error: Exception) -> bool:
        """Return True for an error of the connection or a lock; see `Store.is_away`."""
        import psycopg

        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)


class PostgresDatabase:
    """Connection to PostgreSQL. During the reader's transaction psycopg refuses the program's `connection.commit()`.

    Args:
        connection: connection in autocommit mode.
        owner: id of this process, which its session shows within a transaction.
    """

    def __init__(self, connection: Connection, owner: str) -> None:
        self.connection = connection
        self._name = f"{APPLICATION} {owner}"
        self._transaction: Any = None
        self._cursor: Cursor | None = None
        self._began: Any = None

    def create(self, table: str, statement: str) -> None:
        """Create a table if it is missing; see `Database.create`.

        A user without the right needs a table that an administrator has created.
        """
        [(there,)] = self.ask("SELECT to_regclass(%s)", (table,))
        if there is None:
            with self.connection.transaction():  # two that create a table at once may meet in the catalogue
                self.connection.execute("SELECT pg_advisory_xact_lock(%s)", (CREATE_LOCK,))
                self.execute(statement)

    def begin(self) -> None:
        """Begin a transaction; see `Database.begin`."""
        self._transaction = self.connection.transaction()
        self._transaction.__enter__()
        # The name is the transaction's, since a pooler gives the session to other programs afterwards.
        [(self._began, _)] = self.ask("SELECT now(), set_config('application_name', %s, true)", (self._name,))

    def _now(self) -> Any:
        """Return the open transaction's start time by the server's clock, which identifies the transaction."""
        [(now,)] = self.ask("SELECT now()")
        return now

    def is_in_transaction(self) -> bool:
        """Return True if the transaction is still open; see `Database.is_in_transaction`."""
        from psycopg.pq import TransactionStatus

        status = self.connection.info.transaction_status
        # After COMMIT AND CHAIN, or COMMIT and BEGIN, another transaction is open.
        return status != TransactionStatus.IDLE and (status != TransactionStatus.INTRANS or self._now() == self._began)

    def has_ended(self) -> bool:
        """Return True if the transaction is known to have ended; see `Database.has_ended`."""
        from psycopg.pq import TransactionStatus

        return self.connection.info.transaction_status == TransactionStatus.IDLE

    def commit(self) -> None:
        """Commit the transaction; see `Database.commit`."""
        transaction, self._transaction = self._transaction, None
        transaction.__exit__(None, None, None)

    def rollback(self) -> None:
        """Roll the transaction back; see `Database.rollback`."""
        import psycopg
        from psycopg.pq import TransactionStatus

        transaction, self._transaction = self._transaction, None
        try:
            if transaction is not None:
                failure = psycopg.Rollback()
                with suppress(psycopg.Error):
                    transaction.__exit__(type(failure), failure, None)
        finally:
            # Psycopg did not end it, or was interrupted: the server ends it when the connection closes, and
            # we connect again. A transaction begun here would be a savepoint within it, and never be
            # committed.
            if self.connection.info.transaction_status != TransactionStatus.IDLE:
                self.connection.close()

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Execute a statement; see `Database.execute`."""
        # A cursor costs as much as an insert. One with rows may still be read from.
        if self._cursor is None or self._cursor.description is not None:
            self._cursor = self.connection.cursor()
        return self._cursor.execute(statement, parameters or None)

    def ask(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of one of the reader's own statements; see `Database.ask`."""
        from psycopg.rows import tuple_row

        with self.connection.cursor(row_factory=tuple_row) as cursor:
            return cursor.execute(statement, parameters or None).fetchall()

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each sequence of parameters; see `Database.executemany`."""
        with self.connection.cursor() as cursor:
            cursor.executemany(statement, parameters)

    def run_deferred(self) -> None:
        """Run deferred triggers now; see `Database.run_deferred`."""
        self.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def rules_of(self, table: str) -> list[str]:
        """Return triggers, rules and policies of a table; see `Database.rules_of`."""
        from psycopg.rows import tuple_row

        with self.connection.cursor(row_factory=tuple_row) as cursor:
            return [name for (name,) in cursor.execute(RULES, {"table": table}).fetchall()]

    def end_sessions(self, owners: Sequence[str]) -> None:
        """End the sessions of these owners; see `Database.end_sessions`."""
        self.connection.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
        names = [f"{APPLICATION} {owner}" for owner in owners]
        self.connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE application_name = ANY(%s) AND datname = current_database() AND pid <> pg_backend_pid()",
            (names,),
        )

    def close(self) -> None:
        """Close the connection; see `Database.close`."""
        self.connection.close()
