"""A worker process at its edges: what it refuses, with which sentence, and how it hands over."""

from __future__ import annotations

import json
import re
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kafka_ratchet.app.names import changelog_name
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.worker.stream import _bounds
from kafka_ratchet.app.worker.topics import COMPACTED, config_of, create, prepare
from kafka_ratchet.errors import SettingsError, TopicError
from kafka_ratchet.tables.eviction import EvictionLimits
from tests.app.worker_process import PATIENCE_S, Site, WorkerProcess, read_all, status_address

STREAM = """
[streams.events]
input = "{name}.in"
output = "{name}.out"
dead_letters = "{name}.dead"
"""


def site(folder: Path, broker: str, more: str = "session_timeout_ms = 6000\n", stream: str = STREAM) -> Site:
    app = f"worker-{uuid.uuid4().hex[:8]}"
    return Site(folder, broker, app, more + stream.format(name=app))


def publish(broker: str, topic: str, records: list[tuple[str, int]]) -> None:
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
    for name, sequence in records:
        headers = [("ratchet-producer", name.encode()), ("ratchet-sequence", str(sequence).encode())]
        producer.produce(topic, f"{name} {sequence}", name, headers=headers)
    assert producer.flush(30) == 0


def test_no_stream_is_refused(broker: str, tmp_path: Path) -> None:
    done = site(tmp_path, broker, stream="").command("worker")
    assert done.returncode == 2
    assert "the settings have no stream" in done.stderr


def test_unreachable_broker_is_tried_and_then_refused(tmp_path: Path) -> None:
    done = site(tmp_path, "127.0.0.1:1", "kafka_timeout_s = 1.5\n").command("worker")
    assert done.returncode == 2
    assert "does not answer yet" in done.stderr
    assert "did not answer within 1.5 s" in done.stderr


def test_topics_with_other_partition_counts_are_refused(
    broker: str, tmp_path: Path, new_topic: Callable[..., str]
) -> None:
    source, output = new_topic(partitions=3), new_topic(partitions=2)
    toml = f'[streams.events]\ninput = "{source}"\noutput = "{output}"\ndead_letters = "{source}.dead"\n'
    done = site(tmp_path, broker, stream=toml).command("worker")
    assert done.returncode == 2
    assert f"input {source} has 3 partitions, {output} has 2" in done.stderr


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_changelog_that_retention_deletes_from_is_refused(broker: str, tmp_path: Path, policy: str) -> None:
    place = site(tmp_path, broker)
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker})
    changelog = changelog_name(place.app, "events")
    topic = NewTopic(changelog, num_partitions=4, replication_factor=1, config={"cleanup.policy": policy})
    admin.create_topics([topic])[changelog].result(30)
    done = place.command("worker")
    assert done.returncode == 2
    said = done.stderr.split(f"{changelog}: cleanup.policy is ")[1]
    assert set(said[: said.index(", so")].split(",")) == set(policy.split(","))


@pytest.mark.parametrize(
    ("config", "bounds", "sentence"),
    [
        ({"message.timestamp.type": "CreateTime"}, {"max_identities": 9}, "message.timestamp.type is CreateTime"),
        ({"delete.retention.ms": "1000"}, {"inactive_after_s": 9}, "delete.retention.ms is 1000"),
    ],
)
def test_bounds_on_a_changelog_that_cannot_hold_them_are_refused(
    broker: str, new_topic: Callable[..., str], config: dict[str, str], bounds: dict[str, int], sentence: str
) -> None:
    source = new_topic(partitions=1)
    stream = StreamSettings(input=source, output=f"{source}.out", dead_letters=f"{source}.dead")
    settings = Settings(app=f"bounds-{source}", bootstrap=broker, streams={"events": stream})
    changelog = prepare(broker, settings, "events", stream).changelog
    bounded = stream.model_copy(update=bounds)
    prepare(broker, settings, "events", bounded)  # as Ratchet has made it, it is good
    admin = AdminClient({"bootstrap.servers": broker})
    admin.delete_topics([changelog])[changelog].result(30)
    create(admin, changelog, 1, 1, {**COMPACTED, **config})
    deadline = time.monotonic() + 60
    while not config.items() <= config_of(admin, changelog).items():  # the old one's, until the broker has heard of it
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(TopicError, match=re.escape(f"{changelog}: {sentence}")):
        prepare(broker, settings, "events", bounded)
    with pytest.raises(TopicError, match=re.escape(f"{changelog}: {sentence}")):
        prepare(broker, settings, "events", stream)  # nulls of agents' tables are missed as well


def test_each_partition_has_an_even_share_of_the_identities() -> None:
    stream = StreamSettings(input="a", output="b", dead_letters="c", max_identities=11, inactive_after_s=60)
    assert _bounds("events", stream, 4) == EvictionLimits(most=2, inactive_s=60)
    assert _bounds("events", stream.model_copy(update={"max_identities": None}), 4) == EvictionLimits(None, 60)
    with pytest.raises(SettingsError, match=r"streams\.events\.max_identities: 11 are too few for 12 partitions"):
        _bounds("events", stream, 12)


def test_extractor_that_cannot_be_imported_is_refused(broker: str, tmp_path: Path) -> None:
    place = site(tmp_path, broker, stream=STREAM + 'sequence = "function:no_such_module:extract"\n')
    done = place.command("worker")
    assert done.returncode == 2
    assert "sequence function:no_such_module:extract: cannot be imported" in done.stderr


HANGING = """
import time

from kafka_ratchet.app.worker import application
from kafka_ratchet.app.worker import process as worker_process
from kafka_ratchet.app.cli import main


async def stop(self):
    time.sleep(3600)  # as Faust waits for its thread: on the event loop


worker_process.STOP_WITHIN_S = 1.0
application.Application.stop = stop
main()
"""


def test_a_worker_that_hangs_when_it_is_to_stop_ends_itself_and_says_where_it_stands(
    broker: str, tmp_path: Path
) -> None:
    place = site(tmp_path, broker)
    (tmp_path / "hanging.py").write_text(HANGING)
    worker = WorkerProcess(place)
    try:
        worker.start(module="hanging")
        worker.wait_for(lambda: "worker runs" in worker.text(), "the start")
        worker.process.terminate()
        assert worker.process.wait(PATIENCE_S) == 1
        assert re.search(r"Timeout \(.*hanging\.py\", line \d+ in stop", worker.text(), re.DOTALL)
    finally:
        worker.end()


def test_worker_serves_hands_over_and_is_found(broker: str, tmp_path: Path) -> None:
    place = site(tmp_path, broker)
    first, second = WorkerProcess(place, "first"), WorkerProcess(place, "second")
    topic = f"{place.app}.in"
    try:
        first.start()
        first.wait_for(lambda: first.text().count("lane runs") == 4, "four lanes")
        publish(broker, topic, [("a", 1), ("a", 2), ("a", 2), ("b", 7), ("b", 5)])
        first.wait_for(lambda: place.position(topic) == 5, "the commit")

        refused = place.command("worker", "--state-folder", str(first.state))
        assert refused.returncode == 2
        assert f"is used by another worker (process {first.process.pid})" in refused.stderr

        def is_told() -> bool:  # a group that rebalances, after a worker has stood still, has no owner to ask
            asked = place.command("tables", "--identity", "a", "--sequence", "2", "--json")
            return asked.returncode == 0 and '"duplicate"' in asked.stdout

        first.wait_for(is_told, "its answer")

        def partitions_of_status() -> list[dict[str, Any]]:
            with urllib.request.urlopen(status_address(first) + "/status") as status:  # noqa: S310 - our own address
                found: list[dict[str, Any]] = json.load(status)["tables"][0]["partitions"]
                return found

        first.wait_for(lambda: {p["state"] for p in partitions_of_status()} == {"running"}, "four lanes that run")
        partitions = partitions_of_status()
        assert len(partitions) == 4
        assert sum(partition["fresh"] for partition in partitions) == 3
        assert sum(partition["duplicate"] for partition in partitions) == 2

        second.start()
        second.wait_for(lambda: "lane runs" in second.text(), "a lane of its own")
        first.stop()
        second.wait_for(lambda: second.text().count("lane runs") >= 4, "the other lanes")
        publish(broker, topic, [("a", 2), ("a", 3), ("b", 8)])
        second.wait_for(lambda: place.position(topic) == 8, "the commit")
        second.stop()
    finally:
        first.end()
        second.end()
    values = sorted(
        message.value() for messages in read_all(broker, f"{place.app}.out").values() for message in messages
    )
    assert values == [b"a 1", b"a 2", b"a 3", b"b 7", b"b 8"]
