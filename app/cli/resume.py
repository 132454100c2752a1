"""`ratchet resume`: an operator decides where a halted partition continues."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kafka_ratchet.app.cli.options import Config, Json, Stream

if TYPE_CHECKING:
    from kafka_ratchet.app.operations.resume import Resume
    from kafka_ratchet.transport.transactions.hanging import Hanging


class End(StrEnum):
    """End of a hanging transaction: commit or abort."""

    COMMIT = "commit"
    ABORT = "abort"


Partition = Annotated[str | None, typer.Option("--partition", help="Input partition. Default: all of them.")]
Start = Annotated[
    str | None,
    typer.Option("--from", help="Next offset to read: earliest, latest or a number. Default: the committed offset."),
]
Reason = Annotated[str | None, typer.Option("--reason", help="Reason, recorded in the changelog with your name.")]
Forget = Annotated[
    bool,
    typer.Option(
        "--forget", help="Forget the last sequences of the partitions. Records counted before may then count again."
    ),
]
Recount = Annotated[
    bool,
    typer.Option("--recount", help="Accept that records counted before are forwarded again."),
]
Adopt = Annotated[bool, typer.Option("--adopt", help="Take over the output or the changelog from another application.")]
OpenTransaction = Annotated[
    End | None,
    typer.Option(
        "--open-transaction", help="Only commit or abort hanging transactions in the topics that the partition writes."
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", help="With --open-transaction: also search this topic, which agents send to. Repeatable."),
]
Execute = Annotated[bool, typer.Option("--execute", help="Make the change. Without this option nothing changes.")]


def resume(
    stream: Stream = None,
    partition: Partition = None,
    start: Start = None,
    reason: Reason = None,
    forget: Forget = False,
    recount: Recount = False,
    adopt: Adopt = False,
    open_transaction: OpenTransaction = None,
    topic: Topics = None,
    execute: Execute = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Decide where halted partitions continue.

    Without --execute the command describes its findings and the change.

    With --execute it makes the change, in one transaction for each partition, and records the user, the time and the
    reason.

    Workers may run. They continue on their own within half a minute.
    """
    import asyncio

    import msgspec

    from kafka_ratchet.app.local.broker import bootstrap_of
    from kafka_ratchet.app.local.connectivity import wait_until_reachable
    from kafka_ratchet.app.operations.missing_topics import prepare_new
    from kafka_ratchet.app.operations.resume import Resume, ResumeOptions
    from kafka_ratchet.app.operations.resume_asked import numbers_of, sentences
    from kafka_ratchet.app.settings import load
    from kafka_ratchet.errors import SettingsError

    settings = load(config)
    bootstrap = bootstrap_of(settings)
    if execute and not (reason or "").strip():
        raise SettingsError("--execute needs --reason: give the reason; it is recorded in the changelog")
    if open_transaction is not None and execute and not partition:
        raise SettingsError(
            "--open-transaction with --execute needs --partition: run the command without --execute to list the open "
            "transactions, then name each partition with a transaction to end"
        )
    if topic and open_transaction is None:
        raise SettingsError("--topic needs --open-transaction: it adds a topic to that search")
    name, _ = settings.stream(stream)
    wait_until_reachable(bootstrap, settings.kafka, settings.kafka_timeout_s, typer.echo)
    if execute and start is not None and not adopt and open_transaction is None:
        prepare_new(settings, bootstrap, name)
    decision = Resume(settings, bootstrap, name, ResumeOptions(start, (reason or "").strip(), forget, adopt, recount))
    numbers = numbers_of(partition, decision)
    if open_transaction is not None:
        if start is not None or forget or recount or adopt:
            raise SettingsError(
                "--open-transaction cannot be combined with --from, --forget, --recount or --adopt: end the "
                "transaction first"
            )
        commit = (open_transaction is End.COMMIT) if execute else None
        decision.search_also(topic or [])
        found = asyncio.run(decision.open_transactions(numbers, commit=commit))
        _tell_hanging(found, name, open_transaction, decision, execute, json)
        for number, problem in decision.unrecorded.items():
            typer.echo(f"partition {number}: the reason is not recorded in the changelog: {problem}", err=True)
        return
    plans = asyncio.run(decision.execute(numbers) if execute else decision.plan(numbers))
    if json:
        body = [msgspec.to_builtins(plan) | {"skipped": plan.skipped, "again": plan.again} for plan in plans]
        typer.echo(msgspec.json.encode({"stream": name, "executed": execute, "partitions": body}).decode())
        return
    for plan in plans:
        for line in sentences(plan, done=execute):
            typer.echo(line)
    if not execute:
        typer.echo("Nothing was changed. Add --execute and --reason TEXT to do it.")


def _tell_hanging(found: list[Hanging], name: str, end: End, decision: Resume, done: bool, json: bool) -> None:
    import msgspec

    from kafka_ratchet.app.operations.resume_asked import NOT_SEARCHED, none_found, searched_in

    if json:
        hanging = [each._asdict() for each in found]
        body = {"stream": name, "executed": done, "searched": searched_in(decision), "open_transactions": hanging}
        typer.echo(msgspec.json.encode(body).decode())
        return
    for each in found:
        typer.echo(str(each))
    if not found:
        typer.echo(f"{none_found(decision)} {NOT_SEARCHED}")
    elif done:
        typer.echo(f"{len(found)} hanging transactions end with {end}. The partitions then continue on their own.")
        typer.echo(NOT_SEARCHED)
    else:
        otherwise = sum(each.ends not in (None, end.value) for each in found)
        typer.echo(f"{len(found) - otherwise} hanging transactions would end with {end}.")
        if otherwise:
            typer.echo(f"{otherwise} are known to have ended otherwise, and can only be ended so.")
        typer.echo("Add --partition N, --execute and --reason TEXT to do it.")
