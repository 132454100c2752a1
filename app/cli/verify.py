"""`ratchet verify`: the proof that every event counted once."""

from __future__ import annotations

import json as json_text
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kafka_ratchet.app.cli import compare as pipeline
from kafka_ratchet.app.cli.options import Config, FromInput, Json, Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

    from kafka_ratchet.app.settings import Settings
    from kafka_ratchet.app.verify import Report, SourceFiles
    from kafka_ratchet.app.verify.findings import ResultsReport, SourceReport
    from kafka_ratchet.app.verify.replay.report import ReplayReport
    from kafka_ratchet.app.verify.replay.run import ReplayedAgents

IDENTITIES_SHOWN = 20
"""Maximum number of identities listed in the terminal; those with lost or doubled records come first."""


MoreFiles = Annotated[list[Path] | None, typer.Argument(hidden=True, metavar="FILE")]
Results = Annotated[bool, typer.Option("--results", help="Also compare the result table of the sink.")]
SinkName = Annotated[
    str | None, typer.Option("--sink", help="With --results: name of the sink, if the settings have several.")
]
State = Annotated[
    Path | None,
    typer.Option("--state", help="Continue where the last run with this file ended. For topics with retention."),
]
Source = Annotated[
    list[Path] | None,
    typer.Option(
        "--source",
        metavar="FILE...",
        help="Published files or folder, in the order of publishing. Finds records that never reached Kafka, too.",
    ),
]
ProducerName = Annotated[str | None, typer.Option("--producer", help="With --source: the producer name.")]
Key = Annotated[str | None, typer.Option("--key", help="With --source: as for ratchet publish.")]
FormatName = Annotated[str | None, typer.Option("--format", help="With --source: as for ratchet publish.")]
SequenceField = Annotated[str | None, typer.Option("--sequence-field", help="With --source: as for ratchet publish.")]
Delimiter = Annotated[str | None, typer.Option("--delimiter", help="With --source: as for ratchet publish.")]
Replay = Annotated[
    bool, typer.Option("--replay", help="Run your agents over the input again, and compare their output. Needs --app.")
]
Program = Annotated[str | None, typer.Option("--app", "-A", help="With --replay: MODULE:NAME, as for ratchet worker.")]
PendingOk = Annotated[
    bool,
    typer.Option("--pending-ok", help="Do not return exit code 3 for input that still waits for a worker."),
]

Independent = Annotated[
    bool,
    typer.Option(
        "--independent", help="Read record by record, with another client than the worker's. This takes longer."
    ),
]
Record = Annotated[
    bool,
    typer.Option("--record", help="Write the verdict to the topic APP-proofs, for the page."),
]


def verify(
    more: MoreFiles = None,
    stream: Stream = None,
    config: Config = None,
    json: Json = False,
    results: Results = False,
    sink: SinkName = None,
    from_input: FromInput = False,
    state: State = None,
    source: Source = None,
    producer: ProducerName = None,
    key: Key = None,
    format: FormatName = None,
    sequence_field: SequenceField = None,
    delimiter: Delimiter = None,
    replay: Replay = False,
    app: Program = None,
    pending_ok: PendingOk = False,
    record: Record = False,
    independent: Independent = False,
    source_address: pipeline.From = None,
    target_address: pipeline.To = None,
    by: pipeline.By = None,
    compare: pipeline.Compare = None,
    since: pipeline.Since = None,
    until: pipeline.Until = None,
    grace: pipeline.Grace = None,
    as_is: pipeline.AsIs = False,
    sample: pipeline.Sample = None,
    memory_mb: pipeline.Memory = None,
    bootstrap: pipeline.Bootstrap = None,
    value_format: pipeline.ValueFormat = None,
    target_format: pipeline.TargetFormat = None,
    schema_registry: pipeline.Registry = None,
    registry_option: pipeline.RegistryOption = None,
    from_option: pipeline.FromOption = None,
    to_option: pipeline.ToOption = None,
    catalog: pipeline.Catalog = None,
    timestamp: pipeline.Timestamp = None,
    every: pipeline.Every = None,
    metrics_port: pipeline.MetricsPort = None,
    metrics_host: pipeline.MetricsHost = "127.0.0.1",
) -> None:
    """Recompute the right output from the input, and compare the real output with it, record by record.

    With --from and --to it compares any topic or table with any other.

    \b
    Exit codes:
      0  proven: everything up to the end of the input is right
      1  something is wrong: lost, doubled, reordered, altered, ...
      2  the output cannot be compared; the error text says why
      3  nothing is wrong in the comparable part, but not all is proven:
         input is pending, halted or was never judged (--pending-ok accepts
         this), or a part cannot be proven at all
    """  # noqa: D301 - click keeps the lines behind a \\b as they are
    # Before the imports below: comparing any two needs neither worker nor Spark.
    asked = pipeline.CompareOptions(
        source_address,
        target_address,
        by or (),
        {
            "--compare": compare,
            "--since": since,
            "--until": until,
            "--grace": grace,
            "--as-is": as_is,
            "--sample": sample,
            "--memory-mb": memory_mb,
            "--bootstrap": bootstrap,
            "--value-format": value_format,
            "--target-format": target_format,
            "--schema-registry": schema_registry,
            "--registry-option": registry_option,
            "--from-option": from_option,
            "--to-option": to_option,
            "--catalog": catalog,
            "--timestamp": timestamp,
            "--every": every,
            "--metrics-port": metrics_port,
            "--metrics-host": metrics_host,
        },
    )
    if asked.is_comparison:
        from kafka_ratchet.app.settings import load

        if code := pipeline.run(asked, load(config), state, json=json):
            raise typer.Exit(code)
        return
    from rich.console import Console

    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.settings import load
    from kafka_ratchet.app.status.results import reading_input, result_stream, settings_for_results
    from kafka_ratchet.app.verify import halted_partitions, verify_results
    from kafka_ratchet.app.verify import verify as verify_stream
    from kafka_ratchet.app.verify.proofs import proof_of, record_proof
    from kafka_ratchet.errors import SettingsError

    if state is not None and results:
        raise SettingsError(
            "--state and --results are both given, but a result table can only be compared with the whole output. "
            "Remove one of the two options"
        )
    if sink is not None and not results:
        raise SettingsError(
            "--sink names the result table to compare, so it works only with --results. Add --results, or remove --sink"
        )
    if from_input and not results:
        raise SettingsError(
            "--from-input compares a result table that Spark has deduplicated, so it works only with --results. Add "
            "--results"
        )
    if replay != (app is not None):
        raise SettingsError("--replay and --app must be given together: ratchet verify --replay --app MODULE:NAME")
    if replay and (results or source):
        raise SettingsError(
            "--replay compares the agents' output alone, so it cannot be combined with --results or --source. Run the "
            "command once for each"
        )
    files = _source([*(source or ()), *(more or ())], source, producer, (format, key, sequence_field, delimiter))
    settings = load(config)
    # Report a wrong name before the search for Kafka.
    agents = _agents(app, settings, stream) if app is not None else None
    if agents is not None:
        name, settings = agents.stream, agents.settings
    elif results:
        settings = reading_input(settings_for_results(settings, stream, sink), asked=from_input)
        name, _ = result_stream(settings, stream)
    else:
        name, _ = settings.stream(stream)
    with named_broker(settings) as bootstrap:
        named = settings.model_copy(update={"bootstrap": bootstrap})
        if agents is not None:
            report = agents.verify(bootstrap, state)
        elif results:
            report = verify_results(named, name, _spark, source=files)
        else:
            report = verify_stream(named, name, state=state, source=files, independent=independent or None)
        judged_by_spark = results and settings.sink.from_input
        told = {each.partition for each in report.halted}
        halted = [] if judged_by_spark else halted_partitions(named, name)
        report.halted += [each for each in halted if each.partition not in told]
        if record:
            record_proof(named, bootstrap, proof_of(report))
    if json:
        print(json_text.dumps(report.as_dict()), flush=True)
    else:
        _show_all(Console(markup=False, highlight=False, soft_wrap=True), report, pending_ok=pending_ok)
    if code := report.exit_code(pending_ok=pending_ok):
        raise typer.Exit(code)


def _agents(app: str, settings: Settings, stream: str | None) -> ReplayedAgents:
    from kafka_ratchet.app.verify.replay.run import ReplayedAgents
    from kafka_ratchet.app.worker.program import load_program

    return ReplayedAgents(load_program(app), app, settings, stream)


def _values_phrase(found: ResultsReport) -> str:
    """Return the phrase about the comparison of the values, for the line about a result table."""
    if not found.values_compared:
        return "; values: not compared" if found.values_unproven else ""
    without = f", {', '.join(found.columns_left_out)} not compared" if found.columns_left_out else ""
    times = (
        f", {found.without_time:,} without _kafka_timestamp because the record has none in Kafka"
        if found.without_time
        else ""
    )
    others = f", others not: {found.values_unproven}" if found.values_unproven else ""
    return f"; values: {found.values_compared:,} rows compared{without}{times}{others}"


def _show_all(console: Console, report: Report, *, pending_ok: bool) -> None:
    from kafka_ratchet.app.inspect.proof import unproven_sentence
    from kafka_ratchet.app.verify.report import ExitCode

    _show(console, report)
    if report.source is not None:
        _show_source(console, report.source)
    if report.results is not None:
        _show_results(console, report.results)
    if (report.ok or report.input_compacted) and (unproven := report.unproven()):
        console.print(unproven_sentence(unproven), style="bold yellow")
    styles = {ExitCode.PROVEN: "bold green", ExitCode.WRONG: "bold red"}
    style = styles.get(report.exit_code(pending_ok=pending_ok), "bold yellow")
    console.print(report.verdict(pending_ok=pending_ok), style=style)


def _source(
    paths: list[Path],
    source: list[Path] | None,
    producer: str | None,
    fields: tuple[str | None, str | None, str | None, str | None],
) -> SourceFiles | None:
    from kafka_ratchet.app.verify import SourceFiles
    from kafka_ratchet.errors import SettingsError

    if not source:
        if paths:
            raise SettingsError(f"{paths[0]}: files are allowed only after --source. Add --source, or remove them")
        if any(given is not None for given in (producer, *fields)):
            raise SettingsError(
                "--producer, --key, --format, --sequence-field and --delimiter describe the files of --source, which "
                "is missing. Add --source FILE..., or remove these options"
            )
        return None
    if producer is None:
        raise SettingsError("--source: add --producer NAME, the name that the files were published under")
    return SourceFiles(producer, paths, *fields)


def _spark() -> AbstractContextManager[SparkSession]:
    from kafka_ratchet.app.local.jars import spark_jars
    from kafka_ratchet.spark_sink.spark.session import spark_session

    return spark_session("verify", [str(jar) for jar in spark_jars()])


def _show_singly(console: Console, report: Report) -> None:
    """Show why partitions were compared record by record instead of by columns, if the reason is unexpected."""
    from kafka_ratchet.app.verify.columns.choice import EXPECTED

    partitions: dict[str, list[str]] = {}
    for number, reason in sorted(report.singly.items()):
        if reason not in EXPECTED:
            partitions.setdefault(reason, []).append(str(number))
    for reason, numbers in partitions.items():
        all_of_them = len(numbers) == len(report.singly) + len(report.columns)
        which = "" if all_of_them else f"partition {', '.join(numbers)} "
        console.print(f"  {which}compared record by record: {reason}")


def _show(console: Console, report: Report) -> None:
    from kafka_ratchet.app.verify.report import counts_sentence

    console.print(
        f"{report.stream}: {report.fresh:,} fresh, {report.duplicate:,} duplicate, {report.invalid:,} invalid "
        "in the input"
        + (
            ", which Spark judges"
            if report.from_input
            else f"; {report.delivered:,} in the output, {report.dead_letters:,} dead letters, "
            f"{report.pending:,} pending"
        )
    )
    if report.late or report.conflict:
        console.print(f"  {report.late:,} too late, {report.conflict:,} with another value than the record they repeat")
    _show_singly(console, report)
    if report.other_letters:
        console.print(
            f"  {report.other_letters:,} of the dead letters are of other inputs or other applications' agents, and "
            "not compared"
        )
    if report.duplicates_kept:
        console.print(f"  {report.duplicates_kept:,} records in the topic of duplicates")
    if report.replay is not None:
        _show_replay(console, report.replay)
    for check in report.policies:
        if check.verdict != "confirmed" or not check.deduplicate:
            console.print(f"  {check}", style="bold yellow" if check.verdict == "unproven" else None)
    if report.intervals:
        console.print(f"  {report.unjudged:,} records forwarded unjudged there")
    for begin in report.begins:
        console.print(f"  {begin}", style=None if begin.gap_from is None else "bold yellow")
    if report.before:
        console.print(f"  {report.before:,} records of the output come from deleted input")
    if report.undecided:
        console.print(
            f"  {report.undecided:,} records are undecided: they are missing, and may be repeats of deleted records, "
            "or retention may have deleted them",
            style="bold yellow",
        )
    if report.output_deleted:
        console.print(f"  {report.output_deleted:,} records came before what output or dead letters still have")
    if report.output_replaced:
        console.print(
            f"  {report.output_replaced:,} records went to an output that was created again: accepted by decision, "
            "and not compared",
            style="bold yellow",
        )
    if report.restamped:
        console.print(
            f"  {report.restamped:,} records have lost their own time, which was not compared: the output's "
            "message.timestamp.type is or was LogAppendTime",
            style="bold yellow",
        )
    if report.input_compacted:
        console.print(
            "  the input is compacted: Kafka has removed records with a newer one of their key, and output of removed "
            "input cannot be told from a fault. Set cleanup.policy=delete on the input",
            style="bold yellow",
        )
    for skipped in report.skipped:
        console.print(f"  {skipped}", style="bold yellow")
    for number, edit in report.edits:
        console.print(f"  input partition {number}, from offset {edit.position:,} on: {edit}", markup=False)
    for halted in report.halted:
        console.print(f"  halted: input partition {halted.partition}: {halted.error}", style="bold yellow")
    for blocked in report.blocked:
        console.print(f"  {blocked}", style="bold yellow", markup=False)
    for never in report.never_judged:
        console.print(f"  {never}", style="bold yellow")
    for number, (offset, reason) in sorted(report.doubtful.items()):
        console.print(f"  doubtful: input partition {number}, offset {offset:,}: {reason}", style="bold yellow")
    for finding in report.findings:
        console.print(f"  {finding}")
    console.print(
        counts_sentence(report.counts.items()),
        style="bold red" if report.counts else "bold yellow" if report.is_waiting or report.doubtful else "bold green",
    )
    for note in report.replay.notes if report.replay is not None else ():
        console.print(note)
    if report.state_written is False:
        why = "something is wrong" if report.counts else "not all could be compared"
        console.print(f"the state stays as it was, because {why}; the next run will find it again")


def _show_replay(console: Console, found: ReplayReport) -> None:
    console.print(
        f"  replay of {', '.join(found.agents)} ({found.program}): {found.outputs:,} outputs and {found.entries:,} "
        "entries of tables compared"
    )
    for each in found.not_compared:
        console.print(f"  {each}", style="bold yellow")


def _show_source(console: Console, found: SourceReport) -> None:
    console.print(
        f"source of {found.producer!r}: {found.records:,} records; {found.delivered:,} in the output, "
        f"{found.dead_lettered:,} dead letters, {found.pending:,} pending, {found.unpublished:,} not yet published"
    )
    if found.first_unpublished is not None:
        console.print(f"  the first unpublished one: {found.first_unpublished}")
    if found.before:
        console.print(f"  {found.before:,} records are older than what Kafka still has")
    if found.foreign:
        console.print(f"  {found.foreign:,} sequences of {found.producer!r} in Kafka are not in these files")
    for finding in found.findings:
        console.print(f"  {finding}")
    console.print(
        f"of the source: missing {found.counts['missing']:,}, altered {found.counts['altered']:,}",
        style="bold red" if found.counts else "bold yellow" if found.unpublished else "bold green",
    )


def _show_results(console: Console, found: ResultsReport) -> None:
    from rich.table import Table
    from rich.text import Text

    from kafka_ratchet.app.status.producers import shown

    rows = "" if found.proven_by is None else f"{found.rows:,} rows and "
    console.print(
        f"{found.table} (job {found.job}, generation {found.generation}): {rows}{found.rejects:,} rejects for "
        f"{found.records:,} records of the output; {found.waiting:,} not there yet"
    )
    if found.left_out:
        console.print(
            f"  {found.left_out:,} records of the output lie before the --start of the job's first run and have no "
            "row: left out, and not lost"
        )
    if found.several:
        console.print(
            f"  {found.several:,} keys have records in several partitions: there the last commit wins, and the last "
            "record of any of them is taken as right"
        )
    total = found.accounts.total()
    table = Table(show_footer=True)
    table.add_column("identity", "all")
    in_table = "in the table" if found.proven_by == "rows" else "read by the job"
    columns = {
        "accepted": "accepted",
        "emitted": "emitted",
        in_table: "rows",
        "rejected": "rejects",
        "not there yet": "waiting",
        "lost": "lost",
        "doubled": "doubled",
    }
    for title, name in columns.items():
        table.add_column(title, f"{getattr(total, name):,}", justify="right", overflow="fold")
    for identity, account in found.accounts.first(IDENTITIES_SHOWN):
        named = "(of nothing in the input)" if identity is None else shown(identity)
        figures = [f"{getattr(account, name):,}" for name in columns.values()]
        table.add_row(Text(named), *figures, style=None if account.ok else "bold red")
    console.print(table)
    if len(found.accounts) > IDENTITIES_SHOWN:
        console.print(f"  and {len(found.accounts) - IDENTITIES_SHOWN:,} identities more; all of them are in the sums")
    for finding in found.findings:
        console.print(f"  {finding}")
    counts = found.counts
    if found.proven_by is not None or counts:
        console.print(
            f"in the table: lost {counts['lost']:,}, doubled {counts['doubled']:,}, "
            + ("" if found.altered is None else f"altered {found.altered:,}, ")
            + f"unexpected {counts['unexpected']:,}{_values_phrase(found)}",
            style="bold red" if counts else "bold green",
        )
    if found.proven_by is None:
        console.print(f"not proven: {found.unproven}", style="bold yellow")
    elif found.values_unproven and not found.values_compared:
        console.print(f"values are not compared: {found.values_unproven}", style="bold yellow")
