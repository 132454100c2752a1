"""Division of long tables into pages. The JSON form of an address has all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from kafka_ratchet.app.status.lookup import QueryError

PAGE_ROWS: Final = 50

Row = TypeVar("Row")


class Paged(NamedTuple, Generic[Row]):
    """Rows on one page of a table. page: number of the page, from 1; pages: number of pages, at least 1."""

    rows: list[Row]
    page: int
    pages: int


def paged(rows: Sequence[Row], asked: Mapping[str, str]) -> Paged[Row]:
    """Return the rows of the requested page, by default the first.

    Args:
        rows: all rows of the table
        asked: parameters of the address; `page` is the requested page, from 1

    Raises:
        QueryError: the page does not exist.
    """
    pages = max(1, -(-len(rows) // PAGE_ROWS))
    text = asked.get("page") or "1"
    if not (text.isascii() and text.isdigit() and len(text) < 8 and 1 <= int(text) <= pages):
        raise QueryError(f"page must be a number from 1 to {pages}")
    page = int(text)
    return Paged([*rows[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]], page, pages)
