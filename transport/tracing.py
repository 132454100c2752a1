"""What a lane tells of its transactions to whoever traces them."""

from __future__ import annotations

from typing import Protocol

from kafka_ratchet.transport.batch.record_batch import RecordBatch


class TransactionTrace(Protocol):
    """Told of the transactions of one lane, one after the other. It raises nothing."""

    def begun(self, position: int) -> None:
        """A transaction is open. position: next input offset."""

    def read(self, batch: RecordBatch) -> None:
        """These records are judged in it."""

    def ended(self, position: int, *, is_committed: bool) -> None:
        """It is committed or given up, if one was open. position: next input offset."""
