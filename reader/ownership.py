"""Partitions that a reader's process owns in the database, and its connection to the database."""

from __future__ import annotations

import time
from typing import Final

import structlog

from kafka_ratchet.errors import DatabaseUnavailable, ReaderMisused
from kafka_ratchet.reader.positions import HeldPartition, Positions
from kafka_ratchet.reader.stores.database import Database, Store

log = structlog.get_logger(__name__)

PAUSE_S: Final = 0.5
"""Seconds between two attempts to reach the database."""

SAY_EVERY_S: Final = 5.0
"""Seconds between messages about a wait for the database."""


class Ownership:
    """Partitions that this process has taken over in the database.

    Args:
        store: database with the positions.
        positions: positions of the reader.
        owner: id of this process in the database; 32 hexadecimal digits.
        name: name of the reader, for the log.
    """

    def __init__(self, store: Store, positions: Positions, owner: str, name: str) -> None:
        self._store, self._positions, self._owner = store, positions, owner
        self._log = log.bind(reader=name)
        self._database: Database | None = None
        self.held: dict[int, HeldPartition] = {}
        """Held partitions by number, as the database last had them."""

    @property
    def database(self) -> Database:
        """Return the open connection.

        Raises:
            ReaderMisused: there is no open connection.
        """
        if self._database is None:
            raise ReaderMisused("a Reader is used outside 'with'. Use it within 'with'")
        return self._database

    def connect(self, limit_s: float | None) -> None:
        """Connect to the database, in place of an open connection; wait while the database is unreachable.

        Args:
            limit_s: longest wait, in seconds; None: without limit.

        Raises:
            DatabaseUnavailable: the database does not answer within the limit.
        """
        self._disconnect()
        begun, said = time.monotonic(), 0.0
        while True:
            try:
                self._database = self._store.connect(self._owner)
                return
            except DatabaseUnavailable as error:
                waited = time.monotonic() - begun
                if limit_s is not None and waited > limit_s:
                    raise
                if waited >= said:
                    self._log.warning("the database does not answer; trying again", why=str(error))
                    said = waited + SAY_EVERY_S
            time.sleep(PAUSE_S)

    def _disconnect(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def take_over(self, partitions: list[int], topic_id: str, limit_s: float | None) -> None:
        """Take over these partitions in addition to the held ones, and fence their other owners.

        Args:
            partitions: partitions to take over; each has a row.
            topic_id: id of the topic to read.
            limit_s: longest wait for an unreachable database or locked rows, in seconds; None: without limit.

        Raises:
            TopicReplaced, PositionNotStored: see `Positions.take_over`.
            DatabaseUnavailable: see `connect`.
            Exception: the driver's error, after the limit.
        """
        begun = time.monotonic()
        while True:
            try:
                self.held |= self._taken_over(partitions, topic_id)
                return
            except Exception as error:
                self.database.rollback()
                is_late = limit_s is not None and time.monotonic() - begun > limit_s
                if is_late or not self._store.is_away(error):
                    raise
                self._log.warning("partitions cannot be taken over yet", why=str(error).strip())
            time.sleep(PAUSE_S)
            self.connect(limit_s)

    def _taken_over(self, partitions: list[int], topic_id: str) -> dict[int, HeldPartition]:
        self.database.begin()
        if others := self._positions.others(self.database, partitions):
            self.database.end_sessions(others)
        held = self._positions.take_over(self.database, partitions, topic_id)
        self.database.commit()
        return held

    def give_back(self) -> None:
        """Release the partitions in the database.

        After a crash the partitions stay owned, and their next owner ends this process's database sessions.
        """
        held, self.held = self.held, {}
        if not held or self._database is None:
            return
        try:
            self._positions.release(self._database, held)
        except Exception as error:
            self._log.warning("partitions could not be released", why=str(error).strip())

    def look_again(self) -> list[int]:
        """Read from the database which partitions this process still holds, and their positions.

        If a position has moved but its generation has not, this process's last commit succeeded although the answer was
        lost.

        Returns:
            the partitions that another process has taken over
        """
        stored = self._positions.now_held(self.database, list(self.held))
        ours = {
            partition: stored[partition]
            for partition, held in self.held.items()
            if partition in stored and stored[partition].generation == held.generation
        }
        lost = sorted(set(self.held) - set(ours))
        self.held = ours
        return lost

    def close(self) -> None:
        """Release all partitions, and disconnect."""
        self.give_back()
        self._disconnect()
