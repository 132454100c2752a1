"""Batches that Kafka takes and librdkafka does not read to their end are read by the worker's client."""

from __future__ import annotations

import asyncio
import gzip
import struct
from collections.abc import Callable

import cramjam
import pytest

from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.verify.reading import TopicReader
from kafka_ratchet.topic_log.clients import OffsetRange
from kafka_ratchet.transport.batch.decompression import GZIP, SNAPPY
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.errors import raise_for
from kafka_ratchet.transport.client.produce import BatchRequest
from tests.transport.batch.known_batches import HEAD, Source, encode, seal

XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
SOURCES = [Source(b"k%d" % n, b"v%d" % n, (("h", b"%d" % n), ("null", None))) for n in range(100)]
PLAIN = encode(SOURCES)
ODD_NAMES = seal(PLAIN.replace(b"null", b"n\xffll"))
"""Batch with header names that are not UTF-8, of which librdkafka's Python client returns no headers."""


def gzip_members(body: bytes) -> bytes:
    return gzip.compress(body[: len(body) // 2]) + gzip.compress(body[len(body) // 2 :])


def snappy_streams(body: bytes) -> bytes:
    halves = body[: len(body) // 2], body[len(body) // 2 :]
    blocks = [bytes(cramjam.snappy.compress_raw(half)) for half in halves]
    return b"".join(XERIAL + struct.pack(">i", len(block)) + block for block in blocks)


def compressed(codec: int, compress: Callable[[bytes], bytes]) -> bytes:
    head = list(HEAD.unpack_from(PLAIN))
    head[5] = codec
    return seal(HEAD.pack(*head) + compress(PLAIN[HEAD.size :]))


async def produce(broker: str, topic: str, partition: int, batches: list[bytes]) -> None:
    cluster = Cluster({"bootstrap_servers": broker})
    await cluster.start(60)
    try:
        for batch in batches:
            request = BatchRequest(None, 30_000, topic, partition, memoryview(batch))
            answer = await cluster.send(await cluster.leader(topic, partition), request, "test")
            raise_for(answer.topics[0][1][0][1], topic)
    finally:
        await cluster.close()


@pytest.mark.parametrize(
    ("codec", "compress"), [pytest.param(GZIP, gzip_members, marks=pytest.mark.matrix), (SNAPPY, snappy_streams)]
)
def test_a_batch_that_librdkafka_does_not_read_is_read(
    broker: str, new_topic: Callable[..., str], codec: int, compress: Callable[[bytes], bytes]
) -> None:
    topic, output, dead_letters = (new_topic(2) for _ in range(3))
    odd = compressed(codec, compress)
    asyncio.run(produce(broker, topic, 0, [PLAIN, odd, PLAIN, odd]))
    asyncio.run(produce(broker, topic, 1, [PLAIN]))
    stream = StreamSettings(input=topic, output=output, dead_letters=dead_letters)
    settings = Settings(app="second", bootstrap=broker, streams={"s": stream})
    reader = TopicReader(settings, stream, broker)
    try:
        for committed in (True, False):
            found = list(reader.records(topic, 0, 400, committed=committed))
            assert [offset for offset, _ in found] == list(range(400))
            for offset, record in found:
                source = SOURCES[offset % 100]
                assert (record.key, record.value, record.headers) == (source.key, source.value, list(source.headers))
            spans = {0: OffsetRange(50, 390), 1: OffsetRange(0, 100)}
            mixed = list(reader.records_between(topic, spans, committed=committed))
            assert [offset for number, offset, _ in mixed if number == 0] == list(range(50, 390))
            assert [offset for number, offset, _ in mixed if number == 1] == list(range(100))
    finally:
        reader.close()


def test_header_names_that_are_not_utf8_are_read(broker: str, new_topic: Callable[..., str]) -> None:
    topic, output, dead_letters = (new_topic(2) for _ in range(3))
    asyncio.run(produce(broker, topic, 0, [ODD_NAMES, PLAIN, ODD_NAMES]))
    stream = StreamSettings(input=topic, output=output, dead_letters=dead_letters)
    settings = Settings(app="second", bootstrap=broker, streams={"s": stream})
    reader = TopicReader(settings, stream, broker)
    try:
        found = list(reader.records(topic, 0, 300))
    finally:
        reader.close()
    assert [offset for offset, _ in found] == list(range(300))
    names = [[name for name, _ in record.headers] for _, record in found]
    assert names == [["h", "n\ufffdll"]] * 100 + [["h", "null"]] * 100 + [["h", "n\ufffdll"]] * 100
