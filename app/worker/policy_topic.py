"""Reading and writing the policy topic from outside a worker, for commands."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kafka_ratchet.app.names import policy_topic
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.kafka_topics import partition_counts
from kafka_ratchet.app.worker.claims import this_user
from kafka_ratchet.app.worker.policy import BY_HEADER, Policies, PolicyFollower, policy_key, policy_value
from kafka_ratchet.app.worker.topics import prepare_policy
from kafka_ratchet.errors import BrokerUnavailable
from kafka_ratchet.producers import admin_client
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.security import client_options

WRITE_FOR_S: Final = 30.0
"""A record that Kafka has not taken by then will not be tried any longer."""


def read_policies(settings: Settings, bootstrap: str) -> Policies:
    """Everything that the policy topic says now. Creates nothing.

    Raises:
        BrokerUnavailable: Kafka did not answer.
        RatchetError: the topic cannot be read.
    """
    admin = admin_client({"bootstrap.servers": bootstrap, **settings.kafka})
    if not partition_counts(admin, [policy_topic(settings.app)]):
        return Policies(settings)
    return asyncio.run(_read(settings, bootstrap))


async def _read(settings: Settings, bootstrap: str) -> Policies:
    cluster = Cluster(client_options(bootstrap, settings.kafka))
    await cluster.start(settings.kafka_timeout_s)
    try:
        follower = PolicyFollower(cluster, settings)
        async with asyncio.timeout(settings.kafka_timeout_s):
            await follower.read()
        return follower.policies
    except TimeoutError:
        raise BrokerUnavailable(
            f"{policy_topic(settings.app)}: could not be read within {settings.kafka_timeout_s:g} s; check that Kafka "
            "runs"
        ) from None
    finally:
        await cluster.close()


def write_policy(
    settings: Settings, bootstrap: str, stream: str | None, deduplicate: bool | None, by: str | None = None
) -> int:
    """Set (True, False) or unset (None) the policy of a stream, or of all (stream None). Creates the topic.

    Args:
        settings: whose policy topic it is.
        bootstrap: host:port[,host:port].
        stream: name; None: all.
        deduplicate: the policy.
        by: who sets it, for the record's header; None: this user of this machine.

    Returns:
        the record's offset in the policy topic

    Raises:
        TopicError: the topic cannot be created, or is not as it must be.
        BrokerUnavailable: Kafka did not take the record. Whether it stands in the topic is unknown.
    """
    value = None if deduplicate is None else policy_value(deduplicate)
    headers = {BY_HEADER: (by or this_user()).encode()}
    return write_record(settings, bootstrap, policy_key(stream), value, "the policy", headers)


def write_record(
    settings: Settings,
    bootstrap: str,
    key: bytes,
    value: bytes | None,
    what: str,
    headers: Mapping[str, bytes] | None = None,
) -> int:
    """Write a record of the policy topic, and create the topic if need be; returns its offset. what: is written.

    Raises:
        TopicError: the topic cannot be created, or is not as it must be.
        BrokerUnavailable: Kafka did not take the record. Whether it stands in the topic is unknown.
    """
    prepare_policy(bootstrap, settings)
    producer = Producer(
        {
            "log_level": 2,
            **settings.kafka,
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0,
            "message.timeout.ms": int(WRITE_FOR_S * 1000),
        }
    )
    topic = policy_topic(settings.app)
    outcome: list[tuple[KafkaError | None, int]] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        outcome.append((error, -1 if error else int(message.offset() or 0)))

    try:
        producer.produce(topic, value, key, 0, on_delivery=delivered, headers=dict(headers or {}))
        producer.flush(WRITE_FOR_S + 5)
    except KafkaException as failure:
        raise BrokerUnavailable(f"{topic}: {what} cannot be written: {failure.args[0].str()}") from failure
    error, offset = outcome[0] if outcome else (None, -1)
    if offset < 0:
        why = error.str() if error else f"no answer within {WRITE_FOR_S:g} s"
        raise BrokerUnavailable(
            f"{topic}: Kafka did not take {what}: {why}. It may stand there all the same: see what holds "
            "(`ratchet policy get`, `ratchet status`), and do it again"
        )
    return offset
