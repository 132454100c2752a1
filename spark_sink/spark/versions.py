"""The one place that says which Kafka connector the job loads."""

from __future__ import annotations

SPARK_KAFKA = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
"""Maven coordinate of Spark's Kafka connector.

4.0.0 is the newest release whose own dependency `spark-token-provider-kafka-0-10_2.13` Maven Central has in the same
version, so `--packages` resolves it as it stands. pyspark in pyproject.toml is pinned to the same number: the connector
calls into Spark's internals and works with its own release only.
"""
