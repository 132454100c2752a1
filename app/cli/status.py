"""`ratchet status`: shows if a record has arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kafka_ratchet.app.cli.options import Config, Json, Stream, WhichPartitioner
from kafka_ratchet.app.partitioner import Partitioner

if TYPE_CHECKING:
    from kafka_ratchet.app.settings import Settings, StreamSettings
    from kafka_ratchet.app.status.model import Lookup

RecordKey = Annotated[
    str | None,
    typer.Option("--record-key", help="The record's key, to compute its partition."),
]
EXIT = {"persisted": 0, "unseen": 1, "in flight": 3, "waiting": 3, "forgotten": 4, "depends": 4, "unknown": 4}
"""Exit code by answer; 2 is the code for an invalid question."""
LOOK_S = 20.0
"""Maximum seconds to read the input records that consumers cannot see yet because of an open transaction."""


def status(
    sequence: Annotated[
        str | None, typer.Option(help="The record's sequence. Omit it for a stream without sequences.")
    ] = None,
    producer: Annotated[
        str | None, typer.Option(help="The producer's name, if the stream's identity is the producer.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="The record's key, if the stream's identity is the key.")] = None,
    identity: Annotated[
        list[str] | None,
        typer.Option(
            help="The identity, as text. If it has several parts, give the option once for each part, in their order."
        ),
    ] = None,
    identity_hex: Annotated[str | None, typer.Option(help="The identity in hex, if it is not UTF-8 text.")] = None,
    partition: Annotated[str | None, typer.Option(help="The partition that the record was sent to, if known.")] = None,
    record_key: RecordKey = None,
    partitioner: WhichPartitioner = Partitioner.MURMUR2,
    stream: Stream = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show if a record has arrived, for a producer that got no acknowledgement.

    \b
    Exit codes:
      0  persisted: the record is committed, or (without a
         reorder_window) a later record of its identity is; a worker
         would drop the record if it were sent again
      1  unseen
      2  the question is invalid; the error text says why
      3  in flight: the record is in an open transaction of a worker; or
         waiting: it waits for an open transaction of another
         producer; ask again
      4  forgotten: the record arrived, or may have arrived, before an
         operator ran `ratchet forget`; or
         depends: partitions have different answers; or
         unknown: a partition has no worker, or the sequence is too
         far below the last one to tell (reorder_window)
    """  # noqa: D301 - click keeps the lines behind a \\b as they are
    import asyncio

    import msgspec

    from kafka_ratchet.app.local.broker import named_broker
    from kafka_ratchet.app.settings import load
    from kafka_ratchet.app.status.cluster_view import lookup
    from kafka_ratchet.app.status.kafka_view import partition_of_key
    from kafka_ratchet.app.status.lookup import QueryError, parse_partition, parse_parts, parse_sequence

    settings = load(config)
    name, spec = settings.stream(stream)
    texts = _identity(name, spec, {"producer": producer, "key": key}, identity or [], identity_hex)
    number = parse_sequence(_sequence(name, spec, sequence))
    wanted = parse_parts(spec.identity, texts, identity_hex), number, parse_partition(partition)
    if record_key is not None and partition is not None:
        raise QueryError("--partition and --record-key are both given. Give one of them")
    with named_broker(settings) as bootstrap:
        if record_key is not None:
            where = partition_of_key(settings, bootstrap, name, record_key.encode(), partitioner)
            wanted = wanted[0], wanted[1], where
        found = asyncio.run(lookup(bootstrap, settings, name, *wanted))
        if found.answer in ("unknown", "depends"):
            found = _with_blocked(settings, name, bootstrap, found)
    if json:
        typer.echo(msgspec.json.encode(found.as_dict()).decode())
    else:
        for line in _sentences(found, has_none=spec.sequence == "none"):
            typer.echo(line)
    raise typer.Exit(EXIT[found.answer or "unknown"])


def _with_blocked(settings: Settings, name: str, bootstrap: str, found: Lookup) -> Lookup:
    """Search for the record in the input after an open transaction, which workers cannot read yet.

    found: the workers' answer about the record

    Returns:
        "waiting" if the search finds the record. "unseen" if a complete search does not find it, and `found` was
        unknown only because of the open transaction. Else `found`.
    """
    from dataclasses import replace

    from kafka_ratchet.app.settings import with_arrivals
    from kafka_ratchet.app.status.problems import HELD_BACK
    from kafka_ratchet.app.why.explain import Explanation
    from kafka_ratchet.rule.verdicts import TOO_LATE

    if not any(HELD_BACK in problem for problem in found.problems):
        return found
    identity = bytes.fromhex(found.identity_hex)
    explanation = Explanation(with_arrivals(settings), name, bootstrap, limit_s=LOOK_S, watch=lambda done, total: None)
    try:
        answer = explanation.of_blocked(identity, found.sequence, found.partition)
    finally:
        explanation.close()
    if answer.arrivals:
        told = [f"{each.at} waits for an open transaction: {each.blocked}" for each in answer.arrivals]
        return replace(found, answer="waiting", problems=[*told, *found.problems])
    is_late = any(row.verdict == TOO_LATE for row in found.partitions)
    if found.answer == "unknown" and answer.read_all and not (found.not_asked or is_late):
        problems = [each for each in found.problems if HELD_BACK not in each]
        return replace(found, answer="unseen", problems=[*problems, *answer.limits])
    return found


def _identity(
    name: str, spec: StreamSettings, given: dict[str, str | None], texts: list[str], hexadecimal: str | None
) -> list[str]:
    """Return the texts of the identity's parts, from the options.

    given: values of --producer and --key by name
    texts: values of --identity
    hexadecimal: value of --identity-hex

    Raises:
        QueryError: an option does not fit the stream's identity, or the identity is missing or given twice.
    """
    from kafka_ratchet.app.status.lookup import QueryError

    kind = str(spec.identity)
    rather = {
        "partition": "no identity: each partition has one sequence",
        "producer": "--producer",
        "key": "--key",
    }.get(kind, "--identity")
    wrong = next((other for other, text in given.items() if text is not None and other != kind), None)
    if wrong or (texts and kind == "partition"):
        raise QueryError(
            f"the identity of stream {name!r} is the {kind}, so --{wrong or 'identity'} does not fit: give {rather}"
        )
    if (text := given.get(kind)) is not None:
        texts = [text, *texts]
    if len(texts) > len(spec.identity.parts):
        raise QueryError("the identity is given twice. Give it once")
    if kind != "partition" and not texts and hexadecimal is None:
        raise QueryError(f"the identity of stream {name!r} is the {kind}: give {rather} or --identity-hex")
    return texts


def _sequence(name: str, spec: StreamSettings, sequence: str | None) -> str:
    """Return the value of --sequence; "0" for a stream without sequences.

    Raises:
        QueryError: the value is missing, or the stream has no sequences.
    """
    from kafka_ratchet.app.status.lookup import QueryError

    if spec.sequence == "none":
        if sequence is not None:
            raise QueryError(f"the records of stream {name!r} have no sequence. Remove --sequence")
        return "0"
    if sequence is None:
        raise QueryError(
            f"--sequence is missing: the records of stream {name!r} have sequences, so name the record by its sequence"
        )
    return sequence


def _sentences(found: Lookup, *, has_none: bool) -> list[str]:
    from kafka_ratchet.app.inspect.lookup import forgotten_sentence, lookup_notices
    from kafka_ratchet.app.status.producers import shown

    lines = [f"{found.answer}"]
    for row in found.partitions:
        lines.append(
            f"  partition {row.partition}: persisted {_number(row.persisted)}, pushed {_number(row.pushed)}, "
            f"{'it' if has_none else f'a record with sequence {found.sequence}'} would be {row.verdict}"
        )
        for each in row.forgotten or ():
            lines.append(f"    {shown(forgotten_sentence(row.partition, each).encode())}")
    if found.answer == "forgotten":
        lines.append(
            "  a sequence as high had arrived before `ratchet forget`: the record may be in the output, and would be "
            "forwarded once more"
        )
    if found.answer == "depends":
        lines.append("  the partitions differ; say with --partition which one the record was sent to")
    lines += [f"  {shown(problem.encode())}" for problem in found.problems]
    lines += [f"  {shown(notice.encode())}" for notice in lookup_notices(found)]
    return lines


def _number(sequence: int | None) -> str:
    return "nothing" if sequence is None else str(sequence)
