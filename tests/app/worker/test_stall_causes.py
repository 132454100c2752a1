"""Each cause of a standstill is injected into a real Kafka, and named wherever one looks."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from faults.kafka import EmbeddedKafka
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.app.local.ports import free_port
from tests.app.worker.test_watching import read
from tests.app.worker.test_worker import publish
from tests.app.worker_process import PATIENCE_S, Site, WorkerProcess
from tests.topic_config import set_topic_config

CAUSES: Final = {
    "open": "open-transaction",
    "reading": "halted",
    "writing": "halted",
    "input-gone": "halted",
    "output-gone": "halted",
    "replaced": "halted",
    "small": "halted",
    "agent": "agent",
}
"""Cause by stream. Each stream is kept from moving in one way."""
WORDS: Final = {
    "open": r"wait for an open transaction \(transactional id 'till', producer id \d+, open since 20",
    "reading": "this user may not see the topic: TopicAuthorizationFailed.*docs/guide/rights.md",
    "writing": r"writing\.out: this user may not",
    "input-gone": "the topic does not exist any more",
    "output-gone": "the topic does not exist any more",
    "replaced": r"belongs to topic id|replaced\.in \(id .*\) now",
    "small": "max.message.bytes",
    "agent": "offset 0: agent keeps",
}
AWAY_CAUSES: Final = {"input-away": "no-leader", "output-away": "no-leader"}
AWAY_WORDS: Final = {
    "input-away": "input-away.in, partition 0 has no leader",
    "output-away": "output-away.out, partition 0 has no leader",
}
LOST_CAUSES: Final = ("coordinator", "no-leader", "no-answer", "replicas")
FAST: Final = {"broker.session.timeout.ms": "6000", "auto.leader.rebalance.enable": "false"}
OPTIONS: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:nobody",
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    """A Kafka that takes access rights away."""
    with EmbeddedBroker(options=OPTIONS) as broker:
        yield broker


def toml(app: str, streams: list[str], port: int, replication: int = 1) -> str:
    head = f"session_timeout_ms = 6000\ntransaction_timeout_ms = 120000\nweb = {{status_port = {port}}}\n"
    return head + "".join(
        f'[streams.{name}]\ninput = "{app}.{name}.in"\noutput = "{app}.{name}.out"\n'
        f'dead_letters = "{app}.{name}.dead"\npartitions = 1\nreplication = {replication}\n'
        for name in streams
    )


def forbid(admin: AdminClient, kind: ResourceType, name: str, operation: AclOperation) -> None:
    acl = AclBinding(kind, name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation, AclPermissionType.DENY)
    admin.create_acls([acl])[acl].result(30)


def delete(admin: AdminClient, topic: str) -> None:
    admin.delete_topics([topic])[topic].result(30)


@contextmanager
def page(site: Site) -> Iterator[int]:
    """Serve the page of a site; yields its port."""
    port = free_port()
    command = [sys.executable, "-m", "kafka_ratchet", "web", "--config", str(site.config), "--port", str(port)]
    with (site.folder / "page.log").open("wb") as log:
        process = subprocess.Popen(command, env=site.environment, cwd=site.folder, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "The page is at" not in (site.folder / "page.log").read_text("utf-8"):
            assert process.poll() is None, (site.folder / "page.log").read_text("utf-8")
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def stalls_of(streams: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Stall by stream, of the JSON of `ratchet tables` and of the page."""
    rows = {each["stream"]: each["partitions"][0]["stalled"] for each in streams if each["partitions"]}
    return {name: stall for name, stall in rows.items() if stall is not None}


def exported(port: int) -> dict[str, str]:
    """Cause by stream, of a worker's metrics."""
    rows = re.findall(
        r'^ratchet_partition_stalled\{cause="(.+?)",.*?stream="(.+?)"\} 1\.0$', read(port, "/metrics"), re.M
    )
    return {stream: cause for cause, stream in rows}


def check(site: Site, port: int, web: int, expected: dict[str, str], words: dict[str, str]) -> None:
    """Compare worker, commands and page with the causes by stream, and the sentences with their words."""
    shown = urllib.request.urlopen(f"http://127.0.0.1:{web}/index.json", timeout=PATIENCE_S).read()
    tables = site.command("tables", "--json").stdout
    for found in (json.loads(tables), json.loads(shown)):
        causes = {name: stall["cause"] for name, stall in stalls_of(found["streams"]).items()}
        assert causes == expected
        texts = {name: stall["text"] for name, stall in stalls_of(found["streams"]).items()}
        assert [name for name, text in texts.items() if not re.search(words[name], text)] == [], texts
    assert exported(port) == expected
    doctor = site.command("doctor")
    said = " ".join(doctor.stdout.split())
    missing = [name for name, text in words.items() if not re.search(f"stream {name}: .*{text}", said)]
    assert (doctor.returncode, missing) == (1, []), said


@pytest.mark.long
def test_causes_at_one_partition(kafka: EmbeddedBroker, tmp_path: Path) -> None:
    broker, port = kafka.bootstrap, free_port()
    app = f"stalls-{uuid.uuid4().hex[:8]}"
    streams = [*CAUSES, "moves"]
    site = Site(tmp_path, broker, app, toml(app, streams, port))
    admin = AdminClient({"bootstrap.servers": broker})
    for future in admin.create_topics([NewTopic(f"{app}.{name}.in", 1, 1) for name in streams]).values():
        future.result(30)
    for name in streams:
        if name != "agent":
            publish(broker, f"{app}.{name}.in", [("me", 1)])
    worker = WorkerProcess(site)
    worker.start(arguments=["--app", "tests.app.worker.stalling_program:app"])
    try:
        for name in streams:
            if name != "agent":
                worker.wait_for(lambda name=name: site.position(f"{app}.{name}.in") == 1, f"the commit of {name}")  # type: ignore[misc]
        foreign = Producer({"bootstrap.servers": broker, "transactional.id": "till", "transaction.timeout.ms": 300_000})
        foreign.init_transactions(30)
        foreign.begin_transaction()
        foreign.produce(f"{app}.open.in", b"2", b"me")
        assert foreign.flush(30) == 0
        forbid(admin, ResourceType.TOPIC, f"{app}.reading.in", AclOperation.READ)
        forbid(admin, ResourceType.TOPIC, f"{app}.writing.out", AclOperation.WRITE)
        set_topic_config(admin, f"{app}.small.out", "max.message.bytes", "60")
        delete(admin, f"{app}.input-gone.in")
        delete(admin, f"{app}.output-gone.out")
        delete(admin, f"{app}.replaced.in")
        with page(site) as web:
            admin.create_topics([NewTopic(f"{app}.replaced.in", 1, 1)])[f"{app}.replaced.in"].result(30)
            for name in streams:
                if name not in ("input-gone", "open"):
                    publish(broker, f"{app}.{name}.in", [("me", 2)])
            worker.wait_for(lambda: exported(port).items() >= CAUSES.items(), "the causes")
            check(site, port, web, CAUSES, WORDS)
    finally:
        worker.end()


@pytest.mark.long
def test_causes_of_brokers_that_are_away(tmp_path: Path) -> None:
    """One of three brokers dies, then a second one: no majority decides about leaders any more."""
    with EmbeddedKafka(tmp_path / "kafka", nodes=3, workers=0, options=FAST) as kafka:
        first = kafka.nodes[0].bootstrap
        app, port = f"stalls-{uuid.uuid4().hex[:8]}", free_port()
        streams = [*AWAY_CAUSES, "moves"]
        site = Site(tmp_path, kafka.bootstrap, app, toml(app, streams, port, replication=3))
        admin = AdminClient({"bootstrap.servers": first})
        topics = {
            "input-away": {"in": [3], "out": [1]},
            "output-away": {"in": [1], "out": [3]},
            "replicas": {"in": [1], "out": [1, 3]},
            "moves": {"in": [1, 2], "out": [1, 2]},
        }
        made = [
            NewTopic(
                f"{app}.{name}.{end}", 1, replica_assignment=[nodes], config={"min.insync.replicas": str(len(nodes))}
            )
            for name, ends in topics.items()
            for end, nodes in ends.items()
        ]
        for future in admin.create_topics(made).values():
            future.result(30)
        for name in streams:
            publish(kafka.bootstrap, f"{app}.{name}.in", [("me", 1)])
        worker = WorkerProcess(site)
        worker.start()
        lines = tmp_path / "lines"
        lines.write_text("one\ntwo\n", "utf-8")
        try:
            for name in streams:
                worker.wait_for(lambda name=name: site.position(f"{app}.{name}.in") == 1, f"the commit of {name}")  # type: ignore[misc]
            with page(site) as web:
                kafka.nodes[2].kill()
                publish(first, f"{app}.output-away.in", [("me", 2)])
                worker.wait_for(lambda: exported(port).items() >= AWAY_CAUSES.items(), "the causes")
                check(site, port, web, AWAY_CAUSES, AWAY_WORDS)
                for topic, cause in (("input-away.in", "no-leader"), ("replicas.out", "replicas")):
                    said = stuck_publisher(site, lines, f"{app}.{topic}")
                    assert f"({cause}): {app}.{topic}, partition 0" in said
                kafka.nodes[1].kill()
                worker.wait_for(lambda: exported(port).get("moves", "") in LOST_CAUSES, "the cause of the rest")
        finally:
            worker.end()


def stuck_publisher(site: Site, lines: Path, topic: str) -> str:
    """Return what `ratchet publish` says within some seconds, and end it."""
    command = [sys.executable, "-m", "kafka_ratchet", "publish", str(lines), "--producer", "p", "--topic", topic]
    log = site.folder / f"{topic}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--config", str(site.config)], env=site.environment, cwd=site.folder, stdout=file, stderr=file
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "Kafka acknowledges nothing" not in log.read_text("utf-8"):
            assert process.poll() is None, log.read_text("utf-8")
            assert time.monotonic() < deadline, log.read_text("utf-8")
            time.sleep(0.1)
        return log.read_text("utf-8")
    finally:
        process.kill()
        process.wait(30)


@pytest.mark.long
def test_causes_of_a_worker_and_its_group(kafka: EmbeddedBroker, tmp_path: Path) -> None:
    broker, port = kafka.bootstrap, free_port()
    app = f"stalls-{uuid.uuid4().hex[:8]}"
    site = Site(tmp_path, broker, app, toml(app, ["moves"], port))
    admin = AdminClient({"bootstrap.servers": broker})
    topic = f"{app}.moves.in"
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    publish(broker, topic, [("me", 1)])
    worker = WorkerProcess(site)
    worker.start()

    def named() -> dict[str, Any]:
        return stalls_of(json.loads(site.command("tables", "--json").stdout)["streams"]).get("moves", {})

    try:
        worker.wait_for(lambda: site.position(topic) == 1, "the commit")
        publish(broker, topic, [("me", 2)])
        worker.wait_for(lambda: site.position(topic) == 2, "the commit")
        worker.process.send_signal(signal.SIGSTOP)
        publish(broker, topic, [("me", 3)])
        found = named()
        assert found["cause"] in ("worker-silent", "no-worker"), found
        worker.process.send_signal(signal.SIGCONT)
        worker.wait_for(lambda: site.position(topic) == 3, "the commit")
        worker.stop()
        publish(broker, topic, [("me", 4)])
        assert named()["cause"] == "no-worker"
        doctor = site.command("doctor")
        assert "stands still (no-worker)" in " ".join(doctor.stdout.split())
        stranger = Consumer({"bootstrap.servers": broker, "group.id": app})
        stranger.subscribe([topic])
        try:
            deadline = time.monotonic() + PATIENCE_S
            while named().get("cause") != "strangers":
                stranger.poll(0.5)
                assert time.monotonic() < deadline
        finally:
            stranger.close()
    finally:
        worker.end()
