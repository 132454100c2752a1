"""Worker of Kafka Connect with a sink into PostgreSQL, which keeps no offsets in its table.

No JDBC sink's jar could be had from Maven Central; `InsertSink.java` inserts as they do without a primary key.

After raising a version:

    python -m tests.app.compare.connect_worker > connect.lock.new && mv connect.lock.new tests/app/compare/connect.lock
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console

from kafka_ratchet.app.local.jars import KAFKA_VERSION, JarSet, lock_lines, read_lock, resolve
from kafka_ratchet.app.local.java import SHORT_LIVED, find_java

LOCK_FILE: Final = Path(__file__).with_name("connect.lock")
SINK: Final = Path(__file__).with_name("InsertSink.java")
CONNECT: Final = JarSet(
    "connect",
    (
        f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-json:{KAFKA_VERSION}",
        "org.postgresql:postgresql:42.7.8",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
    ),
)
LEAST_SESSION_MS: Final = 6000
"""Shortest session that a broker allows by default. A killed worker keeps its partitions for as long."""


class ConnectWorker:
    """Standalone worker with one connector; its output goes to a file of its folder.

    Args:
        folder: for classes, settings and output.
        bootstrap: Kafka's address.
        connector: settings of the connector.
        flush_ms: time between two commits of offsets.
    """

    def __init__(self, folder: Path, bootstrap: str, connector: Mapping[str, str], flush_ms: int) -> None:
        jars = ":".join(map(str, resolve(CONNECT, lock=read_lock(CONNECT.name, LOCK_FILE))))
        classes = folder / "classes"
        if not classes.exists():
            javac = shutil.which("javac") or str(find_java().with_name("javac"))
            command = [javac, "-Xlint:all", "-Werror", "-cp", jars, "-d", str(classes), str(SINK)]
            subprocess.run(command, check=True, timeout=120)
        json = "org.apache.kafka.connect.json.JsonConverter"
        worker = {
            "bootstrap.servers": bootstrap,
            "listeners": "http://127.0.0.1:0",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": json,
            "value.converter.schemas.enable": "false",
            "offset.storage.file.filename": str(folder / "offsets"),
            "offset.flush.interval.ms": str(flush_ms),
            "consumer.session.timeout.ms": str(LEAST_SESSION_MS),
            "consumer.heartbeat.interval.ms": "1000",
            "consumer.auto.offset.reset": "earliest",
        }
        for name, settings in (("worker", worker), ("connector", connector)):
            lines = (f"{key}={value}\n" for key, value in settings.items())
            (folder / f"{name}.properties").write_text("".join(lines))
        files = [str(folder / f"{name}.properties") for name in ("worker", "connector")]
        self.log = folder / "connect.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(str(find_java()), *SHORT_LIVED.split(), "-Xmx256m", "-cp", f"{classes}:{jars}"),
                    *("org.apache.kafka.connect.cli.ConnectStandalone", *files),
                ],
                stdout=log,
                stderr=log,
            )

    @property
    def is_running(self) -> bool:
        """Return whether it has not ended."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Let it commit its offsets and end."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it without a word."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        self._process.send_signal(number)
        try:
            self._process.wait(90)
        finally:
            self._process.kill()
            self._process.wait()


@contextmanager
def connect_worker(
    folder: Path, bootstrap: str, connector: Mapping[str, str], flush_ms: int = 1000
) -> Iterator[ConnectWorker]:
    """Start a worker, and end it with the context."""
    worker = ConnectWorker(folder, bootstrap, connector, flush_ms)
    try:
        yield worker
    finally:
        worker.stop()


if __name__ == "__main__":
    print(
        "# SHA-256 of every jar of Kafka Connect. Written by `python -m tests.app.compare.connect_worker`; do not edit."
    )
    print(*lock_lines(CONNECT, Console(stderr=True)), sep="\n")
