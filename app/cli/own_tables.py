"""`ratchet tables NAME [KEY]`: shows a table of the user's agents in the terminal.

Separate module: without NAME the command answers another question, about streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from kafka_ratchet.app.settings import Settings
    from kafka_ratchet.app.status.own_tables import TablePage, TableQuery


def asked_of(key: str | None, key_hex: str | None, after: str | None, limit: str | None) -> TableQuery:
    """Return the query of a table from the command line's options. An omitted option is None.

    Raises:
        QueryError: an option is invalid.
    """
    from kafka_ratchet.app.status.own_tables import parse_table_query

    typed = {"key": '""' if key == "" else key, "hex": key_hex, "after": after, "limit": limit}
    return parse_table_query({name: text for name, text in typed.items() if text is not None})


async def ask(bootstrap: str, settings: Settings, table: str, stream: str | None, query: TableQuery) -> TablePage:
    """Request a page of a table from all workers, and return it. stream: None: any stream with such a table."""
    from kafka_ratchet.app.status.cluster_view import ClusterView

    async with ClusterView(bootstrap, settings) as cluster_view:
        return await cluster_view.own_table(table, stream, query)


def render(page: TablePage, query: TableQuery) -> Iterator[RenderableType]:
    """Yield the parts of a table's page for the terminal."""
    from rich.text import Text

    from kafka_ratchet.app.inspect.columns import terminal_table
    from kafka_ratchet.app.inspect.own_tables import (
        COMMITTED,
        no_entries,
        rows_of,
        silent_notice,
        terminal_columns,
    )

    for problem in page.problems:
        yield Text(f"▲ {problem}", "yellow")
    if silent := silent_notice(page):
        yield Text(f"▲ {silent}", "yellow")
    if not page.entries:
        yield Text(no_entries(page, has_key=not query.lists, has_after=query.after is not None))
        return
    title = f"{page.table}, {'global' if page.stream is None else f'of stream {page.stream}'}: {COMMITTED}"
    yield terminal_table(Text(title), terminal_columns(page), rows_of(page))
    if page.next is not None:
        yield Text(f"More: --after {page.next}")
