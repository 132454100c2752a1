"""The deduplicating agent: forwards a record, drops it as a duplicate, or dead-letters it with its reason.

Where deduplication is switched off it forwards everything, and the table stands still.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.agents.extraction import Reader
from kafka_ratchet.agents.whose import Whose
from kafka_ratchet.tables.map.kernels import FRESH, INVALID
from kafka_ratchet.tables.map.map import UNASKED
from kafka_ratchet.tables.reasons import REASONS
from kafka_ratchet.tables.table import Sequences, SequenceTable
from kafka_ratchet.transport.batch.dropped import Dropped
from kafka_ratchet.transport.delivery import Delivery

VERDICT_NAMES: Final = (b"fresh", b"duplicate", b"invalid", b"too-late", b"content-differs")
"""By the number of a verdict, what the header of a dropped record says."""

NONE_LETTERED: Final[Mapping[int, str]] = MappingProxyType({})

Then = Callable[[Delivery, NDArray[np.bool_]], None]


def register(
    app: Any,
    channel: Any,
    name: str,
    sequences: Sequences,
    read: Reader,
    partitions: int,
    then: Then | None = None,
    lettered: Mapping[int, str] = NONE_LETTERED,
    whose: Whose | None = None,
) -> None:
    """Add a stream's table and its deduplicating agent to a Faust app.

    Args:
        app: the Faust app
        channel: where the stream's lanes put their deliveries
        name: of the stream
        sequences: the stream's table
        read: reads the sequences of a batch
        partitions: of the input, the output and the changelog
        then: see `deduplicate`
        lettered: see `deduplicate`
        whose: see `deduplicate`
    """
    app.tables.add(SequenceTable(app, name=name, sequences=sequences, partitions=partitions))
    app.agent(channel, name=f"deduplicate-{name}")(deduplicate(sequences, read, then, lettered, whose))


def deduplicate(
    sequences: Sequences,
    read: Reader,
    then: Then | None = None,
    lettered: Mapping[int, str] = NONE_LETTERED,
    whose: Whose | None = None,
) -> Callable[[AsyncIterator[Delivery]], Awaitable[None]]:
    """The agent of a stream, for `app.agent(channel)`.

    Args:
        sequences: the stream's table
        read: reads the sequences of a batch
        then: takes what is to be forwarded, and gives the delivery back to its lane; None: it is forwarded
        lettered: by verdict, the reason with which such records become dead letters. Others that are neither fresh nor
            invalid are dropped
        whose: reads the identities of a batch; None: its columns have them
    """

    def pass_on(delivery: Delivery, fresh: NDArray[np.bool_], found: NDArray[np.int64] | None) -> None:
        if then is None:
            delivery.forward(fresh)
        else:
            delivery.sequences = found
            then(delivery, fresh)

    async def agent(deliveries: AsyncIterator[Delivery]) -> None:
        async for delivery in deliveries:
            if delivery.done.done():
                # Its lane has stopped waiting. Judged now, the batch would move what is pushed in no transaction at
                # all, and the partition's next owner would find its records duplicates.
                continue
            async with delivery as batch:
                sequences.under(delivery.policy, batch)
                if not delivery.policy.deduplicate:
                    pass_on(delivery, np.ones(batch.count, np.bool_), None)
                    continue
                found, reasons = read(batch)
                against = np.empty(batch.count, np.int64) if delivery.spec.duplicates else UNASKED
                identities = whose(batch, reasons) if whose else None
                verdicts, reasons = sequences.judge(batch, found, reasons, against, identities, delivery.spec.letters)
                for index in np.flatnonzero(verdicts == INVALID).tolist():
                    delivery.dead_letter(index, REASONS[reasons[index]])
                for verdict, reason in lettered.items():
                    for index in np.flatnonzero(verdicts == verdict).tolist():
                        delivery.dead_letter(index, reason)
                if delivery.spec.duplicates:
                    is_kept = (verdicts != FRESH) & (verdicts != INVALID) & ~np.isin(verdicts, [*lettered])
                    rows = np.flatnonzero(is_kept)
                    if len(rows):
                        delivery.drop(Dropped(rows, verdicts[rows], against[rows], VERDICT_NAMES))
                pass_on(delivery, verdicts == FRESH, found)

    return agent


def withhold(delivery: Delivery, fresh: NDArray[np.bool_]) -> None:
    """In place of what is done with fresh records, in a stream for its counts alone: nothing."""
