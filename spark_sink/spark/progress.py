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
    rejects: int = 0

    @property
    def offsets(self) -> int:
        """How many offsets it moved on, over all partitions."""
        return sum(self.end.values()) - sum(self.start.values())


Report = Callable[[Committed], None]


@contextmanager
def progress(total: int) -> Iterator[Report]:
    """One log line for each commit; below them a bar, where rich is installed and standard error is a terminal.

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
    with Progress(*columns, console=Console(stderr=True)) as bar, _lines_above():
        task = bar.add_task("Committing offsets", total=total)

        def report(committed: Committed) -> None:
            log_commit(committed)
            bar.update(task, advance=committed.offsets)

        yield report


@contextmanager
def starting(what: str) -> Iterator[None]:
    """Say that something takes its time to start: with the seconds, in a terminal; else in one log line."""
    try:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ImportError:
        shown = False
    else:
        shown = sys.stderr.isatty()
    if not shown:
        log.info("starting %s", what)
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as spinner, _lines_above():
        spinner.add_task(f"Starting {what}", total=None)
        yield


@contextmanager
def _lines_above() -> Iterator[None]:
    """While a bar is there, log lines go through it: they stand above it, and do not run into it."""
    handlers = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.__stderr__
    ]
    # rich has put a file of its own in the place of sys.stderr, for those who look there now.
    before = [handler.setStream(sys.stderr) for handler in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, before, strict=True):
            if stream is not None:
                handler.setStream(stream)


def log_commit(committed: Committed) -> None:
    """One line for a commit."""
    log.info(
        "commit %d: %d rows, %d rejects in %.2f s, offsets %s",
        committed.number,
        committed.rows,
        committed.rejects,
        committed.seconds,
        ranges(committed.start, committed.end),
    )


def ranges(start: Mapping[int, int], end: Mapping[int, int]) -> str:
    """From where to where, of the partitions that move."""
    return ", ".join(f"{p}: {start[p]}-{offset}" for p, offset in end.items() if offset != start[p])
