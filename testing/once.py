"""Exactly-once test: outputs and tables equal those of events processed once, despite killed workers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from kafka_ratchet.app.local.broker import choose_broker
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.testing.faust_worker import FaustWorker, is_faust
from kafka_ratchet.testing.program_run import Output, run
from kafka_ratchet.testing.worker import CRASH_POINTS, Worker, partition_for

AT_THE_START: Final = ("fenced", "restored")
EVERY_POINT: Final = (
    "committed",
    *(point if point in AT_THE_START else f"{point}:2" for point in CRASH_POINTS),
)
"""Crash points of `assert_once`.

The first crash follows the first commit: before that commit, a restarted worker only begins again, and cannot lose
records. A later crash is at the second passage of its point, unless a worker passes the point only at its start.
"""


def assert_once(
    program: str,
    events: Mapping[str, Sequence[Any]],
    *,
    bootstrap: str | None = None,
    points: Sequence[str] = EVERY_POINT,
    partitions: int = 1,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Run a program over repeated events in a real worker, and kill it at one crash point after another.

    After every second kill the worker also loses its local store. Its final outputs and tables must equal those of
    `run` without Kafka. An output that contains its event's offset differs, because the topic has each event twice.

    A Faust program names its own topics, which must be missing or empty in the Kafka. The events of such a program are
    sent once, except for topics that the settings deduplicate.

    Args:
        program: MODULE:NAME of an App, or of a Faust app, that this process can import.
        events: as for `run`: by stream, for Faust by topic; one stream needs two events per crash point, plus one.
        bootstrap: host:port of a Kafka; None: an embedded one.
        points: crash points, as for `Worker.start`.
        partitions: number of partitions of each input; each partition is compared alone.
        settings: settings as in ratchet.toml.

    Raises:
        AssertionError: outputs or tables differ.
        FaultRunFailed: the worker ended in another way, or did not reach a point.
        SettingsError: there are too few events; a stream has timers, which depend on the clock; or there are several
            partitions and internal streams, where events of several partitions mix in any order.
    """
    chunks = 2 * len(points) + 1
    if max((len(rows) for rows in events.values()), default=0) < chunks:
        raise SettingsError(f"assert_once: {len(points)} points need at least {chunks} events of one stream. Give more")
    kind = FaustWorker if is_faust(program) else Worker
    kind.check_program(program, partitions)
    with ExitStack() as stack:
        broker = bootstrap or stack.enter_context(choose_broker())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ratchet-once-")))
        worker = kind(program, broker, folder, partitions=partitions, settings=settings)
        stack.callback(worker.close)

        def publish(chunk: int) -> None:
            for stream, rows in events.items():
                rows = rows[len(rows) * chunk // chunks : len(rows) * (chunk + 1) // chunks]
                worker.publish(stream, rows, times=worker.repeats(stream))

        for number, point in enumerate(points):
            publish(2 * number)
            worker.start(point)
            worker.wait_for(lambda: not worker.process.is_running or worker.has_read())
            publish(2 * number + 1)
            worker.wait_for_crash()
            if number % 2:
                worker.lose_store()
        publish(chunks - 1)
        worker.start()
        worker.wait_until_read()
        worker.stop()
        check_once(worker)


def check_once(worker: Worker) -> None:
    """Compare a worker's commits with the result of `run` on all published events.

    Raises:
        AssertionError: outputs or tables differ.
    """
    assert worker.program is not None, f"{worker.name} has no program"  # noqa: S101 - this is an assertion
    sent: list[Output] = []
    for partition, (outputs, tables) in enumerate(zip(worker.outputs(), worker.tables(), strict=True)):
        mine = {
            stream: [row for at, row in enumerate(rows) if partition_for(row, at, worker.partitions) == partition]
            for stream, rows in worker.published.items()
        }
        expected = worker.expected(mine) if isinstance(worker, FaustWorker) else run(worker.program, mine)
        topics = worker.sent_topics if isinstance(worker, FaustWorker) else list(worker.program.topics)
        sent += [output for output in expected.outputs if output.topic in topics]
        yielded = [output for output in expected.outputs if output.topic not in topics]
        where = f"{worker.app}, partition {partition}"
        # Events of several inputs meet in internal streams, in no promised order.
        _compare(where, _by_topic(yielded, len(mine) == 1), _by_topic(outputs, len(mine) == 1))
        assert tables == expected.tables, f"{where}: tables are {tables}, and not {expected.tables}"  # noqa: S101
    # Sent records go to the partition of their key, where several inputs meet as well.
    _compare(f"{worker.app}, sent", _by_topic(sent, False), _by_topic(worker.sent(), False))


def _by_topic(outputs: Iterable[Output], is_ordered: bool) -> dict[str, list[tuple[bytes | None, Any]]]:
    found: dict[str, list[tuple[bytes | None, Any]]] = {}
    for output in outputs:
        found.setdefault(output.topic, []).append((output.key, output.value))
    return found if is_ordered else {topic: sorted(pairs, key=repr) for topic, pairs in found.items()}


def _compare(where: str, expected: Mapping[str, Sequence[Any]], found: Mapping[str, Sequence[Any]]) -> None:
    for topic in sorted(expected.keys() | found.keys()):
        wanted, got = expected.get(topic, ()), found.get(topic, ())
        if wanted != got:
            same = next((n for n, (one, other) in enumerate(zip(wanted, got, strict=False)) if one != other), None)
            at = min(len(wanted), len(got)) if same is None else same
            raise AssertionError(
                f"{where}, outputs of {topic}: {len(got)} instead of {len(wanted)}; number {at} is {got[at : at + 1]} "
                f"instead of {wanted[at : at + 1]}"
            )
