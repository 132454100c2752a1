"""`ratchet verify --results`: from the input through the output into a real table of each kind."""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import typer
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner

from kafka_ratchet.app.cli.verify import _show_results
from kafka_ratchet.app.cli.verify import verify as verify_command
from kafka_ratchet.app.repair.table import Repair, RepairedTable
from kafka_ratchet.app.status.results import topic_of
from kafka_ratchet.app.verify import ExitCode, Report, verify_results
from kafka_ratchet.app.verify.findings import ResultsReport
from kafka_ratchet.errors import SettingsError, SetupError
from kafka_ratchet.spark_sink.job.control import START_WORDS, read_place
from kafka_ratchet.transport.owner import Owner
from kafka_ratchet.transport.owner import Topic as OwnedTopic
from tests.app.verify.test_decisions import owned, topics
from tests.app.written_stream import record
from tests.spark_sink.damage import add_column, change, delete, repeat
from tests.spark_sink.followed import Follow, as_toml, values
from tests.spark_sink.sites import Site, param, params

POSTGRES = param("postgres", by_default=False)
MYSQL = pytest.param("mysql", marks=pytest.mark.long)
ONE_SITE = pytest.mark.parametrize("site", ["delta"], indirect=True)
WITH_REJECTS = pytest.mark.parametrize("site", [*params("delta", "duckdb"), POSTGRES, MYSQL], indirect=True)

JSON = "who string, amount decimal(9,2)"


def found(report: Report) -> tuple[dict[str, int], list[str]]:
    assert report.results is not None
    topic_free = [str(finding).partition(", ")[2] for finding in report.results.findings]
    return {kind: count for kind, count in report.results.counts.items()}, [
        f"{f.kind}: {t}" for f, t in zip(report.results.findings, topic_free, strict=True)
    ]


def shown(results: ResultsReport) -> str:
    """Return the text of `ratchet verify` about a table."""
    out = StringIO()
    _show_results(Console(file=out, soft_wrap=True), results)
    return out.getvalue()


def accounts(report: Report) -> dict[str | None, tuple[int, ...]]:
    """accepted, emitted, rows, rejects, waiting, lost, doubled of each producer."""
    assert report.results is not None
    return {
        each["identity"]: tuple(value for name, value in each.items() if name != "identity")
        for each in report.results.as_dict()["identities"]
    }


def test_every_record_is_followed_into_the_table(follow: Follow) -> None:
    followed = follow()
    stage = followed.stage
    first = [record(n, b"a") for n in range(10)]
    followed.pass_on(0, first)
    followed.pass_on(1, [record(n, b"b") for n in range(8)])
    stage.write(0, 0, first[3:5])  # duplicates
    stage.commit(12, 8)
    followed.run()
    report = followed.verify()
    assert report.is_proven, found(report)
    assert accounts(report) == {"a": (10, 10, 10, 0, 0, 0, 0), "b": (8, 8, 8, 0, 0, 0, 0)}
    assert followed.spark_starts == 1  # it computes the values that rows are compared with
    assert report.results is not None
    assert report.results.values_compared == 18
    assert report.results is not None
    assert (report.results.generation, report.results.records, report.results.waiting) == (1, 18, 0)

    # The job lags: that is no loss. One more is in the input only.
    followed.pass_on(1, [record(n, b"c") for n in range(3)])
    stage.write(0, 1, [record(3, b"c")])
    stage.commit(12, 11)
    report = followed.verify()
    assert (report.ok, report.is_proven, report.results and report.results.waiting) == (True, False, 3)
    assert accounts(report)["c"] == (3, 3, 0, 0, 3, 0, 0)

    # A row is deleted, one is doubled, and three are invented: within, behind the end, and of no partition.
    delete(followed.site, "_kafka_partition = 1 AND _kafka_offset = 2")
    repeat(followed.site, 0, 3)
    repeat(followed.site, 0, 4, moved_to=777)
    repeat(followed.site, 0, 4, moved_to=-5)
    report = followed.verify()
    assert not report.ok
    assert (report.lost, report.doubled) == (0, 0)  # of the topics
    counts, said = found(report)
    assert counts == {"lost": 1, "doubled": 1, "unexpected": 2}
    of = "a record that the topic does not have; if another job writes to this table, they may be its rows"
    assert sorted(said) == [
        "doubled: output partition 0 offset 3, identity 'a' sequence 3, has 2 rows and 0 rejects",
        "lost: output partition 1 offset 2, identity 'b' sequence 2, has no row, and the table has read up to 8",
        f"unexpected: output partition 0 offset -5, 1 row of {of}",
        f"unexpected: output partition 0 offset 777, 1 row of {of}",
    ]
    assert accounts(report)["a"] == (10, 10, 11, 0, 0, 0, 1)
    assert accounts(report)["b"] == (8, 8, 7, 0, 0, 1, 0)


@pytest.mark.parametrize("kind", ["append", "upsert", "totals"])
def test_records_before_the_start_of_the_first_run_are_left_out(follow: Follow, site: Site, kind: str) -> None:
    sink = {"append": {}, "upsert": {"key": ["who"]}, "totals": {"key": ["who"], "sums": ["amount"]}}[kind]
    if kind not in site.kinds:
        pytest.skip("this site has no keys")
    if not site.keeps_first_offsets:
        pytest.skip("a store without first_offsets counts these records as lost")
    followed = follow(columns=JSON, kind=kind, rejects=kind != "append", **sink)
    texts = [json.dumps({"who": f"w{n % 4}", "amount": n}) for n in range(20)]
    for partition in (0, 1):
        followed.pass_on(partition, values(*texts, producer=b"p%d" % partition))
    followed.stage.commit(20, 20)
    place = read_place("--start", "0:5,1:9", *START_WORDS)
    followed.run(start=place)
    followed.pass_on(0, values(*texts, producer=b"p0", first=20))
    followed.stage.commit(40, 20)
    followed.run()
    report = followed.verify()
    assert report.is_proven, found(report)
    assert report.results is not None
    assert (report.results.left_out, report.results.as_dict()["left_out"], report.results.waiting) == (14, 14, 0)
    assert accounts(report) == {"p0": (40, 40, 35, 0, 0, 0, 0), "p1": (20, 20, 11, 0, 0, 0, 0)}
    asked = Repair("a test", execute=True)
    topic = topic_of(followed.settings, followed.settings.streams["events"])
    repaired = RepairedTable(followed.settings, topic, followed.stage.broker, asked)
    assert repaired.run(lambda: nullcontext(followed.spark)).plan.counts == {}
    if kind == "append":
        delete(site, "_kafka_partition = 1 AND _kafka_offset = 12")
        counts, _ = found(followed.verify())
        assert counts == {"lost": 1}


TYPED = (
    "who string, amount decimal(9,2), n long, tiny byte, real float, heat double, yes boolean, day date, at timestamp, "
    "local timestamp_ntz, raw binary, list array<int>, map map<string,double>, "
    "`in` struct<a: string, b: array<timestamp>>"
)


def test_values_of_rows_are_compared(follow: Follow, site: Site) -> None:
    followed = follow(columns=TYPED)
    texts = (
        '{"who":"x","amount":1.10,"n":-1,"tiny":-128,"real":0.1,"heat":-0.0,"yes":false,"day":"0001-01-01"}',
        '{"at":"1582-10-10T00:00:00Z","local":"1969-12-31T23:59:59.999999","raw":"AAE=","heat":0.1}',
        '{"list":[1,null,3],"map":{"b":1,"a":null},"in":{"a":"\u00e9","b":["2024-01-01T00:00:00Z",null]}}',
        '{"list":[],"map":{},"in":{},"who":"","heat":1e300}',
        "broken",
        "{}",
    )
    stamps = (-62_135_596_800_000, -12_219_292_800_001, -1, 5, 253_402_300_800_000, 1_790_000_000_000_000_000)
    records = [replace(each, timestamp_ms=at) for each, at in zip(values(*texts), stamps, strict=True)]
    followed.pass_on(0, records)
    followed.stage.commit(len(texts), 0)
    followed.run(max_records=4)
    report = followed.verify()
    assert report.is_proven, found(report)
    assert report.results is not None
    told = report.as_dict()
    nested = ["list", "map", "in"]
    kept_as_text = site.location.kind in ("postgres", "mysql")
    assert told["results"]["values"] == {
        "rows": 6,
        "without_timestamp": 3,
        "columns_not_compared": nested if kept_as_text else [],
        "not_compared": None,
    }
    assert told["verdict"] == "verdict: proven: lost 0, doubled 0, reordered 0, altered 0, unexpected 0"
    if site.location.kind == "iceberg":
        return  # nothing here changes rows of one
    change(site, "amount = 1.11", "amount = 1.10")
    change(site, "_kafka_key = NULL", "_kafka_offset = 3")
    change(site, "who = 'y'", "_kafka_offset = 5")
    report = followed.verify()
    counts, said = found(report)
    assert counts == {"altered": 3}
    of = "its row has other values than the record"
    assert said == [f"altered: output partition 0 offset {n}, {of}" for n in (0, 3, 5)]
    assert report.exit_code() == 1
    assert report.verdict() == "verdict: something is wrong: lost 0, doubled 0, reordered 0, altered 3, unexpected 0"


@pytest.mark.parametrize("site", ["duckdb", POSTGRES], indirect=True)
def test_timestamps_are_compared_with_kafkas_own(follow: Follow, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table by Spark's old calendar is found, although the second count would have the same."""
    followed = follow(columns=JSON)
    early = [replace(each, timestamp_ms=-62_135_596_800_000) for each in values('{"who":"x"}', '{"who":"y"}')]
    followed.pass_on(0, early)
    followed.stage.commit(2, 0)
    monkeypatch.setattr("kafka_ratchet.spark_sink.job.reading.with_exact_timestamps", lambda frame: frame)
    followed.run()
    counts, said = found(followed.verify())
    assert counts == {"altered": 2}
    assert said[0] == (
        "altered: output partition 0 offset 0, its row has the _kafka_timestamp -62135424000000000 us, and Kafka's own "
        "is -62135596800000 ms since 1970"
    )


@pytest.mark.matrix
@WITH_REJECTS
def test_columns_of_fields_within_objects_are_proven(follow: Follow, site: Site) -> None:
    followed = follow(columns="who string, city string FROM home.address.city, n bigint FROM home.n", rejects=True)
    followed.pass_on(
        0,
        values(
            '{"who":"x","home":{"n":1,"address":{"city":"Rome"}}}',
            '{"who":"y","home":{"n":2}}',
            '{"who":"z"}',
            '{"who":"v","home":"none"}',
        ),
    )
    followed.stage.commit(4, 0)
    followed.run()
    rows = sorted((row["who"], row["city"], row["n"]) for row in site.rows())
    assert rows == [("x", "Rome", 1), ("y", None, 2), ("z", None, None)]
    report = followed.verify()
    assert report.is_proven, found(report)
    assert accounts(report) == {"a": (4, 4, 3, 1, 0, 0, 0)}
    change(site, "n = 5", "who = 'y'")
    counts, _ = found(followed.verify())
    assert counts == {"altered": 1}


@pytest.mark.matrix
@WITH_REJECTS
@pytest.mark.parametrize("kind", ["append", "upsert"])
def test_a_column_of_others_is_no_part_of_the_proof(follow: Follow, site: Site, kind: str) -> None:
    followed = follow(kind=kind, key=("who",) if kind == "upsert" else (), columns=JSON, rejects=True)
    followed.pass_on(0, values('{"who":"x","amount":1}', '{"who":"y","amount":2}'))
    followed.run()
    add_column(site)
    change(site, "more = 'seen'", "who = 'x'")
    followed.pass_on(0, values('{"who":"x","amount":3}', first=2))
    followed.stage.commit(3, 0)
    followed.run()
    assert sorted(row["more"] or "" for row in site.rows()) == ["", "", "seen"][kind == "upsert" :]
    report = followed.verify()
    assert report.is_proven, found(report)


@ONE_SITE
def test_windows_are_counted_by_kafkas_own_timestamps(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = follow(kind="totals", key=("who",), sums=("amount",), window="1 hour", columns=JSON, rejects=True)
    stamps = [-62_135_596_800_000, 5, 6]
    texts = ('{"who":"x","amount":1}',) * 3
    followed.pass_on(0, [replace(each, timestamp_ms=at) for each, at in zip(values(*texts), stamps, strict=True)])
    followed.stage.commit(3, 0)
    with monkeypatch.context() as patch:
        patch.setattr("kafka_ratchet.spark_sink.job.reading.with_exact_timestamps", lambda frame: frame)
        followed.run()
        counts, said = found(followed.verify())
        assert (counts, "Kafka's own is -62135596800000 ms" in said[0]) == ({"altered": 1}, True)
    counts, _ = found(followed.verify())  # by the right ones, the table has a wrong window and lacks one
    assert counts == {"lost": 1, "unexpected": 1}


@ONE_SITE
def test_without_spark_values_are_not_called_right(follow: Follow) -> None:
    followed = follow()
    followed.pass_on(0, [record(n) for n in range(4)])
    followed.stage.commit(4, 0)
    followed.run()

    def none() -> AbstractContextManager[SparkSession]:
        raise SetupError("no Java here")

    report = verify_results(followed.settings, None, none)
    assert (report.ok, report.is_proven) == (True, False)
    told = report.as_dict()
    assert told["results"]["altered"] is None
    assert told["results"]["values"]["not_compared"].endswith("no Java here")
    assert told["verdict"].startswith("verdict: not all is proven (values of the table's rows): lost 0")


@ONE_SITE
def test_a_row_that_is_there_too_early_is_found(follow: Follow) -> None:
    """Rows and offsets that do not belong together: the next run would bring the record a second time."""
    followed = follow()
    followed.pass_on(0, [record(n) for n in range(4)])
    followed.stage.commit(4, 0)
    report = followed.verify()  # no job has ever run
    assert (report.ok, report.is_proven, accounts(report)) == (True, False, {"a": (4, 4, 0, 0, 4, 0, 0)})
    followed.run()
    followed.pass_on(0, [record(9)])
    followed.stage.commit(5, 0)
    repeat(followed.site, 0, 0, moved_to=4)
    counts, said = found(followed.verify())
    assert counts == {"unexpected": 1}
    assert said == [
        "unexpected: output partition 0 offset 4, identity 'a' sequence 9, has a row, but the table says that it has "
        "read up to 4 only"
    ]


@WITH_REJECTS
def test_rejects_are_accounted_for(follow: Follow, site: Site) -> None:
    followed = follow(columns=JSON, rejects=True)
    followed.pass_on(0, values('{"who":"x","amount":1}', "broken", '{"who":"y","amount":2}', "broken too"))
    followed.stage.commit(4, 0)
    followed.run()
    report = followed.verify()
    assert report.is_proven, found(report)
    assert accounts(report) == {"a": (4, 4, 2, 2, 0, 0, 0)}
    delete(site, "_kafka_offset = 1", rejects=True)
    counts, said = found(followed.verify())
    assert (counts, "offset 1, identity 'a' sequence 1, has no row" in said[0]) == ({"lost": 1}, True)


@ONE_SITE
@pytest.mark.parametrize("texts", [("broken", '{"who":"x","amount":1}'), ("broken",)], ids=["some", "all"])
def test_a_row_of_a_record_that_does_not_parse_is_not_called_proven(
    follow: Follow, site: Site, texts: tuple[str, ...]
) -> None:
    """Such a row is right if the record parsed when the job read it: nothing says what it was then."""
    followed = follow(columns=JSON, rejects=True)
    followed.pass_on(0, values('{"who":"y","amount":2}'))
    followed.pass_on(1, values(*texts, producer=b"b"))
    followed.stage.commit(1, len(texts))
    followed.run()
    assert followed.verify().is_proven
    delete(site, "_kafka_offset = 0 AND _kafka_partition = 1", rejects=True)
    repeat(site, 0, 0, moved_to=9)
    change(site, "_kafka_partition = 1", "_kafka_offset = 9")
    change(site, "_kafka_offset = 0", "_kafka_offset = 9")
    change(site, "amount = 77", "_kafka_partition = 1 AND _kafka_offset = 0")
    report = followed.verify()
    assert (found(report)[0], report.exit_code()) == ({}, ExitCode.NOT_ALL_PROVEN)
    assert report.results is not None
    assert report.results.values_unproven == "1 rows stand for records that do not parse today"
    assert (report.results.values_compared, report.results.altered) == (len(texts), 0)
    assert f"values: {len(texts)} rows compared, others not: 1 rows stand for" in shown(report.results)


@ONE_SITE
@pytest.mark.parametrize("part", ["input", "rule"])
def test_rows_of_a_partition_left_out_are_no_finding(follow: Follow, part: str) -> None:
    followed = follow(columns=JSON, rejects=True)
    stage = followed.stage
    followed.pass_on(0, values('{"who":"y","amount":2}', "broken"))
    stage.commit(2, 0)
    followed.run()
    known = topics(stage)
    if part == "input":
        known[part] = OwnedTopic(known[part].name, "AAAAAAAAAAAAAAAAAAAAAA")
    rule = {"identity": "function:gone:identity", "sequence": "header:ratchet-sequence"} if part == "rule" else {}
    owned(stage, Owner(stage.settings.app, "events", rule, known))
    report = followed.verify()
    assert (found(report)[0], report.exit_code()) == ({}, ExitCode.NOT_ALL_PROVEN)
    assert [*report.left_out] == [0]


@pytest.mark.parametrize("site", ["duckdb", POSTGRES, MYSQL], indirect=True)
def test_totals_are_counted_again(follow: Follow, site: Site) -> None:
    followed = follow(kind="totals", key=("who",), sums=("amount",), columns=JSON, rejects=True)
    for partition in (0, 1):
        texts = '{"who":"x","amount":0.1}', '{"amount":2}', "broken", '{"who":"x","amount":0.2}', '{"who":"y"}'
        followed.pass_on(partition, values(*texts))
    followed.stage.commit(5, 5)
    followed.run(max_records=5)
    report = followed.verify()
    assert report.is_proven, found(report)
    assert accounts(report) == {"a": (10, 10, 8, 2, 0, 0, 0)}
    change(site, "_records = 3", "who = 'x'")
    change(site, "amount = amount + 1", "who = 'y'")
    delete(site, "who IS NULL")
    delete(site, "_kafka_partition = 1", rejects=True)
    repeat(site, 0, 2, moved_to=1, rejects=True)
    repeat(site, 0, 2, moved_to=999, rejects=True)
    counts, said = found(followed.verify())
    assert counts == {"altered": 1, "lost": (4 - 3) + 2 + 1, "unexpected": 2}
    of = "a record that the topic does not have; if another job writes to this table, they may be its rows"
    assert sorted(said) == [
        "altered: key who='y' the table says _records 2, amount 1.00, and the topic _records 2, amount 0.00",
        "lost: key who='x' the table says _records 3, amount 0.60, and the topic _records 4, amount 0.60",
        "lost: key who=None has no row; the topic has _records 2, amount 4.00",
        "lost: output partition 1 offset 2, does not parse, but is not among the rejects",
        "unexpected: output partition 0 offset 1, is a reject, and the topic has no such record that does not parse",
        f"unexpected: output partition 0 offset 999, 1 row of {of}",
    ]


@pytest.mark.matrix
@pytest.mark.parametrize("site", ["delta", POSTGRES], indirect=True)
def test_windows_and_their_extremes_are_counted_again(follow: Follow, site: Site) -> None:
    columns = f"{JSON}, at timestamp, heat double"
    lists = {"averages": ("amount",), "mins": ("at", "heat"), "maxes": ("heat",), "distinct": ("at",)}
    followed = follow(kind="totals", key=("who",), window="1 hour", time="at", columns=columns, rejects=True, **lists)
    late = '{"who":"x","amount":0.1,"at":"1969-12-31T23:59:59Z","heat":NaN}'
    texts = late, '{"who":"x","amount":0.2,"at":"2024-01-01T10:00:00Z"}', '{"who":"y"}', "broken", late
    for partition in (0, 1):
        followed.pass_on(partition, values(*texts))
    followed.stage.commit(5, 5)
    followed.run(max_records=4)
    report = followed.verify()
    assert report.is_proven, found(report)
    assert len(site.rows()) == 3
    change(site, "amount_avg = amount_avg + 0.01", "who = 'x' AND heat_max IS NULL")
    change(site, "heat_max = 1", "heat_max IS NOT NULL")
    change(site, "who = 'z'", "who = 'y'")
    counts, said = found(followed.verify())
    assert counts == {"altered": 2, "lost": 2, "unexpected": 1}
    [text] = [text for text in said if "_records 4" in text]
    key, values_there, values_due = re.split(" the table says |, and the topic ", text)
    assert key == "altered: key who='x', _window=1969-12-31 23:00:00.000000Z"
    both = "_records 4, amount 0.40, amount_count 4, amount_avg 0.1, at_min 1969-12-31 23:59:59.000000Z, heat_min nan"
    assert values_there.startswith(f"{both}, heat_max 1.0, at_hashes '")
    assert values_there.endswith("', at_distinct 1")
    assert values_there == values_due.replace("heat_max nan", "heat_max 1.0")


@pytest.mark.parametrize("site", ["delta", POSTGRES, MYSQL], indirect=True)
def test_last_rows_are_counted_again(follow: Follow, site: Site) -> None:
    followed = follow(kind="upsert", key=("_kafka_key",))
    followed.pass_on(0, [replace(record(n), key=b"k%d" % (n % 3)) for n in range(9)])
    followed.pass_on(1, [replace(record(n, b"b"), key=b"k0") for n in range(2)])
    followed.stage.commit(9, 2)
    followed.run(max_records=4)
    report = followed.verify()
    assert report.is_proven, found(report)
    assert report.results is not None
    assert (report.results.rows, report.results.several) == (3, 1)
    assert report.results.values_compared == 3
    assert accounts(report) == {"a": (9, 9, 9, 0, 0, 0, 0), "b": (2, 2, 2, 0, 0, 0, 0)}
    change(site, "_kafka_offset = 4", "_kafka_offset = 7")  # k1, as of an older record
    change(site, "_kafka_offset = 6", "_kafka_offset = 8")  # k2, with another key's record
    counts, said = found(followed.verify())
    assert counts == {"lost": 2}
    assert sorted(said) == [
        "lost: output partition 0 offset 7, key _kafka_key=b'k1' has the row of offset 4, and this record is later",
        "lost: output partition 0 offset 8, key _kafka_key=b'k2' has the row of offset 6, and this record is later",
    ]


@ONE_SITE
def test_what_a_query_makes_is_not_called_proven(
    follow: Follow, site: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    followed = follow(sql="SELECT _kafka_partition, count(*) AS n FROM records GROUP BY _kafka_partition")
    followed.pass_on(0, [record(n) for n in range(4)])
    followed.stage.commit(4, 0)
    followed.run()
    report = followed.verify()
    assert (report.ok, report.is_proven) == (True, False)
    assert report.results is not None
    assert report.results.unproven.startswith("sink.sql makes the rows")
    assert accounts(report) == {"a": (4, 4, 4, 0, 0, 0, 0)}

    file = tmp_path_factory.mktemp("settings") / "ratchet.toml"
    file.write_text(as_toml(followed.settings), "utf-8")
    cli = typer.Typer()
    cli.command()(verify_command)
    told = CliRunner().invoke(cli, ["--config", str(file), "--results", "--json"])
    assert told.exit_code == 3
    assert json.loads(told.output.splitlines()[-1])["proven"] is False
    shown = CliRunner().invoke(cli, ["--config", str(file), "--results"], env={"COLUMNS": "200"})
    assert "not proven: sink.sql makes the rows" in shown.output


@WITH_REJECTS  # a password must not be printed, and PostgreSQL has one
def test_the_command_names_the_row_and_exits_one(
    follow: Follow, site: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    followed = follow()
    followed.pass_on(0, [record(n, b"p\x1b[31m") for n in range(4)])
    followed.stage.commit(4, 0)
    followed.run()
    file = tmp_path_factory.mktemp("settings") / "ratchet.toml"
    file.write_text(as_toml(followed.settings), "utf-8")
    cli = typer.Typer()
    cli.command()(verify_command)
    good = CliRunner().invoke(cli, ["--config", str(file), "--results"], env={"COLUMNS": "200"})
    assert good.exit_code == 0, good.output
    assert "4 rows and 0 rejects for 4 records of the output; 0 not there yet" in good.output
    assert "in the table: lost 0, doubled 0, altered 0, unexpected 0; values: 4 rows compared" in good.output
    assert good.output.splitlines()[-1].startswith("verdict: proven: lost 0")
    delete(site, "_kafka_offset = 2")
    bad = CliRunner().invoke(cli, ["--config", str(file), "--results"], env={"COLUMNS": "200"})
    assert bad.exit_code == 1
    assert "output partition 0 offset 2, identity 'p\\x1b[31m' sequence 2, has no row" in bad.output
    assert "\x1b[31m" not in bad.output
    password = site.location.password
    assert password is None or password not in good.output + bad.output


@ONE_SITE
def test_what_cannot_be_compared_is_refused(follow: Follow, site: Site) -> None:
    with pytest.raises(SetupError, match="needs a key"):
        follow(kind="totals").verify()
    broken = follow()
    broken.pass_on(0, [record(1)])
    broken.run()
    for file in Path(site.location.path).glob("*.parquet"):
        file.unlink()
    with pytest.raises(SetupError, match="its rows cannot be read"):
        broken.verify()
    followed = follow(stream="events")
    stream = followed.settings.streams["events"]
    others = {"events": stream, "other": stream.model_copy(update={"input": "x", "output": "y"})}
    settings = followed.settings.model_copy(update={"streams": others})
    with pytest.raises(SettingsError, match="the result table has the records of stream 'events', not of 'other'"):
        verify_results(settings, "other", followed._session)
