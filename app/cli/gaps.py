"""`ratchet gaps`: lists identities with missing sequences, for a stream with contiguous sequences (`dense`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kafka_ratchet.app.cli.options import Config, Json, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from kafka_ratchet.app.operations.gaps import Gaps


def gaps(
    name: Annotated[
        str | None, typer.Argument(metavar="[STREAM]", help="The stream; may be left out if there is only one.")
    ] = None,
    stream: Stream = None,
    limit: Annotated[
        str | None,
        typer.Option(help="Identities to list, at most 500; 100 by default. The totals count all identities."),
    ] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """List the identities with missing sequences, the largest gaps first.

    For streams with dense = true. The command reads committed entries of the stream's changelog, and needs no worker.

    \b
    Exit codes:
      0  no sequence is missing
      1  some sequences are missing
      2  the answer is unknown; the error text says why
    """  # noqa: D301 - click keeps the lines behind a \\b as they are
    import msgspec
    from rich.console import Console

    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.operations.gaps import gaps_of
    from kafka_ratchet.app.operations.state_export import StateExport
    from kafka_ratchet.app.settings import load
    from kafka_ratchet.app.status.lookup import QueryError, parse_limit

    if name is not None and stream is not None:
        raise QueryError("the stream is named twice, as argument and with --stream. Name it once")
    settings = load(config)
    name, spec = settings.stream(name if stream is None else stream)
    most = parse_limit(limit)
    if not spec.dense:
        raise QueryError(
            f"stream {name!r} does not count missing sequences. If the sequences of each identity are contiguous, set "
            f"streams.{name}.dense = true and restart the workers, which count missing sequences from then on"
        )
    with named_broker(settings) as bootstrap:
        found = gaps_of(name, StateExport(settings, bootstrap, name).rows(), most)
    if json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        console = Console(markup=False, highlight=False)
        for part in _render(found):
            console.print(part)
    raise typer.Exit(1 if found.missing else 0)


def _render(found: Gaps) -> Iterator[RenderableType]:
    from kafka_ratchet.app.inspect.columns import terminal_table
    from kafka_ratchet.app.inspect.gaps import COLUMNS, missing_sentence

    yield missing_sentence(found)
    if not found.missing:
        return
    yield terminal_table("", COLUMNS, found.gaps)
    if found.identities > len(found.gaps):
        yield f"{found.identities - len(found.gaps):,} more identities lack fewer: --limit"
