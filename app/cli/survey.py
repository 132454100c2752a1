"""`ratchet survey`: reports the duplicates of a topic. `ratchet init`: writes settings that fit a surveyed topic."""

from __future__ import annotations

import json as json_text
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kafka_ratchet.app.cli.options import Config, Json
from kafka_ratchet.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import Console

    from kafka_ratchet.app.settings import Settings
    from kafka_ratchet.app.survey.proposal import Proposal
    from kafka_ratchet.app.survey.report import Bucket, Finding, Report

SHOWN_MOST: Final = 12
"""Maximum number of buckets of a histogram in a terminal of 80 columns."""

Topic = Annotated[str, typer.Argument(help="Topic to read. It needs no stream in the settings.")]
Bootstrap = Annotated[
    str | None,
    typer.Option("--bootstrap", help="Kafka to read from: host:port[,host:port]. Default: that of the settings."),
]
Partitions = Annotated[
    str | None, typer.Option("--partitions", metavar="0,3,8-11", help="Read these partitions only. Default: all.")
]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, help="Read at most this number of records, the newest ones.")
]
Since = Annotated[
    str | None, typer.Option("--since", help="Read only records since then: 24h, 7d, 2026-01-31 or 2026-01-31T08:00.")
]
Identities = Annotated[
    list[str] | None,
    typer.Option(
        "--identity", help="Also count by this identity: header:NAME, field:PATH, or several parts with commas."
    ),
]
Memory = Annotated[
    int,
    typer.Option(
        "--memory-mb",
        min=16,
        max=1 << 20,
        help="Memory for ids, in MiB. For more ids, the command follows only a sample of them.",
    ),
]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw the histograms: FILE.svg or FILE.png.")]


def survey(
    topic: Topic,
    bootstrap: Bootstrap = None,
    partitions: Partitions = None,
    limit: Limit = None,
    since: Since = None,
    identity: Identities = None,
    memory_mb: Memory = 1_024,
    plot: Plot = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Report the duplicates of a topic, their identity and delay, and fitting settings.

    It reads committed records, creates nothing and commits nothing.
    """
    from rich.console import Console

    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.settings import load
    from kafka_ratchet.app.settings_sections import is_topic_name
    from kafka_ratchet.app.survey.places import candidate_of
    from kafka_ratchet.app.survey.plot import checked
    from kafka_ratchet.app.survey.proposal import propose
    from kafka_ratchet.app.survey.reading import ReadRange
    from kafka_ratchet.app.survey.run import partitions_of, since_ms
    from kafka_ratchet.app.survey.run import survey as read

    if not is_topic_name(topic):
        raise SettingsError(f"{topic!r} is not a Kafka topic name: 1 to 249 letters, digits, '.', '_' or '-'")
    if limit is not None and since is not None:
        raise SettingsError("--limit and --since are both given. Remove one of the two options")
    if plot is not None:
        checked(plot)
    wanted = ReadRange(
        None if partitions is None else partitions_of(partitions),
        limit,
        None if since is None else since_ms(since, round(time.time() * 1_000)),
        tuple(candidate_of(each) for each in identity or []),
    )
    settings = load(config) if bootstrap is None else load(config, bootstrap=bootstrap)
    with named_broker(settings) as found, _progress(topic) as begun:
        report = read(settings, found, topic, wanted, begun, memory_mb)
    proposal = propose(report)
    if plot is not None:
        _draw(report, proposal, plot)
    if json:
        print(json_text.dumps({**report.as_dict(), "proposal": proposal.as_dict()}), flush=True)
    else:
        _show(Console(markup=False, highlight=False, soft_wrap=True), report, proposal)


def _draw(report: Report, proposal: Proposal, picture: Path) -> None:
    from kafka_ratchet.app.survey.plot import plot

    plot(report.topic, proposal.finding or max(report.findings, key=lambda each: each.equal), picture)


@contextmanager
def _progress(topic: str) -> Iterator[Callable[[int], Callable[[int, int], None]]]:
    """Yield a function that starts a progress bar over the topic's offsets.

    Without a terminal, the function shows no bar.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[records]:,} records"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"{topic}: looking", total=None, records=0)
        read = 0

        def begun(offsets: int) -> Callable[[int, int], None]:
            bar.update(task, description=topic, total=offsets)
            return moved

        def moved(offsets: int, records: int) -> None:
            nonlocal read
            read += records
            bar.update(task, advance=offsets, records=read)

        yield begun
        bar.update(task, completed=bar.tasks[task].total or 0)
    sys.stderr.flush()


def _show(console: Console, report: Report, proposal: Proposal) -> None:
    from kafka_ratchet.app.survey.proposal import span_text

    part = "" if report.is_whole else " (a part of it)"
    spans = f", {span_text(report.span_ms)} by its timestamps" if report.span_ms else ""
    console.print(
        f"{report.topic}{part}: {report.records:,} records of {len(report.ranges):,} partitions{spans}; "
        f"{report.records / max(report.seconds, 1e-9):,.0f} records/s"
    )
    for count, what in (
        (report.broken, "values are no JSON objects"),
        (report.deleted, "records were deleted by retention while they were to be read"),
        (report.future, "timestamps lie more than a day ahead and were left out"),
    ):
        if count:
            console.print(f"  {count:,} {what}", style="bold yellow")
    console.print(_table(report))
    console.print("  conflicts: repeats with another value; across: first in this partition, and seen in another one")
    for place, why in report.forms:
        console.print(f"  {place}: {why}", style="bold yellow")
    for place, why in report.left_out:
        console.print(f"  no identity: {place}: {why}")
    _show_accuracy(console, report)
    whole = report.findings[0]
    shown = proposal.finding or max(report.findings[1:], key=lambda each: each.equal, default=whole)
    _show_finding(console, shown if shown.duplicates or not whole.duplicates else whole)
    _show_proposal(console, proposal)


def _table(report: Report) -> object:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("by", overflow="fold")
    for title in ("have it", "distinct", "repeats", "conflicts", "across", "oldest"):
        table.add_column(title, justify="right", no_wrap=True)
    for each in report.findings:
        table.add_row(Text(str(each.candidate)), *_cells(each))
    return table


def _cells(each: Finding) -> list[str]:
    from kafka_ratchet.app.survey.proposal import span_text

    def figure(count: int, error: str) -> str:
        wrong = each.errors[error]
        return f"{count:,} ± {wrong:,}" if each.one_of > 1 else f"{count:,}"

    return [
        f"{each.records:,}",
        figure(each.distinct, "distinct"),
        figure(each.duplicates, "duplicates"),
        figure(each.conflicts, "conflicts"),
        figure(each.across + each.across_conflicts, "across_partitions"),
        "–" if each.age_most_ms < 0 else span_text(each.age_most_ms),
    ]


def _show_accuracy(console: Console, report: Report) -> None:
    sampled = [each for each in report.findings if each.one_of > 1]
    for each in sampled:
        console.print(
            f"  {each.candidate}: counted on one of {each.one_of:,} ids, with all of its records, as memory is bounded "
            "(--memory-mb); ± is two standard errors",
            style="bold yellow",
        )
    worst = max(each.mistaken for each in report.findings)
    console.print(f"  ids are compared by 64-bit hashes: on average, {worst:.1g} ids are taken for another one")


def _show_finding(console: Console, each: Finding) -> None:
    from kafka_ratchet.app.survey.proposal import span_text

    if each.duplicates:
        console.print(f"duplicates by {each.candidate}")
        _show_histogram(console, "  came again within", each.ages, span_text)
        _show_histogram(console, "  came again within (offsets)", each.distances, "{:,}".format)
        for said, examples in (("look at", each.examples), ("with another value:", each.conflict_examples)):
            for example in examples[:1]:
                console.print(
                    f"  {said} partition {example.partition}, offset {example.offset:,}: the one before it at "
                    f"{example.before:,}"
                )
    if each.numbers is not None:
        numbers = each.numbers
        console.print(
            f"numbers by {each.candidate}: {numbers.rises:,} rise, {numbers.steps:,} of them by one; {numbers.late:,} "
            f"are late and new" + (f", up to {numbers.late_most:,} below the highest" if numbers.late else "")
        )
        if numbers.before:
            console.print(f"  {numbers.before:,} are below the first one read, so their kind is unknown")
        for size, passes in numbers.windows:
            if passes:
                console.print(f"  reorder_window = {size:<5} passes {passes:,} of the {numbers.late:,}")
                if passes >= numbers.late:
                    break


def _show_histogram(console: Console, title: str, histogram: list[Bucket], shown: Callable[[int], str]) -> None:
    """Print the cumulated counts of a histogram, in at most `SHOWN_MOST` steps.

    The first step counts everything up to its bound. shown: function that formats a bound
    """
    total = sum(each.records for each in histogram)
    below = 0
    for number, each in enumerate(histogram):
        below += each.records
        if number >= len(histogram) - SHOWN_MOST:
            console.print(f"{title} {shown(each.most):>12}: {below:>13,}  {below / total:.2%}")


def _show_proposal(console: Console, proposal: Proposal) -> None:
    if proposal.refused is not None:
        console.print(f"no settings are proposed: {proposal.refused}", style="bold yellow")
        return
    for note in proposal.notes:
        console.print(f"  {note}", style="bold yellow")
    console.print("settings that fit the records read:", style="bold green")
    console.print(proposal.toml, end="")
    console.print("to watch it first: with forward = false it judges and counts, and forwards nothing")


# -- ratchet init

INIT_LIMIT: Final = 1_000_000
"""Number of records that `ratchet init` reads without --limit: enough for its proposals, in some seconds."""

AskedTopic = Annotated[
    str | None, typer.Argument(help="Topic with the events. Default: the command lists the topics and prompts for one.")
]
App = Annotated[str | None, typer.Option("--app", help="Name of the application. Default: from the topic's name.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="File to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")]
LastRecords = Annotated[
    int, typer.Option("--limit", min=1, help="Read at most this number of records, the newest ones.")
]


def init(
    topic: AskedTopic = None,
    bootstrap: Bootstrap = None,
    app: App = None,
    output: Output = Path("ratchet.toml"),
    force: Force = False,
    limit: LastRecords = INIT_LIMIT,
) -> None:
    """Survey a topic, and write a commented ratchet.toml with settings that fit it."""
    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.settings import load
    from kafka_ratchet.app.survey.proposal import propose
    from kafka_ratchet.app.survey.reading import ReadRange
    from kafka_ratchet.app.survey.run import survey as read

    _require_new(output, force=force)
    settings = load() if bootstrap is None else load(bootstrap=bootstrap)
    if settings.bootstrap is None:
        settings = load(bootstrap=_asked("Kafka, host:port", "--bootstrap"))
    with named_broker(settings) as found:
        chosen = topic or _chosen_topic(settings, found)
        report = read(settings, found, chosen, ReadRange(limit=limit), lambda _: lambda *_: None, 1_024)
    proposal = propose(report)
    if proposal.refused is not None:
        raise SettingsError(
            f"{chosen}: no settings are proposed: {proposal.refused}. `ratchet survey {chosen} --bootstrap {found}` "
            "shows the findings; docs/guide/kinds.md lists the settings"
        )
    output.write_text(settings_text(app or proposal.name, found, proposal.toml, proposal.notes), encoding="utf-8")
    print(f"{output} is written, by {report.records:,} records of {chosen}")
    for note in proposal.notes:
        print(f"  look at: {note}")
    print(f"next: ratchet doctor --config {output}, then ratchet worker --config {output}")


def settings_text(app: str, bootstrap: str, stream: str, notes: list[str]) -> str:
    """Return the text of a settings file.

    Args:
        app: name of the application.
        bootstrap: Kafka's address.
        stream: section of the stream, with comments on the choices.
        notes: further findings of the survey, to write as comments.
    """
    said = "".join(f"# Look at: {note}\n" for note in notes)
    return (
        "# Settings of Ratchet; docs/reference/settings.md has all of them. RATCHET_* variables win over this file.\n"
        f"app = {json_text.dumps(app)}  # name of the consumer group, and of the application's topics\n"
        f"bootstrap = {json_text.dumps(bootstrap)}\n\n"
        "# TLS and SASL, in librdkafka's names; docs/guide/rights.md has the rights that the user needs.\n"
        '# [kafka]\n# "security.protocol" = "SASL_SSL"\n\n'
        f"{said}{stream}\n"
        "# The result table; docs/guide/results.md has the stores. `ratchet sink` fills it.\n"
        '# [sink]\n# path = "table"\n# columns = "infer"\n'
    )


def _require_new(output: Path, *, force: bool) -> None:
    if output.exists() and not force:
        raise SettingsError(f"{output} already exists. Name another file with --output, or replace it with --force")


def _asked(what: str, option: str) -> str:
    if not sys.stdin.isatty():
        raise SettingsError(
            f"{option} is missing, and the command prompts for a value only in a terminal. Give {option} VALUE"
        )
    return str(typer.prompt(what, err=True))


def _chosen_topic(settings: Settings, bootstrap: str) -> str:
    """Return the topic that the user chooses from a printed list.

    Raises:
        SettingsError: standard input is not a terminal, or the cluster has no topic.
    """
    from kafka_ratchet.producers import admin_client
    from kafka_ratchet.topic_log.clients import all_topics

    admin = admin_client({"bootstrap.servers": bootstrap, **settings.kafka})
    names = sorted(name for name in all_topics(admin) if not name.startswith(("__", "ratchet-")))
    if not names:
        raise SettingsError(f"Kafka at {bootstrap} has no topic to survey. Publish some events to a topic first")
    if not sys.stdin.isatty():
        raise SettingsError(
            f"the topic is not named. Write ratchet init TOPIC; Kafka has the topics {', '.join(names[:20])}"
        )
    for number, name in enumerate(names, 1):
        print(f"{number:4} {name}", file=sys.stderr)
    answer = str(typer.prompt("Which topic (name or number)", err=True)).strip()
    return names[int(answer) - 1] if answer.isdecimal() and 0 < int(answer) <= len(names) else answer
