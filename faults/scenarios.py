"""Faults that need another kind of cluster, or at which a worker must halt."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from faults.count import Difference
from faults.disk import SmallDisk
from faults.environment import CREATED_AGAIN, ENTRIES_LOST, STORE_FAILS, Environment, Style
from faults.events import PARTITIONS
from faults.kafka import EmbeddedKafka
from kafka_ratchet.app.worker.topics import COMPACTED
from kafka_ratchet.errors import FaultRunFailed

KILLED = 128 + signal.SIGKILL
AROUND_A_COMMIT = ("fetched", "agent", "judged", "produced", "logged", "offered", "committed", "remembered", "saved")
"""Points where a worker with agents is killed; see transactions/crash_points.py.

They are before, inside and after the agent. Its outputs and table writes are then in memory, in flight, acknowledged,
committed, or in the local store.
"""
STATE_DISK = 64 << 20
"""Bytes of the disk for local stores: enough for RocksDB with twelve partitions and little data."""
BROKER_DISK = 400 << 20
"""Bytes of the broker's disk. Kafka preallocates ten megabytes of index for each log, but a tmpfs stores only touched
pages."""


def three_nodes(folder: Path, restarts: int, seed: int, *, style: Style = Style.RECORDS) -> tuple[Difference, int]:
    """Kill and stop the nodes of a cluster of three in turn; two of three always run.

    Returns:
        errors of the output, events sent
    """
    with (
        EmbeddedKafka(folder / "kafka", nodes=3, workers=2) as kafka,
        Environment(kafka, folder / "environment", workers=2, seed=seed, style=style) as environment,
    ):
        since = environment.positions()
        for worker in environment.workers:
            worker.start()
        environment.wait_for_progress(since, "the first commits")
        for number in range(restarts):
            node = kafka.nodes[number % 3]
            (node.stop if number % 2 else node.kill)()
            environment.wait_for_progress(environment.positions(), f"progress while node {number % 3 + 1} is away")
            node.start()
            environment.wait_for_progress(
                environment.positions(), f"progress after the return of node {number % 3 + 1}"
            )
        sent, difference, _ = environment.finish()
        return difference, len(sent)


def full_disk_of_a_worker(
    folder: Path, times: int, seed: int, *, style: Style = Style.RECORDS
) -> tuple[Difference, int]:
    """Fill the disk of a worker's local stores, and free it again.

    The worker must halt without a commit, and continue when there is room.

    Returns:
        errors of the output, events sent
    """
    with (
        EmbeddedKafka(folder / "kafka", nodes=1, workers=1) as kafka,
        SmallDisk(folder / "disk", STATE_DISK) as disk,
        Environment(kafka, folder / "environment", workers=1, seed=seed, style=style) as environment,
    ):
        worker = environment.workers[0]
        worker.state = disk.folder / "state"
        worker.start()
        environment.wait_for_progress(environment.positions(), "the first commits")
        for _ in range(times):
            pid = worker.process().pid
            disk.fill(pid)
            environment.wait_for_halts(worker, dict.fromkeys(environment.inputs, STORE_FAILS))
            worker.process()  # it must not have ended
            disk.free(pid)
            environment.wait_for_progress(environment.positions(), "progress after there was room again")
        sent, difference, _ = environment.finish()
        return difference, len(sent)


def _set_policy(admin: AdminClient, topic: str, policy: str) -> None:
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)


def _cut(admin: AdminClient, places: list[TopicPartition]) -> bool:
    """Delete the records before these offsets (-1: all records).

    Returns:
        False while a broker does not know yet that the topic's policy allows deletion
    """
    for done in admin.delete_records(places).values():
        try:
            done.result(60)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.POLICY_VIOLATION:
                raise
            return False
    return True


def _create(admin: AdminClient, topic: NewTopic) -> bool:
    """Create a topic.

    Returns:
        False while Kafka still knows a deleted topic of this name
    """
    try:
        admin.create_topics([topic], operation_timeout=30)[topic.topic].result(60)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


def full_disk_of_the_broker(
    folder: Path, times: int, seed: int, *, style: Style = Style.RECORDS
) -> tuple[Difference, int]:
    """Fill the broker's disk, and start Kafka again with room.

    Kafka must end on the full disk, and the workers must continue after its start.

    Returns:
        errors of the output, events sent
    """
    with SmallDisk(folder / "kafka", BROKER_DISK) as disk:
        with (
            EmbeddedKafka(disk.folder, nodes=1, workers=1) as kafka,
            Environment(kafka, folder / "environment", workers=1, seed=seed, style=style) as environment,
        ):
            node = kafka.nodes[0]
            environment.workers[0].start()
            environment.wait_for_progress(environment.positions(), "the first commits")
            for _ in range(times):
                disk.fill(node.java_pid)
                environment.wait_for(lambda: not node.is_running, "Kafka giving up on its full disk")
                disk.free(0) if disk.is_mounted else None
                node.start()
                environment.wait_for_progress(environment.positions(), "progress after Kafka had room again")
            sent, difference, _ = environment.finish()
            return difference, len(sent)


def lost_changelogs(folder: Path, seed: int, *, style: Style = Style.RECORDS) -> tuple[Difference, int]:
    """Remove the records of two changelogs, and check that the worker halts their streams.

    Returns:
        errors of the output, number of refused partitions
    """
    with (
        EmbeddedKafka(folder / "kafka", nodes=1, workers=1) as kafka,
        Environment(kafka, folder / "environment", workers=1, seed=seed, style=style) as environment,
    ):
        worker = environment.workers[0]
        worker.start()
        environment.wait_for_progress(environment.positions(), "the first commits")
        worker.stop()
        admin = kafka.admin()
        changelog = f"{environment.app}-changelog.by-{{}}"
        # The changelog is created again, and the local store knows more than it.
        again = changelog.format("key")
        admin.delete_topics([again], operation_timeout=30)[again].result(60)
        new = NewTopic(again, PARTITIONS, 1, config=COMPACTED)
        environment.wait_for(lambda: _create(admin, new), "Kafka to forget the old changelog")
        # The changelog is cut at its beginning, and the local store is lost. Kafka cuts only topics with policy delete.
        cut = changelog.format("producer")
        _set_policy(admin, cut, "compact,delete")
        places = [TopicPartition(cut, number, -1) for number in range(PARTITIONS)]
        environment.wait_for(lambda: _cut(admin, places), "Kafka to know that it may cut")
        _set_policy(admin, cut, "compact")
        shutil.rmtree(worker.state / environment.app / "by-producer")
        before = environment.positions()
        worker.start()
        healthy = {place: offset for place, offset in before.items() if place[0] == f"{environment.app}.partition.in"}
        environment.wait_for_progress(healthy, "the stream with the whole changelog")
        environment.wait_for_halts(
            worker, {f"{environment.app}.key.in": CREATED_AGAIN, f"{environment.app}.producer.in": ENTRIES_LOST}
        )
        worker.stop()
        return Difference(), len(before) - len(healthy)


def killed_around_commits(folder: Path, seed: int, *, style: Style = Style.AGENT) -> tuple[Difference, int]:
    """Kill a worker with agents at every point of a transaction, the third time it reaches the point.

    Returns:
        errors of outputs and tables, events sent
    """
    with (
        EmbeddedKafka(folder / "kafka", nodes=1, workers=1) as kafka,
        Environment(kafka, folder / "environment", workers=1, seed=seed, style=style, kinds=style.kinds) as environment,
    ):
        worker = environment.workers[0]
        for point in AROUND_A_COMMIT:
            worker.start(crash_at=f"{point}:3")
            environment.wait_for(lambda: not worker.is_running, f"the crash at {point}")
            if worker.started is None or (code := worker.started.wait()) != KILLED:
                raise FaultRunFailed(f"{worker.name} ended with {code}, not at {point}:\n{worker.output()[-3000:]}")
        worker.start()
        sent, difference, _ = environment.finish()
        return difference, len(sent)
