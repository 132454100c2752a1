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
        typer.Option("--faust", help="A Faust program, MODULE:NAME, to check for exactness. It is read, not run."),
    ] = None,
    json: Json = False,
) -> None:
    """Check that a worker could run here, and list partitions that stand still. Changes nothing.

    It looks at settings, broker, rights, topics, group, formats, clock, progress and disk. With --faust shop:app it
    reads that program instead, and lists its exact parts, parts under a rule, and refusals with their lines.

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

    if faust is not None:
        raise typer.Exit(_check_faust(faust, json=json))
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


def _check_faust(program: str, *, json: bool) -> int:
    """Check a Faust program's source, and print the findings.

    Returns:
        the exit code: 1 if Ratchet would refuse a part of the program, else 0
    """
    import json as json_text

    from kafka_ratchet.app.faust_host.check import check_program
    from kafka_ratchet.app.version import ratchet_version

    found = check_program(program)
    code = int(any(each.verdict == "refused" for each in found))
    if json:
        counts = {verdict: sum(each.verdict == verdict for each in found) for verdict in ("exact", "rule", "refused")}
        listed = [each._asdict() for each in found]
        text = {"version": ratchet_version(), "exit_code": code, "program": program, "counts": counts}
        typer.echo(json_text.dumps({**text, "findings": listed}))
        return code
    for each in found:
        place = f"{Path(each.file).name}:{each.line}"
        typer.echo(f"{each.heading:<20}  {place:<20}  {each.what}{f': {each.why}' if each.why else ''}")
    return code
