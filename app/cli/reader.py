"""`ratchet reader`: shows and changes the positions that the user's reader programs keep in their databases."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kafka_ratchet.app.cli.options import Config, Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from kafka_ratchet.reader.status import ReaderProgress
    from kafka_ratchet.reader.stores.database import Store

reader = typer.Typer(
    help="Show how far programs have read a topic into their own database (kafka_ratchet.reader), and move one to "
    "other offsets.",
    no_args_is_help=True,
)


class StoreKind(StrEnum):
    """Kind of database that a reader can write to."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"
    DUCKDB = "duckdb"


Kind = Annotated[StoreKind, typer.Option("--store", help="Kind of the database.")]
File = Annotated[
    Path | None, typer.Option("--path", help="The file, for sqlite and duckdb.", exists=True, dir_okay=False)
]
Dsn = Annotated[
    str,
    typer.Option(
        "--dsn",
        envvar="RATCHET_READER_DSN",
        help="The connection string, for postgres. Leave a password to PGPASSWORD or ~/.pgpass: arguments of a "
        "process can be seen by others.",
        show_default=False,
    ),
]


@reader.command(epilog="Example: ratchet reader status --store postgres")
def status(kind: Kind, path: File = None, dsn: Dsn = "", config: Config = None, as_json: Json = False) -> None:
    """Show how far each reader of a database is behind its topic. Running readers are not disturbed.

    \b
    Exit codes:
      0  all readers read the topics that they began with
      1  a topic was deleted, or deleted and created again; see `ratchet reader resume`
      2  the positions cannot be read; the error text says why
    """  # noqa: D301 - click keeps the lines behind a \\b as they are
    import json

    from rich.console import Console

    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.settings import load
    from kafka_ratchet.app.status.open_transactions import ask_about
    from kafka_ratchet.reader.status import OPEN_TRANSACTION, standings

    settings = load(config)
    store = _store(kind, path, dsn)
    with named_broker(settings, as_worker=False) as bootstrap:
        options = {"bootstrap.servers": bootstrap, **settings.kafka}
        found = standings(store, options, settings.kafka_timeout_s)
        ends = {
            (each.stored.topic, each.stored.partition): (each.stable_end, each.end)
            for each in found
            if each.stable_end is not None and each.end is not None
        }
        blocked = [each for each in ask_about(bootstrap, settings, ends) if each.is_old]
    console = Console(markup=False, highlight=False)
    if as_json:
        waits = [{**each.as_dict(), "text": str(each)} for each in blocked]
        more = {"open_transactions": waits} if waits else {}
        typer.echo(json.dumps({"store": kind.value, "positions": [each.as_dict() for each in found], **more}))
    else:
        for name, topic in dict.fromkeys((each.stored.reader, each.stored.topic) for each in found):
            console.print(f"reader {name}, topic {topic}")
            console.print(_table([each for each in found if (each.stored.reader, each.stored.topic) == (name, topic)]))
        for waiting in blocked:
            console.print(str(waiting), style="bold yellow")
        for cause, text in (each.stalled for each in found if each.stalled is not None):
            if cause != OPEN_TRANSACTION or not blocked:
                console.print(f"stands still ({cause}): {text}", style="bold red")
    gone = (each.is_other_topic or (each.end is None and each.has_leader) for each in found)
    raise typer.Exit(1 if any(gone) else 0)


@reader.command(epilog="Example: ratchet reader resume shop --topic orders --from earliest --store postgres")
def resume(
    name: Annotated[str, typer.Argument(help="The reader's name.", show_default=False)],
    topic: Annotated[str, typer.Option("--topic", help="The topic that it reads.", show_default=False)],
    source: Annotated[
        str,
        typer.Option("--from", help="earliest, latest, or PARTITION:OFFSET,... of all partitions.", show_default=False),
    ],
    kind: Kind,
    path: File = None,
    dsn: Dsn = "",
    config: Config = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Make the change. Without this option nothing changes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Decide where a halted reader continues, after its topic was created again or lost records to retention.

    The rows that the program has written stay as they are. A process that still runs this reader is fenced.
    """
    import json

    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.settings import load
    from kafka_ratchet.reader.status import resume as resume_reader

    settings = load(config)
    store = _store(kind, path, dsn)
    with named_broker(settings, as_worker=False) as bootstrap:
        options = {"bootstrap.servers": bootstrap, **settings.kafka}
        offsets = resume_reader(store, name, topic, source, options, settings.kafka_timeout_s, execute=execute)
    if as_json:
        typer.echo(json.dumps({"reader": name, "topic": topic, "offsets": offsets, "executed": execute}))
        return
    places = ", ".join(f"partition {partition} at offset {offset:,}" for partition, offset in offsets.items())
    typer.echo(f"reader {name} of {topic} goes on: {places}")
    typer.echo("done" if execute else "nothing was changed; --execute does it, and fences a process that still reads")


def _table(standings: Sequence[ReaderProgress]) -> Table:
    from rich.table import Table

    from kafka_ratchet.app.cli.options import figure

    table = Table("partition", "next offset", "end", "lag", "state")
    for each in standings:
        state = "another topic" if each.is_other_topic else "reads"
        if not each.has_leader:
            state = "no leader"
        elif not each.is_other_topic and each.end is None:
            state = "topic deleted"
        if state == "reads" and not each.stored.owner:
            state = "ended"
        figures = (each.stored.partition, f"{each.stored.next:,}", figure(each.end), figure(each.lag))
        table.add_row(*map(str, figures), state)
    return table


def _store(kind: StoreKind, path: Path | None, dsn: str) -> Store:
    from kafka_ratchet.errors import SettingsError
    from kafka_ratchet.reader import Duckdb, Postgres, Sqlite
    from kafka_ratchet.spark_sink.secrets import keep

    if kind is StoreKind.POSTGRES:
        keep(_secrets(dsn))
        return Postgres(dsn)
    if path is None:
        raise SettingsError(f"--store {kind.value} needs --path FILE, the database file that the reader writes to")
    return Sqlite(path) if kind is StoreKind.SQLITE else Duckdb(path)


def _secrets(dsn: str) -> list[str]:
    """Return the parts of a connection string that no output may contain."""
    # Either a url (`keep` finds its password) or libpq's pairs, where quotes may enclose a value.
    found = re.findall(r"""password\s*=\s*(?:'((?:[^'\\]|\\.)*)'|([^\s&]+))""", dsn)
    return [dsn, *(quoted or plain for quoted, plain in found)]
