"""What a repair plans for each record and key, without a store."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kafka_ratchet.app.repair.keyed import COMPACTED, KeyTable, LastRows, compare_rejects
from kafka_ratchet.app.repair.plan import COORDINATES, RepairPlan
from kafka_ratchet.app.repair.records import AppendedTable, ComparedOffsets, ExpectedRows, HeldRecords
from kafka_ratchet.app.verify.rows import RowOffsets
from kafka_ratchet.app.verify.values import ComparedColumns
from kafka_ratchet.spark_sink.job.recount import DueRecords, Recount
from kafka_ratchet.spark_sink.rows.digests import row_digests

COLUMNS = pa.schema([*COORDINATES, ("who", pa.string()), ("_kafka_value", pa.binary())])
COMPARED = ComparedColumns(["who"], [], has_time=False, has_value=True)

NOT_DUE = "unexpected, the topic has no such record; --remove-unexpected removes the row"
REJECT_NOT_DUE = "unexpected, the topic has no such record; --remove-unexpected removes the reject"

Row = tuple[int | None, int | None, str]


def batch(rows: list[Row]) -> pa.RecordBatch:
    columns = [*zip(*rows, strict=True)] or [(), (), ()]
    values = pa.nulls(len(rows), pa.binary())
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[0], pa.int32()), pa.array(columns[1], pa.int64()), pa.array(columns[2], pa.string()), values],
        schema=COLUMNS,
    )


def due(rows: list[Row], rejects: list[tuple[int, int]]) -> ExpectedRows:
    found = batch(rows)
    digests = pa.table(
        {
            "_kafka_partition": found["_kafka_partition"],
            "_kafka_offset": found["_kafka_offset"],
            "_digest": pa.array(row_digests([found["who"]])),
            "_value_digest": pa.array(row_digests([found["_kafka_value"]])),
        }
    )
    return ExpectedRows(DueRecords(digests, coordinates(rejects)), parses=True, has_value=True)


def coordinates(places: list[tuple[int, int]]) -> pa.Table:
    return pa.table([[p for p, _ in places], [offset for _, offset in places]], schema=COORDINATES)


def offsets(places: list[tuple[int, int]]) -> RowOffsets:
    found = RowOffsets()
    found.add(coordinates(places).to_batches())
    return found


def compared(
    rows: list[Row], rejects: list[tuple[int, int]], wanted: ExpectedRows, bounds: ComparedOffsets, *, remove: bool
) -> RepairPlan:
    plan = RepairPlan("table", "job", "append", 100)
    held = HeldRecords(COMPARED, COLUMNS)
    held.hold([batch(rows)])
    table = AppendedTable(plan, remove_unexpected=remove, has_rejects=True)
    table.compare(held, offsets(rejects), wanted, {0: bounds})
    return plan


def places(found: pa.Table) -> list[tuple[int | None, int | None]]:
    columns = (found[name].to_pylist() for name in COORDINATES.names)
    return sorted(zip(*columns, strict=True), key=str)


def test_each_way_in_which_a_record_can_be_wrong() -> None:
    wanted = due([(0, n, f"w{n}") for n in (5, 6, 7, 8, 9)], [(0, 10), (0, 11), (0, 12)])
    rows: list[Row] = [
        (0, 2, "deleted by retention"),
        *[(0, 5, "w5")] * 2,
        (0, 6, "other"),
        (0, 7, "w7"),
        (0, 7, "other"),
        (0, 8, "w8"),
        (0, 12, "w12"),
        (0, 13, "no record"),
        (0, 20, "of a commit in between"),
        (0, 30, "too early"),
        (None, None, "nowhere"),
    ]
    rejects = [(0, 8), (0, 10), (0, 10), (0, 12), (0, 13), (0, 25)]
    bounds = ComparedOffsets(4, 14, 25, rejects_ahead=True)
    plan = compared(rows, rejects, wanted, bounds, remove=False)
    shown = sorted(str(each) for each in plan.rows)
    assert shown == sorted(
        [
            "put in: partition 0 offset 9: lost, has no row",
            "put in of the rejects: partition 0 offset 11: lost, does not parse, but is not among the rejects",
            "remove of the rejects: partition 0 offset 8: doubled, is a row and a reject, and parses",
            "remove: partition 0 offset 12: doubled, is a row and a reject, and does not parse",
            "replace of the rejects: partition 0 offset 10: doubled, is a reject more than once; one is left",
            "replace: partition 0 offset 5: doubled, has more than one row; one is left",
            "replace: partition 0 offset 6: altered, its row has other values than the record",
            f"stays of the rejects: partition 0 offset 13: {REJECT_NOT_DUE}",
            f"stays: partition -1 offset -1: {NOT_DUE}",
            f"stays: partition 0 offset 13: {NOT_DUE}",
            f"stays: partition 0 offset 30: {NOT_DUE}",
            "stays: partition 0 offset 7: doubled, has more than one row, and not all have its values; "
            "--remove-unexpected leaves the right one",
        ]
    )
    assert (plan.before, plan.counts.total()) == (1, 12)
    assert places(plan.put_in) == [(0, 5), (0, 6), (0, 9)]
    assert places(plan.gone) == [(0, 12), (0, 5), (0, 6)]
    assert places(plan.rejects_put_in) == [(0, 10), (0, 11)]
    assert places(plan.rejects_gone) == [(0, 10), (0, 8)]
    plan = compared(rows, rejects, wanted, bounds, remove=True)
    assert not plan.actions["stays"]
    assert {(0, 13), (0, 30), (0, 7), (None, None)} <= set(places(plan.gone))
    assert (0, 13) in places(plan.rejects_gone)
    assert places(plan.put_in) == [(0, 5), (0, 6), (0, 7), (0, 9)]


def test_a_key_in_several_partitions_stays_where_the_last_commit_is_unknown() -> None:
    keys = KeyTable(pa.schema([("who", pa.string())]))
    plan = RepairPlan("table", "job", "upsert", 100)
    rows = LastRows(plan, keys, remove_unexpected=False, is_compacted=False, deletes=True)
    held = HeldRecords(COMPARED, COLUMNS)
    rows.hold([batch([(0, 3, "right"), (0, 1, "older"), (1, 1, "gone"), (0, 6, "broken"), (0, 9, "invented")])], held)
    last = [("right", 0, 3), ("right", 1, 7), ("older", 0, 2), ("older", 1, 2), ("lost", 0, 4), ("lost", 1, 4)]
    last += [("once", 1, 8), ("broken", 0, 5)]
    names = ["who", *COORDINATES.names]
    schema = pa.schema([COLUMNS.field(name) for name in names])
    deleted = pa.table([["gone"], [1], [2]], schema=schema)
    found = Recount(pa.table([*map(list, zip(*last, strict=True))], schema=schema), deleted, coordinates([(0, 6)]))
    wanted = due([(p, offset, who) for who, p, offset in last], [])
    rows.compare(found, wanted, {0: ComparedOffsets(0, 20, 20), 1: ComparedOffsets(0, 20, 20)})
    assert sorted((each.kind, each.action, each.key) for each in plan.rows) == [
        ("altered", "stays", "who='broken'"),
        ("altered", "stays", "who='older'"),
        ("lost", "put in", "who='once'"),
        ("lost", "remove", "who='gone'"),
        ("lost", "stays", "who='lost'"),
        ("unexpected", "stays", "who='invented'"),
    ]
    assert (places(plan.put_in), plan.gone["who"].to_pylist()) == ([(1, 8)], ["gone"])


def keyed(rows: list[Row], last: list[Row], earliest: int, *, is_compacted: bool, deletes: bool) -> RepairPlan:
    """Plan for rows of a table with one row per key. earliest: first offset of partition 1; partition 0 is whole."""
    plan = RepairPlan("table", "job", "upsert", 100)
    keys = KeyTable(pa.schema([("who", pa.string())]))
    table = LastRows(plan, keys, remove_unexpected=False, is_compacted=is_compacted, deletes=deletes)
    table.hold([batch(rows)], HeldRecords(COMPARED, COLUMNS))
    schema = pa.schema([COLUMNS.field(name) for name in ["who", *COORDINATES.names]])
    expected = pa.table([[who for *_, who in last], [p for p, *_ in last], [o for _, o, _ in last]], schema=schema)
    found = Recount(expected, schema.empty_table(), coordinates([]))
    bounds = {0: ComparedOffsets(0, 400, 400), 1: ComparedOffsets(earliest, 400, 400)}
    table.compare(found, due(last, []), bounds)
    return plan


def test_a_row_that_is_newer_than_what_compaction_left_stays() -> None:
    rows: list[Row] = [(0, 300, "k")]
    left: list[Row] = [(0, 200, "k")]
    plan = keyed(rows, left, 0, is_compacted=True, deletes=False)
    assert [(each.kind, each.action, each.detail) for each in plan.rows] == [("altered", "stays", COMPACTED)]
    assert not plan.mends
    assert keyed([(0, 100, "k")], left, 0, is_compacted=True, deletes=False).mends
    assert keyed(rows, left, 0, is_compacted=False, deletes=False).mends


@pytest.mark.parametrize(
    ("earliest", "is_compacted", "deletes", "action"),
    [
        pytest.param(0, False, True, "put in", id="the topic has all its records"),
        pytest.param(7, False, True, "stays", id="the other partition has lost its beginning"),
        pytest.param(0, True, True, "stays", id="the other partition may have lost the deletion"),
        pytest.param(7, False, False, "put in", id="no record deletes a row"),
    ],
)
def test_a_row_that_a_record_no_longer_there_may_have_deleted_is_not_put_back(
    earliest: int, is_compacted: bool, deletes: bool, action: str
) -> None:
    plan = keyed([], [(0, 200, "k")], earliest, is_compacted=is_compacted, deletes=deletes)
    assert [(each.kind, each.action) for each in plan.rows] == [("lost", action)]


def test_rejects_of_a_commit_that_is_not_complete_are_left() -> None:
    plan = RepairPlan("table", "job", "totals", 100)
    compare_rejects(
        plan, coordinates([(0, 1)]), offsets([(0, 1), (0, 9)]), {0: ComparedOffsets(0, 5, 5, rejects_ahead=True)},
        remove_unexpected=True,
    )  # fmt: skip
    assert not plan.mends
    compare_rejects(
        plan, coordinates([(0, 1)]), offsets([(0, 1), (0, 9)]), {0: ComparedOffsets(0, 5, 5)}, remove_unexpected=True
    )
    assert places(plan.rejects_gone) == [(0, 9)]
