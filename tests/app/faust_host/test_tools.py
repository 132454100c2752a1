"""Tools over a hosted Faust program in two processes: tables, the page, `why`, metrics, standbys, digests."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.app.faust_host.hosted import HostedProgram, free_port
from tests.app.worker_process import PATIENCE_S

pytestmark = pytest.mark.matrix  # two processes, and a standby of each

POSTS = [(str(n), f"w{n % 7} w{n % 11} x") for n in range(200)]
COUNTS = Counter(word for _, post in POSTS for word in post.split())


def get(url: str) -> str:
    assert url.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - looked at above
        return str(answer.read().decode())


@pytest.fixture(scope="module")
def program(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostedProgram]:
    """Words, counted by two processes under one parent."""
    made = HostedProgram("words", broker, tmp_path_factory.mktemp("tools"))
    made.create("posts", "counted")
    made.start(command=(*made.commands[2], "--processes", "2"))
    made.wait_until_read(workers=2)
    made.publish("posts", POSTS)
    made.wait_for(lambda: len(made.read("counted")) == sum(COUNTS.values()), "the last word")
    made.wait_until_read()
    yield made
    made.stop()
    made.end()


@pytest.fixture(scope="module")
def page(program: HostedProgram) -> Iterator[str]:
    """Address of the page."""
    port = free_port()
    arguments = ["web", "--config", str(program.config), "--port", str(port)]
    with (program.folder / "web.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "kafka_ratchet", *arguments],
            env=program.environment,
            cwd=program.folder,
            stdout=log,
            stderr=log,
        )
    address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE_S
    while True:
        try:
            get(f"{address}/index.json")
            break
        except OSError:
            assert time.monotonic() < deadline, (program.folder / "web.log").read_text()
            time.sleep(0.2)
    yield address
    process.terminate()
    assert process.wait(60) == 0


def test_tables_of_all_processes(program: HostedProgram, page: str) -> None:
    assert program.table("counts") == COUNTS
    found = json.loads(get(f"{page}/tables/counts.json?limit=500"))
    assert found["not_asked"] == []
    shown = {entry["key"]: value["value"] for entry in found["entries"] for value in entry["values"]}
    assert shown == COUNTS
    one = json.loads(get(f"{page}/tables/counts.json?key=x"))
    assert [value["value"] for entry in one["entries"] for value in entry["values"]] == [len(POSTS)]
    assert "counts" in get(f"{page}/tables/counts")


def test_the_trace_of_a_record_ends_at_agents(program: HostedProgram, page: str) -> None:
    """What agents send by name is another event: the answer has the verdict, the transaction, and the way on."""
    posts = program.topic("posts")
    found = program.command("why", "--topic", posts, "--partition", "0", "--offset", "3")
    (arrival,) = found["arrivals"]
    assert (arrival["at"]["offset"], arrival["verdict"], arrival["sent"]) == (3, "unjudged", [])
    assert arrival["transaction"]["changelog"]["topic"] == f"{program.id}-changelog.posts"
    assert any("agents of a program make the output" in limit for limit in found["limits"])
    assert "agents of a program make the output" in get(f"{page}/event?topic={posts}&partition=0&offset=3")
    told = json.loads(get(f"{page}/event.json?topic={posts}&partition=0&offset=3"))
    assert told["arrivals"] == found["arrivals"]


def test_figures_standbys_and_digests_of_both_processes(program: HostedProgram, page: str) -> None:
    overview: dict[str, Any] = json.loads(get(f"{page}/index.json"))
    assert len(overview["workers"]) == 2
    assert len({worker["program"] for worker in overview["workers"]}) == 1
    assert all(worker["program"] for worker in overview["workers"])
    streams = {stream["stream"]: stream for stream in overview["streams"]}
    assert all(row["standbys"] for stream in streams.values() for row in stream["partitions"])
    assert {row["worker"] for stream in streams.values() for row in stream["partitions"]} == {
        worker["name"] for worker in overview["workers"]
    }
    figures = "".join(get(f"{worker['url']}/metrics") for worker in overview["workers"])
    commits = re.findall(r'^ratchet_transactions_total\{outcome="committed",stream="posts"\} (.*)$', figures, re.M)
    assert len(commits) == 2
    assert sum(map(float, commits)) > 0
    ends = re.findall(r'^ratchet_input_end\{partition="\d",stream="posts"\} (.*)$', figures, re.M)
    assert sum(map(float, ends)) == len(POSTS)
    assert "Workers" in get(f"{page}/workers")
