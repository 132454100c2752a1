"""Detector of large jumps of a sequence, which probably come from a misread number.

The record after a jump counts as fresh, because only its producer knows whether the number is wrong. But every later
record of the same identity with a lower sequence is a duplicate. So Ratchet logs a warning at once, with a remedy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from kafka_ratchet.tables.map.map import Jumps
from kafka_ratchet.transport.batch.record_batch import RecordBatch

log = structlog.get_logger(__name__)

LOG_AGAIN_S: Final = 10.0
"""Minimum seconds between two warnings: if every record jumps (random numbers), a line for each would fill the disk."""
SHOWN: Final = 80
"""Maximum characters of an identity in a log line; an identity may have 1,024."""


class JumpReport:
    """Counter of sequence jumps in one partition, which also logs them.

    Its field `total` counts the jumps committed since this worker took the partition over.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = 0
        self._clock = clock
        self._pending = 0
        self._unlogged_count = 0
        self._logged_at: float | None = None

    def note(self, batch: RecordBatch, identity: bytes | None, sequences: NDArray[np.int64], jumps: Jumps) -> None:
        """Count the sequence jumps of a judged batch, and log a warning at most every LOG_AGAIN_S.

        Args:
            batch: the judged batch
            identity: identity of the record in `jumps`; None: the identity is the partition
            sequences: int64[batch.count], sequence of each record
            jumps: jumps found by the map
        """
        self._pending += jumps.number
        self._unlogged_count += jumps.number
        now = self._clock()
        if self._logged_at is not None and now - self._logged_at < LOG_AGAIN_S:
            return
        at = jumps.record
        log.warning(
            "a sequence jumped by more than 2^40: every later record of this identity with a lower sequence is a "
            "duplicate. If the number is wrong, let the producer go on above it or under another name; if text was "
            'read as an integer, set sequence_form = "text" for the stream',
            topic=batch.topic,
            partition=batch.partition,
            offset=int(batch.offsets[at]),
            identity="the partition" if identity is None else identity.decode("utf-8", "backslashreplace")[:SHOWN],
            last=jumps.before if jumps.before >= 0 else None,
            sequence=int(sequences[at]),
            jumps=self._unlogged_count,
        )
        self._logged_at, self._unlogged_count = now, 0

    def commit(self) -> None:
        """Add the jumps of the committed transaction to `total`."""
        self.total += self._pending
        self._pending = 0

    def rollback(self) -> None:
        """Discard the jumps of the aborted transaction; its batches will be judged again."""
        self._pending = 0
