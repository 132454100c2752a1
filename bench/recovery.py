"""Bench of the recovery of a killed program, from its new start to its first new output.

The bench kills the program, and starts it again after its session at the broker has ended. Of a worker with several
processes, it kills one. There the worker's parent process starts a new one, and the measurement begins at the kill.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from bench.kafka import committed_reader, create, ends
from bench.load import HEAD, PARTITIONS, SEQUENCE, VALUE_BYTES, Load
from bench.measure import END_WITHIN_S, GroupPosition, Result, RunningProcess
from bench.spread import spread
from bench.subjects import Subject, Task, deduplicating
from faults.process import named
from kafka_ratchet.errors import BenchFailed

PER_SECOND: Final = 500
QUIET_S: Final = 3.0
"""Seconds between the last commit and the kill, since a program writes its store only at intervals."""
WORKER: Final = "ratchet"
"""Name of the subject that can have several processes; the bench kills one of them."""
KILLED: Final = 0
"""Number of the process that the bench kills."""
ANSWER_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Recovery(Result):
    """Measures of one recovery.

    Attributes:
        keys: number of identities in the state.
        store: intact, or lost.
        processes: number of processes of the worker; 1: the program itself was killed.
        partitions: number of partitions that the killed program or process had.
        seconds: seconds until the output has its first new committed record. They count from the restart or, if one of
            several processes was killed, from the kill, because the worker's parent restarts that process at once.
        every_partition_s: seconds from the same moment until each of the partitions has a new committed record.
    """

    keys: int
    store: str
    processes: int
    partitions: int
    seconds: float
    every_partition_s: float


def recovery(
    subject: str, bootstrap: str, topic: str, load: Load, commit_ms: int, *, lost: bool, away_s: float, processes: int
) -> Recovery:
    """Kill a subject at the end of its input, start it again, and wait for new output.

    Args:
        subject: a name of SUBJECTS; its program must deduplicate.
        bootstrap: host:port of Kafka.
        topic: the filled input; the bench adds new records.
        load: load of the input.
        commit_ms: commit interval of the subject, in ms.
        lost: True: remove the subject's local state before the new start.
        away_s: seconds from the kill to the new start. They must be longer than the subject's session timeout, or the
            bench measures the timeout. A process that a parent starts again does not wait so long.
        processes: number of processes of `WORKER`; above 1, one of them is killed, else the whole program.

    Raises:
        BenchFailed: the subject writes no new output after its new start.
    """
    run = f"recovery-{subject}-{uuid.uuid4().hex[:8]}"
    output, group = f"bench.{run}.out", f"bench-{run}"
    create(bootstrap, output, partitions=PARTITIONS)
    several = processes if subject == WORKER else 1
    reached = GroupPosition(bootstrap, topic, group)
    with tempfile.TemporaryDirectory(prefix="ratchet-bench-") as folder:
        task = Task(bootstrap, topic, output, group, folder, commit_ms)
        if several > 1:
            task = replace(task, options={"processes": several})
        killing = _Killing(deduplicating(subject), task, lost=lost)
        try:
            killing.running.wait_until_read(reached, END_WITHIN_S)
            time.sleep(QUIET_S)
            begins = ends(bootstrap, output, PARTITIONS)
            partitions = partitions_of(bootstrap, group, KILLED) if several > 1 else range(PARTITIONS)
            with _Trickle(bootstrap, topic, load) as trickle:
                began = killing.one_process() if several > 1 else killing.all_of_it(away_s)
                trickle.start()
                first, last = _new_output(bootstrap, output, begins, partitions, killing.running)
        finally:
            killing.running.kill()
            reached.close()
    store = "lost" if lost else "intact"
    return Recovery(
        subject, load.keys, store, several, len(partitions), round(first - began, 2), round(last - began, 2)
    )


def ratios(runs: list[Recovery]) -> dict[str, dict[str, float]]:
    """Return the ratio of `every_partition_s` of the first subject to that of each other subject, round by round."""
    by_subject: dict[str, list[float]] = {}
    for run in runs:
        by_subject.setdefault(run.subject, []).append(run.every_partition_s)
    first, *others = by_subject
    return {
        f"{first}_to_{other}": spread(a / b for a, b in zip(by_subject[first], by_subject[other], strict=True))
        for other in others
    }


def partitions_of(bootstrap: str, group: str, process: int) -> list[int]:
    """Return the partitions that Kafka has assigned to one process of a group's only worker.

    Raises:
        BenchFailed: the process has no partition.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    told = admin.describe_consumer_groups([group], request_timeout=ANSWER_S)[group].result(ANSWER_S)
    for member in told.members:
        if (member.group_instance_id or "").endswith(f"-{process}") and member.assignment:
            return sorted(place.partition for place in member.assignment.topic_partitions)
    raise BenchFailed(f"group {group}: process {process} has no partition")


class _Killing:
    """Killer of a running subject: of its whole program, or of one of its processes."""

    def __init__(self, subject: Subject, task: Task, *, lost: bool) -> None:
        self._subject, self._command, self._lost = subject, subject.command(task), lost
        self._state = Path(task.folder) / "state"
        self.running = RunningProcess(self._command, subject.started)

    def all_of_it(self, away_s: float) -> float:
        """Kill the subject, and start it again.

        Returns:
            time of the new start, by `time.monotonic()`
        """
        self.running.kill()
        if self._lost:
            shutil.rmtree(self._state, ignore_errors=True)
        time.sleep(away_s)
        began = time.monotonic()
        self.running = RunningProcess(self._command, self._subject.started)
        return began

    def one_process(self) -> float:
        """Kill one of the several processes of a subject.

        Returns:
            time of the kill, by `time.monotonic()`
        """
        pid = named(self.running.process.pid, f"ratchet/{KILLED}")
        if pid is None:
            raise BenchFailed(f"the worker has no process {KILLED}. It printed:\n{self.running.printed}")
        if self._lost:  # before: there is another process within milliseconds
            shutil.rmtree(self._state / str(KILLED), ignore_errors=True)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return began


class _Trickle:
    """Context manager that sends a few new records to all partitions at intervals.

    Their sequences are the time in µs, and so above all sequences that the input has from its load or an earlier run.
    """

    def __init__(self, bootstrap: str, topic: str, load: Load) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "partitioner": "murmur2"})
        self._producer.list_topics(topic, ANSWER_S)  # that it knows the leaders before anything is measured
        self._topic, self._keys = topic, load.keys
        self._first = time.time_ns() // 1000
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> _Trickle:
        return self

    def start(self) -> None:
        """Start to send records."""
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        self._producer.flush(30)

    def _send(self) -> None:
        number = 0
        while not self._ending.wait(1 / PER_SECOND):
            user, sequence = number % self._keys, self._first + number
            head = HEAD % (sequence % 10**10, user)
            headers = [("ratchet-sequence", SEQUENCE.pack(sequence)), ("bench-order", SEQUENCE.pack(sequence))]
            value = (head + b'"}').ljust(VALUE_BYTES)
            self._producer.produce(self._topic, value, b"user-%d" % user, headers=headers)
            self._producer.poll(0)
            number += 1


def _new_output(
    bootstrap: str, topic: str, begins: list[int], partitions: Collection[int], running: RunningProcess
) -> tuple[float, float]:
    """Return two times: of the first new committed record in any of the partitions, and in the last of them."""
    options: dict[str, Any] = {"fetch_wait_max_ms": 5}
    reader = committed_reader(bootstrap, topic, begins, **options)
    deadline = time.monotonic() + END_WITHIN_S
    found: dict[int, float] = {}
    try:
        while time.monotonic() < deadline:
            running.check()
            message = reader.poll(0.05)
            if message is None or message.error() is not None or message.partition() not in partitions:
                continue
            found.setdefault(message.partition() or 0, time.monotonic())
            if len(found) == len(partitions):
                return min(found.values()), max(found.values())
    finally:
        reader.close()
    missing = sorted(set(partitions) - found.keys())
    raise BenchFailed(
        f"{topic}: no new record in {missing} within {END_WITHIN_S:.0f} s. The subject printed:\n{running.printed}"
    )
