# ruff: noqa: SLF001  (librdkafka's local error codes begin with an underscore, and are public)
"""What librdkafka's error codes mean here, and how patiently Kafka is asked."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError

from kafka_ratchet.errors import RatchetError, RecordTooLarge, SettingsError, TopicError, TopicMissing, TransportError

ATTEMPT_S = 2.0
"""A question to Kafka is asked again after this long without an answer, with a message, in seconds."""

END_OF_PARTITION = KafkaError._PARTITION_EOF
CLIENT_STOPPED = KafkaError._FATAL
PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""The client has dropped a record, by our order or because Kafka has refused one before it."""
AUTHENTICATION_FAILED = KafkaError._AUTHENTICATION

EPOCH_ENDED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.UNKNOWN_PRODUCER_ID,
    }
)
"""What a Kafka answers whose transactional id has moved on: to a newer producer, because the transaction took too long,
or because the id was not used for a week. Which of these it was, the codes do not tell."""

NOT_ALLOWED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)

TOPIC_GONE = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION},
)

REFUSED = TOPIC_GONE | {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.INVALID_RECORD,
    KafkaError.POLICY_VIOLATION,
}
"""What a Kafka answers that will not take the record at the next try either."""

PASSING = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_CONTROLLER,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""What a Kafka answers that starts, is not there yet, or does not know of a new topic yet: another try may help."""


def explained(error: KafkaError) -> str:
    """Kafka's words, and what to do where it does not allow this user what was asked."""
    said: str = error.str()
    if error.code() in NOT_ALLOWED:
        return f"{said.rstrip('.')}. Give this user the rights of docs/guide/rights.md"
    return said


def no_broker_is_let_in(error: KafkaError) -> bool:
    """Whether a topic was refused because all heartbeats are overdue: Kafka makes none until one has come.

    INVALID_REPLICATION_FACTOR says this as well as that there are too few brokers; only Kafka's words tell which.
    """
    return error.code() == KafkaError.INVALID_REPLICATION_FACTOR and "fenced" in error.str()


def refusal(error: KafkaError, where: str) -> RatchetError:
    """What to raise when Kafka, or the client, refuses a record for good. `where` names topic, producer and record."""
    said = f"{where}: {explained(error)}"
    if error.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE):
        return RecordTooLarge(
            f"{said}. Raise max.message.bytes of the topic and message.max.bytes in the `kafka` settings, or leave the "
            "record out"
        )
    if error.code() in TOPIC_GONE:
        return TopicMissing(f"{said}. Was it deleted?")
    if error.code() in NOT_ALLOWED:
        return TopicError(said)
    return TransportError(f"{said}. What was acknowledged stays published; start again to go on after it")


def require_servers(options: Mapping[str, object]) -> None:
    """Raise SettingsError where the options name no Kafka: the client would ask nobody until the time is over."""
    if not (options.get("bootstrap.servers") or options.get("metadata.broker.list")):
        raise SettingsError('the options name no Kafka: give "bootstrap.servers", as in "broker-1:9092,broker-2:9092"')


def options_refused(error: BaseException, options: Mapping[str, object]) -> SettingsError:
    """Names the option that librdkafka does not take, and not its value, which may be a secret."""
    first = error.args[0] if error.args else error
    text = first.str() if isinstance(first, KafkaError) else str(first)
    named = [name for name in options if f'"{name}"' in text]
    if not named:
        return SettingsError(
            f"kafka: the Kafka client refuses these options: {', '.join(sorted(map(str, options)))}. Correct them"
        )
    why = "there is no such option" if "No such configuration" in text else "its value is not one that it can have"
    return SettingsError(f"kafka.{named[0]}: the Kafka client refuses it: {why}. Correct or remove it")
