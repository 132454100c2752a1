"""A real worker over ids without a number: killed on the way, exact by verify, and found by their parts."""

from __future__ import annotations

import json
import signal
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.app.worker_process import PATIENCE_S, Site, WorkerProcess, read_all
from tests.app.written_stream import verified_twice

TOML = """
commit_interval_ms = 50
session_timeout_ms = 6000
[streams.hooks]
input = "{app}.in"
output = "{app}.out"
dead_letters = "{app}.dead"
identity = ["header:ce_source", "header:ce_id"]
sequence = "none"
inactive_after_s = 604800
partitions = 1
[streams.orders]
input = "{app}.orders"
output = "{app}.orders-once"
dead_letters = "{app}.orders-dead"
identity = "field:order.id"
sequence = "none"
partitions = 1
"""
IDS = [(source, b"%d" % number) for number in range(40) for source in (b"a", b"a1", b"b")]
"""("a", "11") and ("a1", "1") would be one, were they only written one behind the other."""


def publish(broker: str, app: str, ids: list[tuple[bytes, bytes]]) -> None:
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
    for source, number in ids:
        producer.produce(f"{app}.in", b"hook", source, headers=[("ce_source", source), ("ce_id", number)])
        order = json.dumps({"order": {"id": f"{source.decode()}/{number.decode()}"}})
        producer.produce(f"{app}.orders", order, None)
    producer.produce(f"{app}.in", b"no id", b"a", headers=[("ce_source", b"a")])
    producer.produce(f"{app}.orders", b'{"order": {"id": 1.5}}', None)
    assert producer.flush(30) == 0


@pytest.mark.matrix
def test_ids_are_exact_whatever_crashes_and_are_found_by_their_parts(broker: str, tmp_path: Path) -> None:
    app = f"ids-{uuid.uuid4().hex[:8]}"
    site = Site(tmp_path, broker, app, TOML.format(app=app))
    worker = WorkerProcess(site)
    inputs, number = [f"{app}.in", f"{app}.orders"], len(IDS) + 1
    by_parts = ("status", "--stream", "hooks", "--identity", "a1", "--identity")
    try:
        worker.start(crash_at="produced:2")
        worker.wait_for(lambda: f"{app}-changelog.orders" in worker.text(), "the topics")
        publish(broker, app, IDS)
        assert worker.process.wait(PATIENCE_S) == -signal.SIGKILL
        worker.start()
        worker.wait_for(lambda: sum(map(site.position, inputs)) >= 2 * number, "what was sent")
        publish(broker, app, [*reversed(IDS)])
        worker.wait_for(lambda: sum(map(site.position, inputs)) >= 4 * number, "what was sent again")
        known = json.loads(site.command(*by_parts, "1", "--json").stdout)
        never = site.command(*by_parts, "never", "--json")
        refused = site.command(*by_parts, "1", "--sequence", "0")
    finally:
        worker.end()
    assert (known["answer"], known["identity_hex"]) == ("persisted", b"\x02a1\x011".hex())
    assert known["recognised_for_s"] == 604_800
    assert (never.returncode, json.loads(never.stdout)["answer"]) == (1, "unseen")
    assert (refused.returncode, "have no sequence" in refused.stderr) == (2, True)
    assert "every identity is kept for ever" in worker.text()
    for name, topic in (("hooks", f"{app}.out"), ("orders", f"{app}.orders-once")):
        report = verified_twice(site.settings, name)
        assert report.is_proven, report.findings
        assert bool(report.columns) == (name == "hooks"), report.singly
        assert (report.fresh, report.duplicate, report.invalid) == (len(IDS), len(IDS), 2)
        assert sum(len(records) for records in read_all(broker, topic).values()) == len(IDS)
    reasons = {
        dict(letter.headers())["ratchet-reason"]
        for topic in (f"{app}.dead", f"{app}.orders-dead")
        for letters in read_all(broker, topic).values()
        for letter in letters
    }
    assert reasons == {b"identity-missing", b"identity-not-text"}
