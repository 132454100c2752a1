"""An input whose name is misspelt: refused where topics are not created, else said for as long as it is empty."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kafka_ratchet.app.settings import load
from kafka_ratchet.producers import create_topic
from kafka_ratchet.topic_log.clients import partition_counts
from tests.app.worker_process import Site, WorkerProcess

STREAM = """
[streams.orders]
input = "{input}"
output = "{app}.out"
dead_letters = "{app}.dead"
identity = "key"
partitions = 1
"""


@pytest.fixture
def app() -> str:
    return f"inputs-{uuid.uuid4().hex[:8]}"


def test_a_missing_input_is_refused_with_the_name_that_was_meant(broker: str, app: str, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": broker})
    meant = f"{app}.orders.raw"
    written = f"{app}.order.raw"
    place = Site(tmp_path, broker, app, "create_topics = false\n" + STREAM.format(app=app, input=written))
    (tmp_path / "orders.txt").write_text("one\n")

    create_topic(admin, meant, partitions=1, timeout_s=60, say=print)
    for command in (["worker"], ["publish", str(tmp_path / "orders.txt"), "--producer", "p"]):
        refused = place.command(*command)
        assert refused.returncode == 2
        assert written in refused.stderr
        assert "create_topics" in refused.stderr
        assert "Traceback" not in refused.stderr
        if command == ["worker"]:
            assert f"input {written!r} (did you mean {meant!r}?)" in refused.stderr
            assert f"output '{app}.out'" in refused.stderr
    assert partition_counts(admin, [written, f"{app}.out", f"{app}.dead"]) == {}


def test_a_stream_says_for_itself_whether_its_topics_are_created(tmp_path: Path) -> None:
    config = tmp_path / "r.toml"
    config.write_text(
        'create_topics = false\n[streams.one]\ninput = "i1"\noutput = "o1"\ndead_letters = "d1"\ncreate_topics = true\n'
        '[streams.two]\ninput = "i2"\noutput = "o2"\ndead_letters = "d2"\n'
    )
    settings = load(config)
    assert settings.creates_topics("one")
    assert not settings.creates_topics("two")


@pytest.mark.matrix
def test_an_input_without_a_record_is_a_problem_until_it_has_one(broker: str, app: str, tmp_path: Path) -> None:
    topic = f"{app}.in"
    place = Site(tmp_path, broker, app, STREAM.format(app=app, input=topic))
    worker = WorkerProcess(place)
    sentence = f"stream orders: its input {topic!r} has never had a record"

    def tables() -> dict[str, list[str]]:
        found: dict[str, list[str]] = json.loads(place.command("tables", "--json").stdout)
        return found

    try:
        worker.start()
        worker.wait_for(lambda: sentence in worker.text(), "the warning")
        overview = tables()
        assert any(sentence in problem for problem in overview["problems"])
        status = place.command("status", "--key", "k", "--sequence", "1")
        assert sentence in status.stdout
        workers: Any = overview["workers"]
        url = workers[0]["url"]
        with urlopen(f"{url}/status") as answer:  # noqa: S310 - the worker's own address
            assert sentence in json.load(answer)["tables"][0]["problem"]

        producer = Producer({"bootstrap.servers": broker})
        producer.produce(topic, b"v", b"k", headers=[("ratchet-sequence", b"1")])
        assert producer.flush(60) == 0
        worker.wait_for(lambda: place.position(topic) == 1, "the commit")
        assert not any(sentence in problem for problem in tables()["problems"])

        def healthy() -> bool:
            with urlopen(f"{url}/status") as answer:  # noqa: S310 - the worker's own address
                return json.load(answer)["tables"][0]["problem"] is None

        worker.wait_for(healthy, "an end of the warning")
        worker.stop()
    finally:
        worker.end()
