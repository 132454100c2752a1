"""The model of the commit path: what arrives, and which workers run, stop and stand still."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.tables.eviction import EvictionLimits
from kafka_ratchet.transport.client.topic_id import id_text
from kafka_ratchet.transport.policy import ForgetRequest
from kafka_ratchet.transport.transactions.crash_points import AGENT_POINTS, COMPLETION_POINTS
from kafka_ratchet.transport.transactions.crash_points import POINTS as CRASH_POINTS
from kafka_ratchet.transport.transactions.requests import OURS
from tests.clock import SAVES_AT_ONCE, Clock
from tests.transport.batch.known_batches import Source, encode
from tests.transport.memory_kafka import MemoryKafka
from tests.transport.memory_link import PowerOff
from tests.transport.memory_log import ABORT
from tests.transport.modelled_input import Sent, all_names, sent
from tests.transport.modelled_windows import ANY_JUDGING, SOME_JUDGING
from tests.transport.modelled_worker import (
    CHANGELOG,
    GROUP,
    IDS,
    INPUT,
    SPEC,
    WITH_AGENTS,
    VirtualLoop,
    Worker,
    crash_point,
    run,
    with_agents,
)

FOREIGN = 77
"""A transactional producer that writes to the input and is none of ours."""
ALL_POINTS = (*CRASH_POINTS, *AGENT_POINTS, *COMPLETION_POINTS)
SLOTS = (0, 1)
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - stores are made and thrown away by the thousand
MS_A_SECOND = 10**6
"""Milliseconds of Kafka's clock in a second of the loop's: bounds are whole seconds, and a second is long here."""
NULLS_LAST_S = 2_000
"""Seconds by Kafka's clock; 2 s of the loop's."""
STEP_S = st.sampled_from([0.001, 0.01, 0.06, 0.3, 2.0])
"""Virtual time; a commit interval is 0.05 s, an idle fetch 0.25 s, a pause after a failure up to some seconds."""


class Protocol(NamedTuple):
    """Protocol of Kafka's transactions; see memory_kafka."""

    ends_raise_epoch: bool
    verifies: bool


PROTOCOLS = [Protocol(False, False), Protocol(False, True), Protocol(True, True)]
ANY_BOUNDS = [
    EvictionLimits(1),
    EvictionLimits(2),
    EvictionLimits(None, 20),
    EvictionLimits(None, 400),
    EvictionLimits(1, 400),
    EvictionLimits(2, 20),
]


class Runs(RuleBasedStateMachine):
    """Two workers and one partition."""

    bounds_of_a_run: st.SearchStrategy[EvictionLimits | None] = st.sampled_from([None, *ANY_BOUNDS])
    has_agents = True

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None))
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.patch = pytest.MonkeyPatch()  # here, since a search that ends while `begin` draws is closed as well
        self.kafka = MemoryKafka()
        self.sent: list[Sent | None] = []
        self.came_s: list[int] = []
        """Append time of each of them, by Kafka's clock."""
        self.workers: list[Worker | None] = [None, None]
        self.policies: list[bool | ForgetRequest] = []
        """The policy topic."""
        self.kind = Identity.PRODUCER
        self.was_ahead = False
        self.bounds: EvictionLimits | None = None
        self.spec = SPEC
        self.fetched_takes_s = 0.0
        self.judging: list[dict[str, str]] = [{}]
        """Settings beside the rule, the newest last."""

    @initialize(
        kind=st.sampled_from([Identity.PARTITION, Identity.KEY, Identity.PRODUCER, IDS]),
        snapshots=st.sampled_from(["at every commit", "in time", "never"]),
        memory=st.sampled_from([0, 1 << 40]),
        at_once=st.booleans(),
        looks_again=st.booleans(),
        fetched_takes_s=st.sampled_from([0.0, 0.0, 0.04]),
        protocol=st.sampled_from(PROTOCOLS),
        agents=st.booleans(),
        last_epoch=st.sampled_from([4, 9, 1 << 15]),
        data=st.data(),
    )
    def begin(
        self,
        kind: Identity,
        snapshots: str,
        memory: int,
        at_once: bool,
        protocol: Protocol,
        last_epoch: int,
        data: st.DataObject,
        *,
        agents: bool = False,
        looks_again: bool = True,
        fetched_takes_s: float = 0.0,
    ) -> None:
        self.kafka.ends_raise_epoch, self.kafka.verifies = protocol
        self.kafka.last_epoch, self.fetched_takes_s = last_epoch, fetched_takes_s
        self.kind, self.memory, self.bounds = kind, memory, data.draw(self.bounds_of_a_run)
        clocks: dict[str, Callable[[], float]] = {
            "at every commit": Clock(SAVES_AT_ONCE),
            "in time": self.loop.time,
            "never": Clock(),
        }
        self.clock = clocks[snapshots]
        self.spec = WITH_AGENTS if agents and self.has_agents else SPEC
        if kind != IDS:
            self._settle(data.draw(ANY_JUDGING) or {})
        self.kafka.stamped[CHANGELOG] = self._now_ms
        for module in (
            "kafka_ratchet.agents.reading",
            "kafka_ratchet.transport.lane",
            "kafka_ratchet.transport.transactions.producer",
            "kafka_ratchet.tables.committed_partition",
        ):
            self.patch.setattr(f"{module}.crash_point", crash_point)
        self.patch.setattr("kafka_ratchet.transport.transactions.requests.LAST_EPOCH", last_epoch)
        self.patch.setattr("kafka_ratchet.transport.transactions.producer.LAST_EPOCH", last_epoch)
        self.patch.setattr("kafka_ratchet.tables.known.LOAD_AT_ONCE", 1 << 40 if at_once else 0)
        self.patch.setattr("kafka_ratchet.tables.known.LOAD_ENTRIES", 1)
        self.patch.setattr("kafka_ratchet.transport.input_time.END_OLD_MS", 0 if looks_again else 1 << 60)
        self.patch.setattr("kafka_ratchet.tables.recovery.NULLS_LAST_S", NULLS_LAST_S)
        self.patch.setattr("kafka_ratchet.transport.changelog.SILENT_S", NULLS_LAST_S / 2 / (MS_A_SECOND / 1_000))
        self.patch.setattr("kafka_ratchet.tables.map.slots.WASTE_LEAST", 0)
        self.start(slot=0)

    def _now_ms(self) -> int:
        return 10**9 + int(self.loop.time() * MS_A_SECOND)

    def _settle(self, judging: dict[str, str]) -> None:
        self.judging.append(judging)
        self.spec = replace(self.spec, judging=judging)

    @property
    def is_timed(self) -> bool:
        """Return True if stores know their age."""
        return self.bounds is not None or with_agents(self.spec)

    # What arrives.

    @rule(data=st.data(), seconds=STEP_S)
    def append(self, data: st.DataObject, seconds: float) -> None:
        self._arrive(data)
        self.go_on(seconds)

    @rule(again=st.integers(1, 20), seconds=STEP_S)
    def append_again(self, again: int, seconds: float) -> None:
        tail = [each for each in self.sent if each is not None][-again:]
        if tail:
            self._append(tail, "none")
        self.go_on(seconds)

    @rule(data=st.data(), seconds=STEP_S, stays_open=st.booleans())
    def append_aborted(self, data: st.DataObject, seconds: float, stays_open: bool) -> None:
        """Append a record of another producer's transaction, and abort it, perhaps after records that wait for it."""
        self._append([data.draw(sent(self.kind, self._above))], "none", FOREIGN)
        if stays_open:
            self._arrive(data)
            self.go_on(seconds)
        self.kafka.logs[INPUT, 0].write_marker(FOREIGN, ABORT)
        self._skip_offset()
        self.go_on(seconds)

    def _skip_offset(self) -> None:
        """Note an offset of the input without a record that counts."""
        self.sent.append(None)
        self.came_s.append(self._now_ms() // 1000)

    def _arrive(self, data: st.DataObject) -> None:
        batch = data.draw(st.lists(sent(self.kind, self._above), min_size=1, max_size=8))
        self._append(batch, data.draw(st.sampled_from(["none", "none", "lz4", "zstd"])))

    @property
    def _above(self) -> int:
        """Return an offset for new sequences: with windows they go on rising, so that records can be late."""
        return len(self.sent) // 8 if self.spec.judging else 0

    def _append(self, batch: list[Sent], compression: str, producer: int = -1) -> None:
        sources = [Source(each.record.key, each.record.value, each.record.headers) for each in batch]
        attributes = 0x10 if producer >= 0 else 0
        self.kafka.logs[INPUT, 0].append(encode(sources, 0, compression, producer, attributes), producer)
        self.sent += batch if producer < 0 else [None] * len(batch)
        self.came_s += [self._now_ms() // 1000] * len(batch)

    # What runs.

    def _running(self) -> list[int]:
        return [slot for slot in SLOTS if self.workers[slot] is not None]

    def _worker(self, data: st.DataObject) -> Worker:
        worker = self.workers[data.draw(st.sampled_from(self._running()))]
        assert worker is not None
        return worker

    @precondition(lambda self: None in self.workers)
    @rule(slot=st.sampled_from(SLOTS))
    def start(self, slot: int) -> None:
        """Start a worker; if the other one runs, this is a rebalance unknown to it."""
        if self.workers[slot] is None:
            self.workers[slot] = worker = self._new_worker(str(slot))
            run(self.loop, worker.start())
            self._bury()

    @precondition(lambda self: None in self.workers)
    @rule(data=st.data(), is_crash=st.booleans(), seconds=STEP_S, longer=STEP_S)
    def start_warm(self, data: st.DataObject, is_crash: bool, seconds: float, longer: float) -> None:
        """It has followed the changelog for a while, and perhaps it is then needed."""
        slot = self.workers.index(None)
        worker = self._new_worker(str(slot))
        run(self.loop, worker.stand_by())
        try:
            self.append(data, seconds)
            if is_crash and (other := self.workers[1 - slot]) is not None:
                other.power_off()
                self._bury()
            self.go_on(longer)
        except BaseException:  # Hypothesis may end a run where it draws
            run(self.loop, worker.end_standby())
            raise
        self.workers[slot] = worker
        run(self.loop, worker.start())
        self._bury()

    @precondition(lambda self: bool(self._running()))
    @rule(data=st.data(), is_busy=st.booleans(), is_replaced=st.booleans(), seconds=STEP_S)
    def move_away_and_back(self, data: st.DataObject, is_busy: bool, is_replaced: bool, seconds: float) -> None:
        """The partition of one process, and perhaps in the middle of a batch: a lane does not wait for ever."""
        worker = self._worker(data)
        if self.kafka.without_leader:
            return
        if is_busy:
            worker.agents_awake.clear()
        self.append(data, seconds)
        if worker not in self.workers or self.kafka.without_leader:  # it has met what was planned before
            worker.agents_awake.set()
            return
        for each in filter(None, self.workers):  # a stop waits for leaders
            each.leaderless_at_the_end = set()
        slot = self.workers.index(worker)
        self._stop(slot)
        if is_replaced and self.workers[1 - slot] is None:
            self.start(1 - slot)
            self.append(data, seconds)
        worker.agents_awake.set()
        if not worker.link.dead:
            self.workers[slot] = worker
            run(self.loop, worker.start())
        self.go_on(seconds)

    @precondition(lambda self: with_agents(self.spec) and self._running())
    @rule(data=st.data(), then=st.sampled_from(["goes on", "is gone", "stands still"]), seconds=STEP_S)
    def hold_the_agents(self, data: st.DataObject, then: str, seconds: float) -> None:
        """Hold the agents in the middle of a batch."""
        worker = self._worker(data)
        worker.agents_awake.clear()
        self.append(data, seconds)
        if then == "is gone":
            worker.power_off()
            self._bury()
        if then != "stands still":
            worker.agents_awake.set()
        self.go_on(seconds)

    @precondition(lambda self: self.kind != IDS and not self.kafka.without_leader)
    @rule(data=st.data(), is_crash=st.booleans(), seconds=STEP_S)
    def change_the_settings(self, data: st.DataObject, is_crash: bool, seconds: float) -> None:
        """Change the settings between two starts, because all workers of a group have the same.

        Where there are bounds, what is kept only grows: an identity that is merely active is written down anew.
        """
        for slot in self._running():
            worker = self.workers[slot]
            if worker is None:  # it was buried with the other one
                continue
            if is_crash:
                worker.power_off()
                self._bury()
            else:
                self._stop(slot)
        judging = data.draw(SOME_JUDGING if self.bounds else ANY_JUDGING)
        self._settle({**self.spec.judging, **judging} if self.bounds else judging)
        self.append(data, seconds)
        self._start_again(data)

    def _new_worker(self, name: str) -> Worker:
        place = self.kafka, self.folder / name
        worker = Worker(*place, self.kind, self.memory, self.policies, self.bounds, self.spec, self.clock)
        worker.link.fetched_takes_s = self.fetched_takes_s
        return worker

    @rule(data=st.data(), deduplicate=st.booleans(), seconds=STEP_S)
    def switch(self, data: st.DataObject, deduplicate: bool, seconds: float) -> None:
        """Workers hear of it at different moments, and perhaps in the middle of a transaction."""
        self._arrive(data)
        self.go_on(data.draw(STEP_S))
        self.policies.append(deduplicate)
        for worker in filter(None, self.workers):
            if data.draw(st.booleans()):
                worker.policies.read()
        self.append(data, seconds)

    @rule(data=st.data(), above=st.one_of(st.none(), st.integers(0, 12)), seconds=STEP_S)
    def ask_to_forget(self, data: st.DataObject, above: int | None, seconds: float) -> None:
        """Workers hear of it at different moments, and perhaps it is of a name that begins anew at once.

        It says where the input ends, or is as an operator finds it whose topic is another one.
        """
        self._arrive(data)
        self.go_on(data.draw(STEP_S))
        identity = b"" if self.kind is Identity.PARTITION else data.draw(st.sampled_from(sorted(all_names)))
        number, end = len(self.policies), self.kafka.logs[INPUT, 0].end
        topic = data.draw(st.sampled_from([id_text(self.kafka.topic_id(INPUT)), "another"]))
        self.policies.append(ForgetRequest(f"{number:016x}", identity, above, "now", "me", "so", None, topic, (end,)))
        for worker in filter(None, self.workers):
            if data.draw(st.booleans()):
                worker.policies.read()
        self.append(data, seconds)

    @rule(seconds=STEP_S)
    def go_on(self, seconds: float) -> None:
        run(self.loop, asyncio.sleep(seconds))
        self._bury()

    @precondition(lambda self: bool(self._running()))
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        """Also while leaders are away: whoever waits for them can be stopped."""
        self._stop(data.draw(st.sampled_from(self._running())))

    def _stop(self, slot: int) -> None:
        worker = self.workers[slot]
        assert worker is not None
        worker.freeze_at, worker.leaderless_at_the_end = None, set()
        with suppress(PowerOff):  # `crash_at` may be met on the way
            run(self.loop, asyncio.wait_for(worker.stop(), 1_000))
        self._bury()
        self.workers[slot] = None

    @precondition(lambda self: bool(self._running()))
    @rule(data=st.data(), seconds=STEP_S, thaw=st.booleans())
    def freeze(self, data: st.DataObject, seconds: float, thaw: bool) -> None:
        self._worker(data).link.awake.clear()
        self.append(data, seconds)
        if thaw:
            self.thaw(seconds)

    @precondition(lambda self: bool(self._running()))
    @rule(data=st.data(), point=st.sampled_from(ALL_POINTS), seconds=STEP_S)
    def freeze_at(self, data: st.DataObject, point: str, seconds: float) -> None:
        self._worker(data).freeze_at = point
        self.append(data, seconds)

    @precondition(lambda self: any(worker and worker.stands_still for worker in self.workers))
    @rule(seconds=STEP_S)
    def thaw(self, seconds: float) -> None:
        for worker in filter(None, self.workers):
            worker.link.awake.set()
            worker.agents_awake.set()
        self.go_on(seconds)

    def _start_again(self, data: st.DataObject) -> None:
        for slot in SLOTS:
            if self.workers[slot] is None and data.draw(st.booleans()):
                self.start(slot)

    def _bury(self) -> None:
        for slot, worker in enumerate(self.workers):
            if worker is not None and worker.link.dead:
                run(self.loop, worker.clear_away())
                self.workers[slot] = None

    @property
    def _left_open(self) -> bool:
        return self.kafka.left_open()

    @property
    def committed_offset(self) -> int:
        committed = self.kafka.offsets.get((GROUP, INPUT, 0))
        assert committed is None or OURS.fullmatch(committed.metadata)
        return committed.offset if committed else 0
