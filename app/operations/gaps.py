"""`ratchet gaps`: identities with missing sequences, in a stream with contiguous sequences (`dense = true`).

It reads the committed entries of the stream's changelog, so it needs no running worker.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable
from typing import Final

import msgspec

from kafka_ratchet.app.operations.state_rows import Row, text_of
from kafka_ratchet.tables.map.entries import COUNTED, FINGERPRINT

COUNTS: Final = struct.Struct(">qq")
"""Encoding of two fields in a changelog entry: first sequence, and number of seen sequences (see
`kafka_ratchet.tables.map.entries`)."""
FLAGS_AND_WORDS, FINGERPRINT_BYTES = 2, 8


class Gap(msgspec.Struct, frozen=True):
    """Identity with missing sequences, in one partition.

    identity: the identity as text; None: it is not UTF-8.
    first: sequence at which counting began, usually the lowest one seen. If the identity was known before counting
        began, or an operator lowered its last sequence, first is the last sequence at that time.
    last: the highest sequence seen.
    seen: number of different sequences seen from `first` to `last`.
    """

    identity: str | None
    identity_hex: str
    partition: int
    first: int
    last: int
    seen: int
    missing: int


class Gaps(msgspec.Struct, frozen=True):
    """Gaps of a stream: number of identities with gaps, number of missing sequences, and the largest gaps first.

    An identity with gaps in two partitions counts as two.
    """

    stream: str
    identities: int
    missing: int
    gaps: list[Gap]


def gap_of(row: Row) -> Gap | None:
    """Return the gap of an identity; None if no sequence is missing, or the entry has no counts."""
    if not row.state or not row.state[0] & COUNTED:
        return None
    at = FLAGS_AND_WORDS + (FINGERPRINT_BYTES if row.state[0] & FINGERPRINT else 0)
    first, seen = COUNTS.unpack_from(row.state, at)
    missing = row.sequence - first + 1 - seen
    if missing <= 0:
        return None
    return Gap(text_of(row.identity), row.identity.hex(), row.partition or 0, first, row.sequence, seen, missing)


def gaps_of(stream: str, rows: Iterable[Row], limit: int) -> Gaps:
    """Return the totals of a stream, and the gaps of the `limit` identities with most missing sequences.

    rows: state of each identity and partition
    """
    identities = missing = 0

    def counted() -> Iterable[Gap]:
        nonlocal identities, missing
        for row in rows:
            if (gap := gap_of(row)) is not None:
                identities += 1
                missing += gap.missing
                yield gap

    largest = heapq.nsmallest(limit, counted(), key=lambda gap: (-gap.missing, gap.identity_hex, gap.partition))
    return Gaps(stream, identities, missing, largest)
