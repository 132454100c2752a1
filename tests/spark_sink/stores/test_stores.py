"""What every result store promises: rows and offsets together, one holder, and nothing it was given gets lost."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kafka_ratchet.spark_sink.errors import (
    Fenced,
    OptionRefused,
    SchemaDiffers,
    StoreError,
    TablePutBack,
    TopicRecreated,
    WriteModeDiffers,
)
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode, reduced, table_schema
from kafka_ratchet.spark_sink.stores.decision import decide
from kafka_ratchet.spark_sink.stores.evolution import changes
from kafka_ratchet.spark_sink.stores.registry import store_class
from kafka_ratchet.spark_sink.stores.results import read_rows
from kafka_ratchet.spark_sink.stores.store import require_columns
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import PostgresTasksSite, Site

SIMPLE = "_kafka_partition int, _kafka_offset long, who string, amount long"
RECORD = "_kafka_partition int, _kafka_offset long, _kafka_value binary"

Frame = Callable[..., DataFrame]


class Died(BaseException):
    """The holder ends here, and nothing of its own runs any more."""


@pytest.fixture
def frame(spark: SparkSession) -> Frame:
    """frame(*rows, schema=SIMPLE) has a task for each Kafka partition, as the Kafka source hands records out."""

    def make(*rows: tuple[Any, ...], schema: str = SIMPLE) -> DataFrame:
        partitions = sorted({row[0] for row in rows})
        parts = [spark.createDataFrame([row for row in rows if row[0] == p], schema) for p in partitions]
        return reduce(DataFrame.unionAll, parts) if parts else spark.createDataFrame([], schema)

    return make


def ddl(text: str) -> StructType:
    return struct_of(text)


def seen(site: Site) -> list[tuple[object, ...]]:
    return sorted((row["who"], row["amount"]) for row in site.rows())


def test_rows_and_offsets_of_sparse_partitions_come_back(site: Site, frame: Frame) -> None:
    store = site.make()
    assert (store.offsets(), store.generation()) == ({}, 0)
    with pytest.raises(StoreError):
        read_rows(site.location, ["who"])
    assert store.open(ddl(SIMPLE)) == {}
    assert store.commit(frame((3, 0, "a", 1), (3, 1, "b", 2)), {3: 0, 17: 5}, {3: 2, 17: 5}) == 2
    assert store.offsets() == {3: 2, 17: 5}
    assert store.commit(frame(), {3: 2, 17: 5}, {3: 9, 17: 6}) == 0  # markers and aborted records only
    # Partition 4 is new in the topic: stored offsets are those of the partitions there were.
    assert store.commit(frame((4, 0, "c", 3)), {3: 9, 4: 0, 17: 6}, {3: 9, 4: 1, 17: 6}) == 1
    store.close()
    again = site.make()
    assert again.open(ddl(SIMPLE)) == {3: 9, 4: 1, 17: 6}
    assert again.generation() == 2
    assert site.make(topic="other").offsets() == {}
    assert seen(site) == [("a", 1), ("b", 2), ("c", 3)]
    assert sorted(read_rows(site.location, ["who", "_kafka_partition"])) == [("a", 3), ("b", 3), ("c", 4)]
    reader = store_class(site.location.kind)
    told = [dict(offsets) for _, offsets in reader(site.location, "job", "events").commits()]
    if site.location.kind in ("delta", "iceberg"):  # the others keep no commits apart
        places = [told.index(offsets) for offsets in ({3: 9, 4: 1, 17: 6}, {3: 9, 17: 6}, {3: 2, 17: 5})]
        assert places == sorted(places)
    else:
        assert told == []
    assert not list(reader(site.location, "other", "events").commits())


def test_looking_is_not_taking_over(site: Site, frame: Frame) -> None:
    holder = site.make()
    holder.open(ddl(SIMPLE))
    assert (site.make().offsets(), site.make().generation()) == ({}, 1)
    holder.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1})
    assert site.make().offsets() == {0: 1}
    holder.commit(frame((0, 1, "b", 1)), {0: 1}, {0: 2})
    assert site.make().generation() == 1


def test_which_other_jobs_have_committed_the_topic(site: Site, frame: Frame) -> None:
    topic_id, another = 7 << 100, 8 << 100
    assert site.make("two", "a.b", topic_id).other_jobs() == []
    for name in ("three", "one"):
        store = site.make(name, "a.b", topic_id)
        store.open(ddl(SIMPLE))
        assert name not in site.make("two", "a.b", topic_id).other_jobs()  # it has rows of nothing yet
        store.commit(frame((0, 0, name, 1)), {0: 0}, {0: 1})
        store.close()
    if site.location.kind == "delta":  # as after a hundred commits: the entries before may be cleaned up
        DeltaTable(str(site.location.path), storage_options=dict(site.location.storage_options)).create_checkpoint()
    two = site.make("two", "a.b", topic_id)
    two.open(ddl(SIMPLE))
    assert two.other_jobs() == ["one", "three"]
    two.commit(frame((0, 0, "two", 1)), {0: 0}, {0: 1})
    assert site.make("one", "a.b", topic_id).other_jobs() == ["three", "two"]
    assert site.make("one", "b", topic_id).other_jobs() == []
    assert site.make("four", "a.b", another).other_jobs() == []  # made again under the name


HOSTILE_TEXT = [
    "",
    " ",
    "\\.",
    "\n\\.\n",
    "\\N",
    "\\x00",
    'a "quoted", comma',
    "'; DROP TABLE results; --",
    "line\r\nbreak\ttab",
    "%s %(x)s {columns}",
    "😀 Zoë \u202e",
    "NULL",
    "x" * 100_000,
    None,
]


def test_hostile_names_and_values_come_back_as_they_went_in(site: Site, frame: Frame) -> None:
    schema = (
        '_kafka_partition int, _kafka_offset long, `qu"ote` string, `per%s` binary, `dot.ted` decimal(20,4), '
        "`Zoë` timestamp, "
        "`select` boolean, `back``tick` double, `a-b` array<string>, `it's` struct<`x y`: string, n: int>, "
        "small short, tiny byte, four int, real float, day date, local timestamp_ntz, `m` map<string, long>"
    ).replace("`x y`", "`x.y`")
    store = site.make()
    moment = datetime.datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=datetime.UTC)
    rows = [
        (
            0,
            n,
            text,
            None if text is None else text.encode("utf-16"),
            decimal.Decimal("-9999999999999999.9999") if n % 2 else None,
            moment,
            n % 2 == 0,
            float("inf") if n % 3 and site.holds_infinity else -0.5,
            None if text is None else [text[:50], None, ""],
            None if text is None else (text[:50], None),
            -32768,
            127,
            -(2**31),
            0.5,
            datetime.date(1969, 12, 31),
            moment.replace(tzinfo=None),
            None if text is None else {text[:50]: -(2**63)},
        )
        for n, text in enumerate(HOSTILE_TEXT if store.restricted_values else [*HOSTILE_TEXT, "nul \x00"])
    ]
    store.open(ddl(schema))
    store.commit(frame(*rows, schema=schema), {0: 0}, {0: len(rows)})
    names = [field.name for field in ddl(schema).fields]
    expected: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in rows]
    for row in expected:
        if row["it's"] is not None:
            row["it's"] = {"x.y": row["it's"][0], "n": None}
    found = sorted(site.rows(), key=lambda row: row["_kafka_offset"])
    for row in found:
        if isinstance(row["m"], list):  # Arrow says a map as its pairs
            row["m"] = dict(row["m"])
    assert found == expected


def test_the_older_of_two_is_fenced_before_and_after_it_has_written(
    site: Site, frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = site.make(), site.make()
    older.open(ddl(SIMPLE))
    older.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1})
    assert newer.open(ddl(SIMPLE)) == {0: 1}
    with pytest.raises(Fenced, match="generation 2 has taken over from 1"):
        older.commit(frame((0, 1, "older", 1)), {0: 1}, {0: 2})
    newer.commit(frame((0, 1, "b", 1)), {0: 1}, {0: 2})

    third = site.make()

    def take_over(point: str) -> None:
        if point == site.fenced_at:
            third.open(ddl(SIMPLE))

    with monkeypatch.context() as patch:
        patch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", take_over)
        with pytest.raises(Fenced, match="generation 3 has taken over from 2"):
            newer.commit(frame((0, 2, "newer", 1)), {0: 2}, {0: 3})
    assert third.offsets() == {0: 2}
    third.commit(frame((0, 2, "c", 1)), {0: 2}, {0: 3})
    assert seen(site) == [("a", 1), ("b", 1), ("c", 1)]


def test_a_commit_from_other_offsets_than_the_stored_is_refused(site: Site, frame: Frame) -> None:
    store = site.make()
    store.open(ddl(SIMPLE))
    store.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1})
    for start in ({0: 0}, {0: 2}, {1: 0}):
        with pytest.raises(TablePutBack, match=r"topic events up to \{0: 1\}"):
            store.commit(frame((0, 0, "again", 1)), start, {p: offset + 1 for p, offset in start.items()})
    assert (store.offsets(), seen(site)) == ({0: 1}, [("a", 1)])


def test_jobs_of_other_names_share_the_table(site: Site, frame: Frame, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = site.make("one"), site.make("other")
    one.open(ddl(SIMPLE))
    other.open(ddl(SIMPLE))

    def let_the_other_be_first(point: str) -> None:
        if point == "before-commit":
            monkeypatch.undo()
            other.commit(frame((0, 0, "other", 1)), {0: 0}, {0: 4})

    monkeypatch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", let_the_other_be_first)
    assert one.commit(frame((0, 0, "one", 1)), {0: 0}, {0: 1}) == 1
    assert (one.offsets(), other.offsets()) == ({0: 1}, {0: 4})
    assert seen(site) == [("one", 1), ("other", 1)]


def test_a_holder_that_dies_at_any_step_leaves_rows_and_offsets_that_agree(
    site: Site, frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[str] = []
    for point in ("before-write", "before-commit", "after-commit"):

        def die(here: str, there: str = point) -> None:
            passed.append(here)
            if here == there:
                raise Died

        store = site.make()
        at = store.open(ddl(SIMPLE)).get(0, 0)
        with monkeypatch.context() as patch:
            patch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", die)
            with pytest.raises(Died):
                store.commit(frame((0, at, str(at), 1), (0, at + 1, str(at + 1), 1)), {0: at}, {0: at + 2})
        stored = site.make().offsets().get(0, 0)
        assert [row["_kafka_offset"] for row in sorted(site.rows(), key=lambda row: row["_kafka_offset"])] == list(
            range(stored)
        )
    assert {"before-write", "before-commit", "after-commit"} <= set(passed)
    store = site.make()
    at = store.open(ddl(SIMPLE))[0]
    store.commit(frame((0, at, str(at), 1)), {0: at}, {0: at + 1})
    assert sorted(row["_kafka_offset"] for row in site.rows()) == list(range(at + 1))


def test_a_commit_whose_answer_is_an_error_is_a_commit_all_the_same(
    site: Site, frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = site.make()
    store.open(ddl(SIMPLE))
    step, error = site.committing
    commit = getattr(type(store), step)

    def commit_and_fail(*arguments: Any, **options: Any) -> None:
        commit(*arguments, **options)
        raise error

    monkeypatch.setattr(type(store), step, commit_and_fail)
    assert store.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1}) == 1
    monkeypatch.undo()

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(type(store), step, fail)
    with pytest.raises(StoreError, match=str(error).partition("\n")[0].replace("(", r"\(").replace(")", r"\)")):
        store.commit(frame((0, 1, "never", 1)), {0: 1}, {0: 2})
    monkeypatch.undo()
    assert (store.offsets(), seen(site)) == ({0: 1}, [("a", 1)])


def test_another_topic_of_the_same_name_is_refused(site: Site, frame: Frame) -> None:
    store = site.make(topic_id=1111)
    store.open(ddl(SIMPLE))
    store.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1})
    again = site.make(topic_id=2222)
    for use in (again.offsets, lambda: again.open(ddl(SIMPLE))):
        with pytest.raises(TopicRecreated, match=r"topic events is not the one .*\{0: 1\}.*ratchet sink resume"):
            use()
    assert site.make(topic_id=0).offsets() == {0: 1}  # a broker that gives no id
    assert store.commit(frame((0, 1, "b", 1)), {0: 1}, {0: 2}) == 1  # a refusal fences nobody


def test_a_commit_moves_no_offset_back(site: Site, frame: Frame) -> None:
    store = site.make()
    store.open(ddl(SIMPLE))
    store.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 3})
    with pytest.raises(ValueError, match="may not move the offset of partition 0 back, from 3 to 2"):
        store.commit(frame((0, 2, "b", 1)), {0: 3}, {0: 2})
    assert (store.offsets(), seen(site)) == ({0: 3}, [("a", 1)])


def test_a_check_that_fails_keeps_staged_rows_out_of_the_table(site: Site, frame: Frame) -> None:
    rejects = ddl(RECORD) if site.rejects else None
    rejected = frame((0, 1, b"no json"), schema=RECORD) if site.rejects else None
    store, checked = site.make(rejects=rejects), list[str]()
    store.open(ddl(SIMPLE))
    store.check_before_commit(lambda: checked.append("first"))
    store.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1}, None if rejected is None else rejected.limit(0))
    if isinstance(site, PostgresTasksSite):  # each task makes its own rows visible
        assert checked == []
        return
    assert checked == ["first"]

    def refuse() -> None:
        assert seen(site) == [("a", 1)]
        raise TopicRecreated("it is another topic now")

    store.check_before_commit(refuse)
    with pytest.raises(TopicRecreated, match="another topic now"):
        store.commit(frame((0, 1, "b", 1)), {0: 1}, {0: 2}, rejected)
    assert (store.offsets(), seen(site)) == ({0: 1}, [("a", 1)])
    assert rejects is None or site.rows(rejects=True) == []
    store.check_before_commit(lambda: checked.append("last"))
    assert store.open(ddl(SIMPLE)) == {0: 1}
    assert store.commit(frame((0, 1, "b", 1)), {0: 1}, {0: 2}, rejected) == 1
    assert (store.offsets(), seen(site), set(checked)) == ({0: 2}, [("a", 1), ("b", 1)], {"first", "last"})
    assert rejects is None or len(site.rows(rejects=True)) == 1


def test_other_columns_are_refused_by_name_and_fence_nobody(site: Site, frame: Frame) -> None:
    store = site.make()
    store.open(ddl(SIMPLE))
    others = [
        ("_kafka_partition int, _kafka_offset long, who string, amount string", "column amount"),
        (SIMPLE + ", more int", "column more .*is absent in the table"),
    ]
    if site.location.kind in ("iceberg", "folder"):  # the others cannot tell it from a column of somebody else
        others.append(("_kafka_partition int, _kafka_offset long, who string", "column amount .* absent in this job"))
    for other, sentence in others:
        with pytest.raises(SchemaDiffers, match=sentence):
            site.make().open(ddl(other))
    assert store.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 1}) == 1


def test_upserts_keep_the_last_row_of_each_key(site: Site, frame: Frame) -> None:
    write_mode = WriteMode("upsert", ("who",))
    if write_mode.kind not in site.kinds:
        with pytest.raises(OptionRefused, match=r"upsert|only rows of kind append"):
            site.make(write_mode=write_mode)
        return
    store = site.make(write_mode=write_mode)
    store.open(table_schema(write_mode, ddl(SIMPLE)))
    first = frame((0, 0, "a", 1), (0, 1, "b", 2), (0, 2, "a", 3), (0, 3, None, 4), (0, 4, 'it\'s "c"', 5))
    assert store.commit(reduced(first, write_mode), {0: 0}, {0: 5}) == 4
    second = frame((0, 5, None, 6), (0, 6, "b", None))
    store.commit(reduced(second, write_mode), {0: 5}, {0: 7})
    found = {row["who"]: (row["_kafka_offset"], row["amount"]) for row in site.rows()}
    assert found == {"a": (2, 3), "b": (6, None), None: (5, 6), 'it\'s "c"': (4, 5)}
    assert len(site.rows()) == 4
    assert site.make().offsets() == {0: 7}


def test_totals_are_exact_and_only_the_holder_adds_to_them(
    site: Site, frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mode = WriteMode("totals", ("who",), ("amount",))
    if write_mode.kind not in site.kinds:
        with pytest.raises(OptionRefused, match=r"totals|only rows of kind append"):
            site.make(write_mode=write_mode)
        return
    store = site.make(write_mode=write_mode)
    store.open(table_schema(write_mode, ddl(SIMPLE)))
    largest = 2**63 - 1
    store.commit(
        reduced(frame((0, 0, "a", largest), (0, 1, "a", largest), (0, 2, None, 1)), write_mode), {0: 0}, {0: 3}
    )
    store.commit(reduced(frame((0, 3, "a", largest), (0, 4, "b", None), (0, 5, None, -3)), write_mode), {0: 3}, {0: 6})
    found = {row["who"]: (row["_records"], int(row["amount"])) for row in site.rows()}
    assert found == {"a": (3, 3 * largest), "b": (1, 0), None: (2, -2)}

    newer = site.make(write_mode=write_mode)

    def take_over(point: str) -> None:
        if point == site.fenced_at:
            newer.open(table_schema(write_mode, ddl(SIMPLE)))

    with monkeypatch.context() as patch:
        patch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", take_over)
        with pytest.raises(Fenced):
            store.commit(reduced(frame((0, 6, "a", 1)), write_mode), {0: 6}, {0: 7})
    newer.commit(reduced(frame(), write_mode), {0: 6}, {0: 7})
    assert {row["who"]: row["_records"] for row in site.rows()} == {"a": 3, "b": 1, None: 2}


def test_rejects_are_in_the_same_commit(site: Site, frame: Frame, monkeypatch: pytest.MonkeyPatch) -> None:
    rejected = frame((0, 1, b"\x00no json"), schema=RECORD)
    if not site.rejects:
        store = site.make()
        store.open(ddl(SIMPLE))
        with pytest.raises(ValueError, match="rejects"):
            store.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 2}, rejected)
        assert store.offsets() == {}
        return
    store = site.make(rejects=ddl(RECORD))
    store.open(ddl(SIMPLE))

    def die(here: str) -> None:
        if here == "before-commit":
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", die)
        with pytest.raises(Died):
            store.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 2}, rejected)
    store = site.make(rejects=ddl(RECORD))
    assert store.open(ddl(SIMPLE)) == {}
    assert site.rows(rejects=True) == []
    assert store.commit(frame((0, 0, "a", 1)), {0: 0}, {0: 2}, rejected) == 1
    assert site.rows(rejects=True) == [{"_kafka_partition": 0, "_kafka_offset": 1, "_kafka_value": b"\x00no json"}]
    assert seen(site) == [("a", 1)]


KEYED = "_kafka_partition int, _kafka_offset long, who string, other string"


def die_before_the_driver_commits(point: str) -> None:
    if point == "before-commit":
        raise Died


def test_another_kind_or_key_of_the_same_columns_is_refused_until_somebody_decides(
    site: Site, frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(site, PostgresTasksSite):
        store = site.make()
        store.open(ddl(KEYED))
        monkeypatch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", die_before_the_driver_commits)
        with pytest.raises(Died):  # the tasks have committed
            store.commit(frame((0, 0, "a", "x"), schema=KEYED), {0: 0}, {0: 1})
        site.in_tasks = False
        with pytest.raises(WriteModeDiffers, match=r"by kind append, and is set to kind upsert \(key who\)"):
            site.make(write_mode=WriteMode("upsert", ("who",))).require_write_mode()
        return
    first = WriteMode("upsert", ("who",))
    site.make(write_mode=first).open(ddl(KEYED))
    site.make().require_write_mode()  # nothing is committed yet
    holder = site.make(write_mode=first)
    holder.open(ddl(KEYED))
    holder.commit(frame((0, 0, "a", "x"), schema=KEYED), {0: 0}, {0: 1})
    for write_mode, said in [
        (WriteMode(), "kind append"),
        (WriteMode("upsert", ("other",)), r"kind upsert \(key other\)"),
        (WriteMode("totals", ("who",), ("_kafka_offset",)), r"kind totals \(key who; sums _kafka_offset\)"),
    ]:
        store = site.make(write_mode=write_mode)
        for use in (store.require_write_mode, partial(store.open, ddl(KEYED))):
            with pytest.raises(WriteModeDiffers, match=rf"by kind upsert \(key who\), and is set to {said}\..* resume"):
                use()
        assert store.generation() == 2
    holder.commit(frame((0, 1, "a", "y"), schema=KEYED), {0: 1}, {0: 2})  # nobody was fenced
    assert [(row["who"], row["other"]) for row in site.rows()] == [("a", "y")]

    neighbour = site.make("neighbour")  # of another name: its rule is its own
    assert neighbour.open(ddl(KEYED)) == {}
    append = site.make()
    append.reset_offsets({0: 2}, decide("stored", "why"))
    with pytest.raises(Fenced):
        holder.commit(frame(schema=KEYED), {0: 2}, {0: 3})
    with pytest.raises(WriteModeDiffers, match=r"by kind append, and is set to kind upsert \(key who\)"):
        site.make(write_mode=first).open(ddl(KEYED))
    assert append.open(ddl(KEYED)) == {0: 2}
    append.commit(frame((0, 2, "b", "y"), schema=KEYED), {0: 2}, {0: 3})
    assert sorted(row["who"] for row in site.rows()) == ["a", "b"]


def test_record_columns_of_former_names_are_refused_with_the_statements_that_rename_them() -> None:
    present = dict.fromkeys(("who", "_partition", "_offset", "_timestamp", "_key"), "bigint")
    with pytest.raises(
        SchemaDiffers, match="ALTER TABLE t RENAME COLUMN _partition TO _kafka_partition; ALTER TABLE t"
    ):
        require_columns("here", present, {"who": "bigint", "_kafka_partition": "bigint"}, "t")
    with pytest.raises(
        SchemaDiffers,
        match=r"_timestamp TO _kafka_timestamp; .* \(write the table's name for TABLE\); then start the job again",
    ):
        changes("here", present, {"who": "bigint"}, lambda *_: False, "none")
    require_columns("here", {"_partition": "bigint"}, {"_partition": "bigint"}, "t")
