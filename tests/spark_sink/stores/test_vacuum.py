"""What killed jobs leave: no reader sees it, vacuum removes it, and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kafka_ratchet.spark_sink.cli import EXIT_OK, EXIT_REFUSED, main
from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.files.local import LocalFolder
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode, reduced, table_schema
from kafka_ratchet.spark_sink.stores.delta.vacuum import orphans
from kafka_ratchet.spark_sink.stores.orphans import Orphan
from kafka_ratchet.spark_sink.stores.vacuum import vacuum
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import LOCAL, DeltaSite, FolderSite, IcebergSite, MysqlSite, PostgresSite, Site, params

SIMPLE = "_kafka_partition int, _kafka_offset long, who string, amount long"
EVERYTHING = -60.0
"""Files of the next minute as well: no test waits until something is old."""


class Died(BaseException):
    """The holder ends here, and nothing of its own runs any more."""


@pytest.fixture
def frame(spark: SparkSession) -> Callable[..., DataFrame]:
    return lambda *rows: spark.createDataFrame(list(rows), SIMPLE)


def schema(write_mode: WriteMode | None = None) -> StructType:
    struct = struct_of(SIMPLE)
    return table_schema(write_mode, struct) if write_mode else struct


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() or path.is_symlink()}


def seen(site: Site) -> list[tuple[object, ...]]:
    return sorted((row["_kafka_offset"], row["who"]) for row in site.rows())


def die_at(point: str, commit: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """As SIGKILL does: no clean-up of the store's own runs."""

    def die(here: str) -> None:
        if here == point:
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", die)
        patch.setattr(
            "kafka_ratchet.spark_sink.stores.duckdb.store.shutil", SimpleNamespace(rmtree=lambda *_, **__: None)
        )
        with pytest.raises(Died):
            commit()


@pytest.fixture(
    params=[
        *params("delta", "delta-merge", "iceberg", "duckdb", "folder", "postgres"),
        pytest.param("mysql", marks=pytest.mark.long),
    ]
)
def with_mode(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Site, WriteMode | None]:
    kind, _, merge = request.param.partition("-")
    if kind == "postgres":
        return PostgresSite(request.getfixturevalue("postgres"), f"schema of {tmp_path.name}"), None
    if kind == "mysql":
        return MysqlSite(request.getfixturevalue("mariadb"), f"base of {tmp_path.name}"[:56]), None
    if kind == "folder":
        request.getfixturevalue("folder_store")
        return FolderSite(tmp_path), None
    return LOCAL[kind](tmp_path), WriteMode("upsert", ("who",)) if merge else None


def test_what_a_dead_holder_left_goes_and_what_a_holder_may_still_commit_stays(
    with_mode: tuple[Site, WriteMode | None],
    frame: Callable[..., DataFrame],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    site, write_mode = with_mode
    options: dict[str, Any] = {"write_mode": write_mode} if write_mode else {}

    def brought(*rows: tuple[Any, ...]) -> DataFrame:
        return reduced(frame(*rows), write_mode) if write_mode else frame(*rows)

    dead = site.make(**options)
    dead.open(schema(write_mode))
    dead.commit(brought((0, 0, "a", 1)), {0: 0}, {0: 1})
    before = files(tmp_path)
    die_at("before-commit", lambda: dead.commit(brought((0, 1, "never", 1)), {0: 1}, {0: 2}), monkeypatch)
    assert seen(site) == [(0, "a")]
    assert files(tmp_path) > before or isinstance(site, PostgresSite | MysqlSite)
    # A dead holder looks like a frozen one, which may come back and commit: its files stay, however old.
    assert vacuum(site.location, EVERYTHING) == []

    # Databases tidy up when they take over; a kill there leaves everything to vacuum.
    with monkeypatch.context() as patch:
        patch.setattr("kafka_ratchet.spark_sink.stores.duckdb.store.DuckDBStore._remove_staged", lambda *_, **__: None)
        patch.setattr("kafka_ratchet.spark_sink.stores.postgres.tables.Tables.drop_staging", lambda *_: None)
        patch.setattr("kafka_ratchet.spark_sink.stores.mysql.tables.Tables.drop_staging", lambda *_: None)
        patch.setattr("kafka_ratchet.spark_sink.files.local.LocalFolder.remove_folder", lambda *_: None)
        holder = site.make(**options)
        assert holder.open(schema(write_mode)) == {0: 1}
    found: list[Orphan] = []

    def sweep(point: str) -> None:
        if point == "before-commit":
            monkeypatch.undo()
            # Nothing is an hour old; when a staging table was made, PostgreSQL does not know.
            assert vacuum(site.location, dry_run=True) == [] or isinstance(site, PostgresSite)
            looked = vacuum(site.location, EVERYTHING, dry_run=True)
            assert looked == vacuum(site.location, EVERYTHING)
            assert vacuum(site.location, EVERYTHING) == []
            found.extend(looked)

    monkeypatch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", sweep)
    holder.commit(brought((0, 1, "b", 1)), {0: 1}, {0: 2})  # whose rows were on their way meanwhile
    assert len(found) == 1
    assert found[0].bytes > 0
    assert (holder.offsets(), holder.generation()) == ({0: 2}, 2)
    assert seen(site) == [(0, "a"), (1, "b")]


def test_nothing_but_files_of_fenced_holders_is_touched(
    tmp_path: Path, frame: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = DeltaSite(tmp_path)
    dead = site.make()
    dead.open(schema())
    dead.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1})
    table = Path(site.path)
    [row_file] = [path for path in table.glob("*.parquet")]
    die_at("before-commit", lambda: dead.commit(frame((0, 1, "never", 1)), {0: 1}, {0: 2}), monkeypatch)
    [orphan] = [path for path in table.glob("*.parquet") if path != row_file]
    site.make().open(schema())

    outside = tmp_path / "outside"
    (outside / "job.1").mkdir(parents=True)
    (outside / orphan.name).write_text("precious")
    (outside / "job.1" / orphan.name).write_text("precious")
    os.link(outside / orphan.name, outside / "other name")
    name = orphan.name.replace(".1-", ".0-")
    kept = {
        "of the user.parquet": None,
        "part-00000-0b58ccd6-0000-4000-8000-000000000000-c000.snappy.parquet": None,  # another writer's
        orphan.name.replace(".1-", ".2-"): None,  # the newest holder's
        orphan.name.replace("part-job", "part-unknown"): None,
        orphan.name.replace("part-job", "part-Job; rm -rf *"): None,
        orphan.name.replace(".1-", ".99999999999999999999999-"): None,
        orphan.name + " ": None,
        name: outside / orphan.name,
        "_ratchet_staged": outside,
        "link": outside,
    }
    for entry, target in kept.items():
        (table / entry).symlink_to(target) if target else (table / entry).write_text("kept")
    assert [o.name for o in vacuum(site.location, EVERYTHING)] == [orphan.name]
    assert files(outside) == {orphan.name, f"job.1/{orphan.name}", "other name"}
    assert set(kept) | {row_file.name} <= {path.name for path in table.iterdir()}
    (table / "_ratchet_staged").unlink()
    (table / "_ratchet_staged").mkdir()
    (table / "_ratchet_staged" / "job.1").symlink_to(outside / "job.1")
    (table / "_ratchet_staged" / "job.0").mkdir()
    (table / "_ratchet_staged" / "job.0" / "x").symlink_to(outside / orphan.name)
    assert vacuum(site.location, EVERYTHING) == []
    assert seen(site) == [(0, "a")]


def test_what_a_merge_has_replaced_goes_when_the_table_says_so(tmp_path: Path, frame: Callable[..., DataFrame]) -> None:
    write_mode = WriteMode("upsert", ("who",))
    site = DeltaSite(tmp_path)
    store = site.make(write_mode=write_mode)
    store.open(schema(write_mode))
    for n in range(3):
        store.commit(reduced(frame((0, n, "a", n)), write_mode), {0: n}, {0: n + 1})
    replaced = files(Path(site.path)) - {uri.rpartition("/")[2] for uri in DeltaTable(site.path).file_uris()}
    replaced = {name for name in replaced if name.endswith(".parquet")}
    assert len(replaced) == 2
    assert vacuum(site.location, EVERYTHING) == []  # readers of the last week's versions need them
    DeltaTable(site.path).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    assert {orphan.name for orphan in vacuum(site.location, EVERYTHING)} == replaced
    assert store.commit(reduced(frame((0, 3, "a", 3)), write_mode), {0: 3}, {0: 4}) == 1
    assert seen(site) == [(3, "a")]


def test_the_commands_say_how_much_and_name_what_is_wrong(
    tmp_path: Path, frame: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = IcebergSite(tmp_path)
    words = ["vacuum", "--store=iceberg", f"--path={site.path}", "--older-than=0"]
    assert main(words) == EXIT_REFUSED
    assert "there is no result table" in capsys.readouterr().err
    dead = site.make()
    dead.open(schema())
    die_at("before-commit", lambda: dead.commit(frame((0, 0, "never", 1)), {0: 0}, {0: 1}), monkeypatch)
    site.make().open(schema())
    before = files(tmp_path)
    assert main(words[:-1]) == EXIT_OK
    assert f"{site.path}: 0 removed, 0 bytes" in capsys.readouterr().out
    assert main([*words, "--dry-run"]) == EXIT_OK
    assert "1 would be removed" in capsys.readouterr().out
    assert files(tmp_path) == before
    assert main([*words, "--json"]) == EXIT_OK
    told = json.loads(capsys.readouterr().out)
    assert (told["count"], told["dry_run"], len(told["names"]), told["bytes"] > 0) == (1, False, 1, True)
    assert len(before - files(tmp_path)) == 1
    with pytest.raises(StoreError, match="there is no result table"):
        vacuum(DeltaSite(tmp_path / "nowhere").location)
    with pytest.raises(SystemExit):
        main([*words, "--older-than=nan"])


def test_a_folder_without_a_delta_table_is_refused_if_a_table_is_needed(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path / "missing")
    assert list(orphans(folder, needed=False)) == []
    with pytest.raises(StoreError, match="there is no result table"):
        list(orphans(folder, needed=True))
