"""Which topic is behind a name, and where its partitions begin and end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

import structlog
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from kafka_ratchet.errors import BrokerUnavailable, ReaderError, TopicMissing, TopicReplaced
from kafka_ratchet.producers import PASSING, TopicShape, admin_client, describe_topic, explained

log = structlog.get_logger(__name__)

Options = Mapping[str, str | int | bool]

_NOT_YET: Final = PASSING | {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._NO_OFFSET}  # noqa: SLF001
"""What a partition answers whose leader is being chosen."""


class TopicReading:
    """Questions about one topic.

    Args:
        topic: its name.
        options: of the client.
        timeout_s: how long a question waits for Kafka, in seconds.

    Raises:
        SettingsError: librdkafka does not accept the options.
    """

    def __init__(self, topic: str, options: Options, timeout_s: float) -> None:
        self.topic, self._timeout_s = topic, timeout_s
        self._admin: AdminClient = admin_client(options)

    def shape(self) -> TopicShape:
        """Id and partition count.

        Raises:
            TopicMissing: there is no such topic.
            BrokerUnavailable: Kafka does not answer within the limit.
            TopicError: Kafka refuses the question.
        """
        shape = describe_topic(self._admin, self.topic, timeout_s=self._timeout_s, say=log.warning)
        if shape is None:
            raise TopicMissing(f"topic {self.topic!r} does not exist: correct the name, or create it")
        return shape

    def ask(self) -> Future[Any]:
        """Begin to ask Kafka which topic is behind the name; `confirm` takes the answer."""
        found: Future[Any] = self._admin.describe_topics(
            TopicCollection([self.topic]), request_timeout=self._timeout_s
        )[self.topic]
        return found

    def confirm(self, question: Future[Any], topic_id: str) -> TopicShape:
        """Compare the topic that there was when the question was asked, which is after the records were fetched.

        Raises:
            TopicReplaced: it is another one.
            TopicMissing, BrokerUnavailable, TopicError: see `shape`.
        """
        try:
            answer = question.result()
        except KafkaException:
            return self.same_shape(topic_id)
        return self._require_id(TopicShape(self.topic, str(answer.topic_id), len(answer.partitions)), topic_id)

    def same_shape(self, topic_id: str) -> TopicShape:
        """As `shape`, of the topic of this id; raises as `confirm`."""
        return self._require_id(self.shape(), topic_id)

    def _require_id(self, shape: TopicShape, topic_id: str) -> TopicShape:
        if shape.id != topic_id:
            raise TopicReplaced(
                f"topic {self.topic!r} was deleted and created again while it was read: its id was {topic_id}, and is "
                f"{shape.id}. Nothing of the new one was kept. `ratchet reader resume` decides where to begin"
            )
        return shape

    def beginnings(self, partitions: Sequence[int]) -> dict[int, int]:
        """Offset of the first record that each partition still has. Raises as `ends`."""
        return self._offsets(partitions, OffsetSpec.earliest())

    def ends(self, partitions: Sequence[int]) -> dict[int, int]:
        """Offset after the last committed record of each: where the oldest open transaction begins, if one is open.

        Raises:
            BrokerUnavailable: Kafka does not answer within the limit.
            ReaderError: Kafka refuses.
        """
        return self._offsets(partitions, OffsetSpec.latest())

    def _offsets(self, partitions: Sequence[int], which: Any) -> dict[int, int]:
        deadline = time.monotonic() + self._timeout_s
        wanted = {TopicPartition(self.topic, each): which for each in partitions}
        while wanted:
            try:
                answers = self._admin.list_offsets(
                    wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=5
                )
                return {place.partition: int(answer.result().offset) for place, answer in answers.items()}
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if error.code() not in _NOT_YET:
                    raise ReaderError(
                        f"topic {self.topic!r}: Kafka does not say where its partitions end: {explained(error)}"
                    ) from failure
                if time.monotonic() > deadline:
                    raise BrokerUnavailable(
                        f"Kafka did not answer within {self._timeout_s:g} s ({error.str()}). Check that it runs, and "
                        "the option bootstrap.servers"
                    ) from failure
            time.sleep(0.2)
        return {}
