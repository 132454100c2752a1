"""Starting Spark for the job."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.spark.terminal import starting
from kafka_ratchet.spark_sink.spark.versions import SPARK_KAFKA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROW_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # All or nothing per JSON value; see `columns.rows`.
    "spark.sql.json.enablePartialResults": "false",
    # Records may be of a megabyte each, and Spark's default of 10,000 to an Arrow batch knows no bytes.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 1024 * 1024),
}
"""Settings that the rows depend on; they are set in every session, also in one that was there before."""

LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.catalogImplementation": "in-memory",
}
"""A job on this machine alone: nothing listens to the outside, nothing but the job's own lines is printed."""


REMOTE = "SPARK_REMOTE"
"""pyspark's variable with the address of a Spark Connect server, such as sc://host:15002."""


@contextmanager
def spark_session(name: str, jars: Sequence[str] = (), master: str = "local[*]") -> Iterator[SparkSession]:
    """A running Spark; stopped at the end.

    Under spark-submit, and with a Spark Connect server, theirs are the master, jars and memory; only the job's own
    settings are made.

    Args:
        name: name of the Spark application.
        jars: paths of the Kafka connector's jars; none: Spark fetches `SPARK_KAFKA` from Maven Central, or its cache.
        master: where Spark runs when this process starts it.

    Raises:
        OptionRefused: a jar does not exist.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    for key, value in ROW_SETTINGS.items():
        builder = builder.config(key, value)
    with contextlib.ExitStack() as cleanup:
        if under_spark_submit():
            with starting("Spark"):
                spark = builder.getOrCreate()
        else:
            builder = builder.master(master)
            for key, value in LOCAL_SETTINGS.items():
                builder = builder.config(key, value)
            builder = builder.config("spark.jars", ",".join(_paths(jars))) if jars else builder
            builder = builder if jars else builder.config("spark.jars.packages", SPARK_KAFKA)
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            # Workers run the driver's interpreter, not whatever `python3` the path has.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            # Spark 4.0 makes folders of its own (artifacts, spark-warehouse) in the JVM's working folder.
            scratch = cleanup.enter_context(
                tempfile.TemporaryDirectory(prefix="spark-sink-", ignore_cleanup_errors=True)
            )
            with contextlib.chdir(scratch), starting(f"Spark ({master})"):
                spark = builder.getOrCreate()
        cleanup.callback(spark.stop)
        if REMOTE not in os.environ:  # the log of a Spark Connect server is its own affair
            spark.sparkContext.setLogLevel("WARN")
        yield spark


@contextmanager
def existing_session(spark: SparkSession) -> Iterator[SparkSession]:
    """A Spark that was there before and stays: a notebook's, or one of Spark Connect.

    The settings that the rows depend on are set, and restored at the end.
    """
    before = {key: spark.conf.get(key) for key in ROW_SETTINGS}
    for key, value in ROW_SETTINGS.items():
        spark.conf.set(key, value)
    try:
        yield spark
    finally:
        for key, earlier in before.items():
            spark.conf.set(key, str(earlier))


def under_spark_submit() -> bool:
    """Whether it is decided elsewhere where Spark runs: by spark-submit, or a Spark Connect server.

    spark-submit starts the JVM first and tells the driver's Python the port to talk to it.
    """
    return REMOTE in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ


def _paths(jars: Sequence[str]) -> list[str]:
    paths = [Path(jar).absolute() for jar in jars]
    for path in paths:
        if not path.is_file():
            raise OptionRefused(f"jar {path} does not exist")
    return [str(path) for path in paths]
