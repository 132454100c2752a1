import asyncio
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np
import pytest
from confluent_kafka import Consumer, TopicPartition

from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.errors import Aborted, Fenced, RecordTooLarge, TransactionError
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.encoding import EncodedBatch, forward
from kafka_ratchet.transport.client.cluster import LATEST, Cluster
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.transactions.outcome import last_end
from kafka_ratchet.transport.transactions.producer import IN_FLIGHT, TransactionalProducer
from kafka_ratchet.transport.transactions.states import State
from tests.transport.batch.known_batches import Source, encode
from tests.transport.kafka_side import create_topic, read_topic, values

NewTopic = Callable[..., str]
MakeTopic = Callable[..., Awaitable[str]]


def batch_of(*texts: bytes) -> EncodedBatch:
    chunk = encode([Source(value=text) for text in texts])
    (encoded,) = forward(read_chunk("in", 0, 0, chunk, []), np.ones(len(texts), bool), 10 << 20, "none")
    return encoded


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make_topic(cluster: Cluster, new_topic: NewTopic) -> MakeTopic:
    """Topics whose leaders take batches; for a moment after their creation they refuse them."""

    async def make(partitions: int = 1, **config: object) -> str:
        topic = new_topic(partitions, **config)
        for partition in range(partitions):
            await cluster.offset(topic, partition, LATEST, "here")
        return topic

    return make


@pytest.fixture
async def producer(cluster: Cluster, group: str) -> AsyncIterator[TransactionalProducer]:
    producer = TransactionalProducer(cluster, f"{group}-0", group, 30_000, [])
    await producer.initialise()
    yield producer
    await producer.abort()


async def commit(producer: TransactionalProducer, topic: str, offset: int) -> None:
    """Commit, and wait until it is to be seen: Kafka answers before it has written the markers."""
    await producer.commit(topic, 0, offset)
    await last_end(producer.cluster, producer.transactional_id, [], "here")


async def test_what_is_committed_is_visible_and_the_offset_with_it(
    producer: TransactionalProducer, cluster: Cluster, broker: str, make_topic: MakeTopic, group: str
) -> None:
    topic, other, source = await make_topic(1), await make_topic(1), await make_topic(1)
    producer.begin([(topic, 0), (other, 0)])
    first = await producer.produce(topic, 0, batch_of(b"a", b"b"))
    second = await producer.produce(other, 0, batch_of(b"c"))
    assert (await first, await second) == ((0, -1), (0, -1))  # a topic without LogAppendTime
    assert read_topic(broker, topic) == []
    assert await cluster.committed(group, source, 0, "here") is None
    await commit(producer, source, 17)
    assert values(read_topic(broker, topic)) == [b"a", b"b"]
    assert values(read_topic(broker, other)) == [b"c"]
    assert await cluster.committed(group, source, 0, "here") == (17, "")
    assert producer.state is State.READY


async def test_one_transaction_after_the_other(
    producer: TransactionalProducer, cluster: Cluster, broker: str, make_topic: MakeTopic, group: str
) -> None:
    """Also while the markers of the last are still being written, and with nothing but an offset in it."""
    topic = await make_topic(1)
    for i in range(5):
        producer.begin([(topic, 0)])
        if i != 2:
            sent = await producer.produce(topic, 0, batch_of(b"%d" % i))
        await producer.commit(topic, 0, i + 1)
    await last_end(cluster, producer.transactional_id, [], "here")
    assert values(read_topic(broker, topic)) == [b"0", b"1", b"3", b"4"]
    assert (await sent).offset > 4  # markers take offsets
    assert await cluster.committed(group, topic, 0, "here") == (5, "")


async def test_more_batches_than_are_under_way_at_once_stay_in_order(
    producer: TransactionalProducer, broker: str, make_topic: MakeTopic
) -> None:
    topic = await make_topic(1)
    producer.begin([(topic, 0)])
    texts = [b"%d" % i * 3_000 for i in range(IN_FLIGHT * 4)]
    sent = [await producer.produce(topic, 0, batch_of(text, text)) for text in texts]
    await commit(producer, topic, 1)
    assert [task.result().offset for task in sent] == list(range(0, 2 * len(texts), 2))
    assert values(read_topic(broker, topic)) == [text for text in texts for _ in range(2)]


async def test_a_partition_may_join_later(producer: TransactionalProducer, broker: str, make_topic: MakeTopic) -> None:
    topic, late = await make_topic(1), await make_topic(2)
    producer.begin([(topic, 0)])
    await producer.add([(topic, 0)])
    await producer.add([(late, 0), (topic, 0)])
    await producer.produce(late, 0, batch_of(b"late"))
    await commit(producer, topic, 1)
    assert values(read_topic(broker, late)) == [b"late"]


async def test_what_is_aborted_stays_invisible(
    producer: TransactionalProducer, cluster: Cluster, broker: str, make_topic: MakeTopic, group: str
) -> None:
    topic = await make_topic(1)
    producer.begin([(topic, 0)])
    await (await producer.produce(topic, 0, batch_of(b"lost")))
    await producer.abort()
    with pytest.raises(Aborted, match="is in state failed instead of ready"):
        producer.begin([(topic, 0)])
    await producer.initialise()
    assert await cluster.committed(group, topic, 0, "here") is None
    producer.begin([(topic, 0)])
    await producer.produce(topic, 0, batch_of(b"kept"))
    await commit(producer, topic, 2)
    assert values(read_topic(broker, topic)) == [b"kept"]
    assert values(read_topic(broker, topic, "read_uncommitted")) == [b"lost", b"kept"]


async def test_initialising_again_settles_what_is_open(
    producer: TransactionalProducer, cluster: Cluster, broker: str, make_topic: MakeTopic, group: str
) -> None:
    topic = await make_topic(1)
    producer.begin([(topic, 0)])
    await (await producer.produce(topic, 0, batch_of(b"lost")))
    await producer.initialise()
    producer.begin([(topic, 0)])
    await producer.produce(topic, 0, batch_of(b"kept"))
    await commit(producer, topic, 2)
    assert values(read_topic(broker, topic)) == [b"kept"]


@pytest.mark.parametrize("step", ["begin", "produce", "commit"])
async def test_a_second_owner_fences_the_first_at_every_step(
    producer: TransactionalProducer, cluster: Cluster, broker: str, make_topic: MakeTopic, group: str, step: str
) -> None:
    topic = await make_topic(1)
    second = TransactionalProducer(cluster, producer.transactional_id, group, 30_000, [])

    async def zombie() -> None:
        if step == "begin":
            producer.begin([(topic, 0)])
        if step != "commit":
            await producer.produce(topic, 0, batch_of(b"zombie"))
        await producer.commit(topic, 0, 100)

    if step != "begin":
        producer.begin([(topic, 0)])
        await (await producer.produce(topic, 0, batch_of(b"zombie")))
    await second.initialise()
    with pytest.raises(Fenced, match=rf"{producer.transactional_id}: fenced .*another worker owns the partition"):
        await zombie()
    assert producer.state is State.FAILED
    assert read_topic(broker, topic) == []
    assert await cluster.committed(group, topic, 0, "here") is None
    second.begin([(topic, 0)])
    await second.produce(topic, 0, batch_of(b"owner"))
    await commit(second, topic, 7)
    assert values(read_topic(broker, topic)) == [b"owner"]
    assert await cluster.committed(group, topic, 0, "here") == (7, "")


async def test_a_batch_that_the_topic_refuses_takes_everything_with_it(
    producer: TransactionalProducer, cluster: Cluster, broker: str, make_topic: MakeTopic, group: str
) -> None:
    small, wide = await make_topic(1, max_message_bytes=1_000), await make_topic(1)
    producer.begin([(small, 0), (wide, 0)])
    await producer.produce(wide, 0, batch_of(b"beside it"))
    await producer.produce(small, 0, batch_of(b"fits"))
    await producer.produce(small, 0, batch_of(b"x" * 5_000))
    with pytest.raises(RecordTooLarge, match=rf"{small}, partition 0.*max\.message\.bytes"):
        await producer.commit(wide, 0, 5)
    with pytest.raises(Aborted, match="is in state failed instead of open"):
        await producer.commit(wide, 0, 5)
    await producer.initialise()
    assert read_topic(broker, small) == read_topic(broker, wide) == []
    assert await cluster.committed(group, wide, 0, "here") is None


async def test_a_topic_that_is_gone_aborts(producer: TransactionalProducer, broker: str, make_topic: MakeTopic) -> None:
    topic = await make_topic(1)
    producer.begin([("no-such-topic", 0), (topic, 0)])
    with pytest.raises(Aborted, match=producer.transactional_id):
        await producer.produce(topic, 0, batch_of(b"x"))
    assert producer.state is State.FAILED
    await producer.initialise()
    assert read_topic(broker, topic) == []


async def test_a_connection_that_is_cut_aborts_and_the_next_try_goes_through(
    producer: TransactionalProducer, cluster: Cluster, broker: str, make_topic: MakeTopic
) -> None:
    topic = await make_topic(1)
    producer.begin([(topic, 0)])
    await (await producer.produce(topic, 0, batch_of(b"lost")))
    cut = [c for c in cluster.client._conns.values() if c._writer is not None]
    for connection in cut:
        connection._writer.transport.abort()
    waiting = await asyncio.gather(
        producer.produce(topic, 0, batch_of(b"lost too")), producer.delivered(), return_exceptions=True
    )
    assert cut
    assert all(not isinstance(error, BaseException) or isinstance(error, Aborted) for error in waiting)
    await producer.initialise()
    producer.begin([(topic, 0)])
    await producer.produce(topic, 0, batch_of(b"kept"))
    await commit(producer, topic, 1)
    assert values(read_topic(broker, topic)) == [b"kept"]


async def test_steps_out_of_order_are_refused(cluster: Cluster, make_topic: MakeTopic, group: str) -> None:
    topic = await make_topic(1)
    producer = TransactionalProducer(cluster, f"{group}-0", group, 30_000, [])
    with pytest.raises(Aborted, match="is in state new instead of ready"):
        producer.begin([(topic, 0)])
    await producer.initialise()
    for early in (producer.add([(topic, 0)]), producer.produce(topic, 0, batch_of(b"x")), producer.commit(topic, 0, 1)):
        with pytest.raises(Aborted, match="is in state ready instead of open"):
            await early
    producer.begin([])
    with pytest.raises(Aborted, match="is in state open instead of ready"):
        producer.begin([])
    await producer.abort()


async def test_a_timeout_that_the_broker_does_not_allow_is_refused(cluster: Cluster, group: str) -> None:
    producer = TransactionalProducer(cluster, f"{group}-0", group, 2_000_000_000, [])
    with pytest.raises(TransactionError, match=re.escape("transaction.max.timeout.ms")):
        await producer.initialise()


async def test_a_transaction_that_takes_too_long_is_aborted_by_the_coordinator(
    own_broker: EmbeddedBroker, group: str
) -> None:
    cluster = Cluster(client_options(own_broker.bootstrap, {}))
    await cluster.start(30)
    topic = create_topic(own_broker.bootstrap, "timed-out")
    await cluster.offset(topic, 0, LATEST, "here")
    producer = TransactionalProducer(cluster, f"{group}-0", group, 500, [])
    await producer.initialise()
    producer.begin([(topic, 0)])

    async def commit_late() -> None:
        sent = await producer.produce(topic, 0, batch_of(b"late"))
        await asyncio.wait({sent})  # on a machine that stands still it is too late for this one already
        await asyncio.to_thread(read_until_settled, own_broker.bootstrap, topic)
        await producer.commit(topic, 0, 1)

    with pytest.raises(Fenced, match="open for more than 500 ms"):
        await commit_late()
    producer.timeout_ms = 60_000
    await producer.initialise()
    producer.begin([(topic, 0)])
    await producer.produce(topic, 0, batch_of(b"in time"))
    await commit(producer, topic, 1)
    assert values(read_topic(own_broker.bootstrap, topic)) == [b"in time"]
    assert await cluster.committed(group, topic, 0, "here") == (1, "")
    await cluster.close()


def read_until_settled(bootstrap: str, topic: str) -> None:
    """Returns once no transaction is open: a committed reader reaches the end that others see."""
    partition = TopicPartition(topic, 0)
    consumers = [
        Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": level})
        for level in ("read_committed", "read_uncommitted")
    ]
    try:
        while True:
            stable, end = (consumer.get_watermark_offsets(partition, timeout=30)[1] for consumer in consumers)
            if stable == end:
                return
            time.sleep(0.05)
    finally:
        for consumer in consumers:
            consumer.close()
