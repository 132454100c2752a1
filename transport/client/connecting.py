"""Connects to Kafka: tries the addresses until one answers, and says why none did."""

from __future__ import annotations

from typing import Any, Final

from aiokafka import errors as kafka
from aiokafka.client import AIOKafkaClient

from kafka_ratchet.errors import BrokerUnavailable
from kafka_ratchet.transport.client.connection import mend_connections, refused_by
from kafka_ratchet.transport.client.retry import Retry

mend_connections()

ANSWER_LEAST_MS: Final = 100
"""A broker gets this long for its first answer, however short the limit is."""


async def connected(options: dict[str, Any], timeout_s: float, request_timeout_ms: int) -> AIOKafkaClient:
    """A client of a cluster that has answered.

    Args:
        options: aiokafka's
        timeout_s: how long to try
        request_timeout_ms: how long it waits for each answer from then on

    Raises:
        BrokerUnavailable: nobody answered within timeout_s.
        KafkaRefused: Kafka refuses this client, or has a certificate that this client refuses.
    """
    retry = Retry("reach Kafka", bootstrap=options["bootstrap_servers"])
    while True:
        left_ms = max(ANSWER_LEAST_MS, int((timeout_s - retry.seconds) * 1000))
        client = AIOKafkaClient(
            **{"client_id": "ratchet", **options}, request_timeout_ms=min(left_ms, request_timeout_ms)
        )
        try:
            await client.bootstrap()
        except kafka.KafkaError as error:
            await client.close()
            if (refusal := refused_by(options["bootstrap_servers"])) is not None:
                raise refusal from None
            if retry.seconds > timeout_s:
                servers = ", ".join(options["bootstrap_servers"])
                raise BrokerUnavailable(
                    f"no Kafka broker answered at {servers} within {timeout_s:.0f} s ({error}). "
                    "Start one (ratchet broker) or correct bootstrap in the settings"
                ) from None
            await retry.wait(error)
        else:
            # The limit was for this; connections made from now on have the usual one.
            client._request_timeout_ms = request_timeout_ms  # noqa: SLF001
            return client
