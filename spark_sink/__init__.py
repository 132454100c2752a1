"""The Spark job: committed records of a Kafka topic become rows of a table, each exactly once.

The table itself knows how far it has read: rows and Kafka offsets change in one atomic commit, and no checkpoint lies
beside it. This package imports nothing of Ratchet's other rooms, so that it ships to a Spark cluster as one zip; it
needs pyspark, pyarrow, deltalake and confluent-kafka in the driver, and pyarrow in the executors.
"""

from spark_sink._delta import DeltaStore
from spark_sink._duckdb import DuckDBStore
from spark_sink._iceberg import IcebergStore
from spark_sink._job import Job, Outcome, run_batch
from spark_sink._plan import TopicPlanner
from spark_sink._postgres import PostgresStore
from spark_sink._results import count, read_totals
from spark_sink._session import spark_session
from spark_sink._store import ResultStore
from spark_sink._versions import SPARK_KAFKA
from spark_sink.errors import Fenced, OffsetsLost, SinkError, TopicRecreated

__all__ = [
    "SPARK_KAFKA",
    "DeltaStore",
    "DuckDBStore",
    "Fenced",
    "IcebergStore",
    "Job",
    "OffsetsLost",
    "Outcome",
    "PostgresStore",
    "ResultStore",
    "SinkError",
    "TopicPlanner",
    "TopicRecreated",
    "count",
    "read_totals",
    "run_batch",
    "spark_session",
]
