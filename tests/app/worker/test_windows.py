"""A real worker with a reorder window: killed in a transaction, switched off and on, and exact to the record."""

from __future__ import annotations

import signal
import time
import uuid
from pathlib import Path

from confluent_kafka import Producer

from kafka_ratchet.app.operations.policy_topic import write_policy
from kafka_ratchet.app.verify import verify
from tests.app.worker_process import PATIENCE_S, Site, WorkerProcess, read_all

TOML = """
commit_interval_ms = 20
session_timeout_ms = 6000
[streams.events]
input = "{app}.in"
output = "{app}.out"
dead_letters = "{app}.dead"
reorder_window = 64
late = "dead-letter"
conflicts = "count"
partitions = 1
"""

BEFORE = ["a 1", "b 5", "a 3", "a 2", "b 4", "a 2", "b 4", "a 100"]
KILLED = ["a 36", "a 35", "a 100 otherwise", "a 99", "b 3", "a 99", "b 5"]
"""100 - 36 is the window, and 35 is below it; the first owner's bitmap says of 99 and 3 that they are new."""
OFF = ["a 98", "a 98", "b 3"]
AGAIN = ["a 98", "a 98", "b 3", "a 2", "a 101", "a 36", "a 37"]
"""Records that pass again: those forwarded while it was off are not in the window; 36 is below it now."""


def test_what_comes_out_of_order_passes_once_whatever_happens_to_the_worker(broker: str, tmp_path: Path) -> None:
    app = f"windows-{uuid.uuid4().hex[:8]}"
    site, sent = Site(tmp_path, broker, app, TOML.format(app=app)), list[str]()
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
    worker = WorkerProcess(site)

    def send(records: list[str]) -> None:
        for record in records:
            name, sequence = record.split()[:2]
            headers = [("ratchet-producer", name.encode()), ("ratchet-sequence", sequence.encode())]
            producer.produce(f"{app}.in", record, name, 0, headers=headers)
        assert producer.flush(30) == 0
        sent.extend(records)

    def read() -> bool:
        return site.position(f"{app}.in") == len(sent)

    def switch(deduplicate: bool | None, times: int) -> None:
        write_policy(site.settings, broker, "events", deduplicate)
        worker.wait_for(lambda: worker.text().count("set_for=events") == times, "the policy")

    try:
        worker.start(crash_at="produced:2")
        worker.wait_for(lambda: "lane runs" in worker.text(), "the lane")
        send(BEFORE)
        while worker.process.poll() is None and not read():  # it may already have been two transactions
            time.sleep(0.05)
        send(KILLED)
        assert worker.process.wait(PATIENCE_S) == -signal.SIGKILL
        worker.start()
        worker.wait_for(read, "what was sent")
        switch(False, 1)
        send(OFF)
        worker.wait_for(read, "what is not judged")
        switch(None, 2)
        send(AGAIN)
        worker.wait_for(read, "what is judged again")
        worker.stop()
    finally:
        worker.end()
    report = verify(site.settings, "events")
    assert report.is_proven, report.findings
    judged = report.fresh, report.duplicate, report.late, report.conflict, report.invalid
    assert (*judged, report.unjudged) == (12, 6, 3, 1, 0, 3)
    assert (report.delivered, report.dead_letters, report.intervals) == (15, 3, [(0, 15, 18)])
    passed = ["a 1", "b 5", "a 3", "a 2", "b 4", "a 100", "a 36", "a 99", "b 3", *OFF, "a 98", "a 101", "a 37"]
    assert [each.value().decode() for each in read_all(broker, f"{app}.out")[0]] == passed
    assert [each.value().decode() for each in read_all(broker, f"{app}.dead")[0]] == ["a 35", "a 2", "a 36"]
