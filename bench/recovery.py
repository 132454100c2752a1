"""How long a subject that was killed is away: from its new start to its first new output."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from bench.kafka import committed_reader, create, ends
from bench.load import HEAD, PARTITIONS, SEQUENCE, VALUE_BYTES, Load
from bench.measure import END_WITHIN_S, GroupPosition, Result, Running
from bench.subjects import Task, deduplicating
from kafka_ratchet.errors import BenchFailed

PER_SECOND: Final = 500
QUIET_S: Final = 3.0
"""After the last commit, before the kill: stores are written now and then, and a crash is not timed to suit them."""


@dataclass(frozen=True, slots=True)
class Recovery(Result):
    """A run.

    Attributes:
        keys: identities in the state
        store: intact, or lost
        seconds: from the new start to the first new record that a committed reader of the output gets
    """

    keys: int
    store: str
    seconds: float


def recovery(
    subject: str, bootstrap: str, topic: str, load: Load, commit_ms: int, *, lost: bool, away_s: float
) -> Recovery:
    """Kill a subject that has come to the end of its input, start it again, and wait for new output.

    Args:
        subject: a name of SUBJECTS, of one that deduplicates.
        bootstrap: of Kafka.
        topic: the input, filled; new records are added to it.
        load: what it was filled with.
        commit_ms: of the subject.
        lost: remove its local state while it is away.
        away_s: from the kill to the new start; longer than its session, or the group's time-out is measured instead.

    Raises:
        BenchFailed: it does not come back.
    """
    run = f"recovery-{subject}-{uuid.uuid4().hex[:8]}"
    output, group = f"bench.{run}.out", f"bench-{run}"
    create(bootstrap, output, partitions=PARTITIONS)
    reached = GroupPosition(bootstrap, topic, group)
    with tempfile.TemporaryDirectory(prefix="ratchet-bench-") as folder:
        chosen = deduplicating(subject)
        command = chosen.command(Task(bootstrap, topic, output, group, folder, commit_ms))
        running = Running(command, chosen.started)
        try:
            running.wait_until_read(reached, END_WITHIN_S)
            time.sleep(QUIET_S)
            running.kill()
            begins = ends(bootstrap, output, PARTITIONS)
            if lost:
                shutil.rmtree(Path(folder) / "state", ignore_errors=True)
            time.sleep(away_s)
            with _Trickle(bootstrap, topic, load):
                started_at = time.monotonic()
                running = Running(command, chosen.started)
                seconds = _first_new(bootstrap, output, begins, running) - started_at
        finally:
            running.kill()
            reached.close()
    return Recovery(subject, load.keys, "lost" if lost else "intact", round(seconds, 2))


class _Trickle:
    """Sends fresh records of all partitions, a few at a time, for as long as it is entered.

    Sequences are the time in µs: above all of the input, and above those of the run before, which are in it by then.
    """

    def __init__(self, bootstrap: str, topic: str, load: Load) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "partitioner": "murmur2"})
        self._topic, self._keys = topic, load.keys
        self._first = time.time_ns() // 1000
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ending.set()
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


def _first_new(bootstrap: str, topic: str, begins: list[int], running: Running) -> float:
    """`time.monotonic()` of the first committed record beyond these offsets."""
    reader = committed_reader(bootstrap, topic, begins, fetch_wait_max_ms=5)
    deadline = time.monotonic() + END_WITHIN_S
    try:
        while time.monotonic() < deadline:
            running.check()
            message = reader.poll(0.05)
            if message is not None and message.error() is None:
                return time.monotonic()
    finally:
        reader.close()
    raise BenchFailed(f"{topic}: nothing new within {END_WITHIN_S:.0f} s. The subject said:\n{running.said}")
