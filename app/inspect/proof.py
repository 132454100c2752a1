"""Proofs: documents, columns and sentences for `ratchet verify` and the page."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kafka_ratchet.app.inspect.columns import Column
from kafka_ratchet.app.inspect.document import Document
from kafka_ratchet.app.verify.proofs import Proof
from kafka_ratchet.app.verify.report import VERDICT_KINDS
from kafka_ratchet.rule.verdicts import DUPLICATE, FRESH, HEADINGS, INVALID


@dataclass(frozen=True, slots=True)
class ProofRow(Document):
    """Compared offsets of a partition.

    input, output: offset after the last compared record. input_end: present end of the input; since: number of input
    offsets after the proof. None: not known.
    """

    partition: int
    input: int
    output: int
    input_end: int | None
    since: int | None


@dataclass(frozen=True, slots=True)
class StreamProof(Document):
    """Last proof of a stream as the page shows it.

    since: number of input offsets after the proof; None: not known. command: command that proves the stream.
    """

    stream: str
    proof: Proof | None
    partitions: list[ProofRow]
    since: int | None
    problems: list[str]
    command: str


@dataclass(frozen=True, slots=True)
class ProofPage(Document):
    """Last proof of each stream."""

    streams: list[StreamProof]


PARTITION_COLUMNS: Final = (
    Column[ProofRow]("partition", "Partition", "text", is_row_heading=True),
    Column[ProofRow]("input", "Input"),
    Column[ProofRow]("output", "Output"),
    Column[ProofRow]("input_end", "Input end now"),
    Column[ProofRow]("since", "Since"),
)


def _counted(name: str, heading: str, *, is_bad: bool = False) -> Column[Mapping[str, int]]:
    return Column(name, heading, value=lambda counts: counts.get(name), is_bad=is_bad)


COUNT_COLUMNS: Final = (
    *(_counted(kind, kind.capitalize(), is_bad=True) for kind in VERDICT_KINDS),
    *(_counted(verdict, HEADINGS[verdict]) for verdict in (FRESH, DUPLICATE, INVALID)),
    _counted("pending", "Pending"),
)


def unproven_sentence(reasons: Iterable[str]) -> str:
    """Return the sentence about an incomplete proof. reasons: the pending or uncompared parts."""
    return f"not all proven: {', '.join(reasons)}"


def stream_proof(stream: str, proof: Proof | None, ends: Mapping[int, int | None]) -> StreamProof:
    """Return the last proof of a stream, compared with the present ends of the input's partitions."""
    rows, problems = [], []
    compared_to = {} if proof is None else proof.compared_to
    for number in sorted({*compared_to, *ends}) if proof is not None else ():
        (position, output), end = compared_to.get(number, (0, 0)), ends.get(number)
        rows.append(ProofRow(number, position, output, end, None if end is None else max(0, end - position)))
        if end is not None and end < position:
            problems.append(
                f"input partition {number} ends at offset {end:,}, before the proven offsets: the topic was "
                "deleted and created again, or has lost its end. The proof is about the former records. Run the "
                "command again"
            )
    known = [row.since for row in rows if row.since is not None]
    since = sum(known) if rows and len(known) == len(rows) else None
    command = shlex.join(["ratchet", "verify", "--stream", stream, "--record"])
    return StreamProof(stream, proof, rows, since, problems, command)
