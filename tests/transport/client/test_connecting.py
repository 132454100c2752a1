"""The first connection to Kafka: nobody there, somebody silent, somebody late."""

from __future__ import annotations

import asyncio
import socket

import pytest
from aiokafka import errors as kafka

from kafka_ratchet.errors import BrokerUnavailable
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.security import client_options


def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


async def test_nobody_listens() -> None:
    cluster = Cluster(client_options(f"127.0.0.1:{closed_port()}", {}))
    with pytest.raises(
        BrokerUnavailable, match=r"no Kafka broker answered at 127\.0\.0\.1:\d+ within 0 s .*ratchet broker"
    ):
        await cluster.start(0.2)
    with pytest.raises(kafka.KafkaConnectionError, match="closed"):
        _ = cluster.client
    await cluster.close()


async def test_somebody_listens_who_never_answers() -> None:
    """The limit holds although a request may take far longer."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        cluster = Cluster(client_options(f"127.0.0.1:{listener.getsockname()[1]}", {}), request_timeout_ms=300_000)
        with pytest.raises(BrokerUnavailable, match="no Kafka broker answered"):
            await asyncio.wait_for(cluster.start(0.3), 60)


async def test_a_broker_that_comes_late(broker: str) -> None:
    port = closed_port()
    cluster = Cluster(client_options(f"127.0.0.1:{port}", {}))
    starting = asyncio.create_task(cluster.start(60))
    await asyncio.sleep(0.2)
    host, _, real = broker.rpartition(":")

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(host, int(real))

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
            target.close()

        await asyncio.gather(copy(reader, there_writer), copy(there_reader, writer))

    server = await asyncio.start_server(pass_on, "127.0.0.1", port)
    async with server:
        await asyncio.wait_for(starting, 60)
        assert cluster.client.cluster.brokers()
        await cluster.close()
