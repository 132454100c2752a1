"""Spark Connect: the job in a process without Java, and the real server of the distribution.

pyspark's extra `connect` is not among the tests' packages, so it is the environments of test_releases that run this.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafka_ratchet.spark_sink.spark.versions import RELEASES, installed_release
from tests.spark_sink.spark.connect_server import connect_server

pytestmark = [getattr(pytest.mark, "spark-versions"), pytest.mark.long]

Command = Callable[..., subprocess.CompletedProcess[str]]

IS_3_5 = installed_release() is RELEASES["3.5"]


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """The address of a server."""
    pytest.importorskip("grpc", reason="runs in an environment of test_releases")
    with connect_server(tmp_path) as address:
        yield address


@pytest.mark.skipif(IS_3_5, reason="pyspark 3.5 has no server of Spark Connect")
def test_a_kill_between_write_and_commit_and_after_it_loses_and_doubles_nothing(
    new_topic: Callable[..., str], write: Callable[..., None], command: Command, table: str, remote: str,
    rows: Callable[..., list[tuple[object, ...]]],
) -> None:  # fmt: skip
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        write(topic, [b'{"n":%d,"d":1.25}' % n for n in range(500)], partition)
        write(topic, [b'{"n":-1}'] * 50, partition, commit=False)
    arguments = [f"--topic={topic}", f"--path={table}", "--name=job", "--columns=n long, d decimal(9,2)"]
    client = {"SPARK_REMOTE": remote, "JAVA_HOME": "/nowhere"}
    for point in ("before-commit", "after-commit"):
        killed = command(*arguments, "--max-records=400", SPARK_SINK_CRASH_AT=point, **client)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = command(*arguments, "--json", **client)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["offsets"] == {"0": 552, "1": 552}
    assert rows("_kafka_partition", "n", "_kafka_value") == [(p, n, None) for p in (0, 1) for n in range(500)]

    refused = command(*arguments, "--mode=structured", **client)
    assert refused.returncode == 2
    assert refused.stderr.startswith("refused: Spark Connect runs the commit of a micro-batch in its server")
