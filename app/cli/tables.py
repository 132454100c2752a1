"""`ratchet tables`: shows partitions and counters of the streams; with NAME, a table of the agents."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from kafka_ratchet.app.cli.options import Config, Json, Stream, fitting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType
    from rich.table import Table

    from kafka_ratchet.app.settings import Settings
    from kafka_ratchet.app.status.model import Lookup, Overview, StreamView

LEAST_FIRST = ("changelog_position", "worker", "input_end", "evicted", "keys", "input_position", "invalid")
"""Columns to leave out in a narrow terminal, in this order; --json has all columns."""


def tables(
    name: Annotated[
        str | None, typer.Argument(help="Table of your agents. Default: the streams and their last sequences.")
    ] = None,
    key: Annotated[
        str | None, typer.Argument(help="Key of the table, as text or as JSON. Default: a page of all keys.")
    ] = None,
    config: Config = None,
    stream: Stream = None,
    identity: Annotated[
        list[str] | None,
        typer.Option(
            help="Look up this identity, given as text. If it has several parts, give the option once for each."
        ),
    ] = None,
    identity_hex: Annotated[str | None, typer.Option(help="Look up this identity, given in hex.")] = None,
    sequence: Annotated[
        str | None,
        typer.Option(help="Also show the verdict on a record with this sequence: fresh, duplicate or unknown."),
    ] = None,
    key_hex: Annotated[
        str | None,
        typer.Option(
            help="The key in hex, as the table stores it. A table stores every key as JSON, except keys of type bytes."
        ),
    ] = None,
    after: Annotated[str | None, typer.Option(help="List the keys that come after this one (in hex).")] = None,
    limit: Annotated[str | None, typer.Option(help="Keys of one page, at most 500; 100 by default.")] = None,
    json: Json = False,
) -> None:
    """Show partitions, positions and counters of all streams, the last sequences of one identity, or a table.

    NAME is a table of the agents, never a stream. Without it, the command shows the streams and their last sequences.
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
        raise QueryError("a table of your agents and an identity are both named. Remove one of the two")
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
        body, shown = msgspec.json.encode(found.as_dict()), _render_lookup(found)
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

    from kafka_ratchet.app.inspect.streams import partition_notices, stream_notices

    for problem in overview.problems:
        yield Text(f"▲ {problem}", "yellow")
    for worker in overview.workers:
        if worker.error is not None:
            yield Text(f"■ worker {worker.url} does not answer: {worker.error}", "red")
    for stream in overview.streams:
        yield fitting(console, partial(_stream_table, stream), LEAST_FIRST)
        for notice in stream_notices(stream):
            yield Text(notice.text) if notice.tone == "quiet" else Text(f"▲ {notice.text}", "yellow")
        for row in stream.partitions:
            for said in partition_notices(row):
                yield Text(f"■ {said}", "red")


def _stream_table(stream: StreamView, left_out: frozenset[str]) -> Table:
    from rich.text import Text

    from kafka_ratchet.app.inspect.columns import shown_columns, terminal_table
    from kafka_ratchet.app.inspect.streams import TERMINAL_COLUMNS

    title = Text(f"{stream.stream}: {stream.input} → {stream.output}, identity {stream.identity}")
    columns = shown_columns(TERMINAL_COLUMNS, stream.totals, left_out)
    return terminal_table(title, columns, stream.partitions, stream.totals, notes=False)


def _render_lookup(found: Lookup) -> Iterator[RenderableType]:
    from rich.text import Text

    from kafka_ratchet.app.inspect.columns import terminal_table
    from kafka_ratchet.app.inspect.lookup import identity_columns, no_partition, silent_partitions

    for problem in found.problems:
        yield Text(f"▲ {problem}", "yellow")
    if found.not_asked:
        yield Text(f"▲ {silent_partitions(found.not_asked)}", "yellow")
    if not found.partitions:
        yield Text(no_partition(found))
        return
    title = f"{found.stream}: identity {found.identity_hex or '(none)'} (hex)"
    yield terminal_table(title, identity_columns(found.sequence), found.partitions)
