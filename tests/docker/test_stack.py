"""The stack of docker-compose.yml on a real engine: `./ratchet test -m docker`.

Local images are used unchanged; `tests/docker/stand_ins/make` builds some where no registry is in reach. The tests
build on one another, in this order. build/docker has the figures, commands and logs of the last run.
"""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.docker import engine
from tests.docker.engine import docker, health, inspect, is_local, wait_for
from tests.docker.stack import BOOTSTRAP, PROJECT, ROOT, SERVICES, Stack, header, inside

absent = engine.absence()
pytestmark = [
    pytest.mark.docker,
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(absent is not None, reason=str(absent)),
]
CUT_S = 60.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    folder = Path(ROOT / "build" / "docker")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    stack = Stack(folder)
    stack.timed("build", ["docker", "compose", "build"])
    stack.run(["docker", "compose", "--profile", "monitoring", "down", "--volumes"])
    try:
        stack.timed("first start on empty volumes", header("start"))
        yield stack
    finally:
        stack.close()


def test_one_image_is_built_and_everything_is_healthy(stack: Stack) -> None:
    for name, containers in stack.all_containers().items():
        assert len(containers) == SERVICES[name].get("deploy", {}).get("replicas", 1)
        assert {health(each) for each in containers} == {"healthy" if "healthcheck" in SERVICES[name] else "running"}
    images = {inspect(each)["Image"] for name in ("source", "worker", "web", "sink") for each in stack.containers(name)}
    assert len(images) == 1


def test_the_table_is_there_when_the_start_is_over(stack: Stack) -> None:
    assert stack.rows() >= 0  # no such table: an error


def test_events_flow_from_containers_and_from_the_host(stack: Stack) -> None:
    assert len(AdminClient({"bootstrap.servers": BOOTSTRAP}).list_topics(timeout=60).brokers) == 3
    stack.wait_for_events("an event of the host in the table")
    stack.figures["rows of the sample data"] = wait_for(
        lambda: stack.rows("repository != 'the host'") > 0, "rows of the sample data"
    )


def test_the_page_answers(stack: Stack) -> None:
    with urllib.request.urlopen("http://127.0.0.1:8080/index.json", timeout=60) as answer:
        overview = json.load(answer)
    assert [worker["error"] for worker in overview["workers"]] == [None, None]
    assert sum(row["fresh"] for row in overview["streams"][0]["partitions"]) > 0
    with urllib.request.urlopen("http://127.0.0.1:8080/docs/guide/deploy", timeout=60) as answer:
        assert b"docker compose up" in answer.read()


def test_the_lines_of_the_head_work_as_they_are_written(stack: Stack) -> None:
    before = stack.rows()
    stack.run(header("publish"))
    wait_for(lambda: stack.rows() >= before + 3000, "the rows of 3,000 events that were published")
    if shutil.which("psql"):
        assert stack.run(header("query")).stdout.split()[2].isdigit()
    assert "lost 0, doubled 0" in stack.verify()


def test_prometheus_watches_all_parts(stack: Stack) -> None:
    image = str(SERVICES["prometheus"]["image"])
    if not is_local(image) and not docker("pull", image, check=False):
        pytest.skip(f"there is no image {image}")
    stack.run([*header("watch"), *([] if is_local(str(SERVICES["grafana"]["image"])) else ["prometheus"])])

    def is_up() -> bool:
        with urllib.request.urlopen("http://127.0.0.1:9090/api/v1/targets", timeout=60) as answer:
            targets = json.load(answer)["data"]["activeTargets"]
        return sorted(each["labels"]["job"] for each in targets if each["health"] == "up") == [
            "ratchet-producer",
            "ratchet-sink",
            "ratchet-worker",
            "ratchet-worker",
        ]

    wait_for(is_up, "all targets up")
    stack.compose("--profile", "monitoring", "rm", "--stop", "--force", "prometheus", "grafana")


@pytest.mark.parametrize("service", ["kafka-2", "worker", "sink", "postgres"])
def test_a_killed_process_is_started_again_and_nothing_is_lost_or_doubled(stack: Stack, service: str) -> None:
    began = time.monotonic()
    stack.kill_one(service)
    stack.wait_for_events(f"kill -9 of {service}: an event sent after it in the table")
    wait_for(lambda: stack.is_healthy(service), f"{service} healthy")
    stack.figures[f"kill -9 of {service}: healthy"] = time.monotonic() - began
    assert "lost 0, doubled 0" in stack.verify()


def test_killed_leaders_end_no_sink(stack: Stack) -> None:
    """An offset of -1001 stands for an absent leader, and for no end of a topic."""
    (sink,) = stack.containers("sink")
    before = inspect(sink)["RestartCount"]
    for node in ("kafka-1", "kafka-2", "kafka-3"):
        stack.kill_one(node)
        stack.wait_until_healthy(f"kill -9 of leader {node}: healthy", node)
    stack.wait_for_events("three leaders killed one after the other: an event in the table")
    said = stack.compose("logs", "--no-color", "sink")
    assert "was deleted and created again" not in said
    assert inspect(sink)["RestartCount"] == before
    assert "lost 0, doubled 0" in stack.verify()


def test_a_worker_cut_from_the_network_says_so_and_takes_part_again(stack: Stack) -> None:
    cut = stack.containers("worker")[0]
    network = f"{PROJECT}_default"
    began = time.monotonic()
    docker("network", "disconnect", network, cut)
    stack.figures["worker cut off: not ready"] = wait_for(lambda: inside(cut, "/readyz") == 503, "not ready")
    assert inside(cut, "/healthz") == 200
    stack.wait_for_events("worker cut off: an event through the other one in the table")
    time.sleep(max(0.0, CUT_S - (time.monotonic() - began)))
    docker("network", "connect", "--alias", "worker", network, cut)
    stack.figures["worker connected again: ready"] = wait_for(lambda: inside(cut, "/readyz") == 200, "ready")
    wait_for(lambda: health(cut) == "healthy", "healthy")
    stack.wait_for_events("worker connected again: an event in the table")
    assert "lost 0, doubled 0" in stack.verify()


def test_restart(stack: Stack) -> None:
    before = stack.rows()
    stack.timed("restart", ["docker", "compose", "restart"])
    stack.wait_for_events("restart: an event in the table")
    assert stack.rows() >= before
    assert "lost 0, doubled 0" in stack.verify()


@pytest.mark.parametrize("replicas", [3, 1, 2])
def test_scale(stack: Stack, replicas: int) -> None:
    stack.timed(f"scale to {replicas}", ["docker", "compose", "up", "--wait", "--scale", f"worker={replicas}"])
    assert len(stack.containers("worker")) == replicas
    stack.wait_for_events(f"scale to {replicas}: an event in the table")
    assert "lost 0, doubled 0" in stack.verify()


def test_down_and_up_keep_everything(stack: Stack) -> None:
    before = stack.rows()
    anonymous = docker("volume", "ls", "--quiet", "--filter", "label=com.docker.volume.anonymous").split()
    stack.publisher.hold()
    stack.timed("down", ["docker", "compose", "down"])
    stack.timed("up after down", ["docker", "compose", "up", "--wait"])
    assert stack.rows() >= before > 0
    stack.wait_for_events("up after down: an event in the table")
    after = docker("volume", "ls", "--quiet", "--filter", "label=com.docker.volume.anonymous").split()
    assert after == anonymous  # none is left behind
    assert "lost 0, doubled 0" in stack.verify()


def test_a_second_build_makes_no_container_anew(stack: Stack) -> None:
    before = stack.all_containers()
    stack.timed("second up --build", header("start"))
    assert stack.all_containers() == before
    assert "lost 0, doubled 0" in stack.verify()
