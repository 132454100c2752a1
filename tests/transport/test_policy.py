"""Operators' requests, and the records that they apply to."""

from __future__ import annotations

import pytest

from kafka_ratchet.transport.policy import ForgetRequest


@pytest.mark.parametrize(
    ("partition", "topic", "first"),
    [(0, "present", 7), (1, "present", 9), (2, "present", 0), (0, "replaced", 0)],
)
def test_a_request_applies_to_the_records_after_it(partition: int, topic: str, first: int) -> None:
    forget = ForgetRequest("id", b"shop", None, "2026-01-01T00:00:00Z", "user", "", input="present", ends=(7, 9))
    assert forget.holds_from(partition, topic) == first
