"""The deduplicating agent: forwards a record, counts it as duplicate, or dead-letters it with its reason.

Where deduplication is switched off it forwards everything, and the table stands still.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np

from tables import FRESH, INVALID, REASONS, Sequences
from transport import Delivery


def deduplicate(sequences: Sequences) -> Callable[[AsyncIterator[Delivery]], Awaitable[None]]:
    """The agent of a stream, for `app.agent(channel)`."""

    async def agent(deliveries: AsyncIterator[Delivery]) -> None:
        async for delivery in deliveries:
            if delivery.done.done():
                # Its lane has stopped waiting. Judged now, the batch would move what is pushed in no transaction at
                # all, and the partition's next owner would find its records duplicates.
                continue
            async with delivery as batch:
                sequences.under(delivery.policy, batch)
                if not delivery.policy.deduplicate:
                    delivery.forward(np.ones(batch.count, np.bool_))
                    continue
                verdicts, reasons = sequences.judge(batch)
                delivery.forward(verdicts == FRESH)
                for index in np.flatnonzero(verdicts == INVALID).tolist():
                    delivery.dead_letter(index, REASONS[reasons[index]])

    return agent
