"""Offsets and topic of the micro-batch that Spark runs in this thread, for foreachBatch.

Structured Streaming gives the function of foreachBatch rows and a number. Where the rows begin and end stands in the
query's last plan, and pyspark has no public way to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafka_ratchet.spark_sink.errors import KafkaUnavailable, OptionRefused, TopicMissing
from kafka_ratchet.spark_sink.spark.errors import reason_of
from kafka_ratchet.spark_sink.topic_ids import of_halves

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY_ID: Final = "sql.streaming.queryId"
"""Local property of a thread with a micro-batch."""

KAFKA_PREFIX: Final = "kafka."
"""Prefix of the client's options in those of Spark's Kafka source."""

REQUEST_TIMEOUT_MS: Final = 30_000
"""Milliseconds that Kafka has to describe a topic."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Range of offsets of one topic in a micro-batch."""

    topic: str
    start: Mapping[int, int]
    """First offset, by partition."""
    end: Mapping[int, int]
    """Offset after the last one, by partition."""
    client: Mapping[str, str]
    """Options of the source's Kafka client."""
    jvm: Any
    """Java side of the session."""

    @contextmanager
    def topic_id(self) -> Iterator[Callable[[], int]]:
        """Yield a function that asks Kafka for the topic's id (KIP-516).

        One client asks each time, with the client options of the source. The function raises as this does.

        Raises:
            TopicMissing: there is no such topic.
            KafkaUnavailable: Kafka does not answer.
        """
        options = self.jvm.java.util.Properties()
        for name, value in self.client.items():
            options.setProperty(name, value)
        options.setProperty("default.api.timeout.ms", str(REQUEST_TIMEOUT_MS))
        with self._errors_named():
            admin = self.jvm.org.apache.kafka.clients.admin.AdminClient.create(options)
        names = self.jvm.java.util.Collections.singletonList(self.topic)

        def ask() -> int:
            with self._errors_named():
                found = admin.describeTopics(names).allTopicNames().get().get(self.topic).topicId()
                return of_halves(int(found.getMostSignificantBits()), int(found.getLeastSignificantBits()))

        try:
            yield ask
        finally:
            admin.close()

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            reason = reason_of(error)
            if "UnknownTopicOrPartition" in reason:
                raise TopicMissing(f"topic {self.topic} does not exist any more. Create it, or end the query") from None
            raise KafkaUnavailable(
                f"topic {self.topic}: Kafka does not say the topic's id ({reason}). Start the query again once it does"
            ) from None


def micro_batch(dataframe: DataFrame) -> MicroBatch:
    """Return the micro-batch that Spark runs in this thread.

    Raises:
        OptionRefused: no query is found, or it does not read one topic alone.
    """
    execution = _stream_execution(dataframe)
    found = []
    for leaf in _leaves(execution.lastExecution().logical()):
        with suppress(Exception):  # py4j: other leaves have no such members
            start, end = leaf.startOffset(), leaf.endOffset()
            if end.isDefined():
                offsets = tuple(json.loads(each.get().json()) if each.isDefined() else {} for each in (start, end))
                found.append((*offsets, _options(execution, leaf)))
    if len(found) != 1 or len(found[0][1]) != 1 or not isinstance(next(iter(found[0][1].values())), dict):
        raise OptionRefused(
            "the query reads something else than one Kafka topic, and the table has offsets of one. Use a query for "
            "each topic, and read the others as tables"
        )
    first, last, options = found[0]
    ((topic, end),) = last.items()
    start = first.get(topic, {})
    ends = {int(each): int(at) for each, at in end.items()}
    cut = len(KAFKA_PREFIX)
    client = {name[cut:]: str(value) for name, value in options.items() if name.lower().startswith(KAFKA_PREFIX)}
    # A partition added since the last micro-batch begins at 0.
    begins = {each: int(start.get(str(each), 0)) for each in ends}
    return MicroBatch(topic, begins, ends, client, dataframe.sparkSession._jvm)  # noqa: SLF001 - no public way to it


def _leaves(plan: Any) -> Iterator[Any]:
    leaves = plan.collectLeaves()
    return map(leaves.apply, range(leaves.size()))


def _options(execution: Any, leaf: Any) -> dict[str, str]:
    """Return the options of the source that a leaf of the last plan reads."""
    with suppress(Exception):  # py4j: Spark 3.5 has no such member
        return dict(leaf.relation().options().asCaseSensitiveMap())
    given = []
    for each in _leaves(execution.analyzedPlan()):
        with suppress(Exception):  # py4j: as above
            given.append(dict(each.extraOptions().asCaseSensitiveMap()))
    (only,) = given  # more are refused, as more sources are
    return only


def _stream_execution(dataframe: DataFrame) -> Any:
    """Return Spark's own object of the query that runs in this thread."""
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
