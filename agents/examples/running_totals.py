"""Running totals: the amount that each user has spent so far. Needs `[streams.orders]`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from kafka_ratchet import App


class Order(msgspec.Struct):
    """Value of the input, such as `{"user": "ann", "amount": 3}`."""

    user: str
    amount: int


app = App()
orders = app.stream("orders", value_type=Order)
totals = app.Table("totals", default=int)


@app.agent(orders)
async def add_up(orders: AsyncIterator[Order]) -> AsyncIterator[Any]:
    """Yield the user's total after each order."""
    async for order in orders:
        totals[order.user] += order.amount
        yield {"user": order.user, "total": totals[order.user]}
