"""Little-endian sequences through a real worker: it halts with the setting, and with it all records pass once."""

from __future__ import annotations

import uuid
from pathlib import Path

from confluent_kafka import Producer

from kafka_ratchet.app.verify import ExitCode, verify
from tests.app.worker_process import Site, WorkerProcess, read_all


def settings(name: str, more: str = "") -> str:
    topics = f'input = "{name}"\noutput = "{name}.once"\ndead_letters = "{name}.dead"\npartitions = 1\n'
    return f'web.port = 0\n[streams.events]\n{topics}identity = "key"\n{more}\n'


def send(broker: str, name: str) -> None:
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 50})
    for number in range(1, 1_001):
        headers: list[tuple[str, str | bytes | None]] = [("ratchet-sequence", number.to_bytes(8, "little"))]
        producer.produce(name, b"%d" % number, b"k", headers=headers)
    producer.flush()


def test_the_partition_halts_and_the_setting_ends_that(broker: str, tmp_path: Path) -> None:
    name = f"forms-{uuid.uuid4().hex[:8]}"
    site = Site(tmp_path, broker, name, settings(name))
    worker = WorkerProcess(site)
    try:
        worker.start()
        worker.wait_for(lambda: "lane runs" in worker.text(), "its lane")
        send(broker, name)
        worker.wait_for(lambda: "as a little-endian number" in worker.text(), "the halt")
        worker.stop()
        assert site.position(name) == 0
        assert sum(map(len, read_all(broker, f"{name}.once").values())) == 0
        assert verify(site.settings).exit_code() is not ExitCode.PROVEN
        site = Site(tmp_path, broker, name, settings(name, 'sequence_form = "little-endian"'))
        worker = WorkerProcess(site, "second")
        worker.start()
        worker.wait_for(lambda: site.position(name) == 1_000, "the end of the input")
        worker.stop()
    finally:
        worker.end()
    values = [each.value() for part in read_all(broker, f"{name}.once").values() for each in part]
    assert values == [b"%d" % number for number in range(1, 1_001)]
    assert verify(site.settings).exit_code() is ExitCode.PROVEN
