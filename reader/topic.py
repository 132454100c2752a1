"""Requests about one topic: its id, its partitions, and their first and last offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from typing import Any, Final

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from kafka_ratchet.errors import BrokerUnavailable, ReaderError, TopicMissing, TopicReplaced
from kafka_ratchet.producers import (
    PASSING,
    TopicShape,
    admin_client,
    ask_offsets,
    describe_topic,
    explained,
    no_offset,
)
from kafka_ratchet.producers.offsets import Answer

log = structlog.get_logger(__name__)

Options = Mapping[str, str | int | bool]

_NOT_YET: Final = PASSING | {KafkaError._NO_OFFSET, KafkaError._UNKNOWN_PARTITION}  # noqa: SLF001
"""Error codes of a partition while it elects a leader."""


NO_RECORD: Final = -1
"""Offset in Kafka's answer for a partition without records at or after a requested time."""

LEADERS_S: Final = 5.0
"""Seconds to wait for an answer about leaders, without a second try."""


class TopicReading:
    """Client for requests to Kafka about one topic.

    Args:
        topic: name of the topic.
        options: options of the client.
        timeout_s: time limit of a request, in seconds.

    Raises:
        SettingsError: librdkafka does not accept the options.
    """

    def __init__(self, topic: str, options: Options, timeout_s: float) -> None:
        self.topic, self._options, self._timeout_s = topic, options, timeout_s
        self._admin: AdminClient = admin_client(options)

    def shape(self) -> TopicShape:
        """Return the topic's id and partition count.

        Raises:
            TopicMissing: the topic does not exist.
            BrokerUnavailable: Kafka does not answer within the limit.
            TopicError: Kafka refuses the request.
        """
        shape = describe_topic(self._admin, self.topic, timeout_s=self._timeout_s, say=log.warning)
        if shape is None:
            raise TopicMissing(f"topic {self.topic!r} does not exist. Correct the name, or create the topic")
        return shape

    def ask(self) -> Future[Any]:
        """Request the topic's id from Kafka; `confirm` takes the answer."""
        found: Future[Any] = self._admin.describe_topics(
            TopicCollection([self.topic]), request_timeout=self._timeout_s
        )[self.topic]
        return found

    def confirm(self, question: Future[Any], topic_id: str) -> TopicShape:
        """Return the topic's shape from Kafka's answer to `ask`, after checking the topic's id.

        Call `ask` after the records were fetched: the answer then shows that they came from this topic.

        Raises:
            TopicReplaced: the topic was deleted and created again.
            TopicMissing, BrokerUnavailable, TopicError: see `shape`.
        """
        try:
            answer = question.result()
        except KafkaException:
            return self.same_shape(topic_id)
        return self._require_id(TopicShape(self.topic, str(answer.topic_id), len(answer.partitions)), topic_id)

    def same_shape(self, topic_id: str) -> TopicShape:
        """Return the topic's id and partition count if it still has this id; raises the errors of `confirm`."""
        return self._require_id(self.shape(), topic_id)

    def _require_id(self, shape: TopicShape, topic_id: str) -> TopicShape:
        if shape.id != topic_id:
            raise TopicReplaced(
                f"topic {self.topic!r} was deleted and created again while it was read: its id was {topic_id} and "
                f"is now {shape.id}. Nothing of the new topic was kept. Decide where to begin with `ratchet reader "
                "resume`"
            )
        return shape

    def beginnings(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the first offset that each partition still holds; raises the errors of `ends`."""
        return self._offsets(partitions, OFFSET_BEGINNING)

    def ends(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the last stable offset of each partition.

        Raises:
            BrokerUnavailable: Kafka does not answer within the limit.
            ReaderError: Kafka refuses the request.
        """
        return self._offsets(partitions, OFFSET_END)

    def leaderless(self) -> frozenset[int]:
        """Return the partitions without a leader; empty if Kafka does not answer."""
        try:
            found = self._admin.list_topics(self.topic, timeout=LEADERS_S).topics[self.topic].partitions
        except (KafkaException, KeyError):
            return frozenset()
        return frozenset(number for number, each in found.items() if each.leader < 0)

    def since(self, partitions: Sequence[int], ms: int) -> dict[int, int]:
        """Return each partition's first offset with a timestamp from this time on; -1 without one.

        It sends one request; a partition without an answer is missing in the result.
        """
        with closing(self._consumer(committed=True)) as client:
            answers = self._ask(client, partitions, ms)
        return {number: answer for number, answer in answers.items() if isinstance(answer, int) and answer >= NO_RECORD}

    def high_watermarks(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the high watermark of each partition; raises the errors of `ends`."""
        return self._offsets(partitions, OFFSET_END, committed=False)

    def _consumer(self, *, committed: bool) -> Consumer:
        """Return a client for offsets, which joins no group.

        The administration client has a request for offsets too, but connects to an absent leader thousands of times a
        second, without backoff.
        """
        return Consumer(
            {
                "log_level": 0,
                **self._options,
                "group.id": "ratchet-reader-offsets",
                "enable.auto.commit": False,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
            }
        )

    def _ask(self, client: Consumer, partitions: Sequence[int], at: int) -> dict[int, Answer]:
        """Request each partition's offset. at: OFFSET_BEGINNING, OFFSET_END, or a time in milliseconds since 1970."""
        places = [TopicPartition(self.topic, each, at) for each in partitions]
        try:
            answers = client.offsets_for_times(places, timeout=LEADERS_S) if places else []
        except KafkaException as failure:
            return dict.fromkeys(partitions, failure.args[0])
        return {each.partition: int(each.offset) if each.error is None else each.error for each in answers}

    def _offsets(self, partitions: Sequence[int], at: int, *, committed: bool = True) -> dict[int, int]:
        asked_before = False

        def ask(missing: list[int]) -> dict[int, Answer]:
            nonlocal asked_before
            if asked_before:  # the client may not refresh its metadata unasked
                with suppress(KafkaException):
                    client.list_topics(self.topic, timeout=LEADERS_S)
            asked_before = True
            return self._ask(client, missing, at)

        def patience_s(error: KafkaError | None) -> float:
            return self._timeout_s if error is None or error.code() in _NOT_YET else 0.0

        with closing(self._consumer(committed=committed)) as client:
            offsets, failures = ask_offsets(ask, partitions, patience_s)
        for partition, error in failures.items():
            where = f"topic {self.topic!r} partition {partition}"
            if error is not None and error.code() not in _NOT_YET:
                raise ReaderError(f"{where}: Kafka refuses to return its offsets: {explained(error)}")
        if failures:
            partition, error = next(iter(failures.items()))
            raise BrokerUnavailable(
                f"topic {self.topic!r} partition {partition}: Kafka returned no offset within {self._timeout_s:g} s "
                f"({no_offset(error, KafkaError.str)}). Check that the leader of the partition runs, and the option "
                "bootstrap.servers"
            )
        return offsets
