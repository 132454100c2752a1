"""Orders and payments, joined by the order's number whichever comes first, without a window.

Two streams cannot share a table, because their partitions commit in separate transactions. So both send to an internal
stream with the order's number as key. There, both halves of an order are in one partition, and the table belongs to the
internal stream alone.

Needs `[streams.orders]` and `[streams.payments]`; joined orders go to the topic `APP-halves`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from kafka_ratchet import App


class Order(msgspec.Struct):
    """Value of the stream orders."""

    number: str
    amount: int


class Payment(msgspec.Struct):
    """Value of the stream payments."""

    order: str
    paid: int


class PartialOrder(msgspec.Struct):
    """Known fields of an order, from the order or its payment."""

    number: str
    amount: int | None = None
    paid: int | None = None


app = App()
orders = app.stream("orders", value_type=Order)
payments = app.stream("payments", value_type=Payment)
halves = app.stream("halves", value_type=PartialOrder, internal=True)
waiting = app.Table("waiting", value_type=PartialOrder, stream=halves)
"""Orders with one half so far."""


@app.agent(orders)
async def send_orders(orders: AsyncIterator[Order]) -> None:
    """Send the fields known from an order to the joined stream."""
    async for order in orders:
        await halves.send(key=order.number, value=PartialOrder(order.number, amount=order.amount))


@app.agent(payments)
async def send_payments(payments: AsyncIterator[Payment]) -> None:
    """Send the fields known from a payment to the joined stream."""
    async for payment in payments:
        await halves.send(key=payment.order, value=PartialOrder(payment.order, paid=payment.paid))


@app.agent(halves)
async def join(halves: AsyncIterator[PartialOrder]) -> AsyncIterator[Any]:
    """Yield an order once both halves have come, and delete it from the table.

    If an order is sent again later, both halves are needed again.
    """
    async for half in halves:
        other = waiting.get(half.number, half)
        amount = other.amount if half.amount is None else half.amount
        paid = other.paid if half.paid is None else half.paid
        if amount is None or paid is None:
            waiting[half.number] = PartialOrder(half.number, amount, paid)
        else:
            waiting.pop(half.number, None)
            yield {"number": half.number, "amount": amount, "open": amount - paid}
