"""Offsets held back by an open transaction, and when that is a standstill."""

from __future__ import annotations

import time

from kafka_ratchet.app.status.open_transactions import BlockedRange
from kafka_ratchet.transport.stalls import STALLED_AFTER_S
from kafka_ratchet.transport.transactions.open_transactions import OpenTransaction


def begun(seconds_ago: float) -> OpenTransaction:
    return OpenTransaction("orders", 0, 7, 0, 100, int((time.time() - seconds_ago) * 1000))


def test_a_transaction_is_old_by_its_first_record() -> None:
    assert BlockedRange("orders", 0, 100, 105, [begun(2 * STALLED_AFTER_S), begun(0)]).is_old
    assert not BlockedRange("orders", 0, 100, 105, [begun(0)]).is_old


def test_one_that_has_ended_since_the_ends_were_asked_for_is_not_old() -> None:
    """Workers write to the topic in one transaction after another; Kafka knows of none between two of them."""
    assert not BlockedRange("orders", 0, 100, 105, []).is_old


def test_one_that_kafka_does_not_name_may_be_of_any_age() -> None:
    assert BlockedRange("orders", 0, 100, 105, [], "Kafka does not name its producer: no right").is_old
