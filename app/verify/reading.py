"""Reader of Kafka for verify: it determines the offsets to compare, and reads the committed records before them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import structlog
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)

from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.status.group import ask_group
from kafka_ratchet.app.status.open_transactions import BlockedRange, ask_about
from kafka_ratchet.app.verify.policies import PolicyTopic
from kafka_ratchet.app.verify.report import HaltedPartition
from kafka_ratchet.app.verify.rule import RecordView
from kafka_ratchet.app.worker.topics import config_of
from kafka_ratchet.errors import (
    BrokerUnavailable,
    ForeignOffset,
    PartitionsDiffer,
    PositionLost,
    RatchetError,
    TopicError,
    TopicMissing,
    TransportError,
)
from kafka_ratchet.producers import PASSING, PROGRESS_TOPIC, Progress, admin_client, explained, read_progress
from kafka_ratchet.tables.edits import EDIT, Edit
from kafka_ratchet.tables.policy_intervals import POLICY_INTERVAL, PolicyInterval
from kafka_ratchet.topic_log.clients import (
    Consumers,
    OffsetRange,
    all_topics,
    committed_positions,
    offset_ranges,
    partition_count,
    ranges_of,
)
from kafka_ratchet.topic_log.reading import records, records_between, second_read
from kafka_ratchet.transport.lane_spec import LaneState
from kafka_ratchet.transport.owner import KEY as OWNER
from kafka_ratchet.transport.owner import Owner, Topic


@dataclass(frozen=True)
class OffsetRanges:
    """Offsets to compare, read from Kafka in an order that is safe while workers run.

    1. `judged`: all input before this offset must have its output.
    2. The end of the output, once open transactions have ended.
    3. `committed_to`: no record before the output's end comes from input beyond this offset.

    Input from `judged` to `committed_to` may be in the output or not.
    """

    judged: dict[int, int]
    """Committed offset by input partition, before the output's end was read; 0 without any commit."""
    committed_to: dict[int, int]
    """Committed offset by input partition, after the output's end was read; 0 without any commit."""
    uncommitted: frozenset[int]
    """Input partitions without any commit."""
    input_ends: dict[int, int]
    output_ends: dict[int, int]
    dead_letter_ends: dict[int, int]
    input_high: dict[int, int]
    """High watermarks of the input. Records from `input_ends` up to the high watermark wait for the end of a
    transaction."""
    input_begins: dict[int, int]
    """First offset that Kafka still has, by input partition."""
    output_begins: dict[int, int]
    dead_letter_begins: dict[int, int]


log = structlog.get_logger(__name__)

MESSAGE_EVERY_S = 3.0


def plain_id(text: str) -> str:
    """Convert a topic id from the usual Base64, which some clients print, to URL-safe Base64."""
    return text.replace("+", "-").replace("/", "_").rstrip("=")


def is_other_topic(known: Topic | None, name: str, topic_id: str) -> bool:
    """Return True if a topic of an owner entry is another one than today's. known: None if the entry has none."""
    return known is not None and (known.name, plain_id(known.id)) != (name, plain_id(topic_id))


class TopicReader:
    """Reader of the committed records in one stream's topics.

    Raises:
        TopicMissing: the input, output or dead-letter topic does not exist.
        PartitionsDiffer: input and output have different partition counts.
    """

    def __init__(self, settings: Settings, stream: StreamSettings, bootstrap: str, *, input_only: bool = False) -> None:
        """Look up the topics.

        Args:
            settings: all settings.
            stream: the stream to compare.
            bootstrap: host:port[,host:port].
            input_only: True if the output and dead-letter topics need not exist, because a Spark job deduplicates the
                input and writes to a table.
        """
        self._settings = settings
        self._stream = stream
        self._options: Mapping[str, str | int | bool] = {"bootstrap.servers": bootstrap, **settings.kafka}
        self._timeout_s = settings.kafka_timeout_s
        most = settings.max_batch_mb << 20
        self._second = {kind: second_read(self._options, most, committed=kind) for kind in (True, False)}
        self._consumers, self._admin = Consumers(self._options), admin_client(self._options)
        self.topic_ids: dict[str, str] = {}
        """Id of each topic requested so far. A topic has a new id after it was deleted and created again."""
        self._counts: dict[str, int] = {}
        others = [] if input_only else [stream.output, stream.dead_letters]
        counts = self._partition_counts([stream.input, *others])
        self.partitions = counts[stream.input]
        if input_only:
            self._dead_letter_partitions = 0
            return
        self._dead_letter_partitions = counts[stream.dead_letters]
        if counts[stream.output] != self.partitions:
            raise PartitionsDiffer(
                f"input {stream.input!r} has {self.partitions} partitions and output {stream.output!r} has "
                f"{counts[stream.output]}: they must be equal. Partitions added to an input let records count twice; "
                "docs/guide/partitions.md describes the safe way"
            )

    def consumer(
        self, group: str, committed: bool = True, topic: str | None = None
    ) -> AbstractContextManager[Consumer]:
        """Return a context manager that lends a Kafka client; later calls lend the same one.

        See `Consumers.consumer`. committed: False: read records of open and aborted transactions as well
        """
        return self._consumers.consumer(group, committed=committed, topic=topic)

    def close(self) -> None:
        """Close the clients."""
        self._consumers.close()

    def offset_ranges(self, numbers: Collection[int] | None = None) -> OffsetRanges:
        """Determine the offsets to compare, after open transactions on the output have ended.

        Args:
            numbers: partitions of the input; None: all

        Raises:
            ForeignOffset: another client has committed one of the offsets.
            PositionLost: the input ends before the committed offset.
            TransportError: a transaction stays open for longer than its timeout.
            BrokerUnavailable: Kafka does not answer.
        """
        stream, chosen = self._stream, range(self.partitions) if numbers is None else sorted(set(numbers))
        letters = range(self._dead_letter_partitions)
        chosen_letters = letters if numbers is None else [number for number in chosen if number in letters]
        with self.consumer(self._settings.app) as committed, self.consumer(self._settings.app, False) as uncommitted:
            judged, _ = self._committed(committed, stream.input, chosen)
            ends: dict[str, dict[int, int]] = {}
            begins: dict[str, dict[int, int]] = {}
            for topic, of_topic in ((stream.output, chosen), (stream.dead_letters, chosen_letters)):
                # The commit's markers reach the topics one after the other: present transactions must have
                # ended.
                begins[topic], written = self._ends(uncommitted, topic, of_topic)
                ends[topic] = self._when_ended(committed, topic, written)
            committed_to, never = self._committed(committed, stream.input, chosen)
            self._refuse_foreign(stream.input, chosen)
            high = self._ends(uncommitted, stream.input, chosen)[1]
            begins[stream.input], ends[stream.input] = self._ends(committed, stream.input, chosen)
        self._require_held(committed_to, ends[stream.input])
        high = {number: max(end, ends[stream.input][number]) for number, end in high.items()}
        spans = ((of[stream.input], of[stream.output], of[stream.dead_letters]) for of in (ends, begins))
        return OffsetRanges(judged, committed_to, never, *next(spans), high, *next(spans))

    def blocked(self, topic: str, ends: Mapping[int, int], high: Mapping[int, int] | None = None) -> list[BlockedRange]:
        """Return the partitions where an open transaction blocks readers of committed records.

        Args:
            topic: name of the topic.
            ends: last stable offset by partition.
            high: high watermark by partition; None: read it now.

        Raises:
            BrokerUnavailable: Kafka does not answer.
        """
        if high is None:
            with self.consumer(self._settings.app, False) as uncommitted:
                high = self._ends(uncommitted, topic, ends)[1]
        places = {(topic, number): (end, high[number]) for number, end in ends.items()}
        return ask_about(str(self._options["bootstrap.servers"]), self._settings, places)

    def begins(self, topic: str, numbers: Collection[int]) -> dict[int, int]:
        """Return the first offset that Kafka has now, by partition.

        Raises:
            BrokerUnavailable: Kafka does not answer.
        """
        with self.consumer("ratchet-verify") as client:
            return self._ends(client, topic, numbers)[0]

    def waiting(self, judged_to: Mapping[int, int]) -> dict[int, OffsetRange]:
        """Return, for each input partition, the offsets that workers may not have judged yet.

        The offsets end at the high watermark.

        Args:
            judged_to: offset by partition; workers have judged all input before it

        Raises:
            ForeignOffset: another client has committed one of the offsets.
            PositionLost: the input ends before the committed offset.
            BrokerUnavailable: Kafka does not answer.
        """
        with self.consumer(self._settings.app) as client, self.consumer(self._settings.app, False) as uncommitted:
            committed_to, _ = self._committed(client, self._stream.input, judged_to)
            self._refuse_foreign(self._stream.input, judged_to)
            begins, ends = self._ends(uncommitted, self._stream.input, judged_to)
        self._require_held(committed_to, ends)
        return {
            number: OffsetRange(max(begins[number], min(to, committed_to[number])), ends[number])
            for number, to in judged_to.items()
        }

    def _require_held(self, committed_to: Mapping[int, int], ends: Mapping[int, int]) -> None:
        for partition, end in ends.items():
            if (position := committed_to[partition]) > end:
                raise PositionLost(
                    f"{self._stream.input} partition {partition} ends at offset {end}, and group "
                    f"{self._settings.app!r} has committed {position}: the topic was deleted and created again, or "
                    "has lost its end. Workers have not judged its present records; see docs/reference/halted.md"
                )

    def sent(self, topic: str) -> list[OffsetRange]:
        """Return each partition's first offset and end, once open transactions on the topic have ended.

        Raises:
            TopicMissing: the topic does not exist.
            TransportError: a transaction stays open for longer than its timeout.
            BrokerUnavailable: Kafka does not answer.
        """
        count = self.count(topic)
        with self.consumer("ratchet-verify") as committed, self.consumer("ratchet-verify", False) as uncommitted:
            begins, written = self._ends(uncommitted, topic, range(count))
            ends = self._when_ended(committed, topic, written)
        return [OffsetRange(begins[number], ends[number]) for number in range(count)]

    def count(self, topic: str) -> int:
        """Return the partition count of a topic.

        Raises:
            TopicMissing: the topic does not exist.
            BrokerUnavailable: Kafka does not answer.
        """
        return self._partition_counts([topic])[topic]

    def topic_id(self, topic: str) -> str:
        """Return the id of a topic, as librdkafka prints it.

        Only the first call for a topic sends a request.

        Raises:
            TopicMissing: the topic does not exist.
            BrokerUnavailable: Kafka does not answer.
        """
        if topic not in self.topic_ids:
            self._partition_counts([topic])
        return self.topic_ids[topic]

    def is_compacted(self, topic: str) -> bool:
        """Return True if Kafka compacts the topic.

        Compaction removes all but the newest record of a key.
        """
        return "compact" in config_of(self._admin, topic)["cleanup.policy"]

    def records(
        self, topic: str, partition: int, end: int, begin: int = 0, *, committed: bool = True
    ) -> Iterator[tuple[int, RecordView]]:
        """Yield offset and record of each committed record from `begin` to before `end`.

        committed: False: read records of open and aborted transactions as well, up to the high watermark

        Raises:
            BrokerUnavailable: no record arrived for `kafka_timeout_s`.
            PositionLost: records were deleted before they were read.
            TransportError: Kafka refuses the read.
        """
        if end <= begin:
            return
        with self.consumer("ratchet-verify", committed, topic=topic) as client:
            # Read by number from the beginning found by `offset_ranges`: a new client would request the
            # beginning before it has met a broker, and once more half a second later.
            for message in records(
                client, topic, partition, begin, timeout_s=self._timeout_s, end=end, second=self._second[committed]
            ):
                offset = message.offset()
                assert offset is not None  # noqa: S101
                if offset < end:
                    yield offset, _view(message)
                if offset >= end - 1:
                    return

    def records_between(
        self, topic: str, spans: Mapping[int, OffsetRange], *, committed: bool = True
    ) -> Iterator[tuple[int, int, RecordView]]:
        """Yield partition, offset and record of the committed records in several partitions, interleaved.

        spans: offsets to read, by partition; committed: False: read records of open and aborted transactions as well

        Raises:
            BrokerUnavailable: no record arrived for `kafka_timeout_s`.
            PositionLost: records were deleted before they were read.
            TransportError: Kafka refuses the read.
        """
        with self.consumer("ratchet-verify", committed, topic=topic) as client:
            for message in records_between(
                client, topic, spans, timeout_s=self._timeout_s, second=self._second[committed]
            ):
                yield message.partition() or 0, message.offset() or 0, _view(message)

    def dead_letters(self, begins: dict[int, int], ends: dict[int, int]) -> Iterator[tuple[int, int, RecordView]]:
        """Yield partition, offset and record of each dead letter. begins, ends: offsets by partition."""
        for partition, end in ends.items():
            for offset, record in self.records(self._stream.dead_letters, partition, end, begins[partition]):
                yield partition, offset, record

    def published(self, producer: str) -> Progress | None:
        """Return the progress that a producer has recorded for the present input topic; None without one."""
        try:
            self._partition_counts([PROGRESS_TOPIC])
        except TopicMissing:
            return None
        found = read_progress(
            self._options, self._stream.input, producer, timeout_s=self._timeout_s, say=lambda said: log.info(said)
        )
        # Progress on a deleted and recreated topic does not count.
        return found if found is not None and found.topic_id == self.topic_ids[self._stream.input] else None

    def changelog(
        self, changelog: str
    ) -> tuple[dict[int, list[PolicyInterval]], dict[int, Owner], dict[int, list[Edit]]]:
        """Read policy intervals, owner entry and edits of each partition from the changelog.

        Call it after `offset_ranges`.

        Raises:
            OwnerDiffers: an owner entry was written by a newer Ratchet.
            StateError: another entry was written by a newer Ratchet.
        """
        found: dict[int, dict[bytes, PolicyInterval]] = {}
        owners: dict[int, Owner] = {}
        edits: dict[int, dict[int, Edit]] = {}
        for partition, (begin, end) in self.spans(changelog).items():
            for _, record in self.records(changelog, partition, end, begin):
                if record.key is not None and record.key.startswith(POLICY_INTERVAL):
                    entry = PolicyInterval.unpack(record.key, record.value or b"")
                    found.setdefault(partition, {})[record.key] = entry
                elif record.key is not None and record.key.startswith(EDIT):
                    number, edit = Edit.unpack(record.key, record.value or b"")
                    edits.setdefault(partition, {})[number] = edit
                elif record.key == OWNER and record.value is not None:
                    owners[partition] = Owner.unpack(record.value)
        intervals = {partition: sorted(entries.values()) for partition, entries in found.items()}
        return intervals, owners, {number: [of[each] for each in sorted(of)] for number, of in edits.items()}

    def policies(self, name: str) -> PolicyTopic:
        """Read the remaining records of the policy topic. name: name of the topic."""
        begin, end = self.spans(name).get(0, (0, 0))
        records = ((offset, record.key, record.value) for offset, record in self.records(name, 0, end, begin))
        return PolicyTopic.of(name, begin, end, records)

    def letters_topic(self) -> tuple[str, str, str]:
        """Return (application, name, id) of the dead-letter topic; the id as Kafka's tools print it."""
        topic = self._stream.dead_letters
        return self._settings.app, topic, plain_id(self.topic_ids[topic])

    def topics(self) -> list[str]:
        """Return the names of all topics.

        Raises:
            BrokerUnavailable: Kafka does not answer.
        """
        return sorted(all_topics(self._admin))

    def spans(self, topic: str) -> Mapping[int, tuple[int, int]]:
        """Return first offset and last stable offset of each partition; empty if the topic does not exist."""
        try:
            count = self._partition_counts([topic])[topic]
        except TopicMissing:
            return {}
        with self.consumer("ratchet-verify") as client:
            return dict(enumerate(offset_ranges(client, topic, count, self._timeout_s)))

    def span(self, topic: str, partition: int, *, committed: bool = True) -> OffsetRange | None:
        """Return first offset and end of one partition; None if topic or partition do not exist.

        committed: True: the end is the last stable offset; False: the high watermark
        """
        with self.consumer("ratchet-verify", committed, topic=topic) as client:
            if not 0 <= partition < self._known_count(client, topic):
                return None
            return ranges_of(client, topic, [partition], self._timeout_s)[partition]

    def _known_count(self, client: Consumer, topic: str) -> int:
        """Return the partition count of a topic; 0 if the topic does not exist.

        Only the first call for a topic sends a request.
        """
        if not self._counts.get(topic):
            self._counts[topic] = partition_count(client, topic, self._timeout_s)
        return self._counts[topic]

    def _partition_counts(self, topics: list[str]) -> dict[str, int]:
        counts = {}
        for topic, answer in self._admin.describe_topics(
            TopicCollection(topics), request_timeout=self._timeout_s
        ).items():
            try:
                described = answer.result()
                counts[topic] = self._counts[topic] = len(described.partitions)
                self.topic_ids[topic] = str(described.topic_id)
            except KafkaException as failure:
                error = failure.args[0]
                if error.code() == error.UNKNOWN_TOPIC_OR_PART:
                    raise TopicMissing(
                        f"topic {topic!r} does not exist: nothing can be compared. Run the worker once, or correct "
                        "the stream in the settings"
                    ) from None
                if error.code() in PASSING:
                    raise BrokerUnavailable(
                        f"topic {topic!r}: Kafka did not answer within {self._timeout_s:g} s: {error.str()}. Check "
                        "that it runs"
                    ) from None
                raise TopicError(f"topic {topic!r} cannot be described: {explained(error)}") from failure
        return counts

    def committed_of(self, topic: str, count: int) -> dict[int, int]:
        """Return the offset that the group has committed for each partition of a topic; 0 without a commit.

        Raises:
            ForeignOffset: another client has committed one of the offsets.
            BrokerUnavailable: Kafka does not answer.
        """
        with self.consumer(self._settings.app) as client:
            found, _ = self._committed(client, topic, range(count))
        self._refuse_foreign(topic, range(count))
        return found

    def _refuse_foreign(self, topic: str, numbers: Collection[int]) -> None:
        group = ask_group(str(self._options["bootstrap.servers"]), self._settings, self._timeout_s)
        for number in numbers:
            if (offset := group.foreign.get((topic, number))) is not None:
                raise ForeignOffset(
                    f"{topic}, partition {number}: another client has committed offset {offset} in the group "
                    f"{self._settings.app!r}. That offset does not show which records were judged, so nothing can be "
                    f"compared. Decide with `ratchet resume --stream {self._stream_of(topic)} --partition {number}`, "
                    "then run this again"
                )

    def _stream_of(self, topic: str) -> str:
        streams = self._settings.streams.items()
        return next((name for name, stream in streams if stream.input == topic), "STREAM")

    def _committed(
        self, consumer: Consumer, topic: str, numbers: Collection[int]
    ) -> tuple[dict[int, int], frozenset[int]]:
        """Return committed offsets by partition (0 without a commit), and the partitions without a commit.

        With a consumer that reads committed records, Kafka answers only when no transaction is about to commit these
        offsets (KIP-447).
        """
        places = [TopicPartition(topic, partition) for partition in numbers]
        try:
            answered = committed_positions(consumer, places, self._timeout_s)
        except BrokerUnavailable as failure:
            raise BrokerUnavailable(f"group {self._settings.app!r}: {failure}") from failure
        offsets = {found.partition: max(0, found.offset) for found in answered}
        return offsets, frozenset(found.partition for found in answered if found.offset < 0)

    def _ends(self, client: Consumer, topic: str, numbers: Collection[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Return the first offsets and the end offsets of the partitions `numbers`, each by partition."""
        held = ranges_of(client, topic, numbers, self._timeout_s)
        return {n: each.first for n, each in held.items()}, {n: each.end for n, each in held.items()}

    def _when_ended(self, consumer: Consumer, topic: str, written: dict[int, int]) -> dict[int, int]:
        limit_s = self._settings.transaction_timeout_ms / 1000 + 15  # the broker looks for dead ones every 10 s
        began = said_at = time.monotonic()
        while True:
            _, ends = self._ends(consumer, topic, written)
            still_open = [partition for partition, end in written.items() if ends[partition] < end]
            if not still_open:
                return ends
            now = time.monotonic()
            if now - began > limit_s:
                first = still_open[0]
                blocked = self.blocked(topic, {first: ends[first]}, {first: written[first]})
                raise TransportError(
                    f"{topic} partition {first}: a transaction has been open at offset {ends[first]} for more than "
                    f"{limit_s:.0f} s{''.join(f'. {each}' for each in blocked)}. If it is a worker's transaction, set "
                    "transaction_timeout_ms here to the worker's value"
                )
            if now - said_at >= MESSAGE_EVERY_S:
                said_at = now
                log.info("waiting for an open transaction to end", topic=topic, partition=still_open[0])
            time.sleep(0.05)


def _view(message: Message) -> RecordView:
    headers: list[tuple[str, bytes | None]] = []
    for name, value in message.headers() or []:
        assert not isinstance(value, str)  # noqa: S101  (the client gives bytes or None)
        headers.append((name, value))
    kind, timestamp_ms = message.timestamp()
    return RecordView(message.key(), message.value(), headers, timestamp_ms, kind == TIMESTAMP_LOG_APPEND_TIME)


def halted_partitions(settings: Settings, stream: str) -> list[HaltedPartition]:
    """Return the halted partitions that the group's workers report.

    If no worker answers, the list is empty, and the unread input of halted partitions counts as pending.

    Args:
        settings: settings with `bootstrap`.
        stream: name of the stream.
    """
    try:
        return asyncio.run(_halted(settings, stream))
    except RatchetError:
        return []


async def _halted(settings: Settings, stream: str) -> list[HaltedPartition]:
    from kafka_ratchet.app.status.cluster_view import ClusterView

    assert settings.bootstrap is not None  # noqa: S101 - checked by the caller
    async with ClusterView(settings.bootstrap, settings) as cluster_view:
        overview = await cluster_view.overview()
    return [
        HaltedPartition(row.partition, row.error or "the worker does not say why")
        for view in overview.streams
        if view.stream == stream
        for row in view.partitions
        if row.state == LaneState.HALTED
    ]
