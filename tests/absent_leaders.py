"""A client of librdkafka that gives no offset at first, as where the leader of a partition is away."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, TopicPartition

OFFSET_INVALID = -1001


class LateAnswers(Consumer):  # type: ignore[misc] # confluent_kafka has no types
    """A consumer that answers each question about offsets with -1001 the first time, and with no error."""

    asked = 0
    """Questions about offsets of all clients of this class."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._refused: set[tuple[str, int, int]] = set()

    def offsets_for_times(self, partitions: list[TopicPartition], **options: Any) -> list[TopicPartition]:
        type(self).asked += 1
        found: list[TopicPartition] = super().offsets_for_times(partitions, **options)
        for number, place in enumerate(partitions):
            question = place.topic, place.partition, place.offset
            if question not in self._refused:
                self._refused.add(question)
                found[number] = TopicPartition(place.topic, place.partition, OFFSET_INVALID)
        return found
