"""Faults of a producer: it is killed, and its broker is restarted.

At the end the output must be the file, in order per key.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import NewTopic

from faults.count import Result, SequencesByIdentity, compare, records
from faults.kafka import EmbeddedKafka
from faults.programs.publisher import SENDING, KeyedLines
from kafka_ratchet.app.local.child_process import ChildProcess
from kafka_ratchet.errors import FaultRunFailed, SourceError

PARTITIONS = 4
INPUT, OUTPUT = "producer.in", "producer.out"
NAME = "under-fire"
GROUP = "faults-producer"
LIFE_S = 0.8
"""Seconds that a publisher needs for its share of the file. The run kills it before, during or shortly after
sending."""
EARLY = 0.2
"""Share of publishers that the run kills before or while they take over their name."""
EARLY_S = 1.5
"""Maximum seconds until such a publisher is killed. Its process has to start first."""
KILLS_PER_RESTART = 8
PATIENCE_S = 180.0
"""Seconds after which a step counts as hung."""


@dataclass(slots=True)
class ProducerResult(Result):
    """Injected faults and findings of a run."""

    delivered: int = 0
    sent_again: int = 0
    """Number of records that publishers sent again after a kill, so that the input has them more than once."""
    producer_kills: int = 0
    broker_restarts: int = 0


def run_producer(
    path: Path, kills: int, seed: int, say: Callable[[str], None], folder: Path | None = None
) -> ProducerResult:
    """Send a file's lines under a producer name, kill the producer, restart the broker in between, and count.

    Args:
        path: a file of lines, plain or compressed; each line is a record with a key derived from its text.
        kills: number of SIGKILLs.
        seed: seed of the random moments.
        say: function called with each event, a line at a time.
        folder: new folder for logs and data, which is kept. None: a temporary one, removed when all is well.

    Raises:
        SourceError: the file cannot be read, or has no lines.
        FaultRunFailed: a part did not recover. The folder is kept; `say` has named it.
    """
    wanted, offsets = _file(path)
    began, result = time.monotonic(), ProducerResult(seed)
    kept = Path(tempfile.mkdtemp(prefix="ratchet-faults-")) if folder is None else folder
    say(f"seed {seed}; logs and data in {kept}")
    with EmbeddedKafka(kept / "kafka", nodes=1, workers=0) as kafka:
        topics = [NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1) for topic in (INPUT, OUTPUT)]
        admin = kafka.admin()
        for made in admin.create_topics(topics, operation_timeout=30).values():
            made.result(60)
        config = kept / "ratchet.toml"
        config.write_text(
            f'app = "{GROUP}"\nbootstrap = "{kafka.bootstrap}"\n\n[streams.events]\ninput = "{INPUT}"\n'
            f'output = "{OUTPUT}"\ndead_letters = "producer.dead"\nidentity = "producer"\n',
            "utf-8",
        )
        worker = ChildProcess(kept, "worker", "worker", "-c", str(config), "--state-folder", str(kept / "state"))
        try:
            faults = _ProducerFaults(path, kafka, kept, random.Random(seed), say)  # noqa: S311
            faults.strike(kills, offsets, result)
            result.sent_again = _caught_up(kafka, worker, kept) - len(offsets)
        finally:
            if worker.is_running:
                worker.stop()
        found = _delivered(kafka.bootstrap)
    result.add(compare(wanted, found))
    result.delivered = sum(map(len, found.values()))
    result.seconds = time.monotonic() - began
    if folder is None and result.ok:
        shutil.rmtree(kept, ignore_errors=True)
    return result


class _ProducerFaults:
    def __init__(
        self, path: Path, kafka: EmbeddedKafka, folder: Path, choose: random.Random, say: Callable[[str], None]
    ) -> None:
        self._path, self._kafka, self._folder, self._choose, self._say = path, kafka, folder, choose, say

    def strike(self, kills: int, offsets: list[int], result: ProducerResult) -> None:
        """Start and kill publishers in turn, each for a further part of the file; the last one sends the rest."""
        share = max(1, len(offsets) // (kills + 1))
        restarts = set(self._choose.sample(range(kills), -(-kills // KILLS_PER_RESTART)))
        for kill in range(kills):
            until = offsets[min(len(offsets) - 1, share * (kill + 1))]
            publisher = self._start(kill, str(until), share / LIFE_S)
            early = self._choose.random() < EARLY
            if not early:
                self._wait_for_first_record(publisher)
            if kill in restarts:
                self._restart_broker()
                result.broker_restarts += 1
            time.sleep(self._choose.uniform(0, EARLY_S if early else 1.2 * LIFE_S))
            if not publisher.is_running:
                raise FaultRunFailed(f"publisher {kill} has ended:\n{publisher.last_words()}")
            publisher.kill()
            result.producer_kills += 1
            self._say(f"{result.producer_kills}/{kills} killed" + (" early" if early else ""))
        last = self._start(kills, "end", 1)
        deadline = time.monotonic() + PATIENCE_S + len(offsets) / 1000
        while last.is_running:
            if time.monotonic() > deadline:
                last.kill()
                raise FaultRunFailed(f"the last publisher does not end:\n{last.last_words()}")
            time.sleep(0.1)
        if last.wait():
            raise FaultRunFailed(f"the last publisher failed:\n{last.last_words()}")

    def _start(self, number: int, until: str, rate: float) -> ChildProcess:
        arguments = (str(self._path.resolve()), INPUT, NAME, self._kafka.bootstrap, until, str(rate))
        return ChildProcess(self._folder, f"publisher-{number}", *arguments, module="faults.programs.publisher")

    def _wait_for_first_record(self, publisher: ChildProcess) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while SENDING not in publisher.output():
            if not publisher.is_running or time.monotonic() > deadline:
                raise FaultRunFailed(f"{publisher.name} sends nothing:\n{publisher.last_words()}")
            time.sleep(0.02)

    def _restart_broker(self) -> None:
        (node,) = self._kafka.nodes
        hard = self._choose.random() < 0.5
        (node.kill if hard else node.stop)()
        time.sleep(self._choose.uniform(0, 1.0))
        node.start()
        self._say("broker killed and restarted" if hard else "broker stopped and restarted")


def _file(path: Path) -> tuple[SequencesByIdentity, list[int]]:
    """Return the expected output by key, and the offset of each record in the file."""
    wanted: SequencesByIdentity = defaultdict(list)
    offsets = []
    for sequence, key, value in KeyedLines(path).read(0):
        assert key is not None and value is not None  # noqa: S101, PT018 - as KeyedLines makes them
        wanted[0, key.decode()].append(_with_value(sequence, value))
        offsets.append(sequence)
    if not offsets:
        raise SourceError(f"{path}: has no lines")
    return wanted, offsets


def _delivered(bootstrap: str) -> SequencesByIdentity:
    found: SequencesByIdentity = defaultdict(list)
    for message, sequence in records(bootstrap, OUTPUT):
        found[0, message.key().decode()].append(_with_value(sequence, message.value()))
    return found


def _with_value(sequence: int, value: bytes) -> int:
    """Return a number that sorts like the sequence, and also shows a change of the value."""
    return sequence << 32 | zlib.crc32(value)


def _caught_up(kafka: EmbeddedKafka, worker: ChildProcess, folder: Path) -> int:
    """Wait until the worker has committed the input's end; return the number of records."""
    deadline = time.monotonic() + PATIENCE_S
    ends = kafka.ends({INPUT: PARTITIONS})
    while kafka.positions(GROUP, {INPUT: PARTITIONS}) != ends:
        if not worker.is_running or time.monotonic() > deadline:
            raise FaultRunFailed(
                f"the worker has not reached the end of {INPUT}; logs: {folder}\n{worker.last_words()}"
            )
        time.sleep(0.2)
    return sum(ends.values())
