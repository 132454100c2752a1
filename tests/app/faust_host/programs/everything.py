"""Words, sets, windows with a close callback, two topics with one table, lists and a regrouping, in Faust's style."""

import os

import faust

app = faust.App(
    os.environ["FAUST_APP"],
    broker=f"ratchet://{os.environ['FAUST_BROKER']}",
    store="ratchet://",
    topic_partitions=2,
    table_standby_replicas=0,
)


class Order(faust.Record, coerce=True):
    user: str
    amount: int
    at: float


def named(name, **options):
    return app.topic(f"{app.conf.id}-{name}", **options)


orders, refunds = named("orders", value_type=Order), named("refunds", value_type=Order)
closed, taken, log, by_amount = named("closed"), named("taken"), named("log"), named("by-amount")


async def on_close(key, value):
    user, (start, _) = key
    await closed.send(key=user, value=[start, value])


windows = (
    app.Table("windows", default=int, on_window_close=on_close).tumbling(10, expires=20).relative_to_field(Order.at)
)
balance = app.Table("balance", default=int, changelog_topic=log)
amounts = app.SetTable("amounts")
groups = app.Table("groups", default=int)


@app.agent(orders)
async def count(stream):
    async for order in stream:
        windows[order.user] += order.amount


@app.agent(orders)
async def add(stream):
    async for order in stream:
        balance[order.user] += order.amount
        amounts[order.user].add(order.amount)


@app.agent(refunds)
async def subtract(stream):
    async for order in stream:
        balance[order.user] -= order.amount
        amounts[order.user].discard(order.amount)
        if order.amount == 13:
            raise ValueError("thirteen")


@app.agent(orders, sink=[taken])
async def collect(stream):
    async for some in stream.take(7, within=1):
        yield [order.at for order in some]


@app.agent(orders)
async def regroup(stream):
    async for order in stream.group_by(Order.amount):
        groups[str(order.amount)] += 1
        await by_amount.send(key=str(order.amount), value=groups[str(order.amount)])


if __name__ == "__main__":
    app.main()
