"""`ratchet sink compact`: fewer files, the same rows, and jobs that notice nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from kafka_ratchet.spark_sink.cli import EXIT_OK, EXIT_REFUSED, main
from kafka_ratchet.spark_sink.errors import Fenced, OptionRefused, RowsLost, StoreError
from kafka_ratchet.spark_sink.rows.columns import record_schema
from kafka_ratchet.spark_sink.rows.write_mode import APPEND, WriteMode
from kafka_ratchet.spark_sink.stores import compact as module
from kafka_ratchet.spark_sink.stores.compact import compact, small_groups
from kafka_ratchet.spark_sink.stores.compactor import DataFile
from kafka_ratchet.spark_sink.stores.open_store import reader
from kafka_ratchet.spark_sink.stores.store import ResultStore, require_names
from kafka_ratchet.spark_sink.stores.vacuum import vacuum
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import LOCAL, DuckDBSite, Site, params

SIMPLE = "_kafka_partition int, _kafka_offset long, who string, amount long"
EVERYTHING = -60.0
PASSING = "kafka_ratchet.spark_sink.stores.crash_points.passing"


class Died(BaseException):
    """The process ends here, and nothing of its own runs any more."""


@pytest.fixture(params=params("delta", "iceberg"))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return LOCAL[request.param](tmp_path)


@pytest.fixture
def filled(site: Site, spark: SparkSession) -> Callable[..., ResultStore]:
    """filled(commits) makes that many commits of one row, and returns their holder."""

    def fill(commits: int) -> ResultStore:
        store = site.make()
        store.open(struct_of(SIMPLE))
        for offset in range(commits):
            store.commit(frame(spark, (0, offset, f"who {offset}", offset)), {0: offset}, {0: offset + 1})
        return store

    return fill


def frame(spark: SparkSession, *rows: tuple[object, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), SIMPLE)


def seen(site: Site) -> list[tuple[object, ...]]:
    return sorted((row["_kafka_offset"], row["who"], row["amount"]) for row in site.rows())


def rows_of(*offsets: int) -> list[tuple[object, ...]]:
    return [(offset, f"who {offset}", offset) for offset in offsets]


def on_disk(site: Site) -> set[str]:
    return {str(path) for path in site.folder.rglob("part-*.parquet")}


def at(point: str, do: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something once, when a commit or a compaction is there."""

    def passing(here: str) -> None:
        if here == point:
            monkeypatch.setattr(PASSING, lambda _: None)
            do()

    monkeypatch.setattr(PASSING, passing)


def die() -> None:
    raise Died


def test_which_files_become_one() -> None:
    def named(groups: list[tuple[DataFile, ...]]) -> list[str]:
        return ["".join(file.name for file in group) for group in groups]

    one = [DataFile(name, size, 1) for name, size in (("a", 10), ("b", 49), ("c", 50), ("d", 40), ("e", 2), ("f", 9))]
    assert named(small_groups(one, 100)) == ["abd", "ef"]
    apart = [DataFile("a", 1, 1, "x"), DataFile("b", 1, 1, "y"), DataFile("c", 1, 1, "x"), DataFile("d", 1, 1, "z")]
    assert named(small_groups(apart, 100)) == ["ac"]
    assert small_groups([], 100) == small_groups(one[:1], 100) == []
    with pytest.raises(OptionRefused, match="ratchet-compact"):
        require_names("ratchet-compact", "events")


def test_small_files_become_one_and_the_job_goes_on(
    site: Site, filled: Callable[..., ResultStore], spark: SparkSession
) -> None:
    store = filled(5)
    before = on_disk(site)
    [looked] = compact(site.location)
    assert (looked.files, [len(group) for group in looked.groups], looked.written) == (5, [5], 0)
    assert on_disk(site) == before
    [done] = compact(site.location, execute=True)
    assert (done.replaced, done.written, done.given_up) == (5, 1, 0)
    assert seen(site) == rows_of(*range(5))
    assert store.commit(frame(spark, (0, 5, "who 5", 5)), {0: 5}, {0: 6}) == 1  # nobody was fenced
    assert (store.offsets(), store.generation(), store.other_jobs()) == ({0: 6}, 1, [])
    again = site.make()
    assert (again.open(struct_of(SIMPLE)), again.generation()) == ({0: 6}, 2)
    assert seen(site) == rows_of(*range(6))
    vacuum(site.location, EVERYTHING)  # the old files are for readers of older versions, and not vacuum's yet
    assert before <= on_disk(site)
    [one] = compact(site.location)
    assert (one.files, len(one.groups)) == (2, 1)
    [large] = compact(site.location, 2, execute=True)
    assert (large.files, large.groups) == (2, ())
    with pytest.raises(StoreError, match="there is no result table"):
        compact(LOCAL[site.location.kind](site.folder / "elsewhere").location)


def test_a_table_of_rejects_is_compacted_too(site: Site, spark: SparkSession) -> None:
    store = site.make(rejects=record_schema())
    store.open(struct_of(SIMPLE))
    for offset in range(2):
        bad = spark.createDataFrame([(0, offset, None, None, None)], record_schema())
        store.commit(frame(spark), {0: offset}, {0: offset + 1}, bad)
    rows, beside = compact(site.location, execute=True)
    assert (rows.files, beside.files, beside.replaced) == (0, 2, 2)
    assert sorted(row["_kafka_offset"] for row in site.rows(rejects=True)) == [0, 1]


@pytest.mark.parametrize("point", ["before-write", "before-commit", "after-commit"])
def test_a_compaction_that_is_killed_leaves_the_rows_and_what_vacuum_finds(
    point: str, site: Site, filled: Callable[..., ResultStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(3)
    before = on_disk(site)
    at(point, die, monkeypatch)
    with pytest.raises(Died):
        compact(site.location, execute=True)
    left = on_disk(site) - before
    assert len(left) == (0 if point == "before-write" else 1)
    assert (seen(site), store.offsets()) == (rows_of(0, 1, 2), {0: 3})
    assert vacuum(site.location, EVERYTHING) == []  # it may be frozen, and come back
    compact(site.location, execute=True)
    assert seen(site) == rows_of(0, 1, 2)
    found = {orphan.name for orphan in vacuum(site.location, EVERYTHING)}
    assert found == ({Path(path).name for path in left} if point == "before-commit" else set())
    assert seen(site) == rows_of(0, 1, 2)


@pytest.mark.parametrize("kind", ["append", "upsert"])
def test_a_commit_that_comes_first_wins_and_what_it_has_changed_is_left_out(
    kind: str,
    site: Site,
    filled: Callable[..., ResultStore],
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    filled(4)
    write_mode = APPEND if kind == "append" else WriteMode("upsert", ("who",))
    other = site.make("other", write_mode=write_mode)
    other.open(struct_of(SIMPLE))
    changed = (0, 4, "who 0", 70) if kind == "upsert" else (0, 4, "who 4", 4)
    at("before-commit", lambda: other.commit(frame(spark, changed), {}, {0: 5}), monkeypatch)
    [done] = compact(site.location, execute=True)
    if kind == "append":
        assert (done.replaced, done.given_up) == (4, 0)
        assert seen(site) == rows_of(0, 1, 2, 3, 4)
    else:
        assert (done.replaced, done.given_up) == (0, 1)
        assert seen(site) == [*rows_of(1, 2, 3), (4, "who 0", 70)]
        # What was written for nothing is gone at once.
        assert [path for path in on_disk(site) if "ratchet-compact" in path] == []
    assert other.commit(frame(spark, (0, 5, "who 5", 5)), {0: 5}, {0: 6}) == 1
    assert other.offsets() == {0: 6}


def test_a_commit_that_comes_second_is_made_again(
    site: Site, filled: Callable[..., ResultStore], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for write_mode in (APPEND, WriteMode("upsert", ("who",))):
        here = LOCAL[site.location.kind](site.folder / write_mode.kind)
        store = here.make(write_mode=write_mode)
        store.open(struct_of(SIMPLE))
        for offset in range(3):
            store.commit(frame(spark, (0, offset, f"who {offset}", offset)), {0: offset}, {0: offset + 1})
        at("before-commit", lambda here=here: compact(here.location, execute=True), monkeypatch)  # type: ignore[misc]
        store.commit(frame(spark, (0, 3, "who 3", 3), (0, 4, "who 4", 4)), {0: 3}, {0: 5})
        assert (seen(here), store.offsets()) == (rows_of(0, 1, 2, 3, 4), {0: 5})


def test_the_older_of_two_compactions_is_fenced(
    site: Site, filled: Callable[..., ResultStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(3)
    at("before-commit", lambda: reader(site.location).compactor().take_over(), monkeypatch)
    with pytest.raises(Fenced, match="another compaction"):
        compact(site.location, execute=True)
    assert seen(site) == rows_of(0, 1, 2)


def test_commits_are_made_group_by_group(
    site: Site, filled: Callable[..., ResultStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(4)
    size = max(file.bytes for file in reader(site.location).compactor().look())
    monkeypatch.setattr(module, "GROUPS_PER_COMMIT", 1)
    [done] = compact(site.location, size * 2 + size // 2, execute=True)
    assert (done.replaced, done.written) == (4, 2)
    assert seen(site) == rows_of(0, 1, 2, 3)


def test_a_restore_behind_a_compaction_is_still_noticed(tmp_path: Path, spark: SparkSession) -> None:
    site = LOCAL["delta"](tmp_path)
    store = site.make()
    store.open(struct_of(SIMPLE))
    for offset in range(3):
        store.commit(frame(spark, (0, offset, "a", 1)), {0: offset}, {0: offset + 1})
    compact(site.location, execute=True)
    compacted = DeltaTable(site.location.path).version()
    DeltaTable(site.location.path).restore(1)
    with pytest.raises(RowsLost, match="restored to version 1"):
        store.offsets()
    DeltaTable(site.location.path).restore(compacted)
    assert store.offsets() == {0: 3}


def test_what_cannot_be_compacted_is_said(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    place = DuckDBSite(tmp_path).location
    with pytest.raises(OptionRefused, match="has nothing to do"):
        compact(place)
    site = LOCAL["delta"](tmp_path)
    store = site.make()
    store.open(struct_of(SIMPLE))
    for offset in range(2):
        store.commit(frame(spark, (0, offset, "a", 1)), {0: offset}, {0: offset + 1})
    words = ["compact", "--path", site.location.path, "--json"]
    assert main(words) == EXIT_OK
    said = json.loads(capsys.readouterr().out)
    assert (said["executed"], said["tables"][0]["small_files"], said["tables"][0]["replaced"]) == (False, 2, 0)
    assert main([*words, "--execute", "--target-size", "0.5"]) == EXIT_OK
    assert json.loads(capsys.readouterr().out)["tables"][0]["replaced"] == 2
    DeltaTable(site.location.path).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    assert main(words) == EXIT_REFUSED
    assert "the table has writer version 4, which Ratchet would lose" in capsys.readouterr().err
