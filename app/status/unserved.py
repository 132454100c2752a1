"""Causes of the standstill of partitions that no worker reports, found by comparing the group with the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kafka_ratchet.app.status.group import REBALANCING, Group
from kafka_ratchet.app.status.model import NO_KAFKA, UNSERVED, PartitionView, StreamView
from kafka_ratchet.transport.stalls import STALLED_AFTER_S, Stall, StallCause

FORGOTTEN_AFTER_S: Final = 60.0
"""Seconds until `StandstillFinder` forgets that a worker has reported a partition."""


class StandstillFinder:
    """Finder of the causes of a standstill, for partitions that no worker reports.

    The first call reports each cause at once. If a worker has reported the partition in an earlier call, the cause is
    reported only after some time, because every restart of a worker leaves its partitions unserved for some seconds.
    """

    def __init__(self) -> None:
        self._served_at: dict[tuple[str, int], float] = {}
        self._since: dict[tuple[str, int], float] = {}

    def name(
        self, stream: StreamView, group: Group | None, silent: Mapping[str, str], now_s: float, unread: str = ""
    ) -> StreamView:
        """Return the stream, with the cause added to each unserved partition.

        Args:
            stream: stream with the stalls that workers report.
            group: consumer group of the workers; None: unknown.
            silent: reason for each worker without an answer, by address.
            now_s: seconds since 1970.
            unread: error of a failed attempt to read the group; None: the group was read
        """
        return replace(
            stream,
            partitions=[self._named(stream.input, row, group, silent, now_s, unread) for row in stream.partitions],
        )

    def _named(
        self,
        topic: str,
        row: PartitionView,
        group: Group | None,
        silent: Mapping[str, str],
        now_s: float,
        unread: str,
    ) -> PartitionView:
        key = topic, row.partition
        found = None if row.stalled is not None else stall_of_unserved(topic, row, group, silent, unread)
        if found is None:
            self._since.pop(key, None)
            self._served_at[key] = now_s
            return row
        since = self._since.setdefault(key, now_s)
        served_at = self._served_at.get(key, float("-inf"))
        if now_s - served_at < FORGOTTEN_AFTER_S and now_s - since < STALLED_AFTER_S:
            return row
        return replace(row, stalled=Stall(*found, since))


def stall_of_unserved(
    topic: str, row: PartitionView, group: Group | None, silent: Mapping[str, str], unread: str = ""
) -> tuple[StallCause, str] | None:
    """Return cause and sentence of a standstill; None if a worker serves the partition, or all is read."""
    place = f"{topic}, partition {row.partition}"
    if row.state == NO_KAFKA:
        return StallCause.NO_ANSWER, f"{place}: Kafka does not answer"
    if row.state != UNSERVED:
        return None
    if group is None:
        if not unread or not row.input_end:
            return None
        return StallCause.COORDINATOR, f"{place}: it is unknown which worker has the partition: {unread}"
    if row.input_end is None:
        return StallCause.NO_LEADER, f"{place}: it has no leader, so its end is unknown; and no worker reports it"
    if not row.lag:
        return None
    waiting = f"{place}: {row.lag:,} offsets wait, and "
    if group.strangers:
        return StallCause.STRANGERS, f"{waiting}others use the group: {group.strangers}; no worker can join"
    if group.state in REBALANCING:
        return StallCause.REBALANCE, f"{waiting}the group is sharing out its partitions ({group.state})"
    if silent:
        url, reason = sorted(silent.items())[0]
        return StallCause.WORKER_SILENT, f"{waiting}worker {url} of the group does not answer: {reason}"
    of = f"no worker of the group's {group.members} has the partition" if group.members else "no worker is in the group"
    return StallCause.NO_WORKER, f"{waiting}{of}"
