"""Offsets and topic of the micro-batch that Spark runs in this thread, for foreachBatch.

Structured Streaming calls the function of foreachBatch with rows and a number. The first and last offsets of the rows
are in the query's last plan, and pyspark has no public access to it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafka_ratchet.spark_sink.errors import KafkaUnavailable, OptionRefused, TopicMissing
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
"""Option of a Kafka client: whether it reads records of open and aborted transactions."""

UNCOMMITTED: Final = (
    "records are written in transactions, and the query also reads those of open and aborted ones, as Spark's Kafka "
    f'source does by default: they would become rows. Add option("{KAFKA_PREFIX}{ISOLATION}", "read_committed") to the '
    'source, or choose "read_uncommitted" there'
)

FAIL_ON_LOSS: Final = "failOnDataLoss"
"""Option of Spark's Kafka source: false makes it leave out records that Kafka has removed."""

SKIPS_LOSS: Final = (
    f"the query has {FAIL_ON_LOSS}=false, with which Spark leaves out records that retention has removed. The table "
    f"would count them as read. Remove {FAIL_ON_LOSS} from the source; the query then ends with an error if Kafka has "
    "lost records that the table needs"
)

NO_DATA_MICRO_BATCHES: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
"""Spark's setting for micro-batches without records, which it runs once a watermark has moved."""

STATE_ONLY: Final = ("StreamingDeduplicate", "StreamingGlobalLimit")
"""Beginnings of the class names of operators that keep state, but emit each row in its record's own micro-batch."""

AGGREGATES: Final = "StateStoreSaveExec"
"""End of the class name of aggregations, which emit rows in later micro-batches only in the mode `append`."""

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
        place = self._jvm.org.apache.kafka.common.TopicPartition(self._topic, partition)
        first = self._jvm.org.apache.kafka.clients.admin.OffsetSpec.earliest()
        asked = self._jvm.java.util.Collections.singletonMap(place, first)
        with self._errors_named():
            return int(self._admin.listOffsets(asked).partitionResult(place).get().offset())

    def refuse_transactions(self, partitions: Collection[int]) -> None:
        """Refuse a topic with records of transactions: the query reads open and aborted ones too.

        Kafka names the producers of a partition for a day after their last record (DescribeProducers, KIP-664).

        Raises:
            OptionRefused: a producer has written in a transaction.
            KafkaUnavailable: Kafka does not answer.
        """
        places = self._jvm.java.util.ArrayList()
        for partition in partitions:
            places.add(self._jvm.org.apache.kafka.common.TopicPartition(self._topic, partition))
        with self._errors_named():
            found = self._admin.describeProducers(places).all().get()
            states = [state for place in places for state in found.get(place).activeProducers()]
            is_transactional = any(
                state.coordinatorEpoch().isPresent() or state.currentTransactionStartOffset().isPresent()
                for state in states
            )
        if is_transactional:
            raise OptionRefused(f"topic {self._topic}: {UNCOMMITTED}")

    def close(self) -> None:
        """Close the client."""
        self._admin.close()

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            reason = reason_of(error)
            if "UnknownTopicOrPartition" in reason:
                raise TopicMissing(
                    f"topic {self._topic} does not exist any more. Create it, or end the query"
                ) from None
            raise KafkaUnavailable(
                f"topic {self._topic}: Kafka does not answer about the topic ({reason}). Start the query again once it "
                "does"
            ) from None


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Range of offsets of one topic in a micro-batch."""

    topic: str
    start: Mapping[int, int]
    """First offset of each partition."""
    end: Mapping[int, int]
    """Offset after the last one of each partition."""
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

    @property
    def has_isolation(self) -> bool:
        """Return True if the source's options choose an isolation level."""
        return ISOLATION in {name.lower() for name in self.client}

    @contextmanager
    def source_client(self) -> Iterator[SourceClient]:
        """Yield a Kafka client with the options of the source, and close it at the end."""
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
                found.append((*offsets, _options(execution, leaf)))
    is_one = len(streams) == len(found) == 1 and len(found[0][1]) == 1
    if not is_one or not isinstance(next(iter(found[0][1].values())), dict):
        raise OptionRefused(
            "the query does not read exactly one Kafka topic, and the table has the offsets of one topic. Use a query "
            "for each topic, and read the others as tables"
        )
    first, last, options = found[0]
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
        raise OptionRefused("sink.batch is a function for foreachBatch, and Spark runs no micro-batch in this thread")
    sessions = context._jvm.org.apache.spark.sql.SparkSession  # noqa: SLF001 - pyspark has no public way to it
    found = []
    for each in (sessions.getDefaultSession(), sessions.getActiveSession()):
        if each.isDefined():
            found.append(each.get().streams().get(query_id))
    query = next((each for each in found if each is not None), None)
    if query is None:
        raise OptionRefused("the query of this micro-batch was started by another session than Spark's default one")
    return query.streamingQuery()
