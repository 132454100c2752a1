"""What a database keeps about a job is the same in each that there is a store for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from kafka_ratchet.spark_sink.errors import SchemaDiffers, StoreError, TopicRecreated, WriteModeDiffers
from kafka_ratchet.spark_sink.rows.write_mode import APPEND, WriteMode
from kafka_ratchet.spark_sink.stores.decision import decide
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.registry import store_class
from kafka_ratchet.spark_sink.stores.sql_job_state import SqlJobState
from kafka_ratchet.spark_sink.stores.sql_store import SqlStore

Make = Callable[..., SqlStore[Any, Any, Any]]
COLUMNS = StructType([StructField("who", StringType()), StructField("amount", LongType())])
UPSERT = WriteMode("upsert", ("who",))
MINE, OTHER = 7 << 100, 8 << 100
"""Ids of two topics of the name, which have 128 bits."""
ODD = 'it\'s {odd} "so" `it` \\ is'
"""As the name of a table and in a text: each of these means something in one of the databases or in ours."""


@pytest.fixture(params=["postgres", "mysql", "duckdb"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "duckdb":
        location = TableLocation("duckdb", str(tmp_path / "file"), ODD)
    else:
        server = request.getfixturevalue({"postgres": "postgres", "mysql": "mariadb"}[request.param])
        location = TableLocation(request.param, "", ODD, server.url, server.password)

    def store(name: str, topic_id: int = MINE, write_mode: WriteMode = APPEND) -> SqlStore[Any, Any, Any]:
        return cast(SqlStore[Any, Any, Any], store_class(location.kind)(location, name, "t", topic_id, write_mode))

    return store


def test_generations_offsets_and_decisions_of_two_jobs_over_one_table(make: Make) -> None:
    one, two = make("one"), make("two")
    assert (one.generation(), one.offsets(), one.other_jobs(), one.columns()) == (0, {}, [], None)
    assert [one.open(COLUMNS), two.open(COLUMNS), one.open(COLUMNS)] == [{}, {}, {}]
    assert (one.generation(), two.generation(), one.count(), one.rows(["who"])) == (2, 1, 0, [])

    assert one.reset_offsets({0: 5, 3: 2**40}, decide("latest", ODD)) == 3
    assert (one.offsets(), two.offsets()) == ({0: 5, 3: 2**40}, {})
    assert (two.other_jobs(), make("two", topic_id=OTHER).other_jobs()) == (["one"], [])
    with pytest.raises(TopicRecreated, match=r"topic t is not the one"):
        make("one", topic_id=OTHER).offsets()
    with pytest.raises(StoreError, match="has committed since the decision was made"):
        one.reset_offsets({0: 1}, decide("latest", "looked at too early", {0: 4}))
    assert (one.generation(), one.offsets()) == (3, {0: 5, 3: 2**40})
    assert one.check().stored == {0: 5, 3: 2**40}
    assert one.reset_offsets({3: 1}, decide("latest", "partition 0 begins anew")) == 4
    assert one.open(COLUMNS) == {3: 1}

    state: SqlJobState[Any] = one._state
    with one._reading() as database:
        told = [json.loads(text) for (text,) in state.run(database, "SELECT decision FROM {decisions}")]
        assert state.generations(database) == {"one": 5, "two": 1}
    assert [each["reason"] for each in told] == [ODD, "partition 0 begins anew"]
    assert [each["before"] for each in told] == [{}, {"0": 5, "3": 2**40}]

    one.require_fits(COLUMNS)
    with pytest.raises(SchemaDiffers, match="column amount"):
        one.require_fits(StructType([StructField("who", StringType()), StructField("amount", StringType())]))
    make("one", write_mode=UPSERT).reset_offsets({3: 1}, decide("latest", "another kind"))
    with pytest.raises(WriteModeDiffers):
        one.require_write_mode()
