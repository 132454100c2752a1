"""`ratchet sink`: the Spark job over a stream's output topic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from app.cli._options import Config, Json, Stream


class Mode(StrEnum):
    """When the job stops."""

    BATCH = "batch"


def sink(
    config: Config = None,
    stream: Stream = None,
    mode: Annotated[Mode, typer.Option(help="batch: read to the end as of the start, then stop.")] = Mode.BATCH,
    max_records: Annotated[int, typer.Option(min=1, help="Offsets per commit, at most.")] = 1_000_000,
    as_json: Json = False,
) -> None:
    """Bring the stream's output into the result table with Spark, each event exactly once."""
    from app import settings as settings_of_file
    from app._broker import choose_broker
    from app._jars import spark_jars

    settings = settings_of_file.load(config)
    _, chosen = settings.stream(stream or settings.sink.stream)
    jars = spark_jars()
    with choose_broker(settings) as bootstrap:
        arguments = {
            "--bootstrap": bootstrap,
            "--topic": chosen.output,
            "--path": settings.sink.path,
            "--name": settings.sink.name,
            "--mode": mode.value,
            "--columns": settings.sink.columns,
            "--max-records": str(max_records),
            "--jars": ",".join(map(str, jars)),
        }
        # --name=value, so that no value can be taken for an option.
        command = [f"{name}={value}" for name, value in arguments.items() if value is not None]
        code = run_job([*command, *(["--json"] if as_json else [])], settings.kafka)
    raise typer.Exit(code)


def run_job(arguments: list[str], kafka: dict[str, str | int | bool]) -> int:
    """Run `python -m spark_sink` as a child of its own, so that no JVM is tied to this process.

    Args:
        arguments: the job's command line.
        kafka: client options in librdkafka's names; they may hold passwords, which do not belong on a command line.

    Returns:
        The job's exit code.
    """
    import spark_sink
    from spark_sink._command import CLIENT_VARIABLE

    room = Path(spark_sink.__file__).parent.parent
    search = os.pathsep.join([str(room), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": search, CLIENT_VARIABLE: json.dumps(kafka)}
    with subprocess.Popen([sys.executable, "-m", "spark_sink", *arguments], env=environment) as job:
        try:
            return job.wait()
        except BaseException:
            job.terminate()  # nothing is half-done by it: the next run goes on from the last commit
            raise
