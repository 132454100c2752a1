"""`ratchet forget` from outside: while a worker runs, while none does, and what a topic of strangers can ask for."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ratchet.app.cli.forget import _sentences as sentences
from kafka_ratchet.app.operations.forget import ForgetRequests, _sent_to, is_unknown
from kafka_ratchet.app.operations.missing_topics import prepare_new
from kafka_ratchet.app.status.group import Group
from kafka_ratchet.app.status.model import Lookup
from kafka_ratchet.app.verify import verify
from kafka_ratchet.app.worker.forget_requests import ReadRequests, request_key, request_value, stream_and_id
from kafka_ratchet.errors import BrokerUnavailable
from kafka_ratchet.producers import made_topic
from kafka_ratchet.transport.policy import ForgetRequest, Requests
from tests.app.worker_process import Site, WorkerProcess, read_all

STREAM = """
session_timeout_ms = 6000
[streams.events]
input = "{name}.in"
output = "{name}.out"
dead_letters = "{name}.dead"
partitions = 2
"""


@pytest.fixture
def place(broker: str, tmp_path: Path) -> Site:
    app = f"forget-{uuid.uuid4().hex[:8]}"
    return Site(tmp_path, broker, app, STREAM.format(name=app))


@pytest.fixture
def worker(place: Site) -> Iterator[WorkerProcess]:
    process = WorkerProcess(place)
    yield process
    process.end()


def publish(place: Site, name: bytes, *numbers: int) -> None:
    producer = Producer({"bootstrap.servers": place.broker, "enable.idempotence": True})
    for number in numbers:
        headers = [("ratchet-producer", name), ("ratchet-sequence", b"%d" % number)]
        producer.produce(f"{place.app}.in", b"%d" % number, partition=0, headers=headers)
    assert producer.flush(30) == 0


def forwarded(place: Site) -> list[int]:
    return [int(message.value() or b"") for message in read_all(place.broker, f"{place.app}.out")[0]]


@pytest.mark.matrix
def test_a_producer_begins_anew_while_a_worker_runs_and_while_none_does(place: Site, worker: WorkerProcess) -> None:
    worker.start()
    worker.wait_for(lambda: "worker runs" in worker.text(), "the start")
    publish(place, b"me", 1, 2, 10**18)
    worker.wait_for(lambda: place.position(f"{place.app}.in") == 3, "three records")
    # One wrong number blocks the identity: put back while the worker is at work.
    done = place.command("forget", "--identity", "me", "--above", "2", "--reason", "a wrong number", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["applied"] == [
        {"partition": 0, "before": 10**18, "after": 2, "position": 3},
        {"partition": 1, "before": None, "after": None, "position": 0},
    ]
    policies = read_all(place.broker, f"{place.app}-policy")[0]
    typo = place.command("forget", "--identity", "em", "--reason", "a typing error")
    assert (typo.returncode, "no requested partition knows" in typo.stderr) == (4, True)
    assert len(read_all(place.broker, f"{place.app}-policy")[0]) == len(policies)
    publish(place, b"me", 2, 3)
    worker.wait_for(lambda: place.position(f"{place.app}.in") == 5, "the numbers after it")
    told = place.command("status", "--producer", "me", "--sequence", "3", "--partition", "0")
    assert told.returncode == 0
    assert (
        "from input offset 3 on; its last sequence was 1000000000000000000, and then 2. Reason: a wrong number"
        in told.stdout
    )
    worker.stop()
    # Nobody has it: the next owner applies it, before any record.
    done = place.command("forget", "--identity", "me", "--reason", "began anew")
    assert (done.returncode, "not applied yet: partitions 0, 1 (no worker runs)" in done.stdout) == (3, True)
    publish(place, b"me", 1, 1)
    worker.start()
    worker.wait_for(lambda: place.position(f"{place.app}.in") == 7, "the records after it")
    worker.stop()
    assert forwarded(place) == [1, 2, 10**18, 3, 1]
    report = verify(place.settings)
    assert (report.ok, report.fresh, report.duplicate) == (True, 5, 2), report.findings
    assert [(number, edit.before, edit.after) for number, edit in report.edits] == [(0, 10**18, 2), (0, 3, -1)]


@pytest.mark.parametrize("failure", [BrokerUnavailable("Kafka is away"), KeyboardInterrupt()])
def test_a_failure_after_the_write_says_that_the_request_is_written(
    place: Site, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    """Workers will apply it, so it may not be called refused."""
    admin = AdminClient({"bootstrap.servers": place.broker})
    made_topic(admin, NewTopic(f"{place.app}.in", 2, 1), 30)
    prepare_new(place.settings, place.broker, "events")
    forgetting = ForgetRequests(place.settings, place.broker, "events")
    request, partitions = forgetting.request(b"me", None, "began anew")

    async def fail(*_: object) -> Group:
        raise failure

    monkeypatch.setattr("kafka_ratchet.app.operations.forget.describe_group", fail)
    outcome = forgetting.write(request, partitions, 0.0)
    assert (outcome.applied, outcome.pending, outcome.members) == ([], [0, 1], None)
    (line,) = sentences(outcome)
    assert f"Request {request.id} is written" in line
    assert (str(failure) or "interrupted") in line
    written = [message.key() for message in read_all(place.broker, f"{place.app}-policy")[0]]
    assert request_key("events", request.id) in written


FORGET = ForgetRequest("0" * 16, b"\xffme", 7, "now", "me@here", "so", 1, "id", (4, 9))


def test_a_request_is_read_as_it_was_written_and_can_be_taken_back() -> None:
    read = ReadRequests()
    key = stream_and_id(json.loads(request_key("events", FORGET.id)))
    assert key == ("events", FORGET.id)
    read.take(*key, request_value(FORGET), 4)
    assert (read.of("events"), read.of("others")) == (Requests((FORGET,), 5), Requests())
    read.take(*key, None, 9)
    assert read.of("events") == Requests((), 10)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[" * 10_000,
        b"x" * 600_000,
        b"{}",
        request_value(FORGET).replace(b'"ff', b'"zz'),
        request_value(FORGET._replace(identity=b"x" * 1025)),
        request_value(FORGET._replace(above=-1)),
        request_value(FORGET._replace(above=2**63)),
    ],
)
def test_what_cannot_be_read_asks_for_nothing(value: bytes) -> None:
    read = ReadRequests()
    with pytest.raises(ValueError, match=r"."):
        read.take("events", FORGET.id, value, 0)
    assert read.of("events").forgets == ()


@pytest.mark.parametrize(
    "key", [["forget"], ["forget", "events"], ["forget", "a b", "0" * 16], ["forget", "events", 1]]
)
def test_a_key_that_nobody_writes_is_refused(key: list[object]) -> None:
    with pytest.raises(ValueError, match="the key of a request to forget must be"):
        stream_and_id(key)


@pytest.mark.parametrize(
    ("ids", "sent_to"),
    [({}, 100), ({("in", 0): "same"}, 100), ({("in", 0): "gone"}, 3), ({("in", 1): "gone"}, 100)],
)
def test_a_position_in_an_input_that_was_deleted_does_not_say_that_nothing_waits(
    ids: dict[tuple[str, int], str], sent_to: int
) -> None:
    group = Group("Stable", committed={("in", 0): 100}, topic_ids=ids)
    assert _sent_to(group, ("in", 0), "same", 3) == sent_to
    assert _sent_to(group, ("in", 2), "same", 3) == 3


@pytest.mark.parametrize(
    ("asked", "not_asked", "is_so"), [([], [], False), ([0, 1], [], True), ([0], [1], False), ([], [0, 1], False)]
)
def test_an_identity_is_unknown_only_if_a_worker_was_asked(asked: list[int], not_asked: list[int], is_so: bool) -> None:
    looked = Lookup("events", b"a".hex(), None, [], asked, not_asked, [])
    assert is_unknown(looked, None) == is_so
