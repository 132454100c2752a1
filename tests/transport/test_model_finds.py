"""The model's Kafka shows each of these bugs when its fix is taken out, and none of them with it.

Each is the shortest way to it, step by step; test_commit_path.py comes to the same events in any order.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiokafka.errors import TransactionalIdAuthorizationFailed
from aiokafka.protocol.transaction import InitProducerIdRequest

from kafka_ratchet.errors import TransactionError
from kafka_ratchet.rule.identity import PRODUCER_HEADER, SEQUENCE_HEADER, Identity
from kafka_ratchet.tables.eviction import EvictionLimits
from kafka_ratchet.tables.recovery import Ownership
from kafka_ratchet.transport.client.cluster import EARLIEST, FetchedPartition
from kafka_ratchet.transport.client.topic_id import id_text
from kafka_ratchet.transport.lane import Lane
from kafka_ratchet.transport.lane_spec import LaneState
from kafka_ratchet.transport.policy import ForgetRequest
from kafka_ratchet.transport.transactions.hanging import Hanging, end_hanging
from kafka_ratchet.transport.transactions.producer import TransactionalProducer
from kafka_ratchet.transport.transactions.requests import TransactionRequests
from kafka_ratchet.transport.transactions.version_2 import FeaturesRequest, ends_raise_epochs
from tests.transport.memory_kafka import MemoryKafka
from tests.transport.memory_link import Fate, Link
from tests.transport.memory_log import ABORT, Log, Record
from tests.transport.modelled_commit_path import CommitPath
from tests.transport.modelled_input import Sent
from tests.transport.modelled_runs import Protocol
from tests.transport.modelled_worker import CHANGELOG, INPUT, OUTPUT, VirtualLoop, run
from tests.transport.transactions.test_producer import batch_of

END, INITIALISE = TransactionRequests.end, TransactionRequests.initialise
OUT, OTHER = (OUTPUT, 0), ("other", 0)
FIRST = Protocol(ends_raise_epoch=False, verifies=True)
UNVERIFIED = Protocol(ends_raise_epoch=False, verifies=False)
RAISING = Protocol(ends_raise_epoch=True, verifies=True)


class Drawn:
    """Stand-in for Hypothesis's data: the given values, and then no more."""

    def __init__(self, *given: object) -> None:
        self.given = list(given)

    def draw(self, strategy: Any) -> object:
        return self.given.pop(0) if self.given else None


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    yield loop
    asyncio.set_event_loop(None)
    loop.close()


@contextmanager
def one_lane(
    protocol: Protocol, bounds: EvictionLimits | None = None, fetched_takes_s: float = 0.0
) -> Iterator[CommitPath]:
    """The model with one worker at work, and nothing drawn."""
    model, drawn = CommitPath(), Drawn(bounds)
    place = Identity.PRODUCER, "never", 1 << 40, True, protocol, 1 << 15
    model.begin(*place, drawn, fetched_takes_s=fetched_takes_s)
    try:
        yield model
    finally:
        model.close()


def producer_on(kafka: MemoryKafka) -> TransactionalProducer:
    return TransactionalProducer(Link(kafka), "id", "group", 60_000, [OUT, OTHER])  # type: ignore[arg-type]


async def end_without_doubt(requests: TransactionRequests, *, commit: bool) -> None:
    await END(requests, commit=commit)
    requests.in_doubt = False


async def nothing(*_: object) -> None:
    return None


def sent(number: int, name: bytes = b"a") -> Sent:
    headers = ((SEQUENCE_HEADER, b"%d" % number), (PRODUCER_HEADER, name))
    return Sent(Record(None, b"%d" % number, headers), name, number)


@pytest.mark.parametrize("protocol", [FIRST, UNVERIFIED, RAISING])
@pytest.mark.parametrize("fate", [Fate.LATE, Fate.TWICE])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_late_end(monkeypatch: pytest.MonkeyPatch, protocol: Protocol, fate: Fate, fixed: bool) -> None:
    """Taken out: that the id is initialised after an end that took more than one request; and what would mend it here.

    Where each end raises the epoch, a late one is harmless without it too.
    """
    if not fixed:
        monkeypatch.setattr(TransactionRequests, "end", end_without_doubt)
        monkeypatch.setattr(TransactionalProducer, "check_ended", nothing)
    with one_lane(protocol) as model:
        worker = model.workers[0]
        assert worker is not None
        model._append([sent(1)], "none")
        model.go_on(2)
        worker.lose_at = ("offered", fate)
        model._append([sent(2)], "none")
        model.go_on(2)
        worker.deliver_at = ("logged", 1)
        model._append([sent(3)], "none")
        model.go_on(60)
        delivers = worker.__dict__["deliver_at"]
        assert delivers is None
        whole = model.kafka.logs[OUT].committed() == [sent(number).record for number in (1, 2, 3)]
        # A Kafka that does not verify takes what comes after the late end for open, and nothing ends it.
        assert (whole and not model.kafka.left_open()) == (fixed or protocol.ends_raise_epoch)


@pytest.mark.parametrize("protocol", [FIRST, UNVERIFIED, RAISING])
@pytest.mark.parametrize("fixed", [True, False])
def test_an_end_answered_by_a_coordinator_that_was_replaced(
    monkeypatch: pytest.MonkeyPatch, protocol: Protocol, fixed: bool
) -> None:
    """Taken out: that the changelog tells whether it is committed, after an end that took more than one request.

    The one that was replaced tells of the transaction before, which had the same epoch. Where each end raises the
    epoch, it has another one.
    """
    if not fixed:
        monkeypatch.setattr(TransactionRequests, "end", end_without_doubt)
    with one_lane(protocol) as model:
        worker = model.workers[0]
        assert worker is not None
        model._append([sent(1)], "none")
        model.go_on(2)
        model.kafka.move_coordinator(unaware=True)
        # As after a look at the last transaction, which came to the new one.
        worker.link.coordinates, worker.link.misled = model.kafka.coordinator, 1
        worker.lose_at = ("offered", Fate.LOST)
        model._append([sent(2)], "none")
        model.go_on(60)
        assert worker.link.misled == 0
        whole = model.kafka.logs[OUT].committed() == [sent(number).record for number in (1, 2)]
        assert whole == (fixed or protocol.ends_raise_epoch)


@pytest.mark.parametrize("fixed", [True, False])
def test_an_offset_read_behind_a_successor_whose_commit_is_open_in_the_changelog(
    monkeypatch: pytest.MonkeyPatch, fixed: bool
) -> None:
    """Taken out: that whoever finds an offset ahead of its changelog asks whether the partition is still its own."""
    if not fixed:
        monkeypatch.setattr(TransactionalProducer, "still_owns", nothing)
    with one_lane(FIRST) as model:
        model.patch.setattr("kafka_ratchet.transport.changelog.OPEN_WITHIN_S", 0.2)
        model._stop(0)
        model.workers[0] = before = model._new_worker("0")
        before.freeze_at = "fenced"
        run(model.loop, before.start())
        model.go_on(2)
        model.start(slot=1)
        successor = model.workers[1]
        assert successor is not None
        successor.leaderless_at_the_end = {(CHANGELOG, 0)}
        model._append([sent(1)], "none")
        model.go_on(0.06)
        assert model.kafka.left_open()
        successor.link.awake.clear()
        model.kafka.without_leader.clear()
        before.link.awake.set()
        model.go_on(1)
        assert before.lane.status.restarts == 1
        assert (not before.lane.status.halted) == fixed, before.lane.status
        successor.link.awake.set()
        model.go_on(60)
        assert model.kafka.logs[OUT].committed() == [sent(1).record]


@pytest.mark.parametrize("protocol", [FIRST, RAISING])
@pytest.mark.parametrize("fixed", [True, False])
def test_an_offset_that_a_successor_has_read_and_retention_has_deleted(
    monkeypatch: pytest.MonkeyPatch, protocol: Protocol, fixed: bool
) -> None:
    """Taken out: that whoever cannot read on asks whether the partition is still its own."""
    if not fixed:
        monkeypatch.setattr(TransactionalProducer, "still_owns", nothing)
    with one_lane(protocol) as model:
        model.go_on(1)
        before = model.workers[0]
        assert before is not None
        before.link.awake.clear()
        model.start(slot=1)
        model._append([sent(1)], "none")
        model.go_on(1)
        assert model.committed_offset == model.kafka.logs[INPUT, 0].end
        model.kafka.logs[INPUT, 0].delete_before(model.committed_offset)
        before.link.awake.set()
        model.go_on(0.5)
        assert before.lane.measures.halts.total() == (0 if fixed else 1), before.lane.status
        assert before.lane.status.restarts == 1
        model.go_on(60)
        assert model.kafka.logs[OUT].committed() == [sent(1).record]


@pytest.mark.parametrize("fixed", [True, False])
def test_unread_records_are_deleted_before_the_first_one_is_read(monkeypatch: pytest.MonkeyPatch, fixed: bool) -> None:
    """Taken out: that a first start commits its position."""
    if not fixed:
        monkeypatch.setattr(Ownership, "is_claimed", False)
    with one_lane(RAISING) as model:
        model.go_on(1)
        model._stop(0)
        for number in (1, 2):
            model._append([sent(number)], "none")
        model.kafka.logs[INPUT, 0].delete_before(1)
        model.start(slot=0)
        model.go_on(60)
        worker = model.workers[0]
        assert worker is not None
        assert (worker.lane.status.state is LaneState.HALTED) == fixed
        assert model.kafka.logs[OUT].committed() == ([] if fixed else [sent(2).record])


@pytest.mark.parametrize("protocol", [FIRST, UNVERIFIED, RAISING])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_late_batch(loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, protocol: Protocol, fixed: bool) -> None:
    """Taken out: that a transaction is given up under the next epoch. Kafka that verifies refuses the batch anyway."""
    if not fixed:

        async def give_up(requests: TransactionRequests, timeout_ms: int) -> None:
            await requests.end_once(commit=False)

        monkeypatch.setattr(TransactionRequests, "give_up", give_up)
    kafka = MemoryKafka(*protocol)

    async def transactions() -> None:
        producer = producer_on(kafka)
        await producer.initialise()
        producer.begin([OUT])
        await producer._joined()
        producer.cluster.lose = (0, Fate.LATE)  # type: ignore[attr-defined]
        await producer.produce(*OUT, batch_of(b"late"))
        await asyncio.sleep(1)
        await producer.abort()
        await producer.initialise()
        kafka.deliver_late()
        producer.begin([OUT])
        await producer.produce(*OUT, batch_of(b"next"))
        await producer.commit(INPUT, 0, 1)

    run(loop, transactions())
    values = [record.value for record in kafka.logs[OUT].committed()]
    assert (values == [b"next"]) == (fixed or protocol.verifies)


@pytest.mark.parametrize("fixed", [True, False])
def test_what_is_left_open_when_epochs_are_used_up(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, fixed: bool
) -> None:
    """Taken out: that what is open then is completed before the id gets another producer."""
    kafka = MemoryKafka(*RAISING)
    kafka.last_epoch = 4
    monkeypatch.setattr("kafka_ratchet.transport.transactions.requests.LAST_EPOCH", 4)
    monkeypatch.setattr("kafka_ratchet.transport.transactions.producer.LAST_EPOCH", 4 if fixed else 1 << 15)

    async def transactions() -> None:
        producer = producer_on(kafka)
        await producer.initialise()
        for number in range(1, 5):
            producer.begin([OUT])
            await producer.produce(*OUT, batch_of(b"%d" % number))
            await producer.delivered()
            kafka.without_leader = {OUT} if number == 4 else set()
            await producer.commit(INPUT, 0, number)
        kafka.without_leader = set()
        assert producer.state == "spent"
        await producer_on(kafka).initialise()

    if fixed:
        run(loop, transactions())
        assert [record.value for record in kafka.logs[OUT].committed()] == [b"1", b"2", b"3", b"4"]
        assert kafka.transactions["id"].producer == 1_100
    else:
        with pytest.raises(TransactionError, match="Kafka has since given the id another producer id"):
            run(loop, transactions())


class TakenOver(Link):
    """Link with another owner that takes the id over, and dies, before one with a recorded outcome learns features."""

    def __init__(self, kafka: MemoryKafka) -> None:
        super().__init__(kafka)
        self.happened = False

    async def send(self, node: int, request: Any, connection: Hashable) -> Any:
        is_recorded = ("id", *OUT) in self.kafka.offsets
        if isinstance(request, FeaturesRequest) and is_recorded and not self.happened:
            self.happened = True
            assert self.kafka.carry_out(InitProducerIdRequest("id", 60_000), node).producer_epoch == 4
        return await super().send(node, request, connection)


@pytest.mark.parametrize("fixed", [True, False])
def test_an_id_that_is_taken_over_in_its_last_epoch_but_one(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, fixed: bool
) -> None:
    """Taken out: that nothing is asked between the look at the last transaction and taking its id over."""
    kafka = MemoryKafka(*FIRST)
    kafka.last_epoch = 4
    monkeypatch.setattr("kafka_ratchet.transport.transactions.requests.LAST_EPOCH", 4)
    monkeypatch.setattr("kafka_ratchet.transport.transactions.producer.LAST_EPOCH", 4)
    if not fixed:

        async def unasked(requests: TransactionRequests) -> bool:
            return False

        async def initialise(requests: TransactionRequests, timeout_ms: int, *, ends_raise: bool) -> None:
            await ends_raise_epochs(requests.cluster, 1, "here")
            await INITIALISE(requests, timeout_ms, ends_raise=ends_raise)

    async def transactions() -> None:
        for _ in range(4):
            producer = producer_on(kafka)
            await producer.initialise()
        assert kafka.transactions["id"].epoch == 3
        producer.begin([OUT])
        await producer.produce(*OUT, batch_of(b"left open"))
        await producer.delivered()
        kafka.without_leader = {OUT}
        await producer.commit(INPUT, 0, 1)
        kafka.without_leader = set()
        assert kafka.left_open()
        if not fixed:
            monkeypatch.setattr(TransactionRequests, "ends_raise_epochs", unasked)
            monkeypatch.setattr(TransactionRequests, "initialise", initialise)
        link = TakenOver(kafka)
        successor = TransactionalProducer(link, "id", "group", 60_000, [OUT, OTHER])  # type: ignore[arg-type]
        try:
            await successor.initialise()
        finally:
            assert link.happened

    if fixed:
        run(loop, transactions())
        assert [record.value for record in kafka.logs[OUT].committed()] == [b"left open"]
    else:
        with pytest.raises(TransactionError, match=r"given the id another producer id.*--open-transaction commit"):
            run(loop, transactions())
        assert kafka.left_open()


@pytest.mark.parametrize("commit", [True, False])
def test_an_operator_cannot_contradict_the_end_that_the_coordinator_knows(loop: VirtualLoop, commit: bool) -> None:
    kafka = MemoryKafka()

    async def transactions() -> None:
        producer = producer_on(kafka)
        await producer.initialise()
        producer.begin([OUT])
        await producer.produce(*OUT, batch_of(b"committed"))
        await producer.delivered()
        kafka.without_leader = {OUT}
        await producer.commit(INPUT, 0, 1)
        kafka.without_leader = set()
        assert kafka.left_open()
        (batch,) = (each for each in kafka.logs[OUT].batches if each.committed is None)
        hanging = [Hanging(*OUT, batch.producer, batch.epoch, 0, 0, 600.0)]
        if commit:
            await end_hanging(Link(kafka), "id", hanging, "operator", commit=True)  # type: ignore[arg-type]
        else:
            with pytest.raises(TransactionError, match=r"was committed, but its marker is missing in .*partition 0"):
                await end_hanging(Link(kafka), "id", hanging, "operator", commit=False)  # type: ignore[arg-type]
        await producer_on(kafka).initialise()

    run(loop, transactions())
    assert [record.value for record in kafka.logs[OUT].committed()] == [b"committed"]


class Unauthorised(Link):
    async def coordinator(self, kind: int, key: str) -> int:
        raise TransactionalIdAuthorizationFailed


def test_without_the_right_to_the_id_a_lane_halts_at_once(loop: VirtualLoop) -> None:
    producer = TransactionalProducer(Unauthorised(MemoryKafka()), "id", "group", 60_000, [OUT])  # type: ignore[arg-type]
    with pytest.raises(TransactionError, match=r"id: this user may not ask .*docs/guide/rights\.md"):
        run(loop, producer.initialise())


def test_what_waited_in_the_input_is_judged_before_its_identity_is_forgotten() -> None:
    with one_lane(FIRST) as model:
        worker = model.workers[0]
        assert worker is not None
        model._append([sent(98), sent(99)], "none")
        model.go_on(2)
        for number in (98, 99, 100, 101):  # the worker reads none of them before it hears of the request
            model._append([sent(number)], "none")
        topic, ends = id_text(model.kafka.topic_id(INPUT)), (model.kafka.logs[INPUT, 0].end,)
        model.policies.append(ForgetRequest("0" * 16, b"a", None, "now", "me", "so", None, topic, ends))
        worker.policies.read()
        model.go_on(5)
        for number in (0, 1):
            model._append([sent(number)], "none")
            model.go_on(2)
        model.committed_is_what_the_oracle_says()
        passed = [record.value for record in model.kafka.logs[OUT].committed()]
        assert passed == [b"98", b"99", b"100", b"101", b"0", b"1"]


async def until_now(lane: Lane, at_ms: int) -> int | None:
    return at_ms if lane._left == 0 else None


@pytest.mark.parametrize("looks_again", [True, False])
@pytest.mark.parametrize("fixed", [True, False])
def test_an_end_that_was_seen_before_a_stop(monkeypatch: pytest.MonkeyPatch, fixed: bool, looks_again: bool) -> None:
    """Taken out: that who is quiet is judged as of the look at the input's end, and not as of the commit."""
    if not fixed:
        monkeypatch.setattr(Lane, "_judged_until_ms", until_now)
    with one_lane(RAISING, EvictionLimits(None, 400), 0.04) as model:
        model.patch.setattr("kafka_ratchet.transport.input_time.END_OLD_MS", 0 if looks_again else 1 << 60)
        worker = model.workers[0]
        assert worker is not None
        model._append([sent(1)], "none")
        while model.committed_offset < 1:
            model.go_on(0.01)
        worker.freeze_at = "produced"
        model._append([sent(1, b"b")], "none")
        while not worker.stands_still:
            model.go_on(0.01)
        model._append([sent(1)], "none")  # a duplicate, in time
        model.go_on(2)
        model.thaw(2)
        assert model.committed_offset == 3
        came_out = [sent(1).record, sent(1, b"b").record]
        if fixed:
            assert model.kafka.logs[OUT].committed() == came_out
            model.committed_is_what_the_oracle_says()
        else:
            assert model.kafka.logs[OUT].committed() == [*came_out, sent(1).record]
            with pytest.raises(AssertionError):
                model.committed_is_what_the_oracle_says()
        model.go_on(2)
        model._append([sent(2, b"b")], "none")
        model.go_on(2)
        gone = [name for each in model.transactions() for name in each.gone]
        assert fixed is False or gone == ([b"a"] if looks_again else [])  # in a silence, the next commit's


async def to_stable_end(
    link: Link, topic: str, partition: int, which: int, connection: Hashable, *, isolation: int = 0
) -> int:
    """Return the former end of an input: that of committed readers."""
    log = link.kafka.logs[topic, partition]
    return log.start if which == EARLIEST else log.stable_end


FETCH = Log.fetch


def fetch_to_stable_end(log: Log, *given: int) -> FetchedPartition:
    """Return what a fetch finds, without the end for uncommitted readers."""
    fetched = FETCH(log, *given)
    return fetched._replace(high_watermark=fetched.stable_end)


@pytest.mark.parametrize("fixed", [True, False])
def test_a_record_behind_an_open_transaction_waits(monkeypatch: pytest.MonkeyPatch, fixed: bool) -> None:
    """Taken out: that the end of the input is the high watermark, and not the last stable offset."""
    if not fixed:
        monkeypatch.setattr(Link, "offset", to_stable_end)
        monkeypatch.setattr(Log, "fetch", fetch_to_stable_end)
    with one_lane(RAISING, EvictionLimits(None, 400), 0.04) as model:
        log = model.kafka.logs[INPUT, 0]
        model._append([sent(1)], "none")
        model.go_on(300)
        for producer in (70, 71):  # two transactions that overlap
            model._append([sent(9, b"x")], "none", producer)
        model._append([sent(1)], "none")  # a duplicate, in time
        model.go_on(300)
        log.write_marker(70, ABORT)
        model._skip_offset()
        model.go_on(2)  # a commit at the end for committed readers
        assert model.committed_offset == 2
        log.write_marker(71, ABORT)
        model._skip_offset()
        model.go_on(2)
        assert model.committed_offset == 6
        if fixed:
            assert log.committed()[:1] == model.kafka.logs[OUT].committed() == [sent(1).record]
            model.committed_is_what_the_oracle_says()
        else:
            assert model.kafka.logs[OUT].committed() == [sent(1).record] * 2


@pytest.mark.parametrize("steps", range(8))
def test_a_commit_that_is_cancelled_leaves_no_request_unawaited(loop: VirtualLoop, steps: int) -> None:
    """Cancel a commit after some steps of the loop: Python warns of a coroutine that nobody awaits."""
    kafka = MemoryKafka()

    async def cancel() -> None:
        producer = producer_on(kafka)
        await producer.initialise()
        producer.begin([OUT])
        await producer.produce(*OUT, batch_of(b"cancelled"))
        await producer.delivered()
        commit = asyncio.create_task(producer.commit(INPUT, 0, 1))
        for _ in range(steps):
            await asyncio.sleep(0)
        commit.cancel()
        await asyncio.gather(commit, return_exceptions=True)

    with warnings.catch_warnings(record=True) as unawaited:
        warnings.simplefilter("always")
        run(loop, cancel())
        gc.collect()
    assert [str(each.message) for each in unawaited] == []
