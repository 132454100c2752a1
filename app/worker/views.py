"""Connection of a program's views to the tables of other streams in this worker.

An agent of partition N sees partition N of the table, if this worker runs that partition.
"""

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
    """Interface that views need of a stream of this worker."""

    name: str
    topics: StreamTopics
    sequences: Sequences


@dataclass(frozen=True)
class TableViews:
    """Connection of views to the tables of this worker's streams.

    streams: streams by changelog; lanes: running lanes of this worker by changelog and partition
    """

    streams: Mapping[str, Stream]
    lanes: Mapping[tuple[str, int], Lane]

    def open(self) -> None:
        """Allow views to read every table of these streams."""
        for stream in self.streams.values():
            for table in stream.sequences.tables:
                table.elsewhere = partial(self._partition, stream, table.name)

    def _partition(self, stream: Stream, table: str, reader: str, number: int) -> CommittedTable:
        """Return a table's committed contents in partition `number`, for an agent of stream `reader`.

        Raises:
            SettingsError: the agent's stream is the table's own, or the two streams differ in their partition counts.
            Aborted: this worker does not run that partition now, or has not restored it yet.
        """
        other = self.streams[reader]
        if other is stream:
            raise SettingsError(
                f"the view of table {table}: agents of stream {stream.name} read the table itself. Use the table "
                "there, without a view"
            )
        if other.topics.partitions != stream.topics.partitions:
            raise SettingsError(
                f"the view of table {table}: stream {stream.name} has {stream.topics.partitions} partitions, and "
                f"{other.name} has {other.topics.partitions}: a key may be in another partition there. Give both "
                "inputs the same partition count. Or send the table's changes to a topic, and read that topic as a "
                "global table"
            )
        lane = self.lanes.get((stream.topics.changelog, number))
        if lane is None or lane.status.state in INCOMPLETE:
            raise Aborted(
                f"the view of table {table}: partition {number} of stream {stream.name} does not run in this worker now"
            )
        return stream.sequences.partition(number).committed_table(table)
