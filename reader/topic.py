"""Requests about one topic: its id, its partitions, and their first and last offsets."""

from __future__ import annotations

import time
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
    END_OF_PARTITION,
    PASSING,
    TopicShape,
    admin_client,
    ask_offsets,
    describe_topic,
    explained,
    no_offset,
)
from kafka_ratchet.producers.offsets import Answer
from kafka_ratchet.reader.event import NO_TIMESTAMP

log = structlog.get_logger(__name__)

Options = Mapping[str, str | int | bool]

_NOT_YET: Final = PASSING | {KafkaError._NO_OFFSET, KafkaError._UNKNOWN_PARTITION}  # noqa: SLF001
"""Error codes of a partition while it elects a leader."""

LEADERS_S: Final = 5.0
"""Seconds to wait for an answer about leaders, without a second try."""

FIRST_RECORD: Final[dict[str, str | int | bool]] = {
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 10,  # Kafka answers at once at the end of a partition
    "fetch.message.max.bytes": 64 * 1024,  # one record is needed; Kafka sends a whole batch even if it is larger
    "queued.min.messages": 1,
    "fetch.queue.backoff.ms": 10,
}
"""Options of a client that reads one record of each partition."""


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

    def first_times(self, starts: Mapping[int, int], ends: Mapping[int, int], limit_s: float) -> dict[int, int]:
        """Return the timestamp of each partition's first committed record from `starts` on, in ms since 1970.

        `NO_TIMESTAMP`: that record has none, or Kafka sent neither a record nor the end of the partition within the
        limit. So it is with a batch that librdkafka cannot read, and without the right to read the topic.

        The records are read: Kafka's search by time would return an earlier record with a timestamp in the future.

        Args:
            starts: first offset to read, by partition.
            ends: last stable offset by partition.
            limit_s: time limit of the request for leaders, and then of reading, in seconds.

        Returns:
            The timestamps; a partition without such a record is missing.
        """
        waiting = {partition for partition, start in starts.items() if start < ends.get(partition, 0)}
        found: dict[int, int] = {}
        if not waiting:
            return found
        with closing(self._consumer(committed=True, **FIRST_RECORD)) as client:
            with suppress(KafkaException):  # without metadata, the client looks for the leaders a second later
                client.list_topics(self.topic, timeout=limit_s)
            deadline = time.monotonic() + limit_s
            client.assign([TopicPartition(self.topic, partition, starts[partition]) for partition in sorted(waiting)])
            while waiting and (left_s := deadline - time.monotonic()) > 0:
                message = client.poll(left_s)
                if message is None or (partition := message.partition()) not in waiting:
                    continue
                error = message.error()
                if error is None:
                    found[partition] = message.timestamp()[1]
                elif error.code() not in (END_OF_PARTITION, KafkaError._AUTO_OFFSET_RESET):  # noqa: SLF001
                    continue  # the client tries again
                waiting.discard(partition)
                client.incremental_unassign([TopicPartition(self.topic, partition)])
        return {**dict.fromkeys(waiting, NO_TIMESTAMP), **found}

    def high_watermarks(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the high watermark of each partition; raises the errors of `ends`."""
        return self._offsets(partitions, OFFSET_END, committed=False)

    def _consumer(self, *, committed: bool, **more: str | int | bool) -> Consumer:
        """Return a client that joins no group. more: further options.

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
                **more,
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
