"""Answers of Kafka by topic id, as far as no broker is needed."""

from __future__ import annotations

from kafka_ratchet.transport.client.topic_id import DIVERGING_EPOCH, diverging


def test_the_point_of_divergence_may_be_unknown() -> None:
    assert diverging({}) is None
    unknown = (-1).to_bytes(4, "big", signed=True) + (-1).to_bytes(8, "big", signed=True)
    assert diverging({DIVERGING_EPOCH: unknown}) == (-1, -1)
    assert diverging({DIVERGING_EPOCH: (7).to_bytes(4, "big") + (1 << 60).to_bytes(8, "big") + b"\0"}) == (7, 1 << 60)
