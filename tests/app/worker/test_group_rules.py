"""A worker that goes by other rules than its group: refused by name, and nothing is read or written by it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.settings_sections import StreamSettings
from kafka_ratchet.app.status.group import Group
from kafka_ratchet.app.worker import group_rules
from kafka_ratchet.app.worker.group_rules import rules_of, why, works_otherwise
from kafka_ratchet.transport.assignor import protocol_of
from tests.app.worker_process import Site, WorkerProcess, read_all

STREAM = """
[streams.s]
input = "{app}.in"
output = "{app}.out"
dead_letters = "{app}.dead"
identity = "{identity}"
partitions = 2
"""


def settings(**changes: Any) -> Settings:
    stream = {"input": "in", "output": "out", "dead_letters": "dead"}
    return Settings(streams={"s": StreamSettings.model_validate({**stream, **changes})})


def publish(broker: str, app: str, sequence: int) -> None:
    """A record of each partition, without a key: an invalid one where the identity is the key."""
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
    for partition in range(2):
        headers = [("ratchet-producer", b"me"), ("ratchet-sequence", b"%d" % sequence)]
        producer.produce(f"{app}.in", b"%d" % sequence, partition=partition, headers=headers)
    assert producer.flush(60) == 0


@pytest.mark.matrix
def test_a_worker_with_another_identity_is_refused_until_the_others_are_gone(broker: str, tmp_path: Path) -> None:
    app = f"rules-{uuid.uuid4().hex[:8]}"
    sites = []
    for name, identity in (("running", "producer"), ("refused", "key")):
        (tmp_path / name).mkdir()
        sites.append(Site(tmp_path / name, broker, app, STREAM.format(app=app, identity=identity)))
    running, refused = (WorkerProcess(site, site.folder.name) for site in sites)
    try:
        running.start()
        running.wait_for(lambda: running.text().count("lane runs") == 2, "two lanes")
        refused.start()
        refused.wait_for(lambda: "the group refuses this worker" in refused.text(), "the refusal")
        assert "streams.s.identity is 'producer' there and 'key' here" in refused.text()
        publish(broker, app, 1)
        running.wait_for(lambda: sites[0].position(f"{app}.in") == 2, "the commits")
        assert "partitions assigned" not in refused.text()
        assert [len(found) for found in read_all(broker, f"{app}.out").values()] == [1, 1]
        assert not any(read_all(broker, f"{app}.dead").values())
        running.stop()
        refused.wait_for(lambda: "partitions assigned" in refused.text(), "its turn")
        refused.stop()
    finally:
        running.end()
        refused.end()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sequence": "field:n"}, "streams.s.sequence is 'header:ratchet-sequence' there and 'field:n' here"),
        ({"sequence_form": "text"}, "streams.s.sequence_form is 'guess' there and 'text' here"),
        ({"forward": False}, "streams.s.forward is not set there and 'False' here"),
        ({"duplicates": "again"}, "streams.s.duplicates is not set there and 'again' here"),
        ({"dead_letters": "other"}, "streams.s.dead_letters is 'dead' there and 'other' here"),
    ],
)
def test_each_rule_is_named(changes: dict[str, Any], said: str) -> None:
    theirs = rules_of(settings())
    ours = rules_of(settings(**changes))
    assert protocol_of(theirs) != protocol_of(ours)
    assert said in why(ours, Group("Stable", members=1, protocol=protocol_of(theirs), rules=[theirs]))


def test_what_does_not_change_a_verdict_is_no_rule() -> None:
    assert rules_of(settings()) == rules_of(settings(compression="zstd", max_identities=100))


def test_another_stream_and_an_earlier_version_are_named() -> None:
    ours: dict[str, str] = {}
    theirs = rules_of(settings())
    group = Group("Stable", members=2, protocol=protocol_of(theirs), rules=[theirs])
    assert "streams.s.input is 'in' there and not set here" in why(ours, group)
    assert "its 2 members run an earlier version" in why(theirs, Group("Stable", members=2, protocol="faust"))


async def test_a_refused_worker_is_told_about_partitions_that_it_still_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A former member's lanes go on, and a command has no partitions."""
    theirs = rules_of(settings(forward=False))
    group = Group("Stable", members=1, protocol=protocol_of(theirs), rules=[theirs])

    async def described(*_: object) -> Group:
        return group

    monkeypatch.setattr(group_rules, "describe_group", described)
    monkeypatch.setattr(group_rules, "sentence_of_strangers", lambda *_: "")
    said = await group_rules.refusal("nowhere", settings())
    assert "streams.s.forward is 'False' there and not set here. Until it joins, this worker gets no partition" in said
    assert "go on until a member takes them over" in said
    assert "this worker" not in why(rules_of(settings()), group)
    assert "this worker" not in why(rules_of(settings()), Group("Stable", members=1, protocol="ratchet-0123456789ab"))


def test_rules_that_are_not_those_of_the_protocol_are_not_believed() -> None:
    forged = {"streams.s.input": "x"}
    said = why(rules_of(settings()), Group("Stable", members=1, protocol="ratchet-0123456789ab", rules=[forged]))
    assert "streams." not in said


def test_agents_and_internal_streams_of_the_members_do_not_keep_a_command_from_deciding() -> None:
    """`ratchet resume` has the settings, and no program."""
    ours = rules_of(settings())

    def group(theirs: dict[str, str], **changes: Any) -> Group:
        told = {"members": 1, "protocol": protocol_of(theirs), "rules": [theirs], **changes}
        return Group("Stable", **told)

    assert not works_otherwise(ours, group(ours))
    assert not works_otherwise(ours, group({**ours, "agents of s": "add_up", "streams.by-user.input": "repartition"}))
    assert works_otherwise(ours, group({**ours, "streams.s.input": "elsewhere"}))
    assert works_otherwise(ours, group({"streams.other.input": "in"}))
    assert works_otherwise(ours, group({**ours, "agents of s": "add_up"}, rules=[]))
    assert not works_otherwise(ours, group({}, members=0))
