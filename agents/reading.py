"""Events of an agent's partition: each record once, in offset order, as value, event or batch."""

from __future__ import annotations

import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from functools import partial
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.agents.event import Event, event_ids, ids_sent_again
from kafka_ratchet.errors import AgentFailed
from kafka_ratchet.rule.identity import PRODUCER_HEADER
from kafka_ratchet.rule.nesting import NESTING_MOST, SHALLOW_BYTES, decoded, is_too_deep
from kafka_ratchet.tables.values.partition import PartitionTables
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.delivery import Delivery
from kafka_ratchet.transport.transactions.crash_points import crash_point

if TYPE_CHECKING:
    from kafka_ratchet.agents.arrow import CurrentBatch

NO_RECORD: Final = -1
NO_ROWS: Final = np.empty(0, np.int64)


_Columns = tuple[
    bytes | memoryview,  # bytes into which the other columns point
    list[int],  # where keys begin, and end; -1: null
    list[int],
    list[int],  # where headers begin, and end
    list[int],
    list[int],  # timestamps
    list[int],  # offsets
    list[int] | list[None],  # sequences
    list[str | None] | None,  # producers; None: the stream is not judged by producer
    dict[int, str],  # ids of the re-sent records
]
"""Columns of a batch for its events, without values.

They are lists, because reading one number of an array is slow.
"""
COPIED_MOST: Final = 8 << 20
"""Maximum bytes of a batch to copy as a whole. Slices of bytes are faster than those of a memoryview."""


class Reading:
    """Reader of an agent's run, which yields the records of one batch after the other.

    Attributes:
        delivery: the current batch; None without one.
        index: index of the current record; NO_RECORD without one.
        event: last event read, if the run reads events.
        event_index: index of that event; differs from `index` if values were read after it.
        batch: the current batch as the run gets it, if the run reads batches.
        reads_batches: True if the run reads batches.
        is_timer: True for the run of a timer, which has no event.
        away: empty while the run's own task executes, with one element otherwise. It is a list, so that a loop can
            keep a reference to it.
    """

    def __init__(
        self,
        value_type: Any,
        partition: PartitionTables,
        more: Callable[[], Awaitable[None]],
        before_record: Callable[[], None] | None,
    ) -> None:
        """Start without a batch.

        Args:
            value_type: type of the stream's values.
            partition: tables of the partition.
            more: function that releases the batch and waits for the next one.
            before_record: function called before each record, if single records can be undone; else None
        """
        self.delivery: Delivery | None = None
        self.index = NO_RECORD
        self.event: Event | None = None
        self.event_index = NO_RECORD
        self.batch: CurrentBatch | None = None
        self.reads_batches = False
        self.is_timer = False
        self.away: list[bool] = [True]
        self.held: list[int] = []
        """Indexes of the records that the program holds together with the current one; an error rejects all of them."""
        self.agent: str | None = None
        """Name of the reading agent, for the headers of its dead letters."""
        self._decode, self._null = decoder(value_type)
        self._partition, self._more, self._before_record = partition, more, before_record
        self._fresh = NO_ROWS
        """Indexes of the batch's fresh records, which the program gets."""
        self._rows: list[int] = []
        self._left: Iterator[int] | None = None
        """Indexes of records that the program has not read yet; None before its first read.

        A program that catches an error and begins another loop continues with them.
        """
        self._columns: _Columns | None = None
        self._before = "before its first event"
        """Words for messages in place of topic, partition and offset, while the run has no batch."""

    async def as_own(self, program: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a program so that only its own task may read events, write tables and send records.

        The effects of further tasks would belong to an arbitrary event, or to none.
        """
        await _steps(program(), self._enter, self._leave)

    def _enter(self) -> None:
        self.away.clear()
        if self.delivery is not None:
            self._partition.open()

    def _leave(self) -> None:
        self.away.append(True)
        self._partition.shut()

    def begin(self, delivery: Delivery, fresh: NDArray[np.int64]) -> None:
        """Begin a batch. fresh: int64[records], indexes of the records to yield."""
        self.delivery, self.index, self._fresh, self._left = delivery, NO_RECORD, fresh, None
        self.held.clear()

    def end(self) -> None:
        """End the batch, and free its memory."""
        if self.delivery is not None:
            batch = self.delivery.batch
            self._before = f"{batch.topic}, partition {batch.partition}, after offset {batch.next - 1}"
        self.delivery, self.index, self.event, self.batch, self._columns = None, NO_RECORD, None, None, None
        self.held.clear()

    def stop(self) -> None:
        """Yield no further records, because the transaction was rolled back."""
        self.end()
        self._rows.clear()  # which ends the iteration that a late run is in

    def _left_over(self) -> Iterator[int]:
        if self._left is None:
            self._rows = self._fresh.tolist()
            self._left = iter(self._rows)
        return self._left

    @property
    def place(self) -> str:
        """Return topic, partition and offset of the current record, or else of the last batch's end, for messages."""
        if self.delivery is None:
            return self._before
        batch = self.delivery.batch
        where = f"{batch.topic}, partition {batch.partition}"
        if self.batch is not None:
            return f"{where}, {self.batch.place}"
        return where if self.index == NO_RECORD else f"{where}, offset {int(batch.offsets[self.index])}"

    def correlation(self) -> dict[str, object]:
        """Return the fields that name the current record in the program's log lines; empty without a batch."""
        if self.delivery is None:
            return {}
        batch = self.delivery.batch
        return self.delivery.spec.correlation(
            batch.start if self.index == NO_RECORD else int(batch.offsets[self.index])
        ) | ({} if self.agent is None else {"agent": self.agent})

    def reject(self, reason: str, *, alone: bool = False) -> None:
        """Make dead letters of all held records, or of the current record if none is held.

        alone: True to make only the current record a dead letter; the others stay held
        """
        assert self.delivery is not None  # noqa: S101 - a record is at hand
        for index in [self.index] if alone or not self.held else self.held:
            self.delivery.dead_letter(index, reason, self.agent, *event_ids(self.delivery, [index]))
        if not alone:
            self.held.clear()
        self.index = self.held[-1] if self.held else NO_RECORD

    @property
    def remaining(self) -> int:
        """Return the number of unread records of the batch."""
        return 0 if self.delivery is None else length_hint(self._left_over())

    async def values(self) -> AsyncIterator[Any]:
        """Yield values for `async for value in stream`."""
        decode, null, partition, before_record = self._decode, self._null, self._partition, self._before_record
        decode_long = bytes if decode is bytes else partial(_decode_within, decode)
        lent, away = partition.lent, self.away
        while True:
            if away:
                self._check()
            if self.delivery is None:
                await self._more()
                continue
            batch = self.delivery.batch
            data = batch.data.data
            starts = batch.columns[records.VALUE].tolist()
            lengths = batch.columns[records.VALUE_LENGTH].tolist()
            left = self._left_over()
            for index in left:
                self.index = index
                if before_record is not None:
                    before_record()
                start, length = starts[index], lengths[index]
                try:
                    if length <= SHALLOW_BYTES:
                        value = decode(data[start : start + length]) if length >= 0 else null()
                    else:
                        value = decode_long(data[start : start + length])
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    self.reject(f"value does not decode: {error}")
                    continue
                yield value
                if lent or away:
                    self._check()
            del batch, data, starts, lengths  # or a waiting loop would hold the memory of a finished batch
            if self._left is not left:
                continue  # another loop over the stream, inside this one, has begun with the next batch
            crash_point("agent")
            await self._more()

    def _check(self) -> None:
        """Check that the program may read another event.

        Raises:
            AgentFailed: another task than the agent's own reads.
            TableError: a value was changed in place and not assigned back.
        """
        if self.away:
            raise AgentFailed(
                f"{self.place}: only the agent's own task may read events, not a task that it has started, as "
                "`ensure_future`, `gather` and `wait_for` do. Use `async with asyncio.timeout(...)`, which starts "
                "no task"
            )
        if self.delivery is not None:
            self._partition.check_lent()

    async def events(self) -> AsyncIterator[Event]:
        """Yield events for `async for event in stream.events()`."""
        async for value in self.values():
            assert self.delivery is not None  # noqa: S101 - a record is at hand
            columns = self._columns
            if columns is None:
                columns = self._columns = _columns(self.delivery)
            data, keys, key_ends, headers, ends, timestamps, offsets, sequences, producers, again = columns
            at, spec = self.index, self.delivery.spec
            key_end = key_ends[at]
            self.event_index = at
            self.event = event = Event(
                bytes(data[keys[at] : key_end]) if key_end >= 0 else None,
                value,
                bytes(data[headers[at] : ends[at]]),
                timestamps[at],
                self.delivery.batch.partition,
                offsets[at],
                None if producers is None else producers[at],
                sequences[at],
                spec.topic,
                spec.input_id,
                spec.event_header,
                again.get(at),
            )
            del data, columns  # a finished batch must not stay in memory while this waits
            yield event

    async def batches(self, names: Sequence[str] | None) -> AsyncIterator[Any]:
        """Yield batches for `async for batch in stream.batches()`. names: columns; None: all."""
        from kafka_ratchet.agents.arrow import CurrentBatch, require_columns

        columns = require_columns(names)
        self.index, self.reads_batches = NO_RECORD, True
        if self._before_record is not None:
            raise TypeError(
                'on_error="dead-letter" works with single records only. Read values or events, or remove on_error'
            )
        while True:
            self._check()
            if self.delivery is not None:
                rows = self._fresh if self._left is None else np.array(list(self._left), np.int64)
                left = self._left = iter(())
                if len(rows):
                    self.index = NO_RECORD
                    self.batch = CurrentBatch(self.delivery, rows, columns)
                    yield self.batch.arrow
                    self._check()
                self.batch = None
                if self._left is not left:
                    continue  # as in `values`
                crash_point("agent")
            await self._more()


@types.coroutine
def _steps(
    program: Coroutine[Any, Any, None], enter: Callable[[], None], leave: Callable[[], None]
) -> Generator[Any, Any, None]:
    """Run a coroutine to its end. enter, leave: called before and after each of its steps."""
    step: Callable[[Any], Any] = program.send
    given: Any = None
    while True:
        enter()
        try:
            waits_for = step(given)
        except StopIteration:
            return
        finally:
            leave()
        try:
            step, given = program.send, (yield waits_for)
        except BaseException as error:  # as a cancellation
            step, given = program.throw, error


def _columns(delivery: Delivery) -> _Columns:
    batch = delivery.batch
    columns = batch.columns
    data = batch.data.data
    lengths = columns[records.KEY_LENGTH]
    return (
        bytes(data) if len(data) <= COPIED_MOST else data,
        columns[records.KEY].tolist(),
        np.where(lengths < 0, -1, columns[records.KEY] + lengths).tolist(),
        columns[records.HEADERS].tolist(),
        columns[records.BODY_END].tolist(),
        batch.timestamps.tolist(),
        batch.offsets.tolist(),
        [None] * batch.count if delivery.sequences is None else delivery.sequences.tolist(),
        _producers(delivery),
        ids_sent_again(delivery),
    )


def _producers(delivery: Delivery) -> list[str | None] | None:
    if delivery.sequences is None or delivery.spec.identity_header != PRODUCER_HEADER.encode():
        return None
    columns = delivery.batch.columns
    spans = zip(columns[records.SECOND].tolist(), columns[records.SECOND_LENGTH].tolist(), strict=True)
    found = [delivery.batch.span(start, length) for start, length in spans]
    return [None if name is None else str(name, "utf-8", "replace") for name in found]


def decoder(value_type: Any) -> tuple[Callable[[memoryview], Any], Callable[[], Any]]:
    """Return the function that decodes a value, and the function called instead for a null value.

    Both raise msgspec.MsgspecError for a value of another type.
    """
    if value_type is bytes:
        return bytes, lambda: None
    decode = msgspec.json.Decoder(Any if value_type is None else value_type).decode
    return decode, (_none if value_type is None else _refused)


def _decode_within(decode: Callable[[memoryview], Any], value: memoryview) -> Any:
    """Decode JSON text, and refuse text nested too deeply."""
    if is_too_deep(bytes(value)):
        raise msgspec.DecodeError(f"nested deeper than {NESTING_MOST} levels")
    return decoded(decode, value)


def _none() -> None:
    return None


def _refused() -> NoReturn:
    raise msgspec.ValidationError("it is null")
