"""A Spark of its own with Delta's writer and Iceberg's runtime: executes the statements that it is told, line by line.

python other_writer.py JARS FOLDER      JARS: comma-separated; FOLDER: the warehouse of Iceberg's catalog `ratchet`
"""

from __future__ import annotations

import json
import os
import sys
from typing import TextIO


def main(jars: str, folder: str, answers: TextIO) -> None:
    """Answer each statement with a line of JSON: its rows, or the error."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.ratchet": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ratchet.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "spark.sql.catalog.ratchet.uri": f"jdbc:sqlite:{folder}/catalog.db",
        "spark.sql.catalog.ratchet.warehouse": f"file://{folder}",
        "spark.sql.catalog.ratchet.jdbc.schema-version": "V1",
        "spark.sql.catalog.ratchet.cache-enabled": "false",
    }
    builder = SparkSession.builder.master("local[1]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for line in sys.stdin:
        try:
            rows = [row.asDict(recursive=True) for row in spark.sql(json.loads(line)).collect()]
            answer: dict[str, object] = {"rows": rows}
        except Exception as error:
            answer = {"error": str(error)[:2000]}
        print(json.dumps(answer, default=str), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    # Spark itself prints to standard output now and then.
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main(sys.argv[1], sys.argv[2], own)
