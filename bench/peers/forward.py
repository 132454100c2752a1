"""The worker with an agent that judges nothing: what deduplication itself costs is the difference."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np

from bench.subjects import Task, worker_settings
from kafka_ratchet.agents import deduplicate
from kafka_ratchet.app.cli import main
from kafka_ratchet.transport.delivery import Delivery


def forward_all(*_: object) -> Callable[[AsyncIterator[Delivery]], Awaitable[None]]:
    """Stands in for `deduplicate.deduplicate`."""

    async def agent(deliveries: AsyncIterator[Delivery]) -> None:
        async for delivery in deliveries:
            async with delivery as batch:
                delivery.forward(np.ones(batch.count, np.bool_))

    return agent


if __name__ == "__main__":
    setattr(deduplicate, "deduplicate", forward_all)  # noqa: B010 - it is not meant to be replaced
    task = Task(**json.loads(sys.argv[1]))
    sys.argv[1:] = ["worker", "--config", str(worker_settings(task))]
    main()
