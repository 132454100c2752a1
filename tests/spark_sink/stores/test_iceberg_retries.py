"""Conflicts of an Iceberg table reach the job, whatever the table's property says about retries; without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from kafka_ratchet.spark_sink.errors import Fenced, RowsLost
from kafka_ratchet.spark_sink.files.parquet import file_prefix, write_batches
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.iceberg.files import arrow_schema_of
from kafka_ratchet.spark_sink.stores.iceberg.store import IcebergStore
from kafka_ratchet.spark_sink.stores.open_store import reader
from kafka_ratchet.spark_sink.stores.optimistic import Staged
from kafka_ratchet.spark_sink.stores.store import ResultStore
from tests.spark_sink.damage import moment, put_back
from tests.spark_sink.sites import IcebergSite, Site

SCHEMA = StructType([StructField("k", LongType())])
PROPERTY = "commit.retry.num-retries"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A table of appended rows; a commit is given their keys in place of a DataFrame."""

    def stage(self: IcebergStore, table: Any, keys: Any, generation: int) -> Staged:
        folder, schema = self._data_folder(table), arrow_schema_of(table.schema(), with_ids=True)
        folder.make()
        rows = pa.table([list(keys)], schema=schema).to_batches()
        file = write_batches(rows, schema, folder.inside(), file_prefix(self._name, generation), folder.filesystem)
        return Staged(len(keys), [file])

    monkeypatch.setattr(IcebergStore, "_stage", stage)
    return IcebergSite(tmp_path)


def commit(store: ResultStore, start: int, *keys: int) -> None:
    store.commit(cast("Any", keys), {0: start}, {0: start + len(keys)})


def allow_retries(site: Site, retries: str) -> None:
    """Set the table's property as an operator does; "": unset it, so that the library's default counts."""
    table = cast("Any", site.make())._find()
    with table.transaction() as transaction:
        if retries:
            transaction.set_properties({PROPERTY: retries})
        else:
            transaction.remove_properties(PROPERTY)


def once_at(patch: pytest.MonkeyPatch, point: str, do: Callable[[], object]) -> None:
    """Call a function when a job passes a crash point for the first time."""
    left = [do]

    def passing(here: str) -> None:
        if here == point and left:
            left.pop()()

    patch.setattr(crash_points, "passing", passing)


@pytest.mark.parametrize("retries", ["4", ""])
def test_a_frozen_holder_adds_nothing_after_a_take_over(
    site: Site, monkeypatch: pytest.MonkeyPatch, retries: str
) -> None:
    holder, successor = site.make(), site.make()
    holder.open(SCHEMA)
    allow_retries(site, retries)

    def succeed() -> None:
        successor.open(SCHEMA)
        commit(successor, 0, 1, 2)

    once_at(monkeypatch, "before-commit", succeed)
    with pytest.raises(Fenced):
        commit(holder, 0, 1, 2)
    assert sorted(row["k"] for row in site.rows()) == [1, 2]
    assert site.make().offsets() == {0: 2}


def test_a_rollback_before_the_commit_is_noticed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = site.make()
    holder.open(SCHEMA)
    then = moment(site)
    commit(holder, 0, 1)
    allow_retries(site, "4")
    once_at(monkeypatch, "before-commit", lambda: put_back(site, then))
    with pytest.raises(RowsLost):
        commit(holder, 1, 2)
    assert site.rows() == []


def test_a_compaction_passes_on_the_marks_of_a_commit_amid_it(site: Site) -> None:
    holder = site.make()
    holder.open(SCHEMA)
    commit(holder, 0, 1)
    allow_retries(site, "4")
    compactor = reader(site.location).compactor()
    compactor.look()
    commit(holder, 1, 2)
    assert compactor.take_over() == 1
    assert site.make().offsets() == {0: 2}
