"""Bench of Ratchet's producer: its speed next to a plain client, and its time to resume after a crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.kafka import create, ends
from bench.spread import spread
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.errors import BenchFailed
from kafka_ratchet.producers import FileSource, Producer, publish
from kafka_ratchet.topic_log.clients import consumer, offset_ranges

OURS = ("ratchet", "ratchet-many", "batches", "batches-many")
PEERS = ("bare", "bare-headers")
KINDS = (*OURS, *PEERS)
PARTITIONS = 4
PATIENCE_S = 600
ASK_EVERY_S = 0.002


@dataclass(slots=True)
class Sending:
    """Records per second and CPU seconds per million records, by kind of producer, for each round."""

    rates: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    cpu: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def as_dict(self) -> dict[str, object]:
        """Return the result as a JSON object, with ratios of Ratchet's producers to the others by round."""
        told: dict[str, object] = {kind: spread(rates, 0) for kind, rates in self.rates.items()}
        for ours in OURS:
            for peer in PEERS:
                found = [a / b for a, b in zip(self.rates[ours], self.rates[peer], strict=True)]
                told[f"{ours}_to_{peer}"] = spread(found)
        told["cpu_s_per_million"] = {kind: spread(seconds) for kind, seconds in self.cpu.items()}
        return told


def sending(records: int, value_bytes: int, rounds: int, say: Callable[[str], None]) -> Sending:
    """Send records with each kind of producer in turn, and return the measures.

    There are `rounds` rounds, after one that does not count.

    Raises:
        BenchFailed: a producer fails, or its topic lacks records.
    """
    found = Sending()
    with TemporaryDirectory(prefix="ratchet-bench-kafka-") as folder, EmbeddedBroker(Path(folder)) as broker:
        for number in range(rounds + 1):
            for kind in KINDS:
                topic = f"{kind}-{number}"
                create(broker.bootstrap, topic, partitions=PARTITIONS)
                told = run_module("bench.peers.send", kind, broker.bootstrap, topic, records, value_bytes)
                seconds, cpu = map(float, told.split())
                held = sum(ends(broker.bootstrap, topic, PARTITIONS))
                if held != records:
                    raise BenchFailed(f"{kind}: {records} records were sent, but {topic} holds {held}")
                if number:
                    found.rates[kind].append(records / seconds)
                    found.cpu[kind].append(cpu / records * 1e6)
                    say(json.dumps({"kind": kind, "records_per_s": round(records / seconds)}))
    return found


def restart(sizes: list[int], rounds: int, say: Callable[[str], None]) -> dict[int, dict[str, object]]:
    """Return the seconds from the start of `ratchet publish` to its first new record, by number of earlier records.

    sizes: for each measurement, the number of records that file and topic contain before the start

    Raises:
        BenchFailed: `ratchet publish` fails.
    """
    found: dict[int, list[float]] = {size: [] for size in sizes}
    with TemporaryDirectory(prefix="ratchet-bench-") as folder, EmbeddedBroker(Path(folder) / "kafka") as broker:
        for size in sizes:
            path = Path(folder) / f"{size}.txt"
            with path.open("wb") as file:
                for start in range(0, size, 10_000):
                    file.write(b"".join(b"record %09d\n" % n for n in range(start, min(size, start + 10_000))))
            create(broker.bootstrap, str(size), partitions=PARTITIONS)
            source = FileSource(path)
            began = time.monotonic()
            options = {"bootstrap.servers": broker.bootstrap}
            with Producer(str(size), "bench", options=options, source=source) as producer:
                publish(source, producer)
            say(f"{size:,} records published in {time.monotonic() - began:.0f} s")
        for _ in range(rounds + 1):
            for size in sizes:
                found[size].append(_restarted(Path(folder) / f"{size}.txt", broker.bootstrap, str(size)))
                say(json.dumps({"published": size, "restart_s": round(found[size][-1], 3)}))
    return {size: {"restart_s": spread(seconds[1:])} for size, seconds in found.items()}  # the first warms up


def _restarted(path: Path, bootstrap: str, topic: str) -> float:
    with path.open("ab") as file:
        file.write(b"one more\n")
    with consumer({"bootstrap.servers": bootstrap}, "bench") as reader:

        def end() -> int:
            return sum(held.end for held in offset_ranges(reader, topic, PARTITIONS))

        before = end()
        began = time.monotonic()
        command = [sys.executable, "-m", "kafka_ratchet", "publish", str(path), "--producer", "bench", "--topic", topic]
        environment = {**os.environ, "RATCHET_BOOTSTRAP": bootstrap}
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            while end() == before:
                if time.monotonic() - began > PATIENCE_S or process.poll():
                    process.kill()
                    raise BenchFailed(
                        f"`ratchet publish` has sent no new record: {process.communicate()[1].decode(errors='replace')}"
                    )
                time.sleep(ASK_EVERY_S)
            return time.monotonic() - began


def run_module(module: str, *arguments: object) -> str:
    """Run a Python module as another process, and return its output.

    Raises:
        BenchFailed: the module fails.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode:
        raise BenchFailed(f"{arguments[0]} failed: {done.stderr[-2000:]}")
    return done.stdout
