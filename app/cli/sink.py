"""`ratchet sink [NAME]`: the Spark job that copies a stream's output topic to the result table, and its operation."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer.core import TyperGroup

from kafka_ratchet.app.cli.options import Config, FromInput, Json, Stream

KEY: Final = "ratchet sink"


def sink_name(context: typer.Context) -> str | None:
    """Return the sink's NAME given after `ratchet sink`; None without one."""
    name = context.meta.get(KEY)
    return None if name is None else str(name)


class SinkGroup(TyperGroup):
    """Command group with a NAME argument; options of the group may come before and after it."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # noqa: D102
        # A group takes no option after its first word, so the name is taken out before.
        _, rest, _ = self.make_parser(ctx).parse_args(args=list(args))
        if rest and rest[0] not in self.commands:
            name, *behind = rest
            ctx.meta[KEY] = name
            args = [*args[: len(args) - len(rest)], *behind]
            again = self.make_parser(ctx).parse_args(args=list(args))[1]
            if again and again[0] in self.commands:
                ctx.fail(f"the name stands after the command: {ctx.command_path} {again[0]} {name}")
            if again:
                ctx.fail(f"{again[0]!r}: one sink at a time is run, and {name!r} is named already")
        return super().parse_args(ctx, args)


if TYPE_CHECKING:
    from typing import Unpack

    from kafka_ratchet.app.inspect.sinks import SinkFailure, SinkProgress
    from kafka_ratchet.app.settings import Settings
    from kafka_ratchet.app.status.results import RunOptions
    from kafka_ratchet.spark_sink.job.access import Access
    from kafka_ratchet.spark_sink.job.spec import JobSpec

sink = typer.Typer(
    cls=SinkGroup,
    help="Run the Spark job that writes a stream's output to the result table, each event exactly once. NAME: the sink "
    r"of section \[sinks.NAME].",  # without the backslash it is markup to rich, and left out
    invoke_without_command=True,
    subcommand_metavar="[NAME] | COMMAND [ARGS]...",
    epilog="Example: ratchet sink --mode stream",
)

Name = Annotated[
    str | None,
    typer.Argument(
        help=r"Name of the sink, as in section \[sinks.NAME]. Default: \[sink], or the only sink.", show_default=False
    ),
]


First = Annotated[
    str | None,
    typer.Option(
        "--start",
        help="First run only: earliest, latest, a time (2026-11-28T09:00:00Z, or milliseconds since 1970), or "
        "PARTITION:OFFSET,...",
        show_default=False,
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        help="End of the run, which is not included: a time, or PARTITION:OFFSET,... of every partition. Not in "
        "structured mode.",
        show_default=False,
    ),
]


class Mode(StrEnum):
    """Mode of the Spark job: how it runs, and when it ends."""

    BATCH = "batch"
    STREAM = "stream"
    STRUCTURED = "structured"


@sink.callback()
def run(
    context: typer.Context,
    config: Config = None,
    stream: Stream = None,
    mode: Annotated[
        Mode,
        typer.Option(
            help="batch: read up to the present end of the topic, then stop. stream: run until SIGTERM. structured: as "
            "stream, but as a query of Structured Streaming."
        ),
    ] = Mode.BATCH,
    interval: Annotated[
        float, typer.Option(min=0, max=86_400, help="Seconds between two reads of the topic; not in batch mode.")
    ] = 1.0,
    state_is_lost: Annotated[
        bool,
        typer.Option(
            "--state-is-lost",
            help="structured mode: allow stateful operators. Their state is discarded at every start.",
        ),
    ] = False,
    from_input: FromInput = False,
    max_records: Annotated[int, typer.Option(min=1, help="Maximum number of offsets per commit.")] = 1_000_000,
    start: First = None,
    until: Until = None,
    second_job: Annotated[
        bool,
        typer.Option(
            "--second-job",
            help="Start although a job of another name has committed this topic to the table: each row is there twice.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run the Spark job that writes a stream's output to the result table, each event exactly once."""
    if context.invoked_subcommand is not None:
        return
    _run(
        sink_name(context),
        config,
        stream,
        from_input=from_input,
        mode=mode.value,
        interval_s=interval,
        state_is_lost=state_is_lost,
        max_records=max_records,
        start=start,
        until=until,
        second_job=second_job,
        print_json=as_json,
    )


def _run(
    name: str | None,
    config: Path | None,
    stream: str | None,
    *,
    from_input: bool,
    **options: Unpack[RunOptions],
) -> None:
    """Run the job of a sink, and exit with the job's exit code."""
    from kafka_ratchet.app import settings as settings_of_file
    from kafka_ratchet.app.local.broker import choose_broker
    from kafka_ratchet.app.local.jars import spark_jars
    from kafka_ratchet.app.log_setup import configure
    from kafka_ratchet.app.status.results import access_of, reading_input, spec_of, topic_of
    from kafka_ratchet.spark_sink.cli import EXIT_REFUSED
    from kafka_ratchet.spark_sink.errors import SinkError

    settings = reading_input(settings_of_file.load(config).of_sink(name), asked=from_input)
    configure("warning", settings.log_format)
    _, chosen = settings.stream(stream or settings.sink.stream)
    try:
        spec = spec_of(settings, topic_of(settings, chosen), settings.bootstrap or "", **options)
    except SinkError as error:  # the same as from the job, which would refuse it as well
        print(f"refused: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_REFUSED) from None
    jars = tuple(map(str, spark_jars()))
    with choose_broker(settings) as bootstrap:
        code = run_job(replace(spec, bootstrap=bootstrap, jars=jars), access_of(settings))
    raise typer.Exit(code)


@sink.command(epilog="Example: ratchet sink replay --from 0:100 --to 0:200")
def replay(
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            help="First record to compute again: earliest, a time, or PARTITION:OFFSET,...",
            show_default=False,
        ),
    ],
    end: Annotated[
        str,
        typer.Option(
            "--to",
            help="End of the range, which is not included: stored (the end of what the table has read), a time, or "
            "PARTITION:OFFSET,...",
            show_default=False,
        ),
    ],
    name: Name = None,
    config: Config = None,
    stream: Stream = None,
    as_json: Json = False,
) -> None:
    """Compute the rows of a range of records again, and replace the table's rows of that range.

    The replacement is one commit.
    """
    _run(name, config, stream, from_input=False, mode="replay", start=begin, until=end, print_json=as_json)


@sink.command(epilog="Example: ratchet sink status")
def status(
    name: Name = None,
    config: Config = None,
    stream: Stream = None,
    from_input: FromInput = False,
    as_json: Json = False,
) -> None:
    """Show each result table's lag. A running job is not disturbed; Spark is not needed."""
    from kafka_ratchet.app import settings as settings_of_file
    from kafka_ratchet.app.inspect.sinks import SinkFailure
    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.log_setup import say_error
    from kafka_ratchet.app.status.results import reading_input, result_stream, sinks_of

    settings = settings_of_file.load(config)
    several = name is None and bool(settings.sinks)
    if not several:
        chosen = [reading_input(settings.of_sink(name), asked=from_input)]
        result_stream(chosen[0], stream)  # report a wrong name before the search for Kafka
    elif stream is not None:
        chosen = sinks_of(settings, settings.stream(stream)[0])
    else:
        chosen = [settings.of_sink(each) for each in settings.every_sink()]
    found: list[SinkProgress | SinkFailure]
    with named_broker(settings, as_worker=False) as bootstrap:
        if several:
            names = {id(kept): section for section, kept in settings.every_sink().items()}
            found = [_status_or_failure(each, stream, bootstrap, names[id(each.sink)]) for each in chosen]
        else:
            found = [_status(chosen[0], stream, bootstrap, None)]
    if as_json:
        documents = [each.as_dict() for each in found]
        print(json.dumps(documents if several else documents[0]))
    failures = [each for each in found if isinstance(each, SinkFailure)]
    for each in found:
        if isinstance(each, SinkFailure):
            say_error(f"sink {each.section}: {each.error}")
        elif not as_json:
            show_status(each)
    if failures:
        raise typer.Exit(2)


def _status_or_failure(
    settings: Settings, stream: str | None, bootstrap: str, section: str
) -> SinkProgress | SinkFailure:
    """Return the progress of one of several sinks, or the reason why the progress cannot be read."""
    from kafka_ratchet.app.inspect.sinks import SinkFailure
    from kafka_ratchet.errors import RatchetError
    from kafka_ratchet.spark_sink.secrets import hidden

    try:
        return _status(settings, stream, bootstrap, section)
    except RatchetError as error:
        return SinkFailure(section, settings.sink.store, settings.sink.name, hidden(str(error)))


def _status(settings: Settings, stream: str | None, bootstrap: str, section: str | None) -> SinkProgress:
    """Return the progress of one sink. section: name of the sink's section [sinks.NAME], for display.

    Raises:
        SetupError: store or Kafka does not answer.
        SettingsError: the settings do not determine the sink's stream.
    """
    from kafka_ratchet.app.inspect.sinks import SinkProgress
    from kafka_ratchet.app.status.result_view import old_transactions, read_progress
    from kafka_ratchet.app.status.results import planner_of, result_stream, sink_errors_translated, topic_of

    _, chosen = result_stream(settings, stream)
    with sink_errors_translated():
        topic = topic_of(settings, chosen)
        found = read_progress(settings, bootstrap, topic, planner_of(bootstrap, settings, topic))
    old = old_transactions(settings, bootstrap, topic, found)
    return SinkProgress(settings.sink.store, settings.sink.name, topic, found, old, section)


def show_status(found: SinkProgress) -> None:
    """Print the progress of a sink."""
    from rich.console import Console

    from kafka_ratchet.app.inspect.columns import terminal_table
    from kafka_ratchet.app.inspect.sinks import COLUMNS, progress_sentence
    from kafka_ratchet.app.status.result_view import standstill_sentence

    console = Console(markup=False, highlight=False)
    named = "" if found.section is None else f"sink {found.section}, "
    console.print(
        f"{named}job {found.job}, topic {found.topic}, store {found.store}, generation {found.status.generation}"
    )
    console.print(terminal_table("", COLUMNS, found.rows))
    for each in found.blocked:
        console.print(str(each), style="bold yellow")
    if found.trouble:
        console.print(standstill_sentence(found.trouble), style="bold red")
        return
    console.print(progress_sentence(found))


@sink.command(epilog="Example: ratchet sink resume --from table --reason 'restored' --execute")
def resume(
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="table: after the last row of the table. stored: at the stored offsets. earliest, latest: at that end "
            "of the topic. Or PARTITION:OFFSET,...",
            show_default=False,
        ),
    ],
    reason: Annotated[str, typer.Option(help="Reason, in one line, recorded with the offsets.", show_default=False)],
    name: Name = None,
    config: Config = None,
    stream: Stream = None,
    from_input: FromInput = False,
    execute: Annotated[
        bool, typer.Option("--execute", help="Make the change. Without this option nothing changes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Decide where a halted job continues, after its table was restored or its topic was created again."""
    from kafka_ratchet.app import settings as settings_of_file
    from kafka_ratchet.app.local.broker import choose_broker
    from kafka_ratchet.app.status.results import (
        access_of,
        planner_of,
        reading_input,
        result_stream,
        sink_errors_translated,
        spec_of,
        topic_of,
    )
    from kafka_ratchet.spark_sink.job.resume import carry_out, plan_resume

    settings = reading_input(settings_of_file.load(config).of_sink(name), asked=from_input)
    kept = settings.sink
    _, chosen = result_stream(settings, stream)
    with choose_broker(settings) as bootstrap, sink_errors_translated():
        topic = topic_of(settings, chosen)
        planner = planner_of(bootstrap, settings, topic)
        spec = spec_of(settings, topic, bootstrap)
        store = spec.result_store(spec.pipeline(), access_of(settings), planner.topic_id())
        plan = plan_resume(store, planner, source, reason)
        generation = carry_out(plan, store) if execute else None
    if as_json:
        print(json.dumps({"job": kept.name, **plan.as_dict(), "executed": execute, "generation": generation}))
        return
    print("\n".join(plan.lines()))
    if generation is None:
        print("nothing was changed; --execute does it, and ends a job of the name that still runs")
    else:
        print(f"done, with generation {generation}; recorded: {plan.decision.who}, {plan.decision.at}, {reason!r}")


@sink.command(epilog="Example: ratchet sink vacuum --dry-run")
def vacuum(
    name: Name = None,
    config: Config = None,
    older_than: Annotated[
        float, typer.Option("--older-than", min=0, max=1_000_000, help="Age in hours. Younger files are kept.")
    ] = 1.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the files, and remove nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Remove the files that killed and fenced jobs have left next to the result table."""
    from kafka_ratchet.app import settings as settings_of_file
    from kafka_ratchet.app.status.results import place_of, sink_errors_translated
    from kafka_ratchet.spark_sink.stores.vacuum import vacuum as remove
    from kafka_ratchet.spark_sink.vacuum_command import as_dict, summary

    place = place_of(settings_of_file.load(config).of_sink(name))
    with sink_errors_translated():
        found = remove(place, older_than * 3600, dry_run=dry_run)
    print(json.dumps(as_dict(place, found, dry_run=dry_run)) if as_json else summary(place, found, dry_run=dry_run))


@sink.command(epilog="Example: ratchet sink compact --execute")
def compact(
    name: Name = None,
    config: Config = None,
    target_size: Annotated[
        float, typer.Option("--target-size", min=0.001, max=1_000_000, help="Size of a new file, in MiB.")
    ] = 128.0,
    execute: Annotated[
        bool, typer.Option("--execute", help="Make the change. Without this option nothing changes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Merge small files of the result table into larger ones (delta, iceberg). The job may run."""
    from kafka_ratchet.app import settings as settings_of_file
    from kafka_ratchet.app.status.results import place_of, sink_errors_translated
    from kafka_ratchet.spark_sink.compact_command import MIB, as_dict, summary
    from kafka_ratchet.spark_sink.stores.compact import compact as put_together

    place = place_of(settings_of_file.load(config).of_sink(name))
    with sink_errors_translated():
        found = put_together(place, int(target_size * MIB), execute=execute)
    print(json.dumps(as_dict(found, execute=execute)) if as_json else summary(found, execute=execute))


@sink.command(epilog="Example: ratchet sink package job.zip")
def package(
    file: Annotated[Path, typer.Argument(help="The zip to write, such as spark_sink.zip.", show_default=False)],
    jars: Annotated[
        Path | None,
        typer.Option(help="Folder for the jars of Spark's Kafka connector, for clusters without --packages."),
    ] = None,
    spark: Annotated[
        str | None,
        typer.Option(
            help="With --jars: release of the cluster's Spark, such as 3.5. Default: that of this machine's pyspark."
        ),
    ] = None,
) -> None:
    """Write the job for a Spark cluster: a zip for --py-files, and the script to submit next to it."""
    from kafka_ratchet.app.local.jars import spark_jars
    from kafka_ratchet.app.status.results import sink_errors_translated
    from kafka_ratchet.errors import SetupError
    from kafka_ratchet.spark_sink.spark.package import write_package
    from kafka_ratchet.spark_sink.spark.versions import release_of

    with sink_errors_translated():
        release = None if spark is None else release_of(spark)
        digest = write_package(file)
    if jars is not None:
        try:
            jars.mkdir(parents=True, exist_ok=True)
            for jar in spark_jars(release=release):
                shutil.copyfile(jar, jars / jar.name)
        except OSError as error:
            raise SetupError(f"{jars}: cannot be written ({error.strerror}). Name another folder") from None
    print(f"{file}: SHA-256 {digest}")
    print(f"spark-submit --py-files {file} ... {file.with_name('sink_job.py')} --bootstrap ... (docs/guide/cluster.md)")


def run_job(spec: JobSpec, access: Access) -> int:
    """Run the Spark job (`python -m kafka_ratchet.spark_sink`) in a child process, which starts the JVM.

    The child has its own process group. The whole group ends when this process ends; see
    `kafka_ratchet.spark_sink.parent_process`.

    Args:
        spec: description of the job, passed on the command line.
        access: addresses, passwords and keys, passed in environment variables.

    Returns:
        The job's exit code.
    """
    import kafka_ratchet
    from kafka_ratchet.app.local.spark_classes import with_classes
    from kafka_ratchet.spark_sink.options import DOCUMENT
    from kafka_ratchet.spark_sink.parent_process import VARIABLE as OWNER_VARIABLE

    root = Path(kafka_ratchet.__file__).parents[1]
    search = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {"PYTHONPATH": search, OWNER_VARIABLE: "1", **access.as_environment()}
    environment = {**with_classes(os.environ), **variables}
    with subprocess.Popen(
        [sys.executable, "-m", "kafka_ratchet.spark_sink", DOCUMENT, spec.as_json()],
        env=environment,
        stdin=subprocess.PIPE,
        start_new_session=True,
    ) as job:
        # A stream ends by SIGTERM: it finishes its commit, and its exit code is this command's.
        before = signal.signal(signal.SIGTERM, lambda *_: job.terminate())
        try:
            return job.wait()
        except BaseException:
            job.terminate()
            job.wait()  # a stream finishes its commit; who does not wait for it (Ctrl-C again) kills it
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
