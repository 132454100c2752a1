"""Range of a topic's committed offsets, and the offsets that a job reads next."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import KafkaUnavailable, OffsetsLost, OptionRefused, TopicMissing, TopicRecreated
from kafka_ratchet.spark_sink.job.first_unread import first_unread_timestamps, open_consumer
from kafka_ratchet.spark_sink.stores.store import NEW_TOPIC
from kafka_ratchet.spark_sink.topic_ids import of_halves, text

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient

log = logging.getLogger("spark_sink")

REQUEST_TIMEOUT_S = 30.0
"""Seconds that one request to Kafka may take: enough for several reconnects by librdkafka."""

TOKEN_SERVER_AWAY = re.compile(r"OAUTHBEARER token: .*(connect|resolve|time)", re.IGNORECASE)

HEAR_S = 0.1
"""Seconds between two checks whether Kafka has refused this client."""

ANOTHER_S = 1.0
"""Seconds that another broker may take to answer after one has refused this client."""

NO_RECORD = -1
"""Offset that Kafka answers for a partition without a record at the requested time or later."""

ASK_S = 10.0
"""Seconds to wait for the offsets of all partitions; afterwards the client requests the leaders again."""

LEADER_PAUSE_S = 0.2
"""Seconds between two requests about a partition without a leader; an election takes about as long."""

CONTROLLER_S = 2.0
"""Seconds to wait for the first answer of the controller; each further wait is twice as long."""


@dataclass(frozen=True)
class OffsetRange:
    """Offsets that a topic holds, by partition: from `earliest` up to, not including, `end`."""

    topic: str
    earliest: dict[int, int]
    end: dict[int, int]
    """Last stable offset of each partition: all transactions before it have ended."""
    topic_id: int = 0
    """Id of the topic, see `TopicPlanner.topic_id`."""
    high: Mapping[int, int] | None = None
    """High watermarks, if known. Offsets from `end` up to the watermark wait for an open transaction to end."""

    @property
    def top(self) -> dict[int, int]:
        """Return the known end of each partition: its high watermark, or `end` if the watermark is unknown."""
        high = self.high or {}
        return {partition: max(high.get(partition, end), end) for partition, end in self.end.items()}

    @property
    def blocked(self) -> dict[int, int]:
        """Return the number of offsets that an open transaction holds back, by partition."""
        return {
            partition: top - self.end[partition] for partition, top in self.top.items() if top > self.end[partition]
        }

    def lag(self, stored: Mapping[int, int]) -> dict[int, int]:
        """Return the number of offsets left to read per partition; markers and aborted records count.

        Args:
            stored: next offset to read of each partition; a missing partition counts from its earliest offset.
        """
        return {p: max(0, offset - stored.get(p, self.earliest[p])) for p, offset in self.top.items()}


class TopicPlanner:
    """Client for requests to Kafka about one topic's offsets, as a read_committed reader sees them.

    Args:
        bootstrap: host:port[,host:port].
        topic: the topic.
        options: client options in librdkafka's names (security.protocol, sasl.*, ssl.*).
        timeout_s: limit of one request, in seconds.
    """

    def __init__(
        self, bootstrap: str, topic: str, options: Mapping[str, str], timeout_s: float = REQUEST_TIMEOUT_S
    ) -> None:
        from confluent_kafka import KafkaException

        self._bootstrap = bootstrap
        self._topic = topic
        self._timeout_s = timeout_s
        self._options = dict(options)
        self._refused = ""
        self._first_id: int | None = None
        self._consumers: dict[bool, Consumer] = {}
        """Clients that look up offsets. The key is True for the client that sees only committed records."""
        try:
            self._admin = self._open_admin()
        except KafkaException as error:
            text = error.args[0].str()
            if not text.startswith("No such configuration property"):  # other texts quote the value
                text = "the value of " + next((name for name in options if f'"{name}"' in text), "one of them")
            raise KafkaUnavailable(
                f"the Kafka client refuses the given Kafka options: {text}. Correct these options"
            ) from None

    def _open_admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return AdminClient(
            {"bootstrap.servers": self._bootstrap, "error_cb": self._hear, **self._options},
            logger=logging.getLogger("spark_sink.kafka"),
        )

    def topic_id(self) -> int:
        """Return the topic's id (KIP-516) in 128 bits; a topic created again has another id.

        The id is 0 if the broker has no topic ids. Raises the errors of `offset_range`.
        """
        return _topic_id(self._describe())

    def offset_range(self) -> OffsetRange:
        """Return the earliest and last stable offset of each partition, as of now.

        Raises:
            TopicMissing: there is no such topic.
            KafkaUnavailable: Kafka did not answer, or a partition has no leader.
        """
        from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

        topic = self._describe()
        partitions = [partition.id for partition in topic.partitions]
        # Earliest first: retention may move it in between, and a range that begins too early is noticed later.
        earliest = self._offsets(partitions, OFFSET_BEGINNING)
        end = self._offsets(partitions, OFFSET_END)
        return OffsetRange(self._topic, earliest, end, _topic_id(topic))

    def offsets_at(self, timestamp_ms: int) -> dict[int, int | None]:
        """Return the first offset of each partition with a record of that time or later.

        Args:
            timestamp_ms: milliseconds since 1970.

        Returns:
            None for a partition without such a committed record.

        Raises:
            TopicMissing: there is no such topic.
            KafkaUnavailable: Kafka did not answer, or a partition has no leader.
        """
        partitions = [partition.id for partition in self._describe().partitions]
        found = self._offsets(partitions, timestamp_ms, least=NO_RECORD)
        return {partition: None if offset == NO_RECORD else offset for partition, offset in found.items()}

    def cleanup_policy(self) -> str:
        """Return the topic's cleanup.policy: delete, compact, or both with a comma.

        Raises:
            OptionRefused: this user may not read the topic's settings.
            KafkaUnavailable: Kafka did not answer.
        """
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import ConfigResource, ResourceType

        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        try:
            found = self._answer(lambda limit_s: self._admin.describe_configs([resource], request_timeout=limit_s))
            return str(found["cleanup.policy"].value)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise OptionRefused(
                    f"topic {self._topic}: this user may not read the topic's cleanup.policy. Give the user the right "
                    f"DescribeConfigs on topic {self._topic}, then run the command again"
                ) from None
            raise self._unavailable(f"topic {self._topic}", error) from None

    def high_watermarks(self) -> dict[int, int]:
        """Return the high watermark of each partition, which lies after records of open transactions.

        Raises:
            TopicMissing: there is no such topic.
            KafkaUnavailable: Kafka did not answer, or a partition has no leader.
        """
        return self._ends(committed=False)

    def stable_offsets(self) -> dict[int, int]:
        """Return the last stable offset of each partition.

        Raises:
            TopicMissing: there is no such topic.
            KafkaUnavailable: Kafka did not answer, or a partition has no leader.
        """
        return self._ends(committed=True)

    def _ends(self, *, committed: bool) -> dict[int, int]:
        from confluent_kafka import OFFSET_END

        partitions = [partition.id for partition in self._describe().partitions]
        return self._offsets(partitions, OFFSET_END, committed=committed)

    def require_still_first_topic(self, offsets: Mapping[int, int]) -> None:
        """Read the topic's id, and check it as `require_first_topic` does.

        Raises the errors of `topic_id` and `require_first_topic`.
        """
        self.require_first_topic(self.topic_id(), offsets)

    def require_first_topic(self, topic_id: int, offsets: Mapping[int, int]) -> None:
        """Check that the topic still has the id that this planner read first.

        The store's offsets belong to the topic with that id. But Spark reads by the topic's name, and a topic can be
        deleted and created again while Spark starts or reads.

        Args:
            topic_id: the present id.
            offsets: the stored offsets.

        Raises:
            TopicRecreated: the topic was deleted and created again.
        """
        if self._first_id is not None and topic_id != self._first_id:
            raise TopicRecreated(
                f"topic {self._topic} was deleted and created again while the job read it (up to {dict(offsets)}): "
                f"its id was {text(self._first_id)} and is {text(topic_id)}. {NEW_TOPIC}"
            )

    def first_unread_timestamps(self, offset_range: OffsetRange, stored: Mapping[int, int]) -> dict[int, int]:
        """Return the timestamp of each partition's first missing record, by `first_unread.first_unread_timestamps`.

        If only records of an open transaction are missing, the first of these records counts.

        Raises:
            KafkaUnavailable: Kafka did not answer.
        """
        start = {
            partition: max(stored.get(partition, earliest), earliest)
            for partition, earliest in offset_range.earliest.items()
        }
        where = self._bootstrap, self._options, self._topic
        found = first_unread_timestamps(*where, start, offset_range.end, self._timeout_s)
        held = {p: max(start[p], offset_range.end[p]) for p in offset_range.blocked if start[p] >= offset_range.end[p]}
        if held:
            found |= first_unread_timestamps(*where, held, offset_range.top, self._timeout_s, committed=False)
        return found

    def _describe(self) -> Any:
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        topics = TopicCollection([self._topic])
        try:
            found = self._answer(lambda limit_s: self._admin.describe_topics(topics, request_timeout=limit_s))
            if self._first_id is None:
                self._first_id = _topic_id(found)
            return found
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise TopicMissing(
                    f"topic {self._topic} does not exist on {self._bootstrap}. Correct the name; or create the topic, "
                    "or start the worker that writes it"
                ) from None
            raise self._unavailable(f"topic {self._topic}", error) from None

    def _offsets(self, partitions: list[int], at: int, *, committed: bool = True, least: int = 0) -> dict[int, int]:
        """Return the offset of each partition at a time, or at OFFSET_BEGINNING or OFFSET_END.

        While a partition has no leader, the call waits for one until the time limit.

        Args:
            partitions: numbers of the partitions.
            at: milliseconds since 1970, or one of the two constants.
            committed: False: records of open and aborted transactions count too.
            least: least offset that counts as an answer; librdkafka returns -1001 while the leader is away.

        Raises:
            KafkaUnavailable: Kafka did not answer, or a partition has no leader.
        """
        from confluent_kafka import KafkaError, KafkaException

        passing = {
            KafkaError.LEADER_NOT_AVAILABLE,
            KafkaError.NOT_LEADER_FOR_PARTITION,
            KafkaError.OFFSET_NOT_AVAILABLE,
            KafkaError.FENCED_LEADER_EPOCH,
            KafkaError.UNKNOWN_LEADER_EPOCH,
            KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - new, and not in this client's metadata yet
            KafkaError._TIMED_OUT,  # noqa: SLF001
            KafkaError._TRANSPORT,  # noqa: SLF001
            KafkaError._DESTROY_BROKER,  # noqa: SLF001 - the metadata no longer list the broker of the request
        }
        deadline = time.monotonic() + self._timeout_s
        if committed not in self._consumers:
            self._consumers[committed] = open_consumer(self._bootstrap, self._options, committed=committed)
        consumer = self._consumers[committed]
        while True:
            offsets, failures = self._ask(consumer, partitions, at, least)
            if not failures:
                return offsets
            lasting = [p for p, error in failures.items() if error is not None and error.args[0].code() not in passing]
            if lasting or time.monotonic() > deadline:
                partition = lasting[0] if lasting else next(iter(failures))
                raise self._unavailable(f"{self._topic}/{partition}", failures[partition])
            time.sleep(LEADER_PAUSE_S)
            with suppress(KafkaException):  # the client may not refresh its metadata without a request
                consumer.list_topics(self._topic, timeout=ASK_S)

    def _ask(
        self, consumer: Consumer, partitions: list[int], at: int, least: int
    ) -> tuple[dict[int, int], dict[int, Exception | None]]:
        """Request the offsets at a time, OFFSET_BEGINNING or OFFSET_END, without repetition.

        The administration client has such a call too. But in librdkafka 2.16 that call connects thousands of times a
        second, without any backoff, to a leader that no longer answers and is still in the metadata.

        Returns the offsets found, and the error of each partition without an offset. The error is None if the answer
        names none.
        """
        from confluent_kafka import KafkaException, TopicPartition

        wanted = [TopicPartition(self._topic, partition, at) for partition in partitions]
        try:
            answers = consumer.offsets_for_times(wanted, timeout=min(ASK_S, self._timeout_s)) if wanted else []
        except KafkaException as error:
            return {}, dict.fromkeys(partitions, error)
        offsets: dict[int, int] = {}
        failures: dict[int, Exception | None] = {}
        for each in answers:
            if each.error is not None:
                failures[each.partition] = KafkaException(each.error)
            elif each.offset < least:  # librdkafka's -1001 while the leader is away; no partition begins or ends there
                failures[each.partition] = None
            else:
                offsets[each.partition] = each.offset
        return offsets, failures

    def _hear(self, error: Any) -> None:
        """Remember an error of the client that no retry can cure: a refused login or certificate."""
        from confluent_kafka import KafkaError

        text = error.str()
        refused = error.code() in (KafkaError._SSL, KafkaError._AUTHENTICATION)  # noqa: SLF001 - so its codes are named
        if (refused and not TOKEN_SERVER_AWAY.search(text)) or "SSL alert number" in text:
            self._refused = text

    def _answer(self, ask: Callable[[float], Mapping[Any, Any]]) -> Any:
        """Send a request to the controller, and return its one answer.

        An administration client of librdkafka 2.16 asks once who the controller is. After the controller's death the
        client connects to it thousands of times a second, although Kafka names another controller soon. So each
        repetition uses a new client.

        Args:
            ask: sends the request by `_admin`, for a limit in seconds.

        Raises:
            KafkaUnavailable: login or certificate are refused.
            KafkaException: any other error, or no answer within the time limit.
        """
        from confluent_kafka import KafkaError, KafkaException

        deadline, limit_s = time.monotonic() + self._timeout_s, CONTROLLER_S
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            (request,) = ask(min(limit_s, left_s)).values()
            try:
                return self._wait(request)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._TIMED_OUT or limit_s >= left_s:  # noqa: SLF001
                    raise
            limit_s *= 2
            self._admin = self._open_admin()

    def _wait(self, request: Any) -> Any:
        """Wait until a request ends, and return its answer.

        Raises:
            KafkaUnavailable: login or certificate are refused. The call does not wait for the request's time-out.
        """
        self._refused, began = "", time.monotonic()
        while not request.done():
            self._admin.poll(HEAR_S)
            # Another broker may answer than the one that refuses.
            if self._refused and not request.done() and time.monotonic() - began > ANOTHER_S:
                raise KafkaUnavailable(
                    f"topic {self._topic}: Kafka at {self._bootstrap} refuses this client's login or certificate, or "
                    f"this client refuses Kafka's certificate for its CA, host name or age ({self._refused}). Correct "
                    "the options security.*, ssl.* and sasl.*, then run the job again"
                )
        return request.result()

    def _unavailable(self, what: str, error: Exception | None) -> KafkaUnavailable:
        reason = "no leader has answered" if error is None else error.args[0].str()
        return KafkaUnavailable(
            f"{what}: Kafka at {self._bootstrap} does not give its offsets ({reason}). Check the address, the brokers "
            "and the client options, then run the job again"
        )


def _topic_id(topic: Any) -> int:
    found = topic.topic_id
    return of_halves(int(found.get_most_significant_bits()), int(found.get_least_significant_bits()))


def resume(offset_range: OffsetRange, stored: Mapping[int, int]) -> dict[int, int]:
    """Return the next offset to read of each partition; a new partition begins at its earliest offset.

    The store has already compared the topic's id, if Kafka gives topics ids.

    Raises:
        OffsetsLost: retention has removed a record that the table needs next.
        TopicRecreated: a stored offset lies beyond the end; or Kafka has no topic ids, and a partition is missing.
        KafkaUnavailable: Kafka does not list a partition of a topic with an id.
    """
    afresh = (
        "Choose the offset at which the job continues with `ratchet sink resume`, such as --from earliest. Each record "
        "that the job then reads for the second time, in any partition, is added to the table a second time"
    )
    for partition, offset in sorted(stored.items()):
        where = f"{offset_range.topic}/{partition}"
        if partition not in offset_range.end and offset_range.topic_id:
            # A topic never loses a partition, and another topic has another id.
            raise KafkaUnavailable(
                f"{where}: the table has read up to offset {offset}, but the broker that answered does not list "
                f"this partition of the topic with id {text(offset_range.topic_id)}. The broker may not know all "
                "partitions yet: run the job again"
            )
        if partition not in offset_range.end:
            raise TopicRecreated(
                f"{where}: the table has read up to offset {offset}, but the topic has no such partition. This "
                "Kafka gives topics no ids, so the job cannot tell if it is still the same topic. Decide that "
                f"yourself. {afresh}"
            )
        earliest, end = offset_range.earliest[partition], offset_range.end[partition]
        if offset > end:
            raise TopicRecreated(
                f"{where}: the table has read up to offset {offset}, but the topic ends at {end}; the partition's "
                f"log has lost its end, or this is another topic than before. {afresh}"
            )
        if offset < earliest:
            raise OffsetsLost(
                f"{where}: the table needs offset {offset} next, but the topic begins at {earliest}: "
                f"retention has removed {earliest - offset} offsets unread. Get their records from elsewhere or accept "
                f"the loss, and lengthen the topic's retention.ms. {afresh}"
            )
    return {partition: stored.get(partition, offset_range.earliest[partition]) for partition in offset_range.end}


def warn_of_missing_beginning(offset_range: OffsetRange, stored: Mapping[int, int]) -> None:
    """Warn if retention has removed a partition's first records before the job read the partition."""
    gone = {p: offset for p, offset in offset_range.earliest.items() if p not in stored and offset > 0}
    if gone:
        log.warning(
            "topic %s does not begin at offset 0 any more (%s): earlier records are gone, and will NOT be in the table",
            offset_range.topic,
            ", ".join(f"partition {partition} at {offset}" for partition, offset in sorted(gone.items())),
        )
