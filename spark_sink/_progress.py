"""What the person who started the job sees of it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

log = logging.getLogger("spark_sink")


@dataclass(frozen=True)
class Committed:
    """One commit that went through."""

    number: int
    """From 1, within this run."""
    rows: int
    start: Mapping[int, int]
    end: Mapping[int, int]
    seconds: float

    @property
    def offsets(self) -> int:
        """How many offsets it moved on, over all partitions."""
        return sum(self.end.values()) - sum(self.start.values())


Report = Callable[[Committed], None]


@contextmanager
def progress(total: int) -> Iterator[Report]:
    """A bar where rich is installed and standard error is a terminal, else one log line for each commit.

    Args:
        total: offsets to read in this run, over all partitions.
    """
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
    except ImportError:  # rich is no dependency of a Spark cluster
        yield log_commit
        return
    if not sys.stderr.isatty():
        yield log_commit
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("Committing offsets", total=total)
        yield lambda committed: bar.update(
            task, advance=committed.offsets, description=f"Commit {committed.number}: {committed.rows:,} rows"
        )


def log_commit(committed: Committed) -> None:
    """One line for a commit."""
    moved = ", ".join(
        f"{partition}: {committed.start[partition]}-{offset}"
        for partition, offset in committed.end.items()
        if offset != committed.start[partition]
    )
    log.info("commit %d: %d rows in %.2f s, offsets %s", committed.number, committed.rows, committed.seconds, moved)
