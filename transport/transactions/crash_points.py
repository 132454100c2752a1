"""Crash points in the durable order: places at which a test can have this process killed.

`TRANSPORT_CRASH_AT=NAME:N` kills the process, with SIGKILL, the Nth time it comes to the point (N from 1). Without that
variable, a point is a call of an empty function, a few times per commit. The commit of a lane's start passes none of
them, so that `offered:1` is in a transaction with records. The order of the points is the durable order
(docs/decisions/0001):

    fenced        transactional id initialised, nothing read yet
    restored      committed offset read and changelog replayed, nothing fetched yet
    fetched       step 1, for one batch
    judged        step 2: the pushed state has changed, nothing is sent
    produced      step 3, output and dead letters are on their way
    logged        step 3, the changelog is on its way as well
    offered       step 4: everything is acknowledged and the offset sent; the request to end is not sent
    committed     step 5: the transaction is committed, the state in memory not yet updated
    remembered    step 6: pushed has become persisted, the local store not yet written
    saved         step 6: the local store is written

Only where a program's agent runs, between `fetched` and `judged`:

    agent         the agent has worked through a batch: it has yielded and written to tables

The agent's outputs are in memory at `agent` and `judged`, in flight at `produced` and `logged`, acknowledged at
`offered`. Its table writes are in memory up to `produced`, in flight at `logged`, and acknowledged at `offered`. The
local store has them at `saved`, never before `committed`.

Only where Kafka has left a transaction open (docs/decisions/0016-a-note-before-taking-over.md), and before `fenced`:

    noted         the transaction's outcome is recorded, the id is not taken over yet
    owing         the id is taken over, which made Kafka forget the outcome
    completing    the empty transaction that completes it has begun

Not in a worker, but where `ratchet publish` sends batches (kafka_ratchet.transport.publishing):

    block-read    a block of the file is read and its digest kept, nothing of it is sent
    block-sent    its batches wait for Kafka, or are on their way
    batch-there   Kafka has acknowledged a batch, and the producer has not processed the answer yet
"""

from __future__ import annotations

import contextvars
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

VARIABLE: Final = "TRANSPORT_CRASH_AT"
POINTS: Final = (
    "fenced",
    "restored",
    "fetched",
    "judged",
    "produced",
    "logged",
    "offered",
    "committed",
    "remembered",
    "saved",
)
AGENT_POINTS: Final = ("agent",)
COMPLETION_POINTS: Final = ("noted", "owing", "completing")
PUBLISHING_POINTS: Final = ("block-read", "block-sent", "batch-there")


_COUNTS: Final = contextvars.ContextVar("counts", default=True)
"""False in a task during a transaction without crash points."""


@contextmanager
def not_counted() -> Iterator[None]:
    """Pass no crash points in the block and in tasks that it creates."""
    token = _COUNTS.set(False)
    try:
        yield
    finally:
        _COUNTS.reset(token)


class _Plan:
    def __init__(self, text: str) -> None:
        self.point, _, times = text.partition(":")
        self.left = int(times or 1)
        known = POINTS + AGENT_POINTS + COMPLETION_POINTS + PUBLISHING_POINTS
        if self.point not in known:
            points = ", ".join(known)
            raise ValueError(f"{VARIABLE}={text}: unknown crash point; write one of {points}")

    def __call__(self, point: str) -> None:
        if point == self.point and _COUNTS.get():
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def _never(point: str) -> None:
    """Do nothing: the default when no crash is planned."""


crash_point = _Plan(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else _never
