"""Consumers of librdkafka, and their requests for partition counts, offset ranges and committed positions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, TopicMetadata

from kafka_ratchet.errors import BrokerUnavailable, TopicError
from kafka_ratchet.producers import LEADER_CHANGES, ask_offsets, explained, no_offset
from kafka_ratchet.producers.offsets import Answer

ADMIN_TIMEOUT_S: Final = 30.0
"""Seconds to wait for Kafka's answer about topics."""
NEW_TOPIC_S: Final = 180.0
"""Seconds to wait until brokers know a new topic.

Brokers create some hundred partitions a second, or some tens on a busy machine. A stream of 1,000 partitions has four
or five topics with 1,000 partitions each.
"""
SETTLING: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - librdkafka's own word for the first
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
}
"""Errors of brokers for a partition that they do not know yet."""
MISSING: Final = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}  # noqa: SLF001
MEET_S: Final = 5.0
PAUSE_S: Final = 0.2
"""Seconds to wait before committed offsets are requested again."""
Options = Mapping[str, str | int | bool]
"""Client options with librdkafka's names, including `bootstrap.servers`."""


class OffsetRange(NamedTuple):
    """Range of a partition's offsets: the first offset, and the one after the last."""

    first: int
    end: int


def all_topics(admin: AdminClient) -> dict[str, TopicMetadata]:
    """Return the metadata of every topic, by name.

    Raises:
        BrokerUnavailable: Kafka does not answer.
    """
    try:
        return dict(admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics)
    except KafkaException as error:
        raise BrokerUnavailable(f"Kafka did not list its topics: {error.args[0].str()}. Check that it runs") from None


def partition_counts(admin: AdminClient, topics: list[str]) -> dict[str, int]:
    """Return the partition count of each topic that exists, by name.

    Raises:
        BrokerUnavailable: Kafka does not answer.
    """
    known = all_topics(admin)
    return {topic: len(known[topic].partitions) for topic in topics if topic in known and known[topic].partitions}


def partition_count(client: Consumer, topic: str, timeout_s: float = ADMIN_TIMEOUT_S) -> int:
    """Return the number of partitions of one topic, without creating it; 0: no such topic.

    Args:
        client: consumer from the function `consumer`; the request of another client might create the topic
        topic: name of the topic
        timeout_s: maximum seconds to wait for the answer

    Raises:
        BrokerUnavailable: Kafka does not answer.
        TopicError: Kafka refuses to describe the topic.
    """
    try:
        found = client.list_topics(topic, timeout=timeout_s).topics.get(topic)
    except KafkaException as failure:
        raise BrokerUnavailable(
            f"Kafka did not answer whether topic {topic} exists: {failure.args[0].str()}. Check that Kafka runs"
        ) from None
    if found is None or (found.error is not None and found.error.code() in MISSING):
        return 0
    if found.error is not None and not found.partitions:
        raise TopicError(f"topic {topic!r} cannot be described: {explained(found.error)}")
    return len(found.partitions)


@contextmanager
def consumer(
    options: Options, group: str, *, committed: bool = True, closes: Callable[[Consumer], None] = Consumer.close
) -> Iterator[Consumer]:
    """Yield a consumer that joins no group and commits nothing, and close it at the end.

    Args:
        options: options of the client.
        group: name of a group; librdkafka requires one, and reads committed offsets from this group.
        committed: whether to read only committed records, up to the last stable offset.
        closes: function that closes the consumer; `close_later` if a caller waits for an answer.
    """
    opened = open_consumer(options, group, committed=committed)
    try:
        yield opened
    finally:
        closes(opened)


def close_later(client: Consumer) -> None:
    """Close a client in a thread of its own.

    After reading a thousand partitions, closing takes as long as a request.
    """
    threading.Thread(target=client.close, name="closing", daemon=True).start()


def open_consumer(options: Options, group: str, *, committed: bool = True) -> Consumer:
    """Open a consumer as `consumer` does; the caller has to close it."""
    return Consumer(
        {
            "log_level": 0,
            "queued.max.messages.kbytes": 16 * 1024,  # fetched ahead; 64 MiB by default
            "fetch.wait.max.ms": 10,  # the end of a partition is answered at once
            "fetch.queue.backoff.ms": 10,  # a client with enough fetched ahead checks again; 1 s by default
            **options,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )


def offset_ranges(
    client: Consumer, topic: str, partitions: int, timeout_s: float = ADMIN_TIMEOUT_S, settle_s: float = 0.0
) -> list[OffsetRange]:
    """Return the offset range of each partition of a topic, with two calls of librdkafka.

    Args:
        client: consumer from the function `consumer`.
        topic: name of the topic.
        partitions: number of partitions.
        timeout_s: maximum seconds to wait for an answer.
        settle_s: seconds that a partition may be unknown or without a leader, like a new one.

    Raises:
        BrokerUnavailable: Kafka did not answer in time, or does not know a partition.
    """
    return [*ranges_of(client, topic, range(partitions), timeout_s, settle_s).values()]


def ranges_of(
    client: Consumer,
    topic: str,
    partitions: Collection[int],
    timeout_s: float = ADMIN_TIMEOUT_S,
    settle_s: float = 0.0,
) -> dict[int, OffsetRange]:
    """Return the offset ranges of some partitions, by their number, in the given order."""
    firsts, ends = (
        offsets_at(client, topic, partitions, at, timeout_s, settle_s) for at in (OFFSET_BEGINNING, OFFSET_END)
    )
    return {n: OffsetRange(first, end) for n, first, end in zip(partitions, firsts, ends, strict=True)}


def offsets_at(
    client: Consumer, topic: str, partitions: Collection[int], at: int, timeout_s: float, settle_s: float = 0.0
) -> list[int]:
    """Return the first or last offset of some partitions of a topic, in the given order.

    One call of librdkafka requests them, and is repeated for partitions without an answer. A call for several topics
    would cost more: librdkafka searches its list of partitions again for each partition.

    Args:
        client: consumer from the function `consumer`
        topic: name of the topic
        partitions: numbers of the partitions
        at: OFFSET_BEGINNING or OFFSET_END
        timeout_s: see `offset_ranges`
        settle_s: see `offset_ranges`

    Raises:
        BrokerUnavailable: see `offset_ranges`.
    """
    found = _request_offsets(client, topic, partitions, at, timeout_s, settle_s)
    return [found[number] for number in partitions]


def offsets_from(
    client: Consumer, topic: str, held: Mapping[int, OffsetRange], ms: int, timeout_s: float
) -> dict[int, int]:
    """Return each partition's first offset at or after a time.

    If all records are older, this is the end of the partition's range in `held`.

    Args:
        client: consumer from the function `consumer`.
        topic: name of the topic.
        held: offset ranges by partition.
        ms: the time, in milliseconds since 1970.
        timeout_s: see `offset_ranges`.

    Raises:
        BrokerUnavailable: see `offset_ranges`.
    """
    ends = {number: span.end for number, span in held.items()}
    return _request_offsets(client, topic, held, ms, timeout_s, 0.0, ends)


def _request_offsets(
    client: Consumer,
    topic: str,
    partitions: Collection[int],
    at: int,
    timeout_s: float,
    settle_s: float,
    ends: Mapping[int, int] | None = None,
) -> dict[int, int]:
    """Request the offset of each partition until Kafka has returned all of them.

    Args:
        client: see `offsets_at`.
        topic: see `offsets_at`.
        partitions: see `offsets_at`.
        at: OFFSET_BEGINNING, OFFSET_END, or a time in milliseconds since 1970.
        timeout_s: see `offset_ranges`.
        settle_s: see `offset_ranges`.
        ends: result for each partition with older records only, if `at` is a time.
    """
    has_failed = False

    def ask(missing: list[int]) -> dict[int, Answer]:
        nonlocal has_failed
        if has_failed:
            # librdkafka caches a starting broker's metadata of the topic, and may not refresh it by itself.
            with suppress(KafkaException):
                client.list_topics(topic, timeout=MEET_S)
        has_failed = True
        try:
            answers = client.offsets_for_times([TopicPartition(topic, n, at) for n in missing], timeout=timeout_s)
        except KafkaException as failure:
            return dict.fromkeys(missing, failure.args[0])
        found: dict[int, Answer] = {}
        for each in answers:
            offset = int(each.offset)
            if ends is not None and offset == OFFSET_END:
                offset = ends[each.partition]
            found[each.partition] = offset if each.error is None else each.error
        return found

    def patience_s(error: KafkaError | None) -> float:
        if error is None:
            return max(timeout_s, settle_s)
        if error.code() in SETTLING:
            return settle_s
        return max(timeout_s, settle_s) if error.code() in LEADER_CHANGES else 0.0

    offsets, failures = ask_offsets(ask, partitions, patience_s)
    for partition, error in failures.items():
        why = no_offset(error, explained)
        raise BrokerUnavailable(
            f"{topic}, partition {partition}: its offsets cannot be read: {why}. Check that the partition's leader runs"
        )
    return offsets


class Consumers:
    """Consumers kept for reuse, because a new client takes about 50 ms to connect to its broker.

    One idle consumer is kept for each pair of `group` and `committed`. As a context manager, this object closes the
    idle consumers at the end.

    Args:
        options: options of the clients, including `bootstrap.servers`.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._idle: dict[tuple[str, bool], tuple[Consumer, set[str]]] = {}
        """Idle consumers, each with the topics of its metadata."""

    def __enter__(self) -> Consumers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Start to close the idle consumers, each in a thread of its own."""
        while self._idle:
            close_later(self._idle.popitem()[1][0])

    @contextmanager
    def consumer(self, group: str, *, committed: bool = True, topic: str | None = None) -> Iterator[Consumer]:
        """Yield a consumer as the function `consumer` does, but reuse an idle one.

        Args:
            group: see the function `consumer`.
            committed: see the function `consumer`.
            topic: topic to read. Its metadata is fetched first, because an idle consumer of other topics would need a
                second to find the topic. None: fetch no metadata.
        """
        kind = group, committed
        if kind in self._idle:
            opened, met = self._idle.pop(kind)
        else:
            opened, met = open_consumer(self._options, group, committed=committed), set[str]()
        try:
            if topic is not None and topic not in met:
                with suppress(KafkaException):  # the caller's own request raises the error
                    opened.list_topics(topic, timeout=MEET_S)
                    met.add(topic)
            yield opened
        except GeneratorExit:  # the caller has stopped reading early
            self._put_back(kind, opened, met)
            raise
        except BaseException:
            opened.close()
            raise
        self._put_back(kind, opened, met)

    def _put_back(self, kind: tuple[str, bool], used: Consumer, met: set[str]) -> None:
        if kind in self._idle:
            used.close()
            return
        used.unassign()
        self._idle[kind] = used, met


def committed_positions(
    client: Consumer, places: Collection[TopicPartition], timeout_s: float = ADMIN_TIMEOUT_S
) -> list[TopicPartition]:
    """Return the committed offset of each partition in the client's group; -1001: no offset.

    librdkafka also returns -1001, with an error, if it has no answer for a partition. The request is then repeated.

    Args:
        client: consumer from the function `consumer`.
        places: topics and partitions.
        timeout_s: maximum seconds to wait for answers.

    Raises:
        BrokerUnavailable: Kafka does not answer for a partition.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            found = client.committed(list(places), timeout=timeout_s) if places else []
        except KafkaException as error:
            raise BrokerUnavailable(
                f"the group's committed offsets cannot be read: {explained(error.args[0])}. Check that Kafka runs"
            ) from None
        wrong = next((each for each in found if each.error is not None), None)
        if wrong is None or wrong.error is None:
            return found
        if time.monotonic() > deadline:
            where = f"{wrong.topic} partition {wrong.partition}"
            raise BrokerUnavailable(
                f"{where}: its committed offset cannot be read: {explained(wrong.error)}. Check that Kafka runs"
            )
        time.sleep(PAUSE_S)
