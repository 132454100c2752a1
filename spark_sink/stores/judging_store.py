"""Interface of a store for a job that judges a raw topic itself, on top of `ResultStore`."""

from __future__ import annotations

from typing import Protocol

from kafka_ratchet.spark_sink.rows.judging.task import Known
from kafka_ratchet.spark_sink.stores.store import ResultStore


class JudgingStore(ResultStore, Protocol):
    """Store that commits last sequences together with the rows, see `ResultStore.commit`."""

    def known_sequences(self) -> Known | None:
        """Return the last sequences as of the stored offsets, for executors to look into; None: none yet."""
        ...

    def require_sequences(self) -> None:
        """Check that the last sequences belong to the stored offsets, whatever else is wrong.

        Raises:
            SequencesLost: they do not.
            StoreError: the store cannot be read.
        """
        ...
