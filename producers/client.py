# ruff: noqa: SLF001  (librdkafka's local error codes begin with an underscore, and are public)
"""Errors of librdkafka: the meaning of its codes, and the refusals that no further attempt can overcome."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from confluent_kafka import KafkaError

from kafka_ratchet.errors import (
    KafkaRefused,
    RatchetError,
    RecordTooLarge,
    SettingsError,
    TopicError,
    TopicMissing,
    TransportError,
)
from kafka_ratchet.producers.tls import Options, look_at_certificate

ATTEMPT_S = 2.0
"""Seconds without an answer after which a request to Kafka is repeated, with a message."""

SILENT: Final = logging.Logger("librdkafka", logging.CRITICAL + 1)
"""Logger that discards librdkafka's lines, because callers raise the errors themselves.

Without a logger, librdkafka writes FATAL lines to standard error at every log level, even if another producer with the
same transactional id has merely started.
"""

END_OF_PARTITION = KafkaError._PARTITION_EOF
CLIENT_STOPPED = KafkaError._FATAL
PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""Error codes for a record that the client dropped: at Ratchet's request, or because Kafka refused an earlier
record."""
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
"""Kafka's error codes for an ended epoch of a transactional id.

A newer producer took over, the transaction took too long, or the id was unused for a week. The codes do not distinguish
these cases.
"""

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
"""Kafka's error codes for a record that it would also refuse at the next attempt."""

LOST = frozenset({KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError.UNKNOWN_PRODUCER_ID})
"""Kafka's error codes for a partition that lacks acknowledged records of an idempotent producer."""

LOST_RECORDS: Final = (
    "Kafka may have lost acknowledged records (unclean leader election?). A publisher that continues would leave them "
    "out. `ratchet publish --from-start`, or a Producer with from_start=True, sends all records again, and the worker "
    "drops those that it has counted"
)
"""Explanation and remedy for lost acknowledged records."""

LEADER_CHANGES = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
"""Kafka's error codes while a partition gets a new leader, or while the leader loads its log (KIP-320).

A restarting broker answers UNKNOWN_LEADER_EPOCH, because the client knows a newer leader epoch than the broker.
"""

PASSING = LEADER_CHANGES | frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._DESTROY_BROKER,  # the metadata no longer list the broker of the request
        KafkaError.NOT_CONTROLLER,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""Error codes of a Kafka that starts, or does not know a new topic yet: another attempt may succeed."""


def explained(error: KafkaError) -> str:
    """Return the message of a Kafka error, with a remedy if the client's user lacks a right."""
    reason: str = error.str()
    if error.code() in NOT_ALLOWED:
        return f"{reason.rstrip('.')}. Give this user the rights of docs/guide/rights.md"
    return reason


def no_broker_is_let_in(error: KafkaError) -> bool:
    """Return True if creating a topic failed because no broker has sent a heartbeat yet.

    Kafka creates no topic before that. INVALID_REPLICATION_FACTOR also stands for too few brokers; only the message
    distinguishes the two.
    """
    return error.code() == KafkaError.INVALID_REPLICATION_FACTOR and "fenced" in error.str()


def refusal(error: KafkaError, where: str) -> RatchetError:
    """Return the error for a record that Kafka or the client refuses for good.

    Args:
        error: error of librdkafka.
        where: topic, producer and record, for the message.
    """
    reason = f"{where}: {explained(error)}"
    if error.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE):
        return RecordTooLarge(
            f"{reason}. Raise max.message.bytes of the topic and message.max.bytes in the `kafka` settings, or leave "
            "the record out"
        )
    if error.code() in TOPIC_GONE:
        return TopicMissing(f"{reason}. The topic may have been deleted: create it, then publish again")
    if error.code() in NOT_ALLOWED:
        return TopicError(reason)
    if error.code() in LOST:
        return TransportError(f"{reason}. {LOST_RECORDS}")
    return TransportError(f"{reason}. Acknowledged records stay published; start again to go on after it")


def require_servers(options: Mapping[str, object]) -> None:
    """Refuse options without the address of a Kafka broker, because the client would retry until its time-out."""
    if not (options.get("bootstrap.servers") or options.get("metadata.broker.list")):
        raise SettingsError('the options name no Kafka: give "bootstrap.servers", as in "broker-1:9092,broker-2:9092"')


def options_refused(error: BaseException, options: Mapping[str, object]) -> SettingsError:
    """Return an error that names the option refused by librdkafka, but not its value, which may be secret."""
    first = error.args[0] if error.args else error
    text = first.str() if isinstance(first, KafkaError) else str(first)
    named = [name for name in options if f'"{name}"' in text]
    if not named:
        return SettingsError(
            f"kafka: the Kafka client refuses these options: {', '.join(sorted(map(str, options)))}. Correct them"
        )
    why = "there is no such option" if "No such configuration" in text else "it cannot have this value"
    return SettingsError(f"kafka.{named[0]}: the Kafka client refuses it: {why}. Correct or remove it")


_WHERE: Final = re.compile(
    r"^\w+://(?P<server>[^/\s]+:\d+)/\S+: (?P<what>.*?)(?: \(after \d+ms in state .*)?$", re.DOTALL
)
_TOKEN: Final = "Failed to acquire SASL OAUTHBEARER token: "  # noqa: S105 - librdkafka's words
_AWAY: Final = re.compile(r"connect|resolve|timed? ?out|empty reply|HTTP[^{]* 5\d\d", re.IGNORECASE)
"""Pattern of librdkafka's messages about a token server that may answer later."""
_ALERT: Final = re.compile(r"alert (?P<alert>[a-z ]+?)(?:: SSL alert number \d+)?$")


class RefusalCallback:
    """Error callback that stores the last refusal of its client by a server.

    The server is Kafka or a token server.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Store an error if it means a refusal, such as a wrong password; ignore others."""
        if _is_refusal(error):
            self._last = error

    def refusal(self) -> KafkaRefused | None:
        """Return the error for the last refusal since the previous call; None: there is no such refusal.

        After None, another attempt may succeed.
        """
        last, self._last = self._last, None  # only errors since the last call
        sentence = None if last is None else refused(last, self._options)
        return None if sentence is None else KafkaRefused(sentence)


def refused(error: KafkaError, options: Options) -> str | None:
    """Return the error text that explains a refusal to the user, with server and remedy.

    It is None if the error is no refusal, or if another attempt may succeed.

    Args:
        error: librdkafka's error, from `error_cb`.
        options: options of the client; with TLS the server's certificate may be examined, for a few seconds.
    """
    if not _is_refusal(error):
        return None
    text: str = error.str()
    if text.startswith(_TOKEN):
        return token_refused(options, text.removeprefix(_TOKEN))
    found = _WHERE.match(text)
    server, what = (found["server"], found["what"]) if found else ("", text)
    at = f"Kafka at {server}" if server else "Kafka"
    if error.code() == KafkaError._AUTHENTICATION:
        mechanism = options.get("sasl.mechanism", options.get("sasl.mechanisms"))
        return login_refused(at, what.removeprefix("SASL authentication error: "), mechanism)
    if alert := _ALERT.search(what):
        return own_certificate_refused(at, alert["alert"])
    if "certificate verify failed" not in what:
        return f"TLS with {at} failed: {what}. Correct bootstrap, kafka.security.protocol and kafka.ssl.*"
    return look_at_certificate(server, options) or (
        f"the certificate of {at} is refused: it could not be verified. Give kafka.ssl.ca.location the CA that "
        "signed it"
    )


def login_refused(at: str, what: str, mechanism: object) -> str:
    """Return the error text for a login that a server refuses.

    Args:
        at: the server, as "Kafka at host:port".
        what: message of the server.
        mechanism: SASL mechanism; None: PLAIN.
    """
    mechanism = str(mechanism or "PLAIN").upper()
    begin = f"{at} refuses the login by {mechanism}: {what.strip().rstrip('.')}"
    if "SASL state" in what:
        return f"{begin}. This address takes no login: correct bootstrap, or kafka.security.protocol"
    if "mechanism" in what and ("nsupported" in what or "does not support" in what):
        return f"{begin}. Set kafka.sasl.mechanism to a mechanism that the server accepts"
    if mechanism == "OAUTHBEARER":
        return f"{begin}. Its token has expired, or is not for this Kafka: check kafka.sasl.oauthbearer.*"
    return f"{begin}. Correct kafka.sasl.username and kafka.sasl.password (RATCHET_KAFKA__SASL__PASSWORD)"


def own_certificate_refused(at: str, alert: str) -> str:
    """Return the error text for a server that refuses the client's certificate, or requires one.

    Args:
        at: the server, as "Kafka at host:port".
        alert: text of the TLS alert.
    """
    return (
        f"{at} refuses this client, because it has no certificate or a wrong one (alert {alert}). Set "
        "kafka.ssl.certificate.location to an unexpired certificate by a CA that the broker trusts, and "
        "kafka.ssl.key.location to the certificate's key"
    )


def token_refused(options: Mapping[str, object], what: str) -> str | None:
    """Return the error text for a token that the token server refuses; None: another attempt may succeed."""
    if _AWAY.search(what):
        return None
    return (
        f"{token_server(options)} gives no token: {what.strip().rstrip('.')}. Correct kafka.sasl.oauthbearer.client.id "
        "and kafka.sasl.oauthbearer.client.secret (RATCHET_KAFKA__SASL__OAUTHBEARER__CLIENT__SECRET)"
    )


def token_server(options: Mapping[str, object]) -> str:
    """Return host and port of the token server, without the rest of its url."""
    try:
        url = urlsplit(str(options.get("sasl.oauthbearer.token.endpoint.url", "")))
        return f"the token server {url.hostname}" + (f":{url.port}" if url.port else "")
    except ValueError:
        return "the token server"


def _is_refusal(error: KafkaError) -> bool:
    if error.code() in (KafkaError._SSL, KafkaError._AUTHENTICATION):
        return True
    return error.code() == KafkaError._TRANSPORT and (
        "SSL alert number" in error.str() or "certificate verify failed" in error.str()
    )
