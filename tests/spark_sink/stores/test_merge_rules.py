"""The rule of each column of a table of totals, in the stores that merge on this machine, without Spark and Kafka."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from psycopg import sql
from psycopg.types.json import Jsonb

from faults.postgres import PostgresServer
from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.rows.distinct import HASHES
from kafka_ratchet.spark_sink.rows.windows import read_windows
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.delta import merge as delta
from kafka_ratchet.spark_sink.stores.delta import repeated_keys
from kafka_ratchet.spark_sink.stores.duckdb.store import add
from kafka_ratchet.spark_sink.stores.iceberg.merge import merged
from kafka_ratchet.spark_sink.stores.postgres.merge import on_conflict
from kafka_ratchet.spark_sink.stores.sql_types import Column

Merge = Callable[[Path, pa.Table, pa.Table, WriteMode], pa.Table]

NAN = math.nan
VALUES: list[tuple[pa.DataType, Sequence[Any]]] = [
    (pa.string(), ["", "10", "9", "Z", "a", "z", "ä", "\uffee", "😀"]),
    (pa.float64(), [-math.inf, -1e308, 0.0, 1.5, math.inf, NAN]),
    (pa.float32(), [-math.inf, 0.5, NAN]),
    (pa.int64(), [-(2**63), -1, 0, 2**63 - 1]),
    (pa.decimal128(38, 2), [Decimal("-9.99"), Decimal("0.01"), Decimal(10**35)]),
    (pa.date32(), [datetime.date(1, 1, 1), datetime.date(1969, 12, 31), datetime.date(9999, 12, 31)]),
    (pa.timestamp("us", "UTC"), [datetime.datetime(y, 1, 1, tzinfo=datetime.UTC) for y in (1, 1969, 2024)]),
    (pa.timestamp("us"), [datetime.datetime(y, 1, 1) for y in (1, 1969, 2024)]),
]
"""Values of each type, in their order."""


def in_delta(folder: Path, target: pa.Table, source: pa.Table, write_mode: WriteMode) -> pa.Table:
    write_deltalake(folder / "table", target)
    pq.write_table(source, folder / "source.parquet")
    files, properties = [str(folder / "source.parquet")], CommitProperties()
    assert delta.merge(DeltaTable(folder / "table"), files, None, write_mode, properties, folder)
    return DeltaTable(folder / "table").to_pyarrow_table()


def in_duckdb(folder: Path, target: pa.Table, source: pa.Table, write_mode: WriteMode) -> pa.Table:
    with duckdb.connect(str(folder / "file.duckdb")) as database:
        database.register("target_rows", target)
        database.execute('CREATE TABLE "the ""table" AS SELECT * FROM target_rows')
        database.register("source", source)
        add(database, 'the "table', write_mode, deletes=False)
        return database.sql('SELECT * FROM "the ""table"').to_arrow_table()


def in_arrow(folder: Path, target: pa.Table, source: pa.Table, write_mode: WriteMode) -> pa.Table:
    return merged(target, source, write_mode, folder)


LOCALES = ["und-x-icu", "en_US", "en_US.utf8", "de_DE.utf8"]
"""Collations that order "Z" behind "a"; a server without ICU and the system's locales has none."""

POSTGRES_TYPES = {
    pa.bool_(): "boolean",
    pa.string(): "text",
    pa.float64(): "double precision",
    pa.float32(): "real",
    pa.int64(): "bigint",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp with time zone",
    pa.timestamp("us"): "timestamp without time zone",
    pa.decimal128(38, 0): "numeric(38,0)",
    pa.decimal128(38, 2): "numeric(38,2)",
    pa.decimal128(38, 28): "numeric(38,28)",
    pa.list_(pa.int64()): "jsonb",
}


def in_postgres(server: PostgresServer) -> Merge:
    """As in a database that orders text in another way than by its bytes, where the server has such a locale."""

    def merge(folder: Path, target: pa.Table, source: pa.Table, write_mode: WriteMode) -> pa.Table:
        columns = [Column(field.name, POSTGRES_TYPES[field.type]) for field in target.schema]
        places = ", ".join(["%s"] * len(columns))
        with psycopg.connect(server.url, password=server.password, options="-c TimeZone=UTC") as database:
            locales = database.execute("SELECT collname FROM pg_collation WHERE collname = ANY(%s)", (LOCALES,))
            text = f'text COLLATE "{next(locales, ["C"])[0]}"'
            made = ", ".join(f"{each.name} {text if each.type == 'text' else each.type}" for each in columns)
            for name, rows in (("target_rows", target), ("source_rows", source)):
                database.execute(f"CREATE TEMP TABLE {name} ({made})")
                plain = [
                    tuple(Jsonb(v) if isinstance(v, list) else v for v in row.values()) for row in rows.to_pylist()
                ]
                with database.cursor() as cursor:
                    cursor.executemany(f"INSERT INTO {name} VALUES ({places})", plain)  # noqa: S608
            key = ", ".join(write_mode.row_key)
            database.execute(f"CREATE UNIQUE INDEX ON target_rows ({key}) NULLS NOT DISTINCT")
            conflict = on_conflict(columns, write_mode)
            compared = len(write_mode.mins + write_mode.maxes) if pa.string() in source.schema.types else 0
            assert conflict.as_string(None).count('COLLATE "C"') == 2 * compared
            database.execute(sql.SQL("INSERT INTO target_rows AS target SELECT * FROM source_rows {}").format(conflict))
            found = database.execute("SELECT * FROM target_rows").fetchall()
            database.rollback()
        return pa.Table.from_pylist([dict(zip(target.column_names, row, strict=True)) for row in found], target.schema)

    return merge


@pytest.fixture(params=["delta", "duckdb", "arrow", pytest.param("postgres", marks=pytest.mark.postgres)])
def merge(request: pytest.FixtureRequest) -> Merge:
    """What takes a commit's rows up, in each store."""
    if request.param == "postgres":
        return in_postgres(request.getfixturevalue("postgres"))
    return {"delta": in_delta, "duckdb": in_duckdb, "arrow": in_arrow}[request.param]


def shown(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple("NaN" if value != value else value for value in row)


@pytest.mark.parametrize(
    ("data_type", "values"), VALUES, ids=lambda value: str(value) if isinstance(value, pa.DataType) else ""
)
def test_least_and_greatest_of_every_type(
    merge: Merge, data_type: pa.DataType, values: Sequence[Any], tmp_path: Path
) -> None:
    places = [None, *range(len(values))]
    pairs = list(itertools.product(places, places))
    write_mode = WriteMode("totals", ("k",), mins=("v",), maxes=("v",))

    def table(side: int) -> pa.Table:
        column = pa.array([None if pair[side] is None else values[pair[side]] for pair in pairs], data_type)
        keys = pa.array(range(len(pairs)), pa.int64())
        return pa.table(
            {"k": keys, "_records": pa.array([1] * len(pairs), pa.int64()), "v_min": column, "v_max": column}
        )

    found = {row["k"]: row for row in merge(tmp_path, table(0), table(1), write_mode).to_pylist()}
    for key, pair in enumerate(pairs):
        there = [place for place in pair if place is not None]
        expected = [pa.scalar(values[of(there)], data_type).as_py() if there else None for of in (min, max)]
        assert shown((found[key]["v_min"], found[key]["v_max"])) == shown(tuple(expected)), (key, pair)
        assert found[key]["_records"] == 2


def test_lists_of_hashes_become_their_union_and_its_estimate(merge: Merge, tmp_path: Path) -> None:
    random, write_mode = Random(64), WriteMode("totals", ("k",), distinct=("v",))

    def drawn(size: int, most: int = 2**63) -> set[int]:
        return {random.randrange(most) for _ in range(size)}

    few, many = drawn(5), drawn(5_000)
    pairs = [
        (set(), set()),
        (few, set()),
        (few, few),
        ({2**63 - 1}, {0}),
        (drawn(HASHES - 1), set()),
        (drawn(700), drawn(700)),
        (many, drawn(3_000) | set(list(many)[:2_000])),
        (drawn(30), many),
        (drawn(1_500, 1_700), drawn(1_500, 1_700)),
    ]
    lists = [[sorted(hashes)[:HASHES] for hashes in pair] for pair in pairs]

    def table(side: int) -> pa.Table:
        rows = [
            {"k": key, "_records": 1, "v_hashes": pair[side], "v_distinct": estimated(pair[side])}
            for key, pair in enumerate(lists)
        ]
        numbers = pa.int64()
        types = {"k": numbers, "_records": numbers, "v_hashes": pa.list_(numbers), "v_distinct": numbers}
        return pa.Table.from_pylist(rows, pa.schema(list(types.items())))

    found = {row["k"]: row for row in merge(tmp_path, table(0), table(1), write_mode).to_pylist()}
    for key, (one, other) in enumerate(pairs):
        union = sorted(one | other)[:HASHES]
        assert (found[key]["v_hashes"], found[key]["v_distinct"]) == (union, estimated(union)), key


def estimated(hashes: list[int]) -> int:
    return len(hashes) if len(hashes) < HASHES else math.floor((HASHES - 1) * 2.0**63 / float(hashes[-1]))


def test_rows_are_told_apart_by_every_column_of_the_key_and_by_the_window(merge: Merge, tmp_path: Path) -> None:
    hours = read_windows("1 hour", None, "at")
    write_mode = WriteMode("totals", ("flag", "who"), ("n",), hours, averages=("n",))
    begins = [
        None,
        datetime.datetime(1969, 12, 31, 23, tzinfo=datetime.UTC),
        datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
    ]
    keys = list(itertools.product([None, True, False], [None, "", "a"], begins))
    schema = pa.schema(
        [
            ("flag", pa.bool_()),
            ("who", pa.string()),
            ("_window", pa.timestamp("us", "UTC")),
            ("_records", pa.int64()),
            ("n", pa.decimal128(38, 0)),
            ("n_count", pa.int64()),
            ("n_avg", pa.float64()),
        ]
    )

    def table(numbers: range) -> pa.Table:
        rows = [
            (*key, 3, Decimal(number), number % 3, number / (number % 3) if number % 3 else None)
            for number, key in enumerate(keys)
            if number in numbers
        ]
        return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)

    result = merge(tmp_path, table(range(20)), table(range(10, 27)), write_mode)
    found = {(row["flag"], row["who"], row["_window"]): row for row in result.to_pylist()}
    assert result.num_rows == len(found) == len(keys)
    for number, key in enumerate(keys):
        row, times = found[key], 2 if 10 <= number < 20 else 1
        assert (row["_records"], row["n"], row["n_count"]) == (3 * times, number * times, number % 3 * times)
        assert row["n_avg"] == (pytest.approx(number / (number % 3), rel=1e-15) if number % 3 else None)


@pytest.mark.parametrize(
    ("records", "places", "number"),
    [(2**63 - 1, 2, 0), (1, 0, 10**38 - 1), (1, 28, 10**38 - 1), (1, 0, 1 - 10**38)],
    ids=["records", "whole", "places", "negative"],
)
def test_a_sum_that_overflows_is_refused(merge: Merge, tmp_path: Path, records: int, places: int, number: int) -> None:
    schema = pa.schema([("k", pa.string()), ("_records", pa.int64()), ("n", pa.decimal128(38, places))])

    def table(count: int, units: int) -> pa.Table:
        return pa.Table.from_pylist([{"k": "a", "_records": count, "n": Decimal(f"{units}E-{places}")}], schema)

    write_mode, one = WriteMode("totals", ("k",), ("n",)), 1 if number >= 0 else -1
    (below := tmp_path / "below").mkdir()
    (above := tmp_path / "above").mkdir()
    found = merge(below, table(records - 1, number - one), table(1, one), write_mode).to_pylist()
    assert found == table(records, number).to_pylist()
    with pytest.raises(Exception, match=r"[Oo]verflow|out of range|too (large|small)|does not fit"):
        merge(above, table(records, number), table(1, one), write_mode)


PEOPLE = pa.schema([("town", pa.string()), ("country", pa.string()), ("_records", pa.int64())])


@pytest.mark.parametrize("kind", ["upsert", "totals"])
@pytest.mark.parametrize("town", ["Graz", None])
def test_a_key_with_several_rows_is_refused_by_delta_rs(kind: Any, town: str | None, tmp_path: Path) -> None:
    """As after a key (town, country) that became (town); rows of other keys stay."""

    def table(rows: Sequence[tuple[Any, ...]]) -> pa.Table:
        return pa.Table.from_pylist([dict(zip(PEOPLE.names, row, strict=True)) for row in rows], PEOPLE)

    before = [("Graz", "AT", 10), ("Graz", "DE", 5), ("Wien", "AT", 3), (None, None, 1), (None, None, 2)]
    for rows in (before[::2], before[1::2]):
        write_deltalake(tmp_path / "t", table(rows), mode="append")
    file, properties = str(tmp_path / "source.parquet"), CommitProperties()

    def commit(*towns: str | None) -> None:
        pq.write_table(table([(each, "AT", 1) for each in towns]).select(["town", "_records"]), file)
        mode = WriteMode(kind, ("town",))
        delta.merge(DeltaTable(tmp_path / "t"), [file], None, mode, properties, "the table")

    def stored() -> list[tuple[Any, ...]]:
        rows = DeltaTable(tmp_path / "t").to_pyarrow_table().to_pylist()
        return sorted((tuple(row.values()) for row in rows), key=repr)

    with pytest.raises(StoreError, match=r"the table: the table has several rows of one key \(town\)"):
        commit("Wien", town, "Linz")
    assert stored() == sorted(before, key=repr)
    assert DeltaTable(tmp_path / "t").version() == 1
    commit("Wien", "Linz")
    wien = ("Wien", "AT", 4 if kind == "totals" else 1)
    assert stored() == sorted([*before[:2], *before[3:], wien, ("Linz", None, 1)], key=repr)


def test_a_key_of_several_columns_is_found_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_keys, "LEAST_ROWS", 1)
    draw, schema = Random(7), pa.schema([("a", pa.int64()), ("b", pa.string())])
    keys = list(itertools.product([None, 0, 1], [None, "", "x"]))

    def table(rows: Sequence[tuple[Any, ...]]) -> pa.Table:
        return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)

    outcomes = set()
    for _ in range(300):
        given, rows = draw.sample(keys, draw.randint(0, 5)), [draw.choice(keys) for _ in range(draw.randint(0, 9))]
        found = repeated_keys._has_several(table(rows).to_batches(max_chunksize=2), table(given))
        assert found == any(rows.count(each) > 1 for each in given), (rows, given)
        outcomes.add(found)
    assert outcomes == {True, False}


def test_zeros_of_both_signs_are_one_key() -> None:
    """delta-rs compares keys by IS NOT DISTINCT FROM, for which -0.0 is 0.0."""
    for rows in ([0.0, -0.0], [-0.0, -0.0], [0.0, 0.0]):
        for given in ([0.0], [-0.0]):
            assert repeated_keys._has_several(pa.table({"k": rows}).to_batches(), pa.table({"k": given}))
    assert not repeated_keys._has_several(pa.table({"k": [0.0, 1.5]}).to_batches(), pa.table({"k": [-0.0, 1.5]}))


def test_a_file_that_cannot_be_read_is_an_error_of_the_table(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"town": ["Graz"]}))
    next((tmp_path / "t").glob("*.parquet")).unlink()
    with pytest.raises(DeltaError, match="not found"):
        repeated_keys.require_one_row(DeltaTable(tmp_path / "t"), pa.table({"town": ["Graz"]}), "the table")
