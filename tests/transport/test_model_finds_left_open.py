"""The model's Kafka shows these bugs when their fix is taken out: a commit got no marker, and the next is to begin.

As test_model_finds.py has others, step by step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_ratchet.errors import Aborted, TransactionError
from kafka_ratchet.transport.changelog import Changelog
from kafka_ratchet.transport.lane_spec import LaneState
from kafka_ratchet.transport.transactions.outcome import COMPLETE_WITHIN_S, TopicPartition
from kafka_ratchet.transport.transactions.producer import TransactionalProducer
from kafka_ratchet.transport.transactions.requests import TransactionRequests
from kafka_ratchet.transport.transactions.states import State
from tests.transport.memory_kafka import CONCURRENT, MemoryKafka, Transaction
from tests.transport.memory_link import Fate
from tests.transport.memory_log import COMMIT
from tests.transport.modelled_runs import Protocol
from tests.transport.modelled_worker import CHANGELOG, INPUT, run
from tests.transport.test_model_finds import FIRST, OUT, RAISING, one_lane, producer_on, sent
from tests.transport.transactions.test_producer import batch_of

OPEN, JOIN, END_ONCE = TransactionalProducer._open, TransactionRequests.join, TransactionRequests.end_once
REQUESTED_S = 3.0
"""Seconds, by the model's clock, for the requests before and after the limit."""


async def open_beside_the_lane(producer: TransactionalProducer, partitions: list[TopicPartition]) -> None:
    try:
        await OPEN(producer, partitions)
    except Aborted:
        producer._to(State.FAILED)
        raise


@pytest.mark.parametrize("fixed", [True, False])
def test_a_batch_of_duplicates_behind_a_commit_without_its_marker(monkeypatch: pytest.MonkeyPatch, fixed: bool) -> None:
    """Taken out: that a transaction which cannot begin stays open until its lane hears of that.

    Such a batch produces nothing, so that nobody asks before the commit, and what is not open is not committed.
    """
    if not fixed:
        monkeypatch.setattr(TransactionalProducer, "_open", open_beside_the_lane)
    with one_lane(FIRST) as model:
        worker = model.workers[0]
        assert worker is not None
        model.go_on(1)
        worker.leaderless_at_the_end = {(CHANGELOG, 0)}
        model._append([sent(1)], "none")
        model.go_on(1)
        model.kafka.without_leader.clear()
        assert model.kafka.left_open()
        model._append([sent(1)], "none")
        model.go_on(200)
        assert (model.committed_offset, model.kafka.left_open()) == ((2, False) if fixed else (1, True))
        model._append([sent(2)], "none")
        model.go_on(60)
        assert model.committed_offset == model.kafka.logs[INPUT, 0].end
        model.committed_is_what_the_oracle_says()


async def nothing_asked(_: object) -> None:
    return None


@pytest.mark.parametrize("protocol", [FIRST, RAISING])
@pytest.mark.parametrize("where", [OUT, (CHANGELOG, 0)])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_commit_without_its_marker_that_no_other_follows(
    monkeypatch: pytest.MonkeyPatch, where: TopicPartition, protocol: Protocol, fixed: bool
) -> None:
    """Taken out: that a lane at rest asks. Its output would stay invisible until the next record comes."""
    if not fixed:
        monkeypatch.setattr(TransactionalProducer, "check_ended", nothing_asked)
    with one_lane(protocol) as model:
        worker = model.workers[0]
        assert worker is not None
        model.go_on(1)
        worker.leaderless_at_the_end = {where}
        model._append([sent(1)], "none")
        model.go_on(30)  # it is not ended while nobody leads
        model.kafka.without_leader.clear()
        assert model.kafka.left_open()
        model.go_on(60)
        assert model.kafka.left_open() != fixed
        if fixed:
            model.committed_is_what_the_oracle_says()
            assert worker.lane.status.restarts == 1


@pytest.mark.parametrize("fixed", [True, False])
def test_a_commit_without_its_marker_of_an_id_that_kafka_has_forgotten(
    monkeypatch: pytest.MonkeyPatch, fixed: bool
) -> None:
    """Taken out: that a lane asks whether the changelog has open records when their owner is fenced."""
    if not fixed:
        monkeypatch.setattr(Changelog, "_refuse_open", nothing_asked)
    with one_lane(FIRST) as model:
        worker, kafka = model.workers[0], model.kafka
        assert worker is not None
        model.go_on(1)
        worker.leaderless_at_the_end = {(CHANGELOG, 0)}
        model._append([sent(1)], "none")
        model.go_on(0.3)
        worker.power_off()
        model._bury()
        kafka.without_leader.clear()
        open_batch = next(batch for batch in kafka.logs[CHANGELOG, 0].batches if batch.committed is None)
        kafka.transactions = {"another": Transaction(2_000)}
        kafka.offsets.clear()
        model.start(slot=1)
        model.go_on(60)
        successor = model.workers[1]
        assert successor is not None
        assert (successor.lane.status.halted == "TransactionError") == fixed
        assert kafka.logs[OUT].committed() == [sent(1).record] * (1 if fixed else 2)
        if fixed:
            assert f"the transaction from offset {open_batch.offset} on is open" in (successor.lane.status.error or "")
            kafka.logs[CHANGELOG, 0].write_marker(open_batch.producer, COMMIT)  # as an operator ends it
            model.go_on(60)
            assert (successor.lane.status.state, successor.lane.status.position) == (LaneState.RUNNING, 1)
            assert kafka.logs[OUT].committed() == [sent(1).record]


async def as_long_as_it_takes(answer: Awaitable[Any], _: str) -> Any:
    return await answer


@pytest.mark.parametrize("fixed", [True, False])
def test_a_lane_is_stopped_whose_next_transaction_waits_for_a_leader(
    monkeypatch: pytest.MonkeyPatch, fixed: bool
) -> None:
    """Taken out: that it starts again when that takes long. In a rebalance other lanes wait for the stop."""
    if not fixed:
        monkeypatch.setattr("kafka_ratchet.transport.transactions.producer.soon", as_long_as_it_takes)
    with one_lane(FIRST) as model:
        worker = model.workers[0]
        assert worker is not None
        model._append([sent(1)], "none")
        model.go_on(1)
        model.kafka.without_leader = {OUT}
        model._append([sent(2)], "none")
        model.go_on(1)
        stopped = model.loop.create_task(worker.stop())
        model.go_on(1_000)
        assert stopped.done() == fixed
        model.kafka.without_leader.clear()
        model.go_on(10)
        assert stopped.done()
        model.committed_is_what_the_oracle_says()


def unsettled(kafka: MemoryKafka, topics: Any, **who: Any) -> Any:
    """Answer for a transactional id whose last transaction is still being ended."""
    codes = [(topic, [(number, CONCURRENT) for number in numbers]) for topic, numbers in topics]
    return SimpleNamespace(errors=codes)


@pytest.mark.parametrize("fixed", [True, False])
def test_a_lane_is_stopped_whose_next_transaction_waits_for_markers(
    monkeypatch: pytest.MonkeyPatch, fixed: bool
) -> None:
    """Taken out: that it starts again when that takes long, as where the partition of the group's offsets is away."""
    if not fixed:
        monkeypatch.setattr("kafka_ratchet.transport.transactions.requests.SETTLED_WITHIN_S", 1e9)
    with one_lane(FIRST) as model:
        worker = model.workers[0]
        assert worker is not None
        model._append([sent(1)], "none")
        model.go_on(1)
        add_partitions = MemoryKafka.AddPartitionsToTxnRequest
        monkeypatch.setattr(MemoryKafka, "AddPartitionsToTxnRequest", unsettled)
        model._append([sent(2)], "none")
        model.go_on(1)
        stopped = model.loop.create_task(worker.stop())
        model.go_on(1_000)
        assert stopped.done() == fixed
        monkeypatch.setattr(MemoryKafka, "AddPartitionsToTxnRequest", add_partitions)
        model.go_on(10)
        assert stopped.done()
        model.committed_is_what_the_oracle_says()


async def leave_open(producer: TransactionalProducer, kafka: MemoryKafka) -> None:
    """Commit a record of whose partition the leader goes, and is away still."""
    await producer.initialise()
    producer.begin([OUT])
    await producer.produce(*OUT, batch_of(b"left open"))
    await producer.delivered()
    kafka.without_leader = {OUT}
    await producer.commit(INPUT, 0, 1)


def test_what_cannot_begin_is_refused_at_each_step() -> None:
    with one_lane(RAISING) as model:
        model._stop(0)

        async def transactions() -> None:
            producer = producer_on(model.kafka)
            await leave_open(producer, model.kafka)
            model.kafka.without_leader = set()
            producer.begin([OUT])
            for step in (producer.produce(*OUT, batch_of(b"never")), producer.commit(INPUT, 0, 2)):
                with pytest.raises(Aborted, match="Kafka has not ended the last transaction in all"):
                    await step
            await producer.initialise()

        run(model.loop, transactions())
        assert [record.value for record in model.kafka.logs[OUT].committed()] == [b"left open"]


@pytest.mark.parametrize("protocol", [FIRST, RAISING])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_transaction_that_is_given_up_before_it_has_begun(protocol: Protocol, fixed: bool) -> None:
    """Taken out: that the coordinator is not asked to abort what it was not asked to begin.

    Where ends raise the epoch, it says from then on that the last transaction was aborted, which was committed. The
    epochs show that this end is a further one, so it is not believed. Elsewhere it forgets how that ended.
    """
    with one_lane(protocol) as model:
        model._stop(0)
        kafka = model.kafka

        async def transactions() -> None:
            producer = producer_on(kafka)
            await leave_open(producer, kafka)
            producer.begin([OUT])
            producer._requests.has_begun |= not fixed
            await asyncio.sleep(1)
            await producer.abort()
            kafka.without_leader = set()
            assert kafka.left_open()
            await producer_on(kafka).initialise()

        if not fixed:
            with pytest.raises(TransactionError, match="its intended end is unknown"):
                run(model.loop, transactions())
            assert kafka.left_open()  # nothing has ended it the other way
            return
        run(model.loop, transactions())
        assert not kafka.left_open()
        assert [record.value for record in kafka.logs[OUT].committed()] == [b"left open"]


@pytest.mark.parametrize("protocol", [FIRST, RAISING])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_commit_that_is_cancelled_while_its_end_is_unanswered(
    monkeypatch: pytest.MonkeyPatch, protocol: Protocol, fixed: bool
) -> None:
    """Taken out: that a transaction whose end was requested is not given up.

    Giving up is a take-over where ends do not raise the epoch: the coordinator forgets that it has committed, and
    nobody has recorded it. Elsewhere it refuses.
    """
    with one_lane(protocol) as model:
        model._stop(0)
        kafka = model.kafka

        async def transactions() -> None:
            producer = producer_on(kafka)
            await producer.initialise()
            producer.begin([OUT])
            await producer.produce(*OUT, batch_of(b"left open"))
            await producer.delivered()
            kafka.without_leader = {OUT}
            ending = END_ONCE

            async def end_once(requests: TransactionRequests, *, commit: bool) -> None:
                if commit:
                    requests.cluster.lose = (0, Fate.UNANSWERED)  # type: ignore[attr-defined]
                await ending(requests, commit=commit)

            monkeypatch.setattr(TransactionRequests, "end_once", end_once)
            committing = asyncio.create_task(producer.commit(INPUT, 0, 1))
            await asyncio.sleep(1)
            assert producer.state is State.COMMITTING
            committing.cancel()
            await asyncio.gather(committing, return_exceptions=True)
            monkeypatch.setattr(TransactionRequests, "end_once", ending)
            producer._requests.is_ending &= fixed
            await producer.abort()
            kafka.without_leader = set()
            assert kafka.left_open()
            await producer_on(kafka).initialise()

        if not fixed and protocol is FIRST:
            with pytest.raises(TransactionError, match="its intended end is unknown"):
                run(model.loop, transactions())
            return
        run(model.loop, transactions())
        assert not kafka.left_open()
        assert [record.value for record in kafka.logs[OUT].committed()] == [b"left open"]


@pytest.mark.parametrize("fixed", [True, False])
def test_a_completing_transaction_begins_soon_after_the_take_over_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, fixed: bool
) -> None:
    """Taken out: that its requests are not repeated beyond that. A successor takes such an owner for dead."""
    if not fixed:

        async def join(requests: TransactionRequests, partitions: list[TopicPartition], **options: Any) -> None:
            await JOIN(requests, partitions, **{**options, "within_s": 1e9})

        monkeypatch.setattr(TransactionRequests, "join", join)
    with one_lane(FIRST) as model:
        model._stop(0)
        kafka = model.kafka

        async def transactions() -> bool:
            producer = producer_on(kafka)
            await leave_open(producer, kafka)
            kafka.without_leader = set()
            monkeypatch.setattr(MemoryKafka, "AddPartitionsToTxnRequest", unsettled)
            began = asyncio.get_running_loop().time()
            with suppress(Aborted, TimeoutError):
                await asyncio.wait_for(producer_on(kafka).initialise(), 1_000)
            return asyncio.get_running_loop().time() - began < COMPLETE_WITHIN_S + REQUESTED_S

        assert run(model.loop, transactions()) == fixed
