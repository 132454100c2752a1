"""A program over given records: the agents and tables of the worker, with lists in place of topics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from kafka_ratchet.agents.program import App
from kafka_ratchet.agents.run import PartitionProgram
from kafka_ratchet.agents.stream_timers import PartitionTimers
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.tables.values.partition import ABSENT, PartitionTables, nothing, nowhere
from kafka_ratchet.testing.global_contents import global_contents
from kafka_ratchet.transport.batch.record_batch import RecordBatch, read_chunk
from kafka_ratchet.transport.batch.rows import encode_pairs
from kafka_ratchet.transport.delivery import Delivery
from kafka_ratchet.transport.lane_spec import LaneSpec
from kafka_ratchet.transport.policy import Policy
from kafka_ratchet.transport.sent_topics import SentTopic
from kafka_ratchet.transport.ticks import tick

LIMIT: Final = 1 << 20
"""bytes: Kafka's default for max.message.bytes."""


class Record(NamedTuple):
    """A record of a stream, where more is to be said of it than its value and its key.

    timestamp: ms since the epoch; None: now
    """

    value: Any
    key: bytes | str | None = None
    timestamp: int | None = None


class Output(NamedTuple):
    """A record that an agent has yielded or sent, or that became a dead letter.

    topic: name of the stream, with `-dead-letters` behind it for a dead letter; of what was sent, the topic's name
    value: decoded JSON; bytes where it is none
    """

    topic: str
    key: bytes | None
    value: Any
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Ran(NamedTuple):
    """What came of a run. tables: by name, all that each has in the end."""

    outputs: list[Output]
    tables: dict[str, dict[Any, Any]]

    @property
    def values(self) -> list[Any]:
        """The outputs' values, without dead letters."""
        return [output.value for output in self.outputs if not output.topic.endswith("-dead-letters")]

    @property
    def dead_letters(self) -> list[Output]:
        """The dead letters, each with its reason in the header `ratchet-reason`."""
        return [output for output in self.outputs if output.topic.endswith("-dead-letters")]


def run(
    app: App,
    records: Mapping[str, Sequence[Any]],
    *,
    batch: int = 100,
    tables: Mapping[str, Mapping[Any, Any]] | None = None,
) -> Ran:
    """Run a program over records, each of them as if it came for the first time, on one partition per stream.

    Args:
        app: of the program
        records: by stream; each a value, (key, value) or a `Record`. Bytes are taken as they are, the rest becomes
            JSON; a key is bytes, str or None. A timer of the stream, in between, is called there
        batch: so many records to a transaction
        tables: what global tables have, by name; those that are not named are empty

    Returns:
        (outputs, tables)

    Raises:
        SettingsError: the program has no such stream, or a worker would refuse it.
        AgentFailed: an agent raised.
    """
    with global_contents(app, tables or {}):
        return asyncio.run(_run(app, records, batch))


async def _run(app: App, records: Mapping[str, Sequence[Any]], size: int) -> Ran:
    outputs: list[Output] = []
    tables: dict[str, dict[Any, Any]] = {name: {} for name in app.tables}
    for name, rows in records.items():
        if name not in app.streams:
            raise SettingsError(f"there is no stream {name!r}; the program has {', '.join(app.streams) or 'none'}")
        app.check(app.streams)
        partition, its_tables = PartitionTables(nowhere, nothing), app.tables_of(name)
        for table in its_tables:
            partition.add(table.codec, table.default, table.kind)
        program = PartitionProgram(app.of(name), its_tables, partition)
        try:
            timers = PartitionTimers(app.streams[name].timers, its_tables, partition)
            for first, portion in _portions(rows, size):
                if callable(portion):
                    outputs += await _tick(app, name, timers, first, portion)
                else:
                    outputs += await _batch(app, name, program, first, portion)
                partition.encode(LIMIT)
                partition.commit()
        finally:
            program.abandon()
        for table in its_tables:
            kept = partition.of(table.name)
            tables[table.name].update(
                (table.codec.key(key), kept.get(table.codec.key(key)))
                for key, value in kept.values.items()
                if value is not ABSENT
            )
    return Ran(outputs, tables)


def _portions(rows: Sequence[Any], size: int) -> Iterator[tuple[int, Any]]:
    """Transactions, with the offset at which each begins: records, or a timer."""
    offset, at = 0, 0
    while at < len(rows):
        end = at
        while end < min(at + size, len(rows)) and not callable(rows[end]):
            end += 1
        yield offset, rows[at:end] if end > at else rows[at]
        offset, at = offset + end - at, max(end, at + 1)


async def _tick(app: App, name: str, timers: PartitionTimers, offset: int, function: Any) -> list[Output]:
    called = [timer for timer in app.streams[name].timers if timer.function is function]
    if not called:
        raise SettingsError(f"{function!r} is not a timer of stream {name}: write app.timer(interval, stream=...)")
    delivery = Delivery(lane_spec(name, app.topics), Policy(), tick(name, 0, offset))
    timers.call(called, delivery)
    await delivery.done
    return _outputs(delivery)


async def _batch(app: App, name: str, program: PartitionProgram, first: int, rows: Sequence[Any]) -> list[Output]:
    now = time.time_ns() // 1_000_000
    given = [(row.timestamp if isinstance(row, Record) else None) for row in rows]
    times = [now if timestamp is None else timestamp for timestamp in given]
    batch = fetched(name, first, [_pair(row) for row in rows], times)
    delivery = Delivery(lane_spec(name, app.topics), Policy(), batch)
    program.take(delivery, np.ones(batch.count, np.bool_))
    await delivery.done
    return _outputs(delivery)


def _outputs(delivery: Delivery) -> list[Output]:
    found: list[Output] = []
    for topic, _, encoded in delivery.outputs:
        written = read_chunk(topic, 0, 0, bytes(encoded.seal(1, 0, 0)), [])
        found += [
            Output(topic, written.key(index), _value(written.value(index)), tuple(map(tuple, written.headers(index))))  # type: ignore[arg-type]
            for index in range(written.count)
        ]
    return found


def _pair(row: Any) -> tuple[bytes | None, bytes | None]:
    if isinstance(row, Record):
        key, value = row.key, row.value
    else:
        key, value = row if isinstance(row, tuple) and len(row) == 2 else (None, row)
    return (
        key.encode() if isinstance(key, str) else key,
        value if value is None or isinstance(value, bytes) else msgspec.json.encode(value),
    )


def fetched(
    topic: str,
    start: int,
    pairs: list[tuple[bytes | None, bytes | None]],
    times: Sequence[int] | None = None,
) -> RecordBatch:
    """Keys and values as a lane would fetch them from partition 0.

    Args:
        topic: of the input
        start: offset of the first
        pairs: keys and values
        times: ms since the epoch; None: now
    """
    (encoded,) = encode_pairs(pairs, LIMIT, times=times)
    data = bytearray(encoded.seal(1, 0, 0))
    data[:8] = start.to_bytes(8, "big")
    return read_chunk(topic, 0, start, bytes(data), [])


def _value(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return data


def lane_spec(stream: str, sends: Iterable[str] = ()) -> LaneSpec:
    """A lane whose topics are named after the stream. sends: topics to which it may send, of one partition each."""
    return LaneSpec(
        topic=stream,
        partition=0,
        output=stream,
        dead_letters=f"{stream}-dead-letters",
        group="testing",
        transactional_id="testing",
        compression="none",
        output_limit=LIMIT,
        dead_letters_limit=LIMIT,
        sends={topic: SentTopic(1, LIMIT) for topic in sends},
    )
