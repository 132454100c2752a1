"""Outcomes of transactions in the model's Kafka that are out of date: told by a coordinator that was replaced, or late.

As test_model_finds.py has others, step by step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.transaction import InitProducerIdRequest

from kafka_ratchet.errors import TransactionError
from kafka_ratchet.transport.client.cluster import TRANSACTION
from kafka_ratchet.transport.transactions import hanging as hanging_module
from kafka_ratchet.transport.transactions import outcome
from kafka_ratchet.transport.transactions.hanging import Hanging, with_known_ends
from kafka_ratchet.transport.transactions.outcome import (
    COMPLETE,
    HangingTransaction,
    LastTransaction,
    OpenAt,
    RecordedEnd,
    TopicPartition,
    known_end,
    last_end,
    record_outcome,
)
from kafka_ratchet.transport.transactions.producer import TransactionalProducer
from tests.transport.memory_kafka import MemoryKafka
from tests.transport.memory_link import Link
from tests.transport.modelled_runs import Protocol
from tests.transport.modelled_worker import INPUT, run
from tests.transport.test_model_finds import FIRST, OTHER, OUT, RAISING, one_lane, producer_on
from tests.transport.transactions.test_producer import batch_of

PLACES = [OUT, OTHER]


def the_record_wins(
    last: LastTransaction, stuck: Mapping[TopicPartition, OpenAt], recorded: Collection[RecordedEnd]
) -> bool | None:
    """Return the recorded outcome wherever there is one, and the coordinator's word elsewhere."""
    ends = {each.committed for each in recorded}
    return ends.pop() if len(ends) == 1 else COMPLETE.get(last.state)


async def abort_beside_a_replaced_coordinator(producer: TransactionalProducer, kafka: MemoryKafka) -> None:
    """Commit a transaction at one coordinator, and abort the next at another while a partition has no leader."""
    await producer.initialise()
    producer.begin([OUT])
    await producer.produce(*OUT, batch_of(b"committed"))
    await producer.commit(INPUT, 0, 1)
    kafka.move_coordinator(unaware=True)
    producer.cluster.forget_coordinator(TRANSACTION, "")
    producer.begin([OUT])
    await producer.produce(*OUT, batch_of(b"aborted"))
    await producer.delivered()
    kafka.without_leader = {OUT}
    await producer.abort()
    kafka.without_leader = set()
    assert kafka.left_open()


def misled(kafka: MemoryKafka) -> TransactionalProducer:
    """Return the next owner, which takes the replaced coordinator for the present one."""
    producer = producer_on(kafka)
    link: Any = producer.cluster
    assert isinstance(link, Link)
    link.misled = 1
    return producer


def values(kafka: MemoryKafka) -> list[bytes | None]:
    return [record.value for record in kafka.logs[OUT].committed()]


@pytest.mark.parametrize("protocol", [FIRST, RAISING])
@pytest.mark.parametrize("fixed", [True, False])
def test_an_outcome_recorded_by_the_word_of_a_replaced_coordinator(
    monkeypatch: pytest.MonkeyPatch, protocol: Protocol, fixed: bool
) -> None:
    """Taken out: that the coordinator's word wins."""
    if not fixed:
        monkeypatch.setattr(outcome, "known_end", the_record_wins)
    with one_lane(protocol) as model:
        model._stop(0)
        kafka = model.kafka

        async def transactions() -> None:
            await abort_beside_a_replaced_coordinator(producer_on(kafka), kafka)
            successor = misled(kafka)
            await successor.initialise()

        run(model.loop, transactions())
        assert not kafka.left_open()
        assert values(kafka) == ([b"committed"] if fixed else [b"committed", b"aborted"])


@pytest.mark.parametrize("protocol", [FIRST, RAISING])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_replaced_coordinator_that_knows_less_than_the_partitions(
    monkeypatch: pytest.MonkeyPatch, protocol: Protocol, fixed: bool
) -> None:
    """Taken out: that another coordinator is looked up where partitions have an epoch that this one does not know."""
    if not fixed:
        monkeypatch.setattr(outcome, "require_current", lambda *_: None)
    with one_lane(protocol) as model:
        model._stop(0)
        kafka = model.kafka

        async def transactions() -> HangingTransaction | None:
            await producer_on(kafka).initialise()
            replaced = deepcopy(kafka.transactions)
            await producer_on(kafka).initialise()
            await abort_beside_a_replaced_coordinator(producer_on(kafka), kafka)
            kafka.replaced = replaced
            return await last_end(misled(kafka).cluster, "id", PLACES, "here")

        hanging = run(model.loop, transactions())
        assert (hanging is not None) is fixed
        assert hanging is None or not hanging.committed


@pytest.mark.parametrize("protocol", [FIRST, RAISING])
@pytest.mark.parametrize("fixed", [True, False])
def test_an_outcome_that_is_recorded_after_the_next_take_over(
    monkeypatch: pytest.MonkeyPatch, protocol: Protocol, fixed: bool
) -> None:
    """Taken out: that a record counts only for the take-over that it was made for.

    Who is frozen before it records what the replaced coordinator said records it when another owner has recorded the
    true outcome, has taken over, and is gone.
    """
    if not fixed:
        monkeypatch.setattr(outcome, "known_end", the_record_wins)
    with one_lane(protocol) as model:
        model._stop(0)
        kafka = model.kafka

        async def transactions() -> None:
            await abort_beside_a_replaced_coordinator(producer_on(kafka), kafka)
            late = misled(kafka)
            stale = await last_end(late.cluster, "id", PLACES, "here")
            assert stale is not None
            assert stale.committed
            owner = producer_on(kafka)
            await owner._take_over()  # and is killed before it completes what it owes
            assert owner._owed is not None
            assert not owner._owed.committed
            await record_outcome(late.cluster, "id", stale, "here")
            await producer_on(kafka).initialise()

        if not fixed:
            run(model.loop, transactions())
            assert values(kafka) == [b"committed", b"aborted"]
            return
        with pytest.raises(TransactionError, match="its intended end is unknown"):
            run(model.loop, transactions())
        assert values(kafka) == [b"committed"]


@pytest.mark.parametrize("fixed", [True, False])
def test_an_outcome_that_another_has_recorded_since(monkeypatch: pytest.MonkeyPatch, fixed: bool) -> None:
    """Taken out: that another coordinator is looked up where a recorded outcome has a later epoch than this one knows.

    Where ends do not raise the epoch, the replaced coordinator names that of the open records.
    """
    if not fixed:
        monkeypatch.setattr(outcome, "require_current", lambda *_: None)
    with one_lane(FIRST) as model:
        model._stop(0)
        kafka = model.kafka

        async def transactions() -> HangingTransaction | None:
            await abort_beside_a_replaced_coordinator(producer_on(kafka), kafka)
            await producer_on(kafka)._take_over()  # and is killed before it completes what it owes
            return await last_end(misled(kafka).cluster, "id", PLACES, "here")

        hanging = run(model.loop, transactions())
        assert hanging is not None
        assert hanging.committed is not fixed


@pytest.mark.parametrize("fixed", [True, False])
def test_an_operator_is_not_shown_the_word_of_a_replaced_coordinator(
    monkeypatch: pytest.MonkeyPatch, fixed: bool
) -> None:
    """Taken out: that `ratchet resume` compares epochs too: it accepts only the end that it shows."""
    if not fixed:
        monkeypatch.setattr(hanging_module, "require_current", lambda *_: None)
    with one_lane(FIRST) as model:
        model._stop(0)
        kafka = model.kafka

        async def transactions() -> list[Hanging]:
            await abort_beside_a_replaced_coordinator(producer_on(kafka), kafka)
            await producer_on(kafka)._take_over()  # and is killed before it completes what it owes
            (batch,) = [each for each in kafka.logs[OUT].batches if each.committed is None]
            one = Hanging(*OUT, batch.producer, batch.epoch, 0, batch.offset, 1e9)
            return await with_known_ends(misled(kafka).cluster, "id", [one], "here")

        (shown,) = run(model.loop, transactions())
        assert shown.ends == ("abort" if fixed else "commit")


@pytest.mark.parametrize("protocol", [FIRST, RAISING])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_replaced_coordinator_becomes_the_present_one_again(
    monkeypatch: pytest.MonkeyPatch, protocol: Protocol, fixed: bool
) -> None:
    """Taken out: that a new owner looks for open records after it has taken the id over.

    The coordinator was replaced while a transaction was open, and still calls it open after it was committed elsewhere.
    The next transaction was aborted elsewhere while a partition had no leader. Then the replaced one coordinates again,
    between the look at the last transaction and the take-over.
    """
    if not fixed:

        async def nothing(*_: object) -> dict[TopicPartition, OpenAt]:
            return {}

        monkeypatch.setattr("kafka_ratchet.transport.transactions.producer.left_open", nothing)
    # Where ends raise the epoch, this would show it before.
    monkeypatch.setattr(outcome, "require_current", lambda *_: None)
    with one_lane(protocol) as model:
        model._stop(0)
        kafka = model.kafka

        async def transactions() -> None:
            first = producer_on(kafka)
            await first.initialise()
            first.begin([OUT])
            await first.produce(*OUT, batch_of(b"committed"))
            await first.delivered()
            kafka.move_coordinator(unaware=True)
            first.cluster.forget_coordinator(TRANSACTION, "")
            await first.commit(INPUT, 0, 1)
            first.begin([OUT])
            await first.produce(*OUT, batch_of(b"aborted"))
            await first.delivered()
            kafka.without_leader = {OUT}
            await first.abort()
            kafka.without_leader = set()
            assert kafka.left_open()
            successor = misled(kafka)
            carry_out = kafka.carry_out

            def coordinate_again(request: Any, node: int) -> Any:
                if isinstance(request, InitProducerIdRequest) and node != kafka.coordinator:
                    kafka.move_coordinator()
                return carry_out(request, node)

            monkeypatch.setattr(kafka, "carry_out", coordinate_again)
            await successor.initialise()
            successor.begin([OUT])
            await successor.produce(*OUT, batch_of(b"judged again"))
            await successor.commit(INPUT, 0, 2)

        if not fixed:
            run(model.loop, transactions())
            assert values(kafka) == [b"committed", b"aborted", b"judged again"]
            return
        with pytest.raises(TransactionError, match="its intended end is unknown"):
            run(model.loop, transactions())
        assert values(kafka) == [b"committed"]


def test_an_outcome_that_cannot_be_recorded_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with one_lane(RAISING) as model:
        model._stop(0)
        kafka, told = model.kafka, list[bool]()

        async def refuse_once(cluster: Link, name: str, hanging: HangingTransaction, connection: object) -> None:
            told.append(hanging.committed)
            if len(told) == 1:
                cluster.coordinates = None  # it has heard of the new one
                raise KafkaConnectionError("the group's coordinator is away")
            await record_outcome(cluster, name, hanging, "here")  # type: ignore[arg-type]

        monkeypatch.setattr("kafka_ratchet.transport.transactions.producer.record_outcome", refuse_once)

        async def transactions() -> None:
            await abort_beside_a_replaced_coordinator(producer_on(kafka), kafka)
            await misled(kafka).initialise()

        run(model.loop, transactions())
        assert told == [True, False]
        assert values(kafka) == [b"committed"]


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("protocol", [FIRST, RAISING])
def test_a_transaction_at_work_over_older_open_records(
    monkeypatch: pytest.MonkeyPatch, protocol: Protocol, fixed: bool
) -> None:
    """Taken out: that an open transaction is taken for the one that completes others only by its partitions.

    In a rolling upgrade workers write to different topics. One has left a record open in a topic of its own, and was
    killed once it had recorded its end; the next does not look there, and stands still in a transaction.
    """
    if not fixed:
        monkeypatch.setattr(outcome, "_completes", lambda last, hanging: True)
    with one_lane(protocol) as model:
        model._stop(0)
        kafka = model.kafka

        def worker(partitions: list[TopicPartition]) -> TransactionalProducer:
            return TransactionalProducer(Link(kafka), "id", "group", 60_000, partitions)  # type: ignore[arg-type]

        async def transactions() -> None:
            first = worker(PLACES)
            await first.initialise()
            first.begin(PLACES)
            await first.produce(*OTHER, batch_of(b"left open"))
            await first.delivered()
            kafka.without_leader = {OTHER}
            await first.commit(INPUT, 0, 1)
            kafka.without_leader = set()
            again = worker(PLACES)
            hanging = await again._hanging()
            assert hanging is not None
            await again._record(hanging)
            other = worker([OUT])
            await other.initialise()
            other.begin([OUT])
            await other.produce(*OUT, batch_of(b"half of it"))
            await other.delivered()
            await asyncio.sleep(20)
            await worker(PLACES).initialise()

        run(model.loop, transactions())
        assert not kafka.left_open()
        assert [record.value for record in kafka.logs[OTHER].committed()] == [b"left open"]
        assert values(kafka) == ([] if fixed else [b"half of it"])


@pytest.mark.parametrize("protocol", [FIRST, RAISING])
@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("then", ["commits", "aborts", "is killed", "completes its part"])
def test_an_owner_that_does_not_look_where_records_are_open(protocol: Protocol, is_committed: bool, then: str) -> None:
    """Let such an owner work in between, as in a rolling upgrade; its end never counts as that of the open records."""
    with one_lane(protocol) as model:
        model._stop(0)
        kafka = model.kafka

        def worker(partitions: list[TopicPartition]) -> TransactionalProducer:
            return TransactionalProducer(Link(kafka), "id", "group", 60_000, partitions)  # type: ignore[arg-type]

        async def leave_open() -> None:
            first = worker(PLACES)
            await first.initialise()
            first.begin(PLACES)
            for place in PLACES:
                await first.produce(*place, batch_of(b"of the first"))
            await first.delivered()
            kafka.without_leader = set(PLACES) if then == "completes its part" else {OTHER}
            if is_committed:
                await first.commit(INPUT, 0, 1)
            else:
                await first.abort()
            kafka.without_leader = set()

        async def work() -> None:
            other = worker([OUT])
            await other.initialise()
            if then == "completes its part":
                return
            other.begin([OUT])
            await other.produce(*OUT, batch_of(b"of the other"))
            await other.delivered()
            if then == "commits":
                await other.commit(INPUT, 0, 2)
            elif then == "aborts":
                await other.abort()

        run(model.loop, leave_open())
        assert kafka.left_open()
        run(model.loop, work())
        with suppress(TransactionError):
            run(model.loop, worker(PLACES).initialise())
            assert not kafka.left_open()
        open_there = any(batch.committed is None for batch in kafka.logs[OTHER].batches)
        expected = [b"of the first"] if is_committed else []
        assert open_there or [record.value for record in kafka.logs[OTHER].committed()] == expected
        assert values(kafka) == [*expected, *([b"of the other"] if then == "commits" else [])]


def last(state: str, epoch: int) -> LastTransaction:
    return LastTransaction(0, state, 1_000, epoch)


@pytest.mark.parametrize(
    ("now", "recorded", "expected"),
    [
        (last("CompleteAbort", 5), [], False),
        (last("CompleteAbort", 6), [], False),
        (last("CompleteAbort", 7), [], None),  # of a take-over since
        (last("CompleteCommit", 5), [(False, 5)], True),
        (last("CompleteCommit", 6), [(False, 5)], True),
        (last("CompleteAbort", 7), [(True, 5)], True),
        (last("CompleteAbort", 8), [(True, 6)], True),
        (last("CompleteAbort", 8), [(True, 5)], None),
        (last("Empty", 6), [(True, 5)], True),
        (last("Empty", 6), [(True, 6)], True),
        (last("Empty", 7), [(True, 5)], None),
        (last("Empty", 6), [(True, 7)], None),
        (last("Empty", 6), [(True, 5), (False, 5)], None),
        (last("Ongoing", 6), [(True, 5)], True),
        (last("Ongoing", 6), [], None),
    ],
)
def test_whose_word_counts(now: LastTransaction, recorded: list[tuple[bool, int]], expected: bool | None) -> None:
    assert known_end(now, {OUT: OpenAt(5, 0)}, [RecordedEnd(*each) for each in recorded]) is expected
