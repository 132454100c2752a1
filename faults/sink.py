"""Fault runs of the Spark job, over every store.

A run kills, freezes and starts the job twice, and at the end counts its rows.
"""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from faults.database_server import DatabaseServer
from faults.disk import SmallDisk
from faults.kafka import EmbeddedKafka
from faults.pgbouncer import find_pgbouncer, run_pgbouncer
from faults.postgres import PostgresServer
from faults.servers import SERVERS, can_run
from faults.sink_environment import (
    A_FEW_COMMITS,
    CATCH_UP,
    DONE,
    FENCED,
    KILLED,
    PARTITIONS,
    REFUSED,
    SinkEnvironment,
    signal_job,
)
from faults.table_rules import RULES
from kafka_ratchet.app.local.embedded_kafka import LET_IN_AGAIN_SOON, EmbeddedBroker
from kafka_ratchet.errors import FaultRunFailed
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.registry import store_class
from kafka_ratchet.spark_sink.stores.vacuum import vacuum

BEFORE = ("before-write", "before-commit")
"""Points where the job kills itself: before any part of the commit, or before the commit alone."""
IN_TRANSACTION = "in-commit"
"""Point inside a database's commit: all rows are written and the transaction is open."""
OF_SEQUENCES = ("before-sequences",)
"""Point of a job that deduplicates: the rows are written, and the last sequences are not."""
BETWEEN = "between-commits"
"""Point inside the commit of two tables: the rejects are committed, the rows are not."""
AFTER = "after-commit"
"""Point after the commit, when the job does not know yet that it succeeded."""

MODES = ("batch", "stream")

OTHERS = 4
"""Ratio of the kills at commits to the faults of each other kind. The other kinds take longer and depend less on the
moment.
"""

DISK = 2 << 30
"""Bytes of the disk to fill, enough for a table of thousands of small commits."""

GOES_ON = "and goes on"
"""Text in a job's log after a failure that it survives."""

Say = Callable[[str], None]
Modes = Callable[[], tuple[str, ...]]
"""Function that returns the modes of the next fault."""
Step = tuple[str, Callable[[], None]]
"""One fault: (words for the log, function that injects it)."""


@dataclass
class StoreResult:
    """Actions and findings of a run over one store."""

    kills: int = 0
    frozen: int = 0
    pairs: int = 0
    restarts: int = 0
    """Restarts of the database."""
    broker_restarts: int = 0
    dead_leaders: int = 0
    """Number of jobs run while the leader of a partition was dead and the other brokers ran."""
    full_disks: int = 0
    rules: int = 0
    """Triggers or constraints that the run added while a job ran, found in the job's error, and dropped again."""
    poolers: int = 0
    """Number of streams through a pooler; the run crashed the pooler once during each stream."""
    upkeep: int = 0
    """Removals of orphans, and compactions of Delta's files and log, during a job's commits."""
    orphans: int = 0
    """Removed files and staging tables of dead jobs."""
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Return True if every record is a row, once."""
        return self.lost == 0 and self.doubled == 0


@dataclass
class SinkResult:
    """Results of all stores."""

    stores: dict[str, StoreResult] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Return True if every store has each record once."""
        return bool(self.stores) and all(store.ok for store in self.stores.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the result for the last line of a run."""
        return {"stores": {name: vars(store) for name, store in self.stores.items()}}


def run_sink(
    times: int | None,
    seed: int,
    say: Say,
    folder: Path | None,
    only: tuple[str, ...] = (),
    *,
    from_input: bool = False,
    nodes: int = 1,
) -> SinkResult:
    """Inject all faults over each store, and count its rows.

    Args:
        times: number of kills at each point (before, inside and after a commit) in each mode; every other fault comes a
            quarter as often. None: every fault once, in a mode that the seed draws.
        seed: seed of the order and the moments.
        say: function called with progress, a line at a time.
        folder: a new folder for logs and tables; None: a temporary one.
        only: names of stores; none: all that can run here.
        from_input: True if the job reads a raw topic with duplicates, and deduplicates it itself.
        nodes: number of Kafka brokers, 1 or 3; of three, one is killed that leads a partition.

    Raises:
        FaultRunFailed: the job did something that it must not do, or hung.
        SetupError: a part of the environment could not be started.
    """
    result = SinkResult()
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ratchet-faults-sink-")))
        else:
            folder.mkdir(parents=True)
        say(f"seed {seed}; logs and data in {folder}")
        names = only or tuple(name for name in STORES if can_run(name.partition("-")[0]))
        if left_out := sorted(set(STORES) - set(names)):
            why = "" if only else ": there is no such server on this machine"
            say(f"left out: {', '.join(left_out)}{why}")
        servers: dict[str, DatabaseServer] = {}
        for kind, run_server in SERVERS.items():
            if any(name.partition("-")[0] == kind for name in names):
                servers[kind] = stack.enter_context(run_server())
        brokers = _brokers(stack, folder / "kafka", nodes)
        for name in names:
            server = servers.get(name.partition("-")[0])
            began = time.monotonic()
            with ExitStack() as of_store:
                chance = random.Random(f"{seed} {name}")  # noqa: S311 - no secret
                run = _StoreFaults(name, brokers, folder / name, server, chance, say, of_store, from_input=from_input)
                result.stores[name] = run.all(times)
            run.result.seconds = round(time.monotonic() - began, 1)
            say(f"{name}: {vars(result.stores[name])}")
    return result


STORES: dict[str, Callable[[Path, DatabaseServer | None], TableLocation]] = {
    "delta": lambda folder, _: TableLocation("delta", str(folder / "table")),
    "duckdb": lambda folder, _: TableLocation("duckdb", str(folder / "table.duckdb")),
    "iceberg": lambda folder, _: TableLocation("iceberg", str(folder / "table")),
    "mysql": lambda _, server: _of_server(server, "staged", "mysql"),
    "postgres": lambda _, server: _of_server(server, "in_tasks"),
    "postgres-staged": lambda _, server: _of_server(server, "staged"),
}
WITHOUT_REJECTS = {"postgres"}
"""Stores that a run uses without rejects, to test commits by the Spark tasks.

With rejects, the driver would commit staged rows in one transaction instead.
"""


def _brokers(stack: ExitStack, folder: Path, nodes: int) -> list[EmbeddedBroker]:
    if nodes == 1:
        return [stack.enter_context(EmbeddedBroker(folder, options=LET_IN_AGAIN_SOON))]
    return stack.enter_context(EmbeddedKafka(folder, nodes, 0)).nodes


def judging_stores() -> list[str]:
    """Return the names of the stores that let a job judge a raw topic itself."""
    return [name for name in STORES if store_class(name.partition("-")[0]).keeps_sequences]


def _of_server(server: DatabaseServer | None, table: str, kind: str = "postgres") -> TableLocation:
    if server is None:
        raise FaultRunFailed(f"there is no server of {kind} to run this store on")
    return TableLocation(kind, "", table, server.url, server.password)


class _StoreFaults:
    """All faults over one store."""

    def __init__(
        self,
        name: str,
        brokers: list[EmbeddedBroker],
        folder: Path,
        server: DatabaseServer | None,
        chance: random.Random,
        say: Say,
        stack: ExitStack,
        *,
        from_input: bool,
    ) -> None:
        self._from_input = from_input
        self._name, self._brokers, self._chance, self._say = name, brokers, chance, say
        self._server = server
        folder.mkdir()
        self._disk: SmallDisk | None = None
        if self._server is None:
            self._disk = stack.enter_context(SmallDisk(folder / "disk", DISK))
        place = STORES[name](folder if self._disk is None else self._disk.folder, server)
        archive = folder / "classes.jsa"
        rejects = name not in WITHOUT_REJECTS
        bootstrap = ",".join(broker.bootstrap for broker in brokers)
        self._environment = SinkEnvironment(
            name, bootstrap, folder, place, chance, archive, rejects=rejects, from_input=from_input
        )
        self._environment.create_topic()
        self._environment.write()
        if not self._environment.class_archive(archive):
            say(f"{name}: this Java keeps no archive of classes; every start takes longer")
        self.result = StoreResult()

    def all(self, times: int | None) -> StoreResult:
        """Inject the faults in random order, then count the rows, and return the result.

        times: see `run_sink`; None injects each fault once.
        """
        if times is None:
            steps = self._kills(1, self._mode) + self._others(self._mode)
        else:
            steps = self._kills(times, lambda: MODES) + self._others(lambda: MODES) * max(1, times // OTHERS)
        self._chance.shuffle(steps)
        for number, (what, step) in enumerate(steps, start=1):
            self._say(f"  {self._name} {number}/{len(steps)}: {what}")
            self._environment.write()
            step()
            self._environment.compare_so_far()
        with self._environment.job("batch", at_a_time=CATCH_UP) as job:
            self._environment.require(job, {DONE})
        self._vacuum()  # before the count: it must not have removed a row
        self.result.rows, self.result.lost, self.result.doubled = self._environment.count()
        return self.result

    def _mode(self) -> tuple[str, ...]:
        return (self._chance.choice(MODES),)

    def _kills(self, times: int, modes: Modes) -> list[Step]:
        inside = BETWEEN if self._environment.place.kind in {"delta", "iceberg"} else IN_TRANSACTION
        before = (*BEFORE, *OF_SEQUENCES) if self._from_input else BEFORE
        often = {**dict.fromkeys(before, -(-times // len(BEFORE))), inside: times, AFTER: times}
        steps: list[Step] = []
        for point, count in often.items():
            for mode in modes():
                steps += [(f"{mode}: killed {point}", partial(self._killed_at, mode, point))] * count
        return steps

    def _others(self, modes: Modes) -> list[Step]:
        steps: list[Step] = []
        for what, step in (
            ("killed at any moment", self._killed_at_random),
            ("frozen, and back after its successor", self._frozen),
        ):
            steps += [(f"{mode}: {what}", partial(step, mode)) for mode in modes()]
        steps.append(("two started together", self._pair))
        steps.append(("stream: the broker is killed", self._broker_killed))
        if len(self._brokers) > 1:
            steps += [(f"{mode}: a partition has no leader", partial(self._leader_dead, mode)) for mode in modes()]
        if self._server is not None:
            steps.append(("stream: the server crashes", self._server_crashes))
        if self._environment.place.kind in RULES:
            steps.append(("stream: a rule appears on the table, and goes", self._rule))
        if isinstance(self._server, PostgresServer) and find_pgbouncer() is not None:
            steps.append(("stream: through a pooler, which crashes", self._pooler))
        if self._disk is not None and self._disk.is_mounted:
            steps += [(f"{mode}: the disk is full", partial(self._disk_full, mode)) for mode in modes()]
        elif self._disk is not None:
            self._say(f"{self._name}: no full disk, because only root may make a small one")
        steps.append(("stream: the table is cleaned and compacted", self._upkeep))
        return steps

    # -- faults

    def _killed_at(self, mode: str, point: str) -> None:
        with self._environment.job(mode, f"{point}:{self._chance.randint(1, 3)}") as job:
            self._environment.require(job, KILLED)
        self.result.kills += 1

    def _killed_at_random(self, mode: str) -> None:
        with self._environment.job(mode) as job:
            self._environment.wait_for_commits(job, self._chance.randint(1, 2))
            time.sleep(self._chance.random() * 0.5)
            signal_job(job, signal.SIGKILL)
            self._environment.require(job, {*KILLED, DONE})
        self.result.kills += 1

    def _frozen(self, mode: str) -> None:
        with self._environment.job(mode) as job:
            self._environment.wait_for_commits(job, 1)
            time.sleep(self._chance.random() * 0.3)
            signal_job(job, signal.SIGSTOP)
            with self._environment.job("batch", at_a_time=CATCH_UP) as successor:
                self._environment.require(successor, {DONE})
            self._environment.write()  # so that the one that comes back has something to do
            signal_job(job, signal.SIGCONT)
            # A batch finished before the freeze has nothing left to be fenced from.
            self._environment.require(job, {FENCED} if mode == "stream" else {FENCED, DONE})
        self.result.frozen += 1

    def _pair(self) -> None:
        with (
            self._environment.job("batch", at_a_time=A_FEW_COMMITS) as one,
            self._environment.job("batch", at_a_time=A_FEW_COMMITS) as other,
        ):
            codes = {self._environment.require(one, {DONE, FENCED}), self._environment.require(other, {DONE, FENCED})}
        if codes == {FENCED}:
            raise FaultRunFailed(f"{self._name}: of two jobs started together, both were fenced instead of one")
        self.result.pairs += 1

    def _broker_killed(self) -> None:
        with self._environment.job("stream") as job:
            self._environment.wait_for_commits(job, 1)
            time.sleep(self._chance.random() * 0.5)
            for broker in self._brokers:
                broker.kill()
            # Back before the job has noticed, or after; see `JAVA_OPTIONS`.
            if self._chance.random() < 0.5:
                time.sleep(self._chance.random() * 5)
            else:
                self._environment.wait_for_words(job, GOES_ON)
            for broker in self._brokers:
                broker.start(wait=False)
            for broker in self._brokers:
                broker.wait_until_ready()
            self._environment.write()
            self._environment.finish(job)
        self.result.broker_restarts += 1

    def _leader_dead(self, mode: str) -> None:
        leader = self._brokers[self._environment.leader(self._chance.randrange(PARTITIONS)) - 1]
        if mode == "batch":
            leader.kill()
            with self._environment.job("batch") as job:
                self._environment.require(job, {REFUSED})
            leader.start()
        else:
            with self._environment.job("stream") as job:
                self._environment.wait_for_commits(job, 1)
                leader.kill()
                time.sleep(self._chance.random() * 20)
                leader.start()
                self._environment.write()
                self._environment.finish(job)
        if "sink resume" in job.output():
            raise FaultRunFailed(f"{self._name}: {job.name} took an absent leader for lost data:\n{job.last_words()}")
        self.result.dead_leaders += 1

    def _server_crashes(self) -> None:
        assert self._server is not None  # noqa: S101 - such a step is drawn for its stores only
        with self._environment.job("stream") as job:
            self._environment.wait_for_commits(job, 1)
            self._server.crash()
            self._environment.write()  # so that there is something to commit, however far it was
            self._environment.require(job, {REFUSED})
            self._server.start()
        self.result.restarts += 1

    def _disk_full(self, mode: str) -> None:
        assert self._disk is not None  # noqa: S101 - such a step is drawn for its stores only
        with self._environment.job(mode) as job:
            self._environment.wait_for_commits(job, 1)
            self._disk.fill(job.pid)
            try:
                self._environment.write()
                if mode == "batch":
                    # The job may have finished before the disk was full.
                    self._environment.require(job, {REFUSED, DONE})
                else:
                    self._environment.wait_for_words(job, GOES_ON, or_end=True)
            finally:
                self._disk.free(job.pid)
            if mode == "stream":
                self._environment.write()
                # A failure in a task is tried again. One in the driver ends the job, and may come next.
                self._environment.finish(job, or_else={REFUSED})
        self.result.full_disks += 1

    def _rule(self) -> None:
        place = self._environment.place
        rule = RULES[place.kind]
        with self._environment.job("stream") as job:
            self._environment.wait_for_commits(job, 1)
            rule.add(place)
            try:
                self._environment.write()
                self._environment.require(job, {REFUSED})
                self._environment.compare_so_far()
                with self._environment.job("batch") as again:
                    self._environment.require(again, {REFUSED})
            finally:
                rule.drop(place)
            for ended in (job, again):
                if rule.named not in ended.output():
                    raise FaultRunFailed(f"{self._name}: {ended.name} did not name the rule:\n{ended.last_words()}")
        with self._environment.job("batch", at_a_time=A_FEW_COMMITS) as job:
            self._environment.require(job, {DONE})
        self.result.rules += 1

    def _pooler(self) -> None:
        assert isinstance(self._server, PostgresServer)  # noqa: S101 - such a step is drawn for its stores only
        direct = self._environment.place
        with run_pgbouncer(self._server) as pooler:
            self._environment.place = replace(direct, url=pooler.url)
            try:
                with self._environment.job("stream") as job:
                    self._environment.wait_for_commits(job, 2)
                    pooler.crash()
                    self._environment.write()
                    self._environment.require(job, {REFUSED})
                    pooler.start()
                with self._environment.job("batch", at_a_time=A_FEW_COMMITS) as job:
                    self._environment.require(job, {DONE})
            finally:
                self._environment.place = direct
        self.result.poolers += 1

    def _vacuum(self) -> None:
        self.result.orphans += len(vacuum(self._environment.place, 0.0))

    def _upkeep(self) -> None:
        from deltalake import DeltaTable

        with self._environment.job("stream") as job:
            self._environment.wait_for_commits(job, 1)
            self._vacuum()
            if self._environment.place.kind == "delta":
                for place in self._environment.tables:
                    table = DeltaTable(place.path)
                    table.optimize.compact()
                    table.create_checkpoint()
                    table.cleanup_metadata()
            self._environment.write()
            self._environment.finish(job)
        self.result.upkeep += 1
