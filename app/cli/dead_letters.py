"""`ratchet dead-letters`: lists dead letters with reasons, shows them, and sends them to the input again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kafka_ratchet.app.cli.options import Config, Json, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from kafka_ratchet.app.dead_letters.reading import LetterCounts, LetterView
    from kafka_ratchet.app.inspect.dead_letters import LetterRecord

dead_letters = typer.Typer(
    no_args_is_help=True, help="Show a stream's dead letters by reason, and send them to the input again."
)

Reason = Annotated[str | None, typer.Option("--reason", help="Only letters with a reason that begins with this text.")]
Partition = Annotated[str | None, typer.Option("--partition", help="Only this partition of the dead-letter topic.")]
Offset = Annotated[str | None, typer.Option("--offset", help="Only the letter at this offset of that partition.")]
LISTED = 50
"""Maximum number of reasons listed in the terminal; `--json` lists every counted reason."""


@dead_letters.command("list", epilog="Example: ratchet dead-letters list --stream orders")
def list_(stream: Stream = None, reason: Reason = None, config: Config = None, json: Json = False) -> None:
    """Count the dead letters by reason, with partitions, times and replays."""
    import asyncio

    import msgspec
    from rich.console import Console

    from kafka_ratchet.app.dead_letters.reading import LetterFilter, connected, count_letters
    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.settings import load

    settings = load(config)
    name, _ = settings.stream(stream)

    async def count() -> LetterCounts:
        async with connected(settings, bootstrap, name) as letters:
            return await count_letters(letters, LetterFilter(reason))

    with named_broker(settings) as bootstrap:
        counts = asyncio.run(count())
    if json:
        typer.echo(msgspec.json.encode(counts).decode())
        return
    typer.echo(
        f"{counts.topic}: {counts.letters:,} dead letters of stream {name}, {counts.replayed:,} of them replayed"
    )
    if counts.others:
        typer.echo(
            f"{counts.others:,} further records of the topic are of another stream or application, or no dead letters"
        )
    if counts.reasons:
        Console().print(table_of(counts))
    if len(counts.reasons) > LISTED:
        typer.echo(f"{len(counts.reasons) - LISTED} more reasons: --json has all of them")


@dead_letters.command(epilog="Example: ratchet dead-letters show --reason sequence-missing --limit 3")
def show(
    stream: Stream = None,
    reason: Reason = None,
    partition: Partition = None,
    offset: Offset = None,
    limit: Annotated[str, typer.Option("--limit", help="Maximum number of dead letters to show.")] = "10",
    values: Annotated[
        bool, typer.Option("--values", help="Show keys, values and all headers. Default: only their lengths.")
    ] = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show single dead letters, each with origin, reason and headers.

    Keys, values and headers may be private: without --values, the command shows only their lengths. It always shows
    the headers that Ratchet has added.
    """
    import asyncio

    import msgspec

    from kafka_ratchet.app.dead_letters.asked import wanted_of
    from kafka_ratchet.app.dead_letters.reading import connected, find_letters
    from kafka_ratchet.app.inspect.dead_letters import LetterList, LetterRecord
    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.settings import load

    settings = load(config)
    name, _ = settings.stream(stream)
    wanted = wanted_of(reason, partition, offset, limit)

    async def find() -> list[LetterView]:
        async with connected(settings, bootstrap, name) as letters:
            return [each async for each in find_letters(letters, wanted)]

    with named_broker(settings) as bootstrap:
        found = asyncio.run(find())
    records = [LetterRecord(each, values) for each in found]
    if json:
        typer.echo(msgspec.json.encode(LetterList(name, records).as_dict()).decode())
        return
    for record in records:
        for line in lines_of(record):
            typer.echo(line)
    if not records:
        typer.echo("There is no such dead letter.")


@dead_letters.command(epilog="Example: ratchet dead-letters replay --reason 'agent add_up' --dry-run")
def replay(
    stream: Stream = None,
    reason: Reason = None,
    partition: Partition = None,
    offset: Offset = None,
    limit: Annotated[str | None, typer.Option("--limit", help="Maximum number of dead letters to send.")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also send records that became dead letters again after an earlier replay.")
    ] = False,
    unjudged: Annotated[
        bool, typer.Option("--unjudged", help="Let workers forward the records without judging their sequences.")
    ] = False,
    now: Annotated[
        bool,
        typer.Option("--now", help="Give the records the present time as timestamp. Default: they keep their own."),
    ] = False,
    of_app: Annotated[
        str,
        typer.Option(
            "--of-app",
            help="Earlier name of this application: also send its agents' dead letters, and none that it has replayed.",
            show_default=False,
        ),
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would be sent, and send nothing.")] = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Send dead letters to the stream's input again, each once, however often the command is run or killed.

    The agents that rejected a record get it again. The worker judges all other records by the stream's rule, or
    forwards them unjudged with --unjudged.

    See docs/guide/dead-letters.md.
    """
    import msgspec

    from kafka_ratchet.app.dead_letters.asked import replay_letters, sentences, wanted_of
    from kafka_ratchet.app.dead_letters.replay import Options
    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.settings import load

    settings = load(config)
    name, _ = settings.stream(stream)
    wanted, options = wanted_of(reason, partition, offset, limit), Options(again, unjudged, now, of_app)
    with named_broker(settings) as bootstrap:
        outcome = replay_letters(settings, bootstrap, name, wanted, options, dry_run=dry_run)
    if json:
        typer.echo(msgspec.json.encode(outcome).decode())
        return
    for line in sentences(outcome):
        typer.echo(line)


def table_of(counts: LetterCounts) -> Table:
    """Return the table of the counts by reason."""
    from kafka_ratchet.app.inspect.columns import terminal_table
    from kafka_ratchet.app.inspect.dead_letters import TERMINAL_COLUMNS, LetterCount

    return terminal_table("", TERMINAL_COLUMNS, map(LetterCount, counts.reasons[:LISTED]))


def lines_of(record: LetterRecord) -> Iterator[str]:
    """Yield the lines about a dead letter."""
    from kafka_ratchet.app.inspect.dead_letters import NO_ORIGIN, REPLAYED, TEXT_MOST, Content, clock
    from kafka_ratchet.app.status.producers import shown
    from kafka_ratchet.app.why.answer import moment

    def text(found: object) -> str:
        return shown(str(found).encode(errors="surrogatepass"))

    def content(found: Content) -> str:
        whole = str(found)
        return whole if len(whole) <= TEXT_MOST else f"{whole[:TEXT_MOST]}… ({found.bytes:,} bytes)"

    letter = record.found.letter
    replays = f", {REPLAYED} {letter.replays} times before" if letter.replays else ""
    done = f", was {REPLAYED}" if record.found.is_replayed else ""
    at = clock(moment(letter.timestamp_ms))
    yield f"partition {letter.partition}, offset {letter.offset}: {at}{replays}{done}"
    if record.origin is None:
        yield f"  {NO_ORIGIN}"
    else:
        yield f"  reason: {text(record.reason)}"
        yield f"  from: {text(record.origin)}"
    for header in record.headers:
        yield f"  header {text(header.name)}: {content(header.content)}"
    yield f"  key: {content(record.key)}"
    yield f"  value: {content(record.value)}"
