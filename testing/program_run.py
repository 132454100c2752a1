"""Run of a program over given records, with the worker's agents and tables, but lists instead of topics."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from kafka_ratchet.agents.event import EVENT_ID
from kafka_ratchet.agents.program import App
from kafka_ratchet.agents.run import PartitionProgram
from kafka_ratchet.agents.stream_timers import PartitionTimers
from kafka_ratchet.app.faust_host.command import make_ready, use_lanes
from kafka_ratchet.app.faust_host.program import host, switch_off
from kafka_ratchet.app.faust_host.transport import Transport
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.tables.values.committed import CommittedTable
from kafka_ratchet.tables.values.global_table import Contents
from kafka_ratchet.tables.values.partition import PartitionTables
from kafka_ratchet.tables.values.table import Table
from kafka_ratchet.tables.values.table_partition import ABSENT, nothing, nowhere
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.batch.rows import encode_pairs
from kafka_ratchet.transport.client.topic_id import id_text
from kafka_ratchet.transport.delivery import Delivery, tick
from kafka_ratchet.transport.lane_spec import LaneSpec
from kafka_ratchet.transport.policy import Policy
from kafka_ratchet.transport.sent_topics import SentTopic

LIMIT: Final = 1 << 20
"""Maximum bytes of a batch, Kafka's default for max.message.bytes."""


class Record(NamedTuple):
    """Record of a stream, with a timestamp.

    Args:
        value: value of the record.
        key: key of the record.
        timestamp: milliseconds since 1970; None: now.
    """

    value: Any
    key: bytes | str | None = None
    timestamp: int | None = None


class Output(NamedTuple):
    """Record that an agent yielded or sent, or a dead letter.

    Args:
        topic: name of the stream, with `-dead-letters` added for a dead letter; for a sent record, name of the topic.
        key: key of the record.
        value: decoded JSON; bytes if the value is not JSON.
        headers: headers of the record.
    """

    topic: str
    key: bytes | None
    value: Any
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Ran(NamedTuple):
    """Result of a run.

    Args:
        outputs: all outputs, in order.
        tables: final entries of each table, by its name.
    """

    outputs: list[Output]
    tables: dict[str, dict[Any, Any]]

    @property
    def values(self) -> list[Any]:
        """Return the values of the outputs, without dead letters."""
        return [output.value for output in self.outputs if not output.topic.endswith("-dead-letters")]

    @property
    def dead_letters(self) -> list[Output]:
        """Return the dead letters, each with its reason in the header `ratchet-reason`."""
        return [output for output in self.outputs if output.topic.endswith("-dead-letters")]


def run(
    app: Any,
    records: Mapping[str, Sequence[Any]],
    *,
    batch: int = 100,
    tables: Mapping[str, Mapping[Any, Any]] | None = None,
) -> Ran:
    """Run a program over records, each judged as fresh, on one partition per stream.

    Args:
        app: App of kafka_ratchet or of Faust.
        records: records by stream, for a Faust app by topic; each is a value, (key, value) or a `Record`. Bytes stay
            unchanged, other values become JSON; a key is bytes, str or None. A timer function among the records is
            called between the records before and after it. Internal streams process their records after all given
            records.
        batch: number of records per transaction.
        tables: contents of global tables, by name; other global tables are empty. Ignored for a Faust app.

    Returns:
        Outputs and tables.

    Raises:
        SettingsError: the program has no such stream or global table, or a worker would refuse the program.
        TableError: a key or value in `tables` has another type than the table.
        AgentFailed: an agent or timer raised an error.
    """
    if not isinstance(app, App):
        return _run_faust(app, records, batch)
    with _global_contents(app, tables or {}):
        return asyncio.run(_run(app, records, batch, {}))


def _run_faust(app: Any, records: Mapping[str, Sequence[Any]], size: int) -> Ran:
    """Run a Faust app.

    Args:
        app: the Faust app.
        records: records by topic.
        size: number of records per transaction.
    """
    make_ready(app)
    if not isinstance(app.transport, Transport):
        use_lanes(app)
    switch_off(app)
    hosted = host(app)
    app.producer.replies = hosted.replies
    by_topic = {topic: name for name, topic in hosted.inputs.items()}
    for topic in records:
        if topic not in by_topic:
            raise SettingsError(f"no agent reads topic {topic!r}; the program's agents read {', '.join(by_topic)}")
    given = {by_topic[topic]: rows for topic, rows in records.items()}
    ran = asyncio.run(_run(hosted.engine, given, size, by_topic))
    found = {name: store.decoded(ran.tables.get(name, {})) for name, store in hosted.stores.items()}
    return ran._replace(tables=found)


async def _run(app: App, records: Mapping[str, Sequence[Any]], size: int, inputs: Mapping[str, str]) -> Ran:
    """Run a program.

    Args:
        app: the program.
        records: records by stream.
        size: number of records per transaction.
        inputs: stream of each topic, for records that agents send there.
    """
    for name in records:
        if name not in app.streams:
            raise SettingsError(f"there is no stream {name!r}; the program has {', '.join(app.streams) or 'none'}")
    app.check(app.streams)
    ran = Ran([], {name: {} for name in app.tables})
    internal = {stream.topic.name: name for name, stream in app.streams.items() if stream.topic is not None}
    internal |= {topic: name for topic, name in inputs.items() if topic in app.topics}
    waiting: dict[str, list[bytes]] = {topic: [] for topic in internal}
    streams = {name: _StreamRun(app, name, ran.outputs, waiting) for name in app.streams}
    try:
        for name, rows in records.items():
            for portion in _portions(rows, size):
                if callable(portion):
                    await streams[name].tick(portion)
                else:
                    await streams[name].take(_rows(portion))
        while any(waiting.values()):
            topic = next(topic for topic, batches in waiting.items() if batches)
            await streams[internal[topic]].take(waiting[topic].pop(0))
    finally:
        for stream in streams.values():
            stream.program.abandon()
    for stream in streams.values():
        ran.tables.update(stream.contents())
    return ran


class _StreamRun:
    """Run of a stream's only partition."""

    def __init__(self, app: App, name: str, outputs: list[Output], waiting: Mapping[str, list[bytes]]) -> None:
        """Prepare the run of a stream.

        Args:
            app: app of the program
            name: name of the stream
            outputs: list for yielded and sent records
            waiting: lists for the records that agents send to internal streams, by topic
        """
        self.name, self._tables, self._outputs, self._waiting = name, app.tables_of(name), outputs, waiting
        self._partition = PartitionTables(nowhere, nothing, (name, 0))
        for table in self._tables:
            self._partition.add(table.codec, table.default, table.kind)
            table.elsewhere = partial(self._committed, table.name)
        self.program = PartitionProgram(app.of(name), self._tables, self._partition)
        self._timers = app.streams[name].timers
        self._partition_timers = PartitionTimers(self._timers, self._tables, self._partition)
        header = EVENT_ID if app.streams[name].topic is not None else ""
        self._spec = lane_spec(name, [*app.topics, *waiting], header)
        self._position = 0

    async def take(self, data: bytes) -> None:
        """Process a record batch as one transaction.

        Args:
            data: batch as Kafka would return it, except for its offsets.
        """
        batch = read_chunk(self.name, 0, self._position, self._position.to_bytes(8, "big") + data[8:], [])
        self._position = batch.next
        delivery = Delivery(self._spec, Policy(), batch)
        await self.program.take(delivery, np.ones(batch.count, np.bool_))
        self._commit(delivery)

    def _committed(self, table: str, reader: str, number: int) -> CommittedTable:
        """Return the committed entries of a table, for a view that agents of stream `reader` use.

        Raises:
            SettingsError: the table belongs to that stream itself.
        """
        if reader == self.name:
            raise SettingsError(
                f"the view of table {table} is for agents of other streams: agents of stream {self.name} read the "
                "table itself. Use the table there, without a view"
            )
        return CommittedTable(self._partition.of(table), nowhere, _no_store, self._partition.unsaved)

    async def tick(self, function: Any) -> None:
        """Call a timer of the stream, as one transaction."""
        called = [timer for timer in self._timers if timer.function is function]
        if not called:
            raise SettingsError(
                f"{function!r} is not a timer of stream {self.name}: write app.timer(interval, stream=...)"
            )
        delivery = Delivery(self._spec, Policy(), tick(self.name, 0, self._position))
        await self._partition_timers.call(called, delivery)
        self._commit(delivery)

    def _commit(self, delivery: Delivery) -> None:
        for topic, _, encoded in delivery.outputs:
            written = bytes(encoded.seal(1, 0, 0))
            if topic in self._waiting:
                self._waiting[topic].append(written)
            else:
                self._outputs += _outputs(topic, written)
        self._partition.encode(LIMIT)
        self._partition.commit()

    def contents(self) -> dict[str, dict[Any, Any]]:
        """Return the final contents of the tables."""
        return {table.name: contents_of(table, self._partition) for table in self._tables}


def contents_of(table: Table, partition: PartitionTables) -> dict[Any, Any]:
    """Return all entries of a table in a partition without a store."""
    kept = partition.of(table.name)
    keys = [table.codec.key(key) for key, value in kept.values.items() if value is not ABSENT]
    return {key: kept.get(key) for key in keys}


def _no_store(prefix: bytes, first: bytes) -> Generator[tuple[bytes, bytes], None, None]:
    yield from ()


def _portions(rows: Sequence[Any], size: int) -> Iterator[Any]:
    """Yield for each transaction its records, or the timer that it calls."""
    at = 0
    while at < len(rows):
        end = at
        while end < min(at + size, len(rows)) and not callable(rows[end]):
            end += 1
        yield rows[at:end] if end > at else rows[at]
        at = max(end, at + 1)


def _outputs(topic: str, data: bytes) -> list[Output]:
    batch = read_chunk(topic, 0, 0, data, [])
    return [
        Output(topic, batch.key(index), value_of(batch.value(index)), tuple(map(tuple, batch.headers(index))))  # type: ignore[arg-type]
        for index in range(batch.count)
    ]


def _rows(rows: Sequence[Any]) -> bytes:
    now = time.time_ns() // 1_000_000
    given = [(row.timestamp if isinstance(row, Record) else None) for row in rows]
    times = [now if timestamp is None else timestamp for timestamp in given]
    (encoded,) = encode_pairs([pair(row) for row in rows], LIMIT, times=times)
    return bytes(encoded.seal(1, 0, 0))


def pair(row: Any) -> tuple[bytes | None, bytes | None]:
    """Return key and value of a record as bytes, from one of the forms that `run` accepts."""
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
    """Return keys and values as the batch that a lane would fetch from partition 0.

    Args:
        topic: name of the input topic
        start: offset of the first record
        pairs: keys and values
        times: milliseconds since 1970; None: now
    """
    (encoded,) = encode_pairs(pairs, LIMIT, times=times)
    return read_chunk(topic, 0, start, encoded.as_fetched(start), [])


def value_of(data: bytes | None) -> Any:
    """Return a value in the form of an `Output`: decoded JSON, or bytes."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return data


def lane_spec(stream: str, sends: Iterable[str] = (), event_header: str = "") -> LaneSpec:
    """Return the settings of a lane, with topics and an input id named after the stream.

    Args:
        stream: name of the stream
        sends: topics that the stream may send to, with one partition each
        event_header: header of the input with the ids of events
    """
    named = hashlib.blake2b(stream.encode(), digest_size=16).digest()
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
        event_header=event_header,
        input_id=id_text(named),
    )


@contextmanager
def _global_contents(app: App, given: Mapping[str, Mapping[Any, Any]]) -> Iterator[None]:
    """Fill the program's global tables; a table without given contents is empty.

    Raises:
        SettingsError: a name is not a global table of the program.
        TableError: a key or value has another type than the table.
    """
    for name in given:
        if name not in app.global_tables:
            what = "one of agents, which begins empty" if name in app.tables else "none of the program's"
            raise SettingsError(
                f"tables: {name!r} is {what}; its global tables are {', '.join(app.global_tables) or 'none'}"
            )
    before = {name: table.contents for name, table in app.global_tables.items()}
    try:
        for name, table in app.global_tables.items():
            table.contents = Contents(1, table.most, name)
            for key, value in given.get(name, {}).items():
                table.contents.put(0, table.key_bytes(key), table.value_bytes(value))
        yield
    finally:
        for name, table in app.global_tables.items():
            table.contents = before[name]
