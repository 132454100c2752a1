"""Which partitions a reader reads, and from where: those of the topic or its group, as far as the database agrees."""

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
    """What follows the topic, the consumer group and the database.

    Args:
        name: the reader's.
        group: of consumers; None: all partitions are this process'.
        topic: that is read.
        positions: of the reader.
        ours: what this process has taken over.
        where: the database, for messages.
    """

    def __init__(
        self, name: str, group: str | None, topic: TopicReading, positions: Positions, ours: Ownership, where: str
    ) -> None:
        self._name, self._group, self._topic = name, group, topic
        self._positions, self._ours, self._where = positions, ours, where
        self._source: Source | None = None
        self._shape: TopicShape | None = None
        self.count = 0
        """Of the topic, as far as Kafka has told."""
        self.limit_s: float | None = None
        """How long the database is waited for, in seconds; None: without limit."""

    @property
    def source(self) -> Source:
        """The connection to Kafka.

        Raises:
            ReaderMisused: there is none.
        """
        if self._source is None:
            raise ReaderMisused("a Reader is used within 'with'")
        return self._source

    @property
    def shape(self) -> TopicShape:
        """The topic, with the partitions that are read.

        Raises:
            ReaderMisused: nobody has asked yet.
        """
        if self._shape is None:
            raise ReaderMisused("a Reader is used within 'with'")
        return self._shape

    def connect(self, source: Source) -> None:
        """Read from this connection, once `begin` says what. Raises as `TopicReading.shape`."""
        self._source = source
        self._shape = self._topic.shape()

    def begin(self, start: str) -> None:
        """Give partitions without a row their first position, and take over what is ours without being given it.

        start: where a name that has read nothing yet begins
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
        """Give partitions without a row their first position, all or none of them.

        Only a name without any row begins at `start`: a partition that the topic got later is new to its readers too.
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
        """Fence other owners of these partitions, and read on from where the database says."""
        self._ours.take_over(partitions, self.shape.id, self.limit_s)
        self._read_on()

    def _read_on(self) -> None:
        self.source.read_from({partition: held.position for partition, held in self._ours.held.items()})

    def follow(self) -> None:
        """Read the partitions that are ours, from what the database has on.

        Raises:
            ReaderFenced: see `stand_back`.
        """
        self._follow_group()
        if self.source.next_offsets != {partition: held.position.next for partition, held in self._ours.held.items()}:
            # Kafka's client is behind records that were rolled back: the next commit would jump over them.
            self.stand_back([])
        self._follow_topic()

    def _follow_group(self) -> None:
        """Take over what Kafka's group has given us; tried again until it is done."""
        assigned = self.source.new_assignment()
        if assigned is None:
            return
        self._ours.give_back()
        if self._positions.missing(self._ours.database, assigned):
            self._shape = self._topic.same_shape(self.shape.id)
            self._add_missing("earliest", self.shape.partitions)
            if self._positions.missing(self._ours.database, assigned):
                return  # the broker that was asked does not know of the new partition yet
        self._take_over(assigned)
        self.source.followed()

    def _follow_topic(self) -> None:
        """Read partitions that the topic has got. In a group, Kafka tells."""
        shape, partitions = self.shape, self.count
        if partitions <= shape.partitions or self._group is not None:
            return
        self.stand_back([])  # not beside another process that has taken over
        self._add_missing("earliest", partitions)
        self._take_over(list(range(shape.partitions, partitions)))
        self._shape = TopicShape(shape.name, shape.id, partitions)

    def stand_back(self, behind: list[int]) -> None:
        """Read on from what the database has of the partitions that are still ours.

        Args:
            behind: partitions whose positions the database refused.

        Raises:
            ReaderFenced: another process has taken over, and there is no group that would say what is left to us.
        """
        lost = self._ours.look_again()
        if lost and self._group is None:
            raise ReaderFenced(
                f"reader {self._name!r} of topic {self._topic.topic!r}: another process has taken over partitions "
                f"{lost} in {self._where}. Nothing of this one's transaction was kept. Let the other go on, give this "
                "one a name of its own, or share the partitions (group=...)"
            )
        if behind or lost:
            log.warning("reading again from what is stored", reader=self._name, partitions=behind, taken_over=lost)
        self._read_on()
        if lost:
            self.source.join_again()  # only the group knows whether they are still ours
