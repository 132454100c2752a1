"""`ratchet repair --results`: real tables of each kind, damaged behind the job's back and mended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable
from psycopg import sql
from pyspark.sql import SparkSession

from kafka_ratchet.app.cli.repair import lines
from kafka_ratchet.app.repair.table import Repair, RepairedTable, RepairResult
from kafka_ratchet.app.status.results import topic_of
from kafka_ratchet.errors import SettingsError, SetupError
from kafka_ratchet.spark_sink.job.job import run_batch
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import Job
from kafka_ratchet.spark_sink.stores import crash_points
from kafka_ratchet.spark_sink.stores.decision import decide
from tests.spark_sink.conftest import spark_jvm
from tests.spark_sink.damage import change, delete, repeat_all
from tests.spark_sink.followed import Follow, Followed, as_toml, values
from tests.spark_sink.sites import DeltaSite, PostgresSite, Rows, Site, param, params
from tests.topic_config import recreate_topic

MYSQL = pytest.param("mysql", marks=pytest.mark.matrix)
KINDS = ("delta", "iceberg", "duckdb", "postgres")
MERGED = ("delta", "duckdb", "postgres")
"""Kinds of stores that take another program's change of a small table of totals for a change of rows."""
ON_STORES = pytest.mark.parametrize("site", [*params(*KINDS, by_default=("delta",)), MYSQL], indirect=True)
AND_POSTGRES = pytest.mark.parametrize(
    "site",
    [
        *params("delta", "postgres"),
        *(pytest.param(kind, marks=pytest.mark.long) for kind in ("iceberg", "duckdb", "mysql")),
    ],
    indirect=True,
)
"""For what is the same code for every store, whose take-over and commit have tests of their own."""
ONE_SITE = pytest.mark.parametrize("site", ["delta"], indirect=True)

COLUMNS = "who string, amount decimal(9,2), heat double, at timestamp"
RECORDS = 150

LOST = "_kafka_partition = 0 AND _kafka_offset BETWEEN 20 AND 69"
DOUBLED = "_kafka_partition = 1 AND _kafka_offset < 30"
ALTERED = "_kafka_partition = 1 AND _kafka_offset BETWEEN 100 AND 104"

POINTS = (
    ("taken-over", 1),
    ("before-write", 1),
    ("rewritten", 1),
    ("rewritten", 2),
    ("before-commit", 1),
    ("replaced", 1),
    ("in-commit", 1),
    ("between-commits", 1),
    ("after-commit", 1),
    ("after-commit", 2),
)
"""Points at which a repair dies, as far as the store's commit has them."""


RATCHET = "from kafka_ratchet.app.cli import main; main()"


class Killed(BaseException):
    """End of the process, as far as one of its own can be told."""


def texts_of(partition: int) -> list[str]:
    return [
        json.dumps({"who": f"w{n % 7}", "amount": n / 4, "heat": n / 3, "at": f"2024-01-01T00:00:{n % 60:02}Z"})
        for n in range(partition, partition + RECORDS)
    ]


def filled(followed: Followed, keys: int = 0) -> Rows:
    """Fill the table in several commits, and return its rows; keys: number of Kafka keys in each partition."""
    for partition in (0, 1):
        records = values(*texts_of(partition), producer=b"p%d" % partition)
        if keys:
            records = [replace(each, key=b"k%d.%d" % (partition, n % keys)) for n, each in enumerate(records)]
        followed.pass_on(partition, records)
    followed.stage.commit(RECORDS, RECORDS)
    followed.run(max_records=100)
    assert followed.verify().is_proven
    return in_order(followed.site.rows())


def delete_before(followed: Followed, offset: int) -> None:
    """Delete records of partition 0, as retention does."""
    admin = AdminClient({"bootstrap.servers": followed.stage.broker})
    for deleted in admin.delete_records([TopicPartition(followed.stage.topics[1], 0, offset)]).values():
        deleted.result(60)


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: [str(value) for value in row.values()])


def repaired(followed: Followed, **asked: Any) -> RepairResult:
    topic = topic_of(followed.settings, followed.settings.streams["events"])
    wanted = Repair("a test", execute=True, **asked) if "execute" not in asked else Repair("a test", **asked)
    table = RepairedTable(followed.settings, topic, followed.stage.broker, wanted)

    def session() -> AbstractContextManager[SparkSession]:
        return nullcontext(followed.spark)

    return table.run(session)


def require_right(followed: Followed, before: Rows) -> None:
    """The proof says so, and every row is what it was before the damage."""
    report = followed.verify()
    assert report.is_proven, [str(each) for each in report.results.findings] if report.results else report
    assert report.results is not None
    assert not report.results.counts
    assert in_order(followed.site.rows()) == before


@ON_STORES
def test_rows_of_an_appended_table_are_mended_in_one_commit(follow: Follow, site: Site) -> None:
    followed = follow(columns=COLUMNS)
    before = filled(followed)
    offsets = followed.offsets()
    delete(site, LOST)
    repeat_all(site, DOUBLED)
    change(site, "amount = 7777.00", ALTERED)
    untouched = places(site)

    looked = repaired(followed, execute=False, sample=3)
    assert (looked.exit_code, looked.note) == (1, None)
    assert looked.plan.counts == {"lost": 50, "doubled": 30, "altered": 5}
    assert [str(each) for each in looked.plan.rows][:4] == [
        "put in: partition 0 offset 20: lost, has no row",
        "put in: partition 0 offset 21: lost, has no row",
        "put in: partition 0 offset 22: lost, has no row",
        "replace: partition 1 offset 100: altered, its row has other values than the record",
    ]
    assert len(looked.plan.rows) == 9
    assert len(site.rows()) == 2 * RECORDS - 50 + 30  # nothing was changed

    done = repaired(followed)
    assert done.exit_code == 0
    assert done.note is not None
    assert done.note.counts == {
        **{"altered": 5, "doubled": 30, "lost": 50},
        **{"put_in": 50, "replace": 35, "remove": 0, "stays": 0},
    }
    require_right(followed, before)
    assert followed.offsets() == offsets
    assert places(site).items() >= untouched.items()
    again = repaired(followed)
    assert (again.exit_code, again.note, again.plan.mends) == (0, None, False)

    followed.pass_on(0, values('{"who":"new"}', producer=b"new"))  # the job goes on behind it
    followed.stage.commit(RECORDS + 1, RECORDS)
    followed.run()
    assert len(site.rows()) == 2 * RECORDS + 1
    assert followed.verify().is_proven


def places(site: Site) -> dict[Any, Any]:
    """Where PostgreSQL keeps the rows that no repair has to touch, and by which transaction they are."""
    if not isinstance(site, PostgresSite):
        return {}
    table = sql.Identifier(site.schema, site.table)
    with site.connect() as database:
        found = database.execute(
            sql.SQL("SELECT _kafka_partition AS p, _kafka_offset AS o, ctid::text, xmin::text FROM {}").format(table)
        ).fetchall()
    spared = [row for row in found if row["p"] == 0 or 30 <= row["o"] < 100 or row["o"] > 104]
    return {(row["p"], row["o"]): (row["ctid"], row["xmin"]) for row in spared}


@ONE_SITE
def test_what_nobody_can_make_again_stays(follow: Follow, site: Site) -> None:
    followed = follow(columns=COLUMNS)
    before = filled(followed)
    repeat_all(site, "_kafka_partition = 1 AND _kafka_offset = 5")
    change(site, "_kafka_offset = 7000", "_kafka_partition = 0 AND _kafka_offset = 3")  # 3 is lost, 7000 invented
    change(
        site, "_kafka_offset = 10", "_kafka_partition = 0 AND _kafka_offset = 9"
    )  # a second one of 10, of 9's values
    done = repaired(followed)
    assert done.exit_code == 1
    assert done.plan.counts == {"lost": 2, "doubled": 2, "unexpected": 1}
    assert done.plan.actions == {"put in": 2, "replace": 1, "stays": 2}
    assert [str(each) for each in done.plan.rows if each.action == "stays"] == [
        "stays: partition 0 offset 10: doubled, has more than one row, and not all have its values; "
        "--remove-unexpected leaves the right one",
        "stays: partition 0 offset 7000: unexpected, the topic has no such record; --remove-unexpected removes the row",
    ]
    assert len(site.rows()) == len(before) + 2
    done = repaired(followed, remove_unexpected=True)
    assert (done.exit_code, done.plan.actions) == (0, {"replace": 1, "remove": 1})
    require_right(followed, before)


@ONE_SITE
def test_records_that_retention_has_deleted(follow: Follow, site: Site) -> None:
    """Rows of what is gone stay; of the rest all is mended. Totals and rows judged by what is gone are not touched."""
    followed = follow(columns=COLUMNS)
    before = filled(followed)
    delete_before(followed, 40)
    delete(site, LOST)  # offsets 20 to 69 of partition 0
    done = repaired(followed)
    assert done.exit_code == 1
    assert done.plan.counts == {"lost": 30}
    assert done.plan.before == 20
    [why] = done.plan.cannot
    assert "begins later than the table (partition 0 from offset 40)" in why
    there = {(row["_kafka_partition"], row["_kafka_offset"]) for row in site.rows()}
    assert len(there) == len(before) - 20
    assert not there & {(0, offset) for offset in range(20, 40)}


@pytest.mark.matrix
@ONE_SITE
def test_totals_whose_input_is_gone_are_not_touched(follow: Follow, site: Site) -> None:
    followed = follow(kind="totals", key=("who",), sums=("amount",), columns=COLUMNS, rejects=True)
    filled(followed)
    delete_before(followed, 40)
    change(site, "amount = 1.00", "who = 'w1'")
    before, generation = in_order(site.rows()), followed.generation()
    done = repaired(followed)
    assert (done.exit_code, done.note, done.plan.mends) == (1, None, False)
    assert "totals with the deleted records cannot be computed again" in done.plan.cannot[0]
    assert (in_order(site.rows()), followed.generation()) == (before, generation)


@pytest.mark.parametrize("site", [*params(*KINDS, by_default=()), MYSQL], indirect=True)
def test_the_last_row_of_each_key_is_mended(follow: Follow, site: Site) -> None:
    followed = follow(kind="upsert", key=("_kafka_key",), columns=COLUMNS, rejects=True)
    before = filled(followed, keys=60)
    delete(site, "_kafka_partition = 0 AND _kafka_offset < 140")  # 50 of 60
    assert len(site.rows()) == 70
    change(site, "amount = 7777.00", ALTERED.replace("100 AND 104", "130 AND 134"))
    doubles = site.location.kind not in ("postgres", "mysql")  # those have a unique index
    if doubles:
        repeat_all(site, "_kafka_partition = 1 AND _kafka_offset BETWEEN 100 AND 129")
    change(site, "_kafka_offset = 75", "_kafka_partition = 1 AND _kafka_offset = 135")  # an older record's
    done = repaired(followed)
    assert done.exit_code == 0
    assert done.plan.counts == {"lost": 50, "altered": 6, **({"doubled": 30} if doubles else {})}
    require_right(followed, before)
    assert repaired(followed).plan.is_right


@pytest.mark.parametrize("site", [*params(*MERGED, by_default=("delta",)), MYSQL], indirect=True)
def test_totals_are_counted_again(follow: Follow, site: Site) -> None:
    more = {} if site.location.kind == "mysql" else {"averages": ("amount",), "distinct": ("at",), "window": "1 hour"}
    if more:
        more |= {"time": "at"}
    followed = follow(kind="totals", key=("who",), columns=COLUMNS, rejects=True, **(more or {"sums": ("amount",)}))
    before = filled(followed)
    delete(site, "who IN ('w1', 'w2')")
    change(site, "_records = 3", "who = 'w3'")
    change(site, "amount = amount + 1", "who = 'w4'")
    doubles = site.location.kind not in ("postgres", "mysql")
    if doubles:
        repeat_all(site, "who = 'w5'")
    done = repaired(followed)
    assert done.exit_code == 0
    assert done.plan.actions == {"put in": 2, "replace": 3 if doubles else 2}
    assert in_order(site.rows()) == before
    require_right(followed, before)


@pytest.mark.matrix
@pytest.mark.parametrize("site", ["iceberg"], indirect=True)
def test_a_replaced_table_of_totals_needs_a_decision_first(follow: Follow, site: Site) -> None:
    """Another program's change of an Iceberg table of one file looks like a replacement of all its rows."""
    followed = follow(kind="totals", key=("who",), columns=COLUMNS, sums=("amount",), rejects=True)
    before = filled(followed)
    delete(site, "who IN ('w1', 'w2')")
    change(site, "amount = amount + 1", "who = 'w4'")
    damaged, generation = in_order(site.rows()), followed.generation()
    for execute in (False, True):
        with pytest.raises(SetupError, match=r"every file of the table was replaced \(snapshot"):
            repaired(followed, execute=execute)
    assert (in_order(site.rows()), followed.generation()) == (damaged, generation)
    store = followed.store()
    store.reset_offsets(store.check().stored, decide("stored", "a console was used"))
    done = repaired(followed)
    assert (done.exit_code, done.plan.actions) == (0, {"put in": 2, "replace": 1})
    require_right(followed, before)


@pytest.mark.matrix
@ONE_SITE
def test_what_the_job_has_mended_meanwhile_needs_no_commit(
    follow: Follow, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = follow(kind="upsert", key=("_kafka_key",), columns=COLUMNS, rejects=True)
    filled(followed, keys=60)
    change(site, "amount = 7777.00", "_kafka_partition = 0 AND _kafka_offset = 149")
    carry_out = RepairedTable._carry_out  # the moment between comparison and take-over

    def after_a_commit(table: RepairedTable, *plan: Any) -> RepairResult:
        followed.pass_on(0, [replace(each, key=b"k0.29") for each in values('{"who":"new"}', producer=b"new")])
        followed.stage.commit(RECORDS + 1, RECORDS)
        followed.run()
        return carry_out(table, *plan)

    with monkeypatch.context() as patch:
        patch.setattr(RepairedTable, "_carry_out", after_a_commit)
        done = repaired(followed)
    assert (done.exit_code, done.note, done.plan.is_right) == (0, None, True)
    assert lines(done)[-1] == "nothing to mend"
    assert followed.verify().is_proven


@AND_POSTGRES
@pytest.mark.matrix
def test_a_repair_by_another_operator_meanwhile_is_not_made_twice(
    follow: Follow, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = follow(columns=COLUMNS)
    before = filled(followed)
    delete(site, LOST)
    carry_out = RepairedTable._carry_out

    def after_another(table: RepairedTable, *plan: Any) -> RepairResult:
        monkeypatch.setattr(RepairedTable, "_carry_out", carry_out)
        assert repaired(followed).plan.actions == {"put in": 50}
        return carry_out(table, *plan)

    monkeypatch.setattr(RepairedTable, "_carry_out", after_another)
    done = repaired(followed)
    assert (done.exit_code, done.note, done.plan.is_right) == (0, None, True)
    require_right(followed, before)


@AND_POSTGRES
@pytest.mark.matrix
def test_a_topic_that_is_created_again_during_a_repair(
    follow: Follow, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = follow(columns=COLUMNS)
    filled(followed)
    change(site, "amount = 7777.00", ALTERED)
    there = in_order(site.rows())
    topic, broker = followed.stage.topics[1], followed.stage.broker

    def recreate(point: str) -> None:
        if point == "before-write":
            recreate_topic(broker, topic, 2)
            producer = Producer({"bootstrap.servers": broker})
            for partition in (0, 1):
                for text in texts_of(5) * 2:
                    producer.produce(topic, text, partition=partition)
            assert producer.flush(60) == 0

    monkeypatch.setattr(crash_points, "passing", recreate)
    with pytest.raises(SetupError, match="deleted and created again while the job read it"):
        repaired(followed)
    assert in_order(site.rows()) == there


@AND_POSTGRES
def test_rejects_are_mended(follow: Follow, site: Site) -> None:
    followed = follow(columns=COLUMNS, rejects=True)
    texts = [text if n % 5 else f"broken {n}" for n, text in enumerate(texts_of(0))]
    followed.pass_on(0, values(*texts))
    followed.stage.commit(RECORDS, 0)
    followed.run(max_records=100)
    before, rejects = in_order(site.rows()), in_order(site.rows(rejects=True))
    assert (len(before), len(rejects)) == (120, 30)
    delete(site, "_kafka_offset < 50", rejects=True)
    repeat_all(site, "_kafka_offset >= 100", rejects=True)
    delete(site, "_kafka_offset BETWEEN 20 AND 29")
    done = repaired(followed)
    assert done.exit_code == 0
    assert done.plan.actions == {"put in": 10 + 8, "replace": 10}
    assert in_order(site.rows(rejects=True)) == rejects
    require_right(followed, before)


@pytest.mark.timeout(900)  # some twelve repairs by Spark
@pytest.mark.parametrize(
    ("site", "kind"),
    [
        param("delta", "append", by_default=False),
        *(param(kind, "append", by_default=False, tier=pytest.mark.long) for kind in (*KINDS[1:], "mysql")),
        # Iceberg refuses another program's change of a table of one file as a replacement, before any repair.
        *(param(kind, "totals", by_default=False, tier=pytest.mark.long) for kind in (*MERGED, "mysql")),
    ],
    indirect=["site"],
)
def test_a_repair_that_dies_at_any_step_ends_the_same(
    follow: Follow, site: Site, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    keyed = {"key": ("who",), "sums": ("amount",)} if kind == "totals" else {}
    followed = follow(kind=kind, columns=COLUMNS, rejects=True, **keyed)
    before = filled(followed)
    offsets = followed.offsets()
    points = [("none", 1)]  # a repair that nobody ends shows which points the store's commit has
    while points:
        point, time = points.pop()
        if kind == "totals":
            delete(site, "who IN ('w1', 'w2')")
            change(site, "amount = amount + 1", "who = 'w4'")
        else:
            delete(site, LOST)
            repeat_all(site, DOUBLED)
            change(site, "amount = 7777.00", ALTERED)
        passed: list[str] = []

        def die(here: str, point: str = point, time: int = time, passed: list[str] = passed) -> None:
            passed.append(here)
            if here == point and passed.count(here) == time:
                raise Killed

        with monkeypatch.context() as patch, suppress(Killed):
            patch.setattr(crash_points, "passing", die)
            repaired(followed)
        if point == "none":
            points = [(each, time) for each, time in POINTS if passed.count(each) >= time]
            assert len(points) >= 5
        else:
            assert passed[-1] == point
            assert passed.count(point) == time
            repaired(followed)
        assert in_order(site.rows()) == before
        assert followed.offsets() == offsets
    assert repaired(followed).plan.is_right
    require_right(followed, before)


@pytest.mark.matrix
@AND_POSTGRES
def test_who_takes_over_meanwhile_fences_the_repair(
    follow: Follow, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = follow(columns=COLUMNS)
    filled(followed)
    delete(site, LOST)
    damaged = in_order(site.rows())

    def take_over(here: str) -> None:
        if here == "before-commit":
            topic = followed.stage.topics[1]
            site.make("job", topic, 0, followed.pipeline.write_mode).open(followed.pipeline.schema(followed.spark))

    with monkeypatch.context() as patch:
        patch.setattr(crash_points, "passing", take_over)
        with pytest.raises(SetupError, match="has taken over from"):
            repaired(followed)
    assert in_order(site.rows()) == damaged
    assert repaired(followed).exit_code == 0
    assert followed.verify().is_proven


@pytest.mark.matrix
@ONE_SITE
def test_a_raw_topic_is_judged_again(follow: Follow, site: Site) -> None:
    followed = follow(columns=COLUMNS, from_input=True)
    records = values(*texts_of(0))
    followed.stage.write(0, 0, [*records, *records[:20], *values("broken", first=RECORDS)])
    followed.run_by_settings(0)
    before, rejects = in_order(site.rows()), in_order(site.rows(rejects=True))
    assert (len(before), len(rejects)) == (RECORDS, 1)
    delete(site, LOST)
    delete(site, "_kafka_offset > 0", rejects=True)
    done = repaired(followed)
    assert (done.exit_code, done.plan.actions) == (0, {"put in": 51})
    assert in_order(site.rows(rejects=True)) == rejects
    require_right(followed, before)
    followed.stage.write(0, 0, [records[3]])  # a repeat still, by the last sequences that are kept
    followed.run_by_settings(0)
    assert in_order(site.rows()) == before


@pytest.mark.matrix
@ONE_SITE
def test_what_cannot_be_told_apart_is_refused(follow: Follow, site: Site) -> None:
    followed = follow(columns=COLUMNS)
    with pytest.raises(SetupError, match="job job has never written to the table"):
        repaired(followed)
    filled(followed)
    planner = TopicPlanner(followed.stage.broker, followed.stage.topics[0], {})
    other = site.make("other", followed.stage.topics[0], planner.topic_id(), followed.pipeline.write_mode)
    job = Job(followed.stage.broker, followed.stage.topics[0], "other", followed.pipeline)
    run_batch(job, planner, other, lambda: nullcontext(followed.spark))
    with pytest.raises(SetupError, match=r"job other \(topic .*\) has rows in the table too"):
        repaired(followed)
    with pytest.raises(SettingsError, match=r"sink\.sql computes the rows"):
        repaired(follow(sql="SELECT * FROM records"))
    with pytest.raises(SettingsError, match="--execute needs --reason TEXT"):
        Repair(execute=True)
    with pytest.raises(SettingsError, match="in one line"):
        Repair("two\nlines")


@pytest.mark.parametrize("site", ["delta", "folder"], indirect=True)
def test_a_table_without_a_way_to_replace_rows_is_not_taken_over(follow: Follow, site: Site) -> None:
    followed = follow(columns=COLUMNS)
    filled(followed)
    delete(site, LOST)
    if isinstance(site, DeltaSite):
        DeltaTable(site.path).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    damaged, generation = in_order(site.rows()), followed.generation()
    for execute in (False, True):
        with pytest.raises(SetupError, match=r"lose when it rewrites|cannot repair rows"):
            repaired(followed, execute=execute)
    assert (in_order(site.rows()), followed.generation()) == (damaged, generation)


@pytest.mark.matrix
@ONE_SITE
def test_columns_of_a_partition_are_kept(follow: Follow, site: Site) -> None:
    """Files of a partition are written anew in it, whatever its value is."""
    followed = follow(columns=COLUMNS, partition_by=("who", "day(at)"))
    for partition in (0, 1):
        followed.pass_on(partition, values(*texts_of(partition)))
    followed.stage.commit(RECORDS, RECORDS)
    followed.run_by_settings(1)
    before = in_order(site.rows())
    delete(site, LOST)
    repeat_all(site, DOUBLED)
    change(site, "heat = 1.5", ALTERED)
    assert repaired(followed).exit_code == 0
    require_right(followed, before)


@pytest.mark.timeout(900)  # starts of Spark, each seconds on an idle machine
@pytest.mark.parametrize(
    "site",
    [param("delta", by_default=False), param("postgres", by_default=False, tier=pytest.mark.long)],
    indirect=True,
)
def test_the_command_killed_and_run_again(follow: Follow, site: Site, tmp_path: Path) -> None:
    followed = follow(columns=COLUMNS)
    before = filled(followed)
    delete(site, LOST)
    repeat_all(site, DOUBLED)
    change(site, "amount = 7777.00", ALTERED)
    file = tmp_path / "ratchet.toml"
    file.write_text(as_toml(followed.settings), "utf-8")

    def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", RATCHET, "repair", "--results", "--config", str(file), *arguments]
        more = {**spark_jvm(), **environment}
        with subprocess.Popen(
            words, env={**os.environ, **more}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        ) as process:  # fmt: skip
            out, err = process.communicate(timeout=600)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    looked = command("--sample", "1", "--json")
    assert looked.returncode == 1, looked.stderr
    told = json.loads(looked.stdout.splitlines()[-1])
    assert [told[name] for name in ("lost", "doubled", "altered", "unexpected")] == [50, 30, 5, 0]
    assert (told["executed"], told["generation"], len(told["rows"])) == (False, None, 3)
    assert "put in: partition 0 offset 20: lost, has no row" in looked.stdout
    assert command("--execute").returncode == 2  # without a reason
    for point in ("taken-over", "in-commit"):
        killed = command("--execute", "--reason", "a test", SPARK_SINK_CRASH_AT=point)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = command("--execute", "--reason", "a console was used", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["executed"], told["put_in"], told["replace"]) == (True, 50, 35)
    assert "'a console was used'" in done.stdout
    password = site.location.password
    assert password is None or password not in done.stdout + done.stderr
    require_right(followed, before)
