"""`ratchet forget`: forgets the last sequence of an identity, while workers run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kafka_ratchet.app.cli.options import Config, Json, Stream

if TYPE_CHECKING:
    from kafka_ratchet.app.operations.forget import RequestState

WAIT_S = 30.0
NOT_YET = 3
UNKNOWN = 4
"""Exit code if no worker knows the identity."""


def forget(
    identity: Annotated[
        list[str] | None,
        typer.Option(
            help="The identity, as text, such as a producer's name or a key. Give the option once for each part."
        ),
    ] = None,
    identity_hex: Annotated[str | None, typer.Option(help="The identity in hex, if it is not UTF-8 text.")] = None,
    above: Annotated[
        str | None,
        typer.Option(help="Forget only sequences above this one, which becomes the last sequence if that was higher."),
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Forget only in this input partition. Default: in all.")] = None,
    reason: Annotated[str, typer.Option(help="Reason, recorded in the changelog with your name.")] = "",
    unknown: Annotated[
        bool,
        typer.Option(
            "--unknown",
            help="Write the request even if no worker knows the identity: its records may still wait in the input.",
        ),
    ] = False,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait until every partition has applied the request.")
    ] = WAIT_S,
    stream: Stream = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Forget the last sequence of an identity.

    Use it for a producer that begins its sequences again, or that sent a wrong, too high sequence.

    The command writes a request. The worker of each partition first judges the records now in the partition's input,
    and then applies the request in a transaction. It judges later records of the identity as the first ones. So stop
    the identity's producer before this command, and start the producer again after it. Workers may run.

    \b
    Exit codes:
      0  every partition has applied the request
      2  the request is refused; the error text says why
      3  the request is written, and some partitions have not applied
         it yet; a worker applies it when it runs the partition
      4  no worker knows the identity; nothing is written
    """  # noqa: D301 - click keeps the lines behind a \\b as they are
    import msgspec

    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.operations.forget import ForgetRequests, is_unknown
    from kafka_ratchet.app.settings import load
    from kafka_ratchet.app.status.lookup import parse_partition, parse_parts, parse_sequence

    settings = load(config)
    name, spec = settings.stream(stream)
    wanted = parse_parts(spec.identity, identity or [], identity_hex)
    bound, number = parse_sequence(above), parse_partition(partition)
    with named_broker(settings) as bootstrap:
        forgetting = ForgetRequests(settings, bootstrap, name)
        request, partitions = forgetting.request(wanted, bound, reason, number)
        if is_unknown(forgetting.look(wanted), number) and not unknown:
            typer.echo(
                f"stream {name}: no requested partition knows a sequence of this identity, so nothing was "
                "written. Is it spelled as its producer sends it? Add --unknown if its first records still wait in "
                "the input",
                err=True,
            )
            raise typer.Exit(UNKNOWN)
        outcome = forgetting.write(request, partitions, wait)
    if json:
        typer.echo(msgspec.json.encode(outcome).decode())
    else:
        for line in _sentences(outcome):
            typer.echo(line)
    if outcome.pending:
        raise typer.Exit(NOT_YET)


def _sentences(outcome: RequestState) -> list[str]:
    lines = []
    for each in outcome.applied:
        before, after = (_number(number) for number in (each.before, each.after))
        change = f"the last sequence was {before}, and is {after} now" if before != after else f"it stays at {before}"
        lines.append(f"partition {each.partition}: from input offset {each.position} on; {change}")
    if outcome.pending:
        where = ", ".join(map(str, outcome.pending))
        waits = "these partitions still have to judge earlier input, are starting, are halted, or have no worker"
        why = waits if outcome.members else "no worker runs"
        if outcome.problem:
            why = f"this command cannot show when they do: {outcome.problem}"
        ends = ", ".join(f"{number}: {outcome.ends[number]}" for number in outcome.pending)
        lines.append(
            f"not applied yet: partitions {where} ({why}). Request {outcome.request} is written: they apply it when "
            f"they have read up to these input offsets ({ends}). Do not start the producer "
            "before `ratchet status` shows it"
        )
    return lines


def _number(sequence: int | None) -> str:
    return "nothing" if sequence is None else str(sequence)
