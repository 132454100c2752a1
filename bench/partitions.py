"""Bench of a worker with very many partitions: its start, the cost of idle partitions, the speed of busy ones.

All measured records are sent in one transaction while the worker runs, so that they become visible at once, and every
lane has work from the beginning to the end. Some records are sent and processed before that, because the broker creates
index files at the first records of a partition. The first run does not count, because a new broker compiles its code
during that run, which takes a third of the broker's CPU time.
"""

from __future__ import annotations

import http.client
import random
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from bench.kafka import create, produce
from bench.load import HEAD, PARTITIONS, SEQUENCE, ExpectedOutput, Load, filled, filler_of, is_right, producer_options
from bench.measure import END_WITHIN_S, Result, RunningProcess, forget
from bench.spread import spread
from bench.subjects import SUBJECTS, Task
from faults.process import cpu_seconds, peak_bytes
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.app.local.ports import free_port
from kafka_ratchet.errors import BenchFailed
from kafka_ratchet.topic_log.clients import consumer, offset_ranges

READY_WITHIN_S: Final = 900.0
SETTLE_S: Final = 10.0
"""Seconds from the start of the last lane to the measurement without records.

In this time the worker writes its stores and closes connections."""
LOOK_S: Final = 0.05
READY_LOOK_S: Final = 0.2
WARM_SHARE: Final = 20
"""Divisor of the number of measured records; the quotient is the number of records sent before the measured ones."""
WARM_STEPS: Final = 4
"""Number of transactions with the records sent before the measured ones."""
COMMIT_MS: Final = 100
COMMIT_WITHIN_S: Final = 60.0
MEASURED: Final = ("seconds", "cpu_s", "broker_cpu_s")
OPEN_MS: Final = 900_000
"""Timeout in ms of the transaction with the measured records, the greatest that Kafka allows by default."""


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """Time and CPU used in a part of a run.

    Attributes:
        seconds: seconds that passed
        cpu_s: CPU seconds of the worker
        broker_cpu_s: CPU seconds of the broker
    """

    seconds: float
    cpu_s: float
    broker_cpu_s: float

    @property
    def core(self) -> float:
        """Return the share of a core that the worker used."""
        return self.cpu_s / self.seconds

    @property
    def broker_core(self) -> float:
        """Return the share of a core that the broker used."""
        return self.broker_cpu_s / self.seconds


@dataclass(frozen=True, slots=True)
class ManyPartitionsRun(Result):
    """One run with many partitions.

    Attributes:
        partitions: partitions of the stream.
        busy: partitions with records.
        start: time and CPU from the start of the process until every lane runs, on new topics.
        again: time and CPU of a second start, until every lane runs.
        idle: time and CPU during a phase without records.
        work: time and CPU from the time at which the records become visible to the last commit.
        records_per_s: records per second of all busy partitions, in that time.
        peak_mb: peak resident memory since the second start, in megabytes.
        verified: True if the output is right.
    """

    partitions: int
    busy: int
    start: ResourceUse
    again: ResourceUse
    idle: ResourceUse
    work: ResourceUse
    records_per_s: int
    peak_mb: int
    verified: bool


def partitions(
    count: int, busy: int, records: int, keys: int, idle_s: float, rounds: int, say: Callable[[ManyPartitionsRun], None]
) -> dict[str, Any]:
    """Run a worker with many partitions and one with PARTITIONS, in turn.

    Args:
        count: number of partitions.
        busy: number of partitions with records.
        records: number of records of each run.
        keys: number of identities.
        idle_s: seconds of the measurement without records.
        rounds: number of runs of each worker.
        say: function called with each run at its end.

    Returns:
        ratios of the first worker to the second, and the cost of an idle partition as shares of a core.

    Raises:
        BenchFailed: a worker does not start, or does not finish.
    """
    few_of = replace(Load(), records=records, keys=keys)
    many: list[ManyPartitionsRun] = []
    few: list[ManyPartitionsRun] = []
    with tempfile.TemporaryDirectory(prefix="ratchet-bench-kafka-") as folder, EmbeddedBroker(Path(folder)) as broker:
        _run(broker, few_of, PARTITIONS, 0.0)
        for _ in range(rounds):
            for runs, load, number in (many, replace(few_of, partitions=count), busy), (few, few_of, PARTITIONS):
                runs.append(_run(broker, load, number, idle_s))
                say(runs[-1])
    more = count - PARTITIONS
    pairs = list(zip(many, few, strict=True))
    return {
        "throughput_ratio": spread(a.records_per_s / b.records_per_s for a, b in pairs),
        "cpu_ratio": spread(a.work.cpu_s / b.work.cpu_s for a, b in pairs),
        "idle_core_each": spread(((a.idle.core - b.idle.core) / more for a, b in pairs), 6),
        "idle_broker_core_each": spread(((a.idle.broker_core - b.idle.broker_core) / more for a, b in pairs), 6),
        **{f"start_{name}": spread((getattr(a.start, name) for a in many), 2) for name in MEASURED},
        **{f"again_{name}": spread((getattr(a.again, name) for a in many), 2) for name in MEASURED},
        "verified": all(run.verified for run in (*many, *few)),
    }


def _run(broker: EmbeddedBroker, load: Load, busy: int, idle_s: float) -> ManyPartitionsRun:
    run = f"partitions-{load.partitions}-{uuid.uuid4().hex[:8]}"
    topic, output = f"bench.{run}.in", f"bench.{run}.out"
    create(broker.bootstrap, topic, partitions=load.partitions)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ratchet-bench-"))
        task = Task(broker.bootstrap, topic, output, f"bench-{run}", folder, COMMIT_MS, load.partitions)
        first, start = _start(broker, task)
        first.stop()
        running, again = _start(broker, task)
        stack.callback(running.stop)
        time.sleep(SETTLE_S)
        idle = _spent(broker, running, lambda: time.sleep(idle_s))
        numbers = [index * load.partitions // busy for index in range(busy)]
        warm = load.records // WARM_SHARE
        truth, commit = _send_unseen(
            broker.bootstrap, topic, load, numbers, warm, lambda: _wait(task, numbers, running)
        )
        commit()
        work = _spent(broker, running, lambda: _wait(task, numbers, running))
        peak = peak_bytes(running.process.pid)
    right = is_right(broker.bootstrap, output, truth)
    forget(broker.bootstrap, run)
    rate = round((load.records - warm) / work.seconds)
    return ManyPartitionsRun("ratchet", load.partitions, busy, start, again, idle, work, rate, peak >> 20, right)


def _spent(broker: EmbeddedBroker, running: RunningProcess, work: Callable[[], None]) -> ResourceUse:
    pid, began = running.process.pid, time.monotonic()
    before, broker_before = cpu_seconds(pid), cpu_seconds(broker.java_pid)
    work()
    return _since(began, cpu_seconds(pid) - before, cpu_seconds(broker.java_pid) - broker_before)


def _since(began: float, cpu_s: float, broker_cpu_s: float) -> ResourceUse:
    return ResourceUse(round(time.monotonic() - began, 3), round(cpu_s, 2), round(broker_cpu_s, 2))


def _start(broker: EmbeddedBroker, task: Task) -> tuple[RunningProcess, ResourceUse]:
    """Start the worker, and wait until every lane runs; return the process, and the resources used."""
    port = free_port()
    command = SUBJECTS["ratchet"].command(task)
    with (Path(task.folder) / "ratchet.toml").open("a", encoding="utf-8") as config:
        config.write(f"\n[web]\nstatus_port = {port}\n")
    began, broker_before = time.monotonic(), cpu_seconds(broker.java_pid)
    running = RunningProcess(command, "worker runs")
    try:
        while not _is_ready(port):
            running.check()
            if time.monotonic() - began > READY_WITHIN_S:
                raise BenchFailed(
                    f"the worker is not ready after {READY_WITHIN_S:.0f} s. It printed:\n{running.printed}"
                )
            time.sleep(READY_LOOK_S)
    except BaseException:
        running.kill()
        raise
    cpu_s = cpu_seconds(running.process.pid)
    return running, _since(began, cpu_s, cpu_seconds(broker.java_pid) - broker_before)


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _send_unseen(
    bootstrap: str, topic: str, load: Load, numbers: list[int], warm: int, until_done: Callable[[], None]
) -> tuple[ExpectedOutput, Callable[[], None]]:
    """Send all records, the measured ones in a transaction that stays open.

    Args:
        bootstrap: host:port[,host:port].
        topic: the worker's input.
        load: numbers of records and keys.
        numbers: partitions to send to; all records of a key go to the same one.
        warm: number of records sent before the measured ones, in WARM_STEPS transactions, so that the worker has opened
            its connections and stores.
        until_done: function that waits until the worker has processed the records sent so far.

    Returns:
        the right output, and the function that commits the open transaction.
    """
    producer = Producer(
        {**producer_options(bootstrap, load), "transactional.id": topic, "transaction.timeout.ms": OPEN_MS}
    )
    producer.init_transactions(COMMIT_WITHIN_S)
    producer.begin_transaction()
    choose = random.Random(1)
    filler, last = filler_of(choose, load), [0] * load.keys
    pauses = {step * warm // WARM_STEPS for step in range(1, WARM_STEPS + 1)}
    for number in range(load.records):
        if number in pauses:
            producer.commit_transaction(COMMIT_WITHIN_S)
            until_done()
            producer.begin_transaction()
        user = choose.randrange(load.keys)
        if number % 5 < 4 or not last[user]:  # otherwise the last one once more
            last[user] += 1
        headers: list[tuple[str, str | bytes | None]] = [("ratchet-sequence", SEQUENCE.pack(last[user]))]
        value = filled(HEAD % (last[user], user), filler, user * 31 + last[user], load)
        where = numbers[user % len(numbers)]
        produce(producer, topic, value, b"user-%d" % user, headers=headers, partition=where)
        producer.poll(0)
    producer.flush(END_WITHIN_S)
    return ExpectedOutput(last), lambda: producer.commit_transaction(COMMIT_WITHIN_S)


def _wait(task: Task, numbers: Iterable[int], running: RunningProcess) -> None:
    """Wait until the group has committed the end of each partition in `numbers`."""
    with consumer({"bootstrap.servers": task.bootstrap}, "bench-ends") as asked:
        held = offset_ranges(asked, task.input, task.partitions)
    options = {"bootstrap.servers": task.bootstrap, "group.id": task.group, "isolation.level": "read_uncommitted"}
    reader = Consumer({**options, "log_level": 0})
    missing = [TopicPartition(task.input, number) for number in numbers]
    ends_at = time.monotonic() + END_WITHIN_S
    try:
        while missing:
            running.check()
            if time.monotonic() > ends_at:
                raise BenchFailed(
                    f"{task.input}: after {END_WITHIN_S:.0f} s the worker's group {task.group!r} has not committed the "
                    f"end of {len(missing)} partitions, {missing[0].partition} among them. The worker printed:\n"
                    f"{running.printed}"
                )
            time.sleep(LOOK_S)
            try:
                found = reader.committed(missing, timeout=10)
            except KafkaException:
                continue
            missing = [
                TopicPartition(task.input, place.partition)
                for place in found
                if place.offset < held[place.partition].end
            ]
    finally:
        reader.close()
