"""A batch that unpacks to more than `max_batch_mb`, and what one at the bound takes, in a real worker."""

from __future__ import annotations

import random
import re
import signal
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.app.worker_process import Site, WorkerProcess, read_all

MIB = 1 << 20

STREAM = """
max_batch_mb = {most}
[streams.s]
input = "{app}.in"
output = "{app}.out"
dead_letters = "{app}.dead"
partitions = 2
"""


def place(broker: str, folder: Path, most: int) -> Site:
    app = f"large-{uuid.uuid4().hex[:8]}"
    return Site(folder, broker, app, STREAM.format(app=app, most=most))


def publish(site: Site, partition: int, first: int, *values: bytes) -> None:
    """Records in one batch, numbered from the first."""
    size = sum(map(len, values))
    producer = Producer(
        {
            "bootstrap.servers": site.broker,
            "compression.type": "zstd",
            "message.max.bytes": 2 * size + MIB,
            "batch.size": 2 * size + MIB,
            "queue.buffering.max.kbytes": 1 << 20,
            "linger.ms": 60_000,  # until the flush: they are one batch
            "enable.idempotence": True,
        }
    )
    for sequence, value in enumerate(values, first):
        headers = [("ratchet-producer", b"me"), ("ratchet-sequence", sequence.to_bytes(8, "big"))]
        producer.produce(f"{site.app}.in", value, partition=partition, headers=headers)
    assert producer.flush(60) == 0


def lengths(site: Site) -> dict[int, list[int]]:
    found = read_all(site.broker, f"{site.app}.out")
    return {partition: [len(message.value()) for message in messages] for partition, messages in found.items()}


def memory(worker: WorkerProcess, figure: str) -> int:
    """VmRSS or VmHWM of a worker, in bytes."""
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    found = re.search(rf"{figure}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


def test_a_batch_beyond_the_bound_halts_its_partition_alone_and_raising_it_leads_on(
    broker: str, tmp_path: Path
) -> None:
    site = place(broker, tmp_path, 2)
    worker = WorkerProcess(site)
    topic = f"{site.app}.in"
    try:
        worker.start()
        worker.wait_for(lambda: worker.text().count("lane runs") == 2, "two lanes")
        # Stopped meanwhile: it meets the large batch before the commit of the record before it is due.
        worker.process.send_signal(signal.SIGSTOP)
        for sequence, size in enumerate((10, 3 * MIB, 20), 1):
            publish(site, 0, sequence, bytes(size))
        worker.process.send_signal(signal.SIGCONT)
        worker.wait_for(lambda: "max_batch_mb is 2" in worker.text(), "the halt")
        publish(site, 1, 1, bytes(30))
        worker.wait_for(lambda: site.position(topic) == 2, "one record of each partition")
        said = f"{topic}, partition 0, record batch at offset 1: the batch unpacks to more than {2 * MIB} bytes"
        assert said in worker.text()  # this client does not say how much it is
        assert "--partition 0 --from 2 --reason TEXT" in worker.text()
        worker.stop()
        site.config.write_text(site.config.read_text().replace("max_batch_mb = 2", "max_batch_mb = 4"))
        worker.start()
        worker.wait_for(lambda: site.position(topic) == 4, "the rest")
        worker.stop()
        assert lengths(site) == {0: [10, 3 * MIB, 20], 1: [30]}
    finally:
        worker.end()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="asks Linux for the peak of another process")
def test_forwarding_a_batch_at_the_bound_takes_at_most_three_times_of_it(broker: str, tmp_path: Path) -> None:
    site = place(broker, tmp_path, 64)
    worker = WorkerProcess(site)
    topic = f"{site.app}.in"
    make = NewTopic(topic, 2, 1, config={"max.message.bytes": str(90 * MIB)})
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([make])[topic].result(60)
    noise = random.Random(8).randbytes(10_000)
    one, many = [bytes(64 * MIB - 200)], [noise[n % 100 :] + b"%d" % n for n in range(6_500)]
    try:
        worker.start()
        publish(site, 0, 1, b"first")
        worker.wait_for(lambda: site.position(topic) == 1, "the first record")
        resting = memory(worker, "VmRSS")
        Path(f"/proc/{worker.process.pid}/clear_refs").write_text("5")  # the peak counts from here
        waited: list[int] = []
        for first, values in ((2, one), (3, many)):
            publish(site, 0, first, *values)
            waited.append(first + len(values) - 1)
            worker.wait_for(lambda: site.position(topic) == waited[-1], "the large batch")
            assert memory(worker, "VmHWM") - resting <= 3 * 64 * MIB
        assert lengths(site)[0] == [5, *map(len, one), *map(len, many)]
        worker.stop()
    finally:
        worker.end()
