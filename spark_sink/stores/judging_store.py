"""What a store has to provide beside a `ResultStore` so that a job can judge a raw topic itself."""

from __future__ import annotations

from typing import Protocol

from kafka_ratchet.spark_sink.rows.judging.task import Known
from kafka_ratchet.spark_sink.stores.store import ResultStore


class JudgingStore(ResultStore, Protocol):
    """A store whose commits bring last sequences as well, see `ResultStore.commit`."""

    def known_sequences(self) -> Known | None:
        """Last sequences as of the stored offsets, of an open store, as the executors ask for them; None: none yet."""
        ...

    def require_sequences(self) -> None:
        """Look whether the last sequences are those of the stored offsets, whatever else is wrong.

        Raises:
            SequencesLost: they are not.
            StoreError: the store cannot be read.
        """
        ...
