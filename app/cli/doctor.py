"""`ratchet doctor`: checks if a worker with these settings could run on this machine."""

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
    faust: Annotated[
        str | None,
        typer.Option(
            "--faust",
            help="A Faust program, MODULE:NAME, to check instead. The command reads its source and does not run it.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check that a worker could run here, and list stalled partitions. Changes nothing.

    The command checks settings, sinks, broker, rights, topics, group, formats, clock, progress and disk. With --faust
    shop:app it reads that program instead, and lists the statements by line: those that Ratchet runs exactly once,
    those that it runs exactly once under a condition, and those that it refuses.

    \b
    Exit codes:
      0  fine; there may be warnings
      1  at least one error
      2  something could not be checked
    """  # noqa: D301 - click keeps the lines behind a \\b as they are
    import json as json_text

    from kafka_ratchet.app.doctor.run import diagnose
    from kafka_ratchet.app.inspect.doctor import Diagnosis, finding_line
    from kafka_ratchet.spark_sink.secrets import hidden

    if faust is not None:
        raise typer.Exit(_check_faust(faust, json=json))
    findings = diagnose(config, state_folder)
    found = Diagnosis([each._replace(sentence=hidden(each.sentence)) for each in findings])
    if json:
        typer.echo(json_text.dumps(found.as_dict()))
    else:
        for each in found.checks:
            typer.echo(finding_line(each))
    raise typer.Exit(found.exit_code)


def _check_faust(program: str, *, json: bool) -> int:
    """Check a Faust program's source, and print the findings.

    Returns:
        the exit code: 1 if Ratchet would refuse a part of the program, else 0
    """
    import json as json_text

    from kafka_ratchet.app.faust_host.check import check_program
    from kafka_ratchet.app.inspect.doctor import ProgramCheck, program_line

    found = ProgramCheck(program, check_program(program))
    if json:
        typer.echo(json_text.dumps(found.as_dict()))
        return found.exit_code
    for each in found.findings:
        typer.echo(program_line(each))
    return found.exit_code
