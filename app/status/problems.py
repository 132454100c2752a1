"""What a look at the cluster finds wrong, in sentences for the page and for commands."""

from __future__ import annotations

from collections.abc import Sequence

from kafka_ratchet.app.names import repartition_topic
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.answers import WorkerStatus
from kafka_ratchet.app.status.group import REBALANCING, Group
from kafka_ratchet.app.status.inputs import never_had_a_record
from kafka_ratchet.app.status.model import KnownIdentity, StreamView


def about_group(settings: Settings, group: Group | None, urls: Sequence[str]) -> list[str]:
    """What is wrong with the settings and with the group as a whole. urls: of its workers."""
    said = []
    if not settings.streams:
        said.append("the settings name no streams: add a [streams.NAME] section to the settings file")
    if group is not None and group.state in REBALANCING:
        said.append("the workers are sharing out the partitions anew; figures are right in a moment")
    elif group is not None and not urls:
        state = f"{group.members} members without a status address" if group.members else "no members"
        said.append(
            f"no worker is alive (group {settings.app!r} has {state}); below is what Kafka itself knows. "
            "Start one with: ratchet worker"
        )
    return said


def about_input(view: StreamView) -> list[str]:
    """The problem of a stream whose input has never had a record."""
    is_empty = bool(view.partitions) and all(row.input_end == 0 for row in view.partitions)
    is_internal = view.input.endswith(repartition_topic("", view.stream))
    return [never_had_a_record(view.stream, view.input)] if is_empty and not is_internal else []


def about_late(rows: Sequence[KnownIdentity], sequence: int | None, window: int) -> list[str]:
    """The sentence for each partition where nobody knows any more whether a sequence came."""
    return [
        f"partition {row.partition}: sequence {sequence} is more than {window:,} (reorder_window) below the last one, "
        f"{max(row.persisted or 0, row.pushed or 0)}: it is too late to tell whether it came. Sent again it would "
        "not be forwarded"
        for row in rows
        if row.verdict == "too-late"  # so there is a last one, and it is not negative
    ]


def about_invalid(worker: WorkerStatus) -> list[str]:
    """The problem of each partition whose share of invalid records has jumped."""
    return [
        f"stream {table.stream}, partition {status.partition}: {status.recent.invalid:,} of {status.recent.judged:,} "
        f"records within the last minute were invalid ({status.recent.now:.1%}; before: {status.recent.before:.1%}). "
        f"Why: ratchet dead-letters list --stream {table.stream}, or the header ratchet-reason of each in "
        f"{table.dead_letters}"
        for table in worker.tables
        for status in table.partitions
        if status.recent.has_jumped
    ]
