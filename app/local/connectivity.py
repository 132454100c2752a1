"""Requests to check that Kafka answers, sent once or until an answer arrives."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kafka_ratchet.errors import BrokerUnavailable, KafkaRefused
from kafka_ratchet.producers import RefusalCallback, options_refused

MESSAGE_EVERY_S = 5.0

ASK_FOR_S = 1.0
"""Seconds that one request waits for an answer. Between requests the client continues to connect."""


REFUSED_FOR_S = 2.0
SILENT_FOR_S = 6.0
"""Seconds that a read-only command waits for a broker that accepts a connection but does not answer.

A busy broker may need some seconds. The command does not wait for the start of a broker.
"""


class Reachability:
    """Repeatable check that a Kafka cluster answers.

    Args:
        bootstrap: host:port[,host:port].
        options: client options in librdkafka's names.

    Raises:
        SettingsError: the client refuses the options.
    """

    def __init__(self, bootstrap: str, options: Mapping[str, str | int | bool]) -> None:
        self._reason: str | None = None
        self._heard = RefusalCallback(options)
        self.cluster_id: str | None = None
        """Cluster id in Kafka's last answer."""
        self.partitions: dict[str, int] = {}
        """Partition count by topic in Kafka's last answer, for the topics that this user may see."""
        self.leaderless: dict[str, frozenset[int]] = {}
        """Partitions without a leader in Kafka's last answer, by topic."""
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "error_cb": self._note,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 200,  # instead of 10 s: a broker that comes up is noticed at once
            "log_level": 0,  # what goes wrong comes through error_cb
            **options,
        }
        try:
            self._client = AdminClient(config)
        except (KafkaException, ValueError, TypeError, OverflowError) as error:
            raise options_refused(error, options) from None

    def ask(self, timeout_s: float = ASK_FOR_S) -> str | None:
        """Ask Kafka once; return None after an answer within `timeout_s` seconds, else the reason of the failure."""
        try:
            answer = self._client.list_topics(timeout=timeout_s)
        except KafkaException as error:
            self._client.poll(0)  # delivers what error_cb is to note
            return self._reason or _text(error)
        self.cluster_id = answer.cluster_id
        self.partitions = {name: len(found.partitions) for name, found in answer.topics.items()}
        away = {
            name: frozenset(number for number, each in found.partitions.items() if each.leader < 0)
            for name, found in answer.topics.items()
        }
        self.leaderless = {name: numbers for name, numbers in away.items() if numbers}
        return None if answer.brokers else "it knows of no broker yet"

    def refusal(self) -> KafkaRefused | None:
        """Return the error if Kafka has refused this client, or this client has refused Kafka's certificate.

        None: there was no such error, so another request may help.
        """
        return self._heard.refusal()

    def look(self) -> str | None:
        """Ask Kafka until it answers, for some seconds; return None, or the reason of the failure.

        It gives up after `REFUSED_FOR_S` if no connection is possible, and after `SILENT_FOR_S` if Kafka does not
        answer.

        Raises:
            KafkaRefused: Kafka and this client refuse each other.
        """
        began = time.monotonic()
        patience_s = ASK_FOR_S
        while (reason := self.ask(patience_s)) is not None:
            if (refusal := self.refusal()) is not None:
                raise refusal
            if time.monotonic() - began > (SILENT_FOR_S if self._reason is None else REFUSED_FOR_S):
                return reason
            # Each question is a new one: an answer that takes longer than the first would never be waited for.
            patience_s = SILENT_FOR_S if self._reason is None else ASK_FOR_S
            time.sleep(0.05)  # an answer that lists no broker comes at once
        return None

    def _note(self, error: KafkaError) -> None:
        # "All brokers are down" only says that the reasons before it hold for all of them.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - librdkafka's own codes are named so
            self._reason = error.str()
        self._heard(error)


def wait_until_reachable(
    bootstrap: str, options: Mapping[str, str | int | bool], timeout_s: float, say: Callable[[str], None]
) -> None:
    """Wait until Kafka answers.

    Args:
        bootstrap: host:port[,host:port].
        options: client options in librdkafka's names, `settings.kafka`.
        timeout_s: maximum seconds to wait, `settings.kafka_timeout_s`.
        say: function called with a sentence at the first failure, and every `MESSAGE_EVERY_S` afterwards.

    Raises:
        BrokerUnavailable: Kafka did not answer in time.
        KafkaRefused: Kafka refuses this client, or this client refuses Kafka's certificate.
        SettingsError: the client refuses the options.
    """
    deadline = time.monotonic() + timeout_s
    next_message = float("-inf")
    kafka = Reachability(bootstrap, options)
    while (reason := kafka.ask(max(0.1, min(ASK_FOR_S, deadline - time.monotonic())))) is not None:
        if (refusal := kafka.refusal()) is not None:
            raise refusal
        now = time.monotonic()
        left_s = max(0.0, deadline - now)
        if now >= next_message:
            next_message = now + MESSAGE_EVERY_S
            say(f"Kafka at {bootstrap} does not answer yet ({reason}); trying for {left_s:.0f} s more")
        if not left_s:
            raise BrokerUnavailable(
                f"Kafka at {bootstrap} did not answer within {timeout_s:g} s: {reason}. Start it ('ratchet broker'), "
                "or correct bootstrap (RATCHET_BOOTSTRAP) and the kafka options; kafka_timeout_s sets how long to wait"
            )
        time.sleep(0.05)  # an answer that lists no broker comes at once


def require_answer(bootstrap: str, options: Mapping[str, str | int | bool]) -> None:
    """Check that Kafka answers, for commands that only read.

    Raises:
        BrokerUnavailable: Kafka did not answer within a few seconds; the message names the address.
        KafkaRefused: Kafka refuses this client, or this client refuses Kafka's certificate.
        SettingsError: the client refuses the options.
    """
    reason = Reachability(bootstrap, options).look()
    if reason is not None:
        raise BrokerUnavailable(no_answer(bootstrap, reason))


def no_answer(bootstrap: str, reason: str) -> str:
    """Return the error message of a command that does not wait for Kafka. reason: reason of the failed request."""
    return (
        f"Kafka at {bootstrap} does not answer ({reason}). Start it ('ratchet broker'), or correct bootstrap "
        "(RATCHET_BOOTSTRAP) and the kafka options"
    )


def _text(error: BaseException) -> str:
    first = error.args[0] if error.args else error
    return first.str() if isinstance(first, KafkaError) else str(first)
