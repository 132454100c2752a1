"""Sums that Spark adds to a table's rows: those of delta-rs, and of a plain loop over decimals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession

from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode, reduced
from kafka_ratchet.spark_sink.spark.errors import messages_of
from kafka_ratchet.spark_sink.stores.delta.merge import merge
from kafka_ratchet.spark_sink.stores.delta.spark_sums import refused_sum, with_sums

Row = tuple[Any, ...]
KEY = ("town", "open")
MODE = WriteMode("totals", KEY, ("n",))
EXACT = Context(prec=60)
MOST = 10**38 - 1
"""Largest number of 38 digits."""


@dataclass(frozen=True)
class Case:
    """Rows of a table, rows of a commit, and what becomes of them."""

    name: str
    rows: Sequence[Row]
    """Town, whether it is open, and the number to add, in the units of the last place."""
    table: Sequence[Row] = ()
    """Town, whether it is open, number of records, sum in the units of the last place, and another job's note."""
    places: int = 2
    refused: str = ""
    """Reason of the refusal; empty: the commit succeeds."""

    def __str__(self) -> str:
        return self.name

    @property
    def columns(self) -> str:
        """Return the columns of the table."""
        return f"town string, open boolean, _records long, n decimal(38,{self.places}), note string"

    def stored(self) -> list[Row]:
        """Return the rows of the table before the commit."""
        return [(*row[:3], self.scaled(row[3]), row[4]) for row in self.table]

    def given(self, spark: SparkSession) -> DataFrame:
        """Return the rows of the commit before they are reduced."""
        rows = [(*row[:2], self.scaled(row[2])) for row in self.rows]
        return spark.createDataFrame(rows, f"town string, open boolean, n decimal(28,{self.places})")

    def scaled(self, number: Any) -> Any:
        """Return a number of units of the last place as a decimal."""
        return None if number is None else EXACT.scaleb(Decimal(number), -self.places)

    def expected(self) -> list[Row]:
        """Return the table's rows after the commit, by a loop over the records."""
        rows = {row[:2]: list(row[2:]) for row in self.table}
        for town, is_open, number in self.rows:
            found = rows.setdefault((town, is_open), [0, Decimal(0), None])
            found[0] = None if found[0] is None else found[0] + 1
            found[1] = None if found[1] is None else EXACT.add(Decimal(found[1]), Decimal(number or 0))
        return [(*key, count, self.scaled(total), note) for key, (count, total, note) in rows.items()]


GRAZ = ("Graz", True)
CASES = [
    Case("new keys", [(*GRAZ, 5), ("Linz", True, 6), (*GRAZ, 7)]),
    Case("old and new keys", [(*GRAZ, 5), ("Linz", None, 6)], [(*GRAZ, 3, 100, "a"), ("Wien", True, 1, 1, "b")]),
    Case(
        "nulls and empty texts in keys",
        [(None, None, 1), ("", None, 2), (None, False, 3), ("", False, 4), (None, True, 5), (None, None, 6)],
        [(None, None, 1, 10, None), ("", None, 1, 20, None), (None, False, 1, 30, "a"), ("", True, 1, 40, None)],
    ),
    Case("null as a number", [(*GRAZ, None), (*GRAZ, None), ("Linz", True, None)], [(*GRAZ, 1, 7, None)]),
    Case(
        "null in the table",
        [(*GRAZ, 5), ("Linz", True, 6), ("Wien", True, 7)],
        [(*GRAZ, 3, None, None), ("Linz", True, None, 8, None), ("Wien", True, None, None, "a")],
    ),
    Case("signs", [(*GRAZ, -5), ("Linz", True, 9)], [(*GRAZ, 3, 5, None), ("Linz", True, 1, -18, None)]),
    *(
        Case(
            f"38 digits, {places} of them places",
            [(*GRAZ, 8), ("Linz", True, -8), ("Wien", True, 10**27 + 1)],
            [(*GRAZ, 3, MOST - 8, None), ("Linz", True, 1, 8 - MOST, None), ("Wien", True, 1, 10**37 + 3, None)],
            places,
        )
        for places in (0, 2, 7, 28)
    ),
    *(
        Case(
            f"{places} places overflow", [(*GRAZ, sign)], [(*GRAZ, 3, sign * MOST, None)], places, "more than 38 digits"
        )
        for places in (0, 28)
        for sign in (1, -1)
    ),
    Case("records overflow", [(*GRAZ, 1)], [(*GRAZ, 2**63 - 1, 1, None)], refused="_records has more than 64 bits"),
    Case(
        "two rows of one key",
        [(*GRAZ, 1)],
        [(*GRAZ, 3, 1, None), (*GRAZ, 4, 2, None)],
        refused=r"several rows of one key \(town, open\)",
    ),
]
EACH_CASE = pytest.mark.parametrize(
    ("case", "ansi"),
    [(case, ansi) for case in CASES for ansi in ("true", "false") if ansi == "true" or case.refused],
    ids=str,
)
"""Every case, and Spark's setting for arithmetic: without ANSI's, a sum that overflows is null."""

OF_STORES = ["null in the table", "38 digits, 28 of them places", "28 places overflow", "two rows of one key"]
"""Names of the cases that are also run over whole stores, which takes longer."""


@contextmanager
def arithmetic(spark: SparkSession, ansi: str) -> Iterator[None]:
    """Set Spark's arithmetic in the block."""
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.ansi.enabled", str(before))


def in_order(rows: Sequence[Row]) -> list[str]:
    """Return the rows as sorted texts, which tell 1.0 from 1.00."""
    return sorted(map(repr, rows))


def by_spark(spark: SparkSession, case: Case) -> list[Row]:
    source = reduced(case.given(spark), MODE)
    target = spark.createDataFrame(case.stored(), case.columns)
    rows = with_sums(target, source, KEY, ["_records", "n"])
    assert rows.schema.simpleString() == target.schema.simpleString()
    return [tuple(row) for row in rows.collect()]


def by_delta_rs(spark: SparkSession, case: Case, folder: Path) -> list[Row]:
    schema = pa.schema(
        [
            ("town", pa.string()),
            ("open", pa.bool_()),
            ("_records", pa.int64()),
            ("n", pa.decimal128(38, case.places)),
            ("note", pa.string()),
        ]
    )
    stored = [dict(zip(schema.names, row, strict=True)) for row in case.stored()]
    write_deltalake(folder / "table", pa.Table.from_pylist(stored, schema))
    source = [row.asDict() for row in reduced(case.given(spark), MODE).collect()]
    pq.write_table(pa.Table.from_pylist(source, pa.schema(list(schema)[:4])), folder / "source.parquet")
    merge(DeltaTable(folder / "table"), [str(folder / "source.parquet")], None, MODE, CommitProperties(), folder)
    return [tuple(row.values()) for row in DeltaTable(folder / "table").to_pyarrow_table().to_pylist()]


@EACH_CASE
def test_sums_are_those_of_delta_rs_and_of_a_plain_loop(
    spark: SparkSession, case: Case, ansi: str, tmp_path: Path
) -> None:
    if not case.refused:
        with arithmetic(spark, ansi):
            assert in_order(by_spark(spark, case)) == in_order(case.expected())
        assert in_order(by_delta_rs(spark, case, tmp_path)) == in_order(case.expected())
        return
    with arithmetic(spark, ansi), pytest.raises(Exception, match="sums") as caught:
        by_spark(spark, case)
    assert case.refused.replace("\\", "") in refused_sum(messages_of(caught.value))
    with pytest.raises((DeltaError, StoreError)):
        by_delta_rs(spark, case, tmp_path)
    assert DeltaTable(tmp_path / "table").version() == 0


def test_rows_of_other_keys_stay_as_they_are(spark: SparkSession) -> None:
    """Two rows of a key that the commit lacks, and a null sum."""
    others = [
        ("Wien", None, 3, Decimal("1.00"), "a"),
        ("Wien", None, 4, Decimal("2.00"), None),
        (None, None, 1, None, "b"),
    ]
    case = Case("others", [(*GRAZ, 1)])
    target = spark.createDataFrame([*others, (*GRAZ, 1, Decimal("1.00"), "c")], case.columns)
    rows = with_sums(target, reduced(case.given(spark), MODE), KEY, ["_records", "n"])
    assert in_order([tuple(row) for row in rows.collect()]) == in_order([*others, (*GRAZ, 2, Decimal("1.01"), "c")])


def test_columns_of_any_name(spark: SparkSession) -> None:
    """Names of the function's own columns, among others."""
    names = ["key", "addends", "old", "added", "rows", "sum0", "count0", "a`b.c"]
    columns = ", ".join(f"`{name.replace('`', '``')}` long" for name in names)
    target = spark.createDataFrame([tuple(range(8))], columns)
    source = spark.createDataFrame([(0, 10), (1, 20)], "key long, old long")
    rows = [tuple(row) for row in with_sums(target, source, ["key"], ["old"]).collect()]
    assert in_order(rows) == in_order([(0, 1, 12, 3, 4, 5, 6, 7), (1, None, 20, None, None, None, None, None)])
