"""A model of the whole commit path: whatever happens in whatever order, what is committed is what the oracle says.

Real are the lane, the transactional producer, the tables, RocksDB and the deduplicating agent; Kafka is in memory
(memory_kafka.py). Hypothesis draws what arrives, what fails and who dies, and after every step the committed output,
dead letters, position, changelog and totals must be those of ten obvious lines. Where the stream has bounds, who goes
is the worker's choice; what it writes down of that must be allowed, and a duplicate passes after that and never before.

Half of the runs have agents with tables of their own (modelled_program.py): outputs, dead letters and the tables'
entries must be those of a plain reading of their program, and so must what the last worker has in its tables. Broken on
purpose, the model has found each of these within a hundred runs: tables not rolled back; entries left out of the
transaction, all of them, nulls, or all but two; a store written before the commit; a store or a recovery without the
tables, or whose position is ahead of them; a run that goes on after a rollback, may write then, or shares its outputs
and its place in the batch with the next one; a failed record whose changes or outputs stay; outputs of the last batch
that come again.

And half of them have a reorder window, perhaps with conflicts and dense, and other ones after the next start
(modelled_windows.py): verdicts, entries in the changelog and what is missing must be what a set of the sequences that
were seen says.

A failure prints the steps that lead to it, shortened, and a `@reproduce_failure` line; the whole run is repeated with
`./ratchet test tests/transport/test_commit_path.py --hypothesis-seed=N`, whose N stands above it. 20,000 runs:
`./ratchet test -m long tests/transport/test_commit_path.py`.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kafka_ratchet.tables.edits import EDIT, Edit
from kafka_ratchet.tables.eviction import Bounds
from kafka_ratchet.tables.identity import PRODUCER_HEADER, SEQUENCE_HEADER, Identity
from kafka_ratchet.tables.policy_intervals import POLICY_INTERVAL, PolicyInterval
from kafka_ratchet.tables.store import Store
from kafka_ratchet.tables.totals import EVICTED, PROGRESS, Evicted, Progress
from kafka_ratchet.tables.values.own_table import OWN
from kafka_ratchet.transport.client.topic_id import id_text
from kafka_ratchet.transport.delivery import LETTER_AGENTS
from kafka_ratchet.transport.lane_spec import LaneState
from kafka_ratchet.transport.owner import KEY as OWNER
from kafka_ratchet.transport.owner import Owner
from kafka_ratchet.transport.policy import Forget
from kafka_ratchet.transport.transactions.crash_points import AGENT_POINTS, COMPLETION_POINTS
from kafka_ratchet.transport.transactions.crash_points import POINTS as CRASH_POINTS
from kafka_ratchet.transport.transactions.requests import OURS
from tests.clock import SAVES_AT_ONCE, Clock
from tests.transport.batch.known_batches import HEAD, Source, encode
from tests.transport.memory_kafka import ABORT, Fate, MemoryKafka, PowerOff, Record
from tests.transport.modelled_program import LATE_S, TABLES, Plain
from tests.transport.modelled_windows import ANY_JUDGING, SOME_JUDGING, Remembered, check_entry
from tests.transport.modelled_worker import (
    CHANGELOG,
    DEAD,
    GROUP,
    IDS,
    INPUT,
    OUTPUT,
    SPEC,
    WITH_AGENTS,
    VirtualLoop,
    Worker,
    crash_point,
    run,
    with_agents,
)

TABLE_ENTRY = b"t"
"""What the keys of such entries begin with."""
FOREIGN = 77
"""A transactional producer that writes to the input and is none of ours."""
ALL_POINTS = (*CRASH_POINTS, *AGENT_POINTS, *COMPLETION_POINTS)
POINTS_OF_A_TRANSACTION = (*AGENT_POINTS, "judged", "produced", "logged", "offered", "committed")
SLOTS = (0, 1)
INPUTS_END, EVIDENCE, UNREAD = "the input's end", "the input's end, and then what shows it", "unread input"
FILLED, CHANGELOGS_END = "the changelog, and others fill the new one", "the changelog's end, and others fill it again"
RULE, APP, PROGRAM = "the rule", "the application", "the program, or that there was none"
TAKEN_AWAY = (INPUT, OUTPUT, CHANGELOG, FILLED, CHANGELOGS_END, INPUTS_END, EVIDENCE, UNREAD, RULE, APP, PROGRAM)
"""A topic: it is deleted and created again."""
PLACES = [(OUTPUT, 0), (DEAD, 0), (CHANGELOG, 0)]
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - stores are made and thrown away by the thousand
MS_A_SECOND = 10**6
"""Milliseconds of Kafka's clock in a second of the loop's: bounds are whole seconds, and a second is long here."""
EVICTED_IN_ALL = Counter[str]()
"""By all workers that came to the end of a run."""
STEP_S = st.sampled_from([0.001, 0.01, 0.06, 0.3, 2.0])
"""Virtual time; a commit interval is 0.05 s, an idle fetch 0.25 s, a pause after a failure up to some seconds."""


class Protocol(NamedTuple):
    """Of Kafka's transactions; see memory_kafka."""

    ends_raise_epoch: bool
    verifies: bool


PROTOCOLS = [Protocol(False, False), Protocol(False, True), Protocol(True, True)]


class Sent(NamedTuple):
    """A record of the input, and what it means by the rule. sequence, identity: None where it has none that counts."""

    record: Record
    identity: bytes | None
    sequence: int | None


class Transaction(NamedTuple):
    """What a committed transaction says of itself in the changelog. at_s: Kafka's time; gone: whom it evicts."""

    progress: Progress
    at_s: int
    gone: list[bytes]
    evicted: Evicted | None
    tables: dict[bytes, bytes | None]
    """Entries of tables of one's own."""
    edits: list[Edit]
    owner: Owner | None
    """As of it."""

    def judging(self, offset: int) -> dict[str, str]:
        """What its owner entry says of the records from an input offset on."""
        said = [each.settings for each in self.owner.judging if each.start <= offset] if self.owner else []
        return said[-1] if said else {}


class Expected:
    """The oracle: one transaction after the other. Who goes is the worker's choice, within what the bounds allow."""

    def __init__(
        self, bounds: Bounds, unjudged: list[range], program: Plain | None, requests: dict[str, Forget]
    ) -> None:
        """unjudged: input offsets that went by while deduplication was off; requests: to forget, by id."""
        self.bounds, self.program, self.requests = bounds, program, dict(requests)
        self.tables: dict[bytes, bytes | None] = {}
        self.off = unjudged
        self.known = Remembered()
        self.active_s: dict[bytes, int] = {}
        self.forwarded: list[Record] = []
        self.rejected: list[Record] = []
        self.judged = Counter[str]()
        self.unjudged = self.gone = 0

    @property
    def last(self) -> dict[bytes, int]:
        return {name: seen.last for name, seen in self.known.of.items()}

    def take(self, start: int, sent: list[Sent | None], transaction: Transaction) -> None:
        """start: the input offset of the first of `sent`."""
        active = set()
        self.known.under(transaction.judging(start))
        self._forget(start, sent, transaction)
        for offset, each in enumerate(sent, start):
            if each is None:  # an offset without a record that counts
                continue
            if any(offset in interval for interval in self.off):
                self.unjudged += 1
                self._forward(offset, each.record)
                continue
            if each.identity is None or each.sequence is None:
                self.judged["invalid"] += 1
                self.rejected.append(each.record)
                continue
            active.add(each.identity)
            verdict = self.known.judge(each.identity, each.sequence, each.record.value)
            self.judged[verdict] += 1
            if verdict == "fresh":
                self._forward(offset, each.record)
            elif verdict in self.known.lettered:
                self.rejected.append(each.record)
        self.active_s |= dict.fromkeys(active, transaction.at_s)
        self._evict(transaction, active)
        judged, progress = self.judged, transaction.progress
        assert progress[1:4] == (judged["fresh"], judged["duplicate"], judged["invalid"])
        assert (progress.late, progress.conflict) == (judged["late"], judged["conflict"])
        self.tables |= transaction.tables

    def _forget(self, start: int, sent: list[Sent | None], transaction: Transaction) -> None:
        assert not (sent and transaction.edits)
        for edit in transaction.edits:
            request = self.requests.pop(edit.id)  # each is applied once
            before = self.last.get(request.identity, -1)
            after = -1 if request.above is None else min(before, request.above)
            assert (edit.position, edit.name, edit.before, edit.after) == (start, request.identity, before, after)
            assert request.input == "another" or edit.position >= request.ends[0]
            if before == after:
                continue
            if after < 0:
                transaction.gone.remove(request.identity)
                del self.known.of[request.identity], self.active_s[request.identity]
            else:
                self.known.lower(request.identity, after)
                self.active_s[request.identity] = transaction.at_s

    def _forward(self, offset: int, record: Record) -> None:
        self.forwarded += self.program.take(offset, record) if self.program else [record]

    def _evict(self, transaction: Transaction, active: set[bytes]) -> None:
        gone, (most, inactive_s) = set(transaction.gone), self.bounds
        assert len(gone) == len(transaction.gone)
        assert gone <= self.last.keys() - active
        quiet = {name for name in gone if inactive_s and transaction.at_s - self.active_s[name] > inactive_s}
        too_many = max(0, len(self.last) - most) if most else 0
        assert len(gone - quiet) <= too_many
        assert len(self.last) - len(gone) <= max(most, len(active)) if most else True
        for name in gone:
            del self.known.of[name], self.active_s[name]
        self.gone += len(gone)
        assert (sum(transaction.evicted) if transaction.evicted else 0) == (self.gone if gone else 0)


ANY_BOUNDS = [Bounds(1), Bounds(2), Bounds(None, 20), Bounds(None, 400), Bounds(1, 400), Bounds(2, 20)]
names = st.sampled_from([b"a", b"b", b"c"])
sequences = st.one_of(
    st.integers(0, 12).map(lambda n: (n.to_bytes(8, "big"), n)),
    st.integers(0, 12).map(lambda n: (b"%d" % n, n)),
    st.sampled_from([(None, None), (b"", None), (b"-1", None), (b"many", None), (b"9" * 30, None)]),
)


IDS_SENT: list[tuple[bytes | None, bytes, bytes | None]] = [
    (b"a", b'{"n": "x"}', b"\1a\1x"),
    (b"a", b'{"n": "xy"}', b"\1a\2xy"),
    (b"ax", b'{"n": "y"}', b"\2ax\1y"),
    (b"a", b'{"n": 1, "x": 0}', b"\1a\1" + b"1"),
    (b"a", b'{"n": "1"}', b"\1a\1" + b"1"),
    (b"b" * 1_000, b'{"n": "\\u0000"}', b"\xe8\x07" + b"b" * 1_000 + b"\1\0"),
    (b"b" * 1_024, b'{"n": "x"}', None),
    (b"", b'{"n": "x"}', None),
    (None, b'{"n": "x"}', None),
    (b"a", b'{"n": 1.5}', None),
    (b"a", b"", None),
]
"""Header, value, and the identity that they are, if any."""
ids = st.sampled_from(IDS_SENT)
all_names = {b"", b"a", b"b", b"c", *(identity for _, _, identity in IDS_SENT if identity)}


@st.composite
def sent(draw: st.DrawFn, kind: Identity, above: int = 0) -> Sent:
    """above: what is added to its sequence."""
    if kind == IDS:
        header, value, identity = draw(ids)
        return Sent(Record(None, value, (("id", header),)), identity, 0)
    name: bytes | None = draw(names)
    if draw(st.integers(0, 14)) == 0:
        name = draw(st.sampled_from([None, b"x" * 1025]))
    header, sequence = draw(sequences)
    if above and sequence is not None:
        sequence += above
        header = b"%d" % sequence
    headers = [(SEQUENCE_HEADER, header)] if header is not None else []
    if kind is Identity.PRODUCER and name is not None:
        headers.append((PRODUCER_HEADER, name))
    key = name if kind is Identity.KEY else None
    identity = b"" if kind is Identity.PARTITION else name
    if identity is not None and len(identity) > 1024:
        identity = None
    value = draw(st.binary(max_size=6))
    return Sent(Record(key, value, tuple(headers)), identity, sequence)


class CommitPath(RuleBasedStateMachine):
    """Two workers and one partition."""

    bounds_of_a_run: st.SearchStrategy[Bounds | None] = st.sampled_from([None, *ANY_BOUNDS])

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None))
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.patch = pytest.MonkeyPatch()  # here, since a search that ends while `begin` draws is closed as well
        self.kafka = MemoryKafka()
        self.sent: list[Sent | None] = []
        self.workers: list[Worker | None] = [None, None]
        self.policies: list[bool | Forget] = []
        """The policy topic."""
        self.kind = Identity.PRODUCER
        self.was_ahead = False
        self.bounds: Bounds | None = None
        self.spec = SPEC
        self.judging: list[dict[str, str]] = [{}]
        """Settings beside the rule, the newest last."""

    @initialize(
        kind=st.sampled_from([Identity.PARTITION, Identity.KEY, Identity.PRODUCER, IDS]),
        snapshots=st.sampled_from(["at every commit", "in time", "never"]),
        memory=st.sampled_from([0, 1 << 40]),
        at_once=st.booleans(),
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
    ) -> None:
        self.kafka.ends_raise_epoch, self.kafka.verifies = protocol
        self.kafka.last_epoch = last_epoch
        self.kind, self.memory, self.bounds = kind, memory, data.draw(self.bounds_of_a_run)
        clocks = {"at every commit": Clock(SAVES_AT_ONCE), "in time": self.loop.time, "never": Clock()}
        self.clock = clocks[snapshots]
        self.spec = WITH_AGENTS if agents else SPEC
        if kind != IDS:
            self._settle(data.draw(ANY_JUDGING) or {})
        if self.is_timed:
            self.kafka.stamped[CHANGELOG] = self._now_ms
        self.patch.setattr("kafka_ratchet.tables.partition.time", SimpleNamespace(time=lambda: self._now_ms() / 1000))
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
        self.patch.setattr("kafka_ratchet.tables.recovery.NULLS_LAST_S", 2_000)
        self.patch.setattr("kafka_ratchet.tables.map.slots.WASTE_LEAST", 0)
        self.start(slot=0)

    def _now_ms(self) -> int:
        return 10**9 + int(self.loop.time() * MS_A_SECOND)

    def _settle(self, judging: dict[str, str]) -> None:
        self.judging.append(judging)
        self.spec = replace(self.spec, judging=judging)

    @property
    def is_timed(self) -> bool:
        """Whether stores know how old they are."""
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

    @rule(data=st.data(), seconds=STEP_S)
    def append_aborted(self, data: st.DataObject, seconds: float) -> None:
        self._append([data.draw(sent(self.kind, self._above))], "none", FOREIGN)
        self.kafka.logs[INPUT, 0].write_marker(FOREIGN, ABORT)
        self.sent += [None] * 2
        self.go_on(seconds)

    def _arrive(self, data: st.DataObject) -> None:
        batch = data.draw(st.lists(sent(self.kind, self._above), min_size=1, max_size=8))
        self._append(batch, data.draw(st.sampled_from(["none", "none", "lz4", "zstd"])))

    @property
    def _above(self) -> int:
        """With windows sequences go on rising, so that there is always something to be late for."""
        return len(self.sent) // 8 if self.spec.judging else 0

    def _append(self, batch: list[Sent], compression: str, producer: int = -1) -> None:
        sources = [Source(each.record.key, each.record.value, each.record.headers) for each in batch]
        attributes = 0x10 if producer >= 0 else 0
        self.kafka.logs[INPUT, 0].append(encode(sources, 0, compression, producer, attributes), producer)
        if producer < 0:
            self.sent += batch

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
        """Where the other one runs already, that is a rebalance which it has not heard of."""
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
        self.append(data, seconds)
        if is_crash and (other := self.workers[1 - slot]) is not None:
            other.power_off()
            self._bury()
        self.go_on(longer)
        self.workers[slot] = worker
        run(self.loop, worker.start())
        self._bury()

    @precondition(_running)
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
        """In the middle of a batch."""
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
        """Between two starts, as all workers of a group have the same.

        Where there are bounds, what is kept only grows: an identity that is merely active is written down anew.
        """
        for slot in self._running():
            worker = self.workers[slot]
            assert worker is not None
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
        return Worker(*place, self.kind, self.memory, self.policies, self.bounds, self.spec, self.clock)

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
        self.policies.append(Forget(f"{number:016x}", identity, above, "now", "me", "so", None, topic, (end,)))
        for worker in filter(None, self.workers):
            if data.draw(st.booleans()):
                worker.policies.read()
        self.append(data, seconds)

    @rule(seconds=STEP_S)
    def go_on(self, seconds: float) -> None:
        run(self.loop, asyncio.sleep(seconds))
        self._bury()

    @precondition(_running)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self._running()))
        if not self.kafka.without_leader:
            self._stop(slot)

    def _stop(self, slot: int) -> None:
        worker = self.workers[slot]
        assert worker is not None
        worker.freeze_at, worker.leaderless_at_the_end = None, set()
        with suppress(PowerOff):  # `crash_at` may be met on the way
            run(self.loop, asyncio.wait_for(worker.stop(), 1_000))
        self._bury()
        self.workers[slot] = None

    @precondition(_running)
    @rule(data=st.data(), seconds=STEP_S, thaw=st.booleans())
    def freeze(self, data: st.DataObject, seconds: float, thaw: bool) -> None:
        self._worker(data).link.awake.clear()
        self.append(data, seconds)
        if thaw:
            self.thaw(seconds)

    @precondition(_running)
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

    # What fails, while there is something to do.

    @precondition(_running)
    @rule(data=st.data(), point=st.sampled_from(ALL_POINTS), times=st.integers(1, 3), seconds=STEP_S)
    def crash_at(self, data: st.DataObject, point: str, times: int, seconds: float) -> None:
        self._worker(data).crash_at = (point, times)
        self.append(data, seconds)
        self._start_again(data)

    @precondition(_running)
    @rule(data=st.data())
    def crash_now(self, data: st.DataObject) -> None:
        self._worker(data).power_off()
        self._bury()
        self._start_again(data)

    def _start_again(self, data: st.DataObject) -> None:
        for slot in SLOTS:
            if self.workers[slot] is None and data.draw(st.booleans()):
                self.start(slot)

    @precondition(_running)
    @rule(data=st.data(), requests=st.integers(0, 9), fate=st.sampled_from(list(Fate)), seconds=STEP_S)
    def lose_a_request(self, data: st.DataObject, requests: int, fate: Fate, seconds: float) -> None:
        self._worker(data).link.lose = (requests, fate)
        self.append(data, seconds)

    @precondition(_running)
    @rule(
        data=st.data(),
        fate=st.sampled_from([Fate.LATE, Fate.TWICE, Fate.HANDED_OVER]),
        lost_at=st.sampled_from(["judged", "produced", "logged", "offered"]),
        late_at=st.sampled_from(POINTS_OF_A_TRANSACTION),
        seconds=STEP_S,
    )
    def be_late(self, data: st.DataObject, fate: Fate, lost_at: str, late_at: str, seconds: float) -> None:
        """In the middle of the next transaction, if it is the end that is late, or its markers."""
        worker = self._worker(data)
        worker.lose_at, worker.deliver_at = (lost_at, fate), (late_at, data.draw(st.integers(1, 2)))
        self.append(data, seconds)
        self.append(data, seconds)

    @precondition(lambda self: self.kafka.has_late)
    @rule(data=st.data(), seconds=STEP_S, longer=STEP_S)
    def arrive_late(self, data: st.DataObject, seconds: float, longer: float) -> None:
        self.append(data, seconds)
        self.kafka.deliver_late()
        self.go_on(longer)

    @rule(data=st.data(), unaware=st.booleans(), seconds=STEP_S, longer=STEP_S)
    def move_the_coordinator(self, data: st.DataObject, unaware: bool, seconds: float, longer: float) -> None:
        """In the middle of a transaction, and perhaps back to a node to which requests are still on their way."""
        self.append(data, seconds)
        self.kafka.move_coordinator(unaware=unaware)
        for worker in filter(None, self.workers):
            worker.link.misled = data.draw(st.integers(0, 3))
        self.append(data, longer)

    @precondition(_running)
    @rule(data=st.data(), fate=st.sampled_from([Fate.LOST, Fate.UNANSWERED]), seconds=STEP_S)
    def ask_the_replaced_one(self, data: st.DataObject, fate: Fate, seconds: float) -> None:
        """For an end that got no answer; the new one was found by a look at the last transaction, before this began."""
        worker = self._worker(data)
        self.kafka.move_coordinator(unaware=True)
        worker.link.coordinates, worker.link.misled = self.kafka.coordinator, 1
        worker.lose_at = ("offered", fate)
        self.append(data, seconds)

    @precondition(lambda self: self.kafka.replaced is not None)
    @rule(seconds=STEP_S)
    def hear_of_the_new_coordinator(self, seconds: float) -> None:
        self.kafka.replaced = None
        self.go_on(seconds)

    @rule(data=st.data(), places=st.sets(st.sampled_from(PLACES), min_size=1), seconds=STEP_S, longer=STEP_S)
    def lose_leaders(self, data: st.DataObject, places: set[tuple[str, int]], seconds: float, longer: float) -> None:
        """In the middle of what is being done about a batch."""
        self.append(data, seconds)
        self.kafka.without_leader |= places
        self.go_on(longer)
        if data.draw(st.booleans()):
            self.leaders_return(seconds)

    @precondition(_running)
    @rule(
        data=st.data(),
        places=st.sets(st.sampled_from(PLACES), min_size=1),
        point=st.sampled_from(COMPLETION_POINTS),
        what=st.sampled_from(["crash", "freeze", "crash both", "nothing"]),
        seconds=STEP_S,
    )
    def lose_markers(
        self, data: st.DataObject, places: set[tuple[str, int]], point: str, what: str, seconds: float
    ) -> None:
        """And perhaps whoever is to complete it, or both that are."""
        worker = self._worker(data)
        worker.leaderless_at_the_end = places
        for each in filter(None, self.workers) if what == "crash both" else [worker]:
            each.crash_at = (point, 1) if what.startswith("crash") else each.crash_at
            each.freeze_at = point if what == "freeze" else each.freeze_at
        self.append(data, seconds)
        self.leaders_return(seconds)
        self._start_again(data)

    @precondition(lambda self: self.kafka.without_leader)
    @rule(seconds=STEP_S)
    def leaders_return(self, seconds: float) -> None:
        self.kafka.without_leader.clear()
        self.go_on(seconds)

    def _bury(self) -> None:
        for slot, worker in enumerate(self.workers):
            if worker is not None and worker.link.dead:
                run(self.loop, worker.clear_away())
                self.workers[slot] = None

    @rule(seconds=STEP_S)
    def compact_the_changelog(self, seconds: float) -> None:
        self.kafka.logs[CHANGELOG, 0].compact()
        self.go_on(seconds)

    @rule(data=st.data(), seconds=STEP_S)
    def delete_what_is_read(self, data: st.DataObject, seconds: float) -> None:
        """Retention that leaves what is still to be read."""
        self.kafka.logs[INPUT, 0].delete_before(data.draw(st.integers(0, self.committed_offset)))
        self.go_on(seconds)

    # What happens to stores while their worker is away.

    @precondition(lambda self: None in self.workers)
    @rule(what=st.sampled_from(["lose", "keep a copy", "put back a copy", "put back another's copy"]))
    def meddle_with_the_store(self, what: str) -> None:
        self._meddle_with_the_store(what)

    def _meddle_with_the_store(self, what: str) -> None:
        slot = self.workers.index(None)
        store, copies = self.folder / str(slot), [self.folder / f"{number}.copy" for number in SLOTS]
        if what == "keep a copy" and store.exists():
            shutil.rmtree(copies[slot], ignore_errors=True)
            shutil.copytree(store, copies[slot])
        elif what == "lose":
            shutil.rmtree(store, ignore_errors=True)
        elif (copy := copies[slot if what == "put back a copy" else 1 - slot]).exists():
            shutil.rmtree(store, ignore_errors=True)
            shutil.copytree(copy, store)

    @precondition(lambda self: self.workers == [None, None] and not (self.was_ahead or self._left_open))
    @precondition(lambda self: not self.kafka.without_leader)
    @rule()
    def start_on_a_store_that_is_ahead(self) -> None:
        self.was_ahead = True
        path = self.folder / "0"
        store = Store(path / "0")
        end, timed = self.kafka.logs[CHANGELOG, 0].end, 0 if self.is_timed else None
        missing = (store.missing or 0) if "dense" in self.spec.judging else None  # or it is rebuilt
        store.write([], end + 5, store.stands_for[1], timed, missing=missing)
        store.close()
        self.start(slot=0)
        run(self.loop, asyncio.sleep(5))
        worker = self.workers[0]
        assert worker is not None
        assert worker.lane.status.state is LaneState.HALTED
        assert "but the changelog ends at" in (worker.lane.status.error or "")
        self._stop(0)
        shutil.rmtree(path)

    # What must hold.

    @invariant()
    def nobody_halts(self) -> None:
        for worker in filter(None, self.workers):
            assert worker.lane.status.state is not LaneState.HALTED, worker.lane.status.error

    @property
    def _left_open(self) -> bool:
        return self.kafka.left_open()

    @property
    def committed_offset(self) -> int:
        committed = self.kafka.offsets.get((GROUP, INPUT, 0))
        assert committed is None or OURS.fullmatch(committed.metadata)
        return committed.offset if committed else 0

    def transactions(self) -> list[Transaction]:
        """What is committed in the changelog, in order; each begins with its progress."""
        log, found, owner = self.kafka.logs[CHANGELOG, 0], list[Transaction](), None
        for batch in log.history:
            if not batch.committed or batch.offset >= log.stable_end:
                continue
            for key, value, _ in batch.records:
                if key == PROGRESS:
                    at_s = HEAD.unpack_from(batch.data)[8] // 1000
                    found.append(Transaction(Progress.unpack(value or b""), at_s, [], None, {}, [], owner))
                elif key == OWNER:
                    owner = Owner.unpack(value or b"")
                elif key == EVICTED:
                    found[-1] = found[-1]._replace(evicted=Evicted.unpack(value or b""))
                elif key is not None and key.startswith(EDIT):
                    found[-1].edits.append(Edit.unpack(key, value or b"")[1])
                elif key is not None and key.startswith(TABLE_ENTRY):
                    if not key.startswith(OWN):  # how each table's entries are written
                        found[-1].tables[key] = value
                elif key is not None and value is None:
                    found[-1].gone.append(key[1:])
        return found

    def expected(self) -> Expected:
        """Of what is committed."""
        unjudged = [range(each.start, each.end) for each in self.unjudged()]
        program = Plain() if with_agents(self.spec) else None
        requests = {each.id: each for each in self.policies if isinstance(each, Forget)}
        expected, begin = Expected(self.bounds or Bounds(), unjudged, program, requests), 0
        transactions = self.transactions()
        for transaction in transactions:
            assert transaction.judging(begin) in self.judging
            if begin < transaction.progress.next:  # it stays known how these were judged
                assert transaction.judging(begin) == transactions[-1].judging(begin)
            expected.take(begin, self.sent[begin : transaction.progress.next], transaction)
            begin = transaction.progress.next
        assert begin == self.committed_offset
        there = {key: value for key, value in expected.tables.items() if value is not None}
        assert there == (program.entries if program else {})
        return expected

    @precondition(lambda self: not self._left_open)
    @invariant()
    def committed_is_what_the_oracle_says(self) -> None:
        expected = self.expected()
        assert sum(each.unjudged for each in self.unjudged()) == expected.unjudged
        assert self.kafka.logs[OUTPUT, 0].committed() == expected.forwarded
        assert self.letters(of_agents=False) == expected.rejected
        assert self.letters(of_agents=True) == (expected.program.failed if expected.program else [])
        changelog = {key[1:]: value for key, value in self.changelog().items() if key.startswith(b"i") and value}
        assert changelog.keys() == expected.last.keys()
        for name, entry in changelog.items():
            check_entry(entry, expected.known.of[name])

    def letters(self, *, of_agents: bool) -> list[Record]:
        """The committed dead letters without what was added to them: those for which an agent raised, or the others."""
        letters = self.kafka.logs[DEAD, 0].committed()
        if any(self.judging):  # of one batch the invalid ones come first
            letters.sort(key=lambda record: int(record.headers[-1][1] or b""))
        return [
            Record(record.key, record.value, tuple(each for each in record.headers[:-4] if each[0] != LETTER_AGENTS))
            for record in letters
            if (record.headers[-4][1] or b"").startswith(b"agent ") == of_agents
        ]

    def changelog(self) -> dict[bytes, bytes | None]:
        """The committed one, compacted."""
        return {record.key or b"": record.value for record in self.kafka.logs[CHANGELOG, 0].committed()}

    def unjudged(self) -> list[PolicyInterval]:
        """The intervals that were not judged; all of them must be what the policy topic said at their place in it."""
        entries = [
            (key, value or b"") for key, value in sorted(self.changelog().items()) if key.startswith(POLICY_INTERVAL)
        ]
        intervals = [PolicyInterval.unpack(key, value) for key, value in entries]
        assert [interval.number for interval in intervals] == list(range(len(intervals)))
        for before, after in pairwise(intervals):
            assert (before.deduplicate, before.policy) != (after.deduplicate, after.policy)
            assert before.start <= before.end <= after.start
            assert before.policy <= after.policy
        for interval in intervals:
            assert self.policies[interval.policy - 1] == interval.deduplicate
        return [interval for interval in intervals if not interval.deduplicate]

    def teardown(self) -> None:
        try:
            self.kafka.without_leader.clear()
            self.kafka.replaced = None
            self._bury()
            for worker in filter(None, self.workers):
                worker.forget_plans()
            if len(self._running()) == 1 and not self.kafka.has_late:
                self.thaw(200)  # undisturbed, it comes to the end by itself
                assert self.committed_offset == self.kafka.logs[INPUT, 0].end
            for slot in self._running():
                self._stop(slot)
            self.workers = [last := self._new_worker("last"), None]
            run(self.loop, last.start())
            run(self.loop, asyncio.sleep(2))
            self.kafka.deliver_late()
            run(self.loop, asyncio.sleep(100))
            assert self.committed_offset == self.kafka.logs[INPUT, 0].end
            self.committed_is_what_the_oracle_says()
            expected, table = self.expected(), last.sequences.partition(0)
            assert not expected.requests
            known = {name: table.last(name).persisted for name in all_names}
            assert {name: number for name, number in known.items() if number >= 0} == expected.last
            assert (len(table), sum(table.evicted)) == (len(expected.last), expected.gone)
            missing = sum(seen.missing for seen in expected.known.of.values())
            assert table.missing == (missing if "dense" in self.spec.judging else None)
            EVICTED_IN_ALL.update(f"window {verdict}" for verdict in expected.judged if any(self.judging))
            if expected.program is not None:
                found = {each.name: table.tables.of(each.name) for each in TABLES}
                there = {name: {key: each.get(key) for key in each.keys()} for name, each in found.items()}
                assert there == expected.program.tables
            EVICTED_IN_ALL.update(table.evicted._asdict())
            run(self.loop, last.stop())
        finally:
            self.close()

    def close(self) -> None:
        for worker in filter(None, self.workers):
            if worker.is_at_work:  # something has failed
                worker.power_off()
        self._bury()
        self.patch.undo()
        self.loop.run_until_complete(asyncio.sleep(2 * LATE_S))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        self.loop.close()
        shutil.rmtree(self.folder)


class TakenAway(CommitPath):
    """Until something is taken away from under it; from then on nothing comes out any more, whatever else happens."""

    kinds: st.SearchStrategy[str] = st.sampled_from(TAKEN_AWAY)

    def __init__(self) -> None:
        super().__init__()
        self.stands: tuple[list[Record], list[Record]] | None = None
        """Output and dead letters when it was."""
        self.what = ""

    @precondition(lambda self: self.stands is None and self.committed_offset > 0)
    @precondition(lambda self: not (self._left_open or self.kafka.without_leader))
    @rule(data=st.data())
    def take_away(self, data: st.DataObject) -> None:
        """While nobody works: what a worker has read before may still come out after."""
        self.what = what = data.draw(self.kinds)
        for slot in self._running():
            if data.draw(st.booleans()):
                self._stop(slot)
            else:
                self._running_worker(slot).power_off()
                self._bury()
        self.kafka.late.clear()
        self.kafka.late_markers.clear()
        self.was_ahead = True
        log, committed = self.kafka.logs[INPUT, 0], self.committed_offset
        if what in (INPUTS_END, EVIDENCE) and log.start < committed:
            log.truncate(data.draw(st.integers(log.start, committed - 1)))
            self._append([data.draw(sent(self.kind, self._above)) for _ in range(log.end, committed)], "none")
            self._arrive(data)
        elif what in (INPUTS_END, EVIDENCE, UNREAD):  # of what is read there is nothing left
            self._arrive(data)
            log.delete_before(log.end)
        elif what in (RULE, APP):
            self._arrive(data)
            changed = {"app": "another"} if what == APP else {"rule": {**self.spec.rule, "sequence": "another"}}
            self.spec = replace(self.spec, **changed)  # type: ignore[arg-type]
        elif what == PROGRAM:
            self._arrive(data)
            self.spec = SPEC if with_agents(self.spec) else WITH_AGENTS
        elif what == CHANGELOGS_END:
            self._cut_the_changelog(data)
        elif what == FILLED:
            end = self.kafka.logs[CHANGELOG, 0].end
            self.kafka.recreate(CHANGELOG)
            self._fill_the_changelog(end)
        else:
            self.kafka.recreate(what)
            for _ in range(data.draw(st.integers(0, 9))):
                self._arrive(data)
            while data.draw(st.booleans()) and self.kafka.logs[INPUT, 0].end <= committed:  # beyond where it was read
                self._append([data.draw(sent(self.kind, self._above)) for _ in range(committed)], "none")
        self.stands = self._came_out()
        EVICTED_IN_ALL[what] += 1
        self.start(slot=0)
        self._stands_still(0)
        if what == EVIDENCE:
            self._stop(0)
            log.delete_before(committed)
            self.start(slot=0)
            self._stands_still(0)

    def _cut_the_changelog(self, data: st.DataObject) -> None:
        """Behind a worker that has looked at its log and ended well: a store says how far it was looked at."""
        self.start(slot=0)
        self.go_on(5)
        self._stop(0)
        self.stands = self._came_out()  # whatever came of that
        log = self.kafka.logs[CHANGELOG, 0]
        end = log.end
        last = max(batch.offset for batch in log.batches if any(record.key == PROGRESS for record in batch.records))
        log.truncate(data.draw(st.integers(log.start, last)))
        self._fill_the_changelog(end)

    def _fill_the_changelog(self, end: int) -> None:
        """Beyond what it had."""
        log = self.kafka.logs[CHANGELOG, 0]
        entries = [Source(b"i%d" % number, number.to_bytes(8, "big")) for number in range(end - log.end + 1)]
        clock = self.kafka.stamped.get(CHANGELOG)
        log.append(encode(entries), at_ms=clock() if clock else -1)

    @precondition(lambda self: None in self.workers and not (self.stands and self.what == CHANGELOGS_END))
    @rule(what=st.sampled_from(["lose", "keep a copy", "put back a copy", "put back another's copy"]))
    def meddle_with_the_store(self, what: str) -> None:
        """An older copy of the store may have ended where its log had not been looked at yet."""
        self._meddle_with_the_store(what)

    def _running_worker(self, slot: int) -> Worker:
        worker = self.workers[slot]
        assert worker is not None
        return worker

    def _came_out(self) -> tuple[list[Record], list[Record]]:
        return self.kafka.logs[OUTPUT, 0].committed(), self.kafka.logs[DEAD, 0].committed()

    def _stands_still(self, slot: int) -> None:
        """It halts with a sentence, and goes on halting."""
        run(self.loop, asyncio.sleep(100))
        status = self._running_worker(slot).lane.status
        assert status.state is LaneState.HALTED, status
        assert status.error is not None

    @invariant()
    def nobody_halts(self) -> None:
        if self.stands is None:
            super().nobody_halts()

    @invariant()
    def committed_is_what_the_oracle_says(self) -> None:
        if self.stands is not None:
            assert self._came_out() == self.stands
        elif not self._left_open:
            super().committed_is_what_the_oracle_says()

    def teardown(self) -> None:
        if self.stands is None:
            return super().teardown()
        try:
            self.kafka.without_leader.clear()
            self.kafka.replaced = None
            self._bury()
            for worker in filter(None, self.workers):
                worker.forget_plans()
            for slot in self._running():
                self._stop(slot)
            self.workers = [self._new_worker("last"), None]
            run(self.loop, self._running_worker(0).start())
            self._stands_still(0)
            assert self._came_out() == self.stands
            self._stop(0)
        finally:
            self.close()
        return None


CHECKS = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "stateful_step_count": 40,
    "print_blob": True,
    "phases": (Phase.explicit, Phase.generate, Phase.shrink),
}


class Unbounded(CommitPath):
    bounds_of_a_run = st.none()


class Displacing(CommitPath):
    bounds_of_a_run = st.sampled_from([bounds for bounds in ANY_BOUNDS if not bounds.inactive_s])


class Forgetting(CommitPath):
    bounds_of_a_run = st.sampled_from([bounds for bounds in ANY_BOUNDS if bounds.inactive_s])


@pytest.mark.timeout(900)  # three runs a second where nothing else runs; beside other tests far fewer
@pytest.mark.parametrize(
    ("machine", "runs", "evicts"), [(Unbounded, 40, None), (Displacing, 25, "displaced"), (Forgetting, 25, "inactive")]
)
def test_the_commit_path(machine: type[CommitPath], runs: int, evicts: str | None) -> None:
    EVICTED_IN_ALL.clear()
    run_state_machine_as_test(machine, settings=settings(max_examples=runs, **CHECKS))
    for _ in range(20):
        if evicts is None or EVICTED_IN_ALL[evicts]:
            return
        run_state_machine_as_test(machine, settings=settings(max_examples=10, **CHECKS))
    pytest.fail(f"nobody was ever {evicts}")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", TAKEN_AWAY)
def test_what_is_taken_away(what: str) -> None:
    machine = type("TakenAwayNow", (TakenAway,), {"kinds": st.just(what)})
    EVICTED_IN_ALL.clear()
    for _ in range(20):  # ten runs need not come to it
        run_state_machine_as_test(machine, settings=settings(max_examples=10, **CHECKS))
        if EVICTED_IN_ALL[what]:
            return
    pytest.fail(f"{what} was never taken away")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(20))  # so that one sees how far it is, and a failure does not end the rest
def test_the_commit_path_at_length(part: int) -> None:
    run_state_machine_as_test(CommitPath, settings=settings(max_examples=1_000, **CHECKS))
