"""Counts per minute of event time. Views that come too late are dead letters. Needs `[streams.views]`.

A window is kept for ten minutes after its end. By then readers of the counts have the last one of the window.
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
    """Yield the count of views in the minute of each view, also of a late one."""
    async for view in views:
        if counts.is_late:
            raise ValueError("more than ten minutes late")
        counts[view.page] += 1
        yield {"page": view.page, "views": counts[view.page].value()}
