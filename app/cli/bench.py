"""`ratchet bench`: how fast the worker is, next to others on the same machine."""

from __future__ import annotations

import json as json_text
from typing import Annotated

import typer

from app.cli._options import Json

bench = typer.Typer(help="How fast the worker is, next to others on the same machine.", no_args_is_help=True)

Records = Annotated[int, typer.Option(help="Of the input; a fifth are duplicates.")]
Keys = Annotated[int, typer.Option(help="Identities.")]
CommitMs = Annotated[int, typer.Option(help="Milliseconds between commits.")]
Compression = Annotated[str, typer.Option(help="Of the input: none, gzip, snappy, lz4 or zstd.")]
Duplicates = Annotated[str, typer.Option(help="spread, or resent in a row.")]
Rounds = Annotated[int, typer.Option(help="How often each subject runs.")]


@bench.command()
def run(
    subject: Annotated[str, typer.Argument(help="ratchet, kafka-streams, loop, floor, ...")],
    records: Records = 2_000_000,
    keys: Keys = 10_000,
    commit_ms: CommitMs = 100,
    compression: Compression = "none",
    duplicates: Duplicates = "spread",
    rounds: Rounds = 1,
) -> None:
    """Run one subject on a preloaded input; one line of JSON a run. Exit code 1 if an output is wrong."""
    _compared([subject], records, keys, commit_ms, compression, duplicates, rounds, json=True, runs_only=True)


@bench.command()
def compare(
    subjects: Annotated[list[str], typer.Argument(help="The first is compared with each of the others.")],
    records: Records = 2_000_000,
    keys: Keys = 10_000,
    commit_ms: CommitMs = 100,
    compression: Compression = "none",
    duplicates: Duplicates = "spread",
    rounds: Rounds = 3,
    json: Json = False,
) -> None:
    """Run subjects in turn on one input and print their ratios, in Markdown. Exit code 1 if an output is wrong."""
    _compared(subjects, records, keys, commit_ms, compression, duplicates, rounds, json=json, runs_only=False)


def _compared(
    subjects: list[str],
    records: int,
    keys: int,
    commit_ms: int,
    compression: str,
    duplicates: str,
    rounds: int,
    *,
    json: bool,
    runs_only: bool,
) -> None:
    import sys

    from bench._compare import compare
    from bench._load import Load
    from bench._measure import Measured

    if duplicates not in ("spread", "resent"):
        raise typer.BadParameter("duplicates are spread or resent")

    def say(run: Measured) -> None:
        print(json_text.dumps(run.as_dict()), file=sys.stdout if runs_only else sys.stderr, flush=True)

    load = Load(records, keys, compression, duplicates)  # type: ignore[arg-type]  # checked above
    compared = compare(subjects, load, commit_ms, rounds, say)
    if not runs_only:
        print(json_text.dumps(compared.as_dict()) if json else compared.as_markdown(), flush=True)
    if not compared.verified:
        raise typer.Exit(1)
