"""The job as it ships on a standalone cluster of two workers, with an executor killed amid a commit."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable
from psycopg import sql

from faults.postgres import PostgresServer
from faults.sink_environment import QUICK_JVM
from kafka_ratchet.spark_sink.rows.columns import record_schema
from tests.spark_sink.sites import postgres_store
from tests.spark_sink.spark.standalone import HOSTS, Cluster, run_cluster, wait_for

Write = Callable[..., None]

RECORDS = 500
"""Per partition."""

BATCH = 50
"""Rows that go from one Python function to the next at once: more bytes than the buffers on the way keep (64 KB)."""

STEP = """
'''A user's own step, which holds the tasks until the test lets them go on.'''
import json, os, time
from pathlib import Path

from pyspark import TaskContext

FOLDER = Path({folder!r})

def transform(rows):
    return rows.mapInArrow(task, rows.schema)

def task(batches):
    context = TaskContext.get()
    partition, attempt = context.partitionId(), context.attemptNumber()
    first = not (FOLDER / "go").exists()
    about = dict(partition=partition, attempt=attempt, pid=os.getpid(), folder=os.getcwd(), first=first)
    name = f"{{context.stageId()}}-{{partition}}-{{attempt}}"
    for number, batch in enumerate(batches):
        if number == {held_at}:
            (FOLDER / f"{{name}}.partial").write_text(json.dumps(about))
            (FOLDER / f"{{name}}.partial").replace(FOLDER / f"{{name}}.json")
            while attempt == 0 and first and not (FOLDER / "go").exists():
                time.sleep(0.02)
            while attempt == 0 and partition == 0 and not first:
                time.sleep(0.02)  # until Spark ends it, because the second attempt was faster
        yield batch
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with run_cluster(tmp_path_factory.mktemp("cluster"), QUICK_JVM) as cluster:
        yield cluster


@pytest.fixture
def topic(new_topic: Callable[..., str], write: Write) -> str:
    """Two partitions of committed records with aborted ones between, in two transactions each."""
    topic = new_topic(partitions=2)
    for half in (0, 1):
        for partition in (0, 1):
            write(topic, [_value(half, n) for n in range(RECORDS // 2)], partition)
            write(topic, [b"aborted"] * 20, partition, commit=False)
    return topic


def _value(half: int, n: int) -> bytes:
    return b"%d:%d" % (half, n) * 300


EXPECTED = [(p, _value(half, n)) for p in (0, 1) for half in (0, 1) for n in range(RECORDS // 2)]
END = RECORDS + 2 * 20 + 4  # records, aborted records, markers


@pytest.mark.matrix
@pytest.mark.timeout(900)  # five JVMs start on the way
def test_a_killed_executor_and_a_speculative_attempt_lose_and_double_nothing(
    broker: str, cluster: Cluster, shipped: Path, topic: str, table: str, tmp_path: Path,
    rows: Callable[..., list[tuple[object, ...]]],
) -> None:  # fmt: skip
    """In the first commit the executors of both tasks are amid their files when one is killed; in the second, a task
    hangs, and Spark runs it once more elsewhere."""
    check = tmp_path / "held"
    check.mkdir()
    step = tmp_path / "slow_step.py"
    step.write_text(STEP.format(folder=str(check), held_at=3))
    arguments = [f"--bootstrap={broker}", f"--topic={topic}", f"--path={table}", "--name=job", "--json"]
    arguments += ["--transform=slow_step:transform", f"--max-records={END}"]  # of the two partitions: two commits
    files = f"--py-files={shipped},{step}"
    batches = f"--conf=spark.sql.execution.arrow.maxRecordsPerBatch={BATCH}"
    with cluster.submit(shipped, arguments, files, batches) as job:
        wait_for("both tasks hold", lambda: len(list(check.glob("*.json"))) == 2 or job.has_ended)
        wait_for("both have rows in a file", lambda: len(list(Path(table).glob("part-*"))) == 2 or job.has_ended)
        if not job.has_ended:
            [victim] = cluster.executors(0)
            os.kill(victim, signal.SIGKILL)
        (check / "go").touch()
        result, log = job.result()
    assert (result["rows"], result["commits"], result["offsets"]) == (2 * RECORDS, 2, {"0": END, "1": END})
    assert rows("_kafka_partition", "_kafka_value") == EXPECTED

    tasks = [json.loads(path.read_text()) for path in check.glob("*.json")]
    # The executors of both workers wrote, in their folders; the driver wrote no row.
    homes = {Path(task["folder"]).relative_to(cluster.folder).parts[0] for task in tasks}
    assert homes == {cluster.work(number).name for number in range(len(HOSTS))}
    assert "Lost executor" in log
    assert {(task["partition"], task["attempt"]) for task in tasks if not task["first"]} >= {(0, 0), (0, 1), (1, 0)}
    # What the killed and the slower attempt have left is in the folder and not in the table.
    assert len(DeltaTable(table).file_uris()) == 4
    assert len(list(Path(table).glob("part-*"))) > 4


@pytest.mark.matrix
@pytest.mark.postgres
def test_an_executor_killed_amid_a_transaction_of_postgresql(
    broker: str, cluster: Cluster, shipped: Path, topic: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    """Both tasks wait within their COPY, because the test has the table locked, when the executor of one is killed."""
    name = f"cluster of {tmp_path.name}"
    with psycopg.connect(postgres.url, password=postgres.password, autocommit=True) as database:
        postgres_store(postgres.url, name, "job", topic, password=postgres.password, in_tasks=True).open(
            record_schema()
        )
        locked = sql.Identifier(name)
        arguments = [f"--bootstrap={broker}", f"--topic={topic}", "--store=postgres", f"--table={name}"]
        arguments += ["--name=job", "--json"]
        secrets = {"SPARK_SINK_URL": postgres.url, "SPARK_SINK_PASSWORD": postgres.password}
        with cluster.submit(shipped, arguments, f"--py-files={shipped}", **secrets) as job:
            with database.transaction():
                database.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(locked))
                wait_for("both tasks are amid their transaction", lambda: _waiting(postgres) == 2 or job.has_ended)
                if not job.has_ended:
                    [victim] = cluster.executors(0)
                    os.kill(victim, signal.SIGKILL)
            result, log = job.result()
        assert result["offsets"] == {"0": END, "1": END}
        assert "Lost executor" in log
        found = sql.SQL(
            'SELECT "_kafka_partition", "_kafka_value" FROM {} ORDER BY "_kafka_partition", "_kafka_offset"'
        ).format(locked)
        assert database.execute(found).fetchall() == EXPECTED


def _waiting(postgres: PostgresServer) -> object:
    # A connection of its own: within a transaction, PostgreSQL shows the same picture of its sessions again and again.
    with psycopg.connect(postgres.url, password=postgres.password) as database:
        found = database.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'sink:%' AND wait_event_type = 'Lock'"
        ).fetchone()
    return found and found[0]
