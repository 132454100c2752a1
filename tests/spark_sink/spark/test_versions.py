"""Which releases of Spark the job takes."""

from __future__ import annotations

import pytest

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.spark.versions import RELEASES, release_of


@pytest.mark.parametrize(
    ("version", "release"),
    [("3.5.0", "3.5"), ("3.5.6-amzn-1", "3.5"), ("4.0.0", "4.0"), ("4.1.2.dev0", "4.1"), ("4.2.1", "4.2")],
)
def test_a_version_belongs_to_its_release(version: str, release: str) -> None:
    assert release_of(version) is RELEASES[release]


@pytest.mark.parametrize("version", ["3.4.4", "4.3.0", "3.50.1", "4", "40.0.1", "5.0.0", ""])
def test_another_is_refused_with_those_that_are_tested(version: str) -> None:
    with pytest.raises(OptionRefused, match=rf"^Spark {version}: .* tested on 3\.5, 4\.0, 4\.1, 4\.2 and on no other"):
        release_of(version)


def test_the_connector_is_of_the_release_and_of_its_scala() -> None:
    assert RELEASES["3.5"].connector == "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.7"
    assert RELEASES["4.1"].connector == "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1"
