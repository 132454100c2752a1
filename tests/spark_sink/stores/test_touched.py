"""A commit with a key into an Iceberg table writes the files that have its keys, and no others."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import FileScanTask, Table

from kafka_ratchet.spark_sink.errors import OptionRefused, StoreError
from kafka_ratchet.spark_sink.files.local import LocalFolder
from kafka_ratchet.spark_sink.rows.aggregates import COUNT_COLUMN
from kafka_ratchet.spark_sink.rows.columns import DELETED
from kafka_ratchet.spark_sink.rows.write_mode import APPEND, WriteMode
from kafka_ratchet.spark_sink.stores.iceberg import commit as commit_module
from kafka_ratchet.spark_sink.stores.iceberg import merge as merge_module
from kafka_ratchet.spark_sink.stores.iceberg import touched as module
from kafka_ratchet.spark_sink.stores.iceberg.catalog import IcebergCatalog
from kafka_ratchet.spark_sink.stores.iceberg.commit import Commit
from kafka_ratchet.spark_sink.stores.iceberg.files import live_files
from kafka_ratchet.spark_sink.stores.iceberg.lineage import inconsistency, rows_key, total_rows

LONG = "x" * 5000
"""Longer than the statistics of a Parquet file take; the snapshot has no bounds of it."""

KEYS: dict[str, tuple[pa.Schema, list[tuple[Any, ...]]]] = {
    "number": (pa.schema([("k", pa.int64())]), [(None,), *((n,) for n in range(-30, 30))]),
    "text": (
        pa.schema([("k", pa.string())]),
        [(None,), ("",), ("\U0001f600",), ("\uffff",), (LONG,), (LONG + "y",), *((f"who {n}",) for n in range(40))],
    ),
    "bytes": (pa.schema([("k", pa.binary())]), [(None,), (b"",), *((bytes([n, 255]),) for n in range(40))]),
    "two": (
        pa.schema([("k", pa.int32()), ("l", pa.string())]),
        [(one, other) for one in (None, 1, 2, 3) for other in (None, "", "a", "b")],
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "warehouse"


def made(folder: Path, schema: pa.Schema) -> Table:
    catalog = IcebergCatalog(str(folder), {}, {})
    catalog.make()
    opened = catalog.connect()
    opened.create_namespace_if_not_exists("ratchet")
    return opened.create_table("ratchet.results", schema)


def commit_of(table: Table, write_mode: WriteMode) -> Commit:
    folder = LocalFolder(Path(table.location().removeprefix("file://")) / "data")
    folder.make()
    return Commit("job", 1, write_mode, folder)


def written(table: Table) -> dict[str, int]:
    return {task.file.file_path: task.file.file_size_in_bytes for task in live_files(table)}


@pytest.mark.parametrize("kind", ["upsert", "totals"])
@pytest.mark.parametrize("of", KEYS)
def test_the_table_is_what_a_dictionary_says(of: str, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_BYTES", 256)  # so that there are many files
    monkeypatch.setattr(module, "FOLDED_BYTES", 0)
    monkeypatch.setattr(module, "GROUP_BYTES", 3_000)  # and several groups of them
    fields, keys = KEYS[of]
    names = fields.names
    value = COUNT_COLUMN if kind == "totals" else "v"
    schema = fields.append(pa.field(value, pa.int64()))
    table = made(folder, schema)
    commit = commit_of(table, WriteMode(kind, tuple(names)))  # type: ignore[arg-type]
    model: dict[tuple[Any, ...], int] = {}
    randomness = random.Random(of + kind)
    for n in range(12):
        chosen = randomness.sample(keys, randomness.randint(1, 6))
        gone = [kind == "upsert" and randomness.random() < 0.3 for _ in chosen]
        columns = [pa.array(column, fields.field(at).type) for at, column in enumerate(zip(*chosen, strict=True))]
        rows = pa.table([*columns, pa.array([n] * len(chosen), pa.int64())], schema=schema)
        if kind == "upsert":
            rows = rows.append_column(DELETED, pa.array(gone))
        table.refresh()
        commit.write(table, rows, {}, 0)
        for key, away in zip(chosen, gone, strict=True):
            if away:
                model.pop(key, None)
            else:
                model[key] = n + (model.get(key, 0) if kind == "totals" else 0)
        table.refresh()
        found = [tuple(row.values()) for row in table.scan().to_arrow().to_pylist()]
        assert sorted(found, key=repr) == sorted([(*key, number) for key, number in model.items()], key=repr)
        assert total_rows(table) == len(model) == int(table.properties[rows_key("job")])


@pytest.mark.parametrize("group_bytes", [1, 60_000, module.GROUP_BYTES])
def test_a_merge_holds_one_group_of_files_in_memory(
    group_bytes: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAST_BYTES", 16_000)
    monkeypatch.setattr(module, "FOLDED_BYTES", 0)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = made(folder, schema)
    commit = commit_of(table, WriteMode("upsert", ("k",)))
    commit.write(table, pa.table([range(0, 40_000, 2), [0] * 20_000], schema=schema), {}, 0)
    before = {task.file.file_path: task.file for task in live_files(table)}
    monkeypatch.setattr(module, "GROUP_BYTES", group_bytes)
    held: list[int] = []

    def merged(target: pa.Table, source: pa.Table, write_mode: WriteMode, where: object) -> pa.Table:
        held.append(len(target))
        return merge_module.merged(target, source, write_mode, where)

    monkeypatch.setattr(commit_module, "merged", merged)
    keys = random.Random(1).sample(range(40_000), 2_000)
    commit.write(table, pa.table([keys, [1] * len(keys)], schema=schema), {}, 0)
    largest = max(file.record_count for file in before.values())
    each = max(1, group_bytes // max(file.file_size_in_bytes for file in before.values()))
    assert len(before) == 20
    assert sum(held) == 20_000
    assert max(held) <= largest * (each + 1)
    assert (len(held) == 1) == (group_bytes > 1_000_000)
    assert len(held) == 20 or group_bytes > 1
    found = dict(zip(*table.refresh().scan().to_arrow().to_pydict().values(), strict=True))
    assert found == dict.fromkeys(range(0, 40_000, 2), 0) | dict.fromkeys(keys, 1)
    assert table.scan().count() == total_rows(table) == len(found)


def test_manifests_of_what_went_do_not_gather(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_module, "MANIFESTS", 5)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = made(folder, schema)
    commit = commit_of(table, WriteMode("upsert", ("k",)))
    counts = []
    for n in range(14):
        commit.write(table, pa.table([[1], [n]], schema=schema), {}, 0)
        snapshot = table.current_snapshot()
        assert snapshot is not None
        counts.append(len(snapshot.manifests(table.io)))
        assert not inconsistency(table, "job", has_key=True)
    assert max(counts) <= 7
    assert table.scan().to_arrow().to_pylist() == [{"k": 1, "v": 13}]


def test_files_without_a_key_of_the_commit_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_BYTES", 16_000)
    monkeypatch.setattr(module, "FOLDED_BYTES", 0)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = made(folder, schema)
    commit = commit_of(table, WriteMode("upsert", ("k",)))
    commit.write(table, pa.table([range(0, 20_000, 2), range(10_000)], schema=schema), {}, 0)
    before = written(table)
    assert len(before) == 10
    commit.write(table, pa.table([[4000, 4002], [-1, -2]], schema=schema), {}, 0)
    assert len(written(table).keys() & before.keys()) == 9  # one of ten was written anew
    before = written(table)
    commit.write(table, pa.table([[4001], [-3]], schema=schema), {}, 0)
    after = written(table)
    assert before.keys() < after.keys()  # no file has the key, though one has greater and smaller ones
    monkeypatch.setattr(module, "FOLDED_BYTES", min(before.values()))
    commit.write(table, pa.table([[30_000], [-4]], schema=schema), {}, 0)
    assert len(written(table)) == len(after)  # the file of one row is not left behind
    assert table.scan().count() == 10_002
    monkeypatch.setattr(module, "FOLDED_BYTES", 0)
    commit.write(table, pa.table([[None, 40_000], [1, 1]], schema=schema), {}, 0)
    commit.write(table, pa.table([[None], [2]], schema=schema), {}, 0)  # a key like others, and in no bounds
    assert table.scan().count() == 10_004


def test_files_beyond_the_bounds_are_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_BYTES", 16_000)
    monkeypatch.setattr(module, "FOLDED_BYTES", 0)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = made(folder, schema)
    commit = commit_of(table, WriteMode("upsert", ("k",)))
    commit.write(table, pa.table([range(0, 20_000, 2), range(10_000)], schema=schema), {}, 0)
    read: list[str] = []

    def has(of: Table, task: FileScanTask, keys: pa.Table) -> bool:
        read.append(task.file.file_path)
        return plain(of, task, keys)

    plain = module._has
    monkeypatch.setattr(module, "_has", has)
    commit.write(table, pa.table([[4000, 4002], [-1, -2]], schema=schema), {}, 0)
    assert len(read) == 1
    assert len(written(table)) == 10


PEOPLE = pa.schema([("user", pa.string()), ("country", pa.string()), (COUNT_COLUMN, pa.int64())])
ROWS_OF_OLD_KEY = [("a", "AT", 1), ("a", "DE", 2), ("b", "AT", 3), ("b", "DE", 4), (None, None, 5), (None, None, 6)]
"""Rows by user and country, for a job that continues by user alone; and rows of another job."""


def people(rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(PEOPLE.names, row, strict=True)) for row in rows], PEOPLE)


def rows_in(table: Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table.refresh().scan().to_arrow().to_pylist()), key=repr)


@pytest.mark.parametrize("kind", ["upsert", "totals"])
@pytest.mark.parametrize("of_group", [1, module.GROUP_BYTES], ids=["many groups", "one group"])
def test_rows_of_one_key_stay_until_a_commit_changes_the_key(
    kind: Any, of_group: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROUP_BYTES", of_group)
    table = made(folder, PEOPLE)
    before = [people(ROWS_OF_OLD_KEY[at::2]) for at in range(2)]  # in two files, of which each has both users
    for rows in before:
        table.append(rows)
    names = PEOPLE.names if kind == "upsert" else ["user", COUNT_COLUMN]
    commit = commit_of(table, WriteMode(kind, ("user",)))
    commit.write(table, people([("z", "FR", 9)]).select(names), {}, 0)
    left = sorted([*ROWS_OF_OLD_KEY, ("z", "FR" if kind == "upsert" else None, 9)], key=repr)
    assert rows_in(table) == left
    assert total_rows(table) == len(left)
    version = table.metadata_location
    for user in ("a", None):
        rows = people([("z", "FR", 10), (user, "AT", 10)]).select(names)
        if kind == "upsert":
            rows = rows.append_column(DELETED, pa.array([False, True]))
        with pytest.raises(StoreError, match=r"several rows of one key \(user\).*Make one row of them"):
            commit.write(table, rows, {"offsets": "moved"}, 0)
        assert table.refresh().metadata_location == version
        assert "offsets" not in table.properties
        assert rows_in(table) == left
    table.overwrite(people([("a", "AT", 1)]), "user == 'a'")  # the remedy
    commit.write(table.refresh(), people([("a", "AT", 10)]).select(names), {}, 0)
    assert [row for row in rows_in(table) if row[0] == "a"] == [("a", "AT", 11 if kind == "totals" else 10)]


def test_a_replacement_leaves_no_file_of_former_partitions_with_other_rows(folder: Path) -> None:
    schema = pa.schema([("_kafka_partition", pa.int32()), ("_kafka_offset", pa.int64()), ("n", pa.int64())])
    table = made(folder, schema)
    commit = commit_of(table, APPEND)
    rows = pa.table([[0, 0, 0], [0, 1, 2], [7, 8, 9]], schema=schema)
    table.append(rows)
    with table.update_spec() as update:
        update.add_field("n", "identity", "n")
    table.refresh()
    with pytest.raises(OptionRefused, match=r"has other partitions than .* Nothing was replaced.*rewrite_data_files"):
        commit.replace(table, {}, {}, {0: 1}, {0: 2})
    table.refresh()
    commit.replace(table, {}, {}, {0: 5}, {0: 6})  # no row of the file
    assert table.scan().to_arrow().sort_by("n")["n"].to_pylist() == [7, 8, 9]
    commit.replace(table, {}, {}, {0: 0}, {0: 3})  # all of its rows, so that none is written again
    assert table.scan().to_arrow().num_rows == 0
