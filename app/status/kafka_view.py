"""Offsets of a stream's partitions as Kafka reports them, with or without a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicCollection

from kafka_ratchet.app.partitioner import Partitioner
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.errors import BrokerUnavailable, KafkaRefused, TopicMissing
from kafka_ratchet.producers import RefusalCallback, admin_client
from kafka_ratchet.topic_log.clients import offsets_at, open_consumer, partition_counts

TIMEOUT_S = 5.0
"""Seconds that a page or a command waits for Kafka before it reports that Kafka does not answer."""
GROUP: Final = "ratchet-page"
"""Group id, which librdkafka requires of each consumer. This consumer joins no group and commits nothing."""
HIDDEN: Final = -1
"""Value in place of the partition count of a topic that this user may not see."""


@dataclass(frozen=True, slots=True)
class InputPartition:
    """Offsets of one input partition.

    start: first offset; end: high watermark; stable_end: last stable offset, which is lower while a transaction is
    open. All three are None while the partition has no leader.
    changelog_end: end of the changelog partition of the same number; None: not yet created.
    """

    partition: int
    start: int | None
    end: int | None
    changelog_end: int | None
    stable_end: int | None = None


class KafkaView:
    """Reader of the offsets of all streams' topics. It blocks, so call `read` in a thread.

    Args:
        bootstrap: host:port[,host:port].
        settings: streams and client options.

    Raises:
        SettingsError: the Kafka client refuses its options.
    """

    def __init__(self, bootstrap: str, settings: Settings) -> None:
        self._bootstrap = bootstrap
        self.settings = settings
        self._options = {"bootstrap.servers": bootstrap, **settings.kafka}
        self._admin = admin_client(self._options)
        self._heard = RefusalCallback(self._options)
        self.problems: list[str] = []
        """Sentences about the inputs that the last `read` could not read, or not in full."""
        self._leaderless: dict[str, frozenset[int]] = {}
        self._consumers: dict[bool, Consumer] = {}
        """Kafka clients by isolation: the one for True sees committed records only."""

    def read(
        self,
        changelogs: dict[str, str],
        listed: Mapping[str, int],
        leaderless: Mapping[str, frozenset[int]] | None = None,
    ) -> dict[str, list[InputPartition]]:
        """Return each stream's input partitions; an empty list if the input topic does not exist.

        Streams with an input that this user may not see are omitted, and named in `problems`. Kafka gets one request
        per topic for the ends, and one per input for the beginnings.

        Args:
            changelogs: name of the changelog topic by stream.
            listed: partition count by topic, as Kafka has just listed them. A topic missing in the list is requested
                by name, because Kafka does not list topics that this user may not see.
            leaderless: partitions without a leader by topic, as Kafka has just listed them.

        Raises:
            BrokerUnavailable: Kafka did not answer within `TIMEOUT_S`, or refused the request.
            KafkaRefused: Kafka refuses this client, or this client refuses Kafka's certificate.
        """
        self._leaderless = dict(leaderless or {})
        try:
            return self._read(changelogs, listed)
        except BrokerUnavailable:
            # The old clients may know outdated leaders; new clients ask Kafka. The old ones are not closed, because
            # another thread may still use them: they end with their last user.
            self._consumers = {}
        try:
            return self._read(changelogs, listed)
        except BrokerUnavailable as error:
            if (refusal := self._refusal()) is not None:
                raise refusal from error
            raise BrokerUnavailable(
                f"the offsets of the topics cannot be read: Kafka at {self._bootstrap} did not answer ({error}). Check "
                "that Kafka runs, and that bootstrap and kafka.* in the settings are right"
            ) from error

    def _read(self, changelogs: dict[str, str], listed: Mapping[str, int]) -> dict[str, list[InputPartition]]:
        inputs = {name: stream.input for name, stream in self.settings.streams.items()}
        counts = self._counts({*inputs.values(), *changelogs.values()}, listed)
        # The high watermarks first: records appended in between are held back by no transaction.
        high = {
            topic: self._offsets(topic, counts[topic], OFFSET_END, committed=False)
            for topic in set(inputs.values())
            if counts.get(topic)
        }
        ends = {
            topic: self._offsets(topic, counts[topic], OFFSET_END)
            for topic in {*inputs.values(), *changelogs.values()}
            if counts.get(topic)
        }
        starts = {
            topic: self._offsets(topic, counts[topic], OFFSET_BEGINNING)
            for topic in set(inputs.values())
            if counts.get(topic)
        }
        self.problems = [
            f"stream {name}: this user may not see its input {topic!r}. Give it the rights of docs/guide/rights.md"
            for name, topic in inputs.items()
            if counts.get(topic) == HIDDEN
        ] + [
            f"stream {name}: partition{'s' * (len(away) > 1)} {', '.join(map(str, sorted(away)[:5]))} of its input "
            f"{topic!r} {'have' if len(away) > 1 else 'has'} no leader: start a broker with a replica in sync"
            for name, topic in inputs.items()
            if (away := self._leaderless.get(topic))
        ]
        found = {}
        for name, topic in inputs.items():
            if counts.get(topic) == HIDDEN:
                continue
            written = ends.get(changelogs.get(name, ""), [])
            found[name] = [
                InputPartition(
                    number,
                    start,
                    end if end is None or stable is None else max(end, stable),
                    written[number] if number < len(written) else None,
                    stable,
                )
                for number, (start, end, stable) in enumerate(
                    zip(starts.get(topic, ()), high.get(topic, ()), ends.get(topic, ()), strict=True)
                )
            ]
        return found

    def _counts(self, topics: set[str], listed: Mapping[str, int]) -> dict[str, int]:
        """Return the partition count of each existing topic; HIDDEN for a topic that this user may not see."""
        found = {topic: listed[topic] for topic in topics if listed.get(topic)}
        if not (unlisted := sorted(topics - found.keys())):
            return found
        described = self._admin.describe_topics(TopicCollection(unlisted), request_timeout=TIMEOUT_S)
        for topic, future in described.items():
            try:
                partitions = future.result().partitions
                found[topic] = len(partitions)
                if away := frozenset(each.id for each in partitions if each.leader is None or each.leader.id < 0):
                    self._leaderless[topic] = away
            except KafkaException as error:
                if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    found[topic] = HIDDEN
                elif error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise BrokerUnavailable(f"{topic}: {error.args[0].str()}") from error
        return found

    def _offsets(self, topic: str, partitions: int, at: int, *, committed: bool = True) -> list[int | None]:
        """Return the first or last offset of each partition, as `at` says; None for a partition without a leader.

        committed: True: the last offset is the last stable offset; False: it is the high watermark
        """
        if (asked := self._consumers.get(committed)) is None:
            options: dict[str, Any] = {**self._options, "error_cb": self._heard}
            asked = self._consumers[committed] = open_consumer(options, GROUP, committed=committed)
        away = self._leaderless.get(topic, frozenset())
        led = [number for number in range(partitions) if number not in away]
        found = dict(zip(led, offsets_at(asked, topic, led, at, TIMEOUT_S), strict=True)) if led else {}
        return [found.get(number) for number in range(partitions)]

    def _refusal(self) -> KafkaRefused | None:
        for asked in self._consumers.values():
            asked.poll(0)  # delivers errors
        return self._heard.refusal() or self._admin.refusal()


def partition_of_key(settings: Settings, bootstrap: str, stream: str, key: bytes, partitioner: Partitioner) -> int:
    """Return the partition that a partitioner chooses for a record key.

    Raises:
        TopicMissing: the input does not exist.
        BrokerUnavailable: Kafka did not answer.
    """
    topic = settings.streams[stream].input
    found = partition_counts(admin_client({"bootstrap.servers": bootstrap, **settings.kafka}), [topic])
    if topic not in found:
        raise TopicMissing(
            f"stream {stream}: the input topic {topic} does not exist. Create it, or correct streams.{stream}.input"
        )
    return partitioner.place(key, found[topic])
