"""`ratchet faults`: injects faults into real workers and counts what came of the events."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from app.cli._options import Json


def faults(
    short: Annotated[bool, typer.Option("--short", help="A few minutes: each fault at least once.")] = False,
    seed: Annotated[int | None, typer.Option(help="Draws events, faults and their order; default: a new one.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="A new folder to keep logs and data in; default: a temporary one.")
    ] = None,
    json: Json = False,
) -> None:
    """Inject every fault, in random order, and prove that each event counted once. Exit code 1 if one did not."""
    import secrets
    import sys

    from rich.console import Console

    from faults import LONG, SHORT, run

    console = Console(stderr=json, markup=False, highlight=False, soft_wrap=True, file=sys.stderr if json else None)
    drawn = secrets.randbelow(1 << 31) if seed is None else seed
    result = run(SHORT if short else LONG, drawn, console.print, folder)
    told = result.as_dict()
    if json:
        print(json_text.dumps(told), flush=True)
    else:
        console.print(", ".join(f"{name} {value}" for name, value in told.items()))
        console.print(
            f"lost {result.lost}, doubled {result.doubled}, reordered {result.reordered}",
            style="bold green" if result.ok else "bold red",
        )
    if not result.ok:
        raise typer.Exit(1)
