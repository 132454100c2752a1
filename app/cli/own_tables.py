"""`ratchet tables NAME [KEY]`: shows a table of the user's agents in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from rich.console import RenderableType

    from kafka_ratchet.app.settings import Settings
    from kafka_ratchet.app.status.own_tables import TablePage, TableQuery, TableValue


def asked_of(key: str | None, key_hex: str | None, after: str | None, limit: str | None) -> TableQuery:
    """Return the query that the command line's options make; each is None if not given.

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
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from kafka_ratchet.app.status.own_tables import window_text

    for problem in page.problems:
        yield Text(f"▲ {problem}", "yellow")
    if page.not_asked:
        yield Text(f"▲ no worker can answer now for partitions {', '.join(map(str, page.not_asked))}", "yellow")
    if not page.entries:
        what = "has any key" if query.after is None else "has a key after that one"
        of = what if query.lists else "has this key"
        yield Text(f"None of the {len(page.partitions)} partitions that answered {of}.")
        return
    table = Table(
        title=Text(
            f"{page.table}, {'global' if page.stream is None else f'of stream {page.stream}'}: committed values"
        ),
        title_justify="left",
        box=box.SIMPLE,
    )
    has_windows = any(entry.window is not None for entry in page.entries)
    table.add_column("Key")
    if has_windows:
        table.add_column("Window, UTC")
    table.add_column("Partition", justify="right")
    table.add_column("Value")
    for entry in page.entries:
        for row in entry.values:
            window = [window_text(entry.window)] if has_windows else []
            table.add_row(Text(as_text(entry.key)), *window, str(row.partition), Text(value_text(row)))
    yield table
    if page.next is not None:
        yield Text(f"More: --after {page.next}")


def value_text(row: TableValue) -> str:
    """Return a table's value as JSON text; for a long value, its beginning and its size."""
    from kafka_ratchet.app.status.producers import shown

    if row.excerpt is None:
        return as_text(row.value)
    return f"{shown(row.excerpt.encode())} … ({row.bytes:,} bytes)"


def as_text(value: Any) -> str:
    """Return a key or value as JSON, with unprintable characters escaped for the terminal."""
    import msgspec

    from kafka_ratchet.app.status.producers import shown

    return shown(msgspec.json.encode(value))
