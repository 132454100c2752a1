"""Tables of rows that a store creates, compares and changes on a database server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.stores.evolution import ColumnChange, changes
from kafka_ratchet.spark_sink.stores.sql_types import Column
from kafka_ratchet.spark_sink.stores.store import require_columns, without_free

Database = TypeVar("Database")


class SqlTables(Generic[Database]):
    """Result, rejects and staging tables of one job.

    Args:
        where: the table, as messages name it.
    """

    widenings: str
    """Sentence about the changes of types that `evolve` can make, for messages."""

    def __init__(self, where: str) -> None:
        self._where = where

    def columns(self, database: Database, table: str) -> list[Column]:
        """Return the columns of a table next to the result table; empty: the table is missing."""
        raise NotImplementedError

    def free_columns(self, database: Database, table: str) -> set[str]:
        """Return the columns that may be null, or that the table itself fills."""
        raise NotImplementedError

    def widens(self, before: str, after: str) -> bool:
        """Return whether the database can change the first type to the second without loss."""
        raise NotImplementedError

    def require_staged(self, staging: str, found: int, rows: int) -> None:
        """Refuse a commit from a staging table with fewer rows than the tasks wrote.

        A server can lose committed rows of a staging table: in a crash (unlogged tables, a relaxed flush), or by a
        fail-over to a lagging replica.

        Raises:
            StoreError: rows are missing.
        """
        if found != rows:
            raise StoreError(
                f"{self._where}: {staging} has {found} of {rows} rows that the tasks of this commit had written: the "
                "server has crashed or changed since, or another session has removed rows. Nothing was committed; "
                "run the job again"
            )

    def require_columns(self, database: Database, table: str, columns: Sequence[Column]) -> None:
        """Refuse a table with other columns than the job's.

        The table may have further columns if these are free, see `free_columns`.

        Raises:
            SchemaDiffers: the columns differ.
        """
        free = self.free_columns(database, table)
        require_columns(self._where, dict(self.columns(database, table)), dict(columns), table, free)

    def missing(self, database: Database, table: str, columns: Sequence[Column]) -> list[ColumnChange]:
        """Return the changes that give a table the job's columns.

        Raises:
            SchemaDiffers: the columns differ in a way that cannot be changed.
        """
        free = self.free_columns(database, table)
        present = without_free(dict(self.columns(database, table)), dict(columns), free)
        return changes(self._where, present, dict(columns), self.widens, self.widenings)

    def require_fits(self, database: Database, table: str, columns: Sequence[Column], *, evolves: bool) -> None:
        """Refuse a table with other columns than the job's.

        Args:
            database: connection to the database.
            table: name of the table.
            columns: columns of the job.
            evolves: True accepts missing or narrower columns that evolution can add or widen.

        Raises:
            SchemaDiffers: the columns differ.
        """
        if evolves:
            self.missing(database, table, columns)
        else:
            self.require_columns(database, table, columns)


def staged_before(table: str, prefix: str, newest: int) -> bool:
    """Return whether a staging table `<prefix><generation>_<digits>` belongs to a generation up to `newest`."""
    return is_of_generation(table.rpartition("_")[0], prefix, newest)


def is_of_generation(name: str, prefix: str, newest: int) -> bool:
    """Return whether a name `<prefix><generation>` contains a generation up to `newest`."""
    generation = name.removeprefix(prefix)
    return generation.isdecimal() and int(generation) <= newest
