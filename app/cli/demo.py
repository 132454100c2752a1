"""`ratchet demo`: the whole pipeline on this machine, with crashes, and the proof."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kafka_ratchet.app.cli.options import Json


def demo(
    files: Annotated[
        list[Path] | None, typer.Argument(help="NDJSON files of events. Default: the data that come with Ratchet.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Run the whole pipeline on this machine, kill a publisher and a worker, and prove that each event counts once."""
    from kafka_ratchet.app.demo import run

    if not run(files or [], keep=keep, as_json=as_json):
        raise typer.Exit(1)
