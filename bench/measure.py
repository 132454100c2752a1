"""Measurement of one run of one subject, from outside: from its first records to its last committed offset.

If a subject commits no offsets to a group, the run ends at the last committed record of the output.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import IO, Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.ids import Ids
from bench.kafka import FETCH_BYTES, committed_reader, create
from bench.load import PARTITIONS, ExpectedOutput, Load
from bench.subjects import ROOT, SUBJECTS, Task
from bench.totals import Totals
from faults.process import cpu_seconds, peak_bytes
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.errors import BenchFailed
from kafka_ratchet.topic_log.clients import offset_ranges

START_WITHIN_S: Final = 180.0
END_WITHIN_S: Final = 900.0
SLOWEST: Final = 3_000
"""Minimum records per second; a slower subject counts as stuck."""
ASK_EVERY_S: Final = 0.01
AT_A_TIME: Final = 50_000
STOP_WITHIN_S: Final = 60.0
LAST_LINES: Final = 40


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one run of one subject."""

    subject: str

    def as_dict(self) -> dict[str, Any]:
        """Return the measures as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Measured(Result):
    """Throughput and costs of a run.

    Attributes:
        records_per_s: input records per second, from the first records to the last commit.
        cpu_s: CPU seconds of the subject's processes in that time, per million records.
        broker_cpu_s: CPU seconds of the broker in that time, per million records.
        peak_mb: peak resident memory of the subject since its start, in megabytes.
        verified: True if the output is right; None: not checked, because the subject does not promise a right one.
    """

    seconds: float
    records_per_s: int
    cpu_s: float
    broker_cpu_s: float
    peak_mb: int
    verified: bool | None


class RunningProcess:
    """Running process of a subject, with the text that it has printed."""

    def __init__(self, command: list[str], started: str) -> None:
        """Start the process. started: text that the subject prints when it has its first records."""
        self._started = started
        self.first_at: float | None = None
        """Time of the subject's first records, by `time.monotonic()`."""
        self._has_started = threading.Event()
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                self._last.append(line.rstrip())
                if self.first_at is None and self._started in line:
                    self.first_at = time.monotonic()
                    self._has_started.set()
        self._has_started.set()

    def wait_until_started(self) -> float:
        """Wait until the subject reports its first records.

        Returns:
            time of the first records, by `time.monotonic()`

        Raises:
            BenchFailed: the subject ended, or had no records in time.
        """
        self._has_started.wait(START_WITHIN_S)
        if self.first_at is None:
            raise BenchFailed(
                f"the subject received no records within {START_WITHIN_S:.0f} s. It printed:\n{self.printed}"
            )
        return self.first_at

    def check(self) -> None:
        """Raise BenchFailed if the process has ended."""
        if self.process.poll() is not None:
            raise BenchFailed(f"the subject ended with code {self.process.returncode}. It printed:\n{self.printed}")

    def wait_until_read(self, reached: GroupPosition | Output, limit_s: float) -> float:
        """Wait until the subject has processed the whole input.

        Returns:
            seconds since its first records

        Raises:
            BenchFailed: the subject ended, or is too slow.
        """
        first = self.wait_until_started()
        while reached.position() < reached.end:
            self.check()
            if time.monotonic() - first > limit_s:
                raise BenchFailed(
                    f"the subject has not processed its input within {limit_s:.0f} s. It printed:\n{self.printed}"
                )
            time.sleep(ASK_EVERY_S)
        return time.monotonic() - first

    @property
    def printed(self) -> str:
        """Return the last lines that the subject has printed."""
        return "\n".join(self._last)

    def stop(self) -> None:
        """Stop the process with SIGTERM, and with SIGKILL if it does not end in time."""
        self.process.terminate()
        try:
            self.process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it has ended."""
        self.process.kill()
        self.process.wait()
        self._reader.join()


class GroupPosition:
    """Progress of a subject by the committed offsets of its consumer group."""

    def __init__(self, bootstrap: str, topic: str, group: str, partitions: int = PARTITIONS) -> None:
        # Uncommitted, or Kafka would hold its answer back while a transaction is open (KIP-447).
        options = {"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_uncommitted"}
        self._consumer = Consumer({**options, "log_level": 0})
        self._places = [TopicPartition(topic, number) for number in range(partitions)]
        self.end = sum(held.end for held in offset_ranges(self._consumer, topic, partitions))

    def position(self) -> int:
        """Return the sum of the committed offsets of all partitions."""
        try:
            return sum(max(0, place.offset) for place in self._consumer.committed(self._places, timeout=10))
        except KafkaException:
            return 0

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


class Output:
    """Progress of a subject by the committed records of its output, which are read continuously.

    This costs more than `GroupPosition`: machine and broker serve one more reader.
    """

    def __init__(self, bootstrap: str, topic: str, fresh: int, partitions: int) -> None:
        self._consumer = committed_reader(bootstrap, topic, [0] * partitions, fetch_message_max_bytes=FETCH_BYTES)
        self._found = 0
        self.end = fresh

    def position(self) -> int:
        """Return the number of committed records in all partitions so far."""
        self._found += sum(message.error() is None for message in self._consumer.consume(AT_A_TIME, 0))
        return self._found

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


def measure(
    subject: str,
    broker: EmbeddedBroker,
    topic: str,
    load: Load,
    truth: ExpectedOutput | Ids | Totals,
    commit_ms: int,
    run: str,
) -> Measured:
    """Run a subject over the whole input.

    Args:
        subject: a name of SUBJECTS.
        broker: Kafka of the run.
        topic: the filled input.
        load: load of the input; the output has the same compression.
        truth: the right output.
        commit_ms: commit interval of the subject.
        run: unique text, which becomes part of the names of its topics and group.

    Raises:
        BenchFailed: the subject does not start, ends, or does not finish.
    """
    chosen, bootstrap = SUBJECTS[subject], broker.bootstrap
    output, group = f"bench.{run}.out", f"bench-{run}"
    create(bootstrap, output, partitions=load.partitions)
    reached = (
        GroupPosition(bootstrap, topic, group, load.partitions)
        if chosen.counted
        else Output(bootstrap, output, truth.fresh, load.partitions)
    )
    with tempfile.TemporaryDirectory(prefix="ratchet-bench-") as folder:
        options = {} if load.compression == "none" else {"compression": load.compression}
        command = chosen.command(Task(bootstrap, topic, output, group, folder, commit_ms, load.partitions, options))
        running = RunningProcess(command, chosen.started)
        try:
            running.wait_until_started()
            pid = running.process.pid
            before, broker_before = cpu_seconds(pid), cpu_seconds(broker.java_pid)
            limit_s = max(END_WITHIN_S, load.records / SLOWEST)
            seconds = running.wait_until_read(reached, limit_s)
            cpu, broker_cpu = cpu_seconds(pid) - before, cpu_seconds(broker.java_pid) - broker_before
            peak = peak_bytes(pid)
            running.stop()
        except BaseException:
            running.kill()
            raise
        finally:
            reached.close()
    verified = chosen.is_right(bootstrap, output, truth) if chosen.exact else None
    forget(bootstrap, run)
    millions = load.records / 1_000_000
    costs = round(cpu / millions, 3), round(broker_cpu / millions, 3)
    return Measured(subject, round(seconds, 3), round(load.records / seconds), *costs, peak >> 20, verified)


def forget(bootstrap: str, run: str) -> None:
    """Delete the topics that a run has created: the output, and others such as a changelog."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.delete_topics([topic for topic in admin.list_topics(timeout=30).topics if run in topic]).values():
        done.exception(30)
