"""A topic that MirrorMaker 2 copies: what it copies twice counts once, and a fail-over goes on exactly."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.app.verify import verify
from kafka_ratchet.producers import create_topic
from tests.app.worker_process import Site, WorkerProcess, read_all
from tests.mirror.mirror_maker import MirrorMaker

TOML = """
commit_interval_ms = 50
session_timeout_ms = 6000
[streams.events]
input = "events"
output = "once"
dead_letters = "dead"
partitions = 2
"""
PATIENCE_S = 240.0
NAMES = (b"a", b"b", b"c")
PER_PRODUCER = 2_000


@pytest.fixture
def here(tmp_path: Path) -> Iterator[str]:
    with EmbeddedBroker(tmp_path / "here") as broker:
        yield broker.bootstrap


@pytest.fixture
def there(tmp_path: Path) -> Iterator[str]:
    with EmbeddedBroker(tmp_path / "there") as broker:
        yield broker.bootstrap


def publish(bootstrap: str, first: int, end: int) -> None:
    """Sequences of each producer, from first to before end."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for sequence in range(first, end):
        for name in NAMES:
            headers = [("ratchet-producer", name), ("ratchet-sequence", b"%d" % sequence)]
            producer.produce("events", b"%s %d" % (name, sequence), name, headers=headers)
        producer.poll(0)
    assert producer.flush(60) == 0


def count(bootstrap: str, topic: str) -> int:
    """Records of a topic, which may not be there yet."""
    if topic not in AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).topics:
        return 0
    return sum(map(len, read_all(bootstrap, topic).values()))


def wait_for(bootstrap: str, topic: str, records: int, mirror: MirrorMaker) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while count(bootstrap, topic) < records:
        assert time.monotonic() < deadline, mirror.log.read_text("utf-8", "replace")[-3000:]
        time.sleep(1)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_a_killed_mirror_copies_again_counts_once(here: str, there: str, tmp_path: Path) -> None:
    create_topic(AdminClient({"bootstrap.servers": here}), "events", partitions=2, timeout_s=60, say=print)
    publish(here, 1, PER_PRODUCER // 2)
    mirror = MirrorMaker(tmp_path, here, there, "events")
    site = Site(tmp_path, there, "mirrored", TOML)
    worker = WorkerProcess(site)
    try:
        mirror.start()
        wait_for(there, "events", len(NAMES) * (PER_PRODUCER // 2 - 1), mirror)
        worker.start()
        mirror.kill()
        publish(here, PER_PRODUCER // 2, PER_PRODUCER + 1)
        mirror.start()
        wait_for(there, "once", len(NAMES) * PER_PRODUCER, mirror)
        mirror.kill()
        worker.wait_for(lambda: site.position("events") >= count(there, "events"), "what was copied")
    finally:
        mirror.kill()
        worker.end()
    copied = count(there, "events")
    assert copied > len(NAMES) * PER_PRODUCER  # it has copied some twice
    once = Counter(each.value() for part in read_all(there, "once").values() for each in part)
    assert once == Counter(b"%s %d" % (name, at) for name in NAMES for at in range(1, PER_PRODUCER + 1))
    report = verify(site.settings)
    assert report.is_proven, report.findings
    assert (report.fresh, report.duplicate) == (len(once), copied - len(once))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_other_side_goes_on_where_this_one_ended(here: str, there: str, tmp_path: Path) -> None:
    create_topic(AdminClient({"bootstrap.servers": here}), "events", partitions=2, timeout_s=60, say=print)
    publish(here, 1, PER_PRODUCER // 2)
    mirror = MirrorMaker(tmp_path, here, there, "events")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    sites = [Site(tmp_path / name, broker, "mirrored", TOML) for name, broker in (("one", here), ("two", there))]
    first, second = map(WorkerProcess, sites)
    try:
        mirror.start()
        first.start()
        first.wait_for(lambda: first.site.position("events") >= len(NAMES) * (PER_PRODUCER // 2 - 1), "its input")
        first.stop()
        exported = sites[0].command("state", "export", "--stream", "events", str(tmp_path / "state.parquet"))
        assert exported.returncode == 0, exported.stderr
        publish(here, PER_PRODUCER // 2 - 100, PER_PRODUCER + 1)  # the last hundred once more
        wait_for(there, "events", len(NAMES) * (PER_PRODUCER + 100), mirror)
        imported = sites[1].command("state", "import", "--stream", "events", str(tmp_path / "state.parquet"))
        assert imported.returncode == 0, imported.stderr
        second.start()
        second.wait_for(lambda: second.site.position("events") >= count(there, "events"), "what was copied")
    finally:
        mirror.kill()
        first.end()
        second.end()
    outputs = [read_all(broker, "once") for broker in (here, there)]
    assert all(any(output.values()) for output in outputs)
    once = Counter(each.value() for output in outputs for part in output.values() for each in part)
    assert once == Counter(b"%s %d" % (name, at) for name in NAMES for at in range(1, PER_PRODUCER + 1))
