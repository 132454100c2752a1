"""Faust's stream over one partition: events come from the lane, and effects belong to the current event."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, NoReturn

from faust.channels import Channel
from faust.exceptions import Skip
from faust.streams import Stream, maybe_forward
from faust.streams import _current_event as current_event
from faust.types.tuples import Message
from mode.utils.futures import maybe_async

from kafka_ratchet.agents.event import EVENT_ID
from kafka_ratchet.agents.run import Stream as Lane
from kafka_ratchet.app.faust_host.refusals import not_exact
from kafka_ratchet.errors import SettingsError

FROM: Final = "faust-topic"
"""Name of the header, in a merged stream, with the topic that the record comes from."""
NO_HEADERS: Final[dict[str, bytes | None]] = {}
FILTER: Final = "filter"
ECHO: Final = "echo"
"""Kinds of processors allowed before a step. An echo before a step is sent after the step."""
SKIPPED: Final = object()
"""Marker in place of a value, for a record that this agent does not process."""


class RepartitionStep(NamedTuple):
    """Step of an agent's function: one `group_by` or `through`.

    Attributes:
        key: function from a value to the new key; None: `through`
        name: name of the step
        topic: topic for the events; None: derived from the input's topic.
        filters: processors of `filter` before the step
        partitions: partition count of a derived topic; None: that of the input
    """

    key: Any
    name: str
    topic: Any
    filters: tuple[Any, ...] = ()
    partitions: int | None = None


class ProbeEnded(BaseException):
    """Signal that ends a probe run of an agent's function at its first event."""


class LaneChannel(Channel):
    """Channel with the events of one run of an agent, decoded by Faust's topics."""

    def __init__(
        self,
        app: Any,
        lane: Lane | None,
        topics: Mapping[str, Any],
        before: Callable[[], Awaitable[None]] | None = None,
        after: Callable[[Any], None] | None = None,
        *,
        merged: bool = False,
    ) -> None:
        """Store the arguments without reading.

        Args:
            app: the Faust app
            lane: the partition; None for a probe.
            topics: decoders of the agent's topics, by name
            before: function called before the next record is read, while the previous record is current. Within a list
                of `take` it is not called, because the agent has not processed the list's earlier records.
            after: function called with each event
            merged: True if the lane's stream is merged, so that a header names each record's own topic. In other
                streams, anyone may have written such a header.
        """
        super().__init__(app, is_iterator=True)
        self.lane, self.decoders, self._before, self._after = lane, topics, before, after
        self._events = None if lane is None else lane.events()
        self._merged, self._only = merged, next(iter(topics), "")

    async def read(self, *, within_list: bool = False) -> Any:
        """Read one record; return SKIPPED if the record is for another agent or cannot be decoded.

        within_list: True if the agent has not yet processed the previous record
        """
        if self._before is not None and not within_list:
            await self._before()
        assert self._events is not None and self.lane is not None  # noqa: S101, PT018 - it is no probe
        found = await anext(self._events)
        headers, origin = NO_HEADERS, None
        if len(found.packed_headers) > 1:
            headers = {name: value for name, value in found.headers if name != EVENT_ID}
            origin = headers.pop(FROM, None) if self._merged else None
        if self._merged and origin is None:
            raise SettingsError(
                f"a record of {found.topic} lacks the header that names its original topic. Check that only this "
                f"application writes to {found.topic}"
            )
        name = self._only if origin is None else origin.decode()
        topic = self.decoders.get(name)
        if topic is None:
            return SKIPPED
        message = Message(
            name,
            found.partition,
            found.offset,
            found.timestamp / 1000,
            0,
            dict(headers),
            found.key,
            found.value,
            None,
            generation_id=self.app.consumer_generation_id,
        )
        message.incref()
        try:
            event = await topic.decode(message, propagate=True)
        except Exception as error:
            self.lane.reject(f"does not decode: {error}")
            return SKIPPED
        if self._after is not None:
            self._after(event)
        return event

    async def __anext__(self) -> Any:
        while (event := await self.read()) is SKIPPED:
            pass
        return event


class LaneStream(Stream):
    """Stream passed to a Faust agent. Other lanes have carried out its steps (`group_by`, `through`) before.

    Attributes:
        steps: list of steps found by a probe; None while an agent runs
        steps_left: number of steps found by the probe that the running agent has not reached yet
    """

    steps: list[RepartitionStep] | None = None
    steps_left: int = 0
    _processors: list[Any]
    """Functions that Faust applies to each value."""
    _decoder: Any = None
    """Topic of the last step; None: the stream reads the topic of the agent, or one derived from it."""

    def __aiter__(self) -> AsyncIterator[Any]:
        if self.steps is not None:
            raise ProbeEnded
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Any]:
        self._finalized = True
        while True:
            value = await self._read_value()
            if value is not SKIPPED:
                yield value

    async def _read_value(self, *, hold: bool = False, within_list: bool = False) -> Any:
        """Read one record and apply the stream's processors.

        Args:
            hold: keep the record open with its list, so that an error rejects the whole list
            within_list: True if the list has earlier records
        """
        channel = self.channel
        event = await channel.read(within_list=within_list)
        if event is SKIPPED:
            return SKIPPED
        if hold:
            channel.lane.hold()
        self.current_event = event
        current_event.set(weakref.ref(event))
        value = event.value
        try:
            for processor in self._processors:
                value = await maybe_async(processor(value))
        except Skip:
            if hold:
                channel.lane.skip()
            return SKIPPED
        self.events_total += 1
        return value

    async def _lists(self, most: int) -> AsyncIterator[list[tuple[Any, Any]]]:
        """Yield lists of values with their events. A list ends at the latest with its batch or transaction."""
        if self.steps is not None:
            raise ProbeEnded
        lane = self.channel.lane
        taken: list[tuple[Any, Any]] = []
        while True:
            if taken and (len(taken) >= most or not lane.remaining):
                yield taken
                lane.release()
                taken = []
            value = await self._read_value(hold=True, within_list=bool(taken))
            if value is not SKIPPED:
                taken.append((value, self.current_event))

    async def take(self, max_: int, within: Any) -> AsyncIterator[list[Any]]:
        """Yield lists of up to `max_` values. `within` is ignored, because a list ends with its batch."""
        async for taken in self._lists(max_):
            yield [value for value, _ in taken]

    async def take_events(self, max_: int, within: Any) -> AsyncIterator[list[Any]]:
        """Yield lists of up to `max_` events."""
        async for taken in self._lists(max_):
            yield [event for _, event in taken]

    async def take_with_timestamp(self, max_: int, within: Any, timestamp_field_name: str) -> AsyncIterator[list[Any]]:
        """Yield lists of up to `max_` values, each with its record's timestamp in a field."""
        async for taken in self._lists(max_):
            for value, event in taken:
                if isinstance(value, dict):
                    value[timestamp_field_name] = event.message.timestamp
            yield [value for value, _ in taken]

    def group_by(self, key: Any, *, name: str | None = None, topic: Any = None, partitions: int | None = None) -> Any:
        """Return this stream; the events were already regrouped through the step's topic."""
        if self.steps is not None:
            if name is None and not hasattr(key, "ident"):
                raise TypeError("group_by with a function needs a name for its topic. Give group_by name=...")
            filters = self._filters_before("group_by")
            self.steps.append(RepartitionStep(key, name or key.ident, topic, filters, partitions or None))
        self._pass_step("group_by", topic)
        return self

    def through(self, channel: Any) -> Any:
        """Return this stream; the events have already passed through the step's topic."""
        topic = self._topic_of(channel)
        if self.steps is not None:
            self.steps.append(RepartitionStep(None, topic.get_topic_name(), topic, self._filters_before("through")))
        self._pass_step("through", topic)
        return self

    def _pass_step(self, step: str, topic: Any) -> None:
        """Continue the stream after a step; the step's lane has applied the filters before it.

        Args:
            step: name of the step's method
            topic: topic of the step; None: a derived topic, with the types of the previous topic.

        Raises:
            SettingsError: the probe has not found the step, so no lane carries it out.
        """
        if self.steps is None:
            self.steps_left -= 1
            if self.steps_left < 0:
                raise not_exact(
                    f"{step}() that the agent's function does not show before its first event",
                    "the events would keep their keys and partitions. Call it in the agent's own function, before the "
                    "first event; give a decorator of that function functools.wraps",
                )
        # Applied twice, a filter with a memory would leave out every record as its own duplicate.
        self._processors = [each for each in self._processors if getattr(each, "kind", None) != FILTER]
        self._decoder = topic or self._decoder

    def _topic_of(self, channel: Any) -> Any:
        """Return a topic for a name, with the types of the stream's topic; return other channels unchanged."""
        if not isinstance(channel, str):
            return channel
        before = self._decoder or next(iter(self.channel.decoders.values()), None)
        return self.app.topic(channel) if before is None else before.derive_topic(topics=[channel])

    def _filters_before(self, step: str) -> tuple[Any, ...]:
        """Return the filters that the stream applies before a step. step: name of the step's method.

        Raises:
            SettingsError: there are other processors, which may change the value that the step sends.
        """
        kinds = [getattr(each, "kind", None) for each in self._processors]
        if None in kinds:
            raise not_exact(
                f"a processor before {step}()",
                f"the step sends the records as they are. Add the processor after {step}(), and have the key computed "
                "from the record",
            )
        return tuple(each for each, kind in zip(self._processors, kinds, strict=True) if kind == FILTER)

    def filter(self, fun: Any) -> Any:
        """Leave out the values for which a function returns False."""

        async def filtering(value: Any) -> Any:
            if not await maybe_async(fun(value)):
                raise Skip
            return value

        filtering.kind = FILTER  # type: ignore[attr-defined]
        self.add_processor(filtering)
        return self

    def echo(self, *channels: Any) -> Any:
        """Send each value to channels, in the transaction of its event."""
        wanted = [self._topic_of(each) for each in channels]

        async def echoing(value: Any) -> Any:
            for channel in wanted:
                await maybe_forward(value, channel)
            return value

        echoing.kind = ECHO  # type: ignore[attr-defined]
        self.add_processor(echoing)
        return self

    def noack(self) -> NoReturn:
        """Refuse `noack`.

        Raises:
            SettingsError: always.
        """
        raise not_exact(
            "stream.noack()", "Ratchet commits an offset together with the effects of its record. Leave it out"
        )

    def noack_take(self, max_: int, within: Any) -> NoReturn:
        """Refuse `noack_take`.

        Raises:
            SettingsError: always.
        """
        raise not_exact(
            "stream.noack_take()", "Ratchet commits offsets together with the effects of their records. Write take()"
        )

    def combine(self, *nodes: Any, **options: Any) -> NoReturn:
        """Refuse a join of streams.

        Raises:
            SettingsError: always.
        """
        raise not_exact(
            "a join of streams", "Faust's joins are not finished. Keep one side in a table, and look it up there"
        )

    def _join(self, join_strategy: Any) -> NoReturn:
        self.combine()


def stream_for(app: Any, channel: LaneChannel, steps: int = 0) -> LaneStream:
    """Return a Faust stream that reads a lane's channel. steps: number of steps found by the agent's probe."""
    made = LaneStream(channel, app=app, beacon=app.beacon)
    made.steps_left = steps
    return made
