"""`--from-input` end to end: the zipped job over a raw topic, killed around its commits, and proven from that topic."""

from __future__ import annotations

import json
import random
import signal
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from kafka_ratchet.app.settings import Settings, SinkSettings
from kafka_ratchet.app.settings_sections import StreamSettings
from kafka_ratchet.app.status.results import access_of, spec_of
from kafka_ratchet.app.verify import RecordView, verify_results
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.job.job import run_batch
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.stores.open_store import rejects_location
from kafka_ratchet.spark_sink.stores.results import read_rows
from tests.app.written_stream import NewTopic, Stage, record
from tests.spark_sink.damage import delete, repeat
from tests.spark_sink.sites import Site

Command = Callable[..., subprocess.CompletedProcess[str]]

TOPICS = {"input": "in", "output": "out", "dead_letters": "dead"}


def raw_records(chance: random.Random, count: int) -> list[RecordView]:
    """A fifth are repeats, and some have no sequence, no producer, or a value that is no JSON."""
    made: list[RecordView] = []
    for n in range(count):
        drawn = chance.random()
        one = record(n, b"%d" % (n % 7), json.dumps({"n": n}).encode())
        if drawn < 0.2 and made:
            one = chance.choice(made)
        elif drawn < 0.23:
            one = record(None, b"1")
        elif drawn < 0.26:
            one = record(b"x" * 9, b"1")
        elif drawn < 0.29:
            one = record(n, b"2", b"no JSON")
        elif drawn < 0.31:
            one = record(n, b"y" * 1025)
        made.append(one)
    return made


@pytest.mark.matrix
@pytest.mark.timeout(900)  # starts of Spark, each seconds on an idle machine
@pytest.mark.parametrize("site", ["delta", pytest.param("duckdb", marks=pytest.mark.long)], indirect=True)
def test_killed_around_its_commits_and_proven_from_the_raw_topic(
    broker: str, new_topic: NewTopic, command: Command, site: Site, spark: SparkSession
) -> None:
    stage, chance = Stage(broker, new_topic), random.Random(site.location.kind)
    for partition in (0, 1):
        stage.write(0, partition, raw_records(chance, 300))
    admin = AdminClient({"bootstrap.servers": broker})  # Spark alone: nobody has made these two
    for future in admin.delete_topics(list(stage.topics[1:])).values():
        future.result(30)
    location = site.location
    kept = SinkSettings(
        name="job", store=location.kind, path=location.path, table=location.table, from_input=True, columns="n long"
    )
    settings = stage.settings.model_copy(update={"sink": kept})
    arguments = [
        f"--topic={stage.topics[0]}",
        "--from-input",
        f"--store={location.kind}",
        f"--path={location.path}",
        f"--table={location.table}",
        "--name=job",
        "--columns=n long",
        "--max-records=200",
    ]
    inside = "between-commits:2" if location.kind == "delta" else "in-commit:2"
    for point in ("before-sequences:2", inside):
        killed = command(*arguments, SPARK_SINK_CRASH_AT=point)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = command(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["offsets"] == {"0": 300, "1": 300}

    def proven() -> tuple[bool, dict[str, int]]:
        report = verify_results(settings, None, lambda: nullcontext(spark))
        assert report.results is not None
        return report.is_proven, {kind: count for kind, count in report.results.counts.items()}

    assert proven() == (True, {})
    reasons = {reason for (reason,) in read_rows(rejects_location(location), ["_reason"])}
    assert reasons == {"sequence-missing", "sequence-not-a-number", "identity-too-long", "value-not-parsed"}

    # The same records once more, and one new one: only that is added.
    stage.write(0, 0, raw_records(random.Random(location.kind), 300)[:50])
    stage.write(0, 0, [record(10_000, b"1", b'{"n":10000}')])
    rows = len(read_rows(location, ["n"]))
    again = command(*arguments)
    assert again.returncode == 0, again.stderr
    assert len(read_rows(location, ["n"])) == rows + 1
    assert proven() == (True, {})

    plain = [word for word in arguments if word not in {"--from-input", "--columns=n long"}]
    for change, words in {
        "--identity=key": "has committed its own judging (topic ",
        "--reorder-window=5": "and is set to commit its own judging (topic ",
        "--identity=field:n": "with from_input, Spark reads producer, key, partition or header:NAME",
        "--mode=structured": "choose mode batch or mode stream",
    }.items():
        refused = command(*arguments, change)
        assert (refused.returncode, "starting Spark" in refused.stderr) == (2, False), refused.stderr
        assert words in refused.stderr
    refused = command(*plain)
    assert refused.returncode == 2
    assert "set to commit records that workers have judged" in refused.stderr

    first, second = (row for row in read_rows(location, ["_kafka_partition", "_kafka_offset"])[:2])
    delete(site, f"_kafka_partition = {first[0]} AND _kafka_offset = {first[1]}")
    repeat(site, *second)
    ok, counts = proven()
    assert (ok, counts) == (False, {"lost": 1, "doubled": 1})


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ({"deduplicate": False}, "the stream's setting deduplicate = false is supported by workers only"),
        ({"forward": False}, "forward = false"),
        ({"duplicates": "dropped"}, "duplicates = 'dropped'"),
        ({"conflicts": "count"}, "conflicts = 'count'"),
        ({"dense": True}, "dense = true"),
        ({"identity": "key", "repartition_by": "identity"}, "repartition_by"),
        ({"max_identities": 10}, "max_identities"),
        ({"inactive_after_s": 10}, "inactive_after_s"),
        ({"sequence": "field:n"}, "Or let workers judge"),
    ],
)
def test_what_only_workers_do_is_refused_by_name(stream: dict[str, Any], words: str) -> None:
    settings = Settings(
        bootstrap="localhost:1",
        streams={"events": StreamSettings.model_validate({**TOPICS, **stream})},
        sink=SinkSettings(from_input=True),
    )
    with pytest.raises(OptionRefused, match=words.replace("(", r"\(")):
        spec_of(settings, "in", "localhost:1").pipeline()


def test_the_rule_is_the_streams() -> None:
    said = {"identity": ["header:a, b", "key"], "sequence": "header:n", "sequence_form": "text"}
    window = {"reorder_window": 9, "late": "dead-letter"}
    stream = StreamSettings.model_validate({**TOPICS, **said, **window})
    settings = Settings(streams={"events": stream}, sink=SinkSettings(from_input=True))
    spec = spec_of(settings, "in", "localhost:1")
    rule = spec.write_mode().judged
    assert rule is not None
    assert rule.as_dict() == {"topic": "in", **said, **window}
    assert spec.pipeline().rejects
    with pytest.raises(OptionRefused, match="identity sets how a raw topic is deduplicated"):
        replace(spec, from_input=False)
    with pytest.raises(SettingsError, match="no stream of the settings has the input 'out'"):
        spec_of(settings, "out", "localhost:1")


@pytest.mark.parametrize("site", ["delta"], indirect=True)
@pytest.mark.parametrize(
    "sink",
    [
        pytest.param(
            {"kind": "totals", "key": ("user",), "sums": ("n",), "columns": "n long, user string"},
            marks=pytest.mark.matrix,
        ),
        pytest.param({"kind": "upsert", "key": ("user",), "columns": "n long, user string"}, marks=pytest.mark.matrix),
        {"kind": "append"},
    ],
    ids=lambda sink: str(sink["kind"]),
)
def test_every_kind_of_result_is_proven_from_the_raw_topic(
    broker: str, new_topic: NewTopic, site: Site, spark: SparkSession, sink: dict[str, Any]
) -> None:
    stage, chance = Stage(broker, new_topic, reorder_window=3, late="dead-letter"), random.Random(1)
    made = [
        record(
            max(0, n - chance.choice([0, 0, 0, 1, 2, 5])), b"%d" % (n % 3), json.dumps({"n": n, "user": "a"}).encode()
        )
        for n in range(60)
    ]
    stage.write(0, 0, [*made, record(1, None), record(99, b"0", b"no JSON")])
    stage.write(0, 1, [record(n, b"b", b'{"n": 1, "user": "b"}') for n in (3, 1, 3, 2, 1, 9, 4)])
    kept = SinkSettings(name="job", store="delta", path=site.location.path, from_input=True, **sink)
    settings = stage.settings.model_copy(update={"sink": kept})
    spec = spec_of(settings, stage.topics[0], broker, max_records=40)
    planner, access = TopicPlanner(broker, stage.topics[0], {}), access_of(settings)
    store = spec.result_store(spec.pipeline(), access, planner.topic_id())
    outcome = run_batch(spec.job(spec.pipeline(), access), planner, store, lambda: nullcontext(spark))
    assert (outcome.commits, outcome.offsets) == (2, {0: 62, 1: 7})
    report = verify_results(settings, None, lambda: nullcontext(spark))
    assert report.results is not None
    assert (report.is_proven, report.results.counts) == (True, {}), report.results.findings
    rejected = {reason for (reason,) in read_rows(rejects_location(site.location), ["_reason"])}
    assert {"identity-missing", "too-late"} <= rejected
    assert report.fresh + report.duplicate + report.late + report.invalid == 69


@pytest.mark.matrix
@pytest.mark.parametrize("site", ["delta"], indirect=True)
def test_nanoseconds_of_a_raw_topic_are_passed(
    broker: str, new_topic: NewTopic, site: Site, spark: SparkSession
) -> None:
    def any_time(partitions: int) -> str:
        return new_topic(partitions, message_timestamp_after_max_ms=2**63 - 1, retention_ms=-1)

    stage = Stage(broker, any_time)
    stamps = [5, 1_790_000_000_000_000_000, -62_135_596_800_000, 6]
    made = [replace(record(n, b"1", b'{"n": 1}'), timestamp_ms=at) for n, at in enumerate(stamps)]
    stage.write(0, 0, [*made, made[1]])
    kept = SinkSettings(name="job", store="delta", path=site.location.path, from_input=True, columns="n long")
    settings = stage.settings.model_copy(update={"sink": kept})
    spec = spec_of(settings, stage.topics[0], broker)
    planner, access = TopicPlanner(broker, stage.topics[0], {}), access_of(settings)
    store = spec.result_store(spec.pipeline(), access, planner.topic_id())
    outcome = run_batch(spec.job(spec.pipeline(), access), planner, store, lambda: nullcontext(spark))
    assert (outcome.rows, outcome.offsets) == (4, {0: 5, 1: 0})
    report = verify_results(settings, None, lambda: nullcontext(spark))
    assert report.results is not None
    assert (report.is_proven, report.results.counts) == (True, {}), report.results.findings
    assert (report.results.values_compared, report.results.without_time) == (4, 1)
