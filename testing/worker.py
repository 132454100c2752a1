"""Program in real worker processes on a real Kafka, for its tests."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aiokafka.partitioner import murmur2
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient

from kafka_ratchet.agents.program import App
from kafka_ratchet.app.local.child_process import ChildProcess
from kafka_ratchet.app.names import repartition_topic
from kafka_ratchet.app.worker.program import load_program
from kafka_ratchet.errors import FaultRunFailed, SettingsError
from kafka_ratchet.producers import create_topic
from kafka_ratchet.rule.identity import PRODUCER_HEADER, SEQUENCE_HEADER
from kafka_ratchet.testing.program_run import Output, Record, pair, value_of
from kafka_ratchet.testing.topics import (
    PATIENCE_S,
    committed_offsets,
    ends,
    leave_group,
    read_committed,
    table_contents,
)
from kafka_ratchet.topic_log.reading import readable_headers
from kafka_ratchet.transport.transactions.crash_points import AGENT_POINTS, POINTS, VARIABLE

CRASH_POINTS: Final = (*POINTS, *AGENT_POINTS)
"""Crash points of `Worker.start`; `kafka_ratchet.transport.transactions.crash_points` describes each.

POINT:N kills the worker when it reaches the point for the Nth time.
"""
KILLED: Final = 128 + signal.SIGKILL
LAST: Final = 3000
"""Maximum characters of a worker's log that a failure shows."""
QUICK: Final = {"session_timeout_ms": 6000, "commit_interval_ms": 20}


class Worker:
    """Program in a worker process, with an app name and topics of its own.

        worker = Worker("shop:app", "127.0.0.1:9092", folder)
        worker.start()
        worker.publish("orders", [("ann", {"user": "ann", "amount": 3})], times=2)
        worker.wait_until_read()
        worker.stop()
        assert worker.tables() == [{"totals": {"ann": 3}}]  # by partition

    Attributes:
        app: name of the application.
        program: the App, for a Faust program the one that hosts it; None: the worker only forwards records.
        streams: names of the streams.
        partitions: number of partitions of each input.
        published: all records sent to the inputs, by stream, each once.
        log: the worker's log file.
        state: folder of the worker's local store.
    """

    _option = "--app"

    def __init__(
        self,
        program: str | None,
        bootstrap: str,
        folder: Path,
        *,
        partitions: int = 1,
        settings: Mapping[str, Any] | None = None,
        name: str = "worker",
        beside: Worker | None = None,
    ) -> None:
        """Prepare the worker without starting it.

        Args:
            program: MODULE:NAME of an App that this process can import; None: no program, with `beside`.
            bootstrap: host:port of a Kafka.
            folder: folder for the settings file, the log and the local store.
            partitions: number of partitions of each input.
            settings: settings as in ratchet.toml, which replace those of the test kit.
            name: name of the process, for its files.
            beside: another worker, to share its app and topics.

        Raises:
            SettingsError: there is no such program.
        """
        self._argument, self.bootstrap, self.name = program, bootstrap, name
        self.partitions: int = beside.partitions if beside else partitions
        self.program: App | None = self._load(program) if program else None
        self.app: str = beside.app if beside else self._name_app(program or name)
        self.streams: list[str] = beside.streams if beside else list(self.program.streams if self.program else ())
        self.log, self.state = folder / f"{name}.log", folder / f"{name}-state"
        self.published: dict[str, list[Record]] = {}
        self._folder = folder
        self._process: ChildProcess | None = None
        self._log_start = 0
        chosen = self._settings(settings or {})
        self._inputs, self._steps = self._topics(chosen)
        """Topics of the published streams, and those of internal streams."""
        self.published |= {name: [] for name in self._inputs}
        self._config = folder / f"{name}.toml"
        self._config.write_text(_toml(chosen), "utf-8")
        if not beside:
            self._create_inputs()
        self._sent_before = {place: end for topic in self.sent_topics for place, end in ends(bootstrap, topic).items()}
        """End offsets of the topics that agents send to, which other tests may use too."""

    @classmethod
    def check_program(cls, program: str, partitions: int) -> None:
        """Refuse a program if `run` and a worker may give different results.

        Raises:
            SettingsError: a stream has timers, or `partitions` is above 1 and the program has internal streams.
        """
        for name, stream in load_program(program).streams.items():
            if stream.timers:
                raise SettingsError(
                    f"assert_once: stream {name} has timers, which `run` cannot call when the worker does. Test it "
                    "with `Worker` alone"
                )
            if stream.topic is not None and partitions > 1:
                raise mixes(name)

    def _load(self, program: str) -> App:
        return load_program(program)

    def _name_app(self, text: str) -> str:
        return f"{re.sub('[^A-Za-z0-9-]+', '-', text)}-{uuid.uuid4().hex[:8]}"

    def _topics(self, chosen: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
        """Return the topics of the published streams, and those of internal streams, which the worker creates."""
        inputs = chosen["streams"]
        return inputs, {name: self._internal(name) for name in self.streams if name not in inputs}

    def _settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        mine: dict[str, Any] = {
            "app": self.app,
            "bootstrap": self.bootstrap,
            **QUICK,
            "kafka": {"client.id": f"{self.app}.{self.name}"},
            "streams": {
                stream: {
                    "input": f"{self.app}.{stream}.in",
                    "output": f"{self.app}.{stream}.out",
                    "dead_letters": f"{self.app}.{stream}.dead",
                    "partitions": self.partitions,
                }
                for stream in self.streams
                if self.program is None or self.program.streams[stream].topic is None
            },
        }
        return merged(mine, given)

    def _internal(self, stream: str) -> dict[str, Any]:
        output = f"{self.app}-{stream}"
        return {
            "input": repartition_topic(self.app, stream),
            "output": output,
            "dead_letters": f"{output}-dead-letters",
        }

    def _create_inputs(self) -> None:
        self._create(topics["input"] for topics in self._inputs.values())

    def _create(self, topics: Iterable[str]) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for topic in topics:
            said = list[str]()
            create_topic(admin, topic, partitions=self.partitions, timeout_s=PATIENCE_S, say=said.append)

    # Process.

    def start(self, crash_at: str | None = None) -> None:
        """Start the process; `wait_for` and `wait_until_read` wait until it runs.

        Args:
            crash_at: one of CRASH_POINTS, where the process is killed by SIGKILL; None: nowhere.
        """
        arguments = ["worker", "--config", str(self._config), "--state-folder", str(self.state)]
        environment: dict[str, str | None] = {name: None for name in os.environ if name.startswith("RATCHET_")}
        environment |= {VARIABLE: crash_at, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment |= self._environment()
        program = [self._option, self._argument] if self._argument else []
        self._log_start = len(self.text())
        self._process = ChildProcess(self._folder, self.name, *arguments, *program, environment=environment)

    def _environment(self) -> dict[str, str]:
        """Return further environment variables of the process."""
        return {}

    @property
    def process(self) -> ChildProcess:
        """Return the process started last.

        Raises:
            FaultRunFailed: no process was started.
        """
        if self._process is None:
            raise FaultRunFailed(f"{self.name} was not started")
        return self._process

    def text(self) -> str:
        """Return the worker's log."""
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    def wait_for(self, what: str | Callable[[], bool]) -> None:
        """Wait until the worker's log since its start contains a text, or until a function returns True.

        Raises:
            FaultRunFailed: the worker ended first, or the time limit was exceeded.
        """
        there = what if callable(what) else lambda: what in self.text()[self._log_start :]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            is_running = self.process.is_running  # read first: its last messages come before its end
            if there():
                return
            if not is_running:
                raise FaultRunFailed(f"{self.name} ended before {what}:\n{self.text()[-LAST:]}")
            self._before(deadline, str(what))

    def wait_until_read(self) -> None:
        """Wait until all records in the inputs are processed and committed.

        Raises:
            FaultRunFailed: as `wait_for`.
        """
        self.wait_for(self.has_read)

    def has_read(self) -> bool:
        """Return True if all records in the inputs and internal streams are processed and committed."""
        all_ends = [
            ends(self.bootstrap, topics["input"]) for name, topics in self._inputs.items() if name not in self._steps
        ]
        ended = {place: end for topic in all_ends for place, end in topic.items()}
        if committed_offsets(self.bootstrap, self.app, ended) != ended:
            return False
        for topics in self._steps.values():
            records = read_committed(self.bootstrap, topics["input"])
            places = {(topics["input"], number): found[-1].offset() for number, found in records.items() if found}
            read = committed_offsets(self.bootstrap, self.app, places)
            # Markers end the transactions: the committed offset may lie after or before them.
            if any(read.get(place, 0) <= last for place, last in places.items()):
                return False
        return True

    def wait_for_crash(self) -> None:
        """Wait until the worker has died at the crash point of `start`, and remove it from its group.

        Raises:
            FaultRunFailed: the worker ended in another way, or did not reach the point.
        """
        deadline = time.monotonic() + PATIENCE_S
        while self.process.is_running:
            self._before(deadline, "the crash")
        if self.process.wait() != KILLED:
            raise FaultRunFailed(f"{self.name} ended and was not killed:\n{self.text()[-LAST:]}")
        self._leave()

    def _before(self, deadline: float, what: str) -> None:
        if time.monotonic() > deadline:
            raise FaultRunFailed(f"{self.name}: waited {PATIENCE_S:g} s in vain for {what}:\n{self.text()[-LAST:]}")
        time.sleep(0.05)

    def kill(self) -> None:
        """Kill the worker with SIGKILL, and remove it from its group."""
        self.process.kill()
        self._leave()

    def _leave(self) -> None:
        # Kafka would otherwise wait for its session to time out, with its partitions unassigned.
        asyncio.run(leave_group(self.bootstrap, self.app, f"{self.app}.{self.name}"))

    def stop(self) -> None:
        """Let the worker commit and end.

        Raises:
            FaultRunFailed: the worker ended with an error.
        """
        if (code := self.process.stop()) != 0:
            raise FaultRunFailed(f"{self.name} ended with code {code}:\n{self.text()[-LAST:]}")

    def lose_store(self) -> None:
        """Remove the local store, as on a new machine; the worker must not run."""
        shutil.rmtree(self.state, ignore_errors=True)

    def close(self) -> None:
        """Kill the worker's process if one runs."""
        if self._process is not None and self._process.is_running:
            self._process.kill()

    # Inputs and outputs.

    def repeats(self, stream: str) -> int:
        """Return how often `assert_once` sends each record: twice, because the streams are deduplicated."""
        return 2

    def publish(self, stream: str, rows: Sequence[Any], *, times: int = 1) -> None:
        """Send records to a stream's input, each with the next sequence.

        Args:
            stream: name of the stream.
            rows: records, as for `run`; those with a key go to the partition that Kafka's clients choose, the others to
                all partitions in turn.
            times: how often to send each record with the same sequence, like a client that missed the answer.
        """
        producer, failures = Producer({"bootstrap.servers": self.bootstrap}), list[Any]()
        now = time.time_ns() // 1_000_000
        for row in rows:
            key, value = pair(row)
            timestamp = row.timestamp if isinstance(row, Record) and row.timestamp is not None else now
            number = len(self.published[stream])
            headers = [(PRODUCER_HEADER, b"testing"), (SEQUENCE_HEADER, str(number).encode())]
            for _ in range(times):
                producer.produce(
                    self._inputs[stream]["input"],
                    value,
                    key,
                    partition_for(row, number, self.partitions),
                    on_delivery=lambda error, _: failures.append(error) if error else None,
                    timestamp=timestamp,
                    headers=headers,
                )
                producer.poll(0)
            self.published[stream].append(Record(value, key, timestamp))
        if producer.flush(PATIENCE_S) or failures:
            raise FaultRunFailed(
                f"stream {stream}: Kafka did not accept all records: {failures[0] if failures else 'no answer in time'}"
            )

    def outputs(self) -> list[list[Output]]:
        """Return committed outputs and dead letters by partition, topic after topic and in offset order."""
        found: list[list[Output]] = [[] for _ in range(self.partitions)]
        for stream, topics in (self._inputs | self._steps).items():
            for topic, name in ((topics["output"], stream), (topics["dead_letters"], f"{stream}-dead-letters")):
                for number, outputs in self.committed(topic, name).items():
                    found[number] += outputs
        return found

    def committed(self, topic: str, name: str) -> dict[int, list[Output]]:
        """Return a topic's committed records by partition.

        Args:
            topic: name of the topic.
            name: name of the topic in the outputs.
        """
        found = read_committed(self.bootstrap, topic)
        return {number: [_output(name, each) for each in messages] for number, messages in found.items()}

    @property
    def sent_topics(self) -> list[str]:
        """Return the topics that agents send to, without those that an agent of the program reads."""
        return list(self.program.topics) if self.program else []

    def sent(self) -> list[Output]:
        """Return the records that agents sent and committed, partition by partition."""
        return [
            _output(topic, each)
            for topic in self.sent_topics
            for messages in read_committed(self.bootstrap, topic, self._sent_before).values()
            for each in messages
        ]

    def tables(self) -> list[dict[str, dict[Any, Any]]]:
        """Return the committed contents of each table, by partition, read from the changelogs."""
        found: list[dict[str, dict[Any, Any]]] = [{} for _ in range(self.partitions)]
        for stream in self.streams:
            tables = self.program.tables_of(stream) if self.program else []
            for number, messages in read_committed(self.bootstrap, f"{self.app}-changelog.{stream}").items():
                found[number] |= table_contents(tables, messages)
        return found


def _output(topic: str, message: Message) -> Output:
    return Output(topic, message.key(), value_of(message.value()), tuple(readable_headers(message)))


def mixes(stream: str) -> SettingsError:
    """Return the error about a stream that mixes events of several partitions in any order."""
    return SettingsError(
        f"assert_once: stream {stream} gets events from all partitions, in any order. Give partitions=1"
    )


def partition_for(row: Any, number: int, partitions: int) -> int:
    """Return the partition of a record.

    Args:
        row: the record, as for `run`.
        number: number of the record in its stream.
        partitions: number of partitions.
    """
    key, _ = pair(row)
    return number % partitions if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions


def merged(mine: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Merge given settings into other settings, section by section; a given setting wins."""
    both = dict(mine)
    for name, value in given.items():
        before = both.get(name)
        both[name] = merged(before, value) if isinstance(before, dict) and isinstance(value, Mapping) else value
    return both


def _toml(settings: Mapping[str, Any], section: str = "") -> str:
    """Return settings as TOML text; JSON writes names, texts, numbers and lists in the same way."""
    lines = [f"[{section}]"] if section else []
    lines += [f"{json.dumps(name)} = {json.dumps(v)}" for name, v in settings.items() if not isinstance(v, Mapping)]
    for name, value in settings.items():
        if isinstance(value, Mapping):
            lines.append(_toml(value, ".".join(filter(None, [section, json.dumps(name)]))))
    return "\n".join([*lines, ""])
