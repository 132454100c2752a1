"""`ratchet tables`: the content of the page in the terminal; with a NAME, a table of one's own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from kafka_ratchet.app.cli.options import Config, Json, Stream, figure, fitting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType
    from rich.table import Table

    from kafka_ratchet.app.settings import Settings
    from kafka_ratchet.app.status.model import Lookup, Overview, StreamView

FIGURES = {
    "Fresh": "fresh",
    "Duplicate": "duplicate",
    "Invalid": "invalid",
    "Too late": "late",
    "Conflict": "conflict",
    "Missing": "missing",
    "Keys": "keys",
    "Evicted": "evicted",
    "Position": "input_position",
    "End": "input_end",
    "Lag": "lag",
    "Blocked": "blocked",
    "Changelog": "changelog_position",
}
"""Header and field of each column of figures."""

SUMMED = frozenset(
    {"fresh", "duplicate", "invalid", "late", "conflict", "missing", "keys", "evicted", "lag", "blocked"}
)
SELDOM = ("evicted", "late", "conflict", "blocked")
"""Columns shown only for streams with such values."""
LEAST_FIRST = ("changelog_position", "worker", "input_end", "evicted", "keys", "input_position", "invalid")
"""Columns that a narrow terminal leaves out, in this order; --json has all of them."""


def tables(
    name: Annotated[str | None, typer.Argument(help="A table of your agents, not of last sequences.")] = None,
    key: Annotated[
        str | None, typer.Argument(help="One of its keys, as text or as JSON. Without it: its keys, a page of them.")
    ] = None,
    config: Config = None,
    stream: Stream = None,
    identity: Annotated[
        list[str] | None,
        typer.Option(help="Look up this identity, given as text; one of several parts by one option for each."),
    ] = None,
    identity_hex: Annotated[str | None, typer.Option(help="The same, given in hex.")] = None,
    sequence: Annotated[
        str | None,
        typer.Option(help="Also say the verdict on a record with this sequence: fresh, duplicate or unknown."),
    ] = None,
    key_hex: Annotated[
        str | None, typer.Option(help="The key in hex: its bytes in the table, which are JSON unless they are bytes.")
    ] = None,
    after: Annotated[str | None, typer.Option(help="List the keys that come after this one (in hex).")] = None,
    limit: Annotated[str | None, typer.Option(help="Keys of one page, at most 500; 100 by default.")] = None,
    json: Json = False,
) -> None:
    """Show partitions, positions and counters of all streams, the last sequences of one identity, or a table.

    Without NAME it is about the streams' last sequences. NAME is always a table of the agents, never a stream.
    """
    import asyncio

    import msgspec
    from rich.console import Console

    from kafka_ratchet.app import settings as all_settings
    from kafka_ratchet.app.cli import own_tables
    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.status.cluster_view import lookup
    from kafka_ratchet.app.status.lookup import QueryError, parse_parts, parse_sequence

    settings = all_settings.load(config)
    # A table may be of an internal stream, which the settings need not have: the workers know.
    chosen = settings.stream(stream)[0] if stream is not None and name is None else stream
    asks_identity = bool(identity) or identity_hex is not None or sequence is not None
    console = Console()
    if name is None and (key_hex or after or limit):
        raise QueryError("--key-hex, --after and --limit work only with a table of your agents. Name the table first")
    if name is not None and asks_identity:
        raise QueryError("a table of your agents and an identity are both named. Ask for one of them")
    if name is not None:
        query = own_tables.asked_of(key, key_hex, after, limit)
        with named_broker(settings) as bootstrap:
            page = asyncio.run(own_tables.ask(bootstrap, settings, name, chosen, query))
        body, shown = msgspec.json.encode(page), own_tables.render(page, query)
    elif asks_identity:
        kind = settings.stream(stream)[1].identity
        wanted, number = parse_parts(kind, identity or [], identity_hex), parse_sequence(sequence)
        with named_broker(settings) as bootstrap:
            found = asyncio.run(lookup(bootstrap, settings, chosen, wanted, number))
        body, shown = msgspec.json.encode(found), _render_lookup(found)
    else:
        with named_broker(settings) as bootstrap:
            overview = asyncio.run(_overview(bootstrap, settings, chosen))
        body, shown = msgspec.json.encode(overview), _render_overview(overview, console)
    if json:
        typer.echo(body.decode())
    else:
        for part in shown:
            console.print(part)


async def _overview(bootstrap: str, settings: Settings, stream: str | None) -> Overview:
    import dataclasses

    from kafka_ratchet.app.status.cluster_view import ClusterView

    async with ClusterView(bootstrap, settings) as cluster_view:
        overview = await cluster_view.overview()
    shown = [view for view in overview.streams if stream in (None, view.stream)]
    return dataclasses.replace(overview, streams=shown)


def _render_overview(overview: Overview, console: Console) -> Iterator[RenderableType]:
    from rich.text import Text

    for problem in overview.problems:
        yield Text(f"▲ {problem}", "yellow")
    for worker in overview.workers:
        if worker.error is not None:
            yield Text(f"■ worker {worker.url} does not answer: {worker.error}", "red")
    for stream in overview.streams:
        yield fitting(console, partial(_stream_table, stream), LEAST_FIRST)
        if stream.is_switched_off:
            yield Text(f"▲ deduplication is off ({stream.origin}): everything is forwarded unjudged", "yellow")
        elif stream.deduplicate is False:
            yield Text(f"Deduplication is off ({stream.origin}), as the settings have it.")
        if not stream.window.startswith("Identities") or stream.sequence == "none":
            yield Text(stream.window)
        if stream.totals.unjudged and stream.setting is not False:
            yield Text(
                f"▲ {stream.totals.unjudged:,} records were forwarded unjudged, in addition to the fresh ones", "yellow"
            )
        for row in stream.partitions:
            if row.error is not None:
                yield Text(f"■ {stream.input}-{row.partition}: {row.error}", "red")
            if row.stalled is not None and not (row.error and row.error in row.stalled.text):
                yield Text(f"■ stands still ({row.stalled.cause}): {row.stalled.text}", "red")


def _stream_table(stream: StreamView, left_out: frozenset[str]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(f"{stream.stream}: {stream.input} → {stream.output}, identity {stream.identity}"),
        title_justify="left",
        show_footer=True,
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    left_out |= {name for name in SELDOM if not getattr(stream.totals, name)}
    if stream.totals.missing is None:
        left_out |= {"missing"}
    figures = {header: name for header, name in FIGURES.items() if name not in left_out}
    table.add_column("", "all")
    table.add_column("State", no_wrap=True)
    for header, name in figures.items():
        total = figure(getattr(stream.totals, name)) if name in SUMMED else ""
        table.add_column(header, total, justify="right", no_wrap=True)
    if "worker" not in left_out:
        table.add_column("Worker", no_wrap=True)
    for row in stream.partitions:
        worker = [] if "worker" in left_out else [Text(row.worker or "–")]
        cells = (figure(getattr(row, name)) for name in figures.values())
        table.add_row(str(row.partition), Text(row.state), *cells, *worker)
    return table


def _render_lookup(found: Lookup) -> Iterator[RenderableType]:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    for problem in found.problems:
        yield Text(f"▲ {problem}", "yellow")
    if found.not_asked:
        yield Text(f"▲ no worker can answer now for partitions {', '.join(map(str, found.not_asked))}", "yellow")
    if not found.partitions:
        yield Text(f"None of the {len(found.asked)} partitions that answered knows this identity.")
        return
    table = Table(
        title=f"{found.stream}: identity {found.identity_hex or '(none)'} (hex)", title_justify="left", box=box.SIMPLE
    )
    for name in ("Partition", "Last persisted", "Last pushed"):
        table.add_column(name, justify="right")
    if found.sequence is not None:
        table.add_column(f"{found.sequence} would be")
    table.add_column("Worker")
    for row in found.partitions:
        verdict = [] if found.sequence is None else [str(row.verdict)]
        table.add_row(str(row.partition), figure(row.persisted), figure(row.pushed), *verdict, Text(row.worker))
    yield table
