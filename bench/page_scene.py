"""Scene of the page's bench: a broker, a stream of many partitions and identities, a worker, a sink, the page."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from confluent_kafka import Producer

from bench import totals
from bench.kafka import produce
from bench.load import SEQUENCE, Load, fill, flush, producer_options
from bench.measure import RunningProcess
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.app.local.ports import free_port
from kafka_ratchet.errors import BenchFailed

STREAM: Final = "events"
INPUT: Final = "bench.in"
INVALID: Final = 1_000
"""Number of input records without a sequence, which become dead letters."""
ORDERS: Final = Load(records=10_000, keys=1_000, partitions=4, value_bytes=120)
PER_COMMIT: Final = 200_000
"""Offsets per commit of the sink; with so few, it makes several commits."""
PROGRAM: Final = "bench.peers.page_totals:app"
STARTS: Final = 5
PATIENCE_S: Final = 1_200.0
ANSWER_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Scene:
    """Addresses and process of the running scene.

    Attributes:
        page: http://host:port of the page
        status: http://host:port of the worker's status
        worker_pid: process id of the worker
    """

    page: str
    status: str
    worker_pid: int
    bootstrap: str


@contextmanager
def scene(partitions: int, identities: int, *, sink: bool, say: Callable[[str], None]) -> Iterator[Scene]:
    """Fill a stream, let a worker deduplicate it and a sink read it, and serve the page.

    Args:
        partitions: partitions of the stream.
        identities: identities of the stream; a fifth of its records are duplicates.
        sink: True: a Spark job fills a result table.
        say: function called with a line at each step.

    Raises:
        BenchFailed: a part does not do its work in time.
    """
    load = Load(identities * 5 // 4, identities, partitions=partitions, value_bytes=100)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ratchet-bench-page-")))
        broker = stack.enter_context(EmbeddedBroker(folder / "kafka"))
        say(f"{load.records:,} records into {partitions:,} partitions")
        fresh = fill(broker.bootstrap, INPUT, load).fresh
        _fill_the_rest(broker.bootstrap, load)
        config = _settings(folder, broker.bootstrap, free_port())
        worker = _start_worker(stack, config, say)
        address = f"127.0.0.1:{free_port()}"
        _start(stack, "web", config, "The page is at", "--port", address.rpartition(":")[2])
        page = f"http://{address}"
        say("the worker judges them")
        counted = _when_judged(page, worker, fresh)
        say(f"{counted:,} identities are known")
        if sink:
            say("the sink reads the output")
            _run_sink(config)
        yield Scene(page, _status_of(page), worker.process.pid, broker.bootstrap)


def get(address: str, *, as_json: bool = False) -> tuple[int, bytes]:
    """Request an address over a new connection; return status code and body. as_json: True: accept JSON only."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_S)
    try:
        target = f"{parts.path}{'?' + parts.query if parts.query else ''}"
        connection.request("GET", target, headers={"Accept": "application/json" if as_json else "text/html"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def get_json(address: str) -> Any:
    """Request an address, and return its JSON.

    Raises:
        BenchFailed: the address does not answer with 200.
    """
    status, body = get(address, as_json=True)
    if status != 200:
        raise BenchFailed(f"{address} answered with {status}: {body[:500]!r}")
    return json.loads(body)


def _settings(folder: Path, bootstrap: str, status_port: int) -> Path:
    config = folder / "ratchet.toml"
    config.write_text(
        f"""
app = "bench-page"
bootstrap = "{bootstrap}"
state_folder = "{folder / "state"}"

[web]
status_port = {status_port}

[streams.{STREAM}]
input = "{INPUT}"
output = "bench.out"
dead_letters = "bench.dead"
duplicates = "bench.duplicates"
identity = "producer"
sequence = "header:ratchet-sequence"

[streams.orders]
input = "bench.orders"
output = "bench.totals"
dead_letters = "bench.orders.dead"
identity = "key"
sequence = "header:ratchet-sequence"

[sink]
stream = "{STREAM}"
path = "{folder / "table"}"
columns = "sequence long, user long, filler string"
""",
        "utf-8",
    )
    return config


def _fill_the_rest(bootstrap: str, load: Load) -> None:
    totals.fill(bootstrap, "bench.orders", ORDERS)
    producer = Producer(producer_options(bootstrap, load))
    for number in range(INVALID):
        headers: list[tuple[str, str | bytes | None]] = [("ratchet-producer", b"user-%d" % number)]
        produce(producer, INPUT, b"no sequence", b"user-%d" % number, headers=headers)
    flush(producer, INPUT, load)


def trickle(bootstrap: str, number: int) -> None:
    """Send one more record, so that the page changes. number: number of the record"""
    producer = Producer({"bootstrap.servers": bootstrap})
    headers: list[tuple[str, str | bytes | None]] = [
        ("ratchet-sequence", SEQUENCE.pack(number)),
        ("ratchet-producer", b"trickle"),
    ]
    produce(producer, INPUT, b"{}", b"trickle", headers=headers)
    producer.flush(ANSWER_S)


def _start_worker(stack: ExitStack, config: Path, say: Callable[[str], None]) -> RunningProcess:
    """Start the worker, and start it again if it fails.

    A start fails while the broker does not yet know all of the thousands of new partitions.
    """
    for _ in range(STARTS - 1):
        try:
            return _start(stack, "worker", config, "worker runs", "--app", PROGRAM)
        except BenchFailed as error:
            say(f"the worker is started again: {str(error).splitlines()[-1]}")
    return _start(stack, "worker", config, "worker runs", "--app", PROGRAM)


def _start(stack: ExitStack, command: str, config: Path, started: str, *more: str) -> RunningProcess:
    running = RunningProcess([sys.executable, "-m", "kafka_ratchet", command, "--config", str(config), *more], started)
    stack.callback(running.stop)
    running.wait_until_started()
    return running


def _when_judged(page: str, worker: RunningProcess, fresh: int) -> int:
    """Wait until the worker has judged its whole input.

    Returns:
        number of identities that the worker knows
    """
    ends_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_at:
        worker.check()
        streams = get_json(f"{page}/streams.json")
        found = next(each["totals"] for each in streams if each["stream"] == STREAM)
        if found["fresh"] == fresh and found["lag"] == 0:
            return int(found["keys"])
        time.sleep(2)
    raise BenchFailed(
        f"the worker has not judged all within {PATIENCE_S:.0f} s: {found}. The worker printed:\n{worker.printed}"
    )


def _run_sink(config: Path) -> None:
    command = [sys.executable, "-m", "kafka_ratchet", "sink", "--config", str(config), "--stream", STREAM]
    done = subprocess.run(
        [*command, "--max-records", str(PER_COMMIT)], capture_output=True, text=True, timeout=PATIENCE_S, env=os.environ
    )
    if done.returncode:
        raise BenchFailed(f"the sink failed: {done.stderr[-2000:]}")


def _status_of(page: str) -> str:
    [worker] = get_json(f"{page}/index.json")["workers"]
    return str(worker["url"])
