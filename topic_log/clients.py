"""Clients of librdkafka that read topics: partition counts, first and last offsets, committed positions."""

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
"""Seconds that an answer of Kafka about topics may take."""
NEW_TOPIC_S: Final = 180.0
"""Seconds until brokers must know a new topic.

They create some hundreds of partitions a second, on a busy machine tens. A stream of 1,000 partitions has
four or five such topics.
"""
SETTLING: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - librdkafka's own word for the first
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
}
"""Broker errors for a partition not known yet."""
MISSING: Final = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}  # noqa: SLF001
MEET_S: Final = 5.0
PAUSE_S: Final = 0.2
"""Pause before committed offsets are read again, in seconds."""
Options = Mapping[str, str | int | bool]
"""Client options in librdkafka's names, `bootstrap.servers` among them."""


class OffsetRange(NamedTuple):
    """Offset range of a partition: the first offset, and the one after the last."""

    first: int
    end: int


def all_topics(admin: AdminClient) -> dict[str, TopicMetadata]:
    """Return every topic, by name.

    Raises:
        BrokerUnavailable: no answer.
    """
    try:
        return dict(admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics)
    except KafkaException as error:
        raise BrokerUnavailable(f"Kafka did not list its topics: {error.args[0].str()}") from None


def partition_counts(admin: AdminClient, topics: list[str]) -> dict[str, int]:
    """Partitions of those of the topics that exist.

    Raises:
        BrokerUnavailable: no answer.
    """
    known = all_topics(admin)
    return {topic: len(known[topic].partitions) for topic in topics if topic in known and known[topic].partitions}


def partition_count(asked: Consumer, topic: str, timeout_s: float = ADMIN_TIMEOUT_S) -> int:
    """Partitions of one topic, 0 where there is none: Kafka tells of this topic only, and creates none.

    Args:
        asked: see `consumer`; another client might create the topic by asking
        topic: name
        timeout_s: how long an answer may take

    Raises:
        BrokerUnavailable: no answer.
        TopicError: Kafka does not say.
    """
    try:
        found = asked.list_topics(topic, timeout=timeout_s).topics.get(topic)
    except KafkaException as failure:
        raise BrokerUnavailable(
            f"Kafka did not say whether there is a topic {topic}: {failure.args[0].str()}"
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
    """Yield a consumer that joins no group and commits nothing; the context closes it.

    Args:
        options: options of the client.
        group: the client requires one; `committed` also refers to it.
        committed: read committed records only, up to the last stable offset.
        closes: closing function; `close_later` where a caller waits for an answer.
    """
    opened = open_consumer(options, group, committed=committed)
    try:
        yield opened
    finally:
        closes(opened)


def close_later(client: Consumer) -> None:
    """Close a client in a thread of its own: after reading a thousand partitions it takes as long as a question."""
    threading.Thread(target=client.close, name="closing", daemon=True).start()


def open_consumer(options: Options, group: str, *, committed: bool = True) -> Consumer:
    """Open a consumer as `consumer` does; the caller closes it."""
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
    asked: Consumer, topic: str, partitions: int, timeout_s: float = ADMIN_TIMEOUT_S, settle_s: float = 0.0
) -> list[OffsetRange]:
    """Return the offset range of each partition of a topic, with two requests in all.

    Args:
        asked: see `consumer`.
        topic: its name.
        partitions: partition count.
        timeout_s: longest wait for an answer.
        settle_s: how long a partition may be unknown or without a leader, as a new one is.

    Raises:
        BrokerUnavailable: Kafka did not answer in time, or does not know a partition.
    """
    return [*ranges_of(asked, topic, range(partitions), timeout_s, settle_s).values()]


def ranges_of(
    asked: Consumer,
    topic: str,
    partitions: Collection[int],
    timeout_s: float = ADMIN_TIMEOUT_S,
    settle_s: float = 0.0,
) -> dict[int, OffsetRange]:
    """Return the offset ranges of some partitions, by number in the order given."""
    firsts, ends = (
        offsets_at(asked, topic, partitions, at, timeout_s, settle_s) for at in (OFFSET_BEGINNING, OFFSET_END)
    )
    return {n: OffsetRange(first, end) for n, first, end in zip(partitions, firsts, ends, strict=True)}


def offsets_at(
    asked: Consumer, topic: str, partitions: Collection[int], at: int, timeout_s: float, settle_s: float = 0.0
) -> list[int]:
    """First or last offset of some partitions of a topic, in the order given: one question, however many they are.

    Several topics in one question would cost more: librdkafka looks each partition up in the list of all.

    Args:
        asked: see `consumer`
        topic: name
        partitions: numbers
        at: OFFSET_BEGINNING or OFFSET_END, which ListOffsets takes in the place of a timestamp
        timeout_s: see `offset_ranges`
        settle_s: see `offset_ranges`

    Raises:
        BrokerUnavailable: see `offset_ranges`.
    """
    found = _asked_offsets(asked, topic, partitions, at, timeout_s, settle_s)
    return [found[number] for number in partitions]


def offsets_from(
    asked: Consumer, topic: str, held: Mapping[int, OffsetRange], ms: int, timeout_s: float
) -> dict[int, int]:
    """First offset of each partition from a time on; its end where no record is as late.

    Args:
        asked: see `consumer`.
        topic: name.
        held: partitions, with their ends.
        ms: the time, in milliseconds since 1970.
        timeout_s: see `offset_ranges`.

    Raises:
        BrokerUnavailable: see `offset_ranges`.
    """
    ends = {number: span.end for number, span in held.items()}
    return _asked_offsets(asked, topic, held, ms, timeout_s, 0.0, ends)


def _asked_offsets(
    asked: Consumer,
    topic: str,
    partitions: Collection[int],
    at: int,
    timeout_s: float,
    settle_s: float,
    ends: Mapping[int, int] | None = None,
) -> dict[int, int]:
    """Ask until each partition has an offset. ends: instead of OFFSET_END, the answer where no record is so late."""
    asked_before = False

    def ask(missing: list[int]) -> dict[int, Answer]:
        nonlocal asked_before
        if asked_before:
            # librdkafka keeps what a starting broker said of a topic, and may not ask about it again by itself.
            with suppress(KafkaException):
                asked.list_topics(topic, timeout=MEET_S)
        asked_before = True
        try:
            answers = asked.offsets_for_times([TopicPartition(topic, n, at) for n in missing], timeout=timeout_s)
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
        raise BrokerUnavailable(f"{topic} partition {partition}: its offsets cannot be read: {why}")
    return offsets


class Consumers:
    """Consumers kept for reuse: a new client takes some 50 ms to meet its broker.

    One at a time is kept of each kind. A context manager, which closes them.

    Args:
        options: options of the clients, `bootstrap.servers` among them.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._idle: dict[tuple[str, bool], tuple[Consumer, set[str]]] = {}
        """Idle consumers, each with the topics that it has met."""

    def __enter__(self) -> Consumers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close idle consumers, without waiting for it."""
        while self._idle:
            close_later(self._idle.popitem()[1][0])

    @contextmanager
    def consumer(self, group: str, *, committed: bool = True, topic: str | None = None) -> Iterator[Consumer]:
        """Yield a consumer as the function `consumer` does, reusing an idle client.

        topic: topic to read. A client of other topics would look for its leader after a second only.
        """
        kind = group, committed
        if kind in self._idle:
            opened, met = self._idle.pop(kind)
        else:
            opened, met = open_consumer(self._options, group, committed=committed), set[str]()
        try:
            if topic is not None and topic not in met:
                with suppress(KafkaException):  # who reads it then hears of that
                    opened.list_topics(topic, timeout=MEET_S)
                    met.add(topic)
            yield opened
        except GeneratorExit:  # who read has seen enough
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
    asked: Consumer, places: Collection[TopicPartition], timeout_s: float = ADMIN_TIMEOUT_S
) -> list[TopicPartition]:
    """Return the group's committed offset of each place: -1001 where there is none.

    librdkafka gives -1001 with an error, too, where it has no answer for a partition. The question is repeated then.

    Args:
        asked: see `consumer`.
        places: topics and partitions.
        timeout_s: how long answers may take.

    Raises:
        BrokerUnavailable: Kafka does not answer for one of them.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            found = asked.committed(list(places), timeout=timeout_s) if places else []
        except KafkaException as error:
            raise BrokerUnavailable(f"committed offsets cannot be read: {explained(error.args[0])}") from None
        wrong = next((each for each in found if each.error is not None), None)
        if wrong is None or wrong.error is None:
            return found
        if time.monotonic() > deadline:
            where = f"{wrong.topic} partition {wrong.partition}"
            raise BrokerUnavailable(f"{where}: its committed offset cannot be read: {explained(wrong.error)}")
        time.sleep(PAUSE_S)
