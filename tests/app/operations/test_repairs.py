"""Repairs as the documents describe them, on one broker: each ends where `ratchet verify` has nothing to say."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_ratchet.app.names import changelog_name, policy_topic
from kafka_ratchet.app.operations.resume import Resume, ResumeOptions
from kafka_ratchet.app.verify import ExitCode, verify
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.transport.owner import Owner
from kafka_ratchet.transport.transactions.hanging import Hanging
from tests.app.operations.test_resume import IMPATIENT, forwarded, publish, recreate, served, stands_still
from tests.app.worker_process import Site, WorkerProcess

NAMES = ("marked", "behind", "refilled", "renumbered", "corrected")
STREAM = """
[streams.{name}]
input = "{app}.{name}.in"
output = "{app}.{name}.out"
dead_letters = "{app}.{name}.dead"
partitions = 1
"""


@pytest.fixture
def place(broker: str, tmp_path: Path) -> Site:
    app = f"repairs-{uuid.uuid4().hex[:8]}"
    streams = "".join(STREAM.format(app=app, name=name) for name in NAMES)
    return Site(tmp_path, broker, app, "session_timeout_ms = 6000\n" + streams)


@pytest.fixture
def worker(place: Site) -> Iterator[WorkerProcess]:
    started = WorkerProcess(place)
    started.start(module=IMPATIENT)
    yield started
    started.end()


def proven(place: Site, name: str) -> int:
    """Verify a stream that has nothing to be said of it; returns the number of fresh records."""
    report = verify(place.settings, name)
    assert (dict(report.counts), report.exit_code()) == ({}, ExitCode.PROVEN), (report.findings, report.unproven())
    return report.fresh


def resume(place: Site, name: str, *, start: str | None = None, forget: bool = False) -> None:
    """Run `ratchet resume --execute`."""
    decision = Resume(place.settings, place.broker, name, ResumeOptions(start, "to be sure", forget, False), "ann")
    asyncio.run(decision.execute([0]))


def owner_of(place: Site, name: str) -> Owner:
    """Return the newest owner entry of a stream's changelog."""
    topic = changelog_name(place.app, name)
    consumer = Consumer({"bootstrap.servers": place.broker, "group.id": topic, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = None
    while (message := consumer.poll(30)) is not None and message.error() is None:
        if message.key() == b"o":
            found = Owner.unpack(message.value() or b"")
    consumer.close()
    assert found is not None
    return found


@pytest.mark.matrix
def test_repairs_end_at_nothing_to_be_said(place: Site, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = {name: (f"{place.app}.{name}.in", f"{place.app}.{name}.out") for name in NAMES}
    worker.wait_for(lambda: worker.text().count("lane runs") >= len(NAMES), "the lanes")
    for source, _ in topics.values():
        publish(place, source, 1, 30)
    for source, _ in topics.values():
        served(place, worker, source, 30)

    # A producer of another application has a transaction open in the output when a decision is recorded.
    source, output = topics["marked"]
    foreign = Producer({"bootstrap.servers": place.broker, "transactional.id": f"foreign-{place.app}"})
    foreign.init_transactions(60)
    foreign.begin_transaction()
    foreign.produce(output, b"of another")
    assert foreign.flush(30) == 0
    publish(place, source, 31, 50)
    served(place, worker, source, 50)
    resume(place, "marked", start="20")
    foreign.abort_transaction(60)
    publish(place, source, 51, 60)
    served(place, worker, source, 60)
    assert forwarded(place, output) == list(range(1, 61))
    assert proven(place, "marked") == 60

    # An output that was deleted and created again: docs/reference/halted.md has both ways.
    for name in ("behind", "refilled"):
        recreate(place, topics[name][1])
    for name in ("behind", "refilled"):
        halted = f"{place.app}-changelog.{name}, partition 0: its output was"
        worker.wait_for(lambda: halted in worker.text(), "the halt")  # noqa: B023
        publish(place, topics[name][0], 31, 60)
    resume(place, "behind")
    output = topics["refilled"][1]
    early = Producer({"bootstrap.servers": place.broker})
    early.produce(output, b"written before the halt", b"me")
    assert early.flush(30) == 0
    with pytest.raises(SettingsError, match=r"has committed records from offset 0 on.* Add --recount"):
        resume(place, "refilled", start="earliest", forget=True)
    recreate(place, output)  # as that sentence says, while the partition stands still
    resume(place, "refilled", start="earliest", forget=True)
    for name, first in (("behind", 31), ("refilled", 1)):
        source, output = topics[name]
        served(place, worker, source, 60)
        assert forwarded(place, output) == list(range(first, 61))
        publish(place, source, 55, 70)
        served(place, worker, source, 76)
        assert forwarded(place, output) == list(range(first, 71))
        proven(place, name)

    # A producer that begins to count anew (docs/guide/state.md).
    source, output = topics["renumbered"]
    asked = "--stream", "renumbered", "--identity", "me", "--reason", "new device"
    assert place.command("forget", *asked).returncode == 0
    for sequence, answer in ((30, "forgotten"), (31, "unseen")):
        said = place.command("status", "--stream", "renumbered", "--producer", "me", "--sequence", str(sequence))
        assert (said.stdout.split("\n")[0], said.returncode) == (answer, 4 if answer == "forgotten" else 1)
    publish(place, source, 1, 10)
    served(place, worker, source, 40)
    assert forwarded(place, output) == [*range(1, 31), *range(1, 11)]
    proven(place, "renumbered")

    # A transaction that hangs: who has ended it, and why, stands in the changelog.
    hangs = Hanging(topics["corrected"][1], 0, 4711, 0, 0, 30, 600.0)

    async def found(*_: Any, **__: Any) -> list[Hanging]:
        return [hangs]

    async def ended(*_: Any, **__: Any) -> None:
        pass

    for called, done in (("find_hanging", found), ("with_known_ends", found), ("end_hanging", ended)):
        monkeypatch.setattr(f"kafka_ratchet.app.operations.resume.{called}", done)
    decision = Resume(
        place.settings, place.broker, "corrected", ResumeOptions(None, "it was killed", False, False), "ann"
    )
    known = owner_of(place, "corrected")
    assert asyncio.run(decision.open_transactions([0], commit=False)) == [hangs]
    assert decision.unrecorded == {}
    now = owner_of(place, "corrected")
    (recorded,) = now.decisions
    assert (recorded.by, recorded.what, recorded.reason) == ("ann", "resume --open-transaction abort", "it was killed")
    assert msgspec.structs.replace(now, decisions=()) == known
    publish(place, topics["corrected"][0], 31, 40)
    served(place, worker, topics["corrected"][0], 40)
    assert proven(place, "corrected") == 40

    # The policy topic, deleted and created again, while a stream is off.
    off = "policy", "set", "off", "--stream", "corrected"
    assert place.command(*off).returncode == 0
    worker.wait_for(lambda: "set_for=corrected" in worker.text(), "the policy")
    publish(place, topics["corrected"][0], 31, 45)
    served(place, worker, topics["corrected"][0], 55)
    admin = AdminClient({"bootstrap.servers": place.broker})
    admin.delete_topics([policy_topic(place.app)])[policy_topic(place.app)].result(30)
    set_on = place.command("policy", "set", "on", "--stream", "corrected")
    assert set_on.returncode == 0, set_on.stderr
    publish(place, topics["corrected"][0], 46, 50)
    stands_still(worker, "its policy was")
    for name in NAMES:
        resume(place, name)
    served(place, worker, topics["corrected"][0], 60)
    for name in NAMES:
        proven(place, name)
