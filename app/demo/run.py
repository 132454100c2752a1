"""Steps of the demo, in their order."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition
from rich.console import Console
from rich.table import Table

from kafka_ratchet.app.demo.events import COLUMNS, EventFile, count, excerpt
from kafka_ratchet.app.local.broker import choose_broker
from kafka_ratchet.app.local.child_process import ChildProcess
from kafka_ratchet.app.local.java import SHORT_LIVED
from kafka_ratchet.app.settings import Settings, load
from kafka_ratchet.app.status.results import place_of
from kafka_ratchet.app.verify import Report, verify
from kafka_ratchet.errors import SetupError
from kafka_ratchet.spark_sink.stores.results import read_totals
from kafka_ratchet.topic_log.clients import committed_positions, consumer, offset_ranges

STREAM: Final = "events"
INPUT, OUTPUT, DEAD_LETTERS, PARTITIONS = "demo.raw", "demo.events", "demo.dead-letters", 4
SESSION_TIMEOUT_MS: Final = 6_000
"""Session timeout of the demo's workers: the minimum that Kafka accepts by default.

When one of the two workers is killed, the other one takes its partitions over after this time.
"""
HALF_WAY_S: Final = 4.0
"""Seconds until half of the first file is published, at a limited rate; then the demo kills the publisher."""
PATIENCE_S: Final = 120.0
"""Maximum seconds of a step; then the demo fails. The slowest step takes some 20 s."""


@dataclass
class Demo:
    """State that the steps of the demo share."""

    files: list[EventFile]
    folder: Path
    console: Console
    bootstrap: str = ""
    processes: list[ChildProcess] = field(default_factory=list)

    @property
    def config(self) -> Path:
        """Return the path of the demo's settings file."""
        return self.folder / "ratchet.toml"

    @property
    def settings(self) -> Settings:
        """Load the settings file of the demo."""
        return load(self.config, bootstrap=self.bootstrap)

    def start(self, name: str, *arguments: str) -> ChildProcess:
        """Start a `ratchet` command with the settings of the demo."""
        process = ChildProcess(self.folder, name, *arguments, "--config", str(self.config))
        self.processes.append(process)
        return process

    def stop(self) -> None:
        """Stop the processes that still run, the last started first."""
        for process in reversed(self.processes):
            if process.is_running:
                process.stop()

    @contextmanager
    def step(self, text: str) -> Iterator[Any]:
        """Show `text` while the block runs, and its duration when the block ends."""
        began = time.monotonic()
        if not self.console.is_terminal:
            self.console.print(f"... {text}")
        with self.console.status(text) as status:
            yield status
        self.console.print(f"[green]✓[/] {text} [dim]{time.monotonic() - began:.1f} s[/]")


def run(paths: list[Path], *, keep: bool = False, as_json: bool = False) -> bool:
    """Run the demo.

    Args:
        paths: files of events; empty: the excerpt that comes with Ratchet
        keep: leave everything running until Ctrl-C
        as_json: print one line of JSON at the end

    Returns:
        True if every event counted exactly once.

    Raises:
        RatchetError: a process of the demo failed.
    """
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    os.environ.setdefault("JAVA_TOOL_OPTIONS", SHORT_LIVED)
    demo = Demo([count(path) for path in paths or excerpt()], Path(tempfile.mkdtemp(prefix="ratchet-demo-")), console)
    with ExitStack() as running:
        running.callback(shutil.rmtree, demo.folder, ignore_errors=True)
        with demo.step("Kafka starts"):
            demo.bootstrap = running.enter_context(choose_broker())
        running.callback(demo.stop)
        _write_settings(demo)
        report, totals = _story(demo)
        once = _show(demo, report, totals, as_json=as_json)
        if keep:
            _stay(demo)
    return once


def _write_settings(demo: Demo) -> None:
    demo.config.write_text(
        f"""app = "demo"
bootstrap = {json.dumps(demo.bootstrap)}
session_timeout_ms = {SESSION_TIMEOUT_MS}

[streams.{STREAM}]
input = "{INPUT}"
output = "{OUTPUT}"
dead_letters = "{DEAD_LETTERS}"
identity = "producer"
partitions = {PARTITIONS}

[sink]
path = {json.dumps(str(demo.folder / "results"))}
columns = "{COLUMNS}"
""",
        "utf-8",
    )


def _story(demo: Demo) -> tuple[Report, dict[str, dict[str, int]]]:
    first, *others = sorted(demo.files, key=lambda file: -file.events)
    with demo.step("two workers and the page start"):
        workers = [_worker(demo, number) for number in (1, 2)]
        page = demo.start("web", "web")
        _wait(lambda: all("lane runs" in worker.output() for worker in workers), "the workers", workers)
        _wait(lambda: "http://" in page.output(), "the page", [page])
    demo.console.print(f"  the page: {_address(page)}   everything else: {demo.folder}")
    with demo.step(f"{first.producer} is published, and killed half-way (kill -9)"):
        _publish_half(demo, first)
    with demo.step(f"{first.producer} resumes"):
        said = json.loads(_publish(demo, first, "resumed").splitlines()[-1])
        if said["resumed_after"] < 0:
            raise SetupError("the restarted publisher began its file again instead of continuing after the crash")
    with demo.step("worker 1 is killed (kill -9) while the other files are published"):
        publishing = [demo.start(f"publish-{number}", *_publish_arguments(file)) for number, file in enumerate(others)]
        workers[0].kill()
        for process in publishing:
            process.finish()
    again = demo.files[0]
    with demo.step(
        f"Spark writes results and offsets in one commit; {again.producer} is published again at the same time"
    ):
        beside = [demo.start("sink-1", "sink"), demo.start("publish-again", *_publish_arguments(again, "--from-start"))]
        for process in beside:
            process.finish()
    with demo.step("worker 2 has taken over, and nothing is left to do") as status:
        _wait_for_lag(demo, status, workers[1])
    with demo.step("Spark goes on from where the table says it is; input and output are read again and compared"):
        sink = demo.start("sink-2", "sink")
        report = verify(demo.settings, STREAM)
        sink.finish()
    with demo.step("the result table is added up"):
        totals = read_totals(place_of(demo.settings), "repository", ["added", "deleted"])
    return report, totals


def _worker(demo: Demo, number: int) -> ChildProcess:
    return demo.start(f"worker-{number}", "worker", "--state-folder", str(demo.folder / f"state-{number}"))


def _publish_arguments(file: EventFile, *more: str) -> list[str]:
    return ["publish", str(file.path), "--producer", file.producer, "--key", "path", "--json", *more]


def _publish(demo: Demo, file: EventFile, what: str, *more: str) -> str:
    return demo.start(f"publish-{what}", *_publish_arguments(file, *more)).finish()


def _publish_half(demo: Demo, file: EventFile) -> None:
    rate = max(1.0, file.events / (2 * HALF_WAY_S))
    process = demo.start("publish-killed", *_publish_arguments(file, "--rate", f"{rate:.0f}"))
    with _watch(demo) as watch:
        while _end(watch, INPUT) < file.events / 2:
            if not process.is_running and _end(watch, INPUT) < file.events / 2:
                raise SetupError(f"the publisher ended before it could be killed:\n{process.last_words()}")
            time.sleep(0.05)
    process.kill()


def _wait(condition: Any, what: str, processes: list[ChildProcess]) -> None:
    began = time.monotonic()
    while not condition():
        for process in processes:
            if not process.is_running:
                raise SetupError(f"{process.name} has ended:\n{process.last_words()}")
        if time.monotonic() - began > PATIENCE_S:
            raise SetupError(f"{what} was not ready within {PATIENCE_S:.0f} s:\n{processes[0].last_words()}")
        time.sleep(0.1)


def _watch(demo: Demo) -> AbstractContextManager[Consumer]:
    settings = demo.settings
    return consumer({"bootstrap.servers": demo.bootstrap, **settings.kafka}, settings.app)


def _end(watch: Consumer, topic: str) -> int:
    return sum(held.end for held in offset_ranges(watch, topic, PARTITIONS))


def _wait_for_lag(demo: Demo, status: Any, worker: ChildProcess) -> None:
    with _watch(demo) as watch:

        def lag() -> int:
            partitions = [TopicPartition(INPUT, number) for number in range(PARTITIONS)]
            done = sum(max(0, place.offset) for place in committed_positions(watch, partitions, 60))
            left: int = _end(watch, INPUT) - done
            status.update(f"worker 2 takes over: {left:,} records to go")
            return left

        _wait(lambda: lag() == 0, "the last worker", [worker])


def _address(page: ChildProcess) -> str:
    found = re.search(r"http://\S+", page.output())
    return found[0] if found else "?"


def _show(demo: Demo, report: Report, totals: dict[str, dict[str, int]], *, as_json: bool) -> bool:
    added: Counter[str] = sum((file.added for file in demo.files), Counter())
    deleted: Counter[str] = sum((file.deleted for file in demo.files), Counter())
    published = report.fresh + report.duplicate + report.invalid
    table = Table(title="Each event, once", title_justify="left")
    for name in ("repository", "added", "true", "deleted", "true"):
        table.add_column(name, justify="left" if name == "repository" else "right")
    exact = set(totals) == set(added)
    for repository in sorted(added):
        got = totals.get(repository, {"added": 0, "deleted": 0})
        same = got["added"] == added[repository] and got["deleted"] == deleted[repository]
        exact &= same
        numbers = (got["added"], added[repository], got["deleted"], deleted[repository])
        table.add_row(repository, *(f"{number:,}" for number in numbers), style="" if same else "bold red")
    demo.console.print(table)
    events = sum(file.events for file in demo.files)
    demo.console.print(
        f"{published:,} records published for {events:,} events; {report.duplicate:,} duplicates dropped; "
        f"{report.delivered:,} delivered"
    )
    once = report.ok and exact and report.delivered == events
    verdict = f"lost {report.lost}, doubled {report.doubled}, reordered {report.reordered}, altered {report.altered}"
    demo.console.print(f"verify: {verdict}", style="bold green" if once else "bold red")
    if as_json:
        result = {
            "published": published,
            "duplicates": report.duplicate,
            "delivered": report.delivered,
            "lost": report.lost,
            "doubled": report.doubled,
            "reordered": report.reordered,
            "totals": totals,
        }
        print(json.dumps(result), flush=True)
    return once


def _stay(demo: Demo) -> None:
    page = next(process for process in demo.processes if process.name == "web")
    demo.console.print(
        f"\nEverything keeps running: the page is at {_address(page)}, the settings are in {demo.config}."
    )
    demo.console.print("Ctrl-C ends it.")
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        demo.console.print("ending")
