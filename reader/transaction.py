"""Records with one database transaction: the program's rows, and the offsets after the records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kafka_ratchet.errors import ReaderFenced, ReaderMisused
from kafka_ratchet.reader.event import Event
from kafka_ratchet.reader.stores.database import Database, Rows, ends_transaction

if TYPE_CHECKING:
    import pyarrow as pa


class Transaction:
    """Transaction with records, which commits when the loop requests the next one.

    Args:
        events: records of the transaction.
        database: database within the transaction.
        commit: function that stores the positions and commits; returns False after a rollback, because the positions
            were moved in between.
    """

    def __init__(self, events: list[Event], database: Database, commit: Callable[[], bool]) -> None:
        self.events = events
        """Records in the order of each partition's offsets."""
        self._database, self._commit = database, commit
        self._is_open = True

    @property
    def connection(self) -> Any:
        """Return the driver's own connection, within the transaction.

        The program must not commit it or roll it back.

        Raises:
            ReaderMisused: the transaction has ended.
        """
        self._require_open()
        return self._database.connection

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Rows:
        """Execute a statement of the program.

        Args:
            statement: SQL with the driver's placeholders: `?`, or `%s` for PostgreSQL.
            parameters: values of the placeholders.

        Returns:
            the driver's cursor

        Raises:
            ReaderMisused: the statement would end the transaction, or the transaction has ended.
            Exception: the driver's own errors.
        """
        self._require_allowed(statement)
        return self._database.execute(statement, parameters)

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each sequence of parameters; raises the errors of `execute`."""
        self._require_allowed(statement)
        self._database.executemany(statement, parameters)

    def arrow(self) -> pa.RecordBatch:
        """Return the records as an Arrow batch.

        Returns:
            batch with the columns key and value (binary), headers (list of structs of key and value), timestamp
            (timestamp in ms, UTC; null without one), partition (int32), offset (int64).

        Raises:
            ModuleNotFoundError: pyarrow is not installed.
        """
        from kafka_ratchet.reader.arrow import batch_of

        return batch_of(self.events)

    def commit(self) -> None:
        """Commit now, with the offsets after all of `events`.

        Raises:
            ReaderMisused: the transaction has ended.
            ReaderFenced: another process has taken the partitions over, or an earlier commit with a lost answer has
                succeeded; nothing of this transaction was kept.
        """
        if not self.try_commit():
            raise ReaderFenced(
                "nothing of this transaction was kept: another process has taken its partitions over, or an earlier "
                "commit with a lost answer has succeeded. Records missing in the database come again"
            )

    def try_commit(self) -> bool:
        """Commit for the loop; return False after a rollback: the records may then come again."""
        self._require_open()
        return self._commit()

    def end(self) -> None:
        """Mark the transaction as ended, so that it refuses further statements."""
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """Return True if the transaction was neither committed nor rolled back."""
        return self._is_open

    def _require_open(self) -> None:
        if not self._is_open:
            raise ReaderMisused("this transaction has ended. Use the transaction that the loop yields")

    def _require_allowed(self, statement: str) -> None:
        self._require_open()
        if self._database.has_ended():
            raise ReaderMisused(
                "the database or the program has ended this transaction: its earlier statements were rolled back, "
                "or committed without its offsets. Leave the loop; the records come again"
            )
        if ends_transaction(statement):
            raise ReaderMisused(
                f"{statement.split(None, 1)[0]}: the reader begins and ends transactions, so that rows and offsets "
                "stay together. Remove the statement; raise an exception to roll back"
            )
