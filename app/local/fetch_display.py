"""Display of progress while jars are fetched: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class FetchDisplay(Protocol):
    """Interface of the display. Ivy first finds every module, and then fetches the jars.

    Names come as Ivy writes them: organisation#module;revision, followed by !file for a fetched jar.
    """

    def found(self, module: str) -> None:
        """Count one more module description that Ivy has read."""

    def fetched(self, jar: str) -> None:
        """Count one more jar that Ivy has fetched."""


@contextmanager
def fetch_display(title: str, jars: int, console: Console) -> Iterator[FetchDisplay]:
    """Yield a display of the progress on a console. jars: expected number of jars."""
    if not console.is_terminal:
        yield _Lines(console, title, jars)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    name = TextColumn("{task.fields[name]}", style="dim", markup=False)
    with Progress(*columns, name, console=console, transient=True) as progress:
        yield _Bar(progress, title, jars)
    console.print(f"{title}: done")


class _Bar:
    def __init__(self, progress: Progress, title: str, jars: int) -> None:
        self._progress = progress
        # Finding one takes as long as fetching its jar, so each of the two is a step.
        self._task = progress.add_task(title, total=2 * jars, name="")

    def found(self, module: str) -> None:
        self._progress.update(self._task, advance=1, name=f"found {_short(module)}")

    def fetched(self, jar: str) -> None:
        self._progress.update(self._task, advance=1, name=f"fetched {_short(jar)}")


class _Lines:
    def __init__(self, console: Console, title: str, jars: int) -> None:
        self._console, self._jars = console, jars
        self._found = self._fetched = 0
        self._say(f"{title} ({jars}), once")

    def found(self, module: str) -> None:
        self._found += 1
        if self._found % 10 == 0:
            self._say(f"  found {self._found} of {self._jars}: {_short(module)}")

    def fetched(self, jar: str) -> None:
        self._fetched += 1
        self._say(f"  fetched {self._fetched} of {self._jars}: {_short(jar)}")

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def _short(name: str) -> str:
    """Return the readable part of an Ivy name, such as "kafka-clients 4.3.0"."""
    return name.partition("#")[2].partition("!")[0].replace(";", " ")
