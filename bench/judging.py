"""Bench of Spark jobs that deduplicate a topic into a Delta table: `--from-input` next to Spark's own means.

`lost_checkpoint` starts each job again over its table without its checkpoint, as after a lost disk, and counts the rows
that this adds.
"""

from __future__ import annotations

import json
import operator
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bench.load import SEQUENCE_AT, ExpectedOutput, Load, fill
from bench.peer_programs import DELTA_SPARK, LOCK_FILE
from bench.spread import spread
from faults.process import cpu_seconds, tree
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.app.local.jars import read_lock, resolve, spark_jars
from kafka_ratchet.app.local.spark_classes import with_classes
from kafka_ratchet.errors import BenchFailed
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.results import scan

OURS: Final = "ratchet"
QUICK_PEERS: Final = ("watermark",)
PEERS: Final = (*QUICK_PEERS, "state")
TOPIC: Final = "raw"
MASTER: Final = "local[2]"
CLUSTER: Final = "local-cluster[1,2,2048]"
"""Master of a local Spark cluster with one worker process of two cores and 2 GiB."""
DRIVER_HEAP: Final = "512m"
PATIENCE_S: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class JudgingRun:
    """Measures of one run of a job.

    Attributes:
        seconds: seconds of the whole process, including the start of Spark.
        judging_s: seconds from the first commit to the last; 0 if there is only one commit.
        commits: number of commits.
        cpu_s: CPU seconds of all its processes until the last commit, per million records.
        peaks: by process, its peak memory in MiB: the driver's Python process, and the JVMs by role. With a local
            master, driver and executor are one JVM.
    """

    kind: str
    seconds: float
    judging_s: float
    commits: int
    cpu_s: float
    peaks: dict[str, float]


def judging(kinds: list[str], load: Load, at_a_time: int, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Run each kind of job in turn, and return the measures.

    There are `rounds` rounds, after one that does not count.

    Args:
        kinds: kinds of jobs, `OURS` or in `PEERS`.
        load: content of the topic.
        at_a_time: offsets per commit.
        rounds: number of counted rounds.
        say: function called with lines about the progress.

    Returns:
        medians by kind; and the ratios of each peer's time to Ratchet's, round by round

    Raises:
        BenchFailed: a job fails, or its table does not hold each new record once.
    """
    found: dict[str, list[JudgingRun]] = {kind: [] for kind in kinds}
    told: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ratchet-bench-")))
        broker = stack.enter_context(EmbeddedBroker(folder / "kafka"))
        truth = fill(broker.bootstrap, TOPIC, load)
        for number in range(rounds + 1):
            for kind in kinds:
                path = folder / f"{kind}-{number}"
                run = _run(kind, broker.bootstrap, path, at_a_time, load)
                if wrong := _wrong(path, truth):
                    raise BenchFailed(f"{kind}: the table does not hold each new record once: {wrong}")
                if number:
                    found[kind].append(run)
                    say(json.dumps(asdict(run)))
                shutil.rmtree(path, ignore_errors=True)
    for kind, runs in found.items():
        names = ("seconds", "judging_s", "cpu_s")
        told[kind] = {name: round(median(asdict(run)[name] for run in runs), 2) for name in names}
        if kind != kinds[0]:
            for name in ("seconds", "judging_s"):
                told[f"{kind}_to_{kinds[0]}_{name}"] = spread(
                    asdict(theirs)[name] / asdict(ours)[name]
                    for ours, theirs in zip(found[kinds[0]], runs, strict=True)
                    if asdict(ours)[name]
                )
    return told


def lost_checkpoint(kinds: list[str], load: Load, at_a_time: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Run each kind of job, remove the files next to its table, and run it again over the same topic.

    Args:
        kinds: kinds of jobs, `OURS` or in `PEERS`.
        load: content of the topic.
        at_a_time: offsets per commit.
        say: function called with lines about the progress.

    Returns:
        by kind, the numbers of rows, of doubled rows, and of new records without a row, after the second run.

    Raises:
        BenchFailed: a job fails, or its table lacks or doubles a new record after the first run.
    """
    told: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ratchet-bench-")))
        broker = stack.enter_context(EmbeddedBroker(folder / "kafka"))
        truth = fill(broker.bootstrap, TOPIC, load)
        for kind in kinds:
            path = folder / kind
            _run(kind, broker.bootstrap, path, at_a_time, load)
            if wrong := _wrong(path, truth):
                raise BenchFailed(f"{kind}: the table does not hold each new record once: {wrong}")
            beside = [each for each in folder.iterdir() if each.name.startswith(f"{kind}.")]
            for each in beside:
                shutil.rmtree(each)
            _run(kind, broker.bootstrap, path, at_a_time, load, may_be_empty=True)
            lost = [each.name for each in beside]
            told[kind] = {"lost beside the table": lost, "new records": truth.fresh, **_counted(path, truth)}
            say(json.dumps({"kind": kind, **told[kind]}))
    return told


def driver_memory(records: int, sizes: list[int], at_a_time: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure the driver's memory for each number of identities, with the executors in other processes.

    Args:
        records: records of each topic.
        sizes: identities of each topic.
        at_a_time: offsets per commit.
        say: function called with lines about the progress.

    Returns:
        for each number of identities, the peak memory in MiB of the driver's Python, of its JVM (with a heap of
        `DRIVER_HEAP`) and of the executors' JVM; and the number of rows.

    Raises:
        BenchFailed: a run fails, or its table lacks or doubles a new record.
    """
    told = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ratchet-bench-")))
        broker = stack.enter_context(EmbeddedBroker(folder / "kafka"))
        for keys in sizes:
            load, path, topic = Load(records, keys), folder / f"keys-{keys}", f"raw-{keys}"
            truth = fill(broker.bootstrap, topic, load)
            words = _command(OURS, broker.bootstrap, path, at_a_time, topic, CLUSTER)
            run = _measured(OURS, words, load, heap=DRIVER_HEAP)
            if wrong := _wrong(path, truth):
                raise BenchFailed(f"{keys} identities: the table does not hold each new record once: {wrong}")
            known = sum(last > 0 for last in truth.last)
            one = {"identities": known, "rows": truth.fresh, **run.peaks, "seconds": run.seconds}
            told.append(one)
            say(json.dumps(one))
    return told


def _command(
    kind: str, bootstrap: str, path: Path, at_a_time: int, topic: str = TOPIC, master: str = MASTER
) -> list[str]:
    if kind != OURS:
        jars = [str(jar) for jar in resolve(DELTA_SPARK, lock=read_lock(DELTA_SPARK.name, LOCK_FILE))]
        task = {
            "kind": kind,
            "bootstrap": bootstrap,
            "topic": topic,
            "path": str(path),
            "at_a_time": at_a_time,
            "jars": jars,
            "master": master,
        }
        return ["-m", "bench.peers.judging", json.dumps(task)]
    return [
        "-m",
        "kafka_ratchet.spark_sink",
        f"--bootstrap={bootstrap}",
        f"--topic={topic}",
        "--from-input",
        "--name=bench",
        "--store=delta",
        f"--path={path}",
        f"--max-records={at_a_time}",
        f"--master={master}",
        f"--jars={','.join(map(str, spark_jars()))}",
    ]


def _run(
    kind: str, bootstrap: str, path: Path, at_a_time: int, load: Load, *, may_be_empty: bool = False
) -> JudgingRun:
    return _measured(kind, _command(kind, bootstrap, path, at_a_time), load, may_be_empty=may_be_empty)


def _measured(kind: str, words: list[str], load: Load, *, heap: str = "3g", may_be_empty: bool = False) -> JudgingRun:
    moments: list[float] = []
    cpu = 0.0
    last: list[str] = []
    began = time.monotonic()
    environment = with_classes(os.environ) if kind == OURS else os.environ  # as `ratchet sink` starts it
    with subprocess.Popen(
        [sys.executable, *words],
        env={**environment, "PYSPARK_SUBMIT_ARGS": f"--driver-memory {heap} pyspark-shell"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as job:
        peaks: dict[str, float] = {}
        assert job.stderr is not None
        for line in job.stderr:
            last = [*last[-30:], line]
            if "commit " in line:
                moments.append(time.monotonic())
                cpu = cpu_seconds(job.pid)
            peaks = {**peaks, **_peaks(job.pid)}
            if time.monotonic() - began > PATIENCE_S:
                job.kill()
                raise BenchFailed(f"{kind} made {len(moments)} commits in {PATIENCE_S:.0f} s")
    seconds = time.monotonic() - began
    if job.returncode or not (moments or may_be_empty):
        raise BenchFailed(f"{kind} ended with code {job.returncode} after {len(moments)} commits:\n{''.join(last)}")
    return JudgingRun(
        kind,
        round(seconds, 2),
        round(moments[-1] - moments[0], 2) if moments else 0.0,
        len(moments),
        round(cpu / load.records * 1e6, 2),
        peaks,
    )


def _peaks(pid: int) -> dict[str, float]:
    """Return the peak memory of a job's parts so far, in MiB, by name of the part."""
    found: dict[str, float] = {}
    for one in tree(pid):
        with suppress(OSError):
            words = Path(f"/proc/{one}/cmdline").read_bytes()
            name = "driver" if one == pid else "driver's JVM" if b"org.apache.spark.deploy.SparkSubmit" in words else ""
            name = "executors" if b"CoarseGrainedExecutorBackend" in words else name
            for line in Path(f"/proc/{one}/status").read_text("ascii", errors="replace").splitlines():
                if name and line.startswith("VmHWM:"):
                    found[name] = found.get(name, 0.0) + round(int(line.split()[1]) / 1024, 1)
    return found


def _counted(path: Path, truth: ExpectedOutput) -> dict[str, int]:
    """Return the numbers of rows in the table, of doubled rows, and of new records without a row."""
    rows, different = _records(path)
    return {"rows": rows, "doubled": rows - len(different), "lost": truth.fresh - len(different)}


def _records(path: Path) -> tuple[int, set[bytes]]:
    """Return the number of rows in the table, and the set of its distinct records.

    A record is the sequence in its value, followed by its key.
    """
    columns = pa.schema([("_kafka_key", pa.binary()), ("_kafka_value", pa.binary())])
    rows, found = 0, set[bytes]()
    for batch in scan(TableLocation("delta", str(path)), columns):
        sequences = pc.binary_slice(batch.column("_kafka_value"), SEQUENCE_AT.start, SEQUENCE_AT.stop).to_pylist()
        found.update(map(operator.add, sequences, batch.column("_kafka_key").to_pylist()))
        rows += batch.num_rows
    return rows, found


def _wrong(path: Path, truth: ExpectedOutput) -> str:
    counted = _counted(path, truth)
    return json.dumps(counted) if counted["doubled"] or counted["lost"] else ""
