"""Progress bar and spinner, shown if rich is installed and standard error is a terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.log_lines import announced

if TYPE_CHECKING:
    from rich.progress import Progress

log = logging.getLogger("spark_sink")

TEXT = "{task.description}"
"""Template of a text column, as rich writes it."""


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar; yield a function that advances it by a number of steps."""
    with _shown(TEXT, "BarColumn", "MofNCompleteColumn", "TimeElapsedColumn", "TimeRemainingColumn") as bar:
        if bar is None:
            yield lambda _: None
            return
        task = bar.add_task(what, total=total)
        yield lambda steps: bar.update(task, advance=steps)


@contextmanager
def starting(what: str) -> Iterator[None]:
    """Announce a slow start: by a spinner with the seconds in a terminal, else by log lines."""
    with _shown("SpinnerColumn", TEXT, "TimeElapsedColumn", transient=True) as spinner:
        if spinner is not None:
            spinner.add_task(f"Starting {what}", total=None)
            yield
            return
        log.info("starting %s", what)
        with announced(f"starting {what}", log.info):
            yield


@contextmanager
def _shown(*columns: str, transient: bool = False) -> Iterator[Progress | None]:
    """Yield a display of rich with these columns; None: rich is missing, or standard error is no terminal.

    A column is `TEXT` or the name of one of rich's classes.
    """
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:  # rich is no dependency of a Spark cluster
        yield None
        return
    if not sys.stderr.isatty():
        yield None
        return
    parts = [progress.TextColumn(each) if each == TEXT else getattr(progress, each)() for each in columns]
    with progress.Progress(*parts, console=Console(stderr=True), transient=transient) as shown, _lines_above():
        yield shown


@contextmanager
def _lines_above() -> Iterator[None]:
    """Write log lines above the bar while the display is shown."""
    handlers = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.__stderr__
    ]
    # rich has put its own file in the place of sys.stderr, for other readers of it.
    before = [handler.setStream(sys.stderr) for handler in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, before, strict=True):
            if stream is not None:
                handler.setStream(stream)
