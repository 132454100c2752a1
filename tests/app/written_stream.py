"""A stream whose three topics are written by hand."""

from __future__ import annotations

import re
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.verify import RecordView, Report, verify

NewTopic = Callable[..., str]

NOW_MS = int(time.time() * 1000)
"""Kafka deletes records that are older than the topic's retention, whenever it comes round to it."""
GETTING_READY = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}
DEAD = ("ratchet-reason", "ratchet-topic", "ratchet-partition", "ratchet-offset")


def record(
    sequence: int | bytes | None, producer: bytes | None = b"a", value: bytes | None = b"v", key: bytes | None = b"k"
):
    headers: list[tuple[str, bytes | None]] = [("trace", b"1"), ("trace", None)]
    if producer is not None:
        headers.append(("ratchet-producer", producer))
    if sequence is not None:
        number = sequence.to_bytes(8, "big") if isinstance(sequence, int) else sequence
        headers.append(("ratchet-sequence", number))
    return RecordView(key, value, headers, NOW_MS)


class Stage:
    """A stream whose three topics are written by hand."""

    def __init__(self, broker: str, new_topic: NewTopic, partitions: int = 2, **stream: object) -> None:
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
        consumer = Consumer({"bootstrap.servers": self.broker, "group.id": self.settings.app})
        positions = [TopicPartition(self.topics[0], partition, offset) for partition, offset in enumerate(offsets)]
        deadline = time.monotonic() + 30
        while True:
            try:
                consumer.commit(offsets=positions, asynchronous=False)
                break
            except KafkaException as error:  # a broker that has just started gets its first group ready meanwhile
                if error.args[0].code() not in GETTING_READY or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)
        consumer.close()

    def letter(self, item: RecordView, partition: int, offset: int) -> RecordView:
        said = b"sequence-missing", self.topics[0].encode(), b"%d" % partition, b"%d" % offset
        return replace(item, headers=[*item.headers, *zip(DEAD, said, strict=True)])

    def verify(self) -> Report:
        return verified_twice(self.settings)


def verified_twice(settings: Settings, stream: str | None = None) -> Report:
    """As columns where that is possible, and record by record; both must say the same."""
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
    """What a state says, in no order: its lines without the checksum at the end, and when it was written."""
    lines = state.read_text().splitlines()[:-1] if state.exists() else []
    return sorted(re.sub(r'"written_at":"[^"]*"', "", line) for line in lines)


def _alike(report: Report, other: Report) -> Report:
    told = [{**each.as_dict(), "as_columns": 0, "record_by_record": 0} for each in (report, other)]
    assert told[0] == told[1]
    assert report.findings == other.findings
    assert other.columns == []
    return report
