import asyncio
import uuid
from collections.abc import Callable

import pytest

from kafka_ratchet.errors import ProducerFenced, SourceError, TransportError
from kafka_ratchet.producers import AsyncProducer, Producer
from tests.producers.test_producer import read, sequence_of

NewTopic = Callable[..., str]


@pytest.fixture
def name() -> str:
    return f"producer-{uuid.uuid4().hex[:8]}"


async def test_accepted_in_order_persisted_when_asked(broker: str, new_topic: NewTopic, name: str) -> None:
    topic, options = new_topic(1), {"bootstrap.servers": broker}
    full_soon = {**options, "queue.buffering.max.messages": 50}
    async with AsyncProducer(topic, name, options=full_soon) as producer:
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0)

        heart = asyncio.create_task(beat())
        sent = await asyncio.gather(*(producer.send(b"%d" % n) for n in range(1000)))
        heart.cancel()
        assert beats > 1  # a full queue lets the loop go on
        assert sent == list(range(1000))
        await producer.persisted(999)
        assert (producer.resume_from(), producer.last_sequence_id(), producer.name) == (999, 999, name)
        with pytest.raises(SourceError, match="with"):
            await producer.send(b"v", sequence=5000)
    with pytest.raises(TransportError, match="is closed"):
        await producer.send(b"v")
    assert [(message.value(), sequence_of(message)) for message in read(broker, topic, 0)] == [
        (b"%d" % n, n) for n in range(1000)
    ]


async def test_a_fenced_one_says_so(broker: str, new_topic: NewTopic, name: str) -> None:
    topic, options = new_topic(1), {"bootstrap.servers": broker}
    older = await AsyncProducer(topic, name, options=options).__aenter__()
    with Producer(topic, name, options=options), pytest.raises(ProducerFenced):
        await older.flush()
    with pytest.raises(ProducerFenced):
        await older.__aexit__(None, None, None)
    with pytest.raises(RuntimeError, match="within 'async with'"):
        await AsyncProducer(topic, name, options=options).send(b"v")
