"""Agent that keeps totals per user, so that the measured page has a table of an agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from bench.peers.totals_agent import Order
from kafka_ratchet import App

app = App()
orders = app.stream("orders", value_type=Order)
totals = app.Table("totals", default=int)


@app.agent(orders)
async def add_up(orders: Any) -> AsyncIterator[dict[str, Any]]:
    """Yield the user's total for each order."""
    async for order in orders:
        totals[order.user] += order.amount
        yield {"user": order.user, "total": totals[order.user]}
