"""Releases of Spark that the job runs on, with the Kafka connector of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from kafka_ratchet.spark_sink.errors import OptionRefused


@dataclass(frozen=True)
class SparkRelease:
    """Release of Spark on which the job was tested."""

    version: str
    """Newest version of the release that has a complete Kafka connector on Maven Central."""
    scala: str = "2.13"
    """Version of Scala in pyspark's jars."""

    @property
    def connector(self) -> str:
        """Return the Maven coordinate of the Kafka connector for this release of Spark."""
        return f"org.apache.spark:spark-sql-kafka-0-10_{self.scala}:{self.version}"


RELEASES: Final[Mapping[str, SparkRelease]] = {
    "3.5": SparkRelease("3.5.7", scala="2.12"),
    "4.0": SparkRelease("4.0.0"),
    "4.1": SparkRelease("4.1.1"),
    "4.2": SparkRelease("4.2.0"),
}
"""Releases by the first two numbers of their version; `./ratchet test -m spark-versions` runs each. We found no
complete connector on Maven Central for 3.5.8, 3.5.9 and the later versions of 4.0, 4.1 and 4.2: the connector itself or
its token provider is missing."""

DEFAULT: Final = "4.2"
"""Release of the pyspark that the lock files name."""


def release_of(spark_version: str) -> SparkRelease:
    """Return the release of a version of Spark, such as 3.5.4 or a vendor's 3.5.6-amzn-1.

    Raises:
        OptionRefused: the job was not tested on this release.
    """
    release = RELEASES.get(".".join(spark_version.split(".")[:2]))
    if release is None:
        raise OptionRefused(
            f"Spark {spark_version}: the job was tested on {', '.join(RELEASES)} and on no other release. Use one of "
            "these"
        )
    return release


def installed_release() -> SparkRelease:
    """Return the release of the present pyspark; without pyspark, the release of the lock files.

    A distribution of Spark contains a pyspark that can be imported, but is not an installed package.

    Raises:
        OptionRefused: see `release_of`.
    """
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        try:
            from pyspark import __version__ as found
        except ImportError:
            return RELEASES[DEFAULT]
    return release_of(found)
