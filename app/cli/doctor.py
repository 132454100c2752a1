"""`ratchet doctor`: whether a worker of these settings could run here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kafka_ratchet.app.cli.options import Config, Json


def doctor(
    config: Config = None,
    state_folder: Annotated[
        Path | None, typer.Option("--state-folder", help="Folder for local stores, as for ratchet worker.")
    ] = None,
    json: Json = False,
) -> None:
    """Look whether a worker could run here: settings, broker, rights, topics, formats, clock, disk. Changes nothing.

    \b
    Exit codes:
      0  fine; there may be warnings
      1  at least one error
      2  something could not be checked
    """  # noqa: D301 - click keeps the lines behind a \\b as they are
    import json as json_text

    from kafka_ratchet.app.doctor.findings import Mark, exit_code
    from kafka_ratchet.app.doctor.run import diagnose
    from kafka_ratchet.app.status.producers import shown
    from kafka_ratchet.app.version import ratchet_version
    from kafka_ratchet.spark_sink.secrets import hidden

    findings = diagnose(config, state_folder)
    told = [each._replace(sentence=hidden(each.sentence)) for each in findings]
    code = exit_code(findings)
    if json:
        counts = {mark.name.lower(): sum(each.mark is mark for each in told) for mark in Mark}
        checks = [each._asdict() for each in told]
        typer.echo(
            json_text.dumps({"version": ratchet_version(), "exit_code": code, "counts": counts, "checks": checks})
        )
    else:
        for each in told:
            typer.echo(f"{each.mark:<11}  {each.check:<8}  {shown(each.sentence.encode(errors='replace'))}")
    raise typer.Exit(code)
