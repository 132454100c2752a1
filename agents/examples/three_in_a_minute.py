"""An alert when a card pays three times within a minute. Needs `[streams.payments]`, keyed by card.

The agent looks back one minute of event time from each payment. Windows with fixed ends, such as full minutes, would
miss three payments around an end. Payments of a card come in the order of offsets, and their timestamps may go back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from kafka_ratchet import App

MINUTE_MS = 60_000


class Payment(msgspec.Struct):
    """Value of the input: a payment. The record's timestamp is its time."""

    card: str
    amount: int


app = App()
payments = app.stream("payments", value_type=Payment)
recent = app.Table("recent", default=list, value_type=list[int])
"""Timestamps of a card's payments within the last minute."""


@app.agent(payments)
async def watch(payments: Any) -> AsyncIterator[Any]:
    """Yield an alert for the third payment within a minute, and for each later one."""
    async for payment in payments.events():
        card, now = payment.value.card, payment.timestamp
        times = sorted([*recent[card], now])
        times = [time for time in times if time > times[-1] - MINUTE_MS]
        recent[card] = times
        if len(times) >= 3 and now in times:
            yield {"card": card, "payments": len(times), "seconds": (times[-1] - times[0]) / 1000}
