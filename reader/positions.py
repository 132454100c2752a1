"""Positions of each reader, in a table of the user's own database, next to the rows.

There is a row per reader, topic and partition. A take-over of a partition raises its generation. A commit names
the generation and the former position that its process expects in the row. So the commit of an earlier owner changes no
row and is refused (fencing, like Kafka's producer epochs, KIP-98).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafka_ratchet.errors import PositionNotStored, TopicReplaced
from kafka_ratchet.reader.stores.database import Database

TABLE: Final = "ratchet_reader_positions"

CREATE: Final = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} (reader varchar(255), topic varchar(249), kafka_partition integer, "
    "next_offset bigint NOT NULL, leader_epoch integer NOT NULL, generation bigint NOT NULL, "
    "owner varchar(32) NOT NULL, topic_id varchar(32) NOT NULL, committed_ms bigint NOT NULL, "
    "PRIMARY KEY (reader, topic, kafka_partition))"
)

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""Pattern of reader names: plain in every database, and in the name of a consumer group."""

NO_EPOCH: Final = -1
"""Value for an unknown leader epoch, as in Kafka's protocol."""


@dataclass(frozen=True, slots=True)
class Position:
    """Next offset of a partition to read, with the leader epoch of the record before it."""

    next: int
    """Next offset to read."""
    epoch: int
    """Leader epoch of the record before it; -1: not known."""


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """Partition held by this process: its position and generation in the database."""

    position: Position
    generation: int


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """Row of the positions table."""

    reader: str
    topic: str
    partition: int
    next: int
    generation: int
    owner: str
    """Id of the process that owns the partition; empty after the owner has released it."""
    topic_id: str
    committed_ms: int
    """Time of the last move, by the clock of the process that made it; 0: never."""


class Positions:
    """Rows of one reader and topic in the positions table.

    Args:
        reader: name of the reader.
        topic: topic to read.
        owner: id of this process, written into rows that it takes over; 32 hexadecimal digits.
        placeholder: placeholder of a parameter in the driver's SQL.
        where: name of the database, for messages.
    """

    def __init__(self, reader: str, topic: str, owner: str, placeholder: str, where: str) -> None:
        self._reader, self._topic, self._owner, self._where = reader, topic, owner, where
        self._placeholder = placeholder

    def _run(self, database: Database, statement: str, *parameters: Any) -> list[Any]:
        return database.ask(statement.replace("?", self._placeholder), parameters)

    def _row(self, partition: int) -> tuple[str, str, int]:
        return self._reader, self._topic, partition

    def create(self, database: Database) -> None:
        """Create the positions table if it is missing."""
        database.create(TABLE, CREATE)

    def others(self, database: Database, partitions: Sequence[int]) -> list[str]:
        """Return the other owners that hold these partitions and have not released them."""
        found = self._owners(database)
        return sorted({owner for partition, owner in found.items() if partition in partitions} - {"", self._owner})

    def missing(self, database: Database, partitions: Sequence[int]) -> list[int]:
        """Return the partitions without a row."""
        return sorted(set(partitions) - {row.partition for row in self.stored(database)})

    def add(self, database: Database, offsets: Mapping[int, int], topic_id: str) -> None:
        """Store the first position of partitions without a row.

        Raises:
            TopicReplaced: the reader's other positions belong to an earlier topic of the same name. Without this
                check, a process that holds only partitions without a stored position would start to read the new
                topic, although the operator has not decided yet how to continue.
            PositionNotStored: a trigger, rule or policy keeps a row from being stored as given.
        """
        for row in self.stored(database):
            if row.topic_id != topic_id:
                raise self._replaced(row.partition, row.next, row.topic_id, topic_id)
        added = {}
        for partition, offset in offsets.items():
            if self._run(
                database,
                f"INSERT INTO {TABLE} VALUES (?, ?, ?, ?, {NO_EPOCH}, 0, '', ?, 0) ON CONFLICT DO NOTHING "  # noqa: S608
                "RETURNING next_offset",
                *self._row(partition),
                offset,
                topic_id,
            ):
                added[partition] = offset
        self._require_stored(database, list(offsets), added)

    def _require_stored(self, database: Database, partitions: Sequence[int], offsets: Mapping[int, int]) -> None:
        """Check that each partition has a row, with the offset that `offsets` contains for it, if any.

        Raises:
            PositionNotStored: a trigger, rule or policy keeps a row from being stored as given.
        """
        database.run_deferred()
        found = {partition: held.position.next for partition, held in self.now_held(database, partitions).items()}
        changed = {partition for partition, offset in offsets.items() if found.get(partition) != offset}
        if wrong := sorted(changed | set(partitions) - set(found)):
            raise self._not_stored(database, wrong)

    def _not_stored(self, database: Database, partitions: Sequence[int]) -> PositionNotStored:
        rules = ", ".join(database.rules_of(TABLE)) or "no trigger, rule or policy that can be seen"
        return PositionNotStored(
            f"{self._where}: table {TABLE} has not stored the position of reader {self._reader!r}, topic "
            f"{self._topic!r}, partitions {', '.join(map(str, partitions))}, as the reader gave it; without that "
            f"position the rows would count twice. The table has: {rules}. Nothing of the transaction was kept. Drop "
            "the trigger, rule or policy that refuses or changes rows of the table, then start the reader again"
        )

    def take_over(self, database: Database, partitions: Sequence[int], topic_id: str) -> dict[int, HeldPartition]:
        """Fence the owners of these partitions. Call it within a transaction.

        Returns:
            position and generation of each partition

        Raises:
            TopicReplaced: the positions belong to an earlier topic of the same name.
            PositionNotStored: a trigger, rule or policy keeps the older owners from being fenced.
        """
        held = {}
        for partition in sorted(partitions):  # in one order, so that two take-overs do not wait for each other
            held[partition], known = self._take(database, partition)
            if known != topic_id:
                raise self._replaced(partition, held[partition].position.next, known, topic_id)
        database.run_deferred()
        found, owners = self.now_held(database, partitions), self._owners(database)
        if wrong := [
            partition
            for partition, mine in held.items()
            if found.get(partition) != mine or owners.get(partition) != self._owner
        ]:
            raise self._not_stored(database, wrong)
        return held

    def _replaced(self, partition: int, offset: int, known: str, topic_id: str) -> TopicReplaced:
        """Return the error for a position that belongs to an earlier topic, with id `known`."""
        return TopicReplaced(
            f"reader {self._reader!r} has read topic {self._topic!r} up to offset {offset} of partition {partition} "
            f"when its id was {known}; now it is {topic_id}: the topic was deleted and created again. Nothing was "
            f"read. Decide where to begin: `ratchet reader resume {self._reader} --topic {self._topic} --from "
            f"earliest` reads all of the new topic into {self._where}"
        )

    def _take(self, database: Database, partition: int) -> tuple[HeldPartition, str]:
        """Raise the generation of a partition, and name this process as its owner.

        Returns:
            position and generation of the row after the change, and the topic id stored in it

        Raises:
            PositionNotStored: the row is missing, or does not change.
        """
        before = None
        while True:
            now = self.now_held(database, [partition]).get(partition)
            if now is None or now == before:  # another process has not changed it since the last try
                raise self._not_stored(database, [partition])
            taken = self._run(
                database,
                f"UPDATE {TABLE} SET generation = generation + 1, owner = ? "  # noqa: S608
                "WHERE reader = ? AND topic = ? AND kafka_partition = ? AND generation = ? AND next_offset = ? "
                "RETURNING topic_id",
                self._owner,
                *self._row(partition),
                now.generation,
                now.position.next,
            )
            if taken:
                return HeldPartition(now.position, now.generation + 1), str(taken[0][0])
            before = now

    def _owners(self, database: Database) -> dict[int, str]:
        found = self._run(
            database,
            f"SELECT kafka_partition, owner FROM {TABLE} WHERE reader = ? AND topic = ?",  # noqa: S608
            self._reader,
            self._topic,
        )
        return dict(found)

    def move(
        self, database: Database, held: Mapping[int, HeldPartition], to: Mapping[int, Position], now_ms: int
    ) -> list[int]:
        """Store new positions in the transaction of the program's rows.

        The caller has to roll the transaction back if any partition is returned.

        Args:
            database: database within the transaction.
            held: positions and generations that this process expects.
            to: new position of each partition that moves.
            now_ms: present time by the clock of this process.

        Returns:
            partitions with another position or owner than `held` expects

        Raises:
            PositionNotStored: a trigger, rule or policy keeps a position from being stored as given.
        """
        moved = {
            partition: self._update(database, partition, held[partition], position, now_ms)
            for partition, position in to.items()
        }
        database.run_deferred()
        found = self.now_held(database, list(to))
        behind = [partition for partition in to if not moved[partition] and found.get(partition) != held[partition]]
        if missing := [partition for partition in behind if partition not in found]:
            raise self._not_stored(database, missing)
        if behind:
            return behind
        if wrong := [
            partition
            for partition in to
            if found.get(partition) != HeldPartition(to[partition], held[partition].generation)
        ]:
            raise self._not_stored(database, wrong)
        return []

    def _update(self, database: Database, partition: int, held: HeldPartition, to: Position, now_ms: int) -> bool:
        return bool(
            self._run(
                database,
                f"UPDATE {TABLE} SET next_offset = ?, leader_epoch = ?, committed_ms = ? WHERE reader = ? "  # noqa: S608
                "AND topic = ? AND kafka_partition = ? AND generation = ? AND next_offset = ? RETURNING generation",
                to.next,
                to.epoch,
                now_ms,
                *self._row(partition),
                held.generation,
                held.position.next,
            )
        )

    def now_held(self, database: Database, partitions: Sequence[int]) -> dict[int, HeldPartition]:
        """Return the stored positions of these partitions, without taking them over."""
        found = self._run(
            database,
            f"SELECT kafka_partition, next_offset, leader_epoch, generation FROM {TABLE} "  # noqa: S608
            "WHERE reader = ? AND topic = ?",
            self._reader,
            self._topic,
        )
        return {
            int(partition): HeldPartition(Position(int(offset), int(epoch)), int(generation))
            for partition, offset, epoch, generation in found
            if partition in partitions
        }

    def release(self, database: Database, held: Mapping[int, HeldPartition]) -> None:
        """Release partitions, so that their next owner need not end this process's sessions."""
        for partition, mine in held.items():
            self._run(
                database,
                f"UPDATE {TABLE} SET owner = '' WHERE reader = ? AND topic = ? AND kafka_partition = ? "  # noqa: S608
                "AND generation = ? RETURNING generation",
                *self._row(partition),
                mine.generation,
            )

    def stored(self, database: Database) -> list[StoredPosition]:
        """Return the reader's rows, ordered by partition."""
        return [row for row in stored(database) if (row.reader, row.topic) == (self._reader, self._topic)]

    def reset(self, database: Database, offsets: Mapping[int, int], topic_id: str) -> None:
        """Move the reader to offsets chosen by an operator, and fence its owners.

        Call it within a transaction.

        Raises:
            PositionNotStored: a trigger, rule or policy keeps a position from being stored as given.
        """
        generation = max((row.generation for row in self.stored(database)), default=0) + 1
        self._run(
            database,
            f"DELETE FROM {TABLE} WHERE reader = ? AND topic = ? RETURNING generation",  # noqa: S608
            self._reader,
            self._topic,
        )
        for partition, offset in offsets.items():
            self._run(
                database,
                f"INSERT INTO {TABLE} VALUES (?, ?, ?, ?, {NO_EPOCH}, ?, '', ?, 0) RETURNING generation",  # noqa: S608
                *self._row(partition),
                offset,
                generation,
                topic_id,
            )
        self._require_stored(database, list(offsets), offsets)


def stored(database: Database) -> list[StoredPosition]:
    """Return all rows of the table, by reader, topic and partition.

    Raises the driver's error if the table is missing.
    """
    found = database.ask(
        "SELECT reader, topic, kafka_partition, next_offset, generation, owner, topic_id, committed_ms "  # noqa: S608
        f"FROM {TABLE} ORDER BY reader, topic, kafka_partition"
    )
    return [StoredPosition(*row) for row in found]
