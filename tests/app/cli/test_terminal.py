from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from kafka_ratchet.app.cli.options import fitting

COLUMNS = ("Fresh", "Duplicate", "Position", "Changelog")
NUMBER = "123,456,789,012"


def draw(left_out: frozenset[str]) -> Table:
    table = Table()
    shown = [name for name in COLUMNS if name not in left_out]
    for name in shown:
        table.add_column(name, no_wrap=True)
    table.add_row(*[NUMBER] * len(shown))
    return table


@pytest.mark.parametrize(("width", "shown"), [(200, 4), (80, 4), (60, 3), (42, 2), (20, 2)])
def test_a_narrow_terminal_goes_without_what_is_missed_least(width: int, shown: int) -> None:
    console = Console(width=width, file=io.StringIO())
    table = fitting(console, draw, ["Changelog", "Position"])
    assert [column.header for column in table.columns] == list(COLUMNS[:shown])


def test_no_number_is_cut() -> None:
    out = io.StringIO()
    console = Console(width=60, file=out)
    console.print(fitting(console, draw, ["Changelog", "Position"]))
    assert out.getvalue().count(NUMBER) == 3
    assert "…" not in out.getvalue()
