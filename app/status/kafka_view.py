"""What Kafka itself knows of a stream, whether a worker lives or not: where its partitions start and end."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from kafka_ratchet.app.names import earlier_changelog_name
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.errors import BrokerUnavailable
from kafka_ratchet.producers import admin_client

TIMEOUT_S = 5.0
"""A page or a command that waits longer than this for Kafka should say so instead."""


@dataclass(frozen=True, slots=True)
class InputPartition:
    """Offsets of one input partition, and the end of the changelog that belongs to it (None: there is none yet)."""

    partition: int
    start: int
    end: int
    changelog_end: int | None


class KafkaView:
    """Asks Kafka for the positions of topics. Blocking: call `read` in a thread.

    Args:
        bootstrap: host:port[,host:port].
        settings: streams and client options.

    Raises:
        SettingsError: the Kafka client does not take its options.
    """

    def __init__(self, bootstrap: str, settings: Settings) -> None:
        self._bootstrap = bootstrap
        self.settings = settings
        self._admin = admin_client({"bootstrap.servers": bootstrap, **settings.kafka})

    def read(self, changelogs: dict[str, str]) -> dict[str, list[InputPartition]]:
        """Each stream's input partitions; an empty list where the input topic does not exist.

        Args:
            changelogs: name of the changelog topic by stream.

        Raises:
            BrokerUnavailable: Kafka did not answer within five seconds, or refused.
        """
        try:
            return self._read(changelogs)
        except KafkaException as error:
            if (refusal := self._admin.refusal()) is not None:
                raise refusal from error
            raise BrokerUnavailable(
                f"topic positions cannot be read: Kafka at {self._bootstrap} did not answer "
                f"({error.args[0].str()}). Check that it runs and that bootstrap and kafka.* are right"
            ) from error

    def _read(self, changelogs: dict[str, str]) -> dict[str, list[InputPartition]]:
        inputs = {name: stream.input for name, stream in self.settings.streams.items()}
        earlier = {name: earlier_changelog_name(self.settings.app, name) for name in inputs}
        partitions = self._partitions({*inputs.values(), *changelogs.values(), *earlier.values()})
        changelogs = {
            name: topic if topic in partitions else earlier.get(name, topic) for name, topic in changelogs.items()
        }
        input_partitions = [TopicPartition(topic, p) for topic in inputs.values() for p in partitions.get(topic, ())]
        changelog_partitions = [
            TopicPartition(topic, p) for topic in changelogs.values() for p in partitions.get(topic, ())
        ]
        ends = self._offsets([*input_partitions, *changelog_partitions], OffsetSpec.latest())
        starts = self._offsets(input_partitions, OffsetSpec.earliest())
        return {
            name: [
                InputPartition(
                    partition=p,
                    start=starts[topic, p],
                    end=ends[topic, p],
                    changelog_end=ends.get((changelogs.get(name, ""), p)),
                )
                for p in partitions.get(topic, ())
            ]
            for name, topic in inputs.items()
        }

    def _partitions(self, topics: set[str]) -> dict[str, list[int]]:
        """Partition numbers by topic, without the topics that do not exist."""
        found: dict[str, list[int]] = {}
        if not topics:
            return found
        described = self._admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=TIMEOUT_S)
        for topic, future in described.items():
            try:
                found[topic] = sorted(partition.id for partition in future.result().partitions)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        return found

    def _offsets(self, partitions: list[TopicPartition], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        if not partitions:
            return {}
        # Committed data only: what an open transaction has written is nobody's lag yet.
        asked = self._admin.list_offsets(
            dict.fromkeys(partitions, spec), isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT_S
        )
        return {(where.topic, where.partition): future.result().offset for where, future in asked.items()}
