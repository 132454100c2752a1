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
    """Transaction that commits when the loop requests the next one.

    Args:
        events: its records.
        database: in a transaction.
        commit: stores the positions and commits; False: it was rolled back, because the positions were moved in
            between.
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
        """Execute a statement of the program's own.

        Args:
            statement: with the placeholders of the driver: `?`, or `%s` for PostgreSQL.
            parameters: their values.

        Returns:
            the driver's cursor

        Raises:
            ReaderMisused: the statement would end the transaction, or it has ended.
            Exception: the driver's own errors.
        """
        self._require_allowed(statement)
        return self._database.execute(statement, parameters)

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Execute a statement once per sequence of parameters; raises as `execute`."""
        self._require_allowed(statement)
        self._database.executemany(statement, parameters)

    def arrow(self) -> pa.RecordBatch:
        """Return the records as an Arrow batch.

        Returns:
            the columns key and value (binary), headers (list of structs of key and value), timestamp (timestamp in ms,
            UTC; null where a record has none), partition (int32), offset (int64).

        Raises:
            ModuleNotFoundError: pyarrow is not installed.
        """
        from kafka_ratchet.reader.arrow import batch_of

        return batch_of(self.events)

    def commit(self) -> None:
        """Commit now, with the offsets after all of `events`.

        Raises:
            ReaderMisused: the transaction has ended.
            ReaderFenced: its partitions are another process' by now, or an earlier commit with a lost answer had
                moved them: nothing of this one was kept.
        """
        if not self.try_commit():
            raise ReaderFenced(
                "nothing of this transaction was kept: its partitions were taken over, or moved by a commit with a "
                "lost answer. Records that are not in the database come again"
            )

    def try_commit(self) -> bool:
        """Commit for the loop; return False where nothing was kept, and records may come again."""
        self._require_open()
        return self._commit()

    def end(self) -> None:
        """Let nothing more be executed in it."""
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """Return True if it was neither committed nor rolled back."""
        return self._is_open

    def _require_open(self) -> None:
        if not self._is_open:
            raise ReaderMisused("this transaction has ended: use the one that the loop gives")

    def _require_allowed(self, statement: str) -> None:
        self._require_open()
        if self._database.has_ended():
            raise ReaderMisused(
                "the database or the program has ended this transaction: its earlier statements are rolled back or "
                "committed without its offsets. Leave the loop; its records come again"
            )
        if ends_transaction(statement):
            raise ReaderMisused(
                f"{statement.split(None, 1)[0]}: the reader begins and ends transactions, so that rows and offsets "
                "stay together. Leave the statement out; raise an exception to roll back"
            )
