"""Results that are more than rows: the user's own step, rejects, and what a narrow store cannot hold."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sites import Site

from spark_sink import Outcome, Recipe, Shape
from spark_sink._columns import record_schema
from spark_sink._recipe import function_transform, sql_transform
from spark_sink.errors import OptionRefused

Cook = Callable[..., Outcome]


def test_values_that_a_store_cannot_hold_are_kept_whole(
    site: Site, cook: Cook, new_topic: Callable[..., str], write: Callable[..., None]
) -> None:
    narrow = site.make().narrow
    far = b"+123456" if narrow else b"9999"  # the other stores hold such years, but Python cannot read them
    values = [
        b'{"who":"plain","at":"2024-01-01T00:00:00Z"}',
        b'{"who":"nul \\u0000"}',
        b'{"who":"no nul \\\\u0000"}',
        b'{"who":"far","in":{"at":["2024-01-01T00:00:00Z",null,"%s-01-01T00:00:00Z"]}}' % far,
        b'{"who":"r\xc3\xa9sum\xc3\xa9 \\ud83d\\ude00 \\ud800"}',
        b"\x00\xff no json",
    ]
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        write(topic, values, partition)
        write(topic, [b'{"who":"aborted"}'], partition, commit=False)
    outcome = cook(
        topic, Recipe("who string, at timestamp, `in` struct<at: array<timestamp>>, m map<string, date>"), max_records=5
    )
    assert outcome.offsets == {0: 9, 1: 9}
    rows = sorted(site.rows(), key=lambda row: (row["_partition"], row["_offset"]))
    assert [(row["_partition"], row["_offset"]) for row in rows] == [(p, n) for p in (0, 1) for n in range(6)]
    for row in rows:
        value = values[row["_offset"]]
        whole = row["_offset"] in ({1, 3, 5} if narrow else {5})
        assert row["_value"] == (value if whole else None)
        assert row["who"] == (None if whole else json.loads(value)["who"].replace("\ud800", "?"))


def test_rejects_and_totals_of_a_real_topic(
    site: Site, cook: Cook, new_topic: Callable[..., str], write: Callable[..., None]
) -> None:
    if not site.rejects:
        with pytest.raises(OptionRefused, match="without rejects"):
            site.make(rejects=record_schema())
        return
    topic = new_topic(partitions=2)
    recipe = Recipe(
        "who string, amount decimal(9,2)",
        Shape("totals", ("who",), ("cents",)),
        rejects=True,
        transform=sql_transform("SELECT upper(who) AS who, CAST(amount * 100 AS bigint) AS cents FROM records"),
    )
    expected = 0
    for n in range(2):
        write(topic, [b'{"who":"a","amount":0.1}', b'{"who":"A","amount":0.2}', b"broken %d" % n], n % 2)
        write(topic, [b'{"who":"a","amount":1}'], n % 2, commit=False)
        expected += 30
        cook(topic, recipe, max_records=2)
        [total] = site.rows()
        assert (total["who"], total["_records"], int(total["cents"])) == ("A", 2 * (n + 1), expected)
    rejected = sorted(site.rows(rejects=True), key=lambda row: row["_value"])
    assert [(row["_partition"], row["_value"]) for row in rejected] == [(0, b"broken 0"), (1, b"broken 1")]


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        (lambda: Recipe(rejects=True), "nothing to reject"),
        (lambda: Recipe("who string", Shape("upsert", ("who",))), "no place for values that do not parse"),
        (lambda: Recipe(None, Shape("upsert")), "needs a key"),
        (lambda: Recipe(None, Shape("append", ("who",))), "has no key"),
        (lambda: Recipe(None, Shape("upsert", ("who",), ("n",))), "has no sums"),
        (lambda: Recipe(None, Shape("totals", ("who",), ("who",))), "a column twice"),
        (lambda: Recipe(transform=function_transform("nonsense")), "write module:function"),
        (lambda: Recipe(transform=function_transform("no_such_module:f")), "No module named 'no_such_module'"),
        (lambda: Recipe(transform=function_transform("json:no_such")), "has no function no_such"),
    ],
)
def test_recipes_that_contradict_themselves_are_refused(recipe: Callable[[], Recipe], sentence: str) -> None:
    with pytest.raises(OptionRefused, match=sentence):
        recipe()


@pytest.mark.parametrize(
    ("shape", "sql", "sentence"),
    [
        (Shape("totals", ("who",)), None, "needs column 'who'"),
        (Shape("upsert", ("_key",)), "SELECT _key FROM records", "'_partition' \\(it says which row"),
        (Shape("totals", ("_key",), ("x",)), "SELECT _key, 0.5D AS x FROM records", "cannot be added up exactly"),
        (Shape("totals", ("_key",), ("x",)), "SELECT _key, CAST(1 AS decimal(38,1)) AS x FROM records", "28 digits"),
        (Shape("totals", ("_records",)), "SELECT 1 AS _records FROM records", "is the count"),
        (Shape("upsert", ("x",)), "SELECT *, array(1) AS x FROM records", "cannot be a key"),
        (Shape(), "SELECT nonsense FROM records", "sql: .*nonsense"),
        (Shape(), "SELEKT 1", "sql: .*Write a query of the view records"),
    ],
)
def test_shapes_that_the_rows_do_not_have_are_refused(
    spark: SparkSession, shape: Shape, sql: str | None, sentence: str
) -> None:
    recipe = Recipe(None, shape, transform=sql_transform(sql) if sql else None)
    with pytest.raises(OptionRefused, match=sentence):
        recipe.schema(spark)


def test_a_function_of_the_users_makes_the_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_own.py").write_text(
        "def lengths(rows):\n    return rows.selectExpr('length(_value) AS n')\n\ndef wrong(rows):\n    return 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert Recipe(transform=function_transform("users_own:lengths")).schema(spark).names == ["n"]
        with pytest.raises(OptionRefused, match="returned int, not a DataFrame"):
            Recipe(transform=function_transform("users_own:wrong")).schema(spark)
    finally:
        sys.modules.pop("users_own", None)
