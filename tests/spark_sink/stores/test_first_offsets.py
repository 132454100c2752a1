"""The offsets where `--start` began a table, which each store keeps."""

from __future__ import annotations

import duckdb
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from kafka_ratchet.spark_sink.stores.decision import decide
from tests.spark_sink.sites import Site, params

COLUMNS = StructType(
    [
        StructField("_kafka_partition", IntegerType()),
        StructField("_kafka_offset", LongType()),
        StructField("who", StringType()),
    ]
)


@pytest.mark.parametrize("site", params("delta", "iceberg", "duckdb", "postgres", "mysql"), indirect=True)
def test_the_start_of_the_first_run_is_kept_and_an_earlier_resume_lowers_it(site: Site) -> None:
    store = site.make()
    assert site.make().first_offsets() == {}
    store.open(COLUMNS)
    assert site.make().first_offsets() == {}
    store.reset_offsets({0: 5, 1: 9}, decide("0:5,1:9", "--start 0:5,1:9: beginning of the first run", {}))
    assert store.open(COLUMNS) == {0: 5, 1: 9}
    assert site.make().first_offsets() == {0: 5, 1: 9}
    assert site.make(topic="others").first_offsets() == {}
    assert (site.make().offsets(), site.make().other_sources()) == ({0: 5, 1: 9}, [])
    store.reset_offsets({0: 7, 1: 3, 2: 1}, decide("0:7,1:3", "read again"))
    assert site.make().first_offsets() == {0: 5, 1: 3}


@pytest.mark.parametrize("site", params("delta", "iceberg", "duckdb", "postgres", "mysql"), indirect=True)
def test_a_table_that_began_with_its_topic_has_none(site: Site) -> None:
    store = site.make()
    store.open(COLUMNS)
    store.reset_offsets({0: 5}, decide("0:5", "--start 0:5: beginning of the first run", {}))
    other = site.make("second")
    other.open(COLUMNS)
    assert other.first_offsets() == {}


@pytest.mark.parametrize("site", params("duckdb"), indirect=True)
def test_a_clock_set_back_between_two_decisions_does_not_hide_the_later_one(site: Site) -> None:
    store = site.make()
    store.open(COLUMNS)
    store.reset_offsets({0: 5}, decide("0:5", "--start 0:5: beginning of the first run", {}))
    store.open(COLUMNS)
    store.reset_offsets({0: 2}, decide("0:2", "read again"))
    with duckdb.connect(site.location.path) as database:
        earlier = "UPDATE ratchet_sink_decisions SET decided = decided - INTERVAL 1 DAY WHERE decision LIKE ?"
        database.execute(earlier, ["%read again%"])
    assert site.make().first_offsets() == {0: 2}
