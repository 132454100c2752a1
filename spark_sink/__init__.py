"""The Spark job: committed records of a Kafka topic become rows of a table, each exactly once.

The table itself knows how far it has read: rows and Kafka offsets change in one atomic commit, and no checkpoint lies
beside it. This package imports nothing of Ratchet's other rooms, so that it ships to a Spark cluster as one zip; it
needs pyspark, pyarrow, confluent-kafka and the store's package in the driver; pyarrow, and psycopg for PostgreSQL, in
the executors.
"""

from spark_sink._avro import AvroValues, avro_values
from spark_sink._delta import DeltaStore
from spark_sink._duckdb import DuckDBStore
from spark_sink._first_columns import with_columns
from spark_sink._iceberg import IcebergStore
from spark_sink._job import Outcome, run_batch, run_stream
from spark_sink._kafka_options import java_options
from spark_sink._open import Place, make_store, rejects_place
from spark_sink._package import write_package
from spark_sink._plan import TopicPlanner, resume
from spark_sink._postgres import PostgresStore
from spark_sink._reading import Job
from spark_sink._recipe import Recipe
from spark_sink._recount import Recount, recount
from spark_sink._results import count, read_rows, read_totals
from spark_sink._scan import partition_and_offset, scan
from spark_sink._session import existing_session, spark_session
from spark_sink._shape import COUNT_COLUMN, Shape
from spark_sink._status import Standing, standing
from spark_sink._store import ResultStore
from spark_sink._structured import run_structured
from spark_sink._vacuum import Orphan, vacuum
from spark_sink._versions import SPARK_KAFKA
from spark_sink.errors import Fenced, OffsetsLost, SinkError, SparkFailed, TopicRecreated

__all__ = [
    "COUNT_COLUMN",
    "SPARK_KAFKA",
    "AvroValues",
    "DeltaStore",
    "DuckDBStore",
    "Fenced",
    "IcebergStore",
    "Job",
    "OffsetsLost",
    "Orphan",
    "Outcome",
    "Place",
    "PostgresStore",
    "Recipe",
    "Recount",
    "ResultStore",
    "Shape",
    "SinkError",
    "SparkFailed",
    "Standing",
    "TopicPlanner",
    "TopicRecreated",
    "avro_values",
    "count",
    "existing_session",
    "java_options",
    "make_store",
    "partition_and_offset",
    "read_rows",
    "read_totals",
    "recount",
    "rejects_place",
    "resume",
    "run_batch",
    "run_stream",
    "run_structured",
    "scan",
    "spark_session",
    "standing",
    "vacuum",
    "with_columns",
    "write_package",
]
