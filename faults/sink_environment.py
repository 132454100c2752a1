"""Environment of the Spark job: its topic, its processes, its rows and the expected rows."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faults import edges
from kafka_ratchet.app.local.child_process import ChildProcess
from kafka_ratchet.app.local.jars import spark_jars
from kafka_ratchet.app.local.spark_classes import OPTIONS, using, write_down
from kafka_ratchet.errors import FaultRunFailed
from kafka_ratchet.spark_sink.errors import SinkError
from kafka_ratchet.spark_sink.rows.judging.rule import JudgeRule
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.open_store import make_store, rejects_location
from kafka_ratchet.spark_sink.stores.results import read_rows

if TYPE_CHECKING:
    from confluent_kafka import Producer

Headers = list[tuple[str, str | bytes | None]]

PARTITIONS = 3
NAME = "faulted"

SLICE = 150
"""Offsets per commit."""
CATCH_UP = 100_000
"""Offsets per commit of an undisturbed job: killed jobs leave a backlog of hundreds of slices."""
A_FEW_COMMITS = 1_000
"""Offsets per commit of two jobs started together, so that the remaining one soon finishes the backlog."""
PER_STEP = 600
"""Number of records written before each fault: enough for more commits than any fault waits for."""

REJECTED = 10
"""Distance between two unparsable values, in a store with rejects."""
REPEATED = 0.25
"""Number of repeats per record of a raw topic; they make up a fifth of the topic."""
IDENTITIES = 97
"""Number of identities in each partition of a raw topic."""
NO_JSON = "is no JSON"
"""Text of an unparsable value after its number."""

PATIENCE_S = 300.0
"""Seconds after which a step counts as hung: a start of Spark takes ten on an idle machine."""
ASK_EVERY_S = 0.1

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of the JVMs, which live for seconds: optimising their code would take longer than running it."""

JAVA_OPTIONS = {"request.timeout.ms": 5_000, "default.api.timeout.ms": 10_000}
"""Client options that make Spark notice the loss of its Kafka within seconds: by default it takes a minute or two."""

KILLED = frozenset({-signal.SIGKILL, 128 + signal.SIGKILL})
"""Exit codes of a job whose process group was killed: the supervisor's own, or the reported one."""
DONE, REFUSED, FENCED = 0, 2, 3
"""Exit codes of the job; see kafka_ratchet.spark_sink.cli."""


Position = tuple[int, int]
"""Partition of a record, and its number within the partition."""


class SinkEnvironment:
    """Topic, processes and rows of a job over one store.

    Args:
        name: name of the store, in messages and in the topic's name.
        bootstrap: host:port of Kafka.
        folder: folder for logs.
        place: location of the result table.
        chance: source of the random choice of aborted transactions.
        archive: archive of the JVM's classes; see `class_archive`.
        rejects: True makes a tenth of the values unparsable; they become rows of a rejects table.
        from_input: True makes the topic a raw one. A fifth of its records are repeats, half of the rejects have no
            sequence, and aborted records have the next sequences.
    """

    def __init__(
        self,
        name: str,
        bootstrap: str,
        folder: Path,
        place: TableLocation,
        chance: random.Random,
        archive: Path | None,
        *,
        rejects: bool = False,
        from_input: bool = False,
    ) -> None:
        self._from_input = from_input
        self.name, self.place, self.rejects = name, place, rejects
        self._bootstrap, self._folder, self._chance, self._archive = bootstrap, folder, chance, archive
        self._topic = f"faults-{name}-{uuid.uuid4().hex[:8]}"
        self._written: Counter[int] = Counter()
        self._started = 0

    def create_topic(self) -> None:
        """Create the topic; must be called first."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        admin.create_topics([NewTopic(self._topic, PARTITIONS, 1, config=dict(edges.TOPIC_CONFIG))])[
            self._topic
        ].result(30)

    def leader(self, partition: int) -> int:
        """Return the id of the broker that leads a partition."""
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        leader: int = admin.list_topics(self._topic, timeout=30).topics[self._topic].partitions[partition].leader
        return leader

    # -- the job

    @contextmanager
    def job(self, mode: str, crash_at: str = "", at_a_time: int = SLICE) -> Iterator[ChildProcess]:
        """Start the job as a process group, and end it at the end of the context.

        Args:
            mode: batch or stream.
            crash_at: point where the job kills itself: POINT or POINT:N of
                kafka_ratchet.spark_sink.stores.crash_points.
            at_a_time: offsets per commit.
        """
        self._started += 1
        environment = {"SPARK_SINK_CRASH_AT": crash_at, **self._secrets(), **quick_jvm(self._archive)}
        arguments = self._arguments(mode, at_a_time)
        job = ChildProcess(
            self._folder,
            f"job-{self._started}-{mode}",
            *arguments,
            module="kafka_ratchet.spark_sink",
            environment=environment,
        )
        try:
            yield job
        finally:
            if job.is_running:
                signal_job(job, signal.SIGKILL)
                job.wait()

    def _secrets(self) -> dict[str, str]:
        return {"SPARK_SINK_URL": self.place.url, "SPARK_SINK_PASSWORD": self.place.password or ""}

    def _arguments(self, mode: str, at_a_time: int) -> list[str]:
        return [
            f"--bootstrap={self._bootstrap}",
            f"--topic={self._topic}",
            f"--name={NAME}",
            f"--store={self.place.kind}",
            f"--path={self.place.path}",
            f"--table={self.place.table}",
            f"--mode={mode}",
            "--interval=0.1",
            f"--columns={edges.COLUMNS}",
            f"--max-records={at_a_time}",
            "--master=local[1]",
            f"--jars={','.join(map(str, spark_jars()))}",
            *(f"--spark-kafka-option={name}={value}" for name, value in JAVA_OPTIONS.items()),
            *(["--rejects"] if self.rejects else []),
            *(["--from-input"] if self._from_input else []),
        ]

    def require(self, job: ChildProcess, codes: Set[int]) -> int:
        """Wait until the job has ended, and return its exit code.

        Raises:
            FaultRunFailed: the job hangs, or ends with a code not in `codes`.
        """
        deadline = time.monotonic() + PATIENCE_S
        while job.is_running:
            if time.monotonic() > deadline:
                raise FaultRunFailed(f"{self.name}: {job.name} hangs:\n{job.last_words()}")
            time.sleep(ASK_EVERY_S)
        code = job.wait()
        if code not in codes:
            raise FaultRunFailed(f"{self.name}: {job.name} ended with {code}, not {set(codes)}:\n{job.last_words()}")
        return code

    def wait_for_commits(self, job: ChildProcess, commits: int) -> None:
        """Wait until the job has made that many commits."""
        self.wait_for_words(job, f"commit {commits}: ")

    def wait_for_words(self, job: ChildProcess, words: str, *, or_end: bool = False) -> None:
        """Wait until the job has printed the words.

        or_end: also stop waiting when the job has ended.

        Raises:
            FaultRunFailed: the job ends, or has not printed the words in time.
        """
        deadline = time.monotonic() + PATIENCE_S
        while words not in job.output():
            if or_end and not job.is_running:
                return
            if not job.is_running or time.monotonic() > deadline:
                raise FaultRunFailed(f"{self.name}: {job.name} did not say {words!r}:\n{job.last_words()}")
            time.sleep(ASK_EVERY_S)

    def finish(self, job: ChildProcess, or_else: Set[int] = frozenset()) -> None:
        """Let a stream commit the newest records, then stop it.

        or_else: exit codes allowed in addition to DONE, in case the stream ends on its own.
        """
        self.wait_for_words(job, f"commit {job.output().count(': commit ') + 1}: ", or_end=bool(or_else))
        if job.is_running:
            job.stop()
        self.require(job, {DONE, *or_else})

    # -- events and the count

    def write(self) -> None:
        """Write further records in transactions, and abort some of them."""
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "transactional.id": f"{self._topic}-writer"},
            logger=logging.getLogger("faults.kafka"),
        )
        producer.init_transactions(PATIENCE_S)
        for partition in range(PARTITIONS):
            commits = self._chance.random() < 0.8 or partition == 0
            producer.begin_transaction()
            first = self._written[partition]
            for n in range(PER_STEP // PARTITIONS):
                number = first + n if commits else -1
                headers = self._headers(partition, first + n) if self._from_input else None
                self._produce(producer, partition, number, headers)
                if commits and self._from_input and self._chance.random() < REPEATED:
                    again = self._chance.randrange(first + n + 1)
                    headers = self._headers(partition, again)
                    if len(headers) > 1:  # a record without a sequence is rejected each time
                        self._produce(producer, partition, again, headers)
            producer.flush(PATIENCE_S)  # a transaction aborted before it was sent would leave nothing to step over
            if commits:
                producer.commit_transaction(PATIENCE_S)
                self._written[partition] += PER_STEP // PARTITIONS
            else:
                producer.abort_transaction(PATIENCE_S)

    def _produce(self, producer: Producer, partition: int, n: int, headers: Headers | None) -> None:
        stamped: dict[str, Any] = {} if (at_ms := edges.timestamp_ms(n)) is None else {"timestamp": at_ms}
        producer.produce(self._topic, self._value(n), partition=partition, headers=headers, **stamped)

    def _headers(self, partition: int, n: int) -> list[tuple[str, str | bytes | None]]:
        """Return the headers of a raw record.

        Identities recur after `IDENTITIES` records, with higher sequences.
        """
        producer = ("ratchet-producer", f"{partition}-{n % IDENTITIES}".encode())
        if self.rejects and n % (2 * REJECTED) == 0:
            return [producer]
        return [producer, ("ratchet-sequence", str(n).encode())]

    def _value(self, n: int) -> str:
        if not self.rejects or n % REJECTED:
            return edges.value(n)
        return f"{n} {NO_JSON}" if n % (2 * REJECTED) else edges.rejected_value(n)

    @property
    def tables(self) -> list[TableLocation]:
        """Return the locations of the rows' table and, if there is one, of the rejects' table."""
        return [self.place, rejects_location(self.place)] if self.rejects else [self.place]

    def _positions(self, stored: Mapping[int, int]) -> tuple[Counter[Position], set[Position]]:
        """Return the counts of rows and rejects by position, and the rejects at or after the stored offsets.

        Rejects in a table of their own are committed before the rows, and may be ahead of them.
        """
        found = Counter[Position]()
        for partition, n, at in read_rows(self.place, ["_kafka_partition", "n", "_kafka_timestamp"]):
            found[int(partition), int(n)] += 1
            if not edges.is_right(int(n), at):
                raise FaultRunFailed(f"{self.name}: row {partition}/{n} has the wrong _kafka_timestamp {at}")
        ahead = set()
        for place in self.tables[1:]:
            for partition, offset, value in read_rows(place, ["_kafka_partition", "_kafka_offset", "_kafka_value"]):
                position = int(partition), edges.number(value)
                if position[1] % REJECTED:
                    raise FaultRunFailed(f"{self.name}: {value!r} is among the rejects, but must be a row")
                found[position] += 1
                if offset >= stored.get(partition, 0):
                    ahead.add(position)
        return found, ahead

    def compare_so_far(self) -> None:
        """Check that each partition's rows so far are consecutive, each once.

        Raises:
            FaultRunFailed: a row is missing, doubled or wrong, or the table cannot be read.
        """
        mode = WriteMode(judged=JudgeRule(self._topic) if self._from_input else None)
        store = make_store(self.place, NAME, self._topic, 0, RowPipeline("n long", mode, rejects=self.rejects))
        try:
            stored = store.offsets()
            found, ahead = self._positions(stored) if stored else (Counter(), set())
        except SinkError as error:
            raise FaultRunFailed(f"{self.name}: {error}") from None
        twice = [position for position, count in found.items() if count > 1]
        committed = set(found) - ahead
        # Numbers are consecutive per partition, so that a hole shows without the offsets of markers.
        counts = Counter(partition for partition, _ in committed)
        holes = [p for p, count in counts.items() if {n for q, n in committed if q == p} != set(range(count))]
        if twice or holes:
            raise FaultRunFailed(f"{self.name}: doubled {twice[:5]}, holes in partitions {holes}; stored {stored}")

    def count(self) -> tuple[int, int, int]:
        """Return the numbers of rows in the tables, of missing records, and of surplus rows."""
        found, _ = self._positions({})
        true = {(partition, n) for partition, count in self._written.items() for n in range(count)}
        doubled = sum(count - 1 for count in found.values()) + len(set(found) - true)
        return sum(found.values()), len(true - set(found)), doubled

    def class_archive(self, path: Path) -> bool:
        """Run one batch that records the classes of its JVM: later JVMs start in half the time.

        Returns:
            False if this Java cannot make such an archive
        """
        command = [sys.executable, "-m", "kafka_ratchet.spark_sink", *self._arguments("batch", SLICE)]
        return write_down(command, {**self._secrets(), **quick_jvm(None)}, path)


def quick_jvm(archive: Path | None) -> dict[str, str]:
    """Return the environment variables for a JVM that runs for seconds only."""
    variables = {"JAVA_TOOL_OPTIONS": QUICK_JVM}
    if archive is not None:
        variables[OPTIONS] = using(archive)
    return variables


def signal_job(job: ChildProcess, number: signal.Signals) -> None:
    """Send a signal to the driver of a job and the JVM started by it."""
    os.killpg(os.getpgid(job.pid), number)
