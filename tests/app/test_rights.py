"""The page of rights, taken at its word: every part runs as a user of its own that has what the page gives it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.app.local.ports import free_port
from tests.app.worker_process import ROOT, Site, WorkerProcess

PAGE = ROOT / "docs" / "guide" / "rights.md"
ROW = re.compile(r"^\| (\w+) \| (topic|group|transactional id) \| `([\w/-]+)(\*?)` \| ([\w, ]+) \|", re.MULTILINE)
PLAIN_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
EVENTS = 50
MAY_NOT, JOINED = "this user may not read the group shop. Give it", "partitions assigned"
TOML = """
[streams.events]
input = "events"
output = "events-once"
dead_letters = "events-invalid"

[sink]
path = "{table}"
"""


class Right(NamedTuple):
    user: str
    kind: ResourceType
    name: str
    pattern: ResourcePatternType
    operation: AclOperation


def rights() -> list[Right]:
    found = []
    for user, kind, name, prefixed, operations in ROW.findall(PAGE.read_text("utf-8")):
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        for operation in operations.split(", "):
            what = ResourceType[kind.upper().replace(" ", "_")]
            found.append(Right(user, what, name, pattern, AclOperation[operation.upper()]))
    return found


class Secured(NamedTuple):
    """A Kafka that refuses what nobody has allowed. Without a password one is its administrator."""

    administrator: str
    users: str


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    own, users, controller = (f"127.0.0.1:{free_port()}" for _ in range(3))
    passwords = " ".join(f'user_{user}="{user}-secret"' for user in {right.user for right in rights()})
    listeners = f"PLAINTEXT://{own},SASL_PLAINTEXT://{users}"
    options: dict[str, Any] = {
        "listeners": f"{listeners},CONTROLLER://{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{PLAIN_LOGIN} required {passwords};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    port = int(own.rpartition(":")[2])
    with EmbeddedBroker(tmp_path / "kafka", port=port, voters={1: controller}, node_id=1, options=options):
        yield Secured(own, users)


class SecuredSite(Site):
    """Commands run as `user`."""

    user = ""

    @property
    def environment(self) -> dict[str, str]:
        return {
            **super().environment,
            "RATCHET_KAFKA__SECURITY__PROTOCOL": "SASL_PLAINTEXT",
            "RATCHET_KAFKA__SASL__MECHANISM": "PLAIN",
            "RATCHET_KAFKA__SASL__USERNAME": self.user,
            "RATCHET_KAFKA__SASL__PASSWORD": f"{self.user}-secret",
        }

    def run(self, user: str, *arguments: str) -> str:
        self.user = user
        done = self.command(*arguments)
        assert done.returncode == 0, f"{user}: {done.stdout}{done.stderr}"
        return done.stdout


def allow(admin: AdminClient, *given: Right) -> None:
    bindings = [
        AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for user, kind, name, pattern, operation in given
    ]
    for made in admin.create_acls(bindings).values():
        made.result(60)


def has_said(worker: WorkerProcess, words: str, times: int) -> bool:
    """Return whether a worker has said words so many times."""
    return worker.text().count(words) >= times


def forbid(admin: AdminClient, right: Right) -> None:
    """Take it away again."""
    user, kind, name, pattern, operation = right
    one = AclBindingFilter(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
    (gone,) = admin.delete_acls([one]).values()
    assert len(gone.result(60)) == 1


@pytest.mark.matrix
def test_every_part_does_its_work_with_the_rights_of_the_page_and_no_others(secured: Secured, tmp_path: Path) -> None:
    site = SecuredSite(tmp_path, secured.users, "shop", TOML.format(table=tmp_path / "table"))
    (tmp_path / "administrator").mkdir()
    administrator = Site(tmp_path / "administrator", secured.administrator, "shop", "")
    file = tmp_path / "events.ndjson"
    file.write_text("".join(json.dumps({"number": number}) + "\n" for number in range(EVENTS)))
    publish = ("publish", str(file), "--producer", "till-1", "--topic", "events")
    admin = AdminClient({"bootstrap.servers": secured.administrator})
    topics = [NewTopic(topic, 2, 1) for topic in ("events", "events-once", "events-invalid")]
    for made in admin.create_topics(topics).values():
        made.result(60)

    site.user = "producer"
    refused = site.command(*publish)
    assert refused.returncode == 2, refused.stderr
    assert "Topic authorization failed. Give this user the rights of docs/guide/rights.md" in refused.stderr

    given = rights()
    of_the_group = Right("worker", ResourceType.GROUP, "shop", ResourcePatternType.LITERAL, AclOperation.READ)
    assert of_the_group in given
    allow(admin, *(right for right in given if right != of_the_group))

    site.run("producer", *publish)
    site.user = "worker"
    worker = WorkerProcess(site)
    try:
        for life in (1, 2):  # whoever comes second looks at what the first has left open
            ran = worker.text().count("lane runs")
            worker.start()
            if life == 1:
                # It waits for what it lacks, and says so.
                worker.wait_for(lambda: MAY_NOT in worker.text(), "the missing right")
                allow(admin, of_the_group)
            worker.wait_for(partial(has_said, worker, "lane runs", ran + 2), "two lanes")
            if life == 1:
                # It is taken away while the worker runs, which its heartbeats come to know; and given back.
                said, joined = worker.text().count(MAY_NOT), worker.text().count(JOINED)
                forbid(admin, of_the_group)
                worker.wait_for(partial(has_said, worker, MAY_NOT, said + 1), "the right that is gone")
                allow(admin, of_the_group)
                worker.wait_for(partial(has_said, worker, JOINED, joined + 1), "the group")
            worker.wait_for(lambda: administrator.position("events") == EVENTS, "the commit")
            if life == 1:
                worker.stop()
        assert "this user has a worker's rights" in site.run("worker", "doctor")
        site.user = "page"
        looked = site.command("doctor")
        assert looked.returncode == 1, looked.stdout
        assert "topic events-once: describe_configs, write" in looked.stdout
        assert "group shop: read" in looked.stdout
        tables = json.loads(site.run("page", "tables", "--json"))
        assert tables["streams"][0]["totals"]["keys"] == 1
        (producer,) = json.loads(site.run("page", "producers", "--json"))["topics"][0]["producers"]
        assert producer["name"] == "till-1"
        site.run("sink", "sink", "--mode", "batch")
        verified = site.run("page", "verify", "--results")
        assert f"{EVENTS} fresh" in verified
        site.user = "worker"
        worker.stop()
    finally:
        worker.end()
