"""A batch on its way from its lane through the agent and back."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.errors import Aborted
from kafka_ratchet.transport.batch.dropped import Dropped, encode_dropped
from kafka_ratchet.transport.batch.encoding import EncodedBatch, forward, with_headers
from kafka_ratchet.transport.batch.record_batch import Column, Header, RecordBatch
from kafka_ratchet.transport.correlation import correlate
from kafka_ratchet.transport.lane_spec import LaneSpec
from kafka_ratchet.transport.policy import Policy

REASON_MOST: Final = 4096
"""bytes of a reason in a dead letter: what an agent raises may be as long as the record."""
LETTER_AGENTS: Final = "ratchet-agents"
"""Header of a dead letter that agents have made: the names of those that rejected it, a JSON list."""

LETTER_APP: Final = "ratchet-app"
"""Header of such a dead letter: the application. Others that read the same input may share the topic of dead letters,
and have had the record."""


@dataclass
class _Rejection:
    """Why a record is a dead letter, where that stands in the outputs, and which agents rejected it."""

    reason: str
    place: int
    agents: list[str]


class Delivery:
    """A batch on its way through the agent.

    Leave it through `async with`: an error gives it back to the lane, which retries.

    Args:
        spec: of the lane
        policy: by which the batch is judged, or not
        batch: the records
    """

    def __init__(self, spec: LaneSpec, policy: Policy, batch: RecordBatch) -> None:
        self.batch, self.spec, self.policy = batch, spec, policy
        self.outputs: deque[tuple[str, int, EncodedBatch]] = deque()
        """For the lane to produce, in this order: topic, partition, records."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sequences: Column | None = None
        """int64[batch.count], by which the batch was judged, for an agent of one's own; None: it was not judged."""
        self.is_taken = False
        """Somebody else gives it back: leaving it does not."""
        self.held_by: Callable[[], str] | None = None
        """Which agent of one's own works on it, and where it stands."""
        self._rejected: dict[int, _Rejection] = {}

    @property
    def compression(self) -> str:
        """Of what is written for this batch."""
        return self.batch.codec if self.spec.compression == "input" else self.spec.compression

    def forward(self, keep: NDArray[np.bool_]) -> None:
        """Send these records to the output topic as they are. keep: bool[batch.count]."""
        for encoded in forward(self.batch, keep, self.spec.output_limit, self.compression):
            self.outputs.append((self.spec.output, self.spec.partition, encoded))

    def drop(self, dropped: Dropped) -> None:
        """Send these records to the topic of duplicates, as they are or without values, with headers that say why.

        Raises:
            RecordTooLarge: a record does not fit.
        """
        spec = self.spec
        for encoded in encode_dropped(
            self.batch,
            dropped,
            spec.duplicates,
            spec.duplicates_limit,
            self.compression,
            values=spec.duplicates_values,
        ):
            self.outputs.append((spec.duplicates, spec.partition, encoded))

    def dead_letter(self, index: int, reason: str, agent: str | None = None) -> None:
        """Send one record to the dead-letter topic as it is, with headers that say why and where it was.

        Once: where several agents reject it, the first one says why.

        Args:
            index: of the record
            reason: why; of any length
            agent: name of the one that rejects it; None where judging does
        """
        known = self._rejected.get(index)
        if known is None:
            known = self._rejected[index] = _Rejection(reason, len(self.outputs), [])
        elif agent is None or agent in known.agents:
            return
        known.agents += [agent] if agent is not None else []
        letter = with_headers(self.batch, index, self._letter_headers(index, known), self.spec.dead_letters_limit)
        output = self.spec.dead_letters, self.spec.partition, letter
        if known.place == len(self.outputs):
            self.outputs.append(output)
        else:
            self.outputs[known.place] = output

    def _letter_headers(self, index: int, rejection: _Rejection) -> list[Header]:
        why = rejection.reason.encode(errors="backslashreplace")[:REASON_MOST].decode(errors="ignore").encode()
        agents = json.dumps(rejection.agents).encode()
        app = Header(LETTER_APP, self.spec.app.encode())
        return [
            *([app, Header(LETTER_AGENTS, agents)] if rejection.agents else []),
            Header("ratchet-reason", why),
            Header("ratchet-topic", self.batch.topic.encode()),
            Header("ratchet-partition", str(self.batch.partition).encode()),
            Header("ratchet-offset", str(int(self.batch.offsets[index])).encode()),
        ]

    async def __aenter__(self) -> RecordBatch:
        spec, start = self.spec, self.batch.start
        correlate(lambda: spec.correlation(start))
        return self.batch

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        correlate(None)
        if not self.done.done() and not (self.is_taken and error is None):
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
