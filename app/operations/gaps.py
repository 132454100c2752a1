"""`ratchet gaps`: identities with missing sequences, in a stream of contiguous numbers (`dense = true`).

It is read from the changelog to its end, committed entries alone, so no worker need run.
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
"""Format of two fields of an entry: first sequence, and number of seen sequences (see
`kafka_ratchet.tables.map.entries`)."""
FLAGS_AND_WORDS, FINGERPRINT_BYTES = 2, 8


class Gap(msgspec.Struct, frozen=True):
    """Identity with missing sequences, in one partition.

    identity: as text; None if it is not UTF-8
    first: the lowest sequence seen, or the start of counting
    last, seen: the highest sequence, and the number of sequences seen from `first` on
    """

    identity: str | None
    identity_hex: str
    partition: int
    first: int
    last: int
    seen: int
    missing: int


class Gaps(msgspec.Struct, frozen=True):
    """Gaps of a stream: number of identities and of missing sequences, and the largest gaps first.

    An identity in two partitions counts twice.
    """

    stream: str
    identities: int
    missing: int
    gaps: list[Gap]


def gap_of(row: Row) -> Gap | None:
    """Return an identity's missing sequences; None if none is missing, or they are not counted."""
    if not row.state or not row.state[0] & COUNTED:
        return None
    at = FLAGS_AND_WORDS + (FINGERPRINT_BYTES if row.state[0] & FINGERPRINT else 0)
    first, seen = COUNTS.unpack_from(row.state, at)
    missing = row.sequence - first + 1 - seen
    if missing <= 0:
        return None
    return Gap(text_of(row.identity), row.identity.hex(), row.partition or 0, first, row.sequence, seen, missing)


def gaps_of(stream: str, rows: Iterable[Row], limit: int) -> Gaps:
    """Return the sums over all identities, and the `limit` identities that lack most sequences."""
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
