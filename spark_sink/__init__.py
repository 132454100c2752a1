"""Spark job: committed records of a Kafka topic become rows of a table, each exactly once.

The table itself knows how far it has read: rows and Kafka offsets change in one atomic commit, and no other checkpoint
exists. This package imports nothing of Ratchet's other packages, so that it ships to a Spark cluster as one zip. The
driver needs pyspark, pyarrow, confluent-kafka and the store's package; the executors need pyarrow, and psycopg or
PyMySQL for a database.

`exactly_once` is for Spark programs that users write themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_ratchet.spark_sink.library import Batch, Sink, exactly_once

__all__ = ["Batch", "Sink", "exactly_once"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kafka_ratchet.spark_sink' has no attribute {name!r}")
    from kafka_ratchet.spark_sink import library

    return getattr(library, name)
