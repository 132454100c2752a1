"""A Faust program that counts: one agent splits, one counts into tables. Nothing here knows of Ratchet."""
# mypy: disable-error-code="untyped-decorator, misc"

from __future__ import annotations

import os
import uuid
from typing import Any

import faust

NAME = os.environ.setdefault("TESTS_FAUST_WORDS", f"words-{uuid.uuid4().hex[:8]}")
"""Prefix of ids and topics; worker processes inherit it."""

app = faust.App(f"{NAME}-words", broker="kafka://127.0.0.1:9", store="memory://", topic_partitions=1)
posts = app.topic(f"{NAME}.words.posts", value_type=str)
counted = app.topic(f"{NAME}.words.counted")
counts = app.Table("counts", default=int)
letters = app.SetTable("letters")


@app.agent(posts)
async def split(stream: Any) -> None:
    async for post in stream:
        if post == "":
            raise ValueError("nothing in it")
        for word in post.split():
            await count.send(key=word, value=word)


@app.agent(value_type=str)
async def count(words: Any) -> None:
    async for word in words:
        counts[word] += 1
        letters[word].add(word[0])
        await counted.send(key=word, value=counts[word])


alone = faust.App(f"{NAME}-alone", broker="kafka://127.0.0.1:9", store="memory://", topic_partitions=2)
numbers = alone.topic(f"{NAME}.alone.numbers", value_type=int)
totals = alone.Table("totals", default=int)


@alone.agent(numbers)
async def add_up(stream: Any) -> None:
    async for user, number in stream.items():
        totals[user] += number


forgetful = faust.App(f"{NAME}-forgetful", broker="kafka://127.0.0.1:9", store="memory://", topic_partitions=1)
events = forgetful.topic(f"{NAME}.forgetful.events", value_type=int)
seen = forgetful.topic(f"{NAME}.forgetful.seen")


@forgetful.agent(events)
async def count_in_a_variable(stream: Any) -> None:
    found = 0
    async for _ in stream:
        found += 1
        await seen.send(value=found)
