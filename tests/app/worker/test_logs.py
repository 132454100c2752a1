"""A real worker that logs JSON: every line of its process is an object, and a lane's lines say whose they are."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

from tests.app.worker_process import Site, WorkerProcess

TOML = """log_format = "json"
[streams.events]
input = "{0}"
output = "{1}"
dead_letters = "{2}"
sequence = "function:extract_badly:sequence"
"""


def test_every_line_is_an_object_and_says_whose_it_is(
    tmp_path: Path, broker: str, new_topic: Callable[..., str]
) -> None:
    (tmp_path / "extract_badly.py").write_text("def sequence(record):\n    raise ValueError(record.value)\n")
    topics = [new_topic(2) for _ in range(3)]
    app = f"logs-{uuid.uuid4().hex[:8]}"
    site = Site(tmp_path, broker, app, TOML.format(*topics))
    sender = Producer({"bootstrap.servers": broker, "log_level": 0})
    for number in range(3):
        sender.produce(topics[0], b"%d" % number, partition=1, headers=[("ratchet-producer", b"till")])
    assert sender.flush(30) == 0
    worker = WorkerProcess(site)
    worker.start()
    try:
        worker.wait_for(lambda: worker.text().count("lane runs") == 2, "two lanes")
        worker.wait_for(lambda: site.position(topics[0]) == 3, "the commit")
        doctor = site.command("doctor", "--json", "--state-folder", str(worker.state))
        worker.stop()
    finally:
        worker.end()
    lines = [json.loads(line) for line in worker.text().splitlines()]
    of_lanes = [line for line in lines if line["event"] == "lane runs"]
    assert sorted(line["partition"] for line in of_lanes) == [0, 1]
    failed = [line for line in lines if line["event"] == "the extractor of the settings failed on a record"]
    assert [line["offset"] for line in failed] == [0, 1, 2]
    for line in (*of_lanes, *failed):
        assert (line["stream"], line["topic"]) == ("events", topics[0])
        assert line["transaction"] == f"{app}-lane/{topics[0]}/{line['partition']}"
        assert line["worker"] == f"{line['worker'].partition(':')[0]}:{worker.process.pid}"
    assert not [line for line in lines if line["event"] == "partitions assigned" and "partition" in line]

    told = [each["sentence"] for each in json.loads(doctor.stdout)["checks"]]
    assert doctor.returncode == 0, told
    assert any("has format 1, and this version reads 1" in each for each in told)
    assert any("a worker uses it now" in each for each in told)
    assert any("Kafka's newest stamp is" in each for each in told)
