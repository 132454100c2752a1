"""A stream whose three topics are written by hand."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as Place
from confluent_kafka import Producer

from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.verify import RecordView, Report, verify
from kafka_ratchet.app.worker.ownership import FOR_URLS
from kafka_ratchet.producers import admin_client, describe_topic
from kafka_ratchet.transport.transactions.requests import offset_metadata

NewTopic = Callable[..., str]

NOW_MS = int(time.time() * 1000)
"""Kafka deletes records that are older than the topic's retention, whenever it comes round to it."""
DEAD = ("ratchet-reason", "ratchet-topic", "ratchet-partition", "ratchet-offset")


def record(
    sequence: int | bytes | None, producer: bytes | None = b"a", value: bytes | None = b"v", key: bytes | None = b"k"
) -> RecordView:
    headers: list[tuple[str, bytes | None]] = [("trace", b"1"), ("trace", None)]
    if producer is not None:
        headers.append(("ratchet-producer", producer))
    if sequence is not None:
        number = sequence.to_bytes(8, "big") if isinstance(sequence, int) else sequence
        headers.append(("ratchet-sequence", number))
    return RecordView(key, value, headers, NOW_MS)


def commit_as_lane(broker: str, group: str, positions: dict[Place, tuple[int, str]]) -> None:
    """Commit offsets with metadata. confluent-kafka appends a zero byte to it, and no lane does."""

    async def commit() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=broker, group_id=group, enable_auto_commit=False)
        await consumer.start()
        try:
            consumer.assign([*positions])
            await consumer.commit(positions)
        finally:
            await consumer.stop()

    with ThreadPoolExecutor(1) as thread:  # the caller may be in an event loop
        thread.submit(asyncio.run, commit()).result()


class Stage:
    """A stream whose three topics are written by hand."""

    def __init__(self, broker: str, new_topic: NewTopic, partitions: int = 2, **stream: Any) -> None:
        self.broker = broker
        self.topics = new_topic(partitions), new_topic(partitions), new_topic(1)
        given, output, letters = self.topics
        chosen = StreamSettings(input=given, output=output, dead_letters=letters, **stream)
        self.settings = Settings(app=f"app-{uuid.uuid4().hex[:8]}", bootstrap=broker, streams={"events": chosen})
        self.producer = Producer({"bootstrap.servers": broker, "linger.ms": 0})

    def write(self, topic: int, partition: int, records: list[RecordView], producer: Producer | None = None) -> None:
        sender = producer or self.producer
        for item in records:
            sender.produce(
                self.topics[topic],
                item.value,
                item.key,
                partition,
                timestamp=item.timestamp_ms,
                headers=list(item.headers),
            )
        sender.flush()

    def commit(self, *offsets: int) -> None:
        found = describe_topic(
            admin_client({"bootstrap.servers": self.broker}), self.topics[0], timeout_s=30, say=lambda _: None
        )
        assert found is not None
        ours = offset_metadata(found.id.translate(FOR_URLS), -1)
        positions = {Place(self.topics[0], partition): (offset, ours) for partition, offset in enumerate(offsets)}
        commit_as_lane(self.broker, self.settings.app, positions)

    def letter(self, item: RecordView, partition: int, offset: int) -> RecordView:
        said = b"sequence-missing", self.topics[0].encode(), b"%d" % partition, b"%d" % offset
        return replace(item, headers=[*item.headers, *zip(DEAD, said, strict=True)])

    def verify(self) -> Report:
        return verified_twice(self.settings)


def verified_twice(settings: Settings, stream: str | None = None) -> Report:
    """Verify as columns where possible, and record by record, and assert the same report."""
    return _alike(*(verify(settings, stream, independent=each) for each in (False, True)))


def continued_twice(settings: Settings, state: Path) -> Report:
    """Likewise from one run to the next; both must leave the same state."""
    with TemporaryDirectory() as folder:
        other = Path(folder) / "state"
        if state.exists():
            shutil.copy(state, other)
        reports = verify(settings, state=state, independent=False), verify(settings, state=other, independent=True)
        assert _said(state) == _said(other)
        return _alike(*reports)


def _said(state: Path) -> list[str]:
    """Return a state's lines, sorted, without its time of writing and the checksum at the end."""
    lines = state.read_text().splitlines()[:-1] if state.exists() else []
    return sorted(re.sub(r'"written_at":"[^"]*"', "", line) for line in lines)


def _alike(report: Report, other: Report) -> Report:
    told = [{**each.as_dict(), "as_columns": 0, "record_by_record": 0} for each in (report, other)]
    assert told[0] == told[1]
    assert report.findings == other.findings
    assert other.columns == []
    return report
