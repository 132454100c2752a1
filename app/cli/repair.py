"""`ratchet repair --results`: corrects the rows of a result table by the records of its topic."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated

import typer

from kafka_ratchet.app.cli.options import Config, FromInput, Json, Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafka_ratchet.app.repair.table import RepairResult


def repair(
    name: Annotated[
        str | None,
        typer.Argument(
            help=r"Name of the sink, as in section \[sinks.NAME]. Default: \[sink], or the only sink.",
            show_default=False,
        ),
    ] = None,
    results: Annotated[bool, typer.Option("--results", help="Repair the result table of the Spark job.")] = False,
    config: Config = None,
    stream: Stream = None,
    from_input: FromInput = False,
    sample: Annotated[
        int, typer.Option(min=0, max=100_000, help="Rows of each kind to list. All rows are counted.")
    ] = 20,
    remove_unexpected: Annotated[
        bool,
        typer.Option(
            "--remove-unexpected",
            help="Also remove rows without a record in the topic. A removed row cannot be restored.",
        ),
    ] = False,
    execute: Annotated[
        bool, typer.Option("--execute", help="Make the change. Without this option nothing changes.")
    ] = False,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Reason, in one line, recorded with the commit.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Correct the rows that `ratchet verify --results` reports as lost, doubled or altered.

    The command reads missing rows again from the topic, deletes doubled rows, and restores the values of altered rows.

    Without --execute it lists these changes, and makes none.

    With --execute it makes the changes in one commit, and fences a running job. The commit records user, time and
    reason.

    \b
    Exit codes:
      0  no row was wrong, or all wrong rows are repaired
      1  rows are wrong and not repaired: --execute was not given, or no repair is possible
      2  the table cannot be repaired; the error text has the reason
    """  # noqa: D301 - click keeps the lines after a \\b
    import json as json_text

    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.repair.table import Repair, RepairedTable
    from kafka_ratchet.app.settings import load
    from kafka_ratchet.app.status.results import reading_input, result_stream, settings_for_results, topic_of
    from kafka_ratchet.errors import SettingsError

    if not results:
        raise SettingsError("--results is missing. To repair a result table, write ratchet repair --results [NAME]")
    asked = Repair(reason or "", execute, sample, remove_unexpected)
    settings = reading_input(settings_for_results(load(config), stream, name), asked=from_input)
    _, chosen = result_stream(settings, stream)
    with named_broker(settings) as bootstrap:
        found = RepairedTable(settings, topic_of(settings, chosen), bootstrap, asked).run(_spark)
    for line in lines(found):
        typer.echo(line)
    if json:
        done = {"executed": found.note is not None, "generation": found.generation}
        typer.echo(json_text.dumps({**found.plan.as_dict(), **done}))
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def lines(found: RepairResult) -> list[str]:
    """Return the lines that the command prints about a repair."""
    from kafka_ratchet.app.repair.plan import KINDS

    plan, counts, actions = found.plan, found.plan.counts, found.plan.actions
    text = [f"{plan.table} (job {plan.job}), read up to {plan.offsets}"]
    text += [f"  {each}" for each in plan.rows]
    if (left := counts.total() - len(plan.rows)) > 0:
        text.append(f"  and {left:,} more; --sample N lists more of them")
    text += [f"cannot be mended: {each}" for each in plan.cannot]
    if plan.before:
        text.append(f"{plan.before:,} rows are of records that the topic has no longer; they stay as they are")
    text.append(", ".join(f"{kind} {counts[kind]:,}" for kind in KINDS))
    if found.note is not None:
        text.append(
            f"done, with generation {found.generation}: {actions['put in']:,} put in, {actions['replace']:,} replaced, "
            f"{actions['remove']:,} removed, {actions['stays']:,} not mended; recorded: {found.note.who}, "
            f"{found.note.at}, {found.note.reason!r}"
        )
        text.append("`ratchet verify --results` proves it")
    elif plan.mends:
        text.append(
            f"would put in {actions['put in']:,}, replace {actions['replace']:,}, remove {actions['remove']:,} and "
            f"leave {actions['stays']:,} as they are. Nothing was changed; --execute --reason TEXT does it, and ends a "
            "job of the name that still runs"
        )
    elif counts:
        text.append("nothing of it can be mended, and nothing was changed")
    else:
        text.append("nothing to mend")
    return text


def _spark() -> AbstractContextManager[SparkSession]:
    from kafka_ratchet.app.local.jars import spark_jars
    from kafka_ratchet.spark_sink.spark.session import spark_session

    return spark_session("repair", [str(jar) for jar in spark_jars()])
