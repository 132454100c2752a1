"""`ratchet producers`: lists producers with their progress, and their share of records sent twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kafka_ratchet.app.cli.options import Config, Json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from kafka_ratchet.app.settings import Settings
    from kafka_ratchet.app.status.producers import ProducersPage


def producers(
    stream: Annotated[str | None, typer.Option(help="Only the producers of this stream's input.")] = None,
    after: Annotated[str | None, typer.Option(help="List the names that come after this one (in hex).")] = None,
    limit: Annotated[str | None, typer.Option(help="Names per topic, at most 500.")] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """List the producers, with their published records and those received by the workers.

    Published: the last sequence that Kafka has acknowledged, as the producer itself keeps it in Kafka.

    Persisted: the highest sequence in a committed transaction. Pushed: the highest one in any transaction. Only
    streams with identity producer have these two.

    Last seen, Share of duplicates: counted by the partition's worker since it got the partition.
    """
    import asyncio

    import msgspec
    from rich.console import Console

    from kafka_ratchet.app.inspect.producers import ProducersByTopic
    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.settings import load
    from kafka_ratchet.app.status.lookup import parse_identity, parse_limit

    settings = load(config)
    if stream is not None:
        settings.stream(stream)
    behind = parse_identity(None, after) if after else None
    most = parse_limit(limit)
    with named_broker(settings) as bootstrap:
        pages = asyncio.run(_pages(settings, bootstrap, stream, behind, most))
    if json:
        typer.echo(msgspec.json.encode(ProducersByTopic(pages).as_dict()).decode())
        return
    console = Console(markup=False, highlight=False)
    for page in pages:
        for part in _render(page):
            console.print(part)
    if not pages:
        console.print("No stream has the identity producer, and no producer has published.")


async def _pages(
    settings: Settings, bootstrap: str, stream: str | None, after: bytes | None, limit: int
) -> list[ProducersPage]:
    import asyncio

    from kafka_ratchet.app.repartition import arrives_in, judging
    from kafka_ratchet.app.status.producers import ProducersPage, read_published, with_published
    from kafka_ratchet.rule.identity import Identity

    published = await asyncio.to_thread(read_published, settings, bootstrap)
    judged = judging(settings.streams)
    chosen = [name for name in judged if stream in (None, name)]
    by_producer = [name for name in chosen if settings.streams[name].identity == Identity.PRODUCER]
    told = await _pages_of_workers(settings, bootstrap, by_producer, after, limit)
    pages = []
    for name in chosen:
        topic = arrives_in(settings.streams, name)
        if name in told or topic in published:
            page = told.get(name) or ProducersPage(name, topic, [], None, [])
            pages.append(with_published(page, published.get(topic, {}), after, limit))
    if stream is None:
        inputs = {arrives_in(settings.streams, name) for name in judged}
        pages += [
            with_published(ProducersPage(None, topic, [], None, []), names, after, limit)
            for topic, names in sorted(published.items())
            if topic not in inputs and names
        ]
    return pages


async def _pages_of_workers(
    settings: Settings, bootstrap: str, streams: list[str], after: bytes | None, limit: int
) -> dict[str, ProducersPage]:
    """Request one page of producers for each stream from the workers, and return the pages by stream.

    If the extra `worker` is not installed, each page is empty, with a sentence that names the extra.
    """
    from kafka_ratchet.app.extras import has_worker
    from kafka_ratchet.app.status.producers import ProducersPage

    if not has_worker():
        lacking = "the workers' records are not shown; that needs: pip install 'kafka-ratchet[worker]'"
        return {name: ProducersPage(name, settings.streams[name].input, [], None, [lacking]) for name in streams}
    from kafka_ratchet.app.status.cluster_view import ClusterView

    async with ClusterView(bootstrap, settings) as cluster_view:
        return {name: await cluster_view.producers(name, after, limit) for name in streams}


def _render(page: ProducersPage) -> Iterator[RenderableType]:
    from rich.text import Text

    from kafka_ratchet.app.inspect.columns import terminal_table
    from kafka_ratchet.app.inspect.producers import TERMINAL_COLUMNS
    from kafka_ratchet.app.status.producers import shown

    read_by = f"read by stream {page.stream}" if page.stream else "read by no stream of these settings"
    title = Text(f"{shown(page.topic.encode('utf-8', 'surrogatepass'))} ({read_by})")
    yield terminal_table(title, TERMINAL_COLUMNS, page.producers)
    for problem in page.problems:
        yield Text(f"▲ {shown(problem.encode())}", "yellow")
    if page.next is not None:
        yield Text(f"There are more: --after {page.next}")
