"""Real workers: records of one id that arrive in several partitions are judged together, whatever crashes."""

from __future__ import annotations

import json
import signal
import uuid
from itertools import count
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kafka_ratchet.app.repartition import arrivals_of
from kafka_ratchet.app.verify import verify
from kafka_ratchet.app.why.explain import Explanation
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.producers import create_topic
from tests.app.worker_process import PATIENCE_S, Site, WorkerProcess, read_all
from tests.transport.kafka_side import commit_by_hand

TOML = """
commit_interval_ms = 50
session_timeout_ms = 6000
[streams.hooks]
input = "{app}.in"
output = "{app}.out"
dead_letters = "{app}.dead"
identity = "field:id"
sequence = "none"
inactive_after_s = 604800
repartition_by = "identity"
partitions = 4
"""
EVENTS = 600
INPUTS = 2


def publish(broker: str, topic: str, numbers: list[int], choose: Random) -> None:
    """Each to any partition, as four threads behind a load balancer do."""
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
    for number in numbers:
        value = json.dumps({"id": str(uuid.UUID(int=number)), "n": number}).encode()
        producer.produce(topic, value, partition=choose.randrange(INPUTS))
    producer.produce(topic, b"no id", partition=1)
    assert producer.flush(30) == 0


@pytest.mark.matrix
@pytest.mark.parametrize(
    "points",
    [
        ("offered:3",),
        pytest.param(("committed:2", "produced:2", "fenced:3", "judged:2", "logged"), marks=pytest.mark.long),
    ],
)
def test_each_id_passes_once_wherever_it_arrives(broker: str, tmp_path: Path, points: tuple[str, ...]) -> None:
    app = f"rep-{uuid.uuid4().hex[:8]}"
    site = Site(tmp_path, broker, app, TOML.format(app=app))
    create_topic(AdminClient({"bootstrap.servers": broker}), f"{app}.in", partitions=INPUTS, timeout_s=60, say=print)
    choose = Random(app)
    worker = WorkerProcess(site)
    rounds = len(points) + 1
    try:
        for turn in range(rounds):
            worker.start(crash_at=points[turn] if turn < len(points) else None)
            new = [*range(EVENTS * turn // rounds, EVENTS * (turn + 1) // rounds)]
            again = [choose.randrange(EVENTS * (turn + 1) // rounds) for _ in range(100)]
            publish(broker, f"{app}.in", choose.sample([*new, *again], len(new) + 100), choose)
            if turn < len(points):
                assert worker.process.wait(PATIENCE_S) == -signal.SIGKILL
        worker.wait_for(lambda: site.position(f"{app}.in") >= EVENTS + 101 * rounds, "what was sent")
        worker.wait_for(lambda: site.position(f"{app}-repartition.hooks") >= EVENTS + 100 * rounds, "what was sent on")
        worker.stop()
    finally:
        worker.end()
    out = read_all(broker, f"{app}.out")
    assert len(out) == 4
    assert sorted(json.loads(each.value())["n"] for part in out.values() for each in part) == [*range(EVENTS)]
    report = verify(site.settings)
    assert report.is_proven, (report.findings, report.unproven())
    assert (report.fresh, report.duplicate, report.invalid) == (EVENTS, 100 * rounds, 0)
    letters = [each for part in read_all(broker, f"{app}-hooks-arrivals-dead-letters").values() for each in part]
    assert [each.value() for each in letters] == [b"no id"] * rounds
    with pytest.raises(SettingsError, match=r"verified together with stream hooks. Name --stream hooks"):
        verify(site.settings, arrivals_of("hooks"))

    # Where a record went is told by its id, and by where it arrived.
    watched: list[int] = []
    why = Explanation(site.settings, "hooks", broker, limit_s=60, watch=lambda done, total: watched.append(done))
    answer = why.of_record(f"{app}.in", 0, 0)
    first, *others = answer.arrivals
    assert ([each.verdict for each in others], first.verdict) == (["duplicate"] * len(others), "fresh")
    assert first.forwarded is not None
    (passed,) = [each for each in out[first.forwarded.partition] if each.offset() == first.forwarded.offset]
    assert answer.identity == json.loads(passed.value())["id"].encode()
    assert (first.sequence, others[-1].against if others else None) == (None, None)

    # What is there once more, or in another partition than its identity's, is found.
    producer = Producer({"bootstrap.servers": broker})
    partition, first = next((number, part[0]) for number, part in out.items() if part)
    producer.produce(f"{app}-repartition.hooks", first.value(), partition=(partition + 1) % 4)
    producer.flush(30)
    found = {finding.kind for finding in verify(site.settings).findings}
    assert {"doubled", "unexpected"} <= found


BOUNDED = TOML.replace("604800", "1").replace("partitions = 4", 'partitions = 2\nduplicates = "{app}.dropped"')


class Hooks:
    """Stream of ids that are forgotten after a second, and its worker."""

    def __init__(self, broker: str, folder: Path) -> None:
        self.broker, self.app = broker, f"rep-{uuid.uuid4().hex[:8]}"
        self.topic = f"{self.app}.in"
        self.site = Site(folder, broker, self.app, BOUNDED.format(app=self.app))
        create_topic(AdminClient({"bootstrap.servers": broker}), self.topic, partitions=INPUTS, timeout_s=60, say=print)
        self.worker, self._fresh = WorkerProcess(self.site), count(100)

    def send(self, partition: int, *numbers: int) -> None:
        producer = Producer({"bootstrap.servers": self.broker, "enable.idempotence": True})
        for number in numbers:
            producer.produce(self.topic, json.dumps({"n": number, "id": str(number)}).encode(), partition=partition)
        assert producer.flush(30) == 0

    def found(self, kind: str) -> dict[int, int]:
        """Time of each number in the output ("out") or among the duplicates ("dropped")."""
        parts = read_all(self.broker, f"{self.app}.{kind}").values()
        read = [(json.loads(each.value())["n"], each.timestamp()[1]) for part in parts for each in part]
        assert kind == "dropped" or len(dict(read)) == len(read), "an id has passed twice"
        return dict(read)

    def newest_ms(self) -> int:
        """Send ten fresh ids to partition 0, and return their time after they have passed."""
        sent = [next(self._fresh) for _ in range(10)]
        self.send(0, *sent)
        self.worker.wait_for(lambda: self.found("out").keys() >= {*sent}, "fresh ids")
        return max(self.found("out").values())

    def evicted(self) -> bool:
        """Return True if the worker has forgotten an id since its last start."""
        return "identities evicted" in self.worker.text()


def test_an_id_is_kept_while_its_duplicate_waits_in_a_halted_partition(broker: str, tmp_path: Path) -> None:
    hooks = Hooks(broker, tmp_path)
    worker = hooks.worker
    try:
        worker.start()
        hooks.send(0, 1)
        hooks.send(1, 2)
        worker.wait_for(lambda: hooks.found("out").keys() >= {1, 2}, "two ids")
        worker.stop()
        commit_by_hand(broker, hooks.app, hooks.topic, 0, partition=1)
        hooks.send(1, 1)
        worker.log.unlink()
        worker.start(module="tests.app.operations.impatient_worker")
        worker.wait_for(lambda: "another client has committed offset 0" in worker.text(), "the halt")
        began_ms = hooks.newest_ms()
        while hooks.newest_ms() - began_ms < 4_000:
            assert not hooks.evicted()
        resumed = hooks.site.command(
            "resume", "--stream", "hooks-arrivals", "--partition", "1", "--reason", "t", "--execute"
        )
        assert resumed.returncode == 0, resumed.stderr
        worker.wait_for(lambda: 1 in hooks.found("dropped"), "the duplicate")
        worker.wait_for(lambda: bool(hooks.newest_ms()) and hooks.evicted(), "an eviction, with all records copied")
    finally:
        worker.end()
