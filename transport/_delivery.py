"""A batch on its way from its lane through the agent and back."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from errors import Aborted
from transport._encoding import EncodedBatch, forward, with_headers
from transport._record_batch import Header, RecordBatch

if TYPE_CHECKING:
    from transport._lane import Lane


class Delivery:
    """A batch on its way through the agent.

    Leave it through `async with`: an error gives it back to the lane, which retries.
    """

    def __init__(self, lane: Lane, batch: RecordBatch) -> None:
        self.batch = batch
        self.spec = lane.spec
        self.policy = lane.switch.policy
        self.outputs: deque[tuple[str, EncodedBatch]] = deque()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def forward(self, keep: NDArray[np.bool_]) -> None:
        """Send these records to the output topic as they are. keep: bool[batch.count]."""
        compression = self.batch.codec if self.spec.compression == "input" else self.spec.compression
        for encoded in forward(self.batch, keep, self.spec.output_limit, compression):
            self.outputs.append((self.spec.output, encoded))

    def dead_letter(self, index: int, reason: str) -> None:
        """Send one record to the dead-letter topic as it is, with headers that say why and where it was."""
        headers = [
            Header("ratchet-reason", reason.encode()),
            Header("ratchet-topic", self.batch.topic.encode()),
            Header("ratchet-partition", str(self.batch.partition).encode()),
            Header("ratchet-offset", str(int(self.batch.offsets[index])).encode()),
        ]
        self.outputs.append(
            (self.spec.dead_letters, with_headers(self.batch, index, headers, self.spec.dead_letters_limit))
        )

    async def __aenter__(self) -> RecordBatch:
        return self.batch

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not self.done.done():
            if error is None:
                self.done.set_result(None)
            elif isinstance(error, Exception):
                self.done.set_exception(error)
            else:
                # The agent itself is being stopped; the lane is not.
                self.done.set_exception(
                    Aborted(
                        f"{self.batch.topic}, partition {self.batch.partition}: the agent was stopped while it held "
                        f"offset {self.batch.start}"
                    )
                )
        # The lane has the error and tries again; the agent goes on with the other partitions.
        return isinstance(error, Exception)
