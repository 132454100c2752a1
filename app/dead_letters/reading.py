"""Reader of a stream's dead-letter topic: counts by reason, and single letters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from kafka_ratchet.app.dead_letters.letters import Letter, letter_at, read_committed
from kafka_ratchet.app.dead_letters.replayed import ReplayedLetters
from kafka_ratchet.app.names import replayed_topic
from kafka_ratchet.app.repartition import arrives_in
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.errors import TopicError, TopicMissing
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.client.topic_id import TopicState, id_text

REASONS_MOST: Final = 1_000
"""Maximum number of reasons counted separately, because an agent's error may have another text for each record."""
REASON_SHOWN: Final = 200
"""Number of first characters of a reason to compare. Reasons that begin with the same characters are counted together.
"""
OTHER_REASONS: Final = "(other reasons)"
NO_LETTER: Final = "(not a dead letter of Ratchet)"


class LetterFilter(msgspec.Struct, frozen=True):
    """Selection of dead letters; None in a field sets no condition.

    reason: beginning of the reason.
    partition, offset: partition and offset in the dead-letter topic.
    limit: maximum number of letters.
    """

    reason: str | None = None
    partition: int | None = None
    offset: int | None = None
    limit: int | None = None

    def includes(self, letter: Letter) -> bool:
        """Return True if a letter meets the conditions, regardless of the limit."""
        if self.partition is not None and letter.partition != self.partition:
            return False
        if self.offset is not None and letter.offset != self.offset:
            return False
        return self.reason is None or reason_of(letter).startswith(self.reason)


class ReasonCount(msgspec.Struct):
    """Number of dead letters with one reason.

    partitions: number of these letters in each partition; first_ms, last_ms: the earliest and the latest timestamp of
    the records, in ms since the epoch
    """

    reason: str
    letters: int = 0
    replayed: int = 0
    partitions: dict[int, int] = {}
    first_ms: int = 0
    last_ms: int = 0


class LetterCounts(msgspec.Struct):
    """Counts of `ratchet dead-letters list`.

    letters, replayed, reasons: counts of this stream's dead letters. others: number of records in the topic that come
    from other streams, applications or writers
    """

    stream: str
    topic: str
    letters: int
    replayed: int
    reasons: list[ReasonCount]
    others: int = 0


def reason_of(letter: Letter) -> str:
    """Return the reason of a dead letter; it may contain any characters."""
    return NO_LETTER if letter.origin is None else letter.origin.reason


@dataclass
class LetterTopic:
    """Dead-letter topic of a stream, with a connection to Kafka."""

    cluster: Cluster
    settings: Settings
    name: str
    stream: StreamSettings
    topics: dict[str, TopicState]

    @property
    def topic(self) -> str:
        """Return the name of the dead-letter topic."""
        return self.stream.dead_letters

    @property
    def id(self) -> str:
        """Return the topic's id, as text."""
        return id_text(self.topics[self.topic].id)

    def has_made(self, letter: Letter, of_app: str = "") -> bool:
        """Return True if the letter's headers name this stream's input, and no foreign application.

        This application and `of_app` are not foreign.
        """
        is_ours = letter.app in (None, self.settings.app, of_app)
        return is_ours and letter.origin is not None and letter.origin.topic == self.stream.input

    async def batches(self, wanted: LetterFilter) -> AsyncIterator[RecordBatch]:
        """Yield the committed batches of the topic, partition by partition.

        Partitions and offsets excluded by `wanted` may be skipped.

        Raises:
            TopicError: the topic does not have the selected partition.
            BrokerUnavailable: Kafka does not answer within kafka_timeout_s.
        """
        state = self.topics[self.topic]
        numbers = range(state.partitions)
        if wanted.partition is not None:
            if wanted.partition not in numbers:
                raise TopicError(
                    f"{self.topic} has partitions 0 to {len(numbers) - 1}, and no partition {wanted.partition}. "
                    "Correct --partition"
                )
            numbers = range(wanted.partition, wanted.partition + 1)
        most, timeout_s = self.settings.max_batch_mb << 20, self.settings.kafka_timeout_s
        for number in numbers:
            async for batch in read_committed(
                self.cluster, self.topic, state.id, number, most, timeout_s, start=wanted.offset or 0
            ):
                yield batch
                if wanted.offset is not None:
                    break

    async def replayed(self, of_app: str = "") -> ReplayedLetters:
        """Return the set of dead letters that committed replays have sent.

        Args:
            of_app: application that owned the topics before: its replays count as well. "": no other.

        Raises:
            TopicError: an entry of a topic of replays has an unknown format.
        """
        found = await self._replayed_by(self.settings.app)
        if of_app and of_app != self.settings.app:
            found.add_all(await self._replayed_by(of_app))
        return found

    async def _replayed_by(self, app: str) -> ReplayedLetters:
        name = replayed_topic(app, self.name)
        found, there = ReplayedLetters(self.id), await self.cluster.topics([name])
        if name not in there:
            return found
        most, timeout_s = self.settings.max_batch_mb << 20, self.settings.kafka_timeout_s
        async for batch in read_committed(self.cluster, name, there[name].id, 0, most, timeout_s):
            for index in range(batch.count):
                if not found.take(batch.key(index), batch.value(index)):
                    raise TopicError(
                        f"{name}, offset {int(batch.offsets[index])}: this version of Ratchet cannot read the entry, "
                        "so it does not know which dead letters were replayed. Use the version that wrote the entry"
                    )
        return found


@asynccontextmanager
async def connected(settings: Settings, bootstrap: str, name: str) -> AsyncIterator[LetterTopic]:
    """Yield the dead-letter topic of a stream; close its connection when the block ends.

    Raises:
        TopicMissing: the topic does not exist.
        BrokerUnavailable: Kafka does not answer.
    """
    stream = settings.streams[name]
    cluster = Cluster(client_options(bootstrap, settings.kafka))
    await cluster.start(settings.kafka_timeout_s)
    try:
        topics = await cluster.topics([stream.input, arrives_in(settings.streams, name), stream.dead_letters])
        if stream.dead_letters not in topics:
            raise TopicMissing(
                f"stream {name}: the dead-letter topic {stream.dead_letters} does not exist. Start a worker, "
                "which creates it unless create_topics is false"
            )
        yield LetterTopic(cluster, settings, name, stream, topics)
    finally:
        await cluster.close()


async def count_letters(letters: LetterTopic, wanted: LetterFilter) -> LetterCounts:
    """Return the counts of the stream's selected letters by reason, and of the topic's other records."""
    replayed, others = await letters.replayed(), 0
    counts: dict[str, ReasonCount] = {}
    async for batch in letters.batches(wanted):
        for index in range(batch.count):
            letter = letter_at(batch, index)
            if not wanted.includes(letter):
                continue
            if not letters.has_made(letter):
                others += 1
                continue
            reason = reason_of(letter)[:REASON_SHOWN]
            if reason not in counts and len(counts) >= REASONS_MOST:
                reason = OTHER_REASONS
            count = counts.setdefault(reason, ReasonCount(reason))
            _add(count, letter, is_replayed=(letter.partition, letter.offset) in replayed)
    ordered = sorted(counts.values(), key=lambda each: (-each.letters, each.reason))
    total, again = (sum(getattr(each, field) for each in ordered) for field in ("letters", "replayed"))
    return LetterCounts(letters.name, letters.topic, total, again, ordered, others)


def _add(count: ReasonCount, letter: Letter, *, is_replayed: bool) -> None:
    times = [letter.timestamp_ms] if not count.letters else [count.first_ms, count.last_ms, letter.timestamp_ms]
    count.first_ms, count.last_ms = min(times), max(times)
    count.letters += 1
    count.replayed += is_replayed
    count.partitions[letter.partition] = count.partitions.get(letter.partition, 0) + 1


class LetterView(msgspec.Struct):
    """Dead letter with key and value, which may be any bytes, for `ratchet dead-letters show`."""

    letter: Letter
    key: bytes | None
    value: bytes | None
    is_replayed: bool


async def find_letters(letters: LetterTopic, wanted: LetterFilter) -> AsyncIterator[LetterView]:
    """Yield the stream's selected letters, at most `wanted.limit` of them."""
    replayed, left = await letters.replayed(), wanted.limit
    async for batch in letters.batches(wanted):
        for index in range(batch.count):
            letter = letter_at(batch, index)
            if not wanted.includes(letter):
                continue
            if left is not None and left <= 0:
                return
            left = None if left is None else left - 1
            is_replayed = (letter.partition, letter.offset) in replayed
            yield LetterView(letter, batch.key(index), batch.value(index), is_replayed)
