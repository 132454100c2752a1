"""aiokafka's connections under uvloop: one that was reset says so in Kafka's words.

asyncio's transports take what is written to them after a reset, and drop it. uvloop's raise RuntimeError until
aiokafka's reader has heard of the reset, and aiokafka 0.14 expects nothing but OSError there. Whoever asks sees an
error that no retry is for; and the one task that fetches metadata ends by it without a word, so that a worker goes on
asking a dead node for the partitions that it led, until somebody restarts the worker (a fault run with a node of three
killed taught this).
"""

from __future__ import annotations

from typing import Any

from aiokafka import errors as kafka
from aiokafka.conn import AIOKafkaConnection, CloseReason

plain_send = AIOKafkaConnection.send


def send(connection: AIOKafkaConnection, request: Any, expect_response: bool = True) -> Any:
    """As aiokafka's own, which it replaces for lanes and Faust alike once this module is imported.

    Raises:
        aiokafka.errors.KafkaConnectionError: the connection is gone; it is closed now.
    """
    try:
        return plain_send(connection, request, expect_response)
    except RuntimeError as error:
        connection.close(reason=CloseReason.CONNECTION_BROKEN, exc=error)
        raise kafka.KafkaConnectionError(
            f"Connection at {connection.host}:{connection.port} broken: {error}"
        ) from error


AIOKafkaConnection.send = send
