"""What stores have in common that change rows, offsets and generation in one transaction of a database."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypeVar

from kafka_ratchet.spark_sink.errors import RowsLost, SequencesLost, StoreError
from kafka_ratchet.spark_sink.stores.decision import StoreCheck
from kafka_ratchet.spark_sink.stores.store import rows_lost
from kafka_ratchet.spark_sink.stores.stored_write_mode import require_write_mode
from kafka_ratchet.spark_sink.stores.table_store import TableStore
from kafka_ratchet.spark_sink.stores.topic_ids import StoredId

Database = TypeVar("Database")
DatabaseIn = TypeVar("DatabaseIn", contravariant=True)


class SqlJobState(Protocol[DatabaseIn]):
    """What the database keeps about one job and topic. Each call is part of its caller's transaction."""

    def generation(self, database: DatabaseIn) -> int:
        """The newest holder's number; 0: there was none."""
        ...

    def stored(self, database: DatabaseIn) -> dict[int, int]:
        """Next offset of each partition."""
        ...

    def other_jobs(self, database: DatabaseIn) -> list[str]:
        """Names of other jobs that have offsets of the topic, in order."""
        ...

    def known_topic(self, database: DatabaseIn) -> StoredId:
        """The id of the topic that the offsets belong to."""
        ...

    def write_mode(self, database: DatabaseIn) -> str:
        """What the rows came by, see `write_mode_text`; empty: there are none, or an earlier version wrote them."""
        ...

    def inconsistency(self, database: DatabaseIn) -> tuple[str, str]:
        """A table that is not the one that the offsets were committed with, and what happened to it; empty: none."""
        ...


class SqlStore(TableStore, Generic[Database]):
    """A `TableStore` whose result, rejects and job state are tables of one database.

    A subclass sets these in `_prepare`.
    """

    _state: SqlJobState[Database]
    _result: str
    """The result table."""
    _rejected: str
    """The rejects table, whose name has `_rejects` behind the result's."""

    def _reading(self) -> AbstractContextManager[Database]:
        """The database for the time of one call.

        Raises:
            StoreError: it cannot be read.
        """
        raise NotImplementedError

    @property
    def _relations(self) -> list[str]:
        return [self._result, *([] if self._rejects is None else [self._rejected])]

    def generation(self) -> int:
        with self._reading() as database:
            return self._state.generation(database)

    def offsets(self) -> dict[int, int]:
        with self._reading() as database:
            self._require_consistent(database)
            self._require_same_topic(database)
            return self._state.stored(database)

    def other_jobs(self) -> list[str]:
        with self._reading() as database:
            return self._state.other_jobs(database)

    def check(self) -> StoreCheck:
        with self._reading() as database:
            if not self._state.generation(database):
                raise StoreError(f"{self._where}: job and table have never met. Run the sink first")
            stored, (relation, what) = self._state.stored(database), self._state.inconsistency(database)
            is_other = self._state.known_topic(database).is_other(self._topic_id)
            row_offsets = None if is_other or relation not in {"", self._result} else {} if relation else stored
            return StoreCheck(stored, row_offsets, str(self._lost(relation, what)) if relation else "", is_other)

    def require_write_mode(self) -> None:
        with self._reading() as database:
            self._require_write_mode(database)

    def close(self) -> None:
        self._generation = None  # no connection outlives a call

    def _require_write_mode(self, database: Database) -> None:
        require_write_mode(self._where, self._name, self._state.write_mode(database), self._write_mode)

    def _require_same_topic(self, database: Database) -> None:
        self._require_topic_id(self._state.known_topic(database), self._state.stored(database))

    def _require_holder(self, database: Database, generation: int, start: Mapping[int, int] | None) -> None:
        newest, stored = self._state.generation(database), self._state.stored(database)
        self._require_generation(generation, newest, stored, start)

    def _require_consistent(self, database: Database) -> None:
        """Raise `RowsLost` where a table was emptied, dropped or replaced since the offsets were committed."""
        relation, what = self._state.inconsistency(database)
        if relation:
            raise self._lost(relation, what)

    def _lost(self, relation: str, what: str) -> RowsLost | SequencesLost:
        return rows_lost(self._where, what, relation == self._result)

    def _is_committed(self, generation: int, end: Mapping[int, int]) -> bool:
        """After an error, what the database itself says: a commit whose answer was lost is one all the same.

        Raises:
            Fenced: what looked like an error is another job that has taken over.
            StoreError: the database cannot be asked.
        """
        with self._reading() as database:
            self._require_holder(database, generation, None)
            return self._state.stored(database).items() >= end.items()
