"""`ratchet demo`: the whole pipeline on this machine, with crashes, and the proof."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kafka_ratchet.app.cli.options import Json


def demo(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Files of events. Default: the excerpt that comes with Ratchet.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Run everything here: a publisher and a worker are killed on the way, and each event counts once."""
    from kafka_ratchet.app.demo import run

    if not run(files or [], keep=keep, as_json=as_json):
        raise typer.Exit(1)
