"""Table of a stream's last sequences: its partitions in this worker, and Faust's view of the table."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from faust.stores.base import Store
from faust.tables.table import Table as FaustTable

from kafka_ratchet.errors import StateError
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.rule.windows import PLAIN, StateOptions
from kafka_ratchet.tables.eviction import EvictionLimits
from kafka_ratchet.tables.map.map import LastSequence
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.tables.values.table import Table


class Sequences:
    """Partitions of one stream in this worker, created at their first use."""

    def __init__(
        self,
        folder: Path,
        changelog: str,
        identity: Identity,
        limit: int,
        memory: int = sys.maxsize,
        bounds: EvictionLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        tables: Collection[Table] = (),
        kept: StateOptions = PLAIN,
    ) -> None:
        """Store the settings without opening a partition.

        Args:
            folder: folder of the partitions' stores, which are in subfolders named after the partition number.
            changelog: name of the changelog topic.
            identity: identity that the stream deduplicates by.
            limit: maximum bytes of a batch, max.message.bytes of the changelog.
            memory: maximum bytes of the maps of all partitions together.
            bounds: limits of each partition, above which identities are evicted.
            clock: monotonic clock in seconds.
            tables: tables of the user's program, changed by the same transactions.
            kept: which further state of each identity to keep.
        """
        self.tables, self.kept = tables, kept
        self.folder, self.changelog, self.identity, self.limit = folder, changelog, identity, limit
        self.memory, self.bounds, self.clock = memory, bounds, clock
        self.partitions: dict[int, SequencePartition] = {}

    def partition(self, number: int) -> SequencePartition:
        """Return the state of an input partition; the first call creates it, without opening it."""
        if number not in self.partitions:
            where = self.folder / str(number), self.changelog, number, self.identity, self.limit
            self.partitions[number] = made = SequencePartition(*where, self._room, self.bounds, self.clock, self.kept)
            for table in self.tables:
                made.tables.add(table.codec, table.default, table.kind)
        return self.partitions[number]

    def _room(self) -> int:
        """Return each open partition's share of the memory budget."""
        return self.memory // max(1, sum(partition.is_open for partition in self.partitions.values()))

    def last(self, identity: bytes) -> dict[int, LastSequence]:
        """Return the last sequence of an identity in each partition that knows it."""
        found = {number: partition.last(identity) for number, partition in self.partitions.items()}
        return {number: last for number, last in found.items() if last.pushed >= 0 or last.persisted >= 0}


def _refuse_write(*args: Any, **kwargs: Any) -> Any:
    raise StateError("the table of last sequences is read-only: only Ratchet writes it. Use a table of your own")


def _refuse_listing(*args: Any) -> Any:
    raise StateError("the table of last sequences cannot be listed; look up one identity at a time")


class _CommittedStore(Store):
    """Faust's view of `Sequences`: read-only, with identities as bytes and persisted sequences as int."""

    logger = logging.getLogger("faust.tables.sequences")
    sequences: Sequences

    def __getitem__(self, identity: Any) -> int:
        found = [last.persisted for last in self.sequences.last(identity).values() if last.persisted >= 0]
        if not found:
            raise KeyError(identity)
        return max(found)

    def __contains__(self, identity: Any) -> bool:
        return any(last.persisted >= 0 for last in self.sequences.last(identity).values())

    def __len__(self) -> int:
        return sum(len(partition) for partition in self.sequences.partitions.values())

    __iter__ = keys = items = values = _refuse_listing
    __setitem__ = __delitem__ = update = clear = _refuse_write

    def persisted_offset(self, tp: Any) -> int | None:
        """Return None: the lane restores its state without Faust."""
        return None

    def set_persisted_offset(self, tp: Any, offset: int) -> None:
        """Do nothing: the lane writes its position together with the entries."""

    async def need_active_standby_for(self, tp: Any) -> bool:
        """Return False: lanes have their own standbys."""
        return False

    def apply_changelog_batch(self, batch: Any, to_key: Any, to_value: Any) -> None:
        """Do nothing: the lane restores its state."""

    async def backup_partition(self, *args: Any, **kwargs: Any) -> None:
        """Refuse a backup, because the changelog is the backup."""
        raise StateError("Faust cannot back up the table of last sequences: the changelog is its backup")

    def restore_backup(self, *args: Any, **kwargs: Any) -> None:
        """Refuse to restore a backup, because the changelog is the backup."""
        raise StateError(
            "Faust cannot restore the table of last sequences: each lane restores its partition from the changelog"
        )

    def reset_state(self) -> None:
        """Do nothing, because Faust has no state here."""


class SequenceTable(FaustTable):
    """Faust table that registers a stream's changelog, so that Faust's assignor distributes the lanes."""

    logger = logging.getLogger("faust.tables.sequences")
    lane_owned = True
    """Marker for `kafka_ratchet.transport.assignment.LaneTableManager`, which excludes the table from Faust's
    recovery."""

    def __init__(self, app: Any, *, name: str, sequences: Sequences, **kwargs: Any) -> None:
        self.sequences = sequences
        super().__init__(app, name=name, key_type=bytes, value_type=bytes, **kwargs)

    # Faust calls these before it asks the store; they would send to the changelog outside the partition's transaction.
    on_key_set = on_key_del = on_clear = send_changelog = _refuse_write

    def _new_store(self) -> Store:
        store = _CommittedStore("sequences://", self.app, self, table_name=self.name, loop=self.loop)
        store.sequences = self.sequences
        return store

    def _changelog_topic_name(self) -> str:
        return self.sequences.changelog
