"""Releases of Spark that the job runs on, with the Kafka connector of each; the only such list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from kafka_ratchet.spark_sink.errors import OptionRefused


@dataclass(frozen=True)
class SparkRelease:
    """Release of Spark that the tests of the job have run on."""

    version: str
    """Newest version of the release with a complete Kafka connector on Maven Central."""
    scala: str = "2.13"
    """Version of Scala in pyspark's jars."""

    @property
    def connector(self) -> str:
        """Return the Maven coordinate of the Kafka connector, which goes with one release of Spark only."""
        return f"org.apache.spark:spark-sql-kafka-0-10_{self.scala}:{self.version}"


RELEASES: Final[Mapping[str, SparkRelease]] = {
    "3.5": SparkRelease("3.5.7", scala="2.12"),
    "4.0": SparkRelease("4.0.0"),
    "4.1": SparkRelease("4.1.1"),
    "4.2": SparkRelease("4.2.0"),
}
"""Releases by the first two numbers of their versions; `./ratchet test -m spark-versions` runs each. 3.5.8, 3.5.9, and
the later ones of 4.0, 4.1 and 4.2 have no complete connector on Maven Central as seen by us: theirs, or their token
provider's, is missing."""

DEFAULT: Final = "4.2"
"""Release of the pyspark in the lock files."""


def release_of(spark_version: str) -> SparkRelease:
    """Return the release of a version, such as 3.5.4 or a vendor's 3.5.6-amzn-1.

    Raises:
        OptionRefused: the job was not tested on it.
    """
    release = RELEASES.get(".".join(spark_version.split(".")[:2]))
    if release is None:
        raise OptionRefused(
            f"Spark {spark_version}: the job was tested on {', '.join(RELEASES)} and on no other release. Use one of "
            "these"
        )
    return release


def installed_release() -> SparkRelease:
    """Return the release of this Python's pyspark; without one, the lock files'.

    A pyspark of Spark's distribution is on the import path without being an installed package.

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
