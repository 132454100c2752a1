"""`ratchet web`: serves the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kafka_ratchet.app.cli.options import Config

if TYPE_CHECKING:
    from kafka_ratchet.app.settings import Settings


def web(
    config: Config = None,
    host: Annotated[str | None, typer.Option(help="Address to bind. Default: web.host, 127.0.0.1.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to bind; 0 takes a free one. Default: web.port.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another host name that browsers may use for the page, such as that of a proxy. Repeatable."),
    ] = None,
) -> None:
    """Serve the page: streams, partitions, counters, and the look-up of an identity."""
    import asyncio
    from contextlib import nullcontext

    from kafka_ratchet.app import settings as all_settings
    from kafka_ratchet.app.local.broker import choose_broker
    from kafka_ratchet.app.log_setup import configure

    address = {name: value for name, value in {"host": host, "port": port}.items() if value is not None}
    settings = all_settings.load(config, web=address)
    configure(settings.log_level, settings.log_format)
    # A named Kafka need not answer: the page says so and tries again.
    kafka = nullcontext(settings.bootstrap) if settings.bootstrap is not None else choose_broker(settings)
    with kafka as bootstrap:
        asyncio.run(_serve(bootstrap, settings, allow_host or [], all_settings.origins(config, web=address)))


async def _serve(bootstrap: str, settings: Settings, allow_hosts: list[str], origins: dict[str, str]) -> None:
    """Serve the page until SIGINT or SIGTERM."""
    import asyncio
    import gc
    import signal

    from kafka_ratchet.app.web.server import WebServer

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    server = WebServer(bootstrap, settings, allow_hosts=allow_hosts, origins=origins)
    url = await server.start()
    # Objects loaded by now stay. Each collection of garbage visits 140,000 objects of modules once some
    # thousand rows were made, in some 90 ms: as long as the rest of a page of a thousand partitions.
    gc.collect()
    gc.freeze()
    typer.echo(f"The page is at {url}  (stop with Ctrl-C)")
    try:
        await stopped.wait()
    finally:
        await server.stop()
