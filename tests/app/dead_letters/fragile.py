"""A program that rejects orders until it is mended."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from kafka_ratchet import App

MENDED = os.environ.get("MENDED") == "1"


class Order(msgspec.Struct):
    user: str
    amount: int


class OldOrder(Order):
    amount: int = 1000


app = App()
orders = app.stream("orders", value_type=OldOrder if MENDED else Order)
totals = app.Table("totals", default=int)


@app.agent(orders, on_error="dead-letter")
async def add_up(orders: Any) -> AsyncIterator[Any]:
    async for order in orders:
        totals[order.user] += order.amount
        if order.amount < 0 and not MENDED:
            raise ValueError("negative")
        yield {"user": order.user, "total": totals[order.user]}
