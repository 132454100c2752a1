"""Streams and their partitions: columns and sentences for `ratchet tables` and the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from kafka_ratchet.app.inspect.columns import Column
from kafka_ratchet.app.status.model import PartitionView, StreamView
from kafka_ratchet.rule.verdicts import CONTENT_DIFFERS, DUPLICATE, FRESH, HEADINGS, INVALID, TOO_LATE
from kafka_ratchet.transport.lane_spec import LaneState


def _is_known(total: int | None) -> bool:
    return total is not None


def _unjudged(row: PartitionView) -> str:
    return f"and {row.unjudged:,} unjudged" if row.unjudged else ""


def _changelog_end(row: PartitionView) -> str:
    is_behind = row.changelog_end is not None and row.changelog_position != row.changelog_end
    return f"of {row.changelog_end:,}" if is_behind else ""


def _other_workers(row: PartitionView) -> str:
    return f"also {', '.join(row.also_reported_by)}" if row.also_reported_by else ""


PARTITION: Final = Column[PartitionView]("partition", "Partition", "text", is_row_heading=True)
STATE: Final = Column[PartitionView]("state", "State", "state")
COUNTS: Final = (
    Column[PartitionView]("fresh", HEADINGS[FRESH], note=_unjudged, is_summed=True),
    Column[PartitionView]("duplicate", HEADINGS[DUPLICATE], is_summed=True),
    Column[PartitionView]("invalid", HEADINGS[INVALID], is_bad=True, is_summed=True),
)
SELDOM: Final = (
    Column[PartitionView]("late", HEADINGS[TOO_LATE], is_summed=True, is_shown=bool),
    Column[PartitionView]("conflict", HEADINGS[CONTENT_DIFFERS], is_bad=True, is_summed=True, is_shown=bool),
    Column[PartitionView]("missing", "Missing", is_bad=True, is_summed=True, is_shown=_is_known),
)
KEYS: Final = Column[PartitionView]("keys", "Keys", is_summed=True)
EVICTED: Final = Column[PartitionView]("evicted", "Evicted", is_summed=True, is_shown=bool)
POSITION: Final = Column[PartitionView]("input_position", "Position")
END: Final = Column[PartitionView]("input_end", "End")
LAG: Final = Column[PartitionView]("lag", "Lag", is_summed=True)
LAG_S: Final = Column[PartitionView]("lag_s", "Lag, s", "seconds")
BLOCKED: Final = Column[PartitionView]("blocked", "Blocked", is_bad=True, is_summed=True, is_shown=bool)
CHANGELOG: Final = Column[PartitionView]("changelog_position", "Changelog", note=_changelog_end)
WORKER: Final = Column[PartitionView]("worker", "Worker", "worker", note=_other_workers)
STANDBYS: Final = Column[PartitionView]("standbys", "Standby", "worker", lambda row: ", ".join(row.standbys) or "none")

TERMINAL_COLUMNS: Final = (
    PARTITION,
    STATE,
    *COUNTS,
    *SELDOM,
    KEYS,
    EVICTED,
    POSITION,
    END,
    LAG,
    BLOCKED,
    CHANGELOG,
    WORKER,
)
"""Columns in the terminal; totals are the table's last line."""
PAGE_COLUMNS: Final = (PARTITION, STATE, *COUNTS, KEYS, EVICTED, POSITION, END, LAG, CHANGELOG, WORKER)
STREAM_COLUMNS: Final = (PARTITION, STATE, LAG, LAG_S)
STREAM_COLUMNS_AFTER_CHART: Final = (WORKER, STANDBYS, POSITION, END, *COUNTS)
"""Columns after the chart of the lag, on the page of one stream."""


class Notice(NamedTuple):
    """Sentence about a stream, to show above its table. tone: urgency, which determines its colour."""

    tone: Literal["bad", "warning", "quiet"]
    text: str


def stream_notices(stream: StreamView) -> Iterator[Notice]:
    """Yield the sentences about a stream's deduplication policy, and about limits of the shown numbers."""
    if stream.is_switched_off:
        yield Notice("warning", f"Deduplication is off ({stream.origin}): everything is forwarded unjudged.")
    elif stream.deduplicate is False:
        yield Notice("quiet", f"Deduplication is off ({stream.origin}), as the settings have it.")
    elif stream.origin and stream.origin != "default":
        yield Notice("quiet", f"Deduplication is on ({stream.origin}).")
    if stream.totals.unknown:
        yield Notice(
            "quiet",
            f"{stream.totals.unknown} of {len(stream.partitions)} partitions have no worker that reports their "
            "counts; the sums leave them out.",
        )
    if stream.window and not stream.window.startswith("Identities"):
        yield Notice("quiet", stream.window)
    elif stream.window and stream.sequence == "none":
        yield Notice("warning", f"{stream.window} The state grows with the input.")
    if stream.totals.unjudged and stream.setting is not False:
        text = f"{stream.totals.unjudged:,} records were forwarded unjudged, in addition to the fresh ones."
        yield Notice("warning", text)


def partition_notices(row: PartitionView) -> list[str]:
    """Return the sentences about a partition: its error, and the cause of its standstill."""
    said = [f"Partition {row.partition}: {row.error}"] if row.error is not None else []
    if row.stalled is not None and row.state != LaneState.HALTED:
        said.append(f"Partition {row.partition} stands still ({row.stalled.cause}): {row.stalled.text}")
    return said
