"""Subjects: the measured programs. Each is a process that reads one topic and writes another.

A subject gets one argument, JSON with the fields of `Task`. There are three tasks:

- Deduplicate by sequence: forward each record with a sequence above the last one of its key (header ratchet-sequence,
  8 bytes, big-endian). Key, value, headers and timestamp stay the same; the partition is by murmur2 of the key.
- Deduplicate by id: forward the first record of each key, and remember the key for `ids.REMEMBERED_S`.
- Keep totals: for each order, write the sum so far of the amounts of its user, who is the record's key.

A subject commits its input offsets to the group `group`, prints a line with FIRST at its first records, and ends at
SIGTERM.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from bench import ids, load, totals
from bench.load import PARTITIONS
from kafka_ratchet.errors import BenchFailed

ROOT: Final = Path(__file__).parents[1]
FIRST: Final = "first records"
NO_MORE: Final[Mapping[str, int | str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Task:
    """Task of a subject.

    Attributes:
        bootstrap: host:port of Kafka.
        input: topic to read.
        output: topic to write, with as many partitions as the input.
        group: consumer group, or application id.
        folder: folder of this subject alone, for its state.
        commit_ms: commit interval, in ms.
        partitions: partition count of input and output.
        options: options of this subject, such as `processes` for a worker.
    """

    bootstrap: str
    input: str
    output: str
    group: str
    folder: str
    commit_ms: int
    partitions: int = PARTITIONS
    options: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> str:
        """Return the task as JSON, the only argument of a subject."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Subject:
    """Measured program.

    Attributes:
        what: description in one line, for the table.
        command: function that returns the command for a task; it may first compile the program or fetch its jars.
        started: text that the program prints at its first records.
        exact: True: it promises exactly once, so that duplicates and losses are errors. False: it promises less.
        counted: True: its progress is read from the group's committed offsets. False: its output records are counted.
        program: name of its task; only subjects with the same task are compared.
        is_right: function that returns True for a right output.
        most: maximum number of records to give it, since a slow program would take more time than all others together.
    """

    what: str
    command: Callable[[Task], list[str]]
    started: str = FIRST
    exact: bool = True
    counted: bool = True
    program: Literal["deduplicate", "ids", "totals"] = "deduplicate"
    is_right: Callable[[str, str, Any], bool] = load.is_right
    most: int | None = None


def worker_settings(
    task: Task,
    identity: str = "key",
    sequence: str = "header:ratchet-sequence",
    more: Mapping[str, int | str] = NO_MORE,
) -> Path:
    """Write the settings file of a worker for a task, and return its path.

    more: further settings of the stream; OUTPUT in a value stands for the output topic.
    """
    folder = Path(task.folder)
    config = folder / "ratchet.toml"
    config.write_text(
        f"""
app = "{task.group}"
bootstrap = "{task.bootstrap}"
commit_interval_ms = {task.commit_ms}
state_folder = "{folder / "state"}"

[streams.events]
input = "{task.input}"
output = "{task.output}"
dead_letters = "{task.output}.dead"
identity = "{identity}"
sequence = "{sequence}"
"""
        + "".join(f"{name} = {json.dumps(value).replace('OUTPUT', task.output)}\n" for name, value in more.items()),
        "utf-8",
    )
    return config


def _worker(identity: str, sequence: str, program: str | None = None, **more: int | str) -> Callable[[Task], list[str]]:
    def command(task: Task) -> list[str]:
        config = str(worker_settings(task, identity, sequence, more))
        agents = [] if program is None else ["--app", f"bench.peers.{program}:app"]
        processes = [f"--processes={task.options['processes']}"] if "processes" in task.options else []
        return [sys.executable, "-m", "kafka_ratchet", "worker", "--config", config, *processes, *agents]

    return command


def _totals(what: str, command: Callable[[Task], list[str]], started: str = FIRST, **more: Any) -> Subject:
    return Subject(what, command, started, program="totals", **{"is_right": totals.EVERY, **more})


def _ids(what: str, command: Callable[[Task], list[str]], started: str = FIRST, **more: Any) -> Subject:
    return Subject(what, command, started, program="ids", is_right=ids.is_right, **more)


def _module(name: str, **options: Any) -> Callable[[Task], list[str]]:
    def command(task: Task) -> list[str]:
        told = Task(**{**asdict(task), "options": {**task.options, **options}})
        return [sys.executable, "-m", f"bench.peers.{name}", told.as_json()]

    return command


def _java(build: str, **options: Any) -> Callable[[Task], list[str]]:
    def command(task: Task) -> list[str]:
        from bench import peer_programs

        told = Task(**{**asdict(task), "options": {**task.options, **options}})
        return [*getattr(peer_programs, build)(), told.as_json()]

    return command


def _other_python(build: str) -> Callable[[Task], list[str]]:
    def command(task: Task) -> list[str]:
        from bench import peer_programs

        return [*getattr(peer_programs, build)(), task.as_json()]

    return command


LANE: Final = "lane runs"
SUBJECTS: Final[dict[str, Subject]] = {
    "ratchet": Subject("Ratchet, by key", _worker("key", "header:ratchet-sequence"), LANE),
    "ratchet-two": Subject("Ratchet, by key, two workers", _module("two_workers"), LANE),
    "ratchet-producer": Subject("Ratchet, by producer", _worker("producer", "header:ratchet-sequence"), LANE),
    "ratchet-partition": Subject("Ratchet, by partition", _worker("partition", "header:bench-order"), LANE),
    "ratchet-window": Subject(
        "Ratchet, by key, late records let through within 64",
        _worker("key", "header:ratchet-sequence", reorder_window=64),
        LANE,
    ),
    "ratchet-duplicates": Subject(
        "Ratchet, by key, duplicates kept in a topic",
        _worker("key", "header:ratchet-sequence", duplicates="OUTPUT.dropped"),
        LANE,
    ),
    "ratchet-duplicates-headers": Subject(
        "the same, their keys and headers only",
        _worker("key", "header:ratchet-sequence", duplicates="OUTPUT.dropped", duplicates_keep="headers"),
        LANE,
    ),
    "ratchet-off": Subject("Ratchet without judging: forwards all", _module("forward"), LANE, exact=False),
    "kafka-streams": Subject("Kafka Streams exactly_once_v2, tuned", _java("kafka_streams", tuned=True)),
    "kafka-streams-one": Subject(
        "Kafka Streams exactly_once_v2, tuned, one thread", _java("kafka_streams", tuned=True, threads=1)
    ),
    "kafka-streams-default": Subject("Kafka Streams exactly_once_v2, defaults", _java("kafka_streams", tuned=False)),
    "flink": Subject("Flink exactly-once, state on the heap", _java("flink", rocksdb=False), counted=False),
    "flink-rocksdb": Subject("Flink exactly-once, state in RocksDB", _java("flink", rocksdb=True), counted=False),
    "quix": Subject("Quix Streams exactly-once, one process", _other_python("quix")),
    "faust": Subject("Faust at-least-once, table in memory, one process", _module("faust_agent"), exact=False),
    "spark": Subject("Spark dropDuplicates, at-least-once", _module("spark"), exact=False, counted=False),
    "loop": Subject("confluent-kafka loop, dict, transactions, state lost at a restart", _module("loop")),
    "loop-changelog": Subject("the same with a changelog", _module("loop", changelog=True)),
    "floor": Subject("raw batches in transactions, not looked at", _module("floor"), exact=False),
    "agent": _totals("Ratchet, an agent in Python", _worker("key", "header:ratchet-sequence", "totals_agent"), LANE),
    "agent-batches": _totals(
        "Ratchet, an agent over batches", _worker("key", "header:ratchet-sequence", "totals_batches"), LANE
    ),
    "kafka-streams-totals": _totals(
        "Kafka Streams aggregate, exactly_once_v2, tuned; what its cache lets out",
        _java("kafka_streams_totals", every=False),
        is_right=totals.LAST,
    ),
    "kafka-streams-totals-every": _totals(
        "Kafka Streams processor, exactly_once_v2, tuned; every total", _java("kafka_streams_totals", every=True)
    ),
    "faust-totals": _totals(
        "Faust at-least-once, table in memory, one process", _module("faust_totals"), exact=False, most=100_000
    ),
    "faust-hosted": _totals(
        "the same Faust program on Ratchet's lanes, exactly once, one process", _module("faust_totals", hosted=True)
    ),
    "ratchet-ids": _ids("Ratchet, by id", _worker("key", "none", inactive_after_s=ids.REMEMBERED_S), LANE),
    "kafka-streams-ids": _ids(
        "Kafka Streams exactly_once_v2, tuned, window store",
        _java("kafka_streams", tuned=True, remembered_s=ids.REMEMBERED_S),
    ),
    "flink-ids": _ids(
        "Flink exactly-once, state with time-to-live on the heap",
        _java("flink", rocksdb=False, remembered_s=ids.REMEMBERED_S),
        counted=False,
    ),
    "flink-rocksdb-ids": _ids(
        "Flink exactly-once, state with time-to-live in RocksDB",
        _java("flink", rocksdb=True, remembered_s=ids.REMEMBERED_S),
        counted=False,
    ),
    "quix-totals": _totals("Quix Streams exactly-once, one process", _other_python("quix_totals"), most=500_000),
}


def deduplicating(name: str) -> Subject:
    """Return the subject of this name, which must deduplicate by sequence.

    Raises:
        BenchFailed: there is no subject of that name, or it has another task.
    """
    if name not in SUBJECTS or SUBJECTS[name].program != "deduplicate":
        known = ", ".join(each for each, subject in SUBJECTS.items() if subject.program == "deduplicate")
        raise BenchFailed(f"no subject {name} that deduplicates by sequence. There are: {known}")
    return SUBJECTS[name]
