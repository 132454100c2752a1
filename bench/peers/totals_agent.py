"""Totals per user, as an agent in plain Python: the program of docs/guide/agents.md.

Separate module: workers import it by name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from kafka_ratchet import App


class Order(msgspec.Struct):
    """A record of the input."""

    user: str
    amount: int


app = App()
orders = app.stream("events", value_type=Order)
totals = app.Table("totals", default=int)


@app.agent(orders)
async def add_up(orders: Any) -> AsyncIterator[dict[str, Any]]:
    """Yield the user's total for each order."""
    async for order in orders:
        totals[order.user] += order.amount
        yield {"user": order.user, "total": totals[order.user]}
