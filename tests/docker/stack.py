"""The stack of docker-compose.yml on an engine, unchanged, under a project name of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Final

import psycopg
import yaml

from kafka_ratchet.producers import Producer
from tests.docker.engine import PATIENCE_S, docker, health, inspect, kill, wait_for

ROOT: Final = Path(__file__).parents[2]
COMPOSE_FILE: Final = (ROOT / "docker-compose.yml").read_text("utf-8")
SERVICES: Final[dict[str, dict[str, Any]]] = yaml.safe_load(COMPOSE_FILE)["services"]
IMAGE: Final = str(SERVICES["worker"]["image"])
BOOTSTRAP: Final = "127.0.0.1:19092,127.0.0.1:29092,127.0.0.1:39092"
URL: Final = "postgresql://ratchet:ratchet@127.0.0.1:15432/ratchet"
PROJECT: Final = "ratchet-test"
"""Not the file's own name: the test removes its volumes at the end."""


def header(word: str) -> list[str]:
    """Return the command of a line in the head of docker-compose.yml."""
    (line,) = re.findall(rf"^#   {word} +(.+)$", COMPOSE_FILE, re.MULTILINE)
    return shlex.split(line.partition(", then ")[0])


class HostPublisher:
    """A program of this machine that publishes ten events a second, through the published listeners, until it ends."""

    def __init__(self) -> None:
        self.sent = 0
        self.error: Exception | None = None
        self._ends, self._goes_on = threading.Event(), threading.Event()
        self._goes_on.set()
        self._thread = threading.Thread(target=self._run, name="publisher of the host")
        self._thread.start()

    def _run(self) -> None:
        try:
            with Producer("events", "host", options={"bootstrap.servers": BOOTSTRAP}, timeout_s=PATIENCE_S) as producer:
                while not self._ends.is_set():
                    if self._goes_on.wait(0.1):
                        event = {"repository": "the host", "sequence": self.sent + 1, "added": 1}
                        producer.send(json.dumps(event).encode())
                        self.sent += 1
                        time.sleep(0.1)
        except Exception as error:
            self.error = error

    def hold(self) -> None:
        """Send nothing until `go_on`."""
        self._goes_on.clear()

    def go_on(self) -> None:
        """Send again."""
        self._goes_on.set()

    def end(self) -> None:
        """Send the rest, and end."""
        self._ends.set()
        self._thread.join()
        assert self.error is None, self.error


class Stack:
    """The project's own services. figures: seconds by the awaited event."""

    def __init__(self, folder: Path) -> None:
        self.figures: dict[str, float] = {}
        self._folder = folder
        self._environment = {**os.environ, "COMPOSE_PROJECT_NAME": PROJECT, "COMPOSE_PROGRESS": "plain"}
        self._publisher: HostPublisher | None = None

    @property
    def publisher(self) -> HostPublisher:
        """The program of the host, which runs from the first question on."""
        if self._publisher is None:
            self._publisher = HostPublisher()
        return self._publisher

    def run(self, command: list[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command where the files are, as a user of them does."""
        done = subprocess.run(command, cwd=ROOT, env=self._environment, capture_output=True, text=True, check=False)
        with (self._folder / "commands.log").open("a") as log:
            log.write(f"$ {shlex.join(command)}\n{done.stdout}{done.stderr}exit code {done.returncode}\n")
        if check:
            assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done

    def compose(self, *arguments: str) -> str:
        """Run a command of Compose."""
        return self.run(["docker", "compose", *arguments]).stdout

    def timed(self, name: str, command: list[str]) -> None:
        """Run a command, and keep its seconds as a figure."""
        began = time.monotonic()
        self.run(command)
        self.figures[name] = time.monotonic() - began

    def containers(self, service: str) -> list[str]:
        """Return the containers of a service."""
        return self.compose("ps", "--quiet", service).split()

    def all_containers(self) -> dict[str, list[str]]:
        """Return the containers of each service that runs without a profile."""
        return {name: sorted(self.containers(name)) for name in SERVICES if "profiles" not in SERVICES[name]}

    def rows(self, where: str = "true") -> int:
        """Return the number of rows in the result table; -1 while PostgreSQL does not answer."""
        try:
            with psycopg.connect(URL, connect_timeout=5) as database:
                found = database.execute(f"SELECT count(*) FROM results WHERE {where}").fetchone()  # noqa: S608
        except psycopg.OperationalError:
            return -1
        assert found is not None
        return int(found[0])

    def wait_for_events(self, name: str) -> None:
        """Wait until an event that the host sends from now on is in the table; keep the seconds as a figure."""
        self.publisher.go_on()
        more = self.publisher.sent + 1
        self.figures[name] = wait_for(lambda: self.rows("repository = 'the host'") >= more, f"{more} rows of the host")
        assert self.publisher.error is None, self.publisher.error

    def wait_until_healthy(self, name: str, service: str) -> None:
        """Wait until a service is healthy; keep the seconds as a figure."""
        self.figures[name] = wait_for(lambda: self.is_healthy(service), f"{service} healthy")

    def is_healthy(self, service: str) -> bool:
        """Return whether all containers of a service are healthy, or run where they have no health check."""
        return all(health(each) in ("healthy", "running") for each in self.containers(service))

    def kill_one(self, service: str) -> str:
        """Kill the first process of a container of a service, and wait until it has been started again."""
        container = self.containers(service)[0]
        before = inspect(container)["State"]["StartedAt"]
        kill(container, IMAGE)
        wait_for(lambda: inspect(container)["State"]["StartedAt"] != before, f"{service} started again")
        return container

    def verify(self) -> str:
        """Prove the stream and its table by the line of the file's head; return the verdict.

        Nothing is published while that runs. Input may be pending for a moment; all else must be proven.
        """
        self.publisher.hold()
        self.compose("stop", "source")
        began = time.monotonic()
        while (done := self.run(header("prove"), check=False)).returncode == 3:
            assert time.monotonic() - began < PATIENCE_S, done.stdout
        assert done.returncode == 0, done.stdout + done.stderr
        self.compose("start", "source")
        self.publisher.go_on()
        return done.stdout

    def close(self) -> None:
        """End the publisher, keep logs and figures in build/docker, and remove the project with its volumes."""
        try:
            if self._publisher is not None:
                self._publisher.end()
        finally:
            (self._folder / "services.log").write_text(self.run(["docker", "compose", "logs", "--no-color"]).stdout)
            (self._folder / "figures.json").write_text(json.dumps(self.figures, indent=1) + "\n")
            self.run(["docker", "compose", "--profile", "monitoring", "down", "--volumes", "--timeout", "30"])


def inside(container: str, path: str) -> int:
    """Return the status of an address of a worker, asked in its container; 0: no answer."""
    question = (
        "import sys, urllib.error, urllib.request\n"
        "try:\n    print(urllib.request.urlopen(sys.argv[1], timeout=30).status)\n"
        "except urllib.error.HTTPError as error:\n    print(error.code)\n"
        "except OSError:\n    print(0)\n"
    )
    answer = docker("exec", container, "python", "-c", question, f"http://127.0.0.1:8081{path}", check=False)
    return int(answer or 0)
