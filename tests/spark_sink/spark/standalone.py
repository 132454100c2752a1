"""A standalone Spark cluster on this machine: a master, two workers and what is submitted to it, each a process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyspark

from kafka_ratchet.app.local.jars import spark_jars
from kafka_ratchet.app.local.java import find_java
from kafka_ratchet.spark_sink.spark.package import SCRIPT
from kafka_ratchet.spark_sink.spark.versions import installed_release

SPARK_HOME = Path(pyspark.__file__).parent

HOSTS = ("127.0.0.1", "localhost")
"""A worker each. Two names of one machine, because Spark starts no speculative attempt on the host of the first."""

PATIENCE_S = 240.0
"""What has not happened by then will not; on an idle machine it takes seconds."""

Found = TypeVar("Found")


def wait_for(what: str, look: Callable[[], Found | None]) -> Found:
    """What `look` finds, as soon as it finds something."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S:.0f} s"
        time.sleep(0.05)
    return found


def environment() -> dict[str, str]:
    """Of a program of Spark's distribution."""
    return {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_SCALA_VERSION": installed_release().scala,  # as bin/spark-class would find out, with a JVM of its own
        "PYSPARK_PYTHON": sys.executable,  # and not the `python3` that the path has, which may lack pyarrow
        "SPARK_LOCAL_IP": HOSTS[0],  # where web pages and services listen, all on free ports
    }


class Cluster:
    """One core per worker, so that a job of two tasks has one in each executor; `run_cluster` starts it."""

    def __init__(self, folder: Path, java_options: str) -> None:
        self.folder = folder
        self._environment = {**environment(), "JAVA_TOOL_OPTIONS": java_options}
        self._running = ExitStack()
        self.workers: list[int] = []
        self.url = ""

    def start(self) -> None:
        self._daemon("master", "master.Master", "--host", HOSTS[0])
        log = self.folder / "master.log"
        started = wait_for("the master starts", lambda: re.search(r"Spark master at (spark://\S+)", log.read_text()))
        self.url = started[1]
        for number, host in enumerate(HOSTS):
            work = ["--host", host, "--cores", "1", "--memory", "600m", "--work-dir", str(self.work(number))]
            self.workers.append(self._daemon(f"worker-{number}", "worker.Worker", *work, self.url))

    def stop(self) -> None:
        self._running.close()

    def work(self, number: int) -> Path:
        """The folder of a worker, with one of each application, with one of each executor."""
        return self.folder / f"work-{number}"

    def executors(self, number: int) -> list[int]:
        """Process ids of the executors that a worker has running."""
        stats = (_stat(path) for path in Path("/proc").glob("[0-9]*"))
        return [pid for pid, parent in filter(None, stats) if parent == self.workers[number]]

    @contextmanager
    def submit(self, zip_file: Path, arguments: list[str], *more: str, **environment: str) -> Iterator[Driver]:
        """spark-submit, as a user would: the driver is a process of this machine, and gone at the end.

        Args:
            zip_file: what `write_package` wrote.
            arguments: of the job.
            more: options of spark-submit.
            environment: variables of the driver.
        """
        settings = {
            "spark.driver.host": HOSTS[0],
            "spark.driver.bindAddress": HOSTS[0],
            "spark.ui.enabled": "false",
            "spark.pyspark.python": sys.executable,
            "spark.executor.memory": "512m",
            # A second attempt of what takes longer than the rest, as early as Spark can be made to start one.
            "spark.speculation": "true",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.multiplier": "1.1",
        }
        words = [str(SPARK_HOME / "bin" / "spark-submit"), f"--master={self.url}", "--deploy-mode=client", *more]
        words += [f"--jars={','.join(map(str, spark_jars()))}"]
        words += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        words += [str(zip_file.with_name(SCRIPT)), *arguments]
        driver = Driver(self._start(words, "driver", environment), self.folder)
        try:
            yield driver
        finally:
            kill_group(driver.process)

    def _start(self, words: list[str], name: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        """Into files, because nobody reads a pipe while the test waits; outside the checkout."""
        with (self.folder / f"{name}.out").open("wb") as out, (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                words,
                env={**self._environment, **environment},
                cwd=self.folder,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )

    def _daemon(self, name: str, main: str, *arguments: str) -> int:
        words = [str(find_java()), "-Xmx200m", "-cp", str(SPARK_HOME / "jars" / "*")]
        words += [f"org.apache.spark.deploy.{main}", "--port", "0", "--webui-port", "0", *arguments]
        process = self._start(words, name, {})
        self._running.callback(kill_group, process)
        return process.pid


@dataclass(frozen=True)
class Driver:
    """A job that was submitted."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def result(self) -> Any:
        """Wait for the end; what the job said in JSON, and what it logged."""
        code = self.process.wait(PATIENCE_S)
        log = (self.folder / "driver.log").read_text("utf-8", "replace")
        assert code == 0, log[-10_000:]
        return json.loads((self.folder / "driver.out").read_text().splitlines()[-1]), log


@contextmanager
def run_cluster(folder: Path, java_options: str) -> Iterator[Cluster]:
    """A running cluster; all of its processes are gone at the end."""
    cluster = Cluster(folder, java_options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _stat(process: Path) -> tuple[int, int] | None:
    """Process and parent; None where it has ended meanwhile."""
    try:
        # The name in parentheses may have blanks in it; state and parent come after it.
        return int(process.name), int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
