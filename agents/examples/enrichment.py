"""Enrichment from a table that every worker has. Needs `[streams.orders]`, and the topic `countries`.

The topic is compacted: key `de`, value `{"name": "Germany", "tax_percent": 19}`. A look-up is not part of the
transaction, so the agent is declared with `deterministic=False`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from kafka_ratchet import App


class Order(msgspec.Struct):
    """Value of the input: an order."""

    order: str
    country: str
    amount: int


class Country(msgspec.Struct):
    """Value of the topic `countries`: name and tax."""

    name: str
    tax_percent: int


app = App()
orders = app.stream("orders", value_type=Order)
countries = app.GlobalTable("countries", topic="countries", value_type=Country)


@app.agent(orders, on_error="dead-letter", deterministic=False)
async def add_tax(orders: AsyncIterator[Order]) -> AsyncIterator[Any]:
    """Yield each order with its country's name and tax; an order from an unknown country becomes a dead letter."""
    async for order in orders:
        country = countries[order.country]
        tax = order.amount * country.tax_percent // 100
        yield {"order": order.order, "country": country.name, "amount": order.amount, "tax": tax}
