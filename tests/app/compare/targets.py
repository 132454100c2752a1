"""Tables of each kind with the rows of somebody's pipeline in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

Row = tuple[int, str, Decimal]

NAMES = ("id", "city", "amount")


def arrow(rows: Sequence[Row]) -> pa.Table:
    ids, cities, amounts = zip(*rows, strict=True)
    types = {"id": pa.int64(), "city": pa.string(), "amount": pa.decimal128(12, 2)}
    columns = {name: pa.array(values, types[name]) for name, values in zip(NAMES, (ids, cities, amounts), strict=True)}
    return pa.table(columns)


def parquet(folder: Path, rows: Sequence[Row]) -> tuple[str, dict[str, str]]:
    half = len(rows) // 2
    (folder / "files").mkdir()
    for number, part in enumerate((rows[:half], rows[half:])):
        pa.parquet.write_table(arrow(part), folder / "files" / f"{number}.parquet")
    return f"parquet:{folder}/files", {}


def csv(folder: Path, rows: Sequence[Row]) -> tuple[str, dict[str, str]]:
    pa.csv.write_csv(arrow(rows), folder / "rows.csv")
    return f"csv:{folder}/rows.csv", {}


def delta(folder: Path, rows: Sequence[Row]) -> tuple[str, dict[str, str]]:
    from deltalake import write_deltalake

    write_deltalake(str(folder / "delta"), arrow(rows))
    return f"delta:{folder}/delta", {}


def iceberg(folder: Path, rows: Sequence[Row]) -> tuple[str, dict[str, str]]:
    from pyiceberg.catalog.sql import SqlCatalog

    options = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    catalog = SqlCatalog("default", **{name: value for name, value in options.items() if name != "type"})
    catalog.create_namespace("prod")
    catalog.create_table("prod.orders", arrow(rows).schema).append(arrow(rows))
    catalog.close()
    return "iceberg:prod.orders", options


def duckdb(folder: Path, rows: Sequence[Row]) -> tuple[str, dict[str, str]]:
    import duckdb

    with duckdb.connect(str(folder / "rows.duckdb")) as database:
        database.execute('CREATE SCHEMA shop; CREATE TABLE shop."orders" (id BIGINT, city VARCHAR, amount DOUBLE)')
        database.executemany("INSERT INTO shop.orders VALUES (?, ?, ?)", rows)
    return f"duckdb:{folder}/rows.duckdb?table=shop.orders", {}


FILES: dict[str, Callable[[Path, Sequence[Row]], tuple[str, dict[str, str]]]] = {
    "parquet": parquet,
    "csv": csv,
    "delta": delta,
    "iceberg": iceberg,
    "duckdb": duckdb,
}


def fill_postgres(connection: Any, rows: Sequence[Row]) -> None:
    connection.execute("CREATE TABLE orders (id bigint, city text, amount numeric(12, 2))")
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO orders VALUES (%s, %s, %s)", rows)


def fill_mysql(connection: Any, rows: Sequence[Row]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (id bigint, city text, amount decimal(12, 2)) CHARACTER SET utf8mb4")
        cursor.executemany("INSERT INTO orders VALUES (%s, %s, %s)", rows)
    connection.commit()
