"""Requests of a librdkafka client to Kafka, counted."""

from __future__ import annotations

from typing import Any, ClassVar

from confluent_kafka import Consumer, TopicPartition


class Counted(Consumer):  # type: ignore[misc]
    """A client that notes what it asks: the question, and about how many partitions."""

    asked: ClassVar[list[tuple[str, int]]] = []

    def offsets_for_times(self, partitions: list[TopicPartition], *args: Any, **options: Any) -> Any:
        self.asked.append(("offsets", len(partitions)))
        return super().offsets_for_times(partitions, *args, **options)

    def committed(self, partitions: list[TopicPartition], *args: Any, **options: Any) -> Any:
        self.asked.append(("committed", len(partitions)))
        return super().committed(partitions, *args, **options)

    def list_topics(self, *args: Any, **options: Any) -> Any:
        self.asked.append(("topic" if args and args[0] else "all topics", 0))
        return super().list_topics(*args, **options)
