"""The model's Kafka shows each of these bugs when its fix is taken out, and none of them with it.

Each is the shortest way to it, step by step; test_commit_path.py comes to the same events in any order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from errors import TransactionError
from tables import PRODUCER_HEADER, SEQUENCE_HEADER, Identity
from tests.transport.memory_kafka import Fate, Link, MemoryKafka
from tests.transport.modelled_worker import INPUT, OUTPUT, VirtualLoop, run
from tests.transport.test_commit_path import CommitPath, Protocol, Record, Sent
from tests.transport.test_transaction import batch_of
from transport._transaction import TransactionalProducer
from transport._transaction_requests import TransactionRequests

OUT, OTHER = (OUTPUT, 0), ("other", 0)
FIRST = Protocol(ends_raise_epoch=False, verifies=True)
UNVERIFIED = Protocol(ends_raise_epoch=False, verifies=False)
RAISING = Protocol(ends_raise_epoch=True, verifies=True)


class NothingDrawn:
    """In the place of Hypothesis's data."""

    def draw(self, strategy: Any) -> None:
        return None


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    yield loop
    asyncio.set_event_loop(None)
    loop.close()


def producer_on(kafka: MemoryKafka) -> TransactionalProducer:
    return TransactionalProducer(Link(kafka), "id", "group", 60_000, [OUT, OTHER])  # type: ignore[arg-type]


def sent(number: int) -> Sent:
    headers = ((SEQUENCE_HEADER, b"%d" % number), (PRODUCER_HEADER, b"a"))
    return Sent(Record(None, b"%d" % number, headers), b"a", number)


@pytest.mark.parametrize("protocol", [FIRST, UNVERIFIED, RAISING])
@pytest.mark.parametrize("fate", [Fate.LATE, Fate.TWICE])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_late_end(monkeypatch: pytest.MonkeyPatch, protocol: Protocol, fate: Fate, fixed: bool) -> None:
    """Taken out: that the id is initialised after an end that took more than one request.

    Where each end raises the epoch, a late one is harmless without it too.
    """
    if not fixed:
        monkeypatch.setattr(TransactionRequests, "spent", False)
    model = CommitPath()
    model.begin(Identity.PRODUCER, False, 1 << 40, True, protocol, 1 << 15, NothingDrawn())  # type: ignore[arg-type]
    worker = model.workers[0]
    assert worker is not None
    try:
        model._append([sent(1)], "none")
        model.go_on(2)
        worker.lose_at = ("offered", fate)
        model._append([sent(2)], "none")
        model.go_on(2)
        worker.deliver_at = ("logged", 1)
        model._append([sent(3)], "none")
        model.go_on(60)
        assert worker.deliver_at is None
        whole = model.kafka.logs[OUT].committed() == [sent(number).record for number in (1, 2, 3)]
        # A Kafka that does not verify takes what comes after the late end for open, and nothing ends it.
        assert (whole and not model.kafka.left_open()) == (fixed or protocol.ends_raise_epoch)
    finally:
        worker.power_off()
        model._bury()
        model.close()


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
    monkeypatch.setattr("transport._transaction_requests.LAST_EPOCH", 4)
    monkeypatch.setattr("transport._transaction.LAST_EPOCH", 4 if fixed else 1 << 15)

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
        with pytest.raises(TransactionError, match="Kafka has given out another one"):
            run(loop, transactions())
