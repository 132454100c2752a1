"""Faust program of `ratchet faults --faust`: words, sets, windows that close, and two topics with one table.

Separate module: workers import it by name; it imports nothing of Ratchet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import faust

APP: Final = "faults"
NAME: Final = "faults.programs.hosted:app"
"""Name of the program for `ratchet worker --faust`."""
COUNTED_BY: Final = f"{APP}-faults.programs.hosted.count"
"""Name that Faust gives to the topic of the counting agent."""
WORDS: Final = 50
REMAINDERS: Final = 7
"""Number of different elements that a set can have."""
SIZE: Final = 100
"""Width of a window, in sequences."""
EXPIRES: Final = 400
"""Number of sequences after a window's end until the window closes. No event is that late
(`faults.events.HELD_FOR`)."""

app = faust.App(APP, broker="kafka://", store="memory://", topic_partitions=4, web_enabled=False)


class Row(faust.Record):  # type: ignore[misc]
    """Value of an event."""

    key: str
    sequence: int


posts = app.topic(f"{APP}.all.in", value_type=Row)
by_partition = app.topic(f"{APP}.partition.in", value_type=Row)
by_key = app.topic(f"{APP}.key.in", value_type=Row)
by_producer = app.topic(f"{APP}.producer.in", value_type=Row)
counted, closed, log = (app.topic(f"{APP}.{name}") for name in ("counted", "closed", "balance-log"))


def words_of(row: Any) -> Iterator[str]:
    """Yield the words of an event."""
    yield row.key
    yield f"word-{row.sequence % WORDS}"


async def on_close(key: Any, value: int) -> None:
    """Send the total of a closed window."""
    name, (start, _) = key
    await closed.send(key=name, value=[start, value])


counts = app.Table("counts", default=int)
remainders = app.SetTable("remainders")
balance = app.Table("balance", default=int, changelog_topic=log)
windows = (
    app.Table("windows", default=int, on_window_close=on_close)
    .tumbling(SIZE, expires=EXPIRES)
    .relative_to_field(Row.sequence)
)


@app.agent(posts)  # type: ignore[untyped-decorator]
async def split(rows: Any) -> None:
    """Send each word to the agent that counts it."""
    async for row in rows:
        for word in words_of(row):
            await count.send(key=word, value=word)


@app.agent(value_type=str)  # type: ignore[untyped-decorator]
async def count(words: Any) -> None:
    """Count each word, and send the count."""
    async for word in words:
        counts[word] += 1
        await counted.send(key=word, value=counts[word])


@app.agent(by_partition)  # type: ignore[untyped-decorator]
async def collect(rows: Any) -> None:
    """Keep a set for each key, and add and discard elements."""
    async for row in rows:
        remainders[row.key].add(row.sequence % REMAINDERS)
        remainders[row.key].discard(row.sequence // REMAINDERS % REMAINDERS)


@app.agent(by_key)  # type: ignore[untyped-decorator]
async def number(rows: Any) -> None:
    """Count events by key and window."""
    async for row in rows:
        windows[row.key] += 1


@app.agent(by_key)  # type: ignore[untyped-decorator]
async def deposit(rows: Any) -> None:
    """Add each event's sequence to the table that two topics share."""
    async for row in rows:
        balance[row.key] += row.sequence


@app.agent(by_producer)  # type: ignore[untyped-decorator]
async def withdraw(rows: Any) -> None:
    """Subtract one for each event from the table that two topics share."""
    async for row in rows:
        balance[row.key] -= 1
