"""Bench of `ratchet publish`, next to a plain confluent-kafka client that sends the lines of the same file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from bench.kafka import create, ends
from bench.sending import PARTITIONS, PATIENCE_S, run_module
from bench.spread import spread
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.errors import BenchFailed
from kafka_ratchet.producers import SEQUENCE_HEADER

KINDS = {"batches": (), "batches-key": ("user",), "single": (), "bare": ()}
"""Arguments after the file, by kind of publisher: the JSON member with the key, if any."""
KEYS = 10_000


def publishing(records: int, line_bytes: int, rounds: int, say: Callable[[str], None]) -> dict[str, object]:
    """Publish a file with each kind of publisher in turn, and return the results.

    There are `rounds` rounds, after one that does not count.

    Raises:
        BenchFailed: a publisher fails, or the topic does not contain the file's lines.
    """
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    cpu: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with TemporaryDirectory(prefix="ratchet-bench-") as folder, EmbeddedBroker(Path(folder) / "kafka") as broker:
        path = Path(folder) / "lines.ndjson"
        total = _write(path, records, line_bytes)
        for number in range(rounds + 1):
            for kind, key in KINDS.items():
                topic = f"{kind}-{number}"
                create(broker.bootstrap, topic, partitions=PARTITIONS)
                told = run_module("bench.peers.publish", kind.partition("-")[0], broker.bootstrap, topic, path, *key)
                seconds, used = map(float, told.split())
                _verify(broker.bootstrap, topic, records, total, contents=not number)
                if number:
                    rates[kind].append(records / seconds)
                    cpu[kind].append(used / records * 1e6)
                    say(json.dumps({"kind": kind, "records_per_s": round(records / seconds)}))
    found: dict[str, object] = {kind: spread(each, 0) for kind, each in rates.items()}
    for kind in [*KINDS][:-1]:
        found[f"{kind}_to_bare"] = spread([a / b for a, b in zip(rates[kind], rates["bare"], strict=True)])
    found["cpu_s_per_million"] = {kind: spread(each) for kind, each in cpu.items()}
    return found


def _write(path: Path, records: int, line_bytes: int) -> int:
    """Write the file, and return a checksum of its lines, whatever their order."""
    total = 0
    with path.open("wb") as file:
        for number in range(records):
            line = b'{"user":"u%d","n":%d,"text":"' % (number % KEYS, number)
            line += b"x" * (line_bytes - 3 - len(line)) + b'"}'
            total += crc32(line)
            file.write(line + b"\n")
    return total


def _verify(bootstrap: str, topic: str, records: int, total: int, *, contents: bool) -> None:
    held = sum(ends(bootstrap, topic, PARTITIONS))
    if held != records:
        raise BenchFailed(f"{records} records were published, but {topic} holds {held}")
    if not contents:
        return
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    last: dict[int, bytes] = {}
    try:
        while held:
            for message in (found := consumer.consume(10_000, PATIENCE_S)):
                total -= crc32(message.value())
                sequence = dict(message.headers() or []).get(SEQUENCE_HEADER, b"")
                if sequence and last.get(message.partition(), b"") >= sequence:
                    raise BenchFailed(f"{topic}, partition {message.partition()}: sequences do not rise")
                last[message.partition()] = sequence
            if not found:
                raise BenchFailed(f"{topic}: cannot be read to its end")
            held -= len(found)
    finally:
        consumer.close()
    if total:
        raise BenchFailed(f"{topic}: the records are not the lines of the file")
