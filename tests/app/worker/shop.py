"""The program of test_own_agents.py."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from kafka_ratchet import App


class Order(msgspec.Struct):
    user: str
    amount: int


app = App()
orders = app.stream("orders", value_type=Order)
totals = app.Table("totals", default=int)
seen = app.Table("seen", default=list)


@app.agent(orders, on_error=os.environ.get("ON_ERROR", "halt"))  # type: ignore[arg-type]
async def add_up(orders: Any) -> AsyncIterator[Any]:
    async for order in orders:
        totals[order.user] += order.amount
        seen[order.user] = [*seen[order.user], order.amount][-3:]
        yield {"user": order.user, "total": totals[order.user], "last": seen[order.user]}
        if order.amount < 0:
            raise ValueError("negative")
        if order.amount == 0:
            del totals[order.user]
