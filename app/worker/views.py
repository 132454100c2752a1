"""Views of other streams' tables: the partition of the agent's own number, if it is at work here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from kafka_ratchet.app.status.answers import INCOMPLETE
from kafka_ratchet.app.worker.topics import StreamTopics
from kafka_ratchet.errors import Aborted, SettingsError
from kafka_ratchet.tables.table import Sequences
from kafka_ratchet.tables.values.committed import CommittedTable
from kafka_ratchet.transport.lane import Lane


class Stream(Protocol):
    """A stream at work."""

    name: str
    topics: StreamTopics
    sequences: Sequences


@dataclass(frozen=True)
class Views:
    """Tables for the views.

    streams: by changelog; lanes: those running here, by changelog and partition
    """

    streams: Mapping[str, Stream]
    lanes: Mapping[tuple[str, int], Lane]

    def open(self) -> None:
        """Let views read every table."""
        for stream in self.streams.values():
            for table in stream.sequences.tables:
                table.elsewhere = partial(self._partition, stream, table.name)

    def _partition(self, stream: Stream, table: str, reader: str, number: int) -> CommittedTable:
        """Return the committed table for `Elsewhere`.

        Raises:
            SettingsError: it has no partition of that number.
            Aborted: it is not at work here now.
        """
        other = self.streams[reader]
        if other is stream:
            raise SettingsError(f"the view of table {table}: agents of stream {stream.name} read the table itself")
        if other.topics.partitions != stream.topics.partitions:
            raise SettingsError(
                f"the view of table {table}: stream {stream.name} has {stream.topics.partitions} partitions, and "
                f"{other.name} has {other.topics.partitions}: a key is in another one there. Give both inputs one "
                "partition count, or send what changes to a topic, and read that as a global table"
            )
        lane = self.lanes.get((stream.topics.changelog, number))
        if lane is None or lane.status.state in INCOMPLETE:
            raise Aborted(f"the view of table {table}: partition {number} of stream {stream.name} is not at work here")
        return stream.sequences.partition(number).committed_table(table)
