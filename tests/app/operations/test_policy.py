"""The switch: who wins, what a stranger's record does, and real workers that are switched while they run."""

from __future__ import annotations

import asyncio
import json
import struct
import uuid
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ratchet.app.cli import cli
from kafka_ratchet.app.names import changelog_name
from kafka_ratchet.app.operations.policy_topic import application_sentence, read_policies, write_policy
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.worker.policy import (
    EffectivePolicy,
    Policies,
    PolicyFollower,
    PolicyOrigin,
    StoredPolicy,
    StreamSwitch,
    policy_key,
    policy_value,
)
from kafka_ratchet.app.worker.topics import COMPACTED
from kafka_ratchet.errors import Aborted, PolicyLost, SettingsError
from kafka_ratchet.producers import made_topic
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.changelog import SILENT_S, KnownPosition
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.policy import Policy
from tests.app.worker_process import Site, WorkerProcess, read_all
from tests.transport.kafka_side import until

GLOBAL, STREAM = policy_key(None), policy_key("events")
ON, OFF = policy_value(True), policy_value(False)
UNSEEN = "Kafka shows no changelog of application"
"""Beginning of the hint at an application that never ran."""


def settings(stream: bool | None = None, everywhere: bool | None = None, **changed: Any) -> Settings:
    events = StreamSettings(input="in", output="out", dead_letters="dead", deduplicate=stream)
    other = StreamSettings(input="in2", output="out2", dead_letters="dead")
    return Settings(streams={"events": events, "other": other}, deduplicate=everywhere, **changed)


def fetched(*records: tuple[bytes | None, bytes | None], start: int = 0) -> RecordBatch:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for delta, (key, value) in enumerate(records):
        builder.append(delta, 0, key, value, [])
    data = bytearray(builder.build())
    struct.pack_into(">q", data, 0, start)
    return read_chunk("ratchet-policy", 0, start, bytes(data), [])


@pytest.mark.parametrize(
    ("said", "stream", "everywhere", "expected"),
    [
        ([], None, None, (True, "default")),
        ([], None, False, (False, "global setting")),
        ([(GLOBAL, ON)], None, False, (True, "global policy")),
        ([(GLOBAL, ON)], False, False, (False, "stream setting")),
        ([(GLOBAL, OFF), (STREAM, ON)], False, False, (True, "stream policy")),
        ([(STREAM, OFF)], True, True, (False, "stream policy")),
        ([(STREAM, OFF), (STREAM, None)], True, False, (True, "stream setting")),
        ([(STREAM, OFF), (STREAM, None)], None, None, (True, "default")),
        ([(GLOBAL, OFF), (GLOBAL, None)], None, None, (True, "default")),
        ([(policy_key("other"), OFF)], None, None, (True, "default")),
    ],
)
def test_row_11_the_most_specific_wins_and_unset_is_not_off(
    said: list[tuple[bytes, bytes | None]], stream: bool | None, everywhere: bool | None, expected: tuple[bool, str]
) -> None:
    policies = Policies(settings(stream, everywhere))
    if said:
        policies.apply(fetched(*said))
    assert policies.effective("events") == expected
    assert policies.position == len(said)


def test_the_position_counts_what_can_concern_the_stream() -> None:
    policies = Policies(settings())
    policies.apply(fetched((STREAM, OFF), (policy_key("other"), ON), (b"?", b""), start=5))
    assert policies.policy("events") == Policy(False, 6)
    assert policies.policy("other") == Policy(True, 7)
    policies.apply(fetched((GLOBAL, OFF), start=8))
    assert policies.policy("events") == Policy(False, 9)
    assert policies.policy("other") == Policy(True, 9)


@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b"global",
        b"\xff\xfe",
        b'["global", 1]',
        b'["stream"]',
        b'["stream", 7]',
        b'["stream", "../x"]',
        b'["stream", "events\\u001b[2J"]',
        b'{"stream": "events"}',
        b"[" * 250,
        b'["stream", "' + b"e" * 300 + b'"]',
    ],
)
def test_a_record_that_is_no_policy_is_ignored(key: bytes | None) -> None:
    policies = Policies(settings())
    policies.apply(fetched((STREAM, OFF), (key, ON), (GLOBAL, ON)))
    assert policies.effective("events") == EffectivePolicy(False, PolicyOrigin.STREAM_POLICY)
    assert set(policies.stored) == {"events", None}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"off",
        b"null",
        b"[]",
        b'{"deduplicate": "off"}',
        b'{"deduplicate": 0}',
        b'{"deduplicate": null}',
        b'{"deduplicate": false, "more": 1}',
        b"[" * 1000,
        b'{"deduplicate": false}' + b" " * 1024,
        b"\xff",
    ],
)
def test_a_policy_that_cannot_be_read_unsets_as_after_compaction(value: bytes) -> None:
    """Reach the same state with and without the record before it, which compaction removes."""
    before_compaction, after_it = Policies(settings()), Policies(settings())
    before_compaction.apply(fetched((STREAM, OFF), (STREAM, value)))
    after_it.apply(fetched((STREAM, value), start=1))
    for policies in (before_compaction, after_it):
        assert policies.effective("events") == EffectivePolicy(True, PolicyOrigin.DEFAULT)
        assert policies.policy("events") == Policy(True, 2)


async def test_a_policy_topic_that_ends_too_early_is_said(broker: str) -> None:
    place = settings(app=f"policy-{uuid.uuid4().hex[:8]}")
    assert write_policy(place, broker, "events", False) == 0
    cluster = Cluster(client_options(broker, {}))
    await cluster.start(30)
    follower = PolicyFollower(cluster, place)
    follower.start()
    try:
        await follower.known_to(1)
        assert follower.policies.policy("events") == Policy(False, 1)
        with pytest.raises(
            PolicyLost, match="ends at offset 1, but the policies last applied to the partition reach up to"
        ):
            await follower.known_to(2)
    finally:
        await follower.stop()
        await cluster.close()


async def test_a_policy_whose_null_was_compacted_away_in_a_silence_is_not_kept(broker: str) -> None:
    place = settings(app=f"policy-{uuid.uuid4().hex[:8]}")
    write_policy(place, broker, "other", False)
    cluster = Cluster(client_options(broker, {}))
    await cluster.start(30)
    follower = PolicyFollower(cluster, place)
    switch = StreamSwitch(follower, "events")
    follower.start()
    try:
        await switch.known_to(1)
        before = follower.policies
        # As a follower holds it that was cut off before the policy was unset.
        before.stored["events"] = StoredPolicy(False, 1)
        assert switch.policy == Policy(False, 1)
        follower._changelog._answered = (-2 * SILENT_S, -2 * SILENT_S)
        await until(lambda: follower.policies is not before, "another reading of the topic")
        with pytest.raises(Aborted):
            _ = switch.policy
        await switch.known_to(1)
        assert switch.policy == Policy(True, 0)
    finally:
        await follower.stop()
        await cluster.close()


async def test_deduplication_stays_off_only_while_the_topic_can_be_read() -> None:
    follower = PolicyFollower(Cluster(client_options("127.0.0.1:1", {})), settings())
    follower._complete, switch = True, StreamSwitch(follower, "events")
    await switch.known_to(0)
    now_s = [0.0]
    follower._changelog._answered, follower._changelog._passed = (0.0, 0.0), lambda: (now_s[0], 0.0)
    for said, number in ((True, 1), (False, 2)):
        now_s[0] = 0.0
        follower.policies.stored["events"] = StoredPolicy(said, number)
        assert switch.policy == Policy(said, number)
        now_s[0] = SILENT_S + 1
        if said:  # nothing passes that was counted
            assert switch.policy == Policy(said, number)
    with pytest.raises(Aborted, match=r"for 3601 s. Deduplication of stream events was off before that"):
        _ = switch.policy
    with pytest.raises(Aborted, match="could not be read"):
        await switch.known_to(0)


@pytest.mark.parametrize("what", ["created again", "ends before what was read", "was read in another epoch"])
async def test_nobody_is_told_a_policy_until_a_topic_that_changed_is_read_anew(
    broker: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_ratchet.transport.client.cluster.GONE_AFTER_S", 0.5)
    place = settings(app=f"policy-{uuid.uuid4().hex[:8]}")
    write_policy(place, broker, "events", False)
    cluster = Cluster(client_options(broker, {}))
    await cluster.start(30)
    follower = PolicyFollower(cluster, place)
    switch = StreamSwitch(follower, "events")
    follower.start()
    expected = Policy(False, 1)

    def is_refused() -> bool:
        try:
            assert switch.policy == Policy(False, 1)
        except Aborted:
            return True
        return False

    try:
        await switch.known_to(1)
        assert not is_refused()
        if what == "created again":
            topic, admin = f"{place.app}-policy", AdminClient({"bootstrap.servers": broker})
            admin.delete_topics([topic])[topic].result(30)
            while not made_topic(admin, NewTopic(topic, 1, 1, config=COMPACTED), 30):
                pass  # the deletion is still under way
            await asyncio.to_thread(write_policy, place, broker, "other", False)
            expected = Policy(True, 0)
        elif what == "ends before what was read":
            follower.policies.position = 99
        else:
            follower._changelog._seen = KnownPosition(1, 7)
        await until(is_refused, "nobody to be told a policy")
        await switch.known_to(0)
        assert switch.policy == expected
    finally:
        await follower.stop()
        await cluster.close()


TOML = """
session_timeout_ms = 6000
commit_interval_ms = 20
[streams.events]
input = "{name}.in"
output = "{name}.out"
dead_letters = "{name}.dead"
partitions = 1
"""


class Switched(Site):
    """A stream of one partition, and what was sent to it."""

    def __init__(self, folder: Path, broker: str) -> None:
        app = f"policy-{uuid.uuid4().hex[:8]}"
        super().__init__(folder, broker, app, TOML.format(name=app))
        self.sent = 0

    def send(self, *sequences: int | None) -> None:
        producer = Producer({"bootstrap.servers": self.broker, "enable.idempotence": True})
        for sequence in sequences:
            headers: list[tuple[str, bytes]] = [("ratchet-producer", b"a")]
            if sequence is not None:
                headers.append(("ratchet-sequence", b"%d" % sequence))
            producer.produce(f"{self.app}.in", f"{sequence}", "k", 0, headers=headers)
        assert producer.flush(30) == 0
        self.sent += len(sequences)

    def policy(self, *arguments: str) -> dict[str, Any]:
        done = self.command("policy", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def values(self, topic: str) -> list[bytes | None]:
        return [message.value() for message in read_all(self.broker, f"{self.app}.{topic}")[0]]


@pytest.fixture
def place(broker: str, tmp_path: Path) -> Switched:
    return Switched(tmp_path, broker)


def test_rows_12_13_21_switched_while_workers_run(place: Switched) -> None:
    first, second = WorkerProcess(place, "first"), WorkerProcess(place, "second")

    def sent_and_read(worker: WorkerProcess, *sequences: int | None) -> None:
        place.send(*sequences)
        worker.wait_for(lambda: place.position(f"{place.app}.in") == place.sent, "the commit")

    try:
        first.start()
        first.wait_for(lambda: "lane runs" in first.text(), "the lane")
        sent_and_read(first, 1, 2, 2, None)
        answer = place.policy("set", "off", "--stream", "events")
        assert answer["streams"]["events"] == {
            "deduplicate": False,
            "origin": "stream policy",
            "policy": False,
            "setting": None,
        }
        assert application_sentence(place.settings, place.broker) == "Workers apply it with their next batches"
        first.wait_for(lambda: "set_for=events" in first.text(), "the policy")
        sent_and_read(first, 1, 2, 7, None)  # an older one, a repeat, a new one and one without a sequence: all pass
        first.kill()
        # Somebody else, without a store, goes on as it was; what it judges by is in Kafka.
        second.start()
        sent_and_read(second, 2, None)
        write_policy(place.settings, place.broker, "events", None)
        second.wait_for(lambda: second.text().count("set_for=events") == 2, "the policy")
        sent_and_read(second, 2, 7, 7, 3, None)  # the table stood still at 2: 7 is new to it, and passes once more
        # Asked while it is on again, of a worker that took the partition over.
        said: list[str] = []

        def is_told() -> bool:  # a group that rebalances, after a worker has stood still, has no owner to ask
            asked = place.command("status", "--producer", "a", "--sequence", "8")
            said[:] = asked.stdout.splitlines()
            return asked.returncode == 1

        second.wait_for(is_told, "its answer")
        assert said[0] == "unseen"
        assert "6 records of the stream were forwarded unjudged" in "\n".join(said)
        listed = place.command("producers", "--json")
        assert listed.returncode == 0, listed.stderr
        (a,) = next(t for t in json.loads(listed.stdout)["topics"] if t["stream"] == "events")["producers"]
        assert (a["name"], a["persisted"], a["pushed"], a["published"]) == ("a", 7, 7, None)
        assert (a["fresh"], a["duplicate"]) == (1, 3)  # since it took over, and while it judged
        second.stop()
    finally:
        first.end()
        second.end()
    judged, unjudged, again = ["1", "2"], ["1", "2", "7", "None", "2", "None"], ["7"]
    assert place.values("out") == [value.encode() for value in judged + unjudged + again]
    assert place.values("dead") == [b"None", b"None"]

    done = place.command("verify")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 fresh, 4 duplicate, 2 invalid in the input" in done.stdout
    assert "deduplication was off in partition 0 for offsets 4 to 9" in done.stdout
    assert "6 records forwarded unjudged there" in done.stdout


@pytest.mark.matrix
def test_what_has_no_sequence_is_not_switched_on(place: Switched) -> None:
    def refused(*arguments: str) -> str:
        done = place.command("policy", "set", *arguments)
        assert done.returncode == 2
        return done.stderr

    assert made_topic(AdminClient({"bootstrap.servers": place.broker}), NewTopic(f"{place.app}.in", 1, 1), 30)
    place.send(*[None] * 5, 1, 2)
    said = refused("on", "--stream", "events")
    assert f"stream events: 5 of the 7 newest records of {place.app}.in have no usable identity and sequence" in said
    assert "Nothing was changed" in said
    assert "5 of the 7" in refused("on", "--global")
    assert place.policy("get")["streams"]["events"]["origin"] == "default"
    place.policy("set", "off", "--stream", "events")
    place.policy("set", "on", "--global")  # which is not about a stream with a policy of its own
    place.policy("unset", "--stream", "events")
    place.send(*range(3, 13))  # some that cannot be judged are what dead letters are for
    assert place.policy("set", "on", "--stream", "events")["streams"]["events"]["origin"] == "stream policy"


def test_a_command_that_says_neither_or_both_is_refused(place: Switched) -> None:
    for arguments in (["set", "off"], ["set", "off", "--stream", "events", "--global"], ["unset"]):
        with pytest.raises(SettingsError, match="--stream NAME or --global"):
            cli(["policy", *arguments, "--config", str(place.config)], standalone_mode=False)
    with pytest.raises(SettingsError, match="no stream 'nobody'"):
        cli(["policy", "set", "off", "--stream", "nobody", "--config", str(place.config)], standalone_mode=False)
    topics = AdminClient({"bootstrap.servers": place.broker}).list_topics(timeout=60).topics
    assert f"{place.app}-policy" not in topics


def test_row_21_set_get_and_unset(broker: str) -> None:
    place = settings(app=f"policy-{uuid.uuid4().hex[:8]}")
    assert read_policies(place, broker).effective("events") == (True, "default")  # no topic yet
    assert write_policy(place, broker, None, False) == 0
    assert write_policy(place, broker, "other", True) == 1
    found = read_policies(place, broker)
    assert (found.effective("events"), found.effective("other")) == ((False, "global policy"), (True, "stream policy"))
    assert write_policy(place, broker, None, None) == 2
    assert read_policies(place, broker).effective("events") == (True, "default")


def test_a_written_policy_without_workers_promises_no_effect_now(
    place: Switched, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["policy", "set", "off", "--stream", "events", "--config", str(place.config)]
    cli(command, standalone_mode=False)
    printed = capsys.readouterr().out
    assert f"No worker of application {place.app} runs now; the policy applies when one starts" in printed
    assert f"{UNSEEN} {place.app}, so it has most likely never run there: check app and bootstrap" in printed
    admin, changelog = AdminClient({"bootstrap.servers": place.broker}), changelog_name(place.app, "events")
    assert made_topic(admin, NewTopic(changelog, 1, 1, config=COMPACTED), 30)
    cli(command, standalone_mode=False)
    printed = capsys.readouterr().out
    assert "No worker of application" in printed
    assert UNSEEN not in printed


@pytest.mark.parametrize("ran", [False, True])
def test_an_application_without_streams_in_the_settings_may_have_run(broker: str, ran: bool) -> None:
    """The changelogs may be of a program's internal streams, which commands do not know."""
    place = settings(app=f"policy-{uuid.uuid4().hex[:8]}")
    if ran:
        admin, changelog = AdminClient({"bootstrap.servers": broker}), changelog_name(place.app, "of-a-program")
        assert made_topic(admin, NewTopic(changelog, 1, 1, config=COMPACTED), 30)
    else:
        place = Settings(app=place.app)
    assert UNSEEN not in application_sentence(place, broker)


def test_a_policy_is_written_where_the_group_cannot_be_described() -> None:
    place = settings(app="anyone", kafka={"security.protocol": "carrier-pigeon"})
    assert "whether any run is unknown: " in application_sentence(place, "127.0.0.1:1")
