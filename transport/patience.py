"""How long a lane waits for the agent that works on its batch, and what it says of one that takes long."""

from __future__ import annotations

from typing import Any, Final

from kafka_ratchet.errors import AgentFailed
from kafka_ratchet.transport.delivery import Delivery

LOOK_S: Final = 1.0
"""How often a lane looks whether the agent takes too long. The looks are counted: one that was suspended meanwhile
blames nobody."""
SLOW_S: Final = 30.0
"""Seconds between two warnings that the agent has not given back a batch; judging 2 MiB takes far less."""
HELD_MOST: Final = 0.8
"""Of the transaction's time-out, after which a lane rolls back what an agent holds: it can still say who it was."""


def spend(delivery: Delivery, waited_s: float, log: Any) -> None:
    """An agent works on a batch for so long: say so, and have the lane roll back before Kafka does.

    Raises:
        AgentFailed: an agent of one's own holds the transaction for almost as long as Kafka lets it.
    """
    held_by, timeout_ms, batch = delivery.held_by, delivery.spec.transaction_timeout_ms, delivery.batch
    if held_by is not None and waited_s >= timeout_ms / 1000 * HELD_MOST:
        text = held_by()
        delivery.done.cancel()
        raise AgentFailed(
            f"{text} has held its transaction for {waited_s:g} s, and Kafka ends it after transaction_timeout_ms = "
            f"{timeout_ms}. It is rolled back, and its {batch.count} records come again. Let the agent take less time, "
            "or raise transaction_timeout_ms"
        )
    if waited_s % SLOW_S < LOOK_S:
        log.warning(
            "the agent does not give back a batch",
            offset=batch.start,
            records=batch.count,
            held_by=held_by() if held_by else None,
        )
