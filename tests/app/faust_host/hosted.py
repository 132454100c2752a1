"""A Faust program in worker processes on lanes, for tests: started in Faust's own ways, killed, and read."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kafka_ratchet.producers import create_topic
from kafka_ratchet.testing.topics import leave_group
from tests.app.worker_process import PATIENCE_S, ROOT, Site, read_all

PROGRAMS = Path(__file__).parent / "programs"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class HostedProgram:
    """A program of tests/app/faust_host/programs with an id and topics of its own."""

    def __init__(self, name: str, broker: str, folder: Path) -> None:
        self.name, self.broker, self.folder = name, broker, folder
        self.id = f"{name}-{uuid.uuid4().hex[:8]}"
        self.log = folder / f"{self.id}.log"
        self.port = 0
        self.kind = "ratchet"
        """Scheme of the broker's URL; "kafka": a worker of plain Faust."""
        self._process: subprocess.Popen[bytes] | None = None
        self._producer = Producer({"bootstrap.servers": broker, "acks": "all"})

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RATCHET_")}
        return {
            **kept,
            "PYTHONPATH": f"{ROOT}:{PROGRAMS}",
            "FAUST_APP": self.id,
            "FAUST_KIND": self.kind,
            "FAUST_BROKER": self.broker,
            "PYTHONUNBUFFERED": "1",
        }

    def topic(self, name: str) -> str:
        return f"{self.id}-{name}"

    def create(self, *names: str, partitions: int = 2) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker})
        for name in names:
            create_topic(admin, self.topic(name), partitions=partitions, config={}, timeout_s=60, say=print)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of Faust's or ours, to its end."""
        return subprocess.run(
            [sys.executable, *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    @property
    def commands(self) -> list[tuple[str, ...]]:
        """The three ways to start a worker, as arguments of Python."""
        worker = ("worker", "-l", "info")
        return [
            (str(PROGRAMS / f"{self.name}.py"), *worker),
            ("-m", "faust", "-A", self.name, *worker),
            ("-m", "kafka_ratchet", "worker", "--faust", f"{self.name}:app"),
        ]

    def start(self, crash_at: str | None = None, command: Sequence[str] = (), state: str = "state") -> None:
        """command: one of `commands`."""
        self.port = free_port()
        wanted = command or self.commands[0]
        planned = {"WEB_PORT": str(self.port), "APP_DATADIR": str(self.folder / state)}
        if crash_at:
            planned["TRANSPORT_CRASH_AT"] = crash_at
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *wanted],
                env={**self.environment, **planned},
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    def text(self) -> str:
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"{self.name} ended by itself:\n{self.text()[-4000:]}"
            assert time.monotonic() < deadline, f"{self.name}: {what} did not come:\n{self.text()[-4000:]}"
            time.sleep(0.1)

    def wait_for_crash(self) -> None:
        """A worker that dies at a named point. The group would wait for its session to time out."""
        assert self.process.wait(PATIENCE_S) == -signal.SIGKILL, self.text()[-4000:]
        asyncio.run(leave_group(self.broker, self.id, "ratchet"))

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.wait_for_crash()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            assert self._process.wait(PATIENCE_S) == 0, self.text()[-3000:]

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(30)

    def publish(self, name: str, rows: Iterable[Any], timestamps: Sequence[int] | None = None) -> None:
        """rows: (key, value), or values; JSON."""
        for number, row in enumerate(rows):
            key, value = row if isinstance(row, tuple) else (None, row)
            self._producer.produce(
                self.topic(name),
                key=None if key is None else str(key).encode(),
                value=json.dumps(value).encode(),
                timestamp=timestamps[number] if timestamps else 0,
            )
            self._producer.poll(0)
        assert self._producer.flush(60) == 0

    def read(self, name: str) -> list[tuple[Any, Any]]:
        """Keys and values of a topic that are committed, partition by partition."""
        found = read_all(self.broker, self.topic(name))
        return [
            (_decoded(message.key()), _decoded(message.value()))
            for _, messages in sorted(found.items())
            for message in messages
        ]

    @property
    def config(self) -> Path:
        """Settings file that the worker has written for commands."""
        return max(self.folder.glob("*/ratchet/ratchet.toml"), key=lambda path: path.stat().st_mtime)

    def command(self, *arguments: str) -> Any:
        """Return a command's JSON."""
        ran = self.run("-m", "kafka_ratchet", *arguments, "--config", str(self.config), "--json")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return json.loads(ran.stdout.splitlines()[-1])

    def table(self, name: str) -> dict[Any, Any]:
        """Return the values of a table by key, from `ratchet tables`."""
        found = self.command("tables", name, "--limit", "500")
        assert found["next"] is None
        return {_hashable(entry["key"]): value["value"] for entry in found["entries"] for value in entry["values"]}

    def wait_until_read(self, workers: int = 1) -> None:
        """Wait until every stream, also an internal one, is read to its end by that many workers."""

        def is_read() -> bool:
            try:
                streams = self.command("tables")["streams"]
            except (AssertionError, ValueError):  # it has not started yet
                return False
            partitions = [partition for stream in streams for partition in stream["partitions"]]
            return len({partition["worker"] for partition in partitions}) >= workers and all(
                partition["state"] == "running" and partition["lag"] == 0 for partition in partitions
            )

        self.wait_for(lambda: is_read() and is_read(), "the end of the inputs")

    def position(self, name: str) -> int:
        return Site(self.folder, self.broker, self.id, "").position(self.topic(name))

    def page(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return json.load(answer)


def _hashable(key: Any) -> Any:
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


def _decoded(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return json.loads(data)
    except ValueError:
        return data.decode()
