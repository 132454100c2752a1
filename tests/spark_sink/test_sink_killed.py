"""The whole job, as it ships (one zip, nothing of the checkout), killed around its commit and run again."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.results import count, read_totals
from kafka_ratchet.spark_sink.stores.vacuum import vacuum
from tests.spark_sink.sites import delta_store

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.timeout(900)  # four starts of Spark, each seconds on an idle machine
def test_killed_before_inside_and_after_the_commit_nothing_is_lost_or_doubled(
    new_topic: Callable[..., str],
    write: Callable[..., None],
    command: Command,
    rows: Callable[..., list[tuple[object, ...]]],
    table: str,
    tmp_path: Path,
) -> None:
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        write(topic, [json.dumps({"who": f"p{partition}", "n": n}).encode() for n in range(500)], partition)
        write(topic, [b'{"who":"aborted","n":1}'] * 50, partition, commit=False)
    arguments = [
        f"--topic={topic}",
        f"--path={table}",
        "--name=job",
        "--columns=who string, n long",
        "--max-records=200",
    ]
    seen = []
    for point in ("before-write", "before-commit:2", "after-commit:2"):
        killed = command(*arguments, SPARK_SINK_CRASH_AT=point)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        seen.append(sum(delta_store(table, "job", topic).offsets().values()))
    # Nothing, one commit, and two more commits of 200 offsets are what each kill must leave.
    assert seen == [0, 200, 600]
    files = len(list(Path(table).glob("*.parquet")))

    done = command(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["offsets"] == {"0": 552, "1": 552}
    assert done.stderr.count("starting Spark (local[1])\n") == 1  # a slow start is named once more, with its seconds
    assert rows("_kafka_partition", "who", "n", "_kafka_value") == [
        (p, f"p{p}", n, None) for p in (0, 1) for n in range(500)
    ]
    assert read_totals(TableLocation("delta", table), "who", ["n"]) == {"p0": {"n": 124_750}, "p1": {"n": 124_750}}
    assert files > 0
    named = {uri.rpartition("/")[2] for uri in DeltaTable(table).file_uris()}
    orphans = {path.name for path in Path(table).glob("*.parquet")} - named
    assert len(orphans) == 1  # of the kill before the second commit: so few rows make one file
    assert {orphan.name for orphan in vacuum(TableLocation("delta", table), older_than_s=-60)} == orphans
    assert {path.name for path in Path(table).glob("*.parquet")} == named
    assert count(TableLocation("delta", table)) == 1000
    assert not [path for path in tmp_path.iterdir() if path.is_dir() and path != Path(table)]  # no litter of Spark's

    empty = command(*arguments, "--json", JAVA_HOME="/nowhere")  # nothing to do, so Java is not needed
    assert empty.returncode == 0, empty.stderr
    assert json.loads(empty.stdout)["commits"] == 0
    assert "starting Spark" not in empty.stderr
    assert count(TableLocation("delta", table)) == 1000


def test_a_refusal_is_a_sentence_and_exit_code_2(command: Command, table: str) -> None:
    refused = command("--topic=never-created", f"--path={table}", "--name=job")
    assert refused.returncode == 2
    assert refused.stderr.startswith("refused: topic never-created does not exist")
    assert "Traceback" not in refused.stderr
