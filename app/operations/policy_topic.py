"""Reader and writer of the policy topic for commands, outside a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from kafka_ratchet.app.names import changelog_name, policy_topic
from kafka_ratchet.app.operations.write_one import write_one
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.group import ask_group
from kafka_ratchet.app.worker.claims import this_user
from kafka_ratchet.app.worker.policy import BY_HEADER, Policies, PolicyFollower, policy_key, policy_value
from kafka_ratchet.app.worker.topics import prepare_policy
from kafka_ratchet.errors import BrokerUnavailable, RatchetError
from kafka_ratchet.producers import admin_client
from kafka_ratchet.topic_log.clients import all_topics, partition_counts
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.security import client_options


def read_policies(settings: Settings, bootstrap: str) -> Policies:
    """Return all current policies from the policy topic; no policies if the topic does not exist.

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
            f"{policy_topic(settings.app)}: could not be read within {settings.kafka_timeout_s:g} s "
            "(kafka_timeout_s). Check that Kafka runs"
        ) from None
    finally:
        await cluster.close()


def write_policy(
    settings: Settings, bootstrap: str, stream: str | None, deduplicate: bool | None, by: str | None = None
) -> int:
    """Set or remove the policy of a stream, or of all streams.

    Args:
        settings: settings with the policy topic.
        bootstrap: host:port[,host:port].
        stream: name of the stream; None: all streams.
        deduplicate: the policy; None: remove it.
        by: name of the operator who sets it, for the record's header; None: the user of this process.

    Returns:
        the record's offset in the policy topic

    Raises:
        TopicError: the topic cannot be created, or has a wrong configuration.
        BrokerUnavailable: Kafka did not take the record. Its presence in the topic is unknown.
    """
    value = None if deduplicate is None else policy_value(deduplicate)
    headers = {BY_HEADER: (by or this_user()).encode()}
    return write_record(settings, bootstrap, policy_key(stream), value, "the policy", headers)


def application_sentence(settings: Settings, bootstrap: str) -> str:
    """Return the sentence about when workers apply a written policy.

    It raises no error if Kafka does not describe the group, because the policy is written already.
    """
    try:
        members = ask_group(bootstrap, settings).members
        known = all_topics(admin_client({"bootstrap.servers": bootstrap, **settings.kafka}))
    except RatchetError as error:
        return f"Workers apply it with their next batches; whether any run is unknown: {error}"
    if members:
        return "Workers apply it with their next batches"
    told = f"No worker of application {settings.app} runs now; the policy applies when one starts"
    # A program's internal streams have changelogs too, and the settings need not name them.
    if not settings.streams or any(topic.startswith(changelog_name(settings.app, "")) for topic in known):
        return told
    # Without a right to describe the changelogs, Kafka shows none.
    return (
        f"{told}. Kafka shows no changelog of application {settings.app}, so it has most likely never run there: check "
        "app and bootstrap in the settings"
    )


def write_record(
    settings: Settings,
    bootstrap: str,
    key: bytes,
    value: bytes | None,
    what: str,
    headers: Mapping[str, bytes] | None = None,
) -> int:
    """Write a record to the policy topic, and return the record's offset. A missing topic is created first.

    what: noun for the record, in errors.

    Raises:
        TopicError: the topic cannot be created, or has a wrong configuration.
        BrokerUnavailable: Kafka did not take the record. Its presence in the topic is unknown.
    """
    prepare_policy(bootstrap, settings)
    then = (
        "The topic may contain it nevertheless: check that (`ratchet policy get`, `ratchet status`), and run the "
        "command again"
    )
    return write_one(settings, bootstrap, policy_topic(settings.app), (key, value), what, then, headers)
