"""A worker as the model of the commit path has it: the real lane, tables and store, and only Kafka in memory."""

from __future__ import annotations

import asyncio
import contextvars
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from rocksdict import Checkpoint

from kafka_ratchet.agents.deduplicate import Deduplicator, forward
from kafka_ratchet.agents.run import StreamProgram
from kafka_ratchet.errors import Aborted
from kafka_ratchet.rule.extraction import all_alike, computed_identity_reader, reader_for
from kafka_ratchet.rule.identity import PRODUCER_HEADER, SEQUENCE_HEADER, Identity, SequenceSource
from kafka_ratchet.rule.kernels import CONFLICT, TOO_LATE
from kafka_ratchet.rule.windows import StateOptions
from kafka_ratchet.tables.eviction import EvictionLimits
from kafka_ratchet.tables.table import Sequences
from kafka_ratchet.transport.lane import Lane
from kafka_ratchet.transport.lane_spec import LaneSpec
from kafka_ratchet.transport.owner import AGENTS
from kafka_ratchet.transport.policy import ForgetRequest, Policy, Requests
from kafka_ratchet.transport.standby import Standby
from tests.agent_queue import AgentQueue
from tests.transport import modelled_program
from tests.transport.memory_kafka import MemoryKafka
from tests.transport.memory_link import Fate, Link, PowerOff

INPUT, OUTPUT, DEAD, CHANGELOG, GROUP = "in", "out", "dead", "changelog", "group"
SPEC = LaneSpec(
    topic=INPUT,
    partition=0,
    output=OUTPUT,
    dead_letters=DEAD,
    group=GROUP,
    transactional_id="id",
    sequence_header=SEQUENCE_HEADER.encode(),
    identity_header=PRODUCER_HEADER.encode(),
    commit_interval_ms=50,
    app="app",
    rule={"sequence": "as it was"},
)
WITH_AGENTS = replace(SPEC, rule={**SPEC.rule, "output": AGENTS}, records_at_first=3)
"""Spec of a lane that runs the modelled program."""
CONFIG = "rocksdict-config.json"
READ = reader_for(SequenceSource.parse(f"header:{SEQUENCE_HEADER}"))
IDS = Identity.parse(["header:id", "field:n"])
"""Identity of streams of records with ids and no sequence."""
CURRENT: contextvars.ContextVar[Worker] = contextvars.ContextVar("worker")
"""Worker of the running task: every task that a worker starts inherits it."""

T = TypeVar("T")


def with_agents(spec: LaneSpec) -> bool:
    """Return True if its lane runs the modelled program."""
    return spec.rule.get("output") == AGENTS


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when there is nothing else to do, and that has no threads."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._now = max(self._now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> Any:  # type: ignore[override]
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def crash_point(point: str) -> None:
    """Stand in for `crash_points.crash_point`."""
    if (worker := CURRENT.get(None)) is not None:
        worker.comes_to(point)


class ReadPolicies:
    """A worker's reading of the policy topic, which is a list here: it knows everything at its start, and then lags."""

    def __init__(self, topic: list[bool | ForgetRequest]) -> None:
        self.topic = topic
        self.position = len(topic)

    def read(self) -> None:
        self.position = len(self.topic)

    @property
    def policy(self) -> Policy:
        said = [place for place in range(self.position) if isinstance(self.topic[place], bool)]
        return Policy(self.topic[said[-1]] is True, said[-1] + 1) if said else Policy()

    @property
    def requests(self) -> Requests:
        read = self.topic[: self.position]
        return Requests(tuple(each for each in read if isinstance(each, ForgetRequest)), self.position)

    async def known_to(self, position: int) -> None:
        while self.position < position:
            await asyncio.sleep(0.01)
            self.read()


class Worker:
    """One worker process on the one partition of the model."""

    def __init__(
        self,
        kafka: MemoryKafka,
        folder: Path,
        identity: Identity,
        memory: int,
        policies: list[bool | ForgetRequest],
        bounds: EvictionLimits | None = None,
        spec: LaneSpec = SPEC,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """clock: of its tables."""
        self.link = Link(kafka)
        self.folder = folder
        self.remains = folder.with_suffix(".remains")
        agents, tables = (modelled_program.records.agents, modelled_program.TABLES) if with_agents(spec) else ((), ())
        said = spec.judging
        kept = StateOptions(int(said.get("reorder_window", "0")), "conflicts" in said, "dense" in said)
        self.sequences = Sequences(folder, CHANGELOG, identity, 1_000_000, memory, bounds, clock, tables, kept)
        self.program = StreamProgram(agents, tables, lambda number: self.sequences.partition(number).tables)
        self.agents_awake = asyncio.Event()
        self.agents_awake.set()
        self.standby: Standby | None = None
        self.policies = ReadPolicies(policies)
        self.lane = self._new_lane(spec)
        self.crash_at: tuple[str, int] | None = None
        self.freeze_at: str | None = None
        self.lose_at: tuple[str, Fate] | None = None
        """(point, what becomes of the next request that is sent after it)"""
        self.deliver_at: tuple[str, int] | None = None
        """(point, times): when what is late arrives."""
        self.gives_up_without: set[tuple[str, int]] | None = None
        """Partitions that nobody leads any more when this worker gives up a transaction with outputs in it."""
        self._has_produced = False
        self.leaderless_at_the_end: set[tuple[str, int]] = set()
        """Partitions that nobody leads any more when this worker is about to commit."""

    def _new_lane(self, spec: LaneSpec) -> Lane:
        self.processor = self._new_processor(spec)
        lane = Lane(self.link, spec, self.sequences.partition(0), self.processor, self.policies)  # type: ignore[arg-type]
        clock = asyncio.get_event_loop().time
        lane._changelog._passed = lambda: (clock(), clock())
        lane._changelog._answered = lane._changelog._passed()
        return lane

    def _new_processor(self, spec: LaneSpec) -> Deduplicator:
        then = self.program.take if with_agents(spec) else forward
        identity = self.sequences.identity
        read = all_alike if identity == IDS else READ
        said = spec.judging
        lettered = {TOO_LATE: "late"} if said.get("late") == "dead-letter" else {}
        lettered |= {CONFLICT: "conflict"} if said.get("conflicts") == "dead-letter" else {}
        return Deduplicator(self.sequences, read, then, lettered, computed_identity_reader(identity))

    async def start(self) -> None:
        """Start for the first time, or after `stop`; in between the partition was another's."""
        CURRENT.set(self)
        if self.lane._task is not None:
            self.lane = self._new_lane(self.lane.spec)
        modelled_program.AWAKE.set(self.agents_awake)
        await self.end_standby()
        queue = AgentQueue()
        self.agent = asyncio.create_task(self.processor.connect(queue).agent(queue.each()))
        self.lane.start()

    async def stand_by(self) -> None:
        """Stand by until `start`."""
        CURRENT.set(self)
        clock = asyncio.get_running_loop().time
        self.standby = Standby(self.link, self.sequences.partition(0), 0, passed=lambda: (clock(), clock()))  # type: ignore[arg-type]
        self.standby.start()

    async def end_standby(self) -> None:
        """End the standby if there is one, and leave the state open."""
        if self.standby is not None:
            await self.standby.stop(close=False)
            self.standby = None

    @property
    def is_at_work(self) -> bool:
        return self.lane._task is not None and not self.lane._task.done()

    @property
    def stands_still(self) -> bool:
        return not (self.link.awake.is_set() and self.agents_awake.is_set())

    def comes_to(self, point: str) -> None:
        if point == "offered":
            self.link.kafka.without_leader |= self.leaderless_at_the_end
            self.leaderless_at_the_end = set()
        self._has_produced = point == "produced" or (self._has_produced and point == "fetched")
        if self.gives_up_without is not None and self._has_produced and point == "fetched":
            self.link.kafka.without_leader |= self.gives_up_without
            self.gives_up_without = None
            self.lane.halt(Aborted("its topics are not what they were"))
        if self.lose_at is not None and self.lose_at[0] == point:
            self.link.lose, self.lose_at = (0, self.lose_at[1]), None
        if self.deliver_at is not None and self.deliver_at[0] == point and self.link.kafka.has_late:
            self.deliver_at = (point, self.deliver_at[1] - 1) if self.deliver_at[1] > 1 else None
            if self.deliver_at is None:
                self.link.kafka.deliver_late()
        if self.freeze_at == point:
            self.freeze_at = None
            self.link.awake.clear()
        if self.crash_at is not None and self.crash_at[0] == point:
            self.crash_at = (point, self.crash_at[1] - 1)
            if self.crash_at[1] <= 0:
                self.power_off()
                raise PowerOff

    def forget_plans(self) -> None:
        """Nothing goes wrong from here on."""
        self.crash_at = self.link.lose = self.freeze_at = self.lose_at = self.deliver_at = None
        self.gives_up_without = None
        self.leaderless_at_the_end = set()
        self.link.misled = 0
        self.agents_awake.set()

    def power_off(self) -> None:
        """The process is gone now; the files of its store are as they are."""
        if not self.link.dead:
            self.link.dead = True
            self.link.awake.set()
            store = self.sequences.partition(0).known.store
            if store is not None:
                # All at once, as a process ends; RocksDB removes files behind one's back while they are copied.
                self.remains.mkdir()
                path = self.remains / store.path.name
                Checkpoint(store._db).create_checkpoint(str(path))
                shutil.copy(store.path / CONFIG, path)
            elif self.folder.exists():
                shutil.copytree(self.folder, self.remains)

    async def stop(self) -> None:
        """Stop as on an operator's request."""
        self.link.awake.set()
        await self.lane.stop()
        self.agent.cancel()
        await asyncio.gather(self.agent, return_exceptions=True)

    async def clear_away(self) -> None:
        """End the remaining tasks after `power_off`, and restore its files of that moment."""
        for running in self.program._running.values():
            running.abandon()
        self.lane._stopping.set()
        assert self.lane._task is not None
        await asyncio.gather(self.lane._task, return_exceptions=True)
        self.agent.cancel()
        await asyncio.gather(self.agent, return_exceptions=True)
        self.crash_at = None
        self.sequences.partition(0).close()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.remains.exists():
            self.remains.rename(self.folder)


def run(loop: VirtualLoop, work: Coroutine[Any, Any, T]) -> T:
    return loop.run_until_complete(work)
