"""Program of test_new_version.py, as it was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from kafka_ratchet import App

app = App()
orders = app.stream("orders", value_type=dict)
totals = app.Table("totals", default=int)


@app.agent(orders)
async def add_up(orders: Any) -> AsyncIterator[Any]:
    async for order in orders:
        totals[order["user"]] += order["amount"]
        yield {"user": order["user"], "total": totals[order["user"]]}
