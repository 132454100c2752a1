"""Rows that go back while offsets do not, whoever did it: refused by name, decided by a person, read again once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.transaction import AddAction, Transaction
from pyiceberg.table.update import RemoveSnapshotRefUpdate
from pyiceberg.typedef import Record
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kafka_ratchet.spark_sink.errors import Fenced, OptionRefused, RowsLost, StoreError
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode, reduced, table_schema
from kafka_ratchet.spark_sink.spark.dialect import to_arrow
from kafka_ratchet.spark_sink.stores.decision import decide
from kafka_ratchet.spark_sink.stores.iceberg.files import arrow_schema_of, live_files, write_rows
from kafka_ratchet.spark_sink.stores.iceberg.lineage import inconsistency
from kafka_ratchet.spark_sink.stores.store import ResultStore
from tests.spark_sink.damage import add_column, moment, put_back
from tests.spark_sink.ddl import struct_of
from tests.spark_sink.sites import LOCAL, DeltaSite, IcebergSite, Site, delta_store, params

SIMPLE = "_kafka_partition int, _kafka_offset long, who string, amount long"
RECORD = "_kafka_partition int, _kafka_offset long, _kafka_value binary"

Frame = Callable[..., DataFrame]


@pytest.fixture
def frame(spark: SparkSession) -> Frame:
    """frame(*offsets) has a row for each, of partition 0 and of one `who`."""
    return lambda *offsets: spark.createDataFrame([(0, n, "a", n) for n in offsets], SIMPLE)


@pytest.fixture(params=params("delta", "iceberg"))
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return LOCAL[request.param](tmp_path)


def ddl(text: str = SIMPLE) -> StructType:
    return struct_of(text)


def offsets(site: Site) -> list[int]:
    return sorted(row["_kafka_offset"] for row in site.rows())


def refused(*uses: Callable[[], object], match: str = "ratchet sink resume") -> None:
    for use in uses:
        with pytest.raises(RowsLost, match=match):
            use()


def read_on(store: ResultStore, frame: Frame, end: int) -> None:
    """As the job does: from where the store says, to the end."""
    at = store.open(ddl()).get(0, 0)
    store.commit(frame(*range(at, end)), {0: at}, {0: end})


def test_a_table_that_was_put_back_is_refused_and_then_read_again_once(site: Site, frame: Frame) -> None:
    holder = site.make()
    holder.open(ddl())
    holder.commit(frame(0, 1), {0: 0}, {0: 2})
    then = moment(site)
    holder.commit(frame(2), {0: 2}, {0: 3})
    put_back(site, then)
    left = offsets(site)
    refused(
        site.make().offsets,
        lambda: site.make().open(ddl()),
        lambda: holder.commit(frame(3), {0: 3}, {0: 4}),  # a stream that has not been stopped for it
    )
    assert offsets(site) == left
    check = site.make().check()
    goes_on_at = len(left)  # all of it gone: the beginning
    assert (check.stored, check.row_offsets) == ({0: 3}, {0: goes_on_at} if left else {})
    assert check.row_offsets is not None
    assert site.make().reset_offsets(check.row_offsets, decide("table", "a disk was swapped")) == 2
    with pytest.raises(Fenced):
        holder.commit(frame(3), {0: 3}, {0: 4})
    read_on(site.make(), frame, 5)
    assert offsets(site) == [0, 1, 2, 3, 4]
    assert site.make().offsets() == {0: 5}


def test_going_on_without_the_rows_is_a_decision_as_well(site: Site, frame: Frame) -> None:
    holder = site.make()
    holder.open(ddl())
    then = moment(site)
    holder.commit(frame(0, 1), {0: 0}, {0: 2})
    put_back(site, then)
    refused(site.make().offsets)
    with pytest.raises(StoreError, match="has committed since the decision was made"):
        site.make().reset_offsets({0: 2}, decide("stored", "looked at too early", {0: 1}))
    site.make().reset_offsets({0: 2}, decide("stored", "they were rubbish", {0: 2}))
    assert site.make().offsets() == {0: 2}
    read_on(site.make(), frame, 3)
    assert offsets(site) == [2]


def test_totals_of_a_table_that_was_put_back_are_exact_again(lake: Site, frame: Frame) -> None:
    write_mode = WriteMode("totals", ("who",), ("amount",))
    schema = table_schema(write_mode, ddl())
    holder = lake.make(write_mode=write_mode)
    holder.open(schema)
    holder.commit(reduced(frame(0, 1), write_mode), {0: 0}, {0: 2})
    then = moment(lake)
    holder.commit(reduced(frame(2, 3), write_mode), {0: 2}, {0: 4})
    put_back(lake, then)
    check = lake.make(write_mode=write_mode).check()
    assert (check.stored, check.row_offsets) == ({0: 4}, {0: 2})
    assert check.row_offsets is not None
    lake.make(write_mode=write_mode).reset_offsets(check.row_offsets, decide("table", "why"))
    again = lake.make(write_mode=write_mode)
    assert again.open(schema) == {0: 2}
    again.commit(reduced(frame(2, 3, 4), write_mode), {0: 2}, {0: 5})
    assert [(row["_records"], int(row["amount"])) for row in lake.rows()] == [(5, 10)]


def test_as_many_rows_prove_nothing_of_totals_without_history(lake: Site, frame: Frame) -> None:
    write_mode = WriteMode("totals", ("who",), ("amount",))
    schema = table_schema(write_mode, ddl())
    holder = lake.make(write_mode=write_mode)
    holder.open(schema)
    holder.commit(reduced(frame(0, 1), write_mode), {0: 0}, {0: 2})
    forget_history(lake)
    assert len(lake.rows()) == 1
    for store in (lake.make(write_mode=write_mode), lake.make()):  # the second as `sink status` makes it
        refused(store.offsets, match="the number of rows proves nothing|does not show which")
    check = lake.make(write_mode=write_mode).check()
    assert (check.stored, check.row_offsets) == ({0: 2}, None)
    lake.make(write_mode=write_mode).reset_offsets({0: 2}, decide("stored", "looked at by hand"))
    assert lake.make(write_mode=write_mode).open(schema) == {0: 2}


def test_a_snapshot_whose_ancestors_are_gone_proves_rows_by_their_number_in_append_tables_only(
    tmp_path: Path, frame: Frame
) -> None:
    lake = LOCAL["iceberg"](tmp_path)
    holder = lake.make()
    holder.open(ddl())
    holder.commit(frame(0, 1), {0: 0}, {0: 2})
    table = iceberg_table(lake)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append():
        pass
    table = iceberg_table(lake)
    table.metadata.snapshots[:] = [table.current_snapshot()]  # as Spark's procedure leaves them: parents are named
    assert inconsistency(table, "job", has_key=False) == ""
    assert "proves nothing" in inconsistency(table, "job", has_key=True)
    # pyiceberg's own removes the name of the parent as well.
    forget_history(lake)
    refused(lake.make().offsets, match="have expired, or the table was replaced; the table does not show which")
    assert lake.make().check().row_offsets is None


def forget_history(lake: Site) -> None:
    """Write a version without rows as another program does, and drop all before it."""
    if isinstance(lake, DeltaSite):
        table = DeltaTable(lake.path)
        for name in ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration"):
            table.alter.set_table_properties({name: "interval 0 seconds"})
        table.create_checkpoint()
        table.cleanup_metadata()
        return
    table = iceberg_table(lake)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append():
        pass
    table = iceberg_table(lake)
    newest = table.current_snapshot()
    others = [each.snapshot_id for each in table.snapshots() if each.snapshot_id != newest.snapshot_id]
    table.maintenance.expire_snapshots().by_ids(others).commit()


def iceberg_table(lake: Site) -> Any:
    return lake.make()._find()  # type: ignore[attr-defined]


def test_a_copy_without_the_offsets_of_its_rows_is_not_read_from_the_beginning(tmp_path: Path, frame: Frame) -> None:
    lake, copy = LOCAL["iceberg"](tmp_path / "a"), LOCAL["iceberg"](tmp_path / "b")
    holder = lake.make()
    holder.open(ddl())
    holder.commit(frame(0, 1), {0: 0}, {0: 2})
    copy.make("another").open(ddl())
    with iceberg_table(copy).transaction() as transaction, transaction.update_snapshot().fast_append() as producer:
        for task in live_files(iceberg_table(lake)):
            producer.append_data_file(task.file)
    store = copy.make()
    refused(store.offsets, lambda: store.open(ddl()), match=r"rows that job job wrote, but no offsets .* a second time")
    check = copy.make().check()
    assert check.rows_ahead  # so `resume --from stored` is refused
    assert check.row_offsets is None  # and so is `--from table`


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("kept", ["ratchet-sink.job.generation", "ratchet-sink.schema"])
def test_offsets_that_leave_the_properties_of_a_table_are_missed(
    tmp_path: Path, frame: Frame, kept: str, keyed: bool
) -> None:
    """By UNSET TBLPROPERTIES of the topic's entry alone, or of all but the columns; files may have other names."""
    lake = LOCAL["iceberg"](tmp_path)
    write_mode = WriteMode("totals", ("who",), ("amount",)) if keyed else WriteMode()
    schema = table_schema(write_mode, ddl())

    def make(topic: str = "events") -> ResultStore:
        return lake.make("job", topic, write_mode=write_mode)

    holder = make()
    holder.open(schema)
    holder.commit(reduced(frame(0, 1), write_mode) if keyed else frame(0, 1), {0: 0}, {0: 2})
    of_other_topic = make("more")
    of_other_topic.open(schema)
    with iceberg_table(lake).transaction() as transaction:
        gone = ["ratchet-sink.job.events"]
        if kept == "ratchet-sink.schema":
            gone = [key for key in iceberg_table(lake).properties if key.startswith("ratchet-sink") and key != kept]
        transaction.remove_properties(*gone)
    if kept == "ratchet-sink.schema":
        overwrite(lake, iceberg_table(lake).scan().to_arrow())  # as rewrite_data_files: its files name no job
    refused(make().offsets, lambda: make().open(schema), match=r"rows that job job wrote.* --from table continues")
    if kept == "ratchet-sink.job.generation":
        of_other_topic.commit(reduced(frame(7), write_mode) if keyed else frame(7), {}, {0: 8})
    check = make().check()
    assert (check.stored, check.row_offsets, check.rows_ahead) == ({}, {0: 2}, True)
    make().reset_offsets({0: 2}, decide("table", "put right"))
    assert make().open(schema) == {0: 2}
    assert make("another").offsets() == {}  # a topic that the job has not read is missed by nobody


def test_an_overwrite_by_another_is_named_and_a_deletion_is_not(tmp_path: Path, frame: Frame) -> None:
    """In one snapshot, as Spark's INSERT OVERWRITE does, and with as many rows as before."""
    lake = LOCAL["iceberg"](tmp_path)
    holder = lake.make()
    holder.open(ddl())
    holder.commit(frame(0, 1), {0: 0}, {0: 2})
    other = lake.make("other", "more")
    other.open(ddl())
    iceberg_table(lake).delete("_kafka_offset = 0")  # of the only file, which is written anew
    assert lake.make().offsets() == {0: 2}
    overwrite(lake, to_arrow(frame(8, 9)))
    refused(
        lake.make().offsets,
        lambda: holder.commit(frame(2), {0: 2}, {0: 3}),
        match=r"all rows of the table were replaced or removed \(snapshot \d+, overwrite\)",
    )
    assert lake.make().check().row_offsets == {}  # all of it is read again
    other.commit(frame(7), {}, {0: 8})  # of a job that knows nothing of it, and hides it not
    refused(lake.make().offsets, match=r"replaced or removed \(snapshot")
    assert offsets(lake) == [7, 8, 9]


def test_a_change_of_totals_in_one_file_is_not_called_a_removal_of_all_rows(tmp_path: Path, frame: Frame) -> None:
    """As Spark's UPDATE in Iceberg's default mode, copy-on-write; rows of totals do not show that some remain."""
    lake = LOCAL["iceberg"](tmp_path)
    write_mode = WriteMode("totals", ("who",), ("amount",))

    def make() -> ResultStore:
        return lake.make(write_mode=write_mode)

    holder = make()
    holder.open(table_schema(write_mode, ddl()))
    holder.commit(reduced(frame(0, 1), write_mode), {0: 0}, {0: 2})
    overwrite(lake, iceberg_table(lake).scan().to_arrow())
    refused(make().offsets, match=r"every file .* was replaced .snapshot \d+, overwrite.*--from stored continues")
    assert make().check().row_offsets is None
    make().reset_offsets({0: 2}, decide("stored", "one row was changed", {0: 2}))
    assert make().offsets() == {0: 2}
    iceberg_table(lake).delete()
    refused(make().offsets, match="all rows of the table were")


def test_a_table_created_from_its_own_rows_does_not_show_where_to_go_on(tmp_path: Path, frame: Frame) -> None:
    """As CREATE OR REPLACE TABLE t AS SELECT * FROM t."""
    lake = LOCAL["iceberg"](tmp_path)
    holder = lake.make()
    holder.open(ddl())
    holder.commit(frame(0, 1), {0: 0}, {0: 2})
    for rows, found in ((frame(0, 1), None), (frame(8, 9), {})):
        create_again(lake, to_arrow(rows))
        refused(lake.make().offsets, match=r"the table was replaced, or rolled back to before this job's first commit")
        assert lake.make().check().row_offsets == found


def create_again(lake: Site, rows: Any) -> None:
    table = iceberg_table(lake)
    with table.transaction() as transaction:
        transaction._apply((RemoveSnapshotRefUpdate.model_validate({"ref-name": "main"}),))
    table = iceberg_table(lake)
    assert table.current_snapshot() is None
    table.append(rows.cast(arrow_schema_of(table.schema(), with_ids=False)))


def overwrite(lake: Site, rows: Any) -> None:
    table = iceberg_table(lake)
    folder = lake.make()._data_folder(table)  # type: ignore[attr-defined]
    new = write_rows(
        table, folder, rows.cast(arrow_schema_of(table.schema(), with_ids=False)).to_batches(), "x", Record()
    )
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as producer:
        for task in live_files(table):
            producer.delete_data_file(task.file)
        producer.append_data_file(new)


def test_what_undoes_it_needs_no_decision(lake: Site, frame: Frame) -> None:
    holder = lake.make()
    holder.open(ddl())
    before = moment(lake)
    holder.commit(frame(0), {0: 0}, {0: 1})
    after = moment(lake)
    put_back(lake, before)
    other = lake.make("other", "more")  # commits of other jobs neither hide it nor are refused for it
    other.open(ddl())
    other.commit(frame(7), {0: 7}, {0: 8})
    refused(lake.make().offsets)
    assert lake.make("other", "more").offsets() == {0: 8}
    if isinstance(lake, DeltaSite):
        put_back(lake, after)
    else:
        assert isinstance(lake, IcebergSite)
        table = lake.make()._find()  # type: ignore[attr-defined]
        table.manage_snapshots().set_current_snapshot(snapshot_id=after).commit()
    assert lake.make().offsets() == {0: 1}
    assert holder.commit(frame(1), {0: 1}, {0: 2}) == 1
    refused(lake.make("other", "more").offsets)


def test_rejects_that_were_put_back_are_noticed_too(lake: Site, frame: Frame, spark: SparkSession) -> None:
    def make() -> ResultStore:
        return lake.make(rejects=ddl(RECORD))

    def rejects(*found: int) -> DataFrame:
        return spark.createDataFrame([(0, n, b"x") for n in found], RECORD)

    holder = make()
    holder.open(ddl())
    then = 1 if isinstance(lake, DeltaSite) else 0
    if not then:
        table = lake.make(rejects=ddl(RECORD))._rejects._find()  # type: ignore[attr-defined]
        then = table.current_snapshot().snapshot_id
    holder.commit(frame(0), {0: 0}, {0: 2}, rejects(1))
    put_back(lake, then, rejects=True)
    refused(make().offsets, lambda: make().open(ddl()))
    check = make().check()
    assert check.row_offsets is None  # rejects come back with the rows of their range, which are there
    make().reset_offsets({0: 0}, decide("earliest", "rows twice rather than rejects lost"))
    again = make()
    assert again.open(ddl()) == {0: 0}
    again.commit(frame(0), {0: 0}, {0: 2}, rejects(1))
    assert [row["_kafka_offset"] for row in lake.rows(rejects=True)] == [1]
    assert offsets(lake) == [0, 0]


def test_a_column_that_another_writer_adds_is_left_alone(lake: Site, frame: Frame) -> None:
    holder = lake.make()
    holder.open(ddl())
    holder.commit(frame(0), {0: 0}, {0: 1})
    add_column(lake)
    assert holder.commit(frame(1), {0: 1}, {0: 2}) == 1
    assert lake.make().open(ddl()) == {0: 2}
    assert (offsets(lake), [row["more"] for row in lake.rows()]) == ([0, 1], [None, None])


def test_files_that_are_gone_are_not_committed(lake: Site, frame: Frame, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = lake.make()
    holder.open(ddl())
    holder.commit(frame(0), {0: 0}, {0: 1})
    folder = lake.folder

    def clean(at: str, here: str) -> None:
        if here == at:
            newest = max(folder.rglob("part-job*.parquet"), key=lambda path: path.stat().st_mtime_ns)
            newest.unlink()

    with monkeypatch.context() as patch:
        patch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", lambda here: clean("before-commit", here))
        with pytest.raises(StoreError, match=r"part-job.* is gone\. .*Nothing was committed"):
            holder.commit(frame(1), {0: 1}, {0: 2})
    assert (lake.make().offsets(), offsets(lake)) == ({0: 1}, [0])
    with monkeypatch.context() as patch:  # a clean-up that had looked before, and removes after the commit
        patch.setattr("kafka_ratchet.spark_sink.stores.crash_points.passing", lambda here: clean("after-commit", here))
        with pytest.raises(StoreError, match=r"part-job.* is gone\. .* names it, .*--from table"):
            holder.commit(frame(1), {0: 1}, {0: 2})


# -- Delta's log


@pytest.fixture
def delta(tmp_path: Path) -> DeltaSite:
    site = LOCAL["delta"](tmp_path)
    assert isinstance(site, DeltaSite)
    return site


def test_a_table_that_forgets_transactions_is_refused(delta: DeltaSite, frame: Frame) -> None:
    holder = delta.make()
    holder.open(ddl())
    holder.commit(frame(0), {0: 0}, {0: 1})
    name = "delta.setTransactionRetentionDuration"
    DeltaTable(delta.path).alter.set_table_properties({name: "interval 7 days"}, raise_if_not_exists=False)
    uses: list[Callable[[], object]] = [
        delta.make().offsets,
        lambda: delta.make().open(ddl()),
        lambda: holder.commit(frame(1), {0: 1}, {0: 2}),  # set while a stream runs
    ]
    for use in uses:
        with pytest.raises(OptionRefused, match=rf"ALTER TABLE .* UNSET TBLPROPERTIES \('{name}'\)"):
            use()
    assert offsets(delta) == [0]


@pytest.mark.parametrize("what", ["DELETE", "WRITE", "CREATE OR REPLACE TABLE"])
def test_a_table_that_was_emptied_or_replaced_is_refused(delta: DeltaSite, frame: Frame, what: str) -> None:
    read_on(delta.make(), frame, 2)
    table = DeltaTable(delta.path)
    if what == "DELETE":
        table.delete("_kafka_offset = 0")
        assert delta.make().offsets() == {0: 2}  # rows that somebody deletes are his to delete
        table.delete()
    elif what == "WRITE":
        write_deltalake(delta.path, to_arrow(frame(8, 9)), mode="overwrite")
    else:
        DeltaTable.create(delta.path, table.schema(), mode="overwrite")
    refused(
        delta.make().offsets, match=rf"all rows of the table were replaced or removed \(version \d of its log, {what}"
    )
    assert delta.make().check().row_offsets == {}


def test_an_overwrite_with_own_rows_does_not_show_where_to_go_on(delta: DeltaSite, frame: Frame) -> None:
    """As INSERT OVERWRITE t SELECT * FROM t, and as an overwrite of some partitions."""
    read_on(delta.make(), frame, 2)
    for kept in (2, 1):
        write_deltalake(delta.path, DeltaTable(delta.path).to_pyarrow_table().slice(0, kept), mode="overwrite")
        refused(delta.make().offsets, match=r"WRITE\)\. .* --from earliest or")
        check = delta.make().check()
        assert (check.stored, check.row_offsets) == ({0: 2}, None)  # so `--from table` is refused
    delta.make().reset_offsets({0: 2}, decide("stored", "no row is missing", {0: 2}))
    assert delta.make().open(ddl()) == {0: 2}


def test_an_overwrite_of_totals_does_not_show_where_to_go_on(delta: DeltaSite, frame: Frame) -> None:
    write_mode = WriteMode("totals", ("who",), ("amount",))
    holder = delta.make(write_mode=write_mode)
    holder.open(table_schema(write_mode, ddl()))
    holder.commit(reduced(frame(0, 1), write_mode), {0: 0}, {0: 2})
    write_deltalake(delta.path, DeltaTable(delta.path).to_pyarrow_table(), mode="overwrite")
    assert delta.make(write_mode=write_mode).check().row_offsets is None
    DeltaTable(delta.path).delete()
    assert delta.make(write_mode=write_mode).check().row_offsets == {}


def test_a_folder_that_was_removed_under_the_holder_gets_no_entry(delta: DeltaSite, frame: Frame) -> None:
    holder = delta.make()
    holder.open(ddl())
    holder.commit(frame(0), {0: 0}, {0: 1})
    shutil.rmtree(delta.path)
    refused(lambda: holder.commit(frame(1), {0: 1}, {0: 2}), match="removed or recreated")
    assert not Path(delta.path).exists()
    made_anew = delta.make()
    made_anew.open(ddl())
    for n in range(4):  # its log is longer than the old one was
        made_anew.commit(frame(n), {0: n}, {0: n + 1})
    refused(lambda: holder.commit(frame(1), {0: 1}, {0: 2}), match="removed or recreated")
    assert offsets(delta) == [0, 1, 2, 3]


def test_a_log_that_was_cleaned_up_is_believed_while_the_rows_are_as_many(delta: DeltaSite, frame: Frame) -> None:
    read_on(delta.make(), frame, 2)
    table = DeltaTable(delta.path)
    then = table.version()

    def clean() -> None:
        table.update_incremental()
        table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
        table.create_checkpoint()
        table.cleanup_metadata()

    table.optimize.compact()
    clean()
    assert delta.make().offsets() == {0: 2}
    holder = delta.make()
    read_on(holder, frame, 4)
    then = DeltaTable(delta.path).version() - 1  # before that commit
    table.update_incremental()
    table.restore(then)
    clean()
    refused(delta.make().offsets, match=r"cleaned up to version \d+ .*--from earliest")
    assert delta.make().check().row_offsets is None


def test_rows_without_the_offsets_of_their_job_are_not_doubled(delta: DeltaSite, frame: Frame, tmp_path: Path) -> None:
    read_on(delta.make(), frame, 2)
    names = [Path(uri).name for uri in DeltaTable(delta.path).file_uris()]
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in names:  # what a clone's log has: files, and no transactions
        shutil.copy(Path(delta.path) / name, copy / name)
    clone = DeltaTable.create(str(copy), DeltaTable(delta.path).schema())
    _add_files(clone, copy, names)
    store = delta_store(str(copy), "job", "events")
    refused(store.offsets, lambda: store.open(ddl()), match="rows that job job wrote, but its log has no offsets")
    assert delta_store(str(copy), "other", "events").offsets() == {}


@pytest.mark.parametrize("compacted", [False, True])
def test_a_clone_is_not_read_from_the_beginning(
    delta: DeltaSite, frame: Frame, tmp_path: Path, compacted: bool
) -> None:
    """A clone has no `txn` actions, and after OPTIMIZE its files do not name the job."""
    read_on(delta.make(), frame, 2)
    clone = tmp_path / "clone"
    make_clone(delta, clone)
    if compacted:
        DeltaTable(str(clone)).optimize.compact()
    store = delta_store(str(clone), "job", "events")
    refused(store.offsets, lambda: store.open(ddl()), match=r"the table is a clone \(version 0 of its log\)")
    check = delta_store(str(clone), "job", "events").check()
    assert (check.stored, check.row_offsets, check.rows_ahead) == ({}, None, True)
    DeltaTable(str(clone)).delete()
    assert delta_store(str(clone), "job", "events").offsets() == {}
    DeltaTable(str(clone)).restore(0)
    refused(delta_store(str(clone), "job", "events").offsets)
    delta_store(str(clone), "job", "events").reset_offsets({0: 2}, decide("latest", "rows up to there"))
    read_on(delta_store(str(clone), "job", "events"), frame, 3)
    assert len(DeltaTable(str(clone)).to_pyarrow_table()) == 3


def make_clone(original: DeltaSite, folder: Path) -> None:
    """Write what delta-spark's CREATE TABLE ... CLONE writes; delta-rs has no such call."""
    (folder / "_delta_log").mkdir(parents=True)
    added = []
    for number, path in enumerate(Path(original.path).glob("*.parquet")):
        name = f"part-{number:05d}-of-spark.zstd.parquet"
        shutil.copy(path, folder / name)
        added.append({"path": name, "partitionValues": {}, "size": (folder / name).stat().st_size,
                      "modificationTime": 1, "dataChange": True, "stats": '{"numRecords": 2}'})  # fmt: skip
    told = {"timestamp": 1, "operation": "CLONE", "operationParameters": {"source": "delta.`a`", "sourceVersion": "3"}}
    schema = DeltaTable(original.path).schema().to_json()
    metadata = {"id": "clone", "format": {"provider": "parquet", "options": {}}, "schemaString": schema,
                "partitionColumns": [], "configuration": {}}  # fmt: skip
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    lines = [{"commitInfo": told}, {"protocol": protocol}, {"metaData": metadata}, *({"add": each} for each in added)]
    (folder / "_delta_log" / f"{0:020d}.json").write_text("\n".join(map(json.dumps, lines)), "utf-8")


def test_a_table_of_an_earlier_version_is_taken_on_in_place(delta: DeltaSite, frame: Frame) -> None:
    """Such a table has no version of its own entries in the log, and 63 bits of the topic's id."""
    table = DeltaTable.create(delta.path, delta_schema(frame))
    about = '{"job": "job", "topic": "events", "generation": 1, "offsets": {"0": 2}}'
    topic_id = 0x4123456789ABCDEF_8000000000000001
    actions = {"generation": 1, "events/partitions": 1, "events/0": 2, "events/identity": topic_id >> 64}
    rows = to_arrow(frame(0, 1))
    write_deltalake(
        delta.path,
        rows,
        mode="append",
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": about},
            app_transactions=[Transaction(f"ratchet-sink/job/{key}", value) for key, value in actions.items()],
        ),
    )
    assert delta.make(topic_id=topic_id).offsets() == {0: 2}
    table.update_incremental()
    table.restore(0)
    refused(delta.make(topic_id=topic_id).offsets)
    table.restore(1)
    holder = delta.make(topic_id=topic_id)
    assert holder.open(ddl()) == {0: 2}
    holder.commit(frame(2), {0: 2}, {0: 3})
    put_back(delta, 1)
    refused(delta.make(topic_id=topic_id).offsets)
    assert delta.make(topic_id=topic_id).check().row_offsets == {0: 2}


def delta_schema(frame: Frame) -> Schema:
    return Schema.from_json(frame().schema.json())


def _add_files(table: DeltaTable, folder: Path, names: list[str]) -> None:
    sizes = {name: (folder / name).stat().st_size for name in names}
    added = [AddAction(name, size, {}, 1, True, '{"numRecords": 2}') for name, size in sizes.items()]
    table.create_write_transaction(list(added), "append", table.schema())
