"""Apache Kafka broker as a child process (KRaft, no ZooKeeper)."""

from __future__ import annotations

import base64
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

import structlog
from rich.console import Console

from kafka_ratchet.app.local import supervisor
from kafka_ratchet.app.local.broker_folder import broker_folder
from kafka_ratchet.app.local.connectivity import Reachability
from kafka_ratchet.app.local.jars import kafka_jars
from kafka_ratchet.app.local.java import SHORT_LIVED, find_java
from kafka_ratchet.app.local.ports import free_port, is_free
from kafka_ratchet.errors import SetupError

log = structlog.get_logger(__name__)

START_LIMIT_S = 120.0
"""Maximum seconds for a broker's start: it usually takes two to four, eight after a crash, and more under load."""

STOP_LIMIT_S = supervisor.GRACE_S

HEAP = ("-Xms256m", "-Xmx1g")

CONFIG_FILES = ("server.properties", "log4j2.properties")
"""Names of the files with Kafka's settings and those of its log, which each start writes."""

LAST_LINES, LINES_SHOWN = 500, 12
"""Two numbers of lines: those to read from the end of an ended broker's log, and those to show in an error.

A shutdown alone writes 300 lines, so more lines must be read to find the reason of the end.
"""
_ERROR = re.compile(r"^\[[^]]*\] (ERROR|FATAL) |^Caused by: ")

_LOG_CONFIG = """\
# Kafka 4 logs through Log4j 2.
status = error
# Else Log4j ends beside Kafka at SIGTERM, and whether Kafka's last words are written is chance.
shutdownHook = disable
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = logs/server.log
appender.file.filePattern = logs/server.%i.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = [%d] %p %m (%c)%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 20MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 4
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
"""


class EmbeddedBroker:
    """Kafka node, both broker and controller, that listens on 127.0.0.1 only.

        with EmbeddedBroker() as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap})

    It can be stopped or killed, and started again with the same folder, port and topics. It ends when the process that
    started it ends (see `kafka_ratchet.app.local.supervisor`).

    Args:
        folder: folder for topics, settings and logs; None: a temporary folder, which is removed at the end.
        port: port of the broker; None: the port that this folder's broker had last if it is free, else any free port.
        node_id: id of this node in a cluster of several.
        voters: host:port of every node's controller by node id, equal for all nodes; None: a cluster of one node.
        cluster_id: id of the cluster, equal for all nodes; None: a random one.
        options: broker settings (server.properties) that replace the ones chosen here.
        console: console for the progress of fetching jars.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        port: int | None = None,
        node_id: int = 1,
        voters: Mapping[int, str] | None = None,
        cluster_id: str | None = None,
        options: Mapping[str, str] | None = None,
        console: Console | None = None,
    ) -> None:
        self._temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="ratchet-kafka-")) if folder is None else folder.resolve()
        self._port_is_given = port is not None
        self._port = port
        self._node_id = node_id
        self._voters = voters
        self._cluster_id = cluster_id or _new_cluster_id()
        self._options = dict(options or {})
        self._console = console
        self._supervisor: subprocess.Popen[str] | None = None
        self._ended_by_itself = False
        self._java_pid: int | None = None

    @property
    def bootstrap(self) -> str:
        """Return host:port for clients.

        Raises:
            SetupError: `start` was not called yet.
        """
        if self._port is None:
            raise SetupError("the broker has no port before its first start. Call start() first")
        return f"127.0.0.1:{self._port}"

    @property
    def data_folder(self) -> Path:
        """Return Kafka's log.dirs, with one folder per topic partition."""
        return self.folder / "data"

    @property
    def log_file(self) -> Path:
        """Return the path of the broker's log file."""
        return self.folder / "logs" / "server.log"

    @property
    def java_pid(self) -> int:
        """Return the id of the broker's Java process.

        Raises:
            SetupError: the broker is not running.
        """
        if self._java_pid is None:
            raise SetupError("the broker is not running. Call start() first")
        return self._java_pid

    @property
    def is_running(self) -> bool:
        """Return True while the broker's process runs."""
        return self._supervisor is not None and self._supervisor.poll() is None

    def __enter__(self) -> EmbeddedBroker:
        try:
            self.start()
        except BaseException:
            self._remove_temporary_folder()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended_by_itself = self._supervisor is not None and not self.is_running
        try:
            self.stop()
        finally:
            self._remove_temporary_folder()

    def start(self, *, wait: bool = True) -> None:
        """Start the broker, unless it runs.

        wait: True: return when the broker answers. False: return at once, so that the nodes of a cluster start
        together; call `wait_until_ready` on each node afterwards.

        Raises:
            SetupError: Java or the jars are missing, the folder or the port is in use, or the broker ends or does not
                answer within `START_LIMIT_S`.
        """
        if self.is_running:
            return
        java, jars = find_java(), kafka_jars(self._console)
        for attempt in range(3):
            self._launch(java, jars)
            if not wait:
                return
            try:
                self.wait_until_ready()
                return
            except SetupError as error:
                # Between choosing a free port and Kafka's binding it, another process may have taken it.
                if self._port_is_given or attempt == 2 or "Address already in use" not in str(error):
                    raise
                self._port = None

    def wait_until_ready(self) -> None:
        """Wait until the broker answers.

        Raises:
            SetupError: the broker ends, or does not answer within `START_LIMIT_S`.
        """
        deadline = time.monotonic() + START_LIMIT_S
        kafka = Reachability(self.bootstrap, {})
        # Another Kafka may have taken the port: its answer does not count.
        while kafka.ask() is not None or kafka.cluster_id != self._stored_cluster_id():
            if not self.is_running:
                self._ended_by_itself = True
                self.kill()  # nothing is left to kill; closes the pipes
                raise SetupError(f"the Kafka broker ended while starting.\n{self._last_words()}")
            if time.monotonic() > deadline:
                self._ended_by_itself = True
                self.kill()
                raise SetupError(
                    f"Kafka did not answer within {START_LIMIT_S:.0f} s of its start.\n{self._last_words()}"
                )
            time.sleep(0.05)

    def stop(self) -> None:
        """Shut down by SIGTERM; kill the broker if that takes longer than `STOP_LIMIT_S`."""
        if self._supervisor is not None and self.is_running:
            self._supervisor.send_signal(signal.SIGTERM)
            try:
                self._supervisor.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                log.warning("broker does not stop, killing it", folder=str(self.folder), log=str(self.log_file))
        self.kill()

    def kill(self) -> None:
        """Kill the broker by SIGKILL, like a crash, and wait for its end."""
        if self._supervisor is None:
            return
        if self.is_running:
            self._supervisor.send_signal(signal.SIGUSR1)
        self._supervisor.wait()
        for stream in (self._supervisor.stdin, self._supervisor.stdout):
            if stream is not None:
                stream.close()
        self._supervisor = self._java_pid = None

    def describe(self) -> str:
        """Return node id, address, state, and the last errors and lines of the log, as text."""
        state = "runs" if self.is_running else "has ended"
        return f"node {self._node_id} ({self.bootstrap}) {state}. {self._last_words()}"

    def _launch(self, java: Path, jars: list[Path]) -> None:
        self.kill()  # collects one that has already ended
        # Before Kafka touches the folder: it opens its metadata log before it takes a lock of its own, and a
        # running broker there dies of a second one's writes.
        with broker_folder(self.folder, STOP_LIMIT_S) as lock:
            self._launch_locked(java, jars, lock)

    def _launch_locked(self, java: Path, jars: list[Path], lock: IO[str]) -> None:
        try:
            self._refuse_foreign()
            (self.folder / "logs").mkdir(exist_ok=True)
            if self._port is None:
                self._port = self._last_port() or free_port()
            elif not is_free(self._port):
                raise SetupError(
                    f"port {self._port} of 127.0.0.1 is in use by another program. Give another port with --port, or "
                    "0 for a free one"
                )
            if not self._formatted.exists():
                self._formatting.touch()
            self._write_config()
        except OSError as error:
            raise SetupError(
                f"the broker's folder {self.folder} cannot be used: {error}. Name another folder with --folder, "
                "or in TMPDIR for a command without that option"
            ) from error
        # Paths in Kafka's settings are relative to the folder: no escaping, and the folder may be moved.
        class_path = ["-cp", ":".join(map(str, jars)), "-Dlog4j2.configurationFile=log4j2.properties"]
        self._format([str(java), *SHORT_LIVED.split(), *class_path, "kafka.tools.StorageTool"])
        tuning = (*HEAP, "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true")
        command = [str(java), *tuning, *class_path, "kafka.Kafka", "server.properties"]
        with (self.folder / "logs" / "kafka.out").open("w") as output:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", supervisor.__file__, *command],
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                # Ctrl-C goes to the owner alone, which then stops its processes in the right order.
                start_new_session=True,
                # From here on the supervisor holds the lock: it ends after its broker, even if its owner is killed.
                pass_fds=(lock.fileno(),),
            )
        assert self._supervisor.stdout is not None  # noqa: S101 - asked for above
        pid = self._supervisor.stdout.readline().strip()
        if not pid:
            raise SetupError(f"the Kafka broker could not be started.\n{self._last_words()}")
        self._java_pid = int(pid)

    def _stored_cluster_id(self) -> str | None:
        """Return the cluster id that the data folder was formatted with."""
        try:
            text = (self.data_folder / "meta.properties").read_text("utf-8", errors="replace")
        except OSError:
            return None
        match = re.search(r"^cluster\.id=(\S+)$", text, re.MULTILINE)
        return match[1] if match else None

    @property
    def _formatted(self) -> Path:
        """Return the path of the marker of a folder that this class has formatted."""
        return self.folder / "formatted"

    @property
    def _formatting(self) -> Path:
        """Return the path of the marker of a folder that this class has begun to format."""
        return self.folder / "formatting"

    def _refuse_foreign(self) -> None:
        """Refuse a folder that holds data or settings of another program.

        Raises:
            SetupError: the folder holds them.
        """
        if self._formatted.exists() or self._formatting.exists():
            return
        found = [name for name in CONFIG_FILES if (self.folder / name).exists()]
        if self.data_folder.exists() and not _is_empty(self.data_folder):
            found.append("data")
        if found:
            raise SetupError(
                f"the broker's folder {self.folder} already has {' and '.join(found)}, and no embedded broker has "
                "formatted it. Nothing was changed. Name a new or empty folder with --folder"
            )

    def _write_config(self) -> None:
        voters = dict(self._voters) if self._voters else {self._node_id: f"127.0.0.1:{free_port()}"}
        settings = {
            **node_settings(self._node_id, voters),
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{voters[self._node_id]}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": "data",
            **self._options,
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        for name, content in zip(CONFIG_FILES, (text, _LOG_CONFIG), strict=True):
            (self.folder / name).write_text(content, "ascii")

    def _format(self, storage_tool: list[str]) -> None:
        """Format the data folder with the cluster id, unless it is formatted; repeat an interrupted formatting."""
        if self._formatted.exists():
            self._formatting.unlink(missing_ok=True)
            return
        # Only data of an interrupted formatting: `_refuse_foreign` has refused any other.
        shutil.rmtree(self.data_folder, ignore_errors=True)
        command = [*storage_tool, "format", "--config", "server.properties", "--cluster-id", self._cluster_id]
        done = subprocess.run(
            command, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
        )
        if done.returncode != 0:
            raise SetupError(
                f"the broker's folder {self.folder} cannot be formatted. Kafka's kafka-storage printed:\n"
                f"{(done.stderr or done.stdout).strip()[-2000:]}"
            )
        self._formatted.touch()
        self._formatting.unlink()

    def _last_port(self) -> int | None:
        """Return the port that this folder's broker had last, if the port is free."""
        try:
            text = (self.folder / "server.properties").read_text("ascii")
        except (FileNotFoundError, UnicodeDecodeError):
            return None
        match = re.search(r"^listeners=PLAINTEXT://127\.0\.0\.1:(\d{1,5}),", text, re.MULTILINE)
        return int(match[1]) if match and is_free(int(match[1])) else None

    def _last_words(self) -> str:
        said: list[str] = []
        for path in (self.folder / "logs" / "kafka.out", self.log_file):
            if path.exists():
                lines = path.read_text("utf-8", errors="replace").splitlines()[-LAST_LINES:]
                # The cause of the failure stands before all lines of the shutdown.
                errors = [line for line in lines[:-LINES_SHOWN] if _ERROR.search(line)]
                said += errors[-LINES_SHOWN:] + lines[-LINES_SHOWN:]
        text = "\n".join(f"  {line[:400]}" for line in said)
        return f"The last errors and lines of its log ({self.log_file}):\n{text}"

    def _remove_temporary_folder(self) -> None:
        if not self._temporary:
            return
        if self._ended_by_itself:  # an error names its log
            shutil.rmtree(self.data_folder, ignore_errors=True)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


def node_settings(node_id: int, voters: Mapping[int, str]) -> dict[str, str]:
    """Return the broker settings of one node, except for addresses and folder.

    Args:
        node_id: id of this node.
        voters: host:port of every node's controller by node id.
    """
    copies = str(min(3, len(voters)))
    in_sync = str(min(2, len(voters)))
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{node}@{address}" for node, address in sorted(voters.items())),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "auto.create.topics.enable": "false",  # a mistyped topic is an error, not a new topic
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        "offsets.topic.num.partitions": "8",  # instead of 50: each is a log to create and to load
        "transaction.state.log.num.partitions": "8",
        "group.initial.rebalance.delay.ms": "0",  # instead of 3 s of waiting for more members
        "group.min.session.timeout.ms": "1000",  # instead of 6 s: lets a short session_timeout_ms be used
        # While a node's heartbeats are overdue Kafka makes no topic on it: 15 s instead of 9 s, for machines that stand
        # still for seconds (a laptop's lid, a busy host).
        "broker.session.timeout.ms": "15000",
        "broker.heartbeat.interval.ms": "500",
        "transaction.max.timeout.ms": "900000",
        "log.cleaner.dedupe.buffer.size": str(16 << 20),  # instead of 128 MiB of the heap
    }


LET_IN_AGAIN_SOON: Mapping[str, str] = {"broker.session.timeout.ms": "4000"}
"""Options that shorten the session of a broker that will be killed.

Kafka registers a restarted broker only after the old session has timed out.
"""


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and next(folder.iterdir(), None) is None


def _new_cluster_id() -> str:
    while (drawn := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass  # Kafka avoids these too: on a command line they look like an option
    return drawn
