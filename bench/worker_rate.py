"""How many records a second one worker process takes through, and what they cost it.

    python -m bench.worker_rate [--records 1000000] [--keys 10000] [--commit-ms 100] [--identity key] [--runs 3]

The input is loaded before the clock starts: 4 partitions, 200-byte values, 20 % of the records sent twice. The clock
runs from the lanes' first fetch to the last commit. CPU seconds are the worker process's own in that time. Prints one
line of JSON a run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from app._application import Application
from app._broker import choose_broker
from app._compile import compile_kernels
from app._topics import prepare
from app._verify import verify
from app._worker import _loop_factory
from app.settings import Settings, StreamSettings

PARTITIONS = 4


def load(bootstrap: str, topic: str, records: int, keys: int, compression: str) -> None:
    """Fill the input topic; every fifth record repeats one of the last thousand of its partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)])[topic].result(30)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "compression.type": compression,
            "enable.idempotence": True,
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    choose = random.Random(1)
    filler = "x" * 140
    recent: list[list[tuple[bytes, bytes, list[tuple[str, bytes]]]]] = [[] for _ in range(PARTITIONS)]
    last = [0] * keys
    for number in range(records):
        if number % 5 == 4:
            partition = choose.randrange(PARTITIONS)
            if recent[partition]:
                key, value, headers = choose.choice(recent[partition])
                produce(producer, topic, partition, key, value, headers)
                continue
        chosen = choose.randrange(keys)
        partition = chosen % PARTITIONS
        last[chosen] += 1
        value = json.dumps({"id": number, "user": chosen, "filler": filler}).encode().ljust(200)
        headers = [("ratchet-sequence", last[chosen].to_bytes(8, "big")), ("ratchet-producer", b"p%d" % (chosen % 100))]
        key = b"user-%d" % chosen
        produce(producer, topic, partition, key, value, headers)
        recent[partition] = [*recent[partition][-999:], (key, value, headers)] if number % 7 == 0 else recent[partition]
    if producer.flush(300):
        raise SystemExit("the input could not be loaded")


def produce(producer: Producer, topic: str, partition: int, key: bytes, value: bytes, headers: Any) -> None:
    """Produce, waiting while the local queue is full."""
    while True:
        try:
            producer.produce(topic, value, key, partition=partition, headers=headers)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)


async def measure(settings: Settings, bootstrap: str, topics: Any, records: int) -> dict[str, float]:
    """Run the application in this process until everything is committed."""
    application = Application(settings, bootstrap, topics)
    await application.start()
    first = cpu = 0.0
    lanes = application.lanes.running
    while True:
        await asyncio.sleep(0.01)
        seen = sum(lane.status.records for lane in lanes.values())
        if not first and any(lane.status.state == "running" for lane in lanes.values()):
            first, cpu = time.perf_counter(), time.process_time()
        if seen >= records:
            break
    seconds, cpu = time.perf_counter() - first, time.process_time() - cpu
    commits = sum(lane.status.commits for lane in lanes.values())
    await application.stop()
    return {"seconds": round(seconds, 3), "cpu_seconds": round(cpu, 3), "commits": commits}


def main() -> None:
    """Load, measure, verify, print."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--records", type=int, default=1_000_000)
    arguments.add_argument("--keys", type=int, default=10_000)
    arguments.add_argument("--commit-ms", type=int, default=100)
    arguments.add_argument("--identity", default="key")
    arguments.add_argument("--compression", default="none")
    arguments.add_argument("--runs", type=int, default=1)
    chosen = arguments.parse_args()
    compile_kernels()
    with choose_broker() as bootstrap, tempfile.TemporaryDirectory(prefix="ratchet-bench-") as folder:
        name = f"bench-{os.getpid()}"
        load(bootstrap, f"{name}.in", chosen.records, chosen.keys, chosen.compression)
        for run in range(chosen.runs):
            stream = StreamSettings(
                input=f"{name}.in",
                output=f"{name}.out{run}",
                dead_letters=f"{name}.dead{run}",
                identity=chosen.identity,
            )
            settings = Settings(
                app=f"{name}-{run}",
                bootstrap=bootstrap,
                streams={"events": stream},
                commit_interval_ms=chosen.commit_ms,
                state_folder=Path(folder) / str(run),
            )
            topics = {"events": prepare(bootstrap, settings, "events", stream)}
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                result = runner.run(measure(settings, bootstrap, topics, chosen.records))
            report = verify(settings, "events")
            rate = chosen.records / result["seconds"]
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            line = {**vars(chosen), **result, "records_per_s": round(rate), "peak_mb": peak}
            print(json.dumps({**line, "duplicates": report.duplicate, "verified": report.ok}), flush=True)


if __name__ == "__main__":
    main()
