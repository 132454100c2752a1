"""`ratchet why`: traces a record from the input to the row."""

from __future__ import annotations

import json as json_text
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from kafka_ratchet.app.cli.options import Config, Json, Stream

if TYPE_CHECKING:
    from kafka_ratchet.app.settings import StreamSettings
    from kafka_ratchet.app.why.answer import Answer, InputRecord
    from kafka_ratchet.app.why.scan import Watch

SHOWN = 20
"""Maximum number of arrivals of a record listed in the terminal; --json lists up to a thousand."""


def why(
    producer: Annotated[str | None, typer.Option(help="The producer's name.")] = None,
    identity: Annotated[
        list[str] | None,
        typer.Option(
            help="The identity, as text. If it has several parts, give the option once for each part, in their order."
        ),
    ] = None,
    identity_hex: Annotated[str | None, typer.Option(help="The identity in hex, if it is not UTF-8 text.")] = None,
    sequence: Annotated[
        str | None, typer.Option(help="The record's sequence. Default: all records of the identity.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Topic of the record: one of the stream's topics.")] = None,
    partition: Annotated[
        str | None,
        typer.Option(help="Partition of the record in --topic; or, with an identity, the only partition to search."),
    ] = None,
    offset: Annotated[str | None, typer.Option(help="Offset of the record in --partition.")] = None,
    limit_s: Annotated[float, typer.Option("--timeout", help="Maximum seconds of reading.")] = 600.0,
    stream: Stream = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Trace a record: arrivals, verdicts, output, transaction, row.

    \b
    Ask by --producer N --sequence S, by --identity X [--sequence S],
    or by --topic T --partition P --offset O.

    \b
    Exit codes:
      0  found and explained
      1  not found
      2  the question is invalid; the error text says why
      3  not found, and the time was up before everything was read
    """  # noqa: D301 - click keeps the lines behind a \\b as they are
    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.settings import load
    from kafka_ratchet.app.status.lookup import QueryError, parse_partition, parse_sequence
    from kafka_ratchet.app.why.explain import Explanation
    from kafka_ratchet.app.why.question import stream_asked

    settings = load(config)
    name, spec = stream_asked(settings, stream, topic)
    number, wanted = parse_partition(partition), parse_sequence(sequence)
    at = _offset(topic, partition, offset)
    who = None if at is not None else _identity(name, spec, producer, identity, identity_hex)
    if at is not None and any(given is not None for given in (producer, identity, identity_hex, sequence)):
        raise QueryError(
            "--topic, --partition and --offset already name one record. Remove --producer, --identity, --identity-hex "
            "and --sequence"
        )
    if not limit_s > 0:
        raise QueryError(f"--timeout is {limit_s:g}: it must be a number of seconds above 0")
    with named_broker(settings) as bootstrap, _progress(quiet=json) as watch:
        explanation = Explanation(settings, name, bootstrap, limit_s=limit_s, watch=watch)
        if at is not None:
            answer = explanation.of_record(topic or "", number or 0, at)
        else:
            answer = explanation.of_identity(who or b"", wanted, None if number is None else [number])
    if json:
        print(json_text.dumps(answer.as_dict()), flush=True)
    else:
        for line in sentences(answer):
            typer.echo(line)
    raise typer.Exit(answer.exit_code)


def _offset(topic: str | None, partition: str | None, offset: str | None) -> int | None:
    """Return the record's offset in the options; None if they name the record in another way.

    Raises:
        QueryError: one of the three is missing, or the offset is not a whole number.
    """
    from kafka_ratchet.app.status.lookup import QueryError

    if topic is None and offset is None:
        return None
    if topic is None or partition is None or offset is None:
        raise QueryError("--topic, --partition and --offset must be given together. Give all three")
    if not (offset.isascii() and offset.isdecimal() and len(offset) <= 18):
        raise QueryError(f"--offset is {offset[:40]!r}: it must be a whole number")
    return int(offset)


def _identity(
    name: str, spec: StreamSettings, producer: str | None, texts: list[str] | None, hexadecimal: str | None
) -> bytes:
    """Return the identity's bytes, from the options.

    Raises:
        QueryError: an option does not fit the stream's identity, or none or several name the identity.
    """
    from kafka_ratchet.app.status.lookup import QueryError, parse_parts
    from kafka_ratchet.rule.identity import Identity

    given = [each for each in (producer, texts or None, hexadecimal) if each is not None]
    if spec.identity == Identity.PARTITION:
        if given:
            raise QueryError(
                f"stream {name!r} has one sequence for each partition, and no other identity. Give only --partition "
                "and --sequence"
            )
        return b""
    if len(given) != 1:
        raise QueryError(
            "the record is not named, or named twice. Give --producer N --sequence S, or --identity X [--sequence S], "
            "or --topic T --partition P --offset O"
        )
    if producer and spec.identity != Identity.PRODUCER:
        raise QueryError(f"the identity of stream {name!r} is {spec.identity}, not the producer. Give --identity")
    return parse_parts(spec.identity, texts or ([producer] if producer else []), hexadecimal)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Watch]:
    """Yield a function that shows progress on standard error, on a terminal only. quiet: True: show nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda done, total: None
        return
    columns = TextColumn("reading"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


def sentences(answer: Answer) -> list[str]:
    """Return the answer about a record as lines of text."""
    from kafka_ratchet.app.inspect.event import absence, more_arrivals
    from kafka_ratchet.app.status.producers import shown as plain

    lines = [f"{answer.stream}: {answer.asked}"]
    if not answer.arrivals:
        lines.append(f"  {absence(answer)}")
    for arrival in answer.arrivals[:SHOWN]:
        lines += _of_arrival(arrival, told=answer.sequence is not None)
    if left := more_arrivals(answer, SHOWN):
        lines.append(f"  and {left:,} more arrivals (--sequence S tells of one, --json of {SHOWN * 50:,})")
    lines += [f"note: {limit}" for limit in answer.limits]
    return [plain(line.encode()) for line in lines]


def _of_arrival(arrival: InputRecord, *, told: bool) -> list[str]:
    from kafka_ratchet.app.inspect.event import judgement, reading_state, row_phrase

    which = "" if told or arrival.sequence is None else f"sequence {arrival.sequence} "
    lines = [f"  {which}arrived at {arrival.at}, timestamp {arrival.timestamp}", f"    {judgement(arrival)}"]
    if arrival.forwarded is not None:
        lines.append(f"    forwarded to {arrival.forwarded}")
    for sent in arrival.sent[:SHOWN]:
        state = reading_state(sent)
        lines.append(f"    sent on to {sent.at}{', ' if state else ''}{state}")
    if len(arrival.sent) > SHOWN:
        lines.append(f"    and {len(arrival.sent) - SHOWN:,} more records (--json has all)")
    if arrival.kept is not None:
        lines.append(f"    kept in {arrival.kept}")
    if arrival.dead_letter is not None:
        lines.append(f"    dead letter in {arrival.dead_letter}, reason {arrival.reason}")
    lines += _of_transaction(arrival)
    for result in arrival.results:
        lines.append(f"    {row_phrase(arrival, result)}")
    return lines + [f"    note: {note}" for note in arrival.notes]


def _of_transaction(arrival: InputRecord) -> list[str]:
    from kafka_ratchet.app.inspect.event import producer_of

    transaction = arrival.transaction
    if transaction is None:
        return []
    parts = []
    if transaction.changelog is not None:
        parts.append(f"of {transaction.changelog}, {transaction.at}")
    parts += [said] if (said := producer_of(arrival)) else []
    return [f"    in the transaction {'; '.join(parts)}"] if parts else []
