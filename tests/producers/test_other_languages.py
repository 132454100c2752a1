"""The example of docs/reference/other-languages.md, with Kafka's own console tools and a real worker."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.worker_process import ROOT, Site, WorkerProcess, read_all

PAGE = (ROOT / "docs" / "reference" / "other-languages.md").read_text("utf-8")
STREAM = '[streams.sales]\ninput = "{0}.raw"\noutput = "{0}.once"\ndead_letters = "{0}.dead"\nidentity = "producer"\n'


@pytest.mark.matrix
def test_the_pages_example(broker: str, kafka_tool: Callable[..., str], tmp_path: Path) -> None:
    lines = re.findall(r"^ratchet-producer:.*$", PAGE, re.MULTILINE)
    commands = {
        tool: command.removesuffix(" < sales.txt").replace("\\\n", " ").split()
        for tool, command in re.findall(r"^kafka-console-(producer|consumer)\.sh ((?:.*\\\n)*.*)$", PAGE, re.MULTILINE)
    }
    assert len(lines) == 5
    app = f"sales-{uuid.uuid4().hex[:8]}"
    changed = {"127.0.0.1:9092": broker, "orders.raw": f"{app}.raw", "orders.once": f"{app}.once"}
    produce, consume = ([changed.get(word, word) for word in commands[tool]] for tool in ("producer", "consumer"))
    site = Site(tmp_path, broker, app, STREAM.format(app))
    worker = WorkerProcess(site)
    worker.start()
    try:
        worker.wait_for(lambda: "partitions assigned" in worker.text(), "its partitions")
        kafka_tool("org.apache.kafka.tools.ConsoleProducer", *produce, given="\n".join(lines) + "\n")
        worker.wait_for(lambda: site.position(f"{app}.raw") == 5, "the end of the input")
        worker.stop()
    finally:
        worker.end()
    printed = kafka_tool("org.apache.kafka.tools.consumer.ConsoleConsumer", *consume)
    assert sorted(line for line in printed.splitlines() if line) == sorted([lines[0], lines[1], lines[3]])
    assert sum(map(len, read_all(broker, f"{app}.once").values())) == 3
    (dead,) = [message for found in read_all(broker, f"{app}.dead").values() for message in found]
    assert dict(dead.headers())["ratchet-reason"] == b"sequence-not-a-number"
