"""A real `ratchet worker` process for tests, and the topics around it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kafka_ratchet.app.settings import Settings, load
from kafka_ratchet.topic_log.clients import ranges_of

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
"""Far beyond what anything here takes; a test that runs into it has hung."""

STARTING = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE)


class Site:
    """An app of its own name with its settings file, on the tests' broker."""

    def __init__(self, folder: Path, broker: str, app: str, toml: str) -> None:
        self.folder, self.broker, self.app = folder, broker, app
        self.config = folder / "ratchet.toml"
        head = f'app = "{app}"\nbootstrap = "{broker}"\n'
        self.config.write_text(head + toml, "utf-8")

    @property
    def settings(self) -> Settings:
        return load(self.config)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kafka_ratchet", *arguments, "--config", str(self.config)],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RATCHET_")}
        return {**kept, "PYTHONPATH": f"{ROOT}:{self.folder}"}

    def position(self, topic: str) -> int:
        """Sum of the committed offsets.

        Asked as a reader of uncommitted data, or Kafka would hold the answer back for as long as a killed worker's
        transaction is open (KIP-447, require_stable).
        """
        options: dict[str, Any] = {
            "bootstrap.servers": self.broker,
            "group.id": self.app,
            "isolation.level": "read_uncommitted",
        }
        consumer = Consumer(options)
        try:
            partitions = [
                TopicPartition(topic, number) for number in consumer.list_topics(topic, 60).topics[topic].partitions
            ]
            return sum(max(0, place.offset) for place in _committed(consumer, partitions))
        finally:
            consumer.close()


def _committed(consumer: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
    """A broker that has just been started may not coordinate the group yet."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            found: list[TopicPartition] = consumer.committed(partitions, timeout=30)
            return found
        except KafkaException as error:
            if error.args[0].code() not in STARTING or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class WorkerProcess:
    """One worker; `kill` is SIGKILL."""

    def __init__(self, site: Site, name: str = "worker") -> None:
        self.site, self.name = site, name
        self.log = site.folder / f"{name}.log"
        self.state = site.folder / f"{name}-state"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, crash_at: str | None = None, module: str = "kafka_ratchet", arguments: Sequence[str] = ()) -> None:
        """crash_at: a point of kafka_ratchet.transport.transactions.crash_points, POINT or POINT:N; module: what runs
        the command; arguments: more of them."""
        planned = {"TRANSPORT_CRASH_AT": crash_at} if crash_at else {}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    module,
                    "worker",
                    "-c",
                    str(self.site.config),
                    "--state-folder",
                    str(self.state),
                    *arguments,
                ],
                env={**self.site.environment, **planned},
                cwd=self.site.folder,
                stdout=log,
                stderr=log,
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"{self.name} ended by itself:\n{self.text()[-3000:]}"
            assert time.monotonic() < deadline, f"{self.name}: {what} did not come:\n{self.text()[-3000:]}"
            time.sleep(0.05)

    def text(self) -> str:
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait(30) == -signal.SIGKILL

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            assert self._process.wait(PATIENCE_S) == 0, self.text()[-3000:]

    def end(self) -> None:
        """Whatever state it is in."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(30)


def status_address(worker: WorkerProcess) -> str:
    line = next(line for line in worker.text().splitlines() if "status_address" in line)
    return line.split("url=")[1].strip()


def read_all(broker: str, topic: str) -> dict[int, list[Message]]:
    """All committed records of a topic by partition, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker,
            "group.id": f"read-{topic}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    try:
        found: dict[int, list[Message]] = {}
        for number in consumer.list_topics(topic, 60).topics[topic].partitions:
            place = TopicPartition(topic, number, 0)
            # A new topic may have no leader yet.
            end = ranges_of(consumer, topic, [number], 30, settle_s=PATIENCE_S)[number].end
            consumer.assign([place])
            found[number] = []
            deadline = time.monotonic() + PATIENCE_S
            while end and consumer.position([place])[0].offset < end:
                assert time.monotonic() < deadline, f"{topic}-{number} cannot be read to its end, {end}"
                if (message := consumer.poll(0.5)) is not None:
                    assert message.error() is None, message.error()
                    found[number].append(message)
        return found
    finally:
        consumer.close()
