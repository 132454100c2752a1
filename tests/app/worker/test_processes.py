"""A worker of several processes: real ones, forked, killed and ended."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from faults.process import tree
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.settings_sections import StreamSettings
from kafka_ratchet.app.worker.process import PreparedTopics
from kafka_ratchet.app.worker.processes import decoded, encoded, settings_of, unused_stores
from kafka_ratchet.app.worker.topics import StreamTopics
from kafka_ratchet.transport.sent_topics import SentTopic
from tests.app.worker_process import Site, WorkerProcess
from tests.app.written_stream import verified_twice

TOML = """
processes = 2
commit_interval_ms = 20
session_timeout_ms = 6000
[web]
status_port = 0
[streams.events]
input = "{app}.in"
output = "{app}.out"
dead_letters = "{app}.dead"
partitions = 4
"""
NAMES = 40


def named(pid: int) -> dict[str, int]:
    """The processes of a worker by role."""
    return {Path(f"/proc/{each}/comm").read_text().strip(): each for each in tree(pid) if each != pid}


def shares(worker: WorkerProcess) -> dict[str, list[str]]:
    """Return the lanes assigned to each process, each time."""
    found: dict[str, list[str]] = {}
    for lanes, process in re.findall(r"partitions assigned\s+lanes=\[(.*?)\] process=(\d)", worker.text()):
        found.setdefault(process, []).append(lanes)
    return found


def have_shared(worker: WorkerProcess) -> bool:
    last = [told[-1].split(", ") for told in shares(worker).values()]
    return sorted(map(len, last)) == [2, 2] and len({*last[0], *last[1]}) == 4


@pytest.fixture
def worker(broker: str, tmp_path: Path) -> Iterator[WorkerProcess]:
    app = f"processes-{uuid.uuid4().hex[:8]}"
    worker = WorkerProcess(Site(tmp_path, broker, app, TOML.format(app=app)))
    worker.start()
    try:
        yield worker
    finally:
        worker.end()


def test_what_is_killed_is_replaced_and_every_event_counts_once(broker: str, worker: WorkerProcess) -> None:
    site, sent = worker.site, 0
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})

    def send() -> None:
        nonlocal sent
        for number in range(1_000):
            headers = [("ratchet-producer", b"p%d" % (number % NAMES)), ("ratchet-sequence", b"%d" % (sent // NAMES))]
            for _ in range(2):
                producer.produce(f"{site.app}.in", b"x", b"p%d" % (number % NAMES), headers=headers)
            sent += 1
        assert producer.flush(30) == 0

    def fetched(path: str) -> tuple[int, str]:
        address = worker.text().split("status_of_all=")[1].split()[0]
        try:
            with urllib.request.urlopen(address + path, timeout=30) as answer:  # noqa: S310 - of the line above
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    worker.wait_for(lambda: have_shared(worker), "the assignment")
    send()
    worker.wait_for(lambda: site.position(f"{site.app}.in") == 2 * sent, "the input")
    children = named(worker.process.pid)
    assert children.keys() == {"ratchet/0", "ratchet/1", "ratchet/status"}
    before = shares(worker)
    os.kill(children["ratchet/1"], signal.SIGKILL)
    send()
    # Its session is not over: it is the same member of the group, with what it had; the others were told nothing.
    worker.wait_for(lambda: site.position(f"{site.app}.in") == 2 * sent, "the input")
    assert shares(worker) == {**before, "1": [*before["1"], before["1"][-1]]}
    assert named(worker.process.pid).keys() == children.keys()
    worker.wait_for(lambda: fetched("/readyz")[0] == 200, "that both are ready")
    assert fetched("/healthz") == (200, '{"processes":{"0":true,"1":true}}')
    status, metrics = fetched("/metrics")
    assert status == 200
    assert 'ratchet_process_replaced_total{process="1"} 1\n' in metrics
    for number in "01":
        assert f'ratchet_process_up{{process="{number}"}} 1\n' in metrics
        assert f'process_start_time_seconds{{process="{number}"}} ' in metrics  # for RatchetWorkerRestarts
        assert f'ratchet_records_total{{process="{number}",partition=' in metrics
    assert metrics.count("# TYPE ratchet_records_total counter") == 1
    assert json.loads(fetched("/processes/")[1]).keys() == {"0", "1"}
    worker.stop()
    report = verified_twice(site.settings, "events")
    assert report.is_proven, report.findings
    assert report.columns
    assert report.singly == {}
    assert (report.fresh, report.duplicate) == (sent, sent)


@pytest.mark.long
def test_processes_end_with_their_parent_and_find_their_stores_again(worker: WorkerProcess) -> None:
    worker.wait_for(lambda: have_shared(worker), "the assignment")
    children = named(worker.process.pid)
    worker.kill()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in children.values()):
        assert time.monotonic() < deadline, worker.text()[-3000:]
        time.sleep(0.05)
    worker.start()
    worker.wait_for(lambda: worker.text().count("worker runs") == 4, "the processes")
    assert {each.name for each in worker.state.iterdir()} == {"0", "1", "worker.lock"}
    worker.stop()


def test_a_refusal_of_the_preparation_is_one_sentence(tmp_path: Path) -> None:
    done = Site(tmp_path, "127.0.0.1:1", "a", "kafka_timeout_s = 1.5\n" + TOML.format(app="a")).command("worker")
    assert done.returncode == 2
    assert done.stderr.count("did not answer within 1.5 s") == 1


@pytest.mark.long
def test_a_refusal_of_a_process_ends_the_worker_once_with_its_sentence(broker: str, tmp_path: Path) -> None:
    app = f"processes-{uuid.uuid4().hex[:8]}"
    (tmp_path / "ratchet-state").mkdir()
    (tmp_path / "ratchet-state" / "1").write_text("a file")
    done = Site(tmp_path, broker, app, TOML.format(app=app)).command("worker")
    assert done.returncode == 2
    assert done.stderr.count("ratchet: state_folder: 'ratchet-state/1' cannot be used") == 1


def test_a_broker_that_is_not_named_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path, "", "a", TOML.format(app="a"))
    site.config.write_text(site.config.read_text().replace('bootstrap = ""', ""))
    done = site.command("worker")
    assert done.returncode == 2
    assert "processes: more than one process needs the address of a Kafka" in done.stderr


def test_threads_of_a_program_are_refused(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(
        "import threading, time\nfrom kafka_ratchet import App\napp = App()\n"
        "@app.agent(app.stream('events'))\nasync def pass_on(events):\n"
        "    async for event in events:\n        yield event\n"
        "threading.Thread(target=time.sleep, args=(60,), name='of-mine', daemon=True).start()\n"
    )
    done = Site(tmp_path, "127.0.0.1:1", "a", TOML.format(app="a")).command("worker", "--app", "busy:app")
    assert done.returncode == 2
    assert "threads before the processes are forked (of-mine)" in done.stderr


def test_each_process_has_a_folder_and_a_share_of_the_memory() -> None:
    settings = Settings(state_folder=Path("state"), state_memory_mb=1000, processes=4)
    assert settings_of(settings, 3).state_folder == Path("state/3")
    assert settings_of(settings, 3).state_memory_mb == 250


def test_stores_that_are_not_used_are_named(tmp_path: Path) -> None:
    streams = {"events": StreamSettings(input="i", output="o", dead_letters="d")}
    for folder in ("shop/events", "0/shop/events", "2/shop/events", "other/events", "0/other"):
        (tmp_path / folder).mkdir(parents=True)

    def unused(processes: int) -> list[str]:
        settings = Settings(app="shop", state_folder=tmp_path, processes=processes, streams=streams)
        return [str(each.relative_to(tmp_path)) for each in unused_stores(settings)]

    assert unused(1) == ["0", "2"]
    assert unused(2) == ["2", "shop"]
    assert unused(3) == ["shop"]


def test_what_was_prepared_is_told_whole() -> None:
    topics = StreamTopics("changelog", 4, 1, 2, 3, {"out": "id"}, 5, 6)
    prepared = PreparedTopics({"a": topics, "b": StreamTopics("c", 1, 1, 1, 1)}, {"t": SentTopic(3, 0, "a")})
    assert decoded(encoded(prepared)) == prepared
