"""Offsets and topic of the micro-batch that Spark runs in this thread, for foreachBatch.

Structured Streaming calls the function of foreachBatch with rows and a number. The first and last offsets of the rows
are in the query's last plan, and pyspark has no public access to this plan.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafka_ratchet.spark_sink.errors import KafkaUnavailable, OffsetsLost, OptionRefused, TopicMissing
from kafka_ratchet.spark_sink.spark.errors import reason_of
from kafka_ratchet.spark_sink.topic_ids import of_halves

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY_ID: Final = "sql.streaming.queryId"
"""Name of the thread-local property that contains the id of the running query."""

KAFKA_PREFIX: Final = "kafka."
"""Prefix of the Kafka client's options among the options of Spark's Kafka source."""

REQUEST_TIMEOUT_MS: Final = 30_000
"""Milliseconds to wait until Kafka has answered a request."""


ISOLATION: Final = "isolation.level"
"""Option of a Kafka client that decides if records of open and aborted transactions are read."""

UNCOMMITTED: Final = (
    f"the query has no {KAFKA_PREFIX}{ISOLATION}. By default Spark's Kafka source also reads records of open and "
    f'aborted transactions, and they would become rows. Add option("{KAFKA_PREFIX}{ISOLATION}", "read_committed") to '
    'the source, or "read_uncommitted" for a topic without transactions'
)

PRODUCERS_KNOWN_MS: Final = 86_400_000
"""Kafka's default of `producer.id.expiration.ms`. Brokers without it (before KIP-854) keep producers longer."""

PRODUCER_EXPIRY: Final = "producer.id.expiration.ms"
"""Broker's setting for how long Kafka knows a producer, and its transactions, after its last record."""

FAIL_ON_LOSS: Final = "failOnDataLoss"
"""Option of Spark's Kafka source. With false, the source leaves out records that Kafka has removed."""

SKIPS_LOSS: Final = (
    f"the query has {FAIL_ON_LOSS}=false, with which Spark leaves out records that retention has removed. The table "
    f"would count them as read. Remove {FAIL_ON_LOSS} from the source; the query then ends with an error if Kafka has "
    "lost records that the table needs"
)

NO_DATA_MICRO_BATCHES: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
"""Spark's setting for micro-batches without records; Spark runs such a micro-batch once a watermark has moved."""

STATE_ONLY: Final = ("StreamingDeduplicate", "StreamingGlobalLimit")
"""Beginnings of class names of stateful operators that emit each row in its record's own micro-batch."""

AGGREGATES: Final = "StateStoreSaveExec"
"""End of the class names of aggregations, which emit rows in later micro-batches only in the mode `append`."""

FAR_WATERMARK: Final = 2**62
"""Watermark in milliseconds that is later than any real one."""


class SourceClient:
    """Admin client of Kafka in Java, with the options of the query's source."""

    def __init__(self, topic: str, options: Mapping[str, str], jvm: Any) -> None:
        self._topic, self._jvm = topic, jvm
        properties = jvm.java.util.Properties()
        for name, value in options.items():
            properties.setProperty(name, value)
        properties.setProperty("default.api.timeout.ms", str(REQUEST_TIMEOUT_MS))
        with self._errors_named():
            self._admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)

    def topic_id(self) -> int:
        """Return the topic's id (KIP-516).

        Raises:
            TopicMissing: there is no such topic.
            KafkaUnavailable: Kafka does not answer.
        """
        names = self._jvm.java.util.Collections.singletonList(self._topic)
        with self._errors_named():
            found = self._admin.describeTopics(names).allTopicNames().get().get(self._topic).topicId()
            return of_halves(int(found.getMostSignificantBits()), int(found.getLeastSignificantBits()))

    def earliest(self, partition: int) -> int:
        """Return the first offset that Kafka still keeps of a partition.

        Raises:
            TopicMissing: there is no such topic.
            KafkaUnavailable: Kafka does not answer.
        """
        place = self._place(partition)
        first = self._jvm.org.apache.kafka.clients.admin.OffsetSpec.earliest()
        asked = self._jvm.java.util.Collections.singletonMap(place, first)
        with self._errors_named():
            return int(self._admin.listOffsets(asked).partitionResult(place).get().offset())

    def refuse_transactions(self, start: Mapping[int, int], end: Mapping[int, int]) -> None:
        """Refuse a range of offsets that may have records of transactions.

        Kafka names the producers of a partition until some time after their last record (DescribeProducers, KIP-664). A
        range with older records is refused as well, because its transactions may be forgotten.

        Args:
            start: first offset of each partition.
            end: offset after the last offset of each partition.

        Raises:
            OptionRefused: a producer has written in a transaction, or records are too old.
            KafkaUnavailable: Kafka does not answer.
        """
        if self._has_transactions(end):
            raise OptionRefused(f"topic {self._topic}: records are written in transactions, and {UNCOMMITTED}")
        known_ms = self._producers_known_ms() // 2  # half: the clocks of brokers and of this machine may differ
        young = self._offsets_at(end, int(time.time() * 1000) - known_ms)
        old = [each for each, last in end.items() if start[each] < last and not 0 <= young[each] <= start[each]]
        for partition, there in self._offsets_at(old, 0).items() if old else ():
            first = max(start[partition], there)  # retention or compaction may have removed the first records
            if 0 <= there and first < end[partition] and not 0 <= young[partition] <= first:
                raise OptionRefused(
                    f"topic {self._topic}, partition {partition}, offset {first}: the record may be older than "
                    f"{known_ms // 60_000} minutes, and Kafka may have forgotten that it was written in a transaction; "
                    f"{UNCOMMITTED}"
                )

    def _has_transactions(self, partitions: Iterable[int]) -> bool:
        places = self._jvm.java.util.ArrayList()
        for partition in partitions:
            places.add(self._place(partition))
        with self._errors_named():
            found = self._admin.describeProducers(places).all().get()
            states = [state for place in places for state in found.get(place).activeProducers()]
            return any(
                state.coordinatorEpoch().isPresent() or state.currentTransactionStartOffset().isPresent()
                for state in states
            )

    def _producers_known_ms(self) -> int:
        """Return how long Kafka knows a producer after its last record, in milliseconds.

        Raises:
            OptionRefused: this user may not read the setting.
            KafkaUnavailable: Kafka does not answer.
        """
        resource = self._jvm.org.apache.kafka.common.config.ConfigResource
        with self._errors_named():
            node = self._admin.describeCluster().nodes().get().iterator().next()
            broker = resource(resource.Type.BROKER, node.idString())
            answer = self._admin.describeConfigs(self._jvm.java.util.Collections.singleton(broker)).all()
            try:
                setting = answer.get().get(broker).get(PRODUCER_EXPIRY)
            except Exception as error:
                if "AuthorizationException" not in str(error):
                    raise
                raise OptionRefused(
                    f"topic {self._topic}: this user may not read the brokers' {PRODUCER_EXPIRY} (DescribeConfigs on "
                    f"the cluster), and without it old transactions cannot be excluded; {UNCOMMITTED}"
                ) from None
        value = setting.value() if setting is not None else None
        return PRODUCERS_KNOWN_MS if value is None else int(value)

    def _offsets_at(self, partitions: Iterable[int], timestamp_ms: int) -> dict[int, int]:
        """Return the first offset of each partition with a record of that time or later; -1: none."""
        asked = self._jvm.java.util.HashMap()
        for partition in partitions:
            of_time = self._jvm.org.apache.kafka.clients.admin.OffsetSpec.forTimestamp(timestamp_ms)
            asked.put(self._place(partition), of_time)
        with self._errors_named():
            answer = self._admin.listOffsets(asked)
            return {each: int(answer.partitionResult(self._place(each)).get().offset()) for each in partitions}

    def _place(self, partition: int) -> Any:
        return self._jvm.org.apache.kafka.common.TopicPartition(self._topic, partition)

    def close(self) -> None:
        """Close the client."""
        self._admin.close()

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except OptionRefused:
            raise
        except Exception as error:
            reason = reason_of(error)
            if "UnknownTopicOrPartition" in reason:
                raise TopicMissing(
                    f"topic {self._topic} does not exist any more. End the query; to the table, a new topic of this "
                    "name is another topic"
                ) from None
            raise KafkaUnavailable(
                f"topic {self._topic}: Kafka does not answer about the topic ({reason}). Start the query again once "
                "Kafka answers"
            ) from None


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Range of offsets of one topic in a micro-batch."""

    topic: str
    start: Mapping[int, int]
    """First offset of each partition."""
    end: Mapping[int, int]
    """Offset after the last offset of each partition."""
    client: Mapping[str, str]
    """Options of the source's Kafka client."""
    jvm: Any
    """Spark's JVM, as py4j's view of it."""
    run_id: str
    """Id of the query's run; within a run, each micro-batch occurs once."""
    has_state: bool
    """True if the query keeps state, which is written while the rows are computed."""
    sends_later: bool
    """True if the query may emit rows in micro-batches without offsets."""
    skips_loss: bool
    """True if the source leaves out removed records without an error."""
    source: Any
    """Spark's source of the records, in Java."""

    def query_start(self) -> dict[int, int]:
        """Return the offset of each partition at which the query first began; the checkpoint keeps it."""
        # With subscribePattern, a topic created after the query began is missing here, and begins at 0.
        began = json.loads(self.source.initialOffset().json()).get(self.topic, {})
        return {int(each): int(at) for each, at in began.items()}

    @property
    def has_isolation(self) -> bool:
        """Return True if the source's options choose an isolation level."""
        return ISOLATION in {name.lower() for name in self.client}

    @contextmanager
    def source_client(self) -> Iterator[SourceClient]:
        """Yield a Kafka client with the source's options, and close it at the end."""
        client = SourceClient(self.topic, self.client, self.jvm)
        try:
            yield client
        finally:
            client.close()


def micro_batch(dataframe: DataFrame) -> MicroBatch | None:
    """Return the micro-batch that Spark runs in this thread; None for one without new offsets.

    Raises:
        OptionRefused: this thread runs no query's micro-batch, or the query does not read exactly one topic.
    """
    execution = _stream_execution(dataframe)
    streams = [leaf for leaf in _leaves(execution.lastExecution().logical()) if leaf.isStreaming()]
    # Spark puts an empty relation in the place of a source without new records.
    if len(streams) == 1 and streams[0].getClass().getSimpleName() == "LocalRelation":
        return None
    found = []
    for leaf in streams:
        with suppress(Exception):  # py4j: other leaves have no such members
            start, end = leaf.startOffset(), leaf.endOffset()
            if end.isDefined():
                offsets = tuple(json.loads(each.get().json()) if each.isDefined() else {} for each in (start, end))
                found.append((*offsets, _options(execution, leaf), leaf.stream()))
    is_one = len(streams) == len(found) == 1 and len(found[0][1]) == 1
    if not is_one or not isinstance(next(iter(found[0][1].values())), dict):
        raise OptionRefused(
            "the query does not read exactly one Kafka topic, and the table has the offsets of one topic. Use a query "
            "for each topic, and read other sources as tables"
        )
    first, last, options, source = found[0]
    ((topic, end),) = last.items()
    start = first.get(topic, {})
    ends = {int(each): int(at) for each, at in end.items()}
    cut = len(KAFKA_PREFIX)
    client = {name[cut:]: str(value) for name, value in options.items() if name.lower().startswith(KAFKA_PREFIX)}
    # A partition added since the last micro-batch begins at 0.
    begins = {each: int(start.get(str(each), 0)) for each in ends}
    stateful = list(_with_state(execution.lastExecution().executedPlan()))
    runs_without_data = dataframe.sparkSession.conf.get(NO_DATA_MICRO_BATCHES, "true") == "true"
    return MicroBatch(
        topic,
        begins,
        ends,
        client,
        dataframe.sparkSession._jvm,  # noqa: SLF001 - no public way to it
        str(execution.runId().toString()),
        has_state=bool(stateful),
        sends_later=runs_without_data and any(_sends_later(each, execution) for each in stateful),
        skips_loss=any(
            name.lower() == FAIL_ON_LOSS.lower() and str(value).lower() != "true" for name, value in options.items()
        ),
        source=source,
    )


def require_query_start(given: MicroBatch, number: int, job: str) -> None:
    """Check that a micro-batch for a table without offsets begins where its query began.

    With the checkpoint of another table, or of a removed table, a micro-batch begins later.

    Args:
        given: range of the micro-batch.
        number: number of the micro-batch.
        job: name of the job, for the message.

    Raises:
        OffsetsLost: offsets that earlier micro-batches of the query have read would be missing.
    """
    began = given.query_start()
    missing = {each: at - began.get(each, 0) for each, at in given.start.items() if at > began.get(each, 0)}
    if not missing:
        return
    partition, starts = min(missing), {str(each): at for each, at in sorted(given.start.items())}
    raise OffsetsLost(
        f"topic {given.topic}/{partition}: the table has no offsets of job {job}, and micro-batch {number} begins at "
        f"{given.start[partition]}: {missing[partition]} offsets that this query has read would be missing. The table "
        "was removed or replaced, or the checkpoint belongs to another table. Restore the table; or start the query "
        'without its checkpoint, with option("startingOffsets", "earliest") or, if the table needs no earlier records, '
        f"with option(\"startingOffsets\", '{json.dumps({given.topic: starts})}')"
    )


def _with_state(plan: Any) -> Iterator[Any]:
    """Yield the stateful operators of a physical plan."""
    with suppress(Exception):  # py4j: others have no such member
        plan.stateInfo()
        yield plan
    children = plan.children()
    for at in range(children.size()):
        yield from _with_state(children.apply(at))


def _sends_later(operator: Any, execution: Any) -> bool:
    """Return True if an operator may emit rows in a micro-batch without records."""
    name = str(operator.getClass().getSimpleName())
    if name.startswith(STATE_ONLY) or (name.endswith(AGGREGATES) and execution.outputMode().toString() != "Append"):
        return False
    with suppress(Exception):  # py4j: operators that read state have no such member
        return bool(operator.shouldRunAnotherBatch(FAR_WATERMARK))
    return False


def _leaves(plan: Any) -> Iterator[Any]:
    leaves = plan.collectLeaves()
    return map(leaves.apply, range(leaves.size()))


def _options(execution: Any, leaf: Any) -> dict[str, str]:
    """Return the options of the source that a leaf of the query's last plan reads."""
    with suppress(Exception):  # py4j: Spark 3.5 has no such member
        return dict(leaf.relation().options().asCaseSensitiveMap())
    given = []
    for each in _leaves(execution.analyzedPlan()):
        with suppress(Exception):  # py4j: as above
            given.append(dict(each.extraOptions().asCaseSensitiveMap()))
    (only,) = given  # more are refused, as more sources are
    return only


def _stream_execution(dataframe: DataFrame) -> Any:
    """Return Spark's Java object for the query that runs in this thread."""
    context: Any = getattr(dataframe.sparkSession, "_sc", None)
    query_id = None if context is None else context.getLocalProperty(QUERY_ID)
    if not query_id:
        raise OptionRefused(
            "sink.batch is a function for foreachBatch, and Spark runs no micro-batch in this thread. Pass "
            "sink.batch to writeStream.foreachBatch"
        )
    sessions = context._jvm.org.apache.spark.sql.SparkSession  # noqa: SLF001 - pyspark has no public way to it
    found = []
    for each in (sessions.getDefaultSession(), sessions.getActiveSession()):
        if each.isDefined():
            found.append(each.get().streams().get(query_id))
    query = next((each for each in found if each is not None), None)
    if query is None:
        raise OptionRefused(
            "neither Spark's default session nor the active one runs the query of this micro-batch. Start the query in "
            "one of these sessions"
        )
    return query.streamingQuery()
