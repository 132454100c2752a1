"""Amounts of orders, totalled by user after a `group_by`. Nothing here knows of Ratchet but the URL."""

import os

import faust

KIND = os.environ.get("FAUST_KIND", "ratchet")
app = faust.App(
    os.environ["FAUST_APP"],
    broker=f"{KIND}://{os.environ['FAUST_BROKER']}",
    store="ratchet://" if KIND == "ratchet" else "memory://",
    topic_partitions=int(os.environ.get("TOPIC_PARTITIONS", "2")),
)
orders = app.topic(f"{app.conf.id}-orders", value_type=str)
by_user = app.topic(f"{app.conf.id}-by-user", value_type=str) if os.environ.get("NAMED_TOPIC") else None
totals = app.Table("totals", default=int)
done = app.topic(f"{app.conf.id}-done")


@app.agent(orders)
async def total(stream):
    async for user in stream.group_by(lambda user: user, name="user", topic=by_user):
        totals[user] += 1
        await done.send(key=user, value=totals[user])


if __name__ == "__main__":
    app.main()
