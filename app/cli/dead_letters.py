"""`ratchet dead-letters`: lists dead letters with reasons, shows them, and sends them to the input again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafka_ratchet.app.cli.options import Config, Json, Stream

if TYPE_CHECKING:
    from rich.table import Table

    from kafka_ratchet.app.dead_letters.reading import LetterCounts, LetterView
    from kafka_ratchet.transport.batch.record_batch import Header

dead_letters = typer.Typer(
    no_args_is_help=True, help="Show a stream's dead letters by reason, and send them to the input again."
)

Reason = Annotated[str | None, typer.Option("--reason", help="Only letters with a reason that begins with this text.")]
Partition = Annotated[str | None, typer.Option("--partition", help="Only this partition of the dead-letter topic.")]
Offset = Annotated[str | None, typer.Option("--offset", help="Only the letter at this offset of that partition.")]
SHOWN_MOST = 2_000
"""Most characters of a key, value or header in the terminal."""
OF_RATCHET = "ratchet-"
"""Prefix of the headers that Ratchet writes; their values are always shown."""
LISTED = 50
"""Most reasons listed in the terminal; `--json` lists every counted reason."""


@dead_letters.command("list", epilog="Example: ratchet dead-letters list --stream orders")
def list_(stream: Stream = None, reason: Reason = None, config: Config = None, json: Json = False) -> None:
    """Count the dead letters by reason, with partitions, times and replays."""
    import asyncio

    import msgspec
    from rich.console import Console

    from kafka_ratchet.app.dead_letters.reading import Wanted, connected, count_letters
    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.settings import load

    settings = load(config)
    name, _ = settings.stream(stream)

    async def count() -> LetterCounts:
        async with connected(settings, bootstrap, name) as letters:
            return await count_letters(letters, Wanted(reason))

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
        Console().print(_table(counts))
    if len(counts.reasons) > LISTED:
        typer.echo(f"{len(counts.reasons) - LISTED} more reasons: --json has all of them")


@dead_letters.command(epilog="Example: ratchet dead-letters show --reason sequence-missing --limit 3")
def show(
    stream: Stream = None,
    reason: Reason = None,
    partition: Partition = None,
    offset: Offset = None,
    limit: Annotated[str, typer.Option("--limit", help="Most letters.")] = "10",
    values: Annotated[
        bool, typer.Option("--values", help="Show keys, values and all headers. Without it: how long they are.")
    ] = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show single dead letters: where each came from, why, and its headers.

    Keys, values and headers of others may be private: without --values only their length is shown.
    """
    import asyncio

    import msgspec

    from kafka_ratchet.app.dead_letters.asked import wanted_of
    from kafka_ratchet.app.dead_letters.reading import connected, find_letters
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
    views = [_view(each, values) for each in found]
    if json:
        typer.echo(msgspec.json.encode({"stream": name, "letters": views}).decode())
        return
    for view in views:
        _print(view)
    if not views:
        typer.echo("There is no such dead letter.")


@dead_letters.command(epilog="Example: ratchet dead-letters replay --reason 'agent add_up' --dry-run")
def replay(
    stream: Stream = None,
    reason: Reason = None,
    partition: Partition = None,
    offset: Offset = None,
    limit: Annotated[str | None, typer.Option("--limit", help="Most letters.")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also letters of records replayed before that failed again.")
    ] = False,
    unjudged: Annotated[
        bool, typer.Option("--unjudged", help="Have the records pass, whatever the stream's rule says of them.")
    ] = False,
    now: Annotated[
        bool, typer.Option("--now", help="Give the records the present time. Without it they keep their own.")
    ] = False,
    of_app: Annotated[
        str,
        typer.Option(
            "--of-app",
            help="Also letters that agents of this application have made: the name that this one had before, say.",
            show_default=False,
        ),
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be sent.")] = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Send dead letters to the stream's input again, each once, however often the command is run or killed.

    A record that an agent made a dead letter passes to the agents once more; any other is judged by the rule.

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


def _table(counts: LetterCounts) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from kafka_ratchet.app.status.producers import shown

    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("Reason", overflow="fold")
    for header in ("Letters", "Replayed"):
        table.add_column(header, justify="right")
    for header in ("Partitions", "First", "Last"):
        table.add_column(header)
    for each in counts.reasons[:LISTED]:
        numbers = sorted(each.partitions.items())
        where = ", ".join(f"{number}: {count:,}" for number, count in numbers[:8]) + ", …" * (len(numbers) > 8)
        row = (f"{each.letters:,}", f"{each.replayed:,}", where, _time(each.first_ms), _time(each.last_ms))
        table.add_row(Text(shown(each.reason.encode(errors="replace"))), *map(Text, row))
    return table


def _time(timestamp_ms: int) -> str:
    """Return a record's timestamp as text in UTC.

    A producer may have set a timestamp outside the years 1 to 9999; the text then has its milliseconds.
    """
    from datetime import UTC, datetime

    try:
        return f"{datetime.fromtimestamp(timestamp_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def _view(found: LetterView, values: bool) -> dict[str, Any]:
    letter = found.letter
    origin = letter.origin._asdict() if letter.origin else None
    return {
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp_ms": letter.timestamp_ms,
        "reason": origin.pop("reason") if origin else None,
        "origin": origin,
        "replays": letter.replays,
        "replayed": found.is_replayed,
        "headers": [_header(each, values) for each in letter.headers],
        "key": _content(found.key, values),
        "value": _content(found.value, values),
    }


def _header(header: Header, values: bool) -> dict[str, Any]:
    return {"name": header.name, **_content(header.value, values or header.name.startswith(OF_RATCHET))}


def _content(content: bytes | None, is_shown: bool) -> dict[str, Any]:
    """Return the length of a key or value, and its text if `is_shown`, with unprintable characters escaped."""
    from kafka_ratchet.app.status.producers import shown

    if content is None:
        return {"bytes": None}
    return {"bytes": len(content), **({"text": shown(content)} if is_shown else {})}


def _print(view: dict[str, Any]) -> None:
    from kafka_ratchet.app.status.producers import shown

    def text(found: str) -> str:
        return shown(found.encode(errors="surrogatepass"))

    replays = f", replayed {view['replays']} times before" if view["replays"] else ""
    done = ", was replayed" if view["replayed"] else ""
    typer.echo(f"partition {view['partition']}, offset {view['offset']}: {_time(view['timestamp_ms'])}{replays}{done}")
    if view["origin"]:
        origin = view["origin"]
        typer.echo(f"  reason: {text(view['reason'])}")
        typer.echo(f"  from: {text(origin['topic'])}, partition {origin['partition']}, offset {origin['offset']}")
    else:
        typer.echo("  its headers are not those of a dead letter of Ratchet")
    for header in view["headers"]:
        typer.echo(f"  header {text(header['name'])}: {_content_text(header)}")
    typer.echo(f"  key: {_content_text(view['key'])}")
    typer.echo(f"  value: {_content_text(view['value'])}")


def _content_text(content: dict[str, Any]) -> str:
    if content["bytes"] is None:
        return "null"
    if (found := content.get("text")) is None:
        return f"{content['bytes']:,} bytes"
    text = str(found)
    return text if len(text) <= SHOWN_MOST else f"{text[:SHOWN_MOST]}… ({content['bytes']:,} bytes)"
