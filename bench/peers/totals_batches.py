"""Totals per user, as an agent over batches: the second program of docs/guide/agents.md."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pyarrow

from kafka_ratchet import App


class Order(msgspec.Struct):
    """A record of the input."""

    user: str
    amount: int


app = App()
orders = app.stream("events")
totals = app.Table("totals", default=int)
decode, encode = msgspec.json.Decoder(Order).decode, msgspec.json.Encoder().encode


@app.agent(orders)
async def add_up(orders: Any) -> AsyncIterator[pyarrow.RecordBatch]:
    """Yield the user's total for each order."""
    async for batch in orders.batches(["key", "value", "timestamp"]):
        rows = [decode(value) for value in batch["value"].to_pylist()]
        found = totals.get_many([row.user for row in rows])
        values = []
        for row in rows:
            found[row.user] += row.amount
            values.append(encode({"user": row.user, "total": found[row.user]}))
        totals.update(found)
        yield pyarrow.record_batch({"key": batch["key"], "value": values, "timestamp": batch["timestamp"]})
