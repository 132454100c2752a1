"""An input is given more partitions while workers run: they notice, stop and say the way; and the way works."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.app.worker_process import PATIENCE_S, Site, WorkerProcess, read_all

STREAM = """
[streams.{stream}]
input = "{app}.in{more}"
output = "{app}.out{more}"
dead_letters = "{app}.dead{more}"
identity = "key"
partitions = {partitions}
"""
KEYS = 40


def publish(broker: str, topic: str, sequence: int) -> None:
    """One record of each key, partitioned as producers do by default."""
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
    for key in range(KEYS):
        headers = [("ratchet-sequence", str(sequence).encode())]
        producer.produce(topic, f"{key} {sequence}", f"key-{key}", headers=headers)
    assert producer.flush(60) == 0


def values(broker: str, topic: str) -> list[bytes | None]:
    return sorted(message.value() for messages in read_all(broker, topic).values() for message in messages)


def expected(*sequences: int) -> list[bytes]:
    return sorted(b"%d %d" % (key, sequence) for key in range(KEYS) for sequence in sequences)


@pytest.mark.matrix
def test_a_grown_input_stops_every_worker_and_the_documented_way_leads_on(broker: str, tmp_path: Path) -> None:
    app = f"growth-{uuid.uuid4().hex[:8]}"
    place = Site(tmp_path, broker, app, STREAM.format(app=app, stream="few", more="", partitions=2))
    workers = [WorkerProcess(place, name) for name in ("one", "two")]
    after = WorkerProcess(place, "after")
    topic = f"{app}.in"
    try:
        workers[0].start()
        workers[0].wait_for(lambda: workers[0].text().count("lane runs") == 2, "two lanes")
        workers[1].start()
        workers[1].wait_for(lambda: "lane runs" in workers[1].text(), "a lane")
        publish(broker, topic, 1)
        workers[0].wait_for(lambda: place.position(topic) == KEYS, "the commits")

        admin = AdminClient({"bootstrap.servers": broker})
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
        for worker in workers:
            assert worker.process.wait(PATIENCE_S) == 2, worker.text()[-3000:]
            assert f"{topic}: had 2 partitions when this worker started, and has 3 now" in worker.text()
            assert "docs/guide/partitions.md" in worker.text()
        publish(broker, topic, 2)
        refused = place.command("worker")
        assert refused.returncode == 2
        assert f"input {topic} has 3 partitions, {app}.out has 2" in refused.stderr
        assert "docs/guide/partitions.md" in refused.stderr
        assert values(broker, f"{app}.out") == expected(1)
        # As many partitions for the other topics do not help: a key that has moved is new in its partition.
        for other in (f"{app}.out", f"{app}.dead", f"{app}-changelog.few"):
            admin.create_partitions([NewPartitions(other, 3)])[other].result(30)
        refused = place.command("worker")
        assert refused.returncode == 2
        assert f"input {topic} has 3 partitions, and had 2 when this stream began" in refused.stderr
        assert "docs/guide/partitions.md" in refused.stderr
        assert values(broker, f"{app}.out") == expected(1)

        # The way on: a stream with topics of its own, and what nobody had read is published again.
        place.config.write_text(
            f'app = "{app}"\nbootstrap = "{broker}"\n' + STREAM.format(app=app, stream="more", more=".3", partitions=3),
            "utf-8",
        )
        after.start()
        after.wait_for(lambda: after.text().count("lane runs") == 3, "three lanes")
        publish(broker, f"{topic}.3", 2)
        after.wait_for(lambda: place.position(f"{topic}.3") == KEYS, "the commits")
        after.stop()
        assert values(broker, f"{app}.out.3") == expected(2)
    finally:
        for worker in (*workers, after):
            worker.end()
