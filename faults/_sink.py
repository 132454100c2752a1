"""Faults of the Spark job: it is killed, frozen and started twice over every store, and its rows are counted."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from app._broker import choose_broker
from app._jars import spark_jars
from app._part import Part
from errors import FaultRunFailed
from faults._postgres import PostgresServer, find_postgres, run_postgres
from spark_sink import Place, Recipe, SinkError, make_store, read_rows

POINTS = ("before-write", "before-commit", "after-commit")
"""Where the job kills itself: nothing of the commit is done, all but the commit, and the commit is done."""
INSIDE = "in-commit"
"""Another such point, for databases: the transaction has everything and is open."""

MODES = ("batch", "stream")
PARTITIONS = 3
NAME = "faulted"

SLICE = 150
"""Offsets per commit."""
PER_STEP = 600
"""Records that are added before each fault: more commits than any fault waits for, so that none comes too late."""

PATIENCE_S = 300.0
"""What has not happened by then has hung: a start of Spark takes ten seconds, on a machine that does nothing else."""
ASK_EVERY_S = 0.1

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""These JVMs live for seconds: optimising their code would take longer than running it."""

STAGED = "SELECT * FROM records"
"""Changes nothing, but a result with a query is staged and committed by the driver."""

KILLED = frozenset({-signal.SIGKILL, 128 + signal.SIGKILL})
"""Exit codes of a part whose group was killed: the guard's own, or what it says of the job."""
DONE, FENCED = 0, 3
"""Exit codes of the job; see spark_sink._command."""

Say = Callable[[str], None]


@dataclass
class StoreResult:
    """What became of one store's rows."""

    kills: int = 0
    frozen: int = 0
    pairs: int = 0
    restarts: int = 0
    rows: int = 0
    lost: int = 0
    doubled: int = 0

    @property
    def ok(self) -> bool:
        """Whether every record is a row, once."""
        return self.lost == 0 and self.doubled == 0


@dataclass
class SinkResult:
    """What became of all of them."""

    stores: dict[str, StoreResult] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every store is."""
        return bool(self.stores) and all(store.ok for store in self.stores.values())

    def as_dict(self) -> dict[str, Any]:
        """For the last line of a run."""
        return {"stores": {name: vars(store) for name, store in self.stores.items()}}


def run_sink(short: bool, seed: int, say: Say, folder: Path | None, only: tuple[str, ...] = ()) -> SinkResult:
    """Do it all.

    Args:
        short: each fault once instead of twenty times.
        seed: of the order and the moments.
        say: for progress.
        folder: a new folder for logs and tables; None: a temporary one.
        only: names of stores; none: all that can run here.

    Raises:
        FaultRunFailed: the job did something that it must not do, or hung.
        SetupError: a part of the site could not be started.
    """
    result = SinkResult()
    with ExitStack() as site:
        if folder is None:
            folder = Path(site.enter_context(tempfile.TemporaryDirectory(prefix="ratchet-faults-sink-")))
        else:
            folder.mkdir(parents=True)
        say(f"seed {seed}; logs and data in {folder}")
        names = only or tuple(name for name in STORES if not name.startswith("postgres") or find_postgres() is not None)
        for name in sorted(set(STORES) - set(names)):
            say(f"{name} is left out")
        server = site.enter_context(run_postgres()) if any(name.startswith("postgres") for name in names) else None
        bootstrap = site.enter_context(choose_broker())
        for name in names:
            run = _Run(name, bootstrap, folder / name, server, random.Random(f"{seed} {name}"), say)  # noqa: S311
            result.stores[name] = run.all(1 if short else 20)
            say(f"{name}: {vars(result.stores[name])}")
    return result


STORES: dict[str, Callable[[Path, PostgresServer | None], tuple[Place, list[str]]]] = {
    "delta": lambda folder, _: (Place("delta", str(folder / "table")), []),
    "duckdb": lambda folder, _: (Place("duckdb", str(folder / "table.duckdb")), []),
    "iceberg": lambda folder, _: (Place("iceberg", str(folder / "table")), []),
    "postgres": lambda _, server: (_of_server(server, "in_tasks"), []),
    "postgres-staged": lambda _, server: (_of_server(server, "staged"), [f"--sql={STAGED}"]),
}


def _of_server(server: PostgresServer | None, table: str) -> Place:
    if server is None:
        raise FaultRunFailed("there is no PostgreSQL to run this store on")
    return Place("postgres", "", table, server.url, server.password)


class _Run:
    """All faults over one store."""

    def __init__(
        self, name: str, bootstrap: str, folder: Path, server: PostgresServer | None, chance: random.Random, say: Say
    ) -> None:
        self._name, self._bootstrap, self._folder, self._say = name, bootstrap, folder, say
        self._server = server if name.startswith("postgres") else None
        self._chance = chance
        folder.mkdir()
        self._place, self._more = STORES[name](folder, server)
        self._topic = f"faults-{name}-{uuid.uuid4().hex[:8]}"
        self._written: Counter[int] = Counter()
        self._parts = 0
        self.result = StoreResult()

    def all(self, times: int) -> StoreResult:
        """Every fault that many times, in random order, then the count."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        admin.create_topics([NewTopic(self._topic, PARTITIONS, 1)])[self._topic].result(30)
        steps: list[tuple[str, Callable[[], None]]] = []
        for mode in MODES:
            inside = () if self._place.kind in {"delta", "iceberg"} else (INSIDE,)
            for point in (*POINTS, *inside):
                steps += [(f"{mode}: killed {point}", partial(self._killed_at, mode, point))] * times
            steps += [(f"{mode}: killed at any moment", partial(self._killed_at_random, mode))] * times
            steps += [(f"{mode}: frozen, and back after its successor", partial(self._frozen, mode))] * times
        steps += [("two started together", self._pair)] * times
        if self._server is not None:
            steps += [("stream: the server crashes", self._server_crashes)] * times
        self._chance.shuffle(steps)
        for number, (what, step) in enumerate(steps, start=1):
            self._say(f"  {self._name} {number}/{len(steps)}: {what}")
            self._write()
            step()
            self._compare_so_far()
        with self._job("batch") as job:
            self._require(job, {DONE})
        self._count()
        return self.result

    # -- faults

    def _killed_at(self, mode: str, point: str) -> None:
        with self._job(mode, f"{point}:{self._chance.randint(1, 3)}") as job:
            self._require(job, KILLED)
        self.result.kills += 1

    def _killed_at_random(self, mode: str) -> None:
        with self._job(mode) as job:
            self._wait_for_commits(job, self._chance.randint(1, 2))
            time.sleep(self._chance.random() * 0.5)
            _signal(job, signal.SIGKILL)
            self._require(job, {*KILLED, DONE})
        self.result.kills += 1

    def _frozen(self, mode: str) -> None:
        with self._job(mode) as job:
            self._wait_for_commits(job, 1)
            time.sleep(self._chance.random() * 0.3)
            _signal(job, signal.SIGSTOP)
            with self._job("batch") as successor:
                self._require(successor, {DONE})
            self._write()  # so that the one that comes back has something to do
            _signal(job, signal.SIGCONT)
            # A batch that had finished before it was frozen has nothing left to be fenced from.
            self._require(job, {FENCED} if mode == "stream" else {FENCED, DONE})
        self.result.frozen += 1

    def _pair(self) -> None:
        with self._job("batch") as one, self._job("batch") as other:
            codes = {self._require(one, {DONE, FENCED}), self._require(other, {DONE, FENCED})}
        if codes == {FENCED}:
            raise FaultRunFailed(f"{self._name}: two jobs were started together, and both were fenced")
        self.result.pairs += 1

    def _server_crashes(self) -> None:
        assert self._server is not None  # noqa: S101 - such a step is drawn for its stores only
        with self._job("stream") as job:
            self._wait_for_commits(job, 1)
            self._server.stop(signal.SIGQUIT)
            self._write()  # so that there is something to commit, however far it was
            self._require(job, {2})
            self._server.start()
        self.result.restarts += 1

    # -- the job

    @contextmanager
    def _job(self, mode: str, crash_at: str = "") -> Iterator[Part]:
        self._parts += 1
        arguments = [
            f"--bootstrap={self._bootstrap}",
            f"--topic={self._topic}",
            f"--name={NAME}",
            f"--store={self._place.kind}",
            f"--path={self._place.path}",
            f"--table={self._place.table}",
            f"--mode={mode}",
            "--interval=0.1",
            "--columns=n long",
            f"--max-records={SLICE}",
            "--master=local[1]",
            f"--jars={','.join(map(str, spark_jars()))}",
            *self._more,
        ]
        environment = {
            "SPARK_SINK_CRASH_AT": crash_at,
            "SPARK_SINK_URL": self._place.url,
            "SPARK_SINK_PASSWORD": self._place.password or "",
            "JAVA_TOOL_OPTIONS": QUICK_JVM,
        }
        job = Part(self._folder, f"job-{self._parts}-{mode}", *arguments, module="spark_sink", environment=environment)
        try:
            yield job
        finally:
            if job.is_running:
                _signal(job, signal.SIGKILL)
                job.wait()

    def _require(self, job: Part, codes: set[int] | frozenset[int]) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while job.is_running:
            if time.monotonic() > deadline:
                raise FaultRunFailed(f"{self._name}: {job.name} hangs:\n{job.last_words()}")
            time.sleep(ASK_EVERY_S)
        code = job.wait()
        if code not in codes:
            raise FaultRunFailed(f"{self._name}: {job.name} ended with {code}, not {set(codes)}:\n{job.last_words()}")
        return code

    def _wait_for_commits(self, job: Part, commits: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while f"commit {commits}: " not in job.output():
            if not job.is_running or time.monotonic() > deadline:
                raise FaultRunFailed(f"{self._name}: {job.name} made no commit {commits}:\n{job.last_words()}")
            time.sleep(ASK_EVERY_S)

    # -- events and the count

    def _write(self) -> None:
        """More records, in transactions of which some are aborted."""
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
                producer.produce(self._topic, json.dumps({"n": first + n if commits else -1}), partition=partition)
            if commits:
                producer.commit_transaction(PATIENCE_S)
                self._written[partition] += PER_STEP // PARTITIONS
            else:
                producer.abort_transaction(PATIENCE_S)

    def _positions(self) -> Counter[tuple[int, int]]:
        return Counter((int(partition), int(n)) for partition, n in read_rows(self._place, ["_partition", "n"]))

    def _compare_so_far(self) -> None:
        """At any moment, the rows are what the stored offsets say, each once."""
        store = make_store(self._place, NAME, self._topic, 0, Recipe("n long"))
        try:
            stored = store.offsets()
            found = self._positions() if stored else Counter()
        except SinkError as error:
            raise FaultRunFailed(f"{self._name}: {error}") from None
        twice = [position for position, count in found.items() if count > 1]
        # Numbers are consecutive per partition, so that a hole shows without the offsets of markers.
        counts = Counter(partition for partition, _ in found)
        holes = [p for p, count in counts.items() if {n for q, n in found if q == p} != set(range(count))]
        if twice or holes:
            raise FaultRunFailed(f"{self._name}: doubled {twice[:5]}, holes in partitions {holes}; stored {stored}")

    def _count(self) -> None:
        found = self._positions()
        true = {(partition, n) for partition, count in self._written.items() for n in range(count)}
        self.result.rows = sum(found.values())
        self.result.lost = len(true - set(found))
        self.result.doubled = sum(count - 1 for count in found.values()) + len(set(found) - true)


def _signal(job: Part, number: signal.Signals) -> None:
    """To the whole job: the driver, and the JVM that it has started."""
    os.killpg(os.getpgid(job.pid), number)
