"""Reader without Spark, which commits rows and Kafka offsets in one transaction of your own database.

It needs confluent-kafka and the database's package: none for SQLite, `psycopg` for PostgreSQL, `duckdb` for DuckDB, and
`pyarrow` for a transaction's records as an Arrow batch.
"""

from kafka_ratchet.reader.async_reader import AsyncReader, AsyncTransaction
from kafka_ratchet.reader.event import Event
from kafka_ratchet.reader.reader import Reader
from kafka_ratchet.reader.stores.duckdb import Duckdb
from kafka_ratchet.reader.stores.postgres import Postgres
from kafka_ratchet.reader.stores.sqlite import Sqlite
from kafka_ratchet.reader.transaction import Transaction

__all__ = ["AsyncReader", "AsyncTransaction", "Duckdb", "Event", "Postgres", "Reader", "Sqlite", "Transaction"]
