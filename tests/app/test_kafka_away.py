"""While Kafka is away: whoever only looks says so at once and by address, and a worker's log can still be read."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafka_ratchet.app.cli import run
from kafka_ratchet.app.local.embedded_kafka import LET_IN_AGAIN_SOON, EmbeddedBroker
from kafka_ratchet.app.local.ports import free_port
from kafka_ratchet.app.log_setup import KafkaAway
from kafka_ratchet.app.status.answers import WorkerStatus
from kafka_ratchet.app.status.model import merge, without_kafka
from tests.app.worker.known_worker import partition, settings_for, table
from tests.app.worker_process import Site, WorkerProcess

STREAM = """
[streams.orders]
input = "{app}.in"
output = "{app}.out"
dead_letters = "{app}.dead"
identity = "key"
partitions = 1
"""

LOOKING = [
    ["tables"],
    ["tables", "--identity", "k"],
    ["status", "--key", "k", "--sequence", "1"],
    ["producers"],
    ["policy", "get"],
    ["policy", "set", "off", "--global"],
    ["verify"],
    ["sink", "status"],
]


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_commands_that_look_say_the_address_in_one_sentence(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap = f"127.0.0.1:{free_port()}"
    monkeypatch.chdir(tmp_path)
    Path("ratchet.toml").write_text(f'bootstrap = "{bootstrap}"\n' + STREAM.format(app="away"))
    assert run(command) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"ratchet: Kafka at {bootstrap} does not answer (")
    assert err.count("\n") == 1


def test_a_lane_is_not_shown_as_running_without_a_kafka() -> None:
    answers = {"http://w:1": WorkerStatus("w", [table(partition(0), partition(1, state="halted", error="why"))])}
    (stream,) = merge(settings_for("127.0.0.1:1"), answers, None, {}, {"events": "c"})
    assert [row.state for row in stream.partitions] == ["running", "halted"]
    assert [row.state for row in without_kafka(stream).partitions] == ["no Kafka", "halted"]


@pytest.mark.matrix
def test_a_worker_says_now_and_then_that_kafka_is_away_and_goes_on(tmp_path: Path) -> None:
    app = f"away-{uuid.uuid4().hex[:8]}"
    with EmbeddedBroker(options=LET_IN_AGAIN_SOON) as broker:
        place = Site(tmp_path, broker.bootstrap, app, STREAM.format(app=app))
        worker = WorkerProcess(place)
        try:
            worker.start()
            worker.wait_for(lambda: "lane runs" in worker.text(), "a lane")
            broker.kill()
            # It comes after five seconds, by when the libraries have said a hundred things.
            worker.wait_for(lambda: "still trying" in worker.text(), "a word of the lane")
            broker.start()
            producer = Producer({"bootstrap.servers": broker.bootstrap})
            producer.produce(f"{app}.in", b"v", b"k", headers=[("ratchet-sequence", b"1")])
            assert producer.flush(60) == 0
            worker.wait_for(lambda: place.position(f"{app}.in") == 1, "the commit")
            worker.stop()
        finally:
            worker.end()
        lines = worker.text().splitlines()
        ours = [line for line in lines if "a Kafka broker does not answer; trying again" in line]
        theirs = [line for line in lines if "Unable connect" in line or "Unable to update" in line]
        assert len(ours) == len([line for line in ours if "reason=" in line]) > 0
        assert set(theirs) <= set(ours)


@pytest.mark.parametrize(
    ("logger", "text", "passes"),
    [
        ("aiokafka.conn", "Unable connect to node with id 1: [Errno 111] Connect call failed", False),
        ("aiokafka", "Unable to update metadata from [1]", False),
        ("aiokafka.consumer.fetcher", "Failed fetch messages from 1: NodeNotReadyError: not ready", False),
        ("aiokafka.consumer.group_coordinator", "OffsetCommit failed for group g due to group error", True),
        ("faust.app", "Crashed reason=ZeroDivisionError", True),
        ("kafka_ratchet.transport.lane", "Unable to update metadata from [1]", True),
    ],
)
def test_only_what_says_that_a_broker_is_away_is_left_out(logger: str, text: str, passes: bool) -> None:
    record = logging.LogRecord(logger, logging.ERROR, __file__, 1, text, (), None)
    assert KafkaAway().filter(record) is passes
