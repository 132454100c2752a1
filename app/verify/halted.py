"""The halted partitions, as their workers report them."""

from __future__ import annotations

import asyncio

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.verify.report import Halted
from kafka_ratchet.errors import RatchetError

HALTED = "halted"
"""`kafka_ratchet.transport.lane_spec.LaneState.HALTED`, as a worker's status address tells it."""


def halted_partitions(settings: Settings, stream: str) -> list[Halted]:
    """Ask the live workers of the group. Where none can be asked there is none: what they left unread is pending.

    Args:
        settings: with `bootstrap` set.
        stream: its name.
    """
    try:
        return asyncio.run(_asked(settings, stream))
    except RatchetError:
        return []


async def _asked(settings: Settings, stream: str) -> list[Halted]:
    from kafka_ratchet.app.status.cluster_view import ClusterView

    assert settings.bootstrap is not None  # noqa: S101 - asked by the caller
    async with ClusterView(settings.bootstrap, settings) as cluster_view:
        overview = await cluster_view.overview()
    return [
        Halted(row.partition, row.error or "the worker does not say why")
        for view in overview.streams
        if view.stream == stream
        for row in view.partitions
        if row.state == HALTED
    ]
