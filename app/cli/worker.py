"""`ratchet worker`: deduplicates the streams of the settings until SIGTERM or Ctrl-C."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from kafka_ratchet.app.cli.options import Config


def worker(
    config: Config = None,
    state_folder: Annotated[
        Path | None, typer.Option("--state-folder", help="Folder for local stores. No two workers may share one.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            help="Number of worker processes, such as one for each core. A process that dies is replaced.",
        ),
    ] = None,
    app: Annotated[
        str | None,
        typer.Option("--app", "-A", help="Program with your agents: MODULE:NAME of an App, such as shop:app."),
    ] = None,
    faust: Annotated[
        str | None,
        typer.Option(
            "--faust", help="Faust program to run exactly once: MODULE:NAME of a faust.App, such as shop:app."
        ),
    ] = None,
) -> None:
    """Deduplicate the streams of the settings until SIGTERM or Ctrl-C. Run at most one worker for each partition.

    --app shop:app runs agents of your own over the deduplicated events: an App of kafka_ratchet called `app` in shop.py
    (docs/guide/agents.md; an example: --app kafka_ratchet.agents.examples.running_totals:app).
    --faust shop:app runs an unchanged Faust program, with exactly-once effects (docs/guide/faust.md).
    """
    given: dict[str, Any] = {"state_folder": state_folder, "processes": processes}
    given = {name: value for name, value in given.items() if value is not None}
    if faust is not None:
        if app is not None:
            raise typer.BadParameter(
                "--app and --faust are both given. Name one program: --app for an App of kafka_ratchet, --faust "
                "for one of Faust"
            )
        from kafka_ratchet.app.settings import given as given_settings

        if int(given.get("processes") or given_settings(config).get("processes") or 1) > 1:
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in `_run`
        from kafka_ratchet.app.faust_host import command

        raise typer.Exit(command.run(faust, config, given))
    # Nearly all objects of a start stay. Repeated searches for garbage among them take a tenth of the start;
    # `process.serve` begins to search.
    gc.disable()
    try:
        _run(config, app, given)
    finally:
        gc.enable()


def _run(config: Path | None, app: str | None, given: Mapping[str, Any]) -> None:
    from kafka_ratchet.app.settings import load

    settings = load(config, **given)
    if settings.processes > 1:
        # One process for each core: none needs more threads for NumPy, which would start them when it is imported.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from kafka_ratchet.app.local.broker import choose_broker
    from kafka_ratchet.app.log_setup import configure
    from kafka_ratchet.app.worker import process
    from kafka_ratchet.app.worker.program import load_program
    from kafka_ratchet.app.worker.sent_topics import check_topics
    from kafka_ratchet.app.worker.steps import with_steps
    from kafka_ratchet.app.worker.tracing import require_package
    from kafka_ratchet.transport.client.security import client_options

    settings.require_streams()  # this and the next: before a Kafka is waited for, or started
    client_options(settings.bootstrap or "", settings.kafka)
    program = load_program(app) if app is not None else None
    settings = with_steps(settings, program)
    if program is not None:
        program.check(settings.streams)
        check_topics(program, settings)
    if settings.telemetry == "otel":
        require_package()
    configure(settings.log_level, settings.log_format)
    if settings.processes > 1:
        from kafka_ratchet.app.worker import processes as several

        raise typer.Exit(several.run(settings, program))
    with choose_broker(settings) as bootstrap:
        process.run(settings, bootstrap, program)
