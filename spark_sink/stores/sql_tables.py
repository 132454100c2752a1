"""The tables of a database server that a store makes, compares and changes, beside the bookkeeping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.stores.evolution import Change, changes
from kafka_ratchet.spark_sink.stores.sql_types import Column
from kafka_ratchet.spark_sink.stores.store import require_columns, without_free

Database = TypeVar("Database")


class SqlTables(Generic[Database]):
    """The result, its rejects and the staging tables of one job.

    Args:
        where: the store, as messages name it.
    """

    widenings: str
    """Which types become which in `evolve`, for messages."""

    def __init__(self, where: str) -> None:
        self._where = where

    def columns(self, database: Database, table: str) -> list[Column]:
        """The columns of a table beside the result's; none where there is no such table."""
        raise NotImplementedError

    def free_columns(self, database: Database, table: str) -> set[str]:
        """Return the columns that may be null, or get a value from the table itself where a row has none for them."""
        raise NotImplementedError

    def widens(self, before: str, after: str) -> bool:
        """Whether each value of the first type is one of the second, and the database can change it so."""
        raise NotImplementedError

    def require_staged(self, staging: str, found: int, rows: int) -> None:
        """Refuse to commit from a staging table that has lost rows since the tasks wrote them.

        They are committed there, and a server may lose that all the same: in a crash (unlogged tables, a relaxed
        flush), or when a replica that was behind takes over.

        Raises:
            StoreError: it has.
        """
        if found != rows:
            raise StoreError(
                f"{self._where}: {staging} has {found} of {rows} rows that the tasks of this commit had written: the "
                "server has crashed or changed meanwhile, or somebody has removed them. Nothing was committed; run the "
                "job again"
            )

    def require_columns(self, database: Database, table: str, columns: Sequence[Column]) -> None:
        """Raise `SchemaDiffers` unless a table has these columns, and of others free ones only."""
        free = self.free_columns(database, table)
        require_columns(self._where, dict(self.columns(database, table)), dict(columns), table, free)

    def missing(self, database: Database, table: str, columns: Sequence[Column]) -> list[Change]:
        """What has to be done to a table so that it has these columns.

        Raises:
            SchemaDiffers: it cannot be done.
        """
        free = self.free_columns(database, table)
        present = without_free(dict(self.columns(database, table)), dict(columns), free)
        return changes(self._where, present, dict(columns), self.widens, self.widenings)

    def require_fits(self, database: Database, table: str, columns: Sequence[Column], *, evolves: bool) -> None:
        """Raise `SchemaDiffers` unless a table has these columns, or where it evolves, can be given them."""
        if evolves:
            self.missing(database, table, columns)
        else:
            self.require_columns(database, table, columns)


def staged_before(table: str, prefix: str, newest: int) -> bool:
    """Whether a staging table `<prefix><generation>_<digits>` is one of holders up to that generation."""
    return is_of_generation(table.rpartition("_")[0], prefix, newest)


def is_of_generation(name: str, prefix: str, newest: int) -> bool:
    """Whether a name `<prefix><generation>` is one of holders up to that generation."""
    generation = name.removeprefix(prefix)
    return generation.isdecimal() and int(generation) <= newest
