"""Webhooks with UUIDs, with the settings of the guide: senders and workers are killed, and each event counts once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from kafka_ratchet.producers import create_topic
from tests.app.worker.webhook_sender import event_of
from tests.app.worker_process import ROOT, Site, WorkerProcess, read_all

EVENTS = 4_000
GUIDE = ROOT / "docs" / "guide" / "kinds.md"


def settings_of_the_guide(app: str) -> str:
    """The section of webhooks, word for word; topics get a name of their own, since the tests share a Kafka."""
    section = GUIDE.read_text("utf-8").split("## Webhooks with a UUID\n")[1]
    toml = section.split("```toml\n")[1].split("```")[0]
    assert 'sequence = "none"' in toml
    return "session_timeout_ms = 6000\n" + toml.replace('"web.hooks', f'"{app}.hooks')


@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_event_once_and_why_explains_any_record(broker: str, tmp_path: Path) -> None:
    app = f"web-{uuid.uuid4().hex[:8]}"
    site = Site(tmp_path, broker, app, settings_of_the_guide(app))
    topic = f"{app}.hooks"
    create_topic(AdminClient({"bootstrap.servers": broker}), topic, partitions=2, timeout_s=60, say=print)
    worker = WorkerProcess(site)
    command = [sys.executable, "-m", "tests.app.worker.webhook_sender", broker, topic]

    def sender(first: int, end: int, seed: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, str(first), str(end), str(seed)], cwd=ROOT)

    try:
        worker.start(crash_at="offered:4")
        worker.wait_for(lambda: "lane runs" in worker.text(), "its first partition")
        killed = [sender(0, EVENTS // 2, 1), sender(EVENTS // 2, EVENTS, 2)]
        worker.process.wait(120)
        for each in killed:
            each.kill()
            each.wait(30)
        worker.start()
        # Whoever hands events over starts two senders anew: they send what was sent, and what was not.
        again = [sender(0, EVENTS // 2, 3), sender(EVENTS // 2, EVENTS, 4)]
        assert [each.wait(300) for each in again] == [0, 0]
        sent = sum(map(len, read_all(broker, topic).values()))
        worker.wait_for(lambda: site.position(topic) >= sent, "what was sent")
    finally:
        worker.end()
    out = [each.value() for part in read_all(broker, f"{app}.hooks.once").values() for each in part]
    assert len(out) == EVENTS
    assert sorted(out) == sorted(event_of(number)[1] for number in range(EVENTS))
    verified = site.command("verify", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    told = json.loads(verified.stdout.splitlines()[-1])
    assert (told["proven"], told["fresh"], told["duplicate"]) == (True, EVENTS, sent - EVENTS)
    for number in random.Random(app).sample(range(EVENTS), 3):
        name = event_of(number)[0]
        why = site.command("why", "--identity", name)
        assert why.returncode == 0, why.stderr
        arrivals = [each for part in read_all(broker, topic).values() for each in part if each.key() == name.encode()]
        assert why.stdout.count("arrived at") == len(arrivals)
        assert why.stdout.count("fresh;") == 1
        assert why.stdout.count("duplicate, dropped") == len(arrivals) - 1
        assert "forwarded to" in why.stdout
        assert "in the transaction of" in why.stdout
