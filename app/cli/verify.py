"""`ratchet verify`: the proof that every event counted once."""

from __future__ import annotations

import json as json_text

import typer

from app.cli._options import Config, Json, Stream


def verify(stream: Stream = None, config: Config = None, json: Json = False) -> None:
    """Recompute from the raw input what the output must be, and compare. Exit code 1 if anything is wrong."""
    from rich.console import Console

    from app._broker import choose_broker
    from app._verify import verify as verify_stream
    from app.settings import load

    settings = load(config)
    settings.stream(stream)  # a wrong name is said before Kafka is looked for
    with choose_broker(settings) as bootstrap:
        report = verify_stream(settings.model_copy(update={"bootstrap": bootstrap}), stream)
    if json:
        print(json_text.dumps(report.as_dict()), flush=True)
    else:
        console = Console(markup=False, highlight=False, soft_wrap=True)
        console.print(
            f"{report.stream}: {report.fresh:,} fresh, {report.duplicate:,} duplicate, {report.invalid:,} invalid "
            f"in the input; {report.delivered:,} in the output, {report.dead_letters:,} dead letters, "
            f"{report.pending:,} pending"
        )
        for partition, start, end in report.stretches:
            console.print(f"  deduplication was off in partition {partition} for offsets {start:,} to {end - 1:,}")
        if report.stretches:
            console.print(f"  {report.unjudged:,} records forwarded unjudged there")
        for finding in report.findings:
            console.print(f"  {finding}")
        console.print(
            f"lost {report.lost:,}, doubled {report.doubled:,}, reordered {report.reordered:,}, "
            f"altered {report.altered:,}, unexpected {report.unexpected:,}",
            style="bold green" if report.ok else "bold red",
        )
    if not report.ok:
        raise typer.Exit(1)
