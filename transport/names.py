"""Name of a lane's transactional id. `kafka_ratchet.app.names` has the other names."""

from __future__ import annotations


def transactional_id(app: str, input_topic: str, partition: int) -> str:
    """Return the transactional id of the lane that processes an input partition."""
    return f"{app}-lane/{input_topic}/{partition}"
