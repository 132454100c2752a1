"""Interface of a store for a job that judges a raw topic itself; it extends `ResultStore`."""

from __future__ import annotations

from typing import Protocol

from kafka_ratchet.spark_sink.rows.judging.task import Known
from kafka_ratchet.spark_sink.stores.store import ResultStore


class JudgingStore(ResultStore, Protocol):
    """Store that commits last sequences together with the rows, see `ResultStore.commit`."""

    def known_sequences(self) -> Known | None:
        """Return the function for Spark's tasks that looks up stored last sequences; None: none are stored yet."""
        ...

    def require_sequences(self) -> None:
        """Require that the last sequences belong to the stored offsets; check nothing else.

        Raises:
            SequencesLost: the last sequences belong to other offsets, or are missing.
            StoreError: the store cannot be read.
        """
        ...
