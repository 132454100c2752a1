"""Counts of each identity's records in input, output and result table."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

UNMATCHED = -1
"""Index in place of an expected record's, for an output record that matches none."""


def numbers(held: array[int]) -> Numbers:
    """Return an array of 8-byte integers as a NumPy view, without a copy."""
    return np.frombuffer(held, np.int64) if held else np.empty(0, np.int64)


class OutputRecords:
    """Records of one output partition: offsets, timestamps, and indices of their expected records."""

    def __init__(self) -> None:
        self._offsets = array("q")
        self._places = array("q")
        self._timestamps = array("q")

    def add(self, offset: int, place: int, timestamp_ms: int) -> None:
        """Add the next record of the output. place: index of its expected record, or UNMATCHED."""
        self._offsets.append(offset)
        self._places.append(place)
        self._timestamps.append(timestamp_ms)

    def recognise(self, index: int, place: int) -> None:
        """Assign an output record, added as UNMATCHED, to an expected record.

        index: index of the output record; place: index of the expected record
        """
        self._places[index] = place

    @property
    def offsets(self) -> Numbers:
        """Return the offsets of the records, ascending."""
        return numbers(self._offsets)

    @property
    def timestamps_ms(self) -> Numbers:
        """Return Kafka's timestamp of each record, in milliseconds since the epoch."""
        return numbers(self._timestamps)

    @property
    def places(self) -> Numbers:
        """Return the index of each record's expected record; `UNMATCHED`: none."""
        return numbers(self._places)


@dataclass(slots=True)
class IdentityCounts:
    """Counts of one identity's records, over all partitions."""

    accepted: int = 0
    """Records of the input to forward, without repeats."""
    emitted: int = 0
    """Records in the output, with repeats."""
    rows: int = 0
    """Rows in the result table; for a table with a key, records that the job has read and not rejected."""
    rejects: int = 0
    """Records in the table of rejects."""
    waiting: int = 0
    """Records missing in output or table because worker or job has not reached them yet."""
    lost: int = 0
    """Records missing in output or table although the worker's or job's position is past them."""
    doubled: int = 0
    """Repeats in output or table, not counting the first occurrence."""

    @property
    def ok(self) -> bool:
        """Return True if no record of the identity is lost or doubled."""
        return not (self.lost or self.doubled)


@dataclass(frozen=True)
class OutputStates:
    """Arrays with the state of each output record of a partition in the result table.

    rows, rejects: number of rows, or of rejects, of the record.
    waiting: True if the table lacks the record, and the job may still write it.
    lost: True if the table lacks the record, and must have it
    """

    rows: Numbers
    rejects: Numbers
    waiting: Flags
    lost: Flags


class CountsByIdentity:
    """Counts of records by identity; None stands for output records without an input record."""

    def __init__(self) -> None:
        self._of: dict[bytes | None, IdentityCounts] = {}

    def __len__(self) -> int:
        return len(self._of)

    def add(
        self,
        identities: Sequence[bytes],
        owners: Numbers,
        seen: Flags,
        due: Flags,
        emitted: OutputRecords,
        steps: OutputStates,
    ) -> None:
        """Add the records of one partition.

        Args:
            identities: identities by number.
            owners: number of each expected record's identity.
            seen: True for each expected record found in the output.
            due: True for each expected record that must be in the output.
            emitted: records of the output.
            steps: state in the table of each output record.
        """
        size = len(identities) + 1  # the last number is that of the unmatched records
        owners_emitted = np.append(owners, size - 1)[emitted.places]  # UNMATCHED is the last

        def summed(of: Numbers, weights: npt.NDArray[np.generic] | None = None) -> Numbers:
            return np.bincount(of, weights, size).astype(np.int64)

        out = summed(owners_emitted)
        once = summed(owners[seen])
        once[-1] = out[-1]
        there = steps.rows + steps.rejects
        figures = np.stack(
            [
                summed(owners),
                out,
                summed(owners_emitted, steps.rows),
                summed(owners_emitted, steps.rejects),
                summed(owners[~seen & ~due]) + summed(owners_emitted[steps.waiting]),
                summed(owners[~seen & due]) + summed(owners_emitted[steps.lost]),
                np.maximum(out - once, 0) + summed(owners_emitted, np.maximum(there - 1, 0)),
            ],
            axis=1,
        )
        for name, found in zip([*identities, None], figures.tolist(), strict=True):
            if not any(found):
                continue
            held = self._of.get(name, IdentityCounts())
            accepted, sent, rows, rejects, waiting, lost, doubled = found
            self._of[name] = IdentityCounts(
                held.accepted + accepted,
                held.emitted + sent,
                held.rows + rows,
                held.rejects + rejects,
                held.waiting + waiting,
                held.lost + lost,
                held.doubled + doubled,
            )

    def first(self, limit: int) -> Iterator[tuple[bytes | None, IdentityCounts]]:
        """Yield up to `limit` identities with their counts.

        Identities with lost or doubled records come first, then those with most records.
        """
        ranked = sorted(self._of.items(), key=lambda item: (item[1].ok, -item[1].accepted, item[0] or b""))
        yield from ranked[:limit]

    def total(self) -> IdentityCounts:
        """Return the sum of the counts of all identities."""
        rows = [
            (each.accepted, each.emitted, each.rows, each.rejects, each.waiting, each.lost, each.doubled)
            for each in self._of.values()
        ]
        return IdentityCounts(*(sum(column) for column in zip(*rows, strict=True))) if rows else IdentityCounts()
