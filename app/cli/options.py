"""Options that several commands share, and the choice of columns that fit the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kafka_ratchet.app.partitioner import Partitioner

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Settings file (TOML). Default: RATCHET_CONFIG, else ratchet.toml."),
]
Stream = Annotated[
    str | None, typer.Option("--stream", help="Name of the stream. May be left out if the settings have only one.")
]
FromInput = Annotated[
    bool,
    typer.Option(
        "--from-input",
        help="Read the stream's input, and let Spark deduplicate it, as with from_input = true in the sink's section.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON at the end, for scripts.")]
WhichPartitioner = Annotated[
    Partitioner,
    typer.Option(
        "--partitioner",
        help="Partitioner of the producers for keys. murmur2: Java's producers; crc32: librdkafka and Ratchet.",
    ),
]


if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

UNLIMITED: Final = 10_000
"""Width in characters, greater than the width of any table."""


def fitting(console: Console, draw: Callable[[frozenset[str]], Table], least_first: Sequence[str]) -> Table:
    """Return the table with as many columns as fit the terminal's width.

    Args:
        console: console with the terminal's width
        draw: function that makes the table, given the names of columns to omit
        least_first: names of the columns that may be omitted, the least important first
    """
    from rich.measure import Measurement

    without_limit = console.options.update(width=UNLIMITED)  # else a table says that it fits
    for count in range(len(least_first)):
        table = draw(frozenset(least_first[:count]))
        if Measurement.get(console, without_limit, table).maximum <= console.width:
            return table
    return draw(frozenset(least_first))


def figure(number: int | None) -> str:
    """Return a number as text with thousands separators, and None, an unknown number, as a dash."""
    return "–" if number is None else f"{number:,}"
