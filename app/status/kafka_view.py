"""What Kafka itself knows of a stream, whether a worker lives or not: where its partitions start and end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicCollection

from kafka_ratchet.app.names import earlier_changelog_name
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.kafka_topics import offsets_at, open_consumer
from kafka_ratchet.errors import BrokerUnavailable, KafkaRefused
from kafka_ratchet.producers import Heard, admin_client

TIMEOUT_S = 5.0
"""A page or a command that waits longer than this for Kafka should say so instead."""
GROUP: Final = "ratchet-page"
"""The client has to have one; it joins none, and commits nothing."""


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
        self._options = {"bootstrap.servers": bootstrap, **settings.kafka}
        self._admin = admin_client(self._options)
        self._heard = Heard(self._options)
        self._consumer: Consumer | None = None

    def read(self, changelogs: dict[str, str], listed: Mapping[str, int]) -> dict[str, list[InputPartition]]:
        """Each stream's input partitions; an empty list where the input topic does not exist.

        However many partitions there are, each topic is asked about once for its ends, and an input once for its
        beginnings.

        Args:
            changelogs: name of the changelog topic by stream.
            listed: partitions by topic, as Kafka has just listed them. A topic that is not in it is asked for by name:
                Kafka lists none that this user may not see, and says so only where it is asked.

        Raises:
            BrokerUnavailable: Kafka did not answer within five seconds, or refused.
            KafkaRefused: Kafka and this client refuse each other.
        """
        try:
            return self._read(changelogs, listed)
        except BrokerUnavailable:
            # A client knows leaders as they were, a new one asks. The old one is not closed, as another thread may be
            # asking by it: it ends with its last user.
            self._consumer = None
        try:
            return self._read(changelogs, listed)
        except BrokerUnavailable as error:
            if (refusal := self._refusal()) is not None:
                raise refusal from error
            raise BrokerUnavailable(
                f"topic positions cannot be read: Kafka at {self._bootstrap} did not answer ({error}). Check that it "
                "runs and that bootstrap and kafka.* are right"
            ) from error

    def _read(self, changelogs: dict[str, str], listed: Mapping[str, int]) -> dict[str, list[InputPartition]]:
        inputs = {name: stream.input for name, stream in self.settings.streams.items()}
        earlier = {
            name: earlier_changelog_name(self.settings.app, name)
            for name in inputs
            if changelogs.get(name) not in listed
        }
        counts = self._counts({*inputs.values(), *changelogs.values(), *earlier.values()}, listed)
        changelogs = {
            name: topic if topic in counts else earlier.get(name, topic) for name, topic in changelogs.items()
        }
        ends = {
            topic: self._offsets(topic, counts[topic], OFFSET_END)
            for topic in {*inputs.values(), *changelogs.values()}
            if topic in counts
        }
        starts = {
            topic: self._offsets(topic, counts[topic], OFFSET_BEGINNING)
            for topic in set(inputs.values())
            if topic in counts
        }
        found = {}
        for name, topic in inputs.items():
            written = ends.get(changelogs.get(name, ""), [])
            found[name] = [
                InputPartition(number, start, end, written[number] if number < len(written) else None)
                for number, (start, end) in enumerate(zip(starts.get(topic, ()), ends.get(topic, ()), strict=True))
            ]
        return found

    def _counts(self, topics: set[str], listed: Mapping[str, int]) -> dict[str, int]:
        """Partitions by topic, without the topics that do not exist."""
        found = {topic: listed[topic] for topic in topics if listed.get(topic)}
        if not (unlisted := sorted(topics - found.keys())):
            return found
        described = self._admin.describe_topics(TopicCollection(unlisted), request_timeout=TIMEOUT_S)
        for topic, future in described.items():
            try:
                found[topic] = len(future.result().partitions)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise BrokerUnavailable(f"{topic}: {error.args[0].str()}") from error
        return found

    def _offsets(self, topic: str, partitions: int, at: int) -> list[int]:
        """By partition. Committed data only: what an open transaction has written is nobody's lag yet."""
        if (asked := self._consumer) is None:
            options: dict[str, Any] = {**self._options, "error_cb": self._heard}
            asked = self._consumer = open_consumer(options, GROUP)
        return offsets_at(asked, topic, range(partitions), at, TIMEOUT_S)

    def _refusal(self) -> KafkaRefused | None:
        if (asked := self._consumer) is not None:
            asked.poll(0)  # delivers errors
        return self._heard.refusal() or self._admin.refusal()
