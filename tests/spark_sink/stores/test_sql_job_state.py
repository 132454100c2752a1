"""What a database keeps about a job is the same in each that there is a store for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from kafka_ratchet.spark_sink.errors import (
    OptionRefused,
    RowsLost,
    SchemaDiffers,
    StoreError,
    TopicRecreated,
    WriteModeDiffers,
)
from kafka_ratchet.spark_sink.job.plan import OffsetRange
from kafka_ratchet.spark_sink.job.resume import plan_resume
from kafka_ratchet.spark_sink.rows.write_mode import APPEND, WriteMode
from kafka_ratchet.spark_sink.stores.decision import decide
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.registry import store_class
from kafka_ratchet.spark_sink.stores.sql_job_state import SqlJobState
from kafka_ratchet.spark_sink.stores.sql_store import SqlStore
from kafka_ratchet.spark_sink.stores.stored_write_mode import write_mode_text

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

    def store(
        name: str, topic_id: int = MINE, write_mode: WriteMode = APPEND, table: str = ODD
    ) -> SqlStore[Any, Any, Any]:
        at = replace(location, table=table)
        return cast(SqlStore[Any, Any, Any], store_class(location.kind)(at, name, "t", topic_id, write_mode))

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


def add_row(store: SqlStore[Any, Any, Any], end: int) -> None:
    """Add a row and store the offset, in the transaction of a commit."""

    def change(database: Any) -> None:
        state: SqlJobState[Any] = store._state
        state.run(database, "INSERT INTO {table} VALUES ('a', 1)", table=state.table(store._result))
        state.commit(database, {0: end}, write_mode_text(store._write_mode))

    assert store._generation is not None
    store._in_transaction(store._generation, change)


def run(store: SqlStore[Any, Any, Any], statement: str) -> None:
    """Run a statement in a transaction of its own."""

    def change(database: Any) -> None:
        store._state.run(database, statement, table=store._state.table(store._result))

    store._in_transaction(1, change)


def test_offsets_that_are_gone_are_no_first_start(make: Make) -> None:
    at = partial(make, "job", table="without offsets")
    holder = at()
    holder.open(COLUMNS)
    add_row(holder, 1)
    run(holder, "DELETE FROM {offsets} WHERE result = {result}")
    for use in (at().offsets, lambda: at().open(COLUMNS)):
        with pytest.raises(RowsLost, match="no offsets"):
            use()
    assert at().check().row_offsets is None
    planner: Any = SimpleNamespace(offset_range=lambda: OffsetRange("t", {0: 0, 1: 0}, {0: 9, 1: 9}))
    for wrong in ("stored", "table", "0:1"):  # each would add rows a second time
        with pytest.raises(OptionRefused, match="removed or restored alone"):
            plan_resume(at(), planner, wrong, "offsets deleted")
    for source, after in (("0:1,1:0", {0: 1, 1: 0}), ("latest", {0: 9, 1: 9})):
        plan = plan_resume(at(), planner, source, "offsets deleted")
        assert plan.after == after
        assert "name the offset after the last row or reject" in plan.trouble
    # An operator may decide to read everything again over the rows.
    at().reset_offsets({}, decide("earliest", "rows twice rather than rows lost"))
    assert (at().offsets(), at().open(COLUMNS)) == ({}, {})


def test_a_job_of_another_topic_or_without_a_commit_is_a_first_start(make: Make) -> None:
    at = partial(make, "job", table="of two topics")
    holder = at()
    holder.open(COLUMNS)
    run(holder, "INSERT INTO {table} VALUES ('of others', 1)")
    assert at().open(COLUMNS) == {}
    again = at()
    again.open(COLUMNS)
    add_row(again, 1)
    run(again, "UPDATE {offsets} SET topic = 'renamed' WHERE result = {result}")
    assert at().offsets() == {}


@pytest.mark.parametrize("make", ["postgres", "mysql"], indirect=True)
def test_a_take_over_blesses_no_table_that_was_emptied_amid_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A TRUNCATE that waited for the lock of the frozen session runs as soon as this session is ended."""
    at = partial(make, "job", table="emptied amid a take-over")
    holder = at()
    holder.open(COLUMNS)
    add_row(holder, 1)
    successor = at()
    state: Any = successor._state

    def end_sessions(*_: object) -> None:
        run(holder, "TRUNCATE TABLE {table}")

    monkeypatch.setattr(state, "end_sessions", end_sessions)
    uses: list[Callable[[], object]] = [lambda: successor.open(COLUMNS), at().offsets]
    for use in uses:
        with pytest.raises(RowsLost, match="was emptied"):
            use()


@pytest.mark.parametrize("make", ["postgres", "mysql"], indirect=True)
def test_a_decision_blesses_no_table_that_was_emptied_amid_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    at = partial(make, "job", table="emptied amid a decision")
    holder = at()
    holder.open(COLUMNS)
    add_row(holder, 1)
    deciding = at()
    state: Any = deciding._state
    monkeypatch.setattr(state, "end_sessions", lambda *_: run(holder, "TRUNCATE TABLE {table}"))
    with pytest.raises(StoreError, match=r"was emptied.* since the decision was made"):
        deciding.reset_offsets({0: 1}, decide("stored", "another kind"))
    with pytest.raises(RowsLost, match="was emptied"):
        at().offsets()
    assert at().generation() == 1
    assert deciding.reset_offsets({0: 1}, decide("stored", "without the lost rows")) == 2  # a known loss
    assert at().offsets() == {0: 1}
