"""`ratchet faults`: injects faults into real workers, and counts lost and doubled events."""

from __future__ import annotations

import json as json_text
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kafka_ratchet.app.cli.options import Json

if TYPE_CHECKING:
    from faults.count import Result


faults = typer.Typer(invoke_without_command=True)

Seed = Annotated[int | None, typer.Option(help="Seed for events, faults and their order. Default: a new one.")]
Folder = Annotated[Path | None, typer.Option(help="A new folder to keep logs and data in; default: a temporary one.")]


@faults.callback()
def everything(
    context: typer.Context,
    short: Annotated[bool, typer.Option("--short", help="Each fault at least once; takes a few minutes.")] = False,
    agent: Annotated[
        bool, typer.Option("--agent", help="Use an agent that counts the events of each stream into a table.")
    ] = False,
    faust: Annotated[
        bool,
        typer.Option(
            "--faust", help="Run a Faust program: words, sets, windows that close, two topics with one table."
        ),
    ] = False,
    processes: Annotated[
        int,
        typer.Option(
            min=1, max=8, help="Processes of each worker; above 1, single ones are killed and frozen as well."
        ),
    ] = 1,
    seed: Seed = None,
    folder: Folder = None,
    json: Json = False,
) -> None:
    """Inject every fault into real workers, in random order, and count. Exit code 1 if an event is lost or doubled."""
    # Handle SIGTERM as Ctrl-C: frozen processes, servers and a full disk must not remain.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if context.invoked_subcommand is not None:
        if short or agent or faust or json or processes > 1 or seed is not None or folder is not None:
            raise typer.BadParameter(f"write the options after {context.invoked_subcommand}")
        return
    if agent and faust:
        raise typer.BadParameter("name one program: --agent or --faust")
    from faults.environment import Style
    from faults.run import LONG, SHORT, run

    say = _speaker(json)
    style = Style.AGENT if agent else Style.FAUST if faust else Style.RECORDS
    result = run(SHORT if short else LONG, _drawn(seed), say, folder, style=style, processes=processes)
    _tell(result, say, None if style is Style.RECORDS else result.tables, json=json)


@faults.command()
def producer(
    file: Annotated[Path, typer.Argument(help="Lines to send; plain, .gz or .zst.", show_default=False)],
    kills: Annotated[int, typer.Option("--kills", min=0, help="Kills of the producer.")] = 50,
    seed: Seed = None,
    folder: Folder = None,
    json: Json = False,
) -> None:
    """Publish a file, kill the producer again and again, and prove that the output equals the file."""
    from faults.producer import run_producer

    say = _speaker(json)
    _tell(run_producer(file, kills, _drawn(seed), say, folder), say, json=json)


@faults.command()
def sink(
    short: Annotated[
        bool, typer.Option("--short", help="Each fault once over each store, in a mode that the seed draws.")
    ] = False,
    times: Annotated[int, typer.Option(min=1, help="Number of each kill. Other faults come a quarter as often.")] = 20,
    store: Annotated[list[str] | None, typer.Option(help="Only this store; may be given more than once.")] = None,
    from_input: Annotated[
        bool, typer.Option("--from-input", help="The job reads a raw topic with duplicates, and judges it itself.")
    ] = False,
    nodes: Annotated[
        int, typer.Option(min=1, max=3, help="Kafka brokers, 1 or 3; of three, one that leads a partition is killed.")
    ] = 1,
    seed: Seed = None,
    folder: Folder = None,
    json: Json = False,
) -> None:
    """Kill and freeze the Spark job, stop its Kafka and database, set rules on its table; count the rows."""
    from faults.sink import STORES as SINK_STORES
    from faults.sink import judging_stores, run_sink

    for name in store or []:
        if name not in SINK_STORES:
            raise typer.BadParameter(f"no store {name!r} (there are: {', '.join(SINK_STORES)})")
        if from_input and name not in judging_stores():
            raise typer.BadParameter(
                f"store {name} keeps no last sequences. --from-input works only with {judging_stores()}"
            )
    if nodes == 2:
        raise typer.BadParameter("--nodes 2: write 1 or 3; two brokers cannot outvote a dead one")
    only = tuple(store or (judging_stores() if from_input else ()))
    result = run_sink(
        None if short else times, _drawn(seed), _speaker(json), folder, only, from_input=from_input, nodes=nodes
    )
    if json:
        print(json_text.dumps(result.as_dict()), flush=True)
    if not result.ok:
        raise typer.Exit(1)


@faults.command()
def reader(
    kills: Annotated[int, typer.Option("--kills", min=1, help="Kills of the readers of each store.")] = 50,
    store: Annotated[list[str] | None, typer.Option(help="Only this store; may be given more than once.")] = None,
    seed: Seed = None,
    folder: Folder = None,
    json: Json = False,
) -> None:
    """Kill and freeze programs that read into databases of their own, let them rebalance, and count the rows."""
    from faults.reader import STORES as READER_STORES
    from faults.reader import run_reader

    for name in store or []:
        if name not in READER_STORES:
            raise typer.BadParameter(f"no store {name!r} (there are: {', '.join(READER_STORES)})")
    result = run_reader(kills, _drawn(seed), _speaker(json), folder, tuple(store or ()))
    if json:
        print(json_text.dumps(result.as_dict()), flush=True)
    if not result.ok:
        raise typer.Exit(1)


def _drawn(seed: int | None) -> int:
    import secrets

    return secrets.randbelow(1 << 31) if seed is None else seed


def _speaker(json: bool) -> Callable[..., None]:
    import sys

    from rich.console import Console

    return Console(stderr=json, markup=False, highlight=False, soft_wrap=True, file=sys.stderr if json else None).print


def _tell(result: Result, say: Callable[..., None], tables: int | None = None, *, json: bool) -> None:
    found = result.as_dict()
    if json:
        print(json_text.dumps(found), flush=True)
    else:
        say(", ".join(f"{name} {value}" for name, value in found.items()))
        say(
            f"lost {result.lost}, doubled {result.doubled}, reordered {result.reordered}"
            + ("" if tables is None else f", tables {tables}"),
            style="bold green" if result.ok else "bold red",
        )
    if not result.ok:
        raise typer.Exit(1)
