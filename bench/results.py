"""Bench of Ratchet's Spark job with each store, next to the usual job and one that writes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from confluent_kafka import Producer

from bench.kafka import create, produce
from bench.peer_programs import DELTA_SPARK, LOCK_FILE
from bench.spread import spread
from faults.database_server import DatabaseServer
from faults.process import cpu_seconds
from faults.servers import SERVERS
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.app.local.jars import read_lock, resolve, spark_jars
from kafka_ratchet.app.local.spark_classes import with_classes
from kafka_ratchet.errors import BenchFailed
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.results import read_rows

RATCHET: Final = ("delta", "postgres", "mysql", "duckdb", "iceberg")
OTHERS: Final = ("usual", "nothing")
PARTITIONS: Final = 4
COLUMNS: Final = "n long, user string, amount double, note string"
PER_TRANSACTION: Final = 10_000
"""Records per transaction of the input, as from a worker with 100,000 records per second and commits every 100 ms."""
FLUSH_S: Final = 300.0
PATIENCE_S: Final = 1_200.0
STEADY_FROM: Final = 3
"""Number of the first commit that the rate counts, because by then the JVM has compiled its code."""


@dataclass(frozen=True, slots=True)
class SinkRun:
    """Measures of one run of a job.

    Attributes:
        seconds: seconds of the whole process.
        first_commit_s: seconds from the start of the process to its first commit.
        offsets_per_s: offsets a second from the first commit to the last; 0 if there is only one commit.
        commits_per_s: commits a second from commit `STEADY_FROM` to the last; 0 without later commits.
        cpu_s: CPU seconds of all its processes until the last commit, per million records.
    """

    kind: str
    seconds: float
    first_commit_s: float
    commits: int
    offsets_per_s: int
    commits_per_s: float
    cpu_s: float

    def as_dict(self) -> dict[str, Any]:
        """Return the run as a JSON object."""
        return asdict(self)


def results(
    kinds: list[str], records: int, value_bytes: int, at_a_time: int, rounds: int, say: Callable[[SinkRun], None]
) -> dict[str, Any]:
    """Run each kind of job in turn, and return the measures.

    There are `rounds` rounds, after one that does not count.

    Args:
        kinds: kinds of jobs, in `RATCHET` or `OTHERS`.
        records: number of records in the topic, committed in transactions.
        value_bytes: approximate bytes of each value.
        at_a_time: offsets per commit.
        rounds: number of counted rounds.
        say: function called with each run.

    Returns:
        medians by kind; and the ratios of the first kind to each other kind, taken round by round

    Raises:
        BenchFailed: a job fails, or its table does not have every record once.
    """
    found: dict[str, list[SinkRun]] = {kind: [] for kind in kinds}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ratchet-bench-")))
        broker = stack.enter_context(EmbeddedBroker(folder / "kafka"))
        servers: dict[str, DatabaseServer] = {
            kind: stack.enter_context(run()) for kind, run in SERVERS.items() if kind in kinds
        }
        _fill(broker.bootstrap, "results", records, value_bytes)
        for number in range(rounds + 1):
            for kind in kinds:
                place = _place(kind, folder / f"{kind}-{number}", f"results_{number}", servers)
                run = _run(kind, broker.bootstrap, place, at_a_time, records)
                if kind != "nothing":
                    _require_all(kind, place, records)
                if number:
                    found[kind].append(run)
                    say(run)
    return _summary(found)


def _fill(bootstrap: str, topic: str, records: int, value_bytes: int) -> None:
    create(bootstrap, topic, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "linger.ms": 20})
    producer.init_transactions(FLUSH_S)
    head = '{"n": %d, "user": "user-%d", "amount": %d.25, "note": "'
    note = "x" * max(0, value_bytes - len(head % (records, 10_000, 1_000)) - 2)
    for start in range(0, records, PER_TRANSACTION):
        producer.begin_transaction()
        for n in range(start, min(records, start + PER_TRANSACTION)):
            value = f'{head % (n, n % 10_000, n % 1_000)}{note}"}}'
            produce(producer, topic, value, b"%d" % (n % 10_000), partition=n % PARTITIONS)
        producer.commit_transaction(FLUSH_S)


def _place(kind: str, path: Path, table: str, servers: Mapping[str, DatabaseServer]) -> TableLocation:
    if kind in servers:
        return TableLocation(kind, "", table, servers[kind].url, servers[kind].password)
    return TableLocation("delta" if kind in OTHERS else kind, str(path), "results")


def _command(kind: str, bootstrap: str, place: TableLocation, at_a_time: int) -> list[str]:
    if kind in OTHERS:
        jars = [str(jar) for jar in resolve(DELTA_SPARK, lock=read_lock(DELTA_SPARK.name, LOCK_FILE))]
        task = {
            "kind": kind,
            "bootstrap": bootstrap,
            "topic": "results",
            "path": place.path,
            "columns": COLUMNS,
            "at_a_time": at_a_time,
            "jars": jars,
        }
        return ["-m", "bench.peers.results", json.dumps(task)]
    return [
        "-m",
        "kafka_ratchet.spark_sink",
        f"--bootstrap={bootstrap}",
        "--topic=results",
        "--name=bench",
        f"--store={place.kind}",
        f"--path={place.path}",
        f"--table={place.table}",
        f"--columns={COLUMNS}",
        f"--max-records={at_a_time}",
        "--master=local[2]",
        f"--jars={','.join(map(str, spark_jars()))}",
    ]


def _run(kind: str, bootstrap: str, place: TableLocation, at_a_time: int, records: int) -> SinkRun:
    secrets = {"SPARK_SINK_URL": place.url, "SPARK_SINK_PASSWORD": place.password or ""}
    environment = dict(os.environ) if kind in OTHERS else with_classes(os.environ)  # as `ratchet sink` starts it
    moments: list[float] = []
    cpu = 0.0
    last: list[str] = []
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, *_command(kind, bootstrap, place, at_a_time)],
        env={**environment, **secrets},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as job:
        assert job.stderr is not None
        for line in job.stderr:
            last = [*last[-30:], line]
            if "commit " in line:
                moments.append(time.monotonic())
                cpu = cpu_seconds(job.pid)
            if time.monotonic() - began > PATIENCE_S:
                job.kill()
                raise BenchFailed(f"{kind} made {len(moments)} commits in {PATIENCE_S:.0f} s")
    seconds = time.monotonic() - began
    if job.returncode or not moments:
        raise BenchFailed(f"{kind} ended with code {job.returncode} after {len(moments)} commits:\n{''.join(last)}")
    commits, ends = len(moments), (moments[0], moments[-1])
    # Each transaction leaves a marker in every partition, and markers have offsets.
    offsets = records + PARTITIONS * -(-records // PER_TRANSACTION)
    steady = moments[min(STEADY_FROM, commits) - 1]
    return SinkRun(
        kind,
        round(seconds, 2),
        round(moments[0] - began, 2),
        commits,
        round((offsets - at_a_time) / (ends[1] - ends[0])) if commits > 1 else 0,
        round((commits - STEADY_FROM) / (ends[1] - steady), 2) if commits > STEADY_FROM else 0.0,
        round(cpu / records * 1e6, 2),
    )


def _require_all(kind: str, place: TableLocation, records: int) -> None:
    numbers = sorted(n for (n,) in read_rows(place, ["n"]))
    if numbers != list(range(records)):
        raise BenchFailed(f"{kind}: the table has {len(numbers)} rows instead of one for each of {records} records")


def _summary(found: dict[str, list[SinkRun]]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    first = next(iter(found))
    for kind, runs in found.items():
        told[kind] = {
            name: median(run.as_dict()[name] for run in runs)
            for name in ("seconds", "first_commit_s", "offsets_per_s", "commits_per_s", "cpu_s")
        }
        if kind != first:
            for name in ("offsets_per_s", "commits_per_s"):
                pairs = zip(found[first], runs, strict=True)
                if ratios := [a.as_dict()[name] / b.as_dict()[name] for a, b in pairs if b.as_dict()[name]]:
                    told[f"{first}_to_{kind}_{name}"] = spread(ratios)
    return told
