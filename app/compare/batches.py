"""Record batches of a topic, read by the worker's client in a separate thread."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, Final

from kafka_ratchet.app.extras import has_worker
from kafka_ratchet.errors import PositionLost, TopicReplaced
from kafka_ratchet.topic_log.clients import OffsetRange

if TYPE_CHECKING:
    from kafka_ratchet.app.settings import Settings
    from kafka_ratchet.transport.batch.record_batch import RecordBatch

FEW: Final = 20_000
"""Minimum number of offsets to make `batches_between` worth its start-up.

Fewer offsets are read by librdkafka before the compiled code is even loaded.
"""

AHEAD: Final = 2
"""Maximum number of batches that wait for the caller."""

STOP_S: Final = 0.2
"""Maximum seconds until the reading thread notices that its caller has stopped."""


def reads_batches(settings: Settings, spans: Mapping[int, OffsetRange]) -> bool:
    """Return True if `batches_between` can be used, and repays its start-up time.

    Args:
        settings: settings with the client options.
        spans: offsets to read.
    """
    if sum(span.end - span.first for span in spans.values()) < FEW or not has_worker():
        return False
    from kafka_ratchet.errors import SettingsError
    from kafka_ratchet.transport.client.security import client_options

    try:
        client_options(settings.bootstrap or "", settings.kafka)
    except SettingsError:  # an option that librdkafka alone has
        return False
    return True


def batches_between(settings: Settings, topic: str, id: str, spans: Mapping[int, OffsetRange]) -> Iterator[RecordBatch]:
    """Yield the committed records of several partitions, in order within each partition.

    Args:
        settings: bootstrap, client options and time-outs.
        topic: name of the topic.
        id: id of the topic.
        spans: offsets to read, by partition.

    Raises:
        TopicReplaced: the topic of that id does not exist any more.
        PositionLost: records were deleted before they were read.
        BrokerUnavailable: Kafka does not answer.
        TransportError: a batch cannot be read.
    """
    found: queue.Queue[RecordBatch | BaseException | None] = queue.Queue(AHEAD)
    is_over = threading.Event()

    def give(batch: RecordBatch | BaseException | None) -> None:
        while not is_over.is_set():
            try:
                found.put(batch, timeout=STOP_S)
            except queue.Full:
                continue
            return

    def read() -> None:
        try:
            _run(_read(settings, topic, id, spans, give, is_over))
        except BaseException as error:
            give(error)
        else:
            give(None)

    reader = threading.Thread(target=read, name="ratchet-verify-batches", daemon=True)
    reader.start()
    try:
        while (batch := found.get()) is not None:
            if isinstance(batch, BaseException):
                raise batch
            yield batch
    finally:
        is_over.set()
        reader.join()


def _run(work: Any) -> None:
    from kafka_ratchet.app.event_loop import loop_factory

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(work)


async def _read(
    settings: Settings,
    name: str,
    id: str,
    spans: Mapping[int, OffsetRange],
    give: Callable[[RecordBatch], None],
    is_over: threading.Event,
) -> None:
    from kafka_ratchet.app.survey.reading import Range, open_topic
    from kafka_ratchet.app.verify.reading import plain_id
    from kafka_ratchet.transport.client.cluster import Cluster
    from kafka_ratchet.transport.client.security import client_options
    from kafka_ratchet.transport.client.topic_id import id_text

    async with AsyncExitStack() as stack:
        cluster = Cluster(client_options(settings.bootstrap or "", settings.kafka))
        await cluster.start(settings.kafka_timeout_s)
        stack.push_async_callback(cluster.close)
        topic = await open_topic(cluster, name, settings.kafka_timeout_s, settings.max_batch_mb << 20)
        now = id_text(topic.id)
        if plain_id(now) != plain_id(id):
            raise TopicReplaced(
                f"topic {name!r} was deleted and created again while it was read: its id was {id} and is now {now}. "
                "Run the comparison again"
            )
        topic.ranges = [Range(number, span.first, span.first, span.end) for number, span in spans.items()]
        async with aclosing(topic.batches()) as batches:
            async for batch in batches:
                if is_over.is_set():
                    return
                if batch.count:
                    await asyncio.to_thread(give, batch)
        if topic.deleted:
            raise PositionLost(
                f"{name}: {topic.deleted:,} offsets were deleted by retention or by hand before they were read. Run "
                "the command again"
            )
