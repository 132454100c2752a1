"""The environment of a fault run: a stream for each kind, workers, events, and committed positions."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import structlog
from confluent_kafka.admin import NewTopic

from faults.count import (
    Difference,
    compare,
    compare_counts,
    computed,
    delivered,
    expected,
    expected_counts,
    messages,
    table,
)
from faults.events import EVERY_KIND, IDENTITIES, PARTITIONS, SETTINGS, Event, Feed
from faults.hosted import KINDS, count_hosted
from faults.kafka import Kafka
from faults.process import named, tree
from faults.programs import agents, hosted
from kafka_ratchet.app.local.child_process import ChildProcess
from kafka_ratchet.app.settings import Settings, load
from kafka_ratchet.app.verify import verify
from kafka_ratchet.errors import FaultRunFailed
from kafka_ratchet.transport.owner import POLICY
from kafka_ratchet.transport.transactions.crash_points import VARIABLE as CRASH_AT

log = structlog.get_logger(__name__)

SESSION_TIMEOUT_MS = 3_000
"""Session timeout in milliseconds. It is short, because a run waits for the end of many sessions; Kafka's default is 45
s."""
COMMIT_INTERVAL_MS = 20
"""Commit interval in milliseconds: short, so that faults hit transactions in every state."""
PATIENCE_S = 180.0
"""Seconds after which a step counts as hung: the slowest step, a broker's restart, takes ten."""
ASK_EVERY_S = 0.1
TRIES = 2
"""Number of restarts to wait for after a partition has halted; no restart may forward or commit a record."""

STORE_FAILS = "RocksDB cannot"
CREATED_AGAIN = "the topic was deleted and created again"
ENTRIES_LOST = "the entries between are lost"
POLICY_REPLACED = f"its {POLICY} was"
RULE_CHANGED = "its records were judged with"
HALTS = (STORE_FAILS, CREATED_AGAIN, ENTRIES_LOST, POLICY_REPLACED, RULE_CHANGED)
"""Texts of the worker's errors by which a run recognises why a partition has halted."""
ORPHANS_S = 130.0
"""Maximum seconds until the processes of a killed worker have ended too, see
kafka_ratchet.app.worker.processes.KILL_AFTER_S.
"""
ANSWER_S = 60.0
"""Seconds until a worker must answer a request for its status, which takes milliseconds on an idle machine."""
TERMINATED = 128 + signal.SIGTERM
"""Exit code of a worker stopped by SIGTERM before it listened for signals."""

Positions = dict[tuple[str, int], int]


class Style(Enum):
    """Kind of program that the workers of a run execute."""

    RECORDS = "records"
    """No program: records are forwarded unchanged."""
    AGENT = "agent"
    """An agent for each stream (faults/programs/agents.py)."""
    FAUST = "faust"
    """A Faust program (faults/programs/hosted.py)."""

    @property
    def kinds(self) -> Sequence[str]:
        """Return the kinds of streams that a run with this program can count."""
        # Agents count what moves a sequence forward.
        return {Style.RECORDS: EVERY_KIND, Style.AGENT: IDENTITIES, Style.FAUST: KINDS}[self]

    @property
    def options(self) -> list[str]:
        """Return the options of `ratchet worker` that select this program."""
        return {Style.RECORDS: [], Style.AGENT: ["--app", agents.NAME], Style.FAUST: ["--faust", hosted.NAME]}[self]


class Worker:
    """One worker of an environment, with its own state folder and network; `started` is its process, if any."""

    def __init__(self, environment: Environment, number: int) -> None:
        self.environment, self.number = environment, number
        self.name = f"worker-{number}"
        self.state = environment.folder / f"{self.name}-state"
        self.started: ChildProcess | None = None
        self._seen = 0
        self._orphans: list[int] = []

    @property
    def is_running(self) -> bool:
        return self.started is not None and self.started.is_running

    def start(self, clock_shift_s: int = 0, crash_at: str | None = None) -> None:
        """Start the process, without waiting until it is ready.

        Args:
            clock_shift_s: lead of the worker's wall clock in seconds; below 0: the clock is slow.
            crash_at: point where the worker kills itself: POINT or POINT:N of `transactions/crash_points.py`.
        """
        self.wait_for_orphans()
        self._seen = len(self.output())
        command = ["worker", "-c", str(self.environment.config), "--state-folder", str(self.state)]
        command += self.environment.style.options
        if self.environment.processes > 1:
            command += ["--processes", str(self.environment.processes)]
        module = "kafka_ratchet"
        if clock_shift_s:
            module, command = "faults.programs.clock", [str(clock_shift_s), *command]
        self.started = ChildProcess(
            self.environment.folder,
            self.name,
            *command,
            module=module,
            environment={
                "RATCHET_BOOTSTRAP": self.environment.kafka.bootstrap_of(self.number),
                **({CRASH_AT: crash_at} if crash_at else {}),
            },
        )

    def process(self) -> ChildProcess:
        """Return the worker's running process.

        Raises:
            FaultRunFailed: the worker was not started, or has ended.
        """
        if self.started is None or not self.started.is_running:
            raise FaultRunFailed(f"{self.name} does not run; the end of its log:\n{self.output()[-3000:]}")
        return self.started

    def kill(self) -> None:
        """Kill the worker with SIGKILL, and wait until it has ended.

        The processes that it has started get no signal, and end later; `start` waits for them.
        """
        self._orphans = tree(self.process().pid)[1:]
        self.process().kill()

    def kill_all(self) -> None:
        """Kill the worker and all processes that it has started."""
        self.kill()
        for pid in filter(_runs, self._orphans):
            os.kill(pid, signal.SIGKILL)

    def freeze(self) -> None:
        """Suspend the worker and all processes that it has started, with SIGSTOP.

        The worker gets the signal first, because it would replace frozen processes.
        """
        for pid in tree(self.process().pid):
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the worker and all processes that it has started continue, with SIGCONT."""
        for pid in reversed(tree(self.process().pid)):
            os.kill(pid, signal.SIGCONT)

    def child(self, number: int) -> int:
        """Return the id of one of the processes that the worker has started.

        Raises:
            FaultRunFailed: the process did not appear in time.
        """
        found: list[int] = []

        def is_there() -> bool:
            pid = named(self.process().pid, f"ratchet/{number}")
            found.extend([pid] if pid is not None else [])
            return pid is not None

        self.environment.wait_for(is_there, f"process {number} of {self.name}")
        return found[-1]

    def wait_for_orphans(self) -> None:
        """Wait until the processes of the killed worker have ended: until then they use their state folders."""
        orphans, self._orphans = self._orphans, []
        self.environment.wait_for(
            lambda: not any(_runs(pid) for pid in orphans), f"the end of {self.name}'s processes", ORPHANS_S
        )

    def stop(self) -> None:
        """Stop the worker with SIGTERM, and wait until it has ended.

        Raises:
            FaultRunFailed: the worker does not run, or ended with another exit code.
        """
        code = self.process().stop()
        if code not in (0, TERMINATED):
            raise FaultRunFailed(f"{self.name} ended with {code}; the end of its log:\n{self.output()[-6000:]}")

    def output(self) -> str:
        """Return all that the worker has logged since its first start."""
        path = self.environment.folder / f"{self.name}.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def has_logged(self, words: str) -> bool:
        """Return True if the worker has logged `words` since its last start, or since `mark`."""
        return words in self.output_since_mark()

    def output_since_mark(self) -> str:
        """Return what the worker has logged since its last start, or since `mark`."""
        return self.output()[self._seen :]

    def partitions(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Return the status of each partition, by input topic and number.

        The status comes over HTTP, because a worker with a full disk cannot log.
        """
        address = re.findall(r"status_address\s+url=(http://127\.0\.0\.1:\d+)", self.output())[-1]
        with urlopen(f"{address}/status", timeout=ANSWER_S) as answer:  # noqa: S310 - of the line above
            tables = json.load(answer)["tables"]
        return {(table["input"], each["partition"]): each for table in tables for each in table["partitions"]}

    def mark(self) -> None:
        """Let `has_logged` search only later log lines."""
        self._seen = len(self.output())


def _runs(pid: int) -> bool:
    """Return True if a process id belongs to a running process of a worker.

    The id may belong to another program by now.
    """
    try:
        name = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace")
        state = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return name.startswith("ratchet/") and state != "Z"


class Environment:
    """Topics, settings and workers on a Kafka of their own."""

    def __init__(
        self,
        kafka: Kafka,
        folder: Path,
        workers: int,
        seed: int,
        app: str = "faults",
        *,
        style: Style = Style.RECORDS,
        kinds: Sequence[str] = IDENTITIES,
        processes: int = 1,
    ) -> None:
        """Create the input topics and start to feed them with events.

        Args:
            kafka: running Kafka.
            folder: folder for settings, state and logs.
            workers: largest number of workers.
            seed: seed of the events.
            app: name of the workers' group, and prefix of every topic.
            style: program of the workers.
            kinds: kinds of streams, each a key of `faults.events.SETTINGS`.
            processes: number of processes of each worker.
        """
        folder.mkdir(parents=True)
        self.kafka, self.folder, self.config = kafka, folder, folder / "ratchet.toml"
        self.app, self.style, self.processes = app, style, processes
        self.inputs = {f"{app}.{kind}.in": PARTITIONS for kind in kinds}
        self.kinds = kinds
        self.read_again = Counter[str]()
        """Records that `ratchet resume` made the workers read again, by kind of identity."""
        streams = "".join(
            f"""
[streams.by-{kind}]
input = "{app}.{kind}.in"
output = "{app}.{kind}.out"
dead_letters = "{app}.{kind}.dead"
{SETTINGS[kind]}
replication = {kafka.copies}
"""
            for kind in kinds
        )
        head = f"""app = "{self.app}"
commit_interval_ms = {COMMIT_INTERVAL_MS}
session_timeout_ms = {SESSION_TIMEOUT_MS}
"""
        self.config.write_text(head + streams, "utf-8")
        admin = kafka.admin()
        new = [NewTopic(topic, num_partitions=PARTITIONS, replication_factor=kafka.copies) for topic in self.inputs]
        for made in admin.create_topics(new, operation_timeout=30).values():
            made.result(60)
        self.workers = [Worker(self, number) for number in range(workers)]
        self.feed = Feed(kafka.bootstrap, list(self.inputs), seed)
        self.feed.start()

    @property
    def settings(self) -> Settings:
        return load(self.config, bootstrap=self.kafka.bootstrap)

    def running(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.is_running]

    def wait_for(self, condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> float:
        """Wait until a condition is true, and return the seconds waited.

        Raises:
            FaultRunFailed: the condition was not true in time, or the events could not be sent.
        """
        began = time.monotonic()
        while not condition():
            self.feed.check()
            if time.monotonic() - began > patience_s:
                words = "\n".join(f"{worker.name}:\n{worker.output()[-3000:]}" for worker in self.workers)
                raise FaultRunFailed(f"{what}: not within {patience_s:.0f} s. Logs: {self.folder}\n{words}")
            time.sleep(ASK_EVERY_S)
        return time.monotonic() - began

    def positions(self) -> Positions:
        """Return the committed offsets of every input partition; waits while Kafka does not answer."""
        found: list[Positions] = []

        def ask() -> bool:
            asked = self.kafka.positions(self.app, self.inputs)
            found.extend([asked] if asked is not None else [])
            return asked is not None

        self.wait_for(ask, "Kafka's answer about committed offsets")
        return found[-1]

    def wait_for_halts(self, worker: Worker, words: Mapping[str, str]) -> None:
        """Wait until all partitions of some inputs have halted, and check that `TRIES` restarts change nothing.

        Args:
            worker: the worker that runs all of these partitions.
            words: text that the error of each partition must contain, by input topic.

        Raises:
            FaultRunFailed: a partition does not halt, or a restart has forwarded or committed something.
        """

        def halted(least: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int] | None:
            """Return the restarts by partition; None until each has halted and restarted `least` times."""
            found = {place: status for place, status in worker.partitions().items() if place[0] in words}
            are_halted = len(found) == PARTITIONS * len(words) and all(
                words[place[0]] in (status["error"] or "") and status["restarts"] >= least.get(place, 1)
                for place, status in found.items()
            )
            return {place: status["restarts"] for place, status in found.items()} if are_halted else None

        def offsets() -> dict[tuple[str, int], int]:
            outputs = {topic.removesuffix(".in") + ".out": PARTITIONS for topic in words}
            committed = {place: offset for place, offset in self.positions().items() if place[0] in words}
            return committed | self.kafka.ends(outputs)

        self.wait_for(lambda: halted({}) is not None, f"the halt of {', '.join(words)}")
        before, tried = offsets(), halted({}) or {}
        enough = {place: times + TRIES for place, times in tried.items()}
        self.wait_for(lambda: halted(enough) is not None, f"{TRIES} more tries of {', '.join(words)}")
        after = offsets()
        if moved := [place for place, offset in before.items() if after[place] != offset]:
            raise FaultRunFailed(f"these partitions continued although they had halted: {moved}")

    def wait_for_progress(self, since: Positions, what: str) -> float:
        """Wait until every partition has committed beyond its offset in `since`.

        Returns:
            seconds waited
        """

        def all_moved() -> bool:
            now = self.kafka.positions(self.app, self.inputs)
            return now is not None and all(now[place] > offset for place, offset in since.items())

        return self.wait_for(all_moved, what)

    def finish(self) -> tuple[list[Event], Difference, float]:
        """End the feed, let the workers finish the input, stop them, and count.

        The findings of verify for a stream are left in by-<kind>.findings.json next to the logs.

        Returns:
            the sent events, errors of the output, seconds from the last event to lag 0
        """
        sent = self.feed.finish()
        total = len(sent) * len(self.inputs)
        caught_up_s = self.wait_for(lambda: sum(self.positions().values()) >= total, "lag 0", 2 * PATIENCE_S)
        if self.style is Style.FAUST:
            caught_up_s += self._wait_for_steps()
        for worker in self.running():
            worker.stop()
        if self.style is Style.FAUST:
            return sent, count_hosted(self.kafka.bootstrap, self._topics(), sent), caught_up_s
        difference = Difference()
        for kind in self.kinds:
            difference += (self._counted_with_agent if self.style is Style.AGENT else self._counted)(kind, sent)
        return sent, difference, caught_up_s

    def _topics(self) -> list[str]:
        return sorted(self.kafka.admin().list_topics(timeout=PATIENCE_S).topics)

    def _wait_for_steps(self) -> float:
        """Wait until the workers have read the Faust program's inner topics to their ends.

        Returns:
            seconds waited
        """
        inner = [name for name in self._topics() if name.startswith((f"{self.app}-repartition", hosted.COUNTED_BY))]
        last = {
            (message.topic() or "", message.partition() or 0): message.offset() or 0
            for name in inner
            for message in messages(self.kafka.bootstrap, name)
        }

        def are_read() -> bool:
            read = self.kafka.positions(self.app, dict.fromkeys(inner, PARTITIONS))
            return read is not None and all(read[place] > offset for place, offset in last.items())

        return self.wait_for(are_read, f"lag 0 of {', '.join(inner)}", 2 * PATIENCE_S)

    def _counted(self, kind: str, sent: list[Event]) -> Difference:
        counted = compare(expected(sent, kind), delivered(self.kafka.bootstrap, f"{self.app}.{kind}.out", kind))
        proof = verify(self.settings, f"by-{kind}", independent=True)
        judged = proof.fresh + proof.duplicate + proof.late
        again = self.read_again[kind]
        if proof.pending or proof.invalid or judged != len(sent) + again:
            raise FaultRunFailed(
                f"by-{kind}: {len(sent)} events were sent and {again} read again, but the input holds {proof.as_dict()}"
            )
        if (counted == Difference()) != proof.ok:
            raise FaultRunFailed(f"by-{kind}: counted {counted}, but verify says {proof.as_dict()}")
        if not proof.ok:
            (self.folder / f"by-{kind}.findings.json").write_text(json.dumps(proof.as_dict(), indent=2))
        return counted

    def _counted_with_agent(self, kind: str, sent: list[Event]) -> Difference:
        bootstrap, changelog = self.kafka.bootstrap, f"{self.app}-changelog.by-{kind}"
        found, counts = computed(bootstrap, f"{self.app}.{kind}.out", kind)
        if letters := [message.headers() for message in messages(bootstrap, f"{self.app}.{kind}.dead")]:
            raise FaultRunFailed(f"by-{kind}: {len(letters)} dead letters, the first with {letters[0]}")
        kept = table(bootstrap, changelog, agents.table_of(kind))
        return compare(expected(sent, kind), found) + compare_counts(expected_counts(sent, kind), counts, kept)

    def __enter__(self) -> Environment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the feed and all workers that still run."""
        self.feed.abandon()
        for worker in self.workers:
            if worker.is_running:
                worker.kill_all()
            elif worker.started is not None:
                worker.started.wait()  # closes the pipes of an ended one
