"""Declarations of table columns; the terminal and the page draw the same ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

RowT = TypeVar("RowT")

Kind = Literal["number", "seconds", "share", "text", "name", "worker", "state", "verdict"]
"""Format of a column's values. name: a text that may be long, in a font of fixed width on the page."""
NUMBERS: Final = frozenset({"number", "seconds", "share"})
NOT_KNOWN: Final = "–"
"""Text of an unknown value."""


@dataclass(frozen=True)
class Column(Generic[RowT]):
    """Column of a table.

    Attributes:
        name: name of the column for `left_out`; if `value` is None, also the row's attribute with the value.
        heading: heading of the column, with the unit if the values have one.
        kind: format of the values.
        value: function that returns the value of a row, or None for an unknown one.
        note: function of the row that returns a short text to show after the value; "" for none.
        is_bad: True to mark values above 0 on the page.
        is_summed: True if the column has a total.
        is_shown: function of the total that returns True to show the column; None: show it always.
        is_row_heading: True if the page draws the column's cells as headings of their rows.
    """

    name: str
    heading: str
    kind: Kind = "number"
    value: Callable[[RowT], Any] | None = None
    note: Callable[[RowT], str] = lambda row: ""
    is_bad: bool = False
    is_summed: bool = False
    is_shown: Callable[[Any], bool] | None = None
    is_row_heading: bool = False

    @property
    def is_number(self) -> bool:
        """Return True if the column has numbers, which are aligned to the right."""
        return self.kind in NUMBERS

    def of(self, row: RowT) -> Any:
        """Return the column's value in a row; None: not known."""
        return getattr(row, self.name) if self.value is None else self.value(row)

    def text(self, value: Any) -> str:
        """Return a value of this column as text."""
        if value is None:
            return NOT_KNOWN
        if self.kind == "number":
            return f"{value:,}"
        if self.kind == "seconds":
            return f"{value:,.1f}"
        if self.kind == "share":
            return f"{value:.1%}"
        return str(value)


def shown_columns(
    columns: Iterable[Column[RowT]], totals: object, left_out: Collection[str] = ()
) -> list[Column[RowT]]:
    """Return the columns to draw.

    Args:
        columns: all columns
        totals: object with a total in an attribute of each summed column's name
        left_out: names of columns to omit
    """
    return [
        column
        for column in columns
        if column.name not in left_out and (column.is_shown is None or column.is_shown(getattr(totals, column.name)))
    ]


def terminal_table(
    title: Text | str,
    columns: Sequence[Column[RowT]],
    rows: Iterable[RowT],
    totals: object = None,
    *,
    notes: bool = True,
) -> Table:
    """Draw a table for the terminal.

    Args:
        title: title of the table.
        columns: columns in their order.
        rows: rows in their order.
        totals: object with a total in an attribute of each summed column's name, for a last line; None: no last line.
        notes: True to write the notes after their values, in parentheses.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title, title_justify="left", show_footer=totals is not None, box=box.SIMPLE, padding=(0, 1, 0, 0)
    )
    for place, column in enumerate(columns):
        total = column.text(getattr(totals, column.name)) if totals is not None and column.is_summed else ""
        table.add_column(
            column.heading,
            "all" if place == 0 and totals is not None else total,
            justify="right" if column.is_number else "left",
            overflow="fold" if column.kind == "name" else "ellipsis",
            no_wrap=column.kind not in ("name", "text"),
        )
    for row in rows:
        cells = []
        for column in columns:
            note = column.note(row) if notes else ""
            cells.append(Text(column.text(column.of(row)) + (f" ({note})" if note else "")))
        table.add_row(*cells)
    return table
