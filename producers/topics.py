"""Requests to Kafka about a topic, and its creation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewTopic

from kafka_ratchet.errors import BrokerUnavailable, KafkaRefused, TopicError, TopicMissing
from kafka_ratchet.producers.client import (
    ATTEMPT_S,
    NOT_ALLOWED,
    PASSING,
    RefusalCallback,
    explained,
    no_broker_is_let_in,
    options_refused,
    require_servers,
)


@dataclass(frozen=True, slots=True)
class TopicShape:
    """Properties of an existing topic; a topic deleted and created again under the same name has another id."""

    name: str
    id: str
    partitions: int


class CheckedAdminClient(AdminClient):  # type: ignore[misc]  # confluent_kafka has no types
    """Administration client that stores the error of its last refused connection.

    Either Kafka refused this client, or this client refused Kafka's certificate.
    """

    def __init__(self, options: Mapping[str, str | int | bool]) -> None:
        self._heard = RefusalCallback(options)
        super().__init__({"log_level": 0, "error_cb": self._heard, **options})

    def refusal(self) -> KafkaRefused | None:
        """Return the error for the last refused connection; None: no refusal, so another attempt may succeed.

        Either Kafka refused this client, or this client refused Kafka's certificate.
        """
        self.poll(0)  # delivers errors
        return self._heard.refusal()


def admin_client(options: Mapping[str, str | int | bool]) -> CheckedAdminClient:
    """Return an administration client that writes no log lines of its own.

    Raises:
        SettingsError: librdkafka refuses the options, or they contain no address of Kafka.
    """
    require_servers(options)
    try:
        return CheckedAdminClient(options)
    except (KafkaException, ValueError, TypeError, OverflowError) as error:
        raise options_refused(error, options) from None


def describe_topic(
    admin: AdminClient, topic: str, *, timeout_s: float, say: Callable[[str], None]
) -> TopicShape | None:
    """Return the topic's id and number of partitions, without creating it; None: no such topic.

    Args:
        admin: client to request with.
        topic: name of the topic.
        timeout_s: maximum seconds to wait for a silent Kafka.
        say: function called with a sentence every few seconds while Kafka does not answer.

    Raises:
        BrokerUnavailable: Kafka does not answer within the time limit.
        KafkaRefused: Kafka refuses this client, or has a certificate that this client refuses.
        TopicError: Kafka refuses the request.
    """
    deadline = time.monotonic() + timeout_s
    is_second_try = False
    while True:
        wait_s = max(0.1, min(ATTEMPT_S, deadline - time.monotonic()))
        try:
            answer = admin.describe_topics(TopicCollection([topic]), request_timeout=wait_s)[topic].result()
            return TopicShape(topic, str(answer.topic_id), len(answer.partitions))
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                if is_second_try:
                    return None
                is_second_try = True  # a broker may learn a moment late of a new topic
                time.sleep(0.3)
                continue
            if error.code() not in PASSING:
                raise TopicError(f"topic {topic!r} cannot be described: {explained(error)}") from failure
            if isinstance(admin, CheckedAdminClient) and (refusal := admin.refusal()) is not None:
                raise refusal from failure
            left_s = max(0.0, deadline - time.monotonic())
            say(f"Kafka does not answer yet ({error.str()}); trying again for {left_s:.0f} s")
            if not left_s:
                raise BrokerUnavailable(
                    f"Kafka did not answer within {timeout_s:g} s ({error.str()}). Check that it runs, and `bootstrap` "
                    "and `kafka` in the settings; kafka_timeout_s sets the limit"
                ) from failure
            # An attempt may also fail at once (no listener): do not repeat it in a tight loop.
            time.sleep(0.2)


def cleanup_policy(admin: AdminClient, topic: str, *, timeout_s: float) -> str | None:
    """Return a topic's cleanup.policy; None: this user may not read it, or the broker omits it.

    Raises:
        BrokerUnavailable: Kafka does not answer within the time limit.
        TopicError: Kafka refuses the request.
    """
    resource = ConfigResource(ResourceType.TOPIC, topic)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            entries = admin.describe_configs([resource], request_timeout=ATTEMPT_S)[resource].result()
            return str(entries["cleanup.policy"].value) if "cleanup.policy" in entries else None
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if error.code() in NOT_ALLOWED:
                return None
            if error.code() not in PASSING:
                raise TopicError(f"topic {topic!r}: its settings cannot be read: {explained(error)}") from failure
            if time.monotonic() >= deadline:
                raise BrokerUnavailable(
                    f"topic {topic!r}: Kafka did not return its settings within {timeout_s:g} s ({error.str()}). "
                    "Check that it runs"
                ) from failure
            time.sleep(0.2)


def min_in_sync(admin: AdminClient, topic: str, *, timeout_s: float) -> int:
    """Return a topic's min.insync.replicas; also 1 if this user may not read it.

    Raises:
        KafkaException: Kafka does not answer in time, or refuses.
    """
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        entries = admin.describe_configs([resource], request_timeout=timeout_s)[resource].result()
    except KafkaException as failure:
        if failure.args[0].code() in NOT_ALLOWED:
            return 1
        raise
    return int(entries["min.insync.replicas"].value) if "min.insync.replicas" in entries else 1


def made_topic(admin: AdminClient, wanted: NewTopic, patience_s: float, **limits: float) -> bool:
    """Create a topic; return False if a topic of that name exists already.

    Args:
        admin: connected administration client.
        wanted: name and shape of the topic.
        patience_s: seconds for further attempts while no broker has sent a heartbeat.
        limits: time limits of one request, as in `AdminClient.create_topics`.

    Raises:
        KafkaException: Kafka refuses, or does not answer.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            admin.create_topics([wanted], **limits)[wanted.topic].result()
            return True
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            if not no_broker_is_let_in(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def create_topic(
    admin: AdminClient,
    topic: str,
    *,
    partitions: int,
    replication: int = 1,
    config: Mapping[str, str] | None = None,
    timeout_s: float,
    say: Callable[[str], None],
) -> TopicShape:
    """Create the topic if it does not exist, and return its id and number of partitions.

    Raises:
        TopicError: Kafka refuses; the error contains its reason.
        TopicMissing: the topic was created, but cannot be found.
        BrokerUnavailable: Kafka does not answer within the time limit.
    """
    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=replication, config=dict(config or {}))
    try:
        made_topic(admin, wanted, timeout_s, request_timeout=timeout_s)
    except KafkaException as failure:
        error: KafkaError = failure.args[0]
        if error.code() in PASSING or no_broker_is_let_in(error):
            raise BrokerUnavailable(
                f"topic {topic!r} could not be created: {error.str()}. Check that Kafka runs"
            ) from failure
        raise TopicError(f"topic {topic!r} cannot be created: {explained(error)}") from failure
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        # The controller acknowledges the creation; other brokers may learn of it a moment later.
        if shape := describe_topic(admin, topic, timeout_s=timeout_s, say=say):
            return shape
        time.sleep(0.05)
    raise TopicMissing(
        f"topic {topic!r} was created but cannot be found. Check that no other program deletes it, then try again"
    )
