"""Spark session of the job: its start, its settings and its end."""

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
from kafka_ratchet.spark_sink.spark.versions import RELEASES, SparkRelease, installed_release, release_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROW_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # All or nothing per JSON value; see `columns.rows`.
    "spark.sql.json.enablePartialResults": "false",
    # Records may have a megabyte each, and Spark's default of 10,000 to an Arrow batch knows no bytes.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 1024 * 1024),
}
"""Settings of a session that the rows depend on; they are set in the caller's sessions too."""

BATCH_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
FEW_RECORDS = 1_000
"""Maximum number of rows in an Arrow batch, where Spark does not limit its bytes (Spark 3.5). With records of Kafka's
largest default size, such a batch has a gigabyte: half of Arrow's limit."""

LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.catalogImplementation": "in-memory",
}
"""Settings of a job on this machine alone: no port is open to other machines, and only the job's own lines are
printed."""


REMOTE = "SPARK_REMOTE"
"""Environment variable of pyspark with the address of a Spark Connect server, such as sc://host:15002."""


@contextmanager
def spark_session(name: str, jars: Sequence[str] = (), master: str = "local[*]") -> Iterator[SparkSession]:
    """Start Spark and stop it at the end; use a running session if the program has one.

    Under spark-submit, or with a Spark Connect server, the submit command or the server sets master, jars and memory.
    The job then makes only its own settings.

    Args:
        name: name of the Spark application.
        jars: paths of the Kafka connector's jars; empty: Spark fetches the connector from Maven Central, or from its
            cache.
        master: master URL of Spark, used if this process starts Spark.

    Raises:
        OptionRefused: a jar does not exist, or the job was not tested on this release of Spark.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        with existing_session(active) as spark:
            yield spark
        return
    builder = SparkSession.builder.appName(name)
    with contextlib.ExitStack() as cleanup:
        if under_spark_submit():
            with starting("Spark"):
                spark = builder.getOrCreate()
        else:
            release = installed_release()
            builder = builder.master(master)
            for key, value in LOCAL_SETTINGS.items():
                builder = builder.config(key, value)
            builder = builder.config("spark.jars", ",".join(_paths(jars))) if jars else builder
            builder = builder if jars else builder.config("spark.jars.packages", release.connector)
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
        if not under_spark_submit() and str(spark.sparkContext.master).startswith("local"):
            # Spark's Kafka source reads timestamps in the JVM's time zone, and some hours of old ones would be two.
            zone = spark.sparkContext._jvm.java.util.TimeZone  # type: ignore[union-attr]  # noqa: SLF001
            zone.setDefault(zone.getTimeZone("UTC"))
        for key, value in _row_settings(spark).items():
            spark.conf.set(key, value)
        if REMOTE not in os.environ:  # the log of a Spark Connect server is its operator's
            spark.sparkContext.setLogLevel("WARN")
        yield spark


@contextmanager
def existing_session(spark: SparkSession) -> Iterator[SparkSession]:
    """Use the running Spark session of a notebook, platform or Spark Connect, without stopping it.

    The settings that the rows depend on are changed, and restored at the end.

    Raises:
        OptionRefused: the job was not tested on this release of Spark.
    """
    settings = _row_settings(spark)
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield spark
    finally:
        for key, earlier in before.items():
            if earlier is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, earlier)


def require_release(spark: SparkSession) -> SparkRelease:
    """Return the release of a running Spark session.

    Raises:
        OptionRefused: Ratchet was not tested on this release, or not on this release's Spark Connect.
    """
    release = release_of(spark.version)
    if release is RELEASES["3.5"] and is_connect():
        raise OptionRefused(
            "Spark Connect of Spark 3.5: the job was not tested with it. Use spark-submit, or a server of Spark 4.0 or "
            "newer"
        )
    return release


def is_connect() -> bool:
    """Return True if this process is a client of Spark Connect, or a server's process for `foreachBatch`."""
    from pyspark.sql.utils import is_remote

    return REMOTE in os.environ or is_remote()


def _row_settings(spark: SparkSession) -> dict[str, str]:
    """Return `ROW_SETTINGS`, adapted to the session's release.

    Raises:
        OptionRefused: see `require_release`.
    """
    if require_release(spark) is not RELEASES["3.5"]:
        return ROW_SETTINGS
    given = int(spark.conf.get(BATCH_RECORDS, None) or 0)
    return {**ROW_SETTINGS, BATCH_RECORDS: str(min(given, FEW_RECORDS) if given > 0 else FEW_RECORDS)}


def under_spark_submit() -> bool:
    """Return whether spark-submit or a Spark Connect server decides where Spark runs.

    spark-submit starts the JVM first, and gives the driver's Python the port of the JVM.
    """
    return REMOTE in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ


def _paths(jars: Sequence[str]) -> list[str]:
    paths = [Path(jar).absolute() for jar in jars]
    for path in paths:
        if not path.is_file():
            raise OptionRefused(f"jar {path} does not exist. Correct the path")
    return [str(path) for path in paths]
