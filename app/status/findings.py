"""What is wrong, each with its way on: a page that says more, and a command to copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kafka_ratchet.app.status.model import Overview, StreamView

LAG_LONG_S: Final = 60.0
"""A partition that is further behind is worth a sentence."""


@dataclass(frozen=True, slots=True)
class Finding:
    """is_bad: somebody has to do something. page: an address; command: to copy."""

    text: str
    is_bad: bool = False
    page: str | None = None
    command: str | None = None


def findings(overview: Overview) -> list[Finding]:
    """What is wrong, the worst first."""
    found = [
        *(each for stream in overview.streams for each in _of_stream(stream)),
        *(
            Finding(f"worker {worker.url} does not answer: {worker.error}", is_bad=True, page="/workers")
            for worker in overview.workers
            if worker.error is not None
        ),
        *(Finding(text) for text in overview.problems),
    ]
    for sink in overview.sinks:
        if sink.error:
            command = "ratchet sink status"
            found.append(Finding(f"sink {sink.name}: {sink.error}", True, f"/sinks/{sink.name}", command))
    return sorted(found, key=lambda each: not each.is_bad)


def _of_stream(stream: StreamView) -> Iterator[Finding]:
    name, page = stream.stream, f"/streams/{stream.stream}"
    halted = [row for row in stream.partitions if row.state == "halted"]
    if halted:
        first = halted[0]
        yield Finding(
            f"stream {name}: {_partitions([row.partition for row in halted])} halted: {first.error}",
            is_bad=True,
            page=f"{page}?state=halted",
            command=f"ratchet resume --stream {name} --partition {first.partition}",
        )
    retrying = [row for row in stream.partitions if row.state == "retrying"]
    if retrying:
        numbers = _partitions([row.partition for row in retrying])
        yield Finding(f"stream {name}: {numbers} start again: {retrying[0].error}", page=f"{page}?state=retrying")
    behind = [row for row in stream.partitions if (row.lag_s or 0) > LAG_LONG_S]
    if behind:
        worst = max(behind, key=lambda row: row.lag_s or 0)
        yield Finding(
            f"stream {name}: {_partitions([row.partition for row in behind])} lag by more than {LAG_LONG_S:.0f} s; "
            f"partition {worst.partition} by {worst.lag_s:,.0f} s",
            page=f"{page}?sort=lag",
        )
    if stream.deduplicate is False:
        yield Finding(
            f"stream {name}: deduplication is off ({stream.origin}); duplicates pass",
            page="/policy",
            command=f"ratchet policy set on --stream {name}",
        )


def _partitions(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5:,} more" if len(numbers) > 5 else "")
    return f"partition{'s' * (len(numbers) > 1)} {shown}"
