"""The deduplicating agent: a record is forwarded, counted as duplicate, or dead-lettered with its reason. Nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np

from tables import FRESH, INVALID, REASONS, Sequences
from transport import Delivery


def deduplicate(sequences: Sequences) -> Callable[[AsyncIterator[Delivery]], Awaitable[None]]:
    """The agent of a stream, for `app.agent(channel)`."""

    async def agent(deliveries: AsyncIterator[Delivery]) -> None:
        async for delivery in deliveries:
            async with delivery as batch:
                verdicts, reasons = sequences.judge(batch)
                delivery.forward(verdicts == FRESH)
                for index in np.flatnonzero(verdicts == INVALID).tolist():
                    delivery.dead_letter(index, REASONS[reasons[index]])

    return agent
