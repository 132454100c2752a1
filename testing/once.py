"""Whether a program's outputs and tables are as if each event had come once, whatever its worker dies of."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from kafka_ratchet.app.local.broker import choose_broker
from kafka_ratchet.app.worker.program import load_program
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.testing.program_run import Output, run
from kafka_ratchet.testing.worker import CRASH_POINTS, Worker, partition_for

AT_THE_START: Final = ("fenced", "restored")
EVERY_POINT: Final = (
    "committed",
    *(point if point in AT_THE_START else f"{point}:2" for point in CRASH_POINTS),
)
"""Behind a commit first: before that, whatever a program forgets is computed again from the beginning. Those that come
with each batch at the second time, so that some batches are done by then."""


def assert_once(
    program: str,
    events: Mapping[str, Sequence[Any]],
    *,
    bootstrap: str | None = None,
    points: Sequence[str] = EVERY_POINT,
    partitions: int = 1,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Run a program in a real worker that dies at one named point after the other, over events that are sent twice.

    Every second time it loses its local store as well. What it has put out in the end, and what its tables have, must
    be what `run` makes of the events without Kafka. An output that says its event's offset differs, for here each
    event is in the topic twice.

    Args:
        program: MODULE:NAME of an App that this process can import
        events: by stream, as for `run`; of one stream at least two for each point, and one
        bootstrap: host:port of a Kafka; None: an embedded one
        points: where it dies, as for `Worker.start`
        partitions: of each input; each partition is compared by itself
        settings: as in ratchet.toml

    Raises:
        AssertionError: outputs or tables differ.
        FaultRunFailed: the worker ended otherwise, or did not come to a point.
        SettingsError: there are too few events; a stream has timers, which go by the clock; or there are internal
            streams, and several partitions, whose events meet there in no order that is promised.
    """
    chunks = 2 * len(points) + 1
    if max((len(rows) for rows in events.values()), default=0) < chunks:
        raise SettingsError(f"assert_once: {len(points)} points need at least {chunks} events of one stream")
    for name, stream in load_program(program).streams.items():
        if stream.timers:
            raise SettingsError(f"assert_once: stream {name} has timers, which `run` cannot call when the worker does")
        if stream.topic is not None and partitions > 1:
            raise SettingsError(f"assert_once: events of all partitions meet in stream {name}: give it one partition")
    with ExitStack() as stack:
        broker = bootstrap or stack.enter_context(choose_broker())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ratchet-once-")))
        worker = Worker(program, broker, folder, partitions=partitions, settings=settings)
        stack.callback(worker.close)

        def publish(chunk: int) -> None:
            for stream, rows in events.items():
                worker.publish(stream, rows[len(rows) * chunk // chunks : len(rows) * (chunk + 1) // chunks], times=2)

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
    """Compare what a worker has committed with what `run` makes of all that was published.

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
        expected = run(worker.program, mine)
        sent += [output for output in expected.outputs if output.topic in worker.program.topics]
        yielded = [output for output in expected.outputs if output.topic not in worker.program.topics]
        where = f"{worker.app}, partition {partition}"
        # Events of several inputs meet in internal streams, in no order that is promised.
        _compare(where, _by_topic(yielded, len(mine) == 1), _by_topic(outputs, len(mine) == 1))
        assert tables == expected.tables, f"{where}: tables are {tables}, and not {expected.tables}"  # noqa: S101
    # What is sent goes to the partition of its key, where several inputs meet as well.
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
