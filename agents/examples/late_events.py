"""Counts per minute of event time. Views that come too late are dead letters. Needs `[streams.views]`.

The table keeps the count of a minute until ten minutes after that minute; then the count no longer changes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from kafka_ratchet import App


class View(msgspec.Struct):
    """Value of the input: a view of a page. The record's timestamp is its time."""

    page: str


app = App()
views = app.stream("views", value_type=View)
counts = app.Table("counts", default=int).tumbling(60, expires=600)


@app.agent(views, on_error="dead-letter")
async def count(views: AsyncIterator[View]) -> AsyncIterator[Any]:
    """Yield the count of views in the minute of each view, also for a view at most ten minutes late."""
    async for view in views:
        if counts.is_late:
            raise ValueError("the view is more than ten minutes late")
        counts[view.page] += 1
        yield {"page": view.page, "views": counts[view.page].value()}
