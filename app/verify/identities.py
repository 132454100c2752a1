"""Each identity's records on their way: accepted from the input, emitted to the output, in the result table."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

UNMATCHED = -1
"""Place of an output record that stems from nothing in the input."""


def numbers(held: array[int]) -> Numbers:
    """Return a NumPy view of the array, without a copy."""
    return np.frombuffer(held, np.int64) if held else np.empty(0, np.int64)


class Emitted:
    """Records of one output partition: their offsets, and their places among the expected ones."""

    def __init__(self) -> None:
        self._offsets = array("q")
        self._places = array("q")
        self._timestamps = array("q")

    def add(self, offset: int, place: int, timestamp_ms: int) -> None:
        """Add the next record of the output."""
        self._offsets.append(offset)
        self._places.append(place)
        self._timestamps.append(timestamp_ms)

    def recognise(self, index: int, place: int) -> None:
        """An unmatched record turned out to be an expected record after all."""
        self._places[index] = place

    @property
    def offsets(self) -> Numbers:
        """Offsets of the records, ascending."""
        return numbers(self._offsets)

    @property
    def timestamps_ms(self) -> Numbers:
        """Timestamp of each record, as Kafka has it."""
        return numbers(self._timestamps)

    @property
    def places(self) -> Numbers:
        """Place of each record among the expected ones; `UNMATCHED`: none."""
        return numbers(self._places)


@dataclass(slots=True)
class Account:
    """One identity's records, all partitions together."""

    accepted: int = 0
    """Records of the input to forward, each once."""
    emitted: int = 0
    """Records in the output."""
    rows: int = 0
    """Records in the result table; in one with a key: read by the job and not rejected."""
    rejects: int = 0
    """Records in the table of rejects."""
    waiting: int = 0
    """Not in the output, or not in the table, because worker or job have not come that far."""
    lost: int = 0
    """Not in the output or not in the table, although worker or job are past them."""
    doubled: int = 0
    """There more than once, in the output or in the table, without the first."""

    @property
    def ok(self) -> bool:
        """Return True if none of them is lost or doubled."""
        return not (self.lost or self.doubled)


@dataclass(frozen=True)
class Steps:
    """Table steps of each output record of a partition; columns like `Emitted.offsets`."""

    rows: Numbers
    rejects: Numbers
    waiting: Flags
    lost: Flags


class Accounts:
    """All identities. None stands for output records that stem from nothing in the input."""

    def __init__(self) -> None:
        self._of: dict[bytes | None, Account] = {}

    def __len__(self) -> int:
        return len(self._of)

    def add(
        self,
        identities: Sequence[bytes],
        owners: Numbers,
        seen: Flags,
        due: Flags,
        emitted: Emitted,
        steps: Steps,
    ) -> None:
        """Add one partition.

        Args:
            identities: by number.
            owners: number of the identity of each expected record.
            seen: True where the output has it.
            due: True where the output must have it.
            emitted: the output.
            steps: steps of the table.
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
            held = self._of.get(name, Account())
            accepted, sent, rows, rejects, waiting, lost, doubled = found
            self._of[name] = Account(
                held.accepted + accepted,
                held.emitted + sent,
                held.rows + rows,
                held.rejects + rejects,
                held.waiting + waiting,
                held.lost + lost,
                held.doubled + doubled,
            )

    def first(self, limit: int) -> Iterator[tuple[bytes | None, Account]]:
        """Those with something lost or doubled first, then those with most records."""
        ranked = sorted(self._of.items(), key=lambda item: (item[1].ok, -item[1].accepted, item[0] or b""))
        yield from ranked[:limit]

    def total(self) -> Account:
        """Return the sums over all identities."""
        rows = [
            (each.accepted, each.emitted, each.rows, each.rejects, each.waiting, each.lost, each.doubled)
            for each in self._of.values()
        ]
        return Account(*(sum(column) for column in zip(*rows, strict=True))) if rows else Account()
