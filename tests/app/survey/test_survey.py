"""A survey of a real topic, held against an independent count of what was sent to it."""

from __future__ import annotations

import asyncio
import json
import random
import tomllib
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_ratchet.app.cli import run
from kafka_ratchet.app.settings import StreamSettings
from kafka_ratchet.app.survey.counting import Counts
from kafka_ratchet.app.survey.looking import TopicSample, choose
from kafka_ratchet.app.survey.reading import ReadRange, count_all, open_topic
from kafka_ratchet.rule.identity import MAX_IDENTITY_BYTES
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.security import client_options
from tests.app.survey.plain_count import PlainCount, PlainRecord, plain_count, plain_order
from tests.app.written_stream import NOW_MS

PARTITIONS = 3
EVENTS = 4_000
HOSTILE: list[dict[str, Any]] = [
    {"value": b"not json"},
    {"value": None, "key": b"k"},
    {"value": b"[" * 100_000},
    {"value": b'{"event":' * 20_000},
    {"value": b'{"event":{"id":"' + b"x" * 200_000},
    {"value": b"\xff\xfe", "headers": [("ce_id", b"\xff" * 100_000)]},
    {"value": b'{"event":{"id":"' + b"y" * 5_000 + b'"}}', "headers": [("ce_id", b"1"), ("ce_id", b"1")]},
    {"value": b"", "headers": [("\x1b[31m", b"1"), ("", None), ("ratchet-sequence", b"12345678901234567890")]},
]


class Sent:
    """A topic, and what a reader of committed records finds in it."""

    def __init__(self, broker: str, topic: str) -> None:
        self.topic, self.records = topic, list[PlainRecord]()
        self._producer = Producer(
            {"bootstrap.servers": broker, "linger.ms": 20, "compression.type": "zstd", "message.max.bytes": 10**7}
        )

    def send(self, partition: int, timestamp_ms: int, value: bytes | None, key: bytes | None, headers: Any) -> None:
        def delivered(error: object, message: Any) -> None:
            assert error is None
            kept = PlainRecord(partition, message.offset(), timestamp_ms, key, value, tuple(headers))
            self.records.append(kept)

        self._producer.produce(
            self.topic, value, key, partition, timestamp=timestamp_ms, headers=headers, on_delivery=delivered
        )
        self._producer.poll(0)

    def flush(self) -> list[PlainRecord]:
        """The records by partition and offset."""
        assert self._producer.flush(60) == 0
        self.records.sort()
        return self.records


def abort(broker: str, topic: str, record: PlainRecord) -> None:
    """A transaction that is rolled back repeats a record: no duplicate."""
    producer = Producer({"bootstrap.servers": broker, "transactional.id": f"survey-{uuid.uuid4()}"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, record.value, record.key, record.partition, headers=list(record.headers))
    producer.flush(60)
    producer.abort_transaction(60)


def send_events(sent: Sent) -> None:
    """Events with every kind of identity, of four producers whose numbers are now and then late, and some sent again.

    A hundredth comes again in another partition, a hundredth of the repeats with another value.
    """
    choose = random.Random(19)
    numbers = dict.fromkeys("abcd", 0)
    late: list[tuple[Any, ...]] = []
    before: list[tuple[Any, ...]] = []
    for n in range(EVENTS):
        at = NOW_MS - (EVENTS - n) * 20_000
        draw = choose.random()
        if draw < 0.1 and before:
            partition, value, key, headers = choose.choice(before[-200:])
            if choose.random() < 0.01:
                value = value[:-1] + b',"attempt":2}'
            if choose.random() < 0.1:
                partition = (partition + 1) % PARTITIONS
            sent.send(partition, at, value, key, headers)
            continue
        if draw < 0.15 and late:
            event = late.pop(choose.randrange(len(late)))
        else:
            producer = choose.choice("abcd")
            numbers[producer] += 1
            value = json.dumps({"event": {"id": str(uuid.UUID(int=choose.getrandbits(128)))}, "n": n % 7}).encode()
            headers = [
                ("ce_source", producer.encode()),
                ("ce_id", b"%d" % numbers[producer]),
                ("ratchet-producer", producer.encode()),
                ("ratchet-sequence", numbers[producer].to_bytes(8, "big")),
            ]
            event = ("abcd".index(producer) % PARTITIONS, value, b"user-%d" % choose.randrange(50), headers)
            if choose.random() < 0.05:
                late.append(event)
                continue
        before.append(event)
        sent.send(event[0], at, *event[1:])


def surveyed(capsys: pytest.CaptureFixture[str], broker: str, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["survey", *words, "--bootstrap", broker, "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def agrees(told: dict[str, Any], plain: PlainCount) -> None:
    assert told["one_of"] == 1
    assert told["records"] == plain.records
    assert told["distinct"] == plain.distinct
    assert told["duplicates"] == plain.equal + plain.conflicts
    assert told["conflicts"] == plain.conflicts
    assert told["across_partitions"] == plain.across + plain.across_conflicts
    assert told["age_most_ms"] == plain.age_most
    for name, counts in (("ages_ms", plain.ages), ("distances", plain.distances)):
        assert {each["most"].bit_length(): each["records"] for each in told[name] if each["records"]} == dict(counts)


def header(record: PlainRecord, name: str) -> bytes | None:
    found = [value for each, value in record.headers if each == name]
    return found[0] or None if len(found) == 1 else None


def groups_of(admin: AdminClient) -> set[str]:
    return {each.group_id for each in admin.list_consumer_groups(request_timeout=60).result().valid}


def event_id(record: PlainRecord) -> str | None:
    try:
        found: str | None = json.loads(record.value or b"")["event"]["id"]
    except (ValueError, RecursionError):
        return None
    return found


def short_event_id(record: PlainRecord) -> str | None:
    """Return the id of an event if a worker takes it: a longer one is a dead letter."""
    found = event_id(record)
    return None if found is None or len(found.encode()) > MAX_IDENTITY_BYTES else found


def cloud_event(record: PlainRecord) -> Any:
    found = header(record, "ce_source"), header(record, "ce_id")
    return None if None in found else found


def test_a_survey_counts_what_an_independent_count_does_and_leaves_nothing_behind(
    broker: str, new_topic: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    topic = new_topic(PARTITIONS, max_message_bytes=10**7)
    sent = Sent(broker, topic)
    send_events(sent)
    for number, odd in enumerate(HOSTILE):
        sent.send(number % PARTITIONS, NOW_MS, odd["value"], odd.get("key"), odd.get("headers", []))
    records = sent.flush()
    abort(broker, topic, records[10])
    admin = AdminClient({"bootstrap.servers": broker})
    topics, groups = set(admin.list_topics(timeout=60).topics), groups_of(admin)

    told = surveyed(capsys, broker, topic, "--plot", str(tmp_path / "found.svg"))

    assert told["records"] == len(records)
    assert told["whole"]
    assert told["not_json"] == sum(event_id(record) is None for record in records)
    by = {json.dumps([each["identity"], each["sequence"]]): each for each in told["identities"]}
    for identity, of in (
        ("whole", lambda record: (record.key, record.value, record.headers)),
        ("field:event.id", short_event_id),
        (["header:ce_source", "header:ce_id"], cloud_event),
    ):
        agrees(by[json.dumps([identity, None])], plain_count(records, of))
    numbered = [each for each in records if header(each, "ratchet-producer")]
    found = by[json.dumps(["producer", "header:ratchet-sequence"])]

    def number_of(record: PlainRecord) -> int:
        return int.from_bytes(header(record, "ratchet-sequence") or b"", "big")

    # All of it is still there: a number below the first one is late, too.
    plain = plain_order(numbered, lambda record: header(record, "ratchet-producer"), number_of)
    assert found["numbers"]["rises"] == plain.rises
    assert found["numbers"]["late"] == plain.late + plain.before
    assert found["numbers"]["late_most"] >= plain.late_most > 0
    assert "key" in {each["place"] for each in told["no_identities"]}

    proposed = tomllib.loads(told["proposal"]["toml"])["streams"]
    [section] = proposed.values()
    StreamSettings(**section)
    assert section["input"] == topic
    assert section["repartition_by"] == "identity"
    assert (tmp_path / "found.svg").read_text().startswith("<?xml")

    # A part of it: the last records, one partition, from a time on.
    last = surveyed(capsys, broker, topic, "--partitions", "1", "--limit", "500", "--identity", "key")
    assert not last["whole"]
    assert last["identities"][1]["identity"] == "key"
    of_one = [record for record in records if record.partition == 1]
    # Control records of the transaction that was rolled back are offsets, too.
    assert 500 - 2 <= last["records"] <= 500
    assert last["ranges"][0]["begin"] == of_one[-last["records"]].offset
    agrees(last["identities"][0], plain_count(of_one[-last["records"] :], lambda each: each[3:]))
    agrees(last["identities"][1], plain_count(of_one[-last["records"] :], lambda each: each.key))
    since = surveyed(capsys, broker, topic, "--since", "1h")
    assert 0 < since["records"] < len(records)
    # A time after the last record of each partition is no partition without a leader.
    assert surveyed(capsys, broker, topic, "--since", "0s")["records"] == 0

    # In words, for people.
    assert run(["survey", topic, "--bootstrap", broker]) == 0
    assert "settings that fit the records read" in capsys.readouterr().out

    assert set(admin.list_topics(timeout=60).topics) - topics <= {"__consumer_offsets"}
    assert groups_of(admin) == groups


def test_a_topic_that_is_not_there_is_not_created(broker: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"nowhere-{uuid.uuid4().hex}"
    assert run(["survey", name, "--bootstrap", broker]) == 2
    assert f"topic '{name}' does not exist" in capsys.readouterr().err
    assert name not in AdminClient({"bootstrap.servers": broker}).list_topics(timeout=60).topics


async def test_what_retention_deletes_meanwhile_is_counted_and_left_out(
    broker: str, new_topic: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    name = new_topic(2)
    cluster = Cluster(client_options(broker, {}))
    await cluster.start(60)
    try:
        topic = await open_topic(cluster, name, 60, 64 << 20)
        sent = Sent(broker, name)
        for number in range(60):
            sent.send(0, NOW_MS, b"%d" % number, None, [])
        sent.send(1, NOW_MS, b"x", None, [])
        sent.flush()
        await topic.choose(ReadRange())
        admin = AdminClient({"bootstrap.servers": broker})
        for partition, before in ((0, 40), (1, 1)):
            [done] = admin.delete_records([TopicPartition(name, partition, before)]).values()
            done.result(60)
        counts = Counts(choose(TopicSample()), 1 << 20, NOW_MS, 1)
        moved = []
        await count_all(topic, counts, lambda offsets, records: moved.append(offsets))
        assert (counts.records, topic.deleted, sum(moved)) == (20, 41, 61)
    finally:
        await cluster.close()
    empty = new_topic(1)
    assert await asyncio.to_thread(run, ["survey", empty, "--bootstrap", broker]) == 0
    assert "0 records are too few" in capsys.readouterr().out
