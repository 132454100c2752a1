"""Partitions that a reader reads once it owns them: all of its topic, or its share in a group."""

from __future__ import annotations

import structlog

from kafka_ratchet.errors import ReaderFenced, ReaderMisused
from kafka_ratchet.producers import TopicShape
from kafka_ratchet.reader.ownership import Ownership
from kafka_ratchet.reader.positions import Positions
from kafka_ratchet.reader.source import Source
from kafka_ratchet.reader.topic import TopicReading

log = structlog.get_logger(__name__)


class Partitions:
    """Owned partitions of a reader, kept consistent with topic, consumer group and database.

    Args:
        name: the reader's name.
        group: consumer group; None: this process reads all partitions.
        topic: topic to read.
        positions: positions of the reader.
        ours: partitions that this process has taken over.
        where: name of the database, for messages.
    """

    def __init__(
        self, name: str, group: str | None, topic: TopicReading, positions: Positions, ours: Ownership, where: str
    ) -> None:
        self._name, self._group, self._topic = name, group, topic
        self._positions, self._ours, self._where = positions, ours, where
        self._source: Source | None = None
        self._shape: TopicShape | None = None
        self.count = 0
        """Partition count of the topic, from Kafka's last answer."""
        self.limit_s: float | None = None
        """Longest wait for the database, in seconds; None: without limit."""

    @property
    def source(self) -> Source:
        """Return the connection to Kafka.

        Raises:
            ReaderMisused: there is no connection.
        """
        if self._source is None:
            raise ReaderMisused("a Reader is used outside 'with'. Use it within 'with'")
        return self._source

    @property
    def shape(self) -> TopicShape:
        """Return the topic's id, and the number of partitions that the reader has rows for.

        Raises:
            ReaderMisused: there was no connection to Kafka yet.
        """
        if self._shape is None:
            raise ReaderMisused("a Reader is used outside 'with'. Use it within 'with'")
        return self._shape

    def connect(self, source: Source) -> None:
        """Use `source` as the connection to Kafka. Reading starts after `begin`.

        Raises the errors of `TopicReading.shape`.
        """
        self._source = source
        self._shape = self._topic.shape()

    def begin(self, start: str) -> None:
        """Store first positions of new partitions; without a group, take over all partitions.

        Args:
            start: `earliest` or `latest`: first position of a reader name that the database does not know.
        """
        self._add_missing(start, self.shape.partitions)
        if self._group is None:
            self._take_over(list(range(self.shape.partitions)))

    def close(self) -> None:
        """Close the connection to Kafka."""
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def _add_missing(self, start: str, partitions: int) -> None:
        """Store the first position of each partition without a row, in one transaction.

        Only a name without any row begins at `start`; a partition added to the topic later begins at its earliest
        offset.
        """
        everything = list(range(partitions))
        missing = self._positions.missing(self._ours.database, everything)
        if not missing:
            return
        at_end = start == "latest" and len(missing) == len(everything)
        offsets = self._topic.ends(missing) if at_end else self._topic.beginnings(missing)
        database = self._ours.database
        database.begin()
        try:
            self._positions.add(database, offsets, self.shape.id)
            database.commit()
        except BaseException:
            database.rollback()
            raise

    def _take_over(self, partitions: list[int]) -> None:
        """Fence other owners of these partitions, and read from the positions in the database."""
        self._ours.take_over(partitions, self.shape.id, self.limit_s)
        self._read_on()

    def _read_on(self) -> None:
        self.source.read_from({partition: held.position for partition, held in self._ours.held.items()})

    def follow(self) -> None:
        """Take over new partitions, and read all owned ones from the positions in the database.

        Raises:
            ReaderFenced: see `continue_from_stored`.
        """
        self._follow_group()
        if self.source.next_offsets != {partition: held.position.next for partition, held in self._ours.held.items()}:
            # Kafka's client is past rolled-back records: the next commit would jump over them.
            self.continue_from_stored([])
        self._follow_topic()

    def _follow_group(self) -> None:
        """Take over newly assigned partitions of the group; `follow` calls it again until it succeeds."""
        assigned = self.source.new_assignment()
        if assigned is None:
            return
        self._ours.give_back()
        if self._positions.missing(self._ours.database, assigned):
            self._shape = self._topic.same_shape(self.shape.id)
            self._add_missing("earliest", self.shape.partitions)
            if self._positions.missing(self._ours.database, assigned):
                return  # this broker does not know of the new partition yet
        self._take_over(assigned)
        self.source.followed()

    def _follow_topic(self) -> None:
        """Take over partitions added to the topic; in a group, Kafka assigns them instead."""
        shape, partitions = self.shape, self.count
        if partitions <= shape.partitions or self._group is not None:
            return
        self.continue_from_stored([])  # another process may have taken over
        self._add_missing("earliest", partitions)
        self._take_over(list(range(shape.partitions, partitions)))
        self._shape = TopicShape(shape.name, shape.id, partitions)

    def continue_from_stored(self, behind: list[int]) -> None:
        """Continue from the positions in the database, with the partitions still owned.

        Args:
            behind: partitions with a position refused by the database, for the log.

        Raises:
            ReaderFenced: another process has taken partitions over, and this reader has no group that shares them.
        """
        lost = self._ours.look_again()
        if lost and self._group is None:
            raise ReaderFenced(
                f"reader {self._name!r} of topic {self._topic.topic!r}: another process has taken over partitions "
                f"{lost} in {self._where}. Nothing of this process's transaction was kept. Let the other process "
                "continue, give this reader another name, or share the partitions (group=...)"
            )
        if behind or lost:
            log.warning(
                "reading again from the stored positions", reader=self._name, partitions=behind, taken_over=lost
            )
        self._read_on()
        if lost:
            self.source.join_again()  # only the group knows whether they are still ours
