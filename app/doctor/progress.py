"""Progress of each stream: partitions at a standstill, and open transactions in its input."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from kafka_ratchet.app.doctor.findings import Finding, Mark
from kafka_ratchet.app.names import changelog_name
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.cluster_view import ClusterView
from kafka_ratchet.app.status.kafka_view import InputPartition, KafkaView
from kafka_ratchet.app.status.model import Overview, StreamView
from kafka_ratchet.app.status.open_transactions import BlockedRange, ask_about
from kafka_ratchet.errors import RatchetError
from kafka_ratchet.transport.stalls import StallCause

PASSING: Final = frozenset(
    {StallCause.NO_WORKER, StallCause.REBALANCE, StallCause.STARTING, StallCause.RESTORING, StallCause.AGENT}
)
"""Causes of a standstill that needs no operator, or only the start of a worker; doctor warns of it."""
SHOWN: Final = 5
"""Maximum number of partitions of one stream that get a finding each."""


def progress(settings: Settings, bootstrap: str, *, has_run: bool) -> Iterator[Finding]:
    """Yield a finding for each partition at a standstill, and for each old open transaction.

    Args:
        settings: valid settings of the application.
        bootstrap: address of the cluster, which must answer.
        has_run: True if a worker has run before; only then the group is read.
    """
    overview: Overview | None = None
    blocked: list[BlockedRange] = []
    try:
        overview = asyncio.run(_overview(settings, bootstrap)) if has_run else None
        positions = KafkaView(bootstrap, settings).read(
            {name: changelog_name(settings.app, name) for name in settings.streams}, {}
        )
        blocked = _blocked(settings, bootstrap, positions)
    except RatchetError as error:
        yield Finding("progress", Mark.WARNING, f"how far the workers are is not known: {error}")
        if overview is None:
            return
    views = {each.stream: each for each in overview.streams} if overview is not None else {}
    for name, stream in settings.streams.items():
        found = [
            *_stalled(name, views.get(name)),
            *(_error(name, each) for each in blocked if each.topic == stream.input and each.is_old),
        ]
        yield from found[:SHOWN]
        if len(found) > SHOWN:
            worst = Mark.ERROR if any(each.mark is Mark.ERROR for each in found[SHOWN:]) else Mark.WARNING
            yield Finding("progress", worst, f"stream {name}: {len(found) - SHOWN:,} more; `ratchet tables` has them")
        if not found and name in views:
            lag = views[name].totals.lag
            waits = "" if lag is None else f"; {lag:,} offsets are not judged yet"
            yield Finding("progress", Mark.OK, f"stream {name}: no partition stands still{waits}")


async def _overview(settings: Settings, bootstrap: str) -> Overview:
    async with ClusterView(bootstrap, settings) as view:
        return await view.overview()


def _blocked(settings: Settings, bootstrap: str, positions: dict[str, list[InputPartition]]) -> list[BlockedRange]:
    ends = {
        (settings.streams[name].input, row.partition): (row.stable_end, row.end)
        for name, rows in positions.items()
        for row in rows
        if row.stable_end is not None and row.end is not None
    }
    return ask_about(bootstrap, settings, ends)


def _stalled(name: str, view: StreamView | None) -> Iterator[Finding]:
    for row in view.partitions if view is not None else ():
        if row.stalled is not None and row.stalled.cause != StallCause.OPEN_TRANSACTION:
            mark = Mark.WARNING if row.stalled.cause in PASSING else Mark.ERROR
            yield Finding("progress", mark, f"stream {name}: stands still ({row.stalled.cause}): {row.stalled.text}")


def _error(name: str, blocked: BlockedRange) -> Finding:
    return Finding("progress", Mark.ERROR, f"stream {name}: {blocked}")
