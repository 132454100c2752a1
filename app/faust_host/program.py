"""Conversion of a Faust app into a program of Ratchet: an agent runs for each partition, in the lane's transaction."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import chain
from types import SimpleNamespace
from typing import Any, Final

import structlog
from faust.agents.agent import _current_agent as current_agent
from faust.exceptions import KeyDecodeError, ValueDecodeError
from faust.tables.sets import SetTable
from faust.types.tables import GlobalTableT

from kafka_ratchet.agents.program import App, StreamDefinition
from kafka_ratchet.agents.run import Stream as Lane
from kafka_ratchet.agents.topic import Topic, at_hand
from kafka_ratchet.app.faust_host.check import FROM_EARLIEST, topics_named
from kafka_ratchet.app.faust_host.inputs import (
    find_channels,
    find_topics,
    find_wrappers,
    place_of,
    sources_of,
    steps_of,
    tables_of,
    topics_of,
)
from kafka_ratchet.app.faust_host.key_json import library, may_be_of_orjson, named
from kafka_ratchet.app.faust_host.producer import Replies, send_at_once
from kafka_ratchet.app.faust_host.refusals import add_program, carry_context, not_exact
from kafka_ratchet.app.faust_host.store import FaustCodec, GlobalStore, LaneSets, LaneStore, shorten, store_of
from kafka_ratchet.app.faust_host.stream import FROM, LaneChannel, RepartitionStep, stream_for
from kafka_ratchet.app.faust_host.windows import AT_HAND, OpenWindows, goes_by_record, use_event_time
from kafka_ratchet.app.names import repartition_topic
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.tables.values.partition import AT_WORK
from kafka_ratchet.tables.values.table import Table

log = structlog.get_logger(__name__)

NOT_IN_A_NAME: Final = re.compile(r"[^a-z0-9_-]+")
NAME_MOST: Final = 60
"""Maximum number of characters of a stream's name, which is part of the names of topics."""
WINDOW_PARTS: Final = ("size", "step", "before", "after")
"""Names of the window settings, in seconds, that the keys depend on. The time until a window expires is not among them.
"""


@dataclass(eq=False)
class Unit:
    """Faust agent with its inputs and tables.

    Attributes:
        agent: the Faust agent
        topics: decoders of its records, by topic
        sources: streams that it reads
        tables: tables that its code names.
        merged: True if its source is merged from several topics
        steps: number of its `group_by` and `through`
    """

    agent: Any
    topics: dict[str, Any]
    sources: list[StreamDefinition]
    tables: set[Any]
    merged: bool = False
    steps: int = 0


@dataclass(eq=False)
class Windows:
    """Objects needed to open a table's windows when an agent begins to run. by_record: see `OpenWindows`."""

    store: LaneStore
    clock: Table
    by_record: bool


@dataclass(eq=False)
class ConvertedProgram:
    """Faust app converted into a program of Ratchet's agents.

    Attributes:
        app: the Faust app
        engine: the program that the lanes run.
        inputs: topic of each stream over a topic of the user.
        stores: stores of the tables that agents write, by table name.
        changelogs: stream that writes each changelog topic set by the app, by topic name.
        set_logs: those of `changelogs` with the operations of a set table, which compaction would lose.
        regrouped: topic that plain Faust uses for a `group_by`, by name of the internal stream that replaces it.
        routes: stream and topic of a table's agents, by table, for requests by key.
        meeting: by table, the streams with agents that share the table, if there are several. A key must have the same
            partition number in all of these streams.
        replies: answers to send after the commits of their events.
    """

    app: Any
    engine: App
    routes: dict[str, tuple[str, Any]] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    stores: dict[str, LaneStore] = field(default_factory=dict)
    meeting: dict[str, list[StreamDefinition]] = field(default_factory=dict)
    changelogs: dict[str, str] = field(default_factory=dict)
    set_logs: set[str] = field(default_factory=set)
    regrouped: dict[str, str] = field(default_factory=dict)
    replies: Replies = field(default_factory=Replies)


def host(app: Any, names: Mapping[str, str] | None = None, judged: Sequence[str] = ()) -> ConvertedProgram:
    """Convert a Faust app into a program. The app's tables are stored by the lanes from then on.

    Args:
        app: the Faust app
        names: stream of the settings by input topic; streams of other topics get a generated name.
        judged: deduplicated topics, closed to sends of this app's agents

    Raises:
        SettingsError: the app has no agent, or one that cannot have its effects exactly once; the message has file and
            line.
    """
    add_program(sources_of(app))
    return _Host(app, names or {}, judged).build()


class _Host:
    """Builder of a program from a Faust app."""

    def __init__(self, app: Any, names: Mapping[str, str], judged: Sequence[str]) -> None:
        self.app, self._names, self._judged = app, names, judged
        self.hosted = ConvertedProgram(app, App())
        self._by_topic: dict[str, StreamDefinition] = {}
        self._windows: dict[Any, Windows] = {}

    def build(self) -> ConvertedProgram:
        if not self.app.agents:
            raise SettingsError(
                f"Faust app {self.app.conf.id}: has no agent. Write `@app.agent(topic)` above a function"
            )
        units = [self._unit(agent) for agent in self.app.agents.values()]
        self._merge(units)
        wrappers = find_wrappers(self.app)
        for table in list(self.app.tables.values()):
            self._own(table, [unit for unit in units if table in unit.tables], wrappers)
        self._declare_topics()
        self._close_channels()
        for unit in units:
            mine = {table: each for table, each in self._windows.items() if table in unit.tables}
            engine = self.hosted.engine
            run = hosted_run(self.hosted, unit, mine)
            engine.agent(unit.sources[0], on_error="dead-letter")(run)
        return self.hosted

    def _stream(self, topic: str) -> StreamDefinition:
        """Return the stream that reads a topic; make it at the first call."""
        if topic not in self._by_topic:
            name = self._names.get(topic) or self._free(topic.removeprefix(f"{self.app.conf.id}-"))
            self._by_topic[topic] = self.hosted.engine.stream(name, value_type=bytes)
            self.hosted.inputs[name] = topic
        return self._by_topic[topic]

    def _free(self, text: str, *, internal: bool = False) -> str:
        """Return an unused name for a stream, made from a topic's name.

        internal: True for an internal stream, which may have a section of its own in the settings
        """
        slug = NOT_IN_A_NAME.sub("-", text.lower()).strip("-_") or "stream"
        slug = (slug if slug[0].isalpha() else f"t-{slug}")[:NAME_MOST]
        sections = {
            name
            for topic, name in self._names.items()
            if not (internal and topic == repartition_topic(self.app.conf.id, name))
        }
        taken = {*self.hosted.engine.streams, *sections}
        return next(
            name
            for number in range(1, len(taken) + 3)
            if (name := slug if number == 1 else f"{slug}-{number}") not in taken
        )

    def _unit(self, agent: Any) -> Unit:
        topics = topics_of(agent)
        sources = [self._stream(name) for name in topics]
        steps = asyncio.run(steps_of(agent))
        for step in steps:
            sources, topics = self._step(agent, sources, topics, step)
        return Unit(agent, topics, sources, tables_of(agent.fun), steps=len(steps))

    def _step(
        self, agent: Any, sources: list[StreamDefinition], topics: dict[str, Any], step: RepartitionStep
    ) -> tuple[list[StreamDefinition], dict[str, Any]]:
        engine, first = self.hosted.engine, next(iter(topics.values()))
        if step.topic is not None:
            derived = step.topic
            target = self._stream(derived.get_topic_name())
            topic = engine.topic(derived.get_topic_name())
            if target in sources:
                raise SettingsError(
                    f"{place_of(agent.fun)}: agent {agent.name} forwards its records to {topic.name}, a topic that it "
                    "reads, so it would receive them again forever. Give "
                    f"{'through' if step.key is None else 'group_by'} another topic"
                )
        else:
            prefix = "" if first.has_prefix else f"{agent.name}-"
            derived = first.derive_topic(topics=[next(iter(topics))], prefix=prefix, suffix=f"-{step.name}-repartition")
            target = engine.stream(
                self._free(f"{agent.name}-{step.name}", internal=True), value_type=bytes, internal=True
            )
            assert target.topic is not None  # noqa: S101 - it is internal
            topic, target.partitions = target.topic, step.partitions
            self.hosted.regrouped[target.name] = derived.get_topic_name()
        for source in sources:
            mine = {name: each for name, each in topics.items() if self._by_topic.get(name, source) is source}
            engine.agent(source, on_error="dead-letter")(forward(self.app, mine, derived, step, topic, agent.name))
            source.agents[-1].is_step = True
            target.fed_by.append(source)
        return [target], {derived.get_topic_name(): derived}

    def _merge(self, units: list[Unit]) -> None:
        """Give agents that share a table or read several topics one merged stream over all their topics."""
        for group in _groups(units):
            sources = list({id(source): source for unit in group for source in unit.sources}.values())
            if len(sources) == 1:
                continue
            named = sorted(
                {table.name for unit in group for table in unit.tables} or {unit.agent.name for unit in group}
            )
            engine = self.hosted.engine
            merged = engine.stream(
                self._free("merged-" + "-".join(named), internal=True), value_type=bytes, internal=True
            )
            assert merged.topic is not None  # noqa: S101 - it is internal
            for source in sources:
                origin = next(name for unit in group for name in unit.topics if self._reads(unit, source, name))
                engine.agent(source, on_error="dead-letter")(merge(origin, merged.topic, merged.name))
                source.agents[-1].is_step = True
                merged.fed_by.append(source)
            self._note_meetings(group)
            for unit in group:
                unit.sources, unit.merged = [merged], True

    def _note_meetings(self, group: list[Unit]) -> None:
        for table in {table for unit in group for table in unit.tables if not isinstance(table, GlobalTableT)}:
            sources = {source.name: source for unit in group if table in unit.tables for source in unit.sources}
            if len(sources) > 1:
                self.hosted.meeting[table.name] = list(sources.values())

    def _reads(self, unit: Unit, source: StreamDefinition, name: str) -> bool:
        if source not in unit.sources:
            return False
        own = self._by_topic.get(name)
        return own is source if own is not None else len(unit.topics) == 1

    def _own(self, table: Any, users: list[Unit], wrappers: list[Any]) -> None:
        """Store a Faust table in a table of the lane.

        users: agents that use the table; wrappers: window wrappers of the app's tables
        """
        engine, hosted = self.hosted.engine, self.hosted
        if isinstance(table, GlobalTableT):
            self._follow(table)
            return
        store = store_of(table)
        expires = table.window is not None and table.window.expires is not None
        if expires and len(users) > 1:
            places = ", ".join(f"{unit.agent.name} ({place_of(unit.agent.fun)})" for unit in users)
            raise SettingsError(
                f"table {table.name}: has windows that expire, and several agents use it: {places}. Agents process "
                "each batch one after the other, so a window could close for one agent while another still fills "
                "it. Use the table in one agent"
            )
        streams = {id(unit.sources[0]): unit.sources[0] for unit in users} or {
            id(stream): stream for stream in engine.streams.values() if len(engine.streams) == 1
        }
        if streams:
            stream = next(iter(streams.values()))
            store.lane = engine.Table(table.name, key_type=bytes, value_type=bytes, stream=stream)
            store.lane.codec = codec_of(table, store)
            hosted.stores[table.name] = store
            if users:
                hosted.routes[table.name] = stream.name, next(iter(users[0].topics.values()))
            if table.window is not None:
                clock = engine.Table(f"{table.name}-clock", key_type=str, value_type=float, stream=stream)
                self._windows[table] = Windows(store, clock, goes_by_record(table, wrappers))
        changelog = self._changelog_to_write(table)
        if isinstance(table, SetTable):
            table._data = LaneSets(table)
            table._data._storage = store
        else:
            table._data = store
            lend_defaults(table, store)
            if type(table).__name__ != "GlobalTable" and table.window is None and changelog is None:
                shorten(table)
        use_event_time(table)
        table.partition_for_key = lambda key: 0
        if changelog is not None and streams:
            hosted.changelogs[changelog.get_topic_name()] = next(iter(streams.values())).name
            if isinstance(table, SetTable):
                hosted.set_logs.add(changelog.get_topic_name())
        table.send_changelog = changelog_sender(table, changelog)

    def _changelog_to_write(self, table: Any) -> Any:
        """Return the topic for a copy of a table's writes; None without one.

        The topic that Faust makes for a table is written only if the program reads it. A topic that
        the program sets is always written.
        """
        name = table._changelog_topic_name()
        topic = table._changelog_topic
        if topic is not None and not (topic.internal and topic.get_topic_name() == name):
            return topic
        followed = {
            each.changelog_topic.get_topic_name()
            for each in self.app.tables.values()
            if isinstance(each, GlobalTableT) and each is not table
        }
        return table.changelog_topic if name in self._by_topic or name in followed else None

    def _follow(self, table: Any) -> None:
        """Have a global table read its topic.

        Raises:
            SettingsError: the topic is the changelog of a set table.
        """
        followed = table.changelog_topic.get_topic_name()
        sets = {
            each.changelog_topic.get_topic_name() for each in self.app.tables.values() if isinstance(each, SetTable)
        }
        if followed in sets:
            raise SettingsError(
                f"global table {table.name}: topic {followed} has operations on sets, so that a look-up finds nothing. "
                "Have an agent send whole sets to a topic, and read that topic with app.GlobalTable"
            )
        store = GlobalStore(
            "ratchet://",
            table.app,
            table,
            key_type=table.key_type,
            value_type=table.value_type,
            key_serializer=table.key_serializer,
            value_serializer=table.value_serializer,
        )
        store.read = self.hosted.engine.GlobalTable(table.name, topic=followed, key_type=bytes, value_type=bytes)
        table._data = store

    def _close_channels(self) -> None:
        """Make in-memory channels refuse events from agents."""
        for channel in find_channels(self.app):
            refuse_puts(channel)

    def _declare_topics(self) -> None:
        """Declare the topics that agents may send to, since a lane must know them before it starts."""
        engine, hosted = self.hosted.engine, self.hosted
        own = {table._changelog_topic_name() for table in self.app.tables.values()}
        own |= {f"{self.app.conf.id}-__assignor-__leader", *hosted.regrouped.values()}
        own -= hosted.changelogs.keys()
        for name, topic in find_topics(self.app).items():
            send_at_once(topic)
            reads = name in self._by_topic
            if name in self._judged or (topic.internal and not reads and name in own):
                continue
            if not reads or len(engine.streams) > 1:
                engine.topic(name)
        for name in sorted(topics_named(sources_of(self.app)) - find_topics(self.app).keys()):
            if name not in self._judged:
                engine.topic(name)


def _groups(units: list[Unit]) -> list[list[Unit]]:
    """Return groups of agents that share a table, directly or through other agents."""
    groups: list[list[Unit]] = []
    for unit in units:
        mine = [group for group in groups if any(other.tables & unit.tables for other in group)]
        groups = [group for group in groups if group not in mine]
        groups.append([*(each for group in mine for each in group), unit])
    return groups


def codec_of(table: Any, store: LaneStore) -> FaustCodec:
    """Return the codec of a table, with the form of its entries: serializers, JSON library, sets and windows."""
    is_set, used = isinstance(table, SetTable), library()
    parts = (f"{name} {getattr(table.window, name):g} s" for name in WINDOW_PARTS if hasattr(table.window, name))
    windows = "" if table.window is None else f", in windows of {', '.join(parts)}"

    def form(name: str) -> str:
        plain = f"{table.value_serializer} of Faust by {named(table.key_serializer, name)}"
        return f"{'sets of ' if is_set else ''}{plain}{windows}"

    def fits(key: bytes, value: bytes) -> bool:
        try:
            if windows:
                _, (start, end) = table._to_key(store._decode_key(key))
                return float(start) <= float(end)
            return not is_set or isinstance(store._decode_value(value), list)
        except (TypeError, ValueError, KeyDecodeError, ValueDecodeError):
            return False

    def is_own(keys: Iterable[bytes], value_of: Callable[[bytes], bytes]) -> bool:
        rest = iter(keys)
        first = next(rest, None)
        if first is not None and not fits(first, value_of(first)):
            return False
        if first is None or form("json") == form(used):
            return True
        return store.key_serializer == "json" and may_be_of_orjson(store, chain((first,), rest))

    # Version 0.1.0 wrote the serializers only; later ones sets and windows as well, but not the JSON library.
    earlier = {f"{table.value_serializer} of Faust by {table.key_serializer}", form("json")} - {form(used)}
    return FaustCodec(table.name, form(used), frozenset(earlier), is_own)


def lend_defaults(table: Any, store: LaneStore) -> None:
    """Watch the default values that a table returns for missing keys.

    If the program changes such a value in place and does not assign it, the next event raises an error.
    """
    missing = type(table).__missing__.__get__(table)

    def lend(key: Any) -> Any:
        data = store._encode_key(key)
        if (value := store.lent(data)) is not None:
            return value
        value = missing(key)
        encoded = store._encode_value(value)
        if encoded is not None:
            store.lend(data, value, encoded)
        return value

    table.__missing__ = lend


def changelog_sender(table: Any, topic: Any) -> Callable[..., Any]:
    """Return the table's `send_changelog`. topic: topic that receives a copy of each write; None: no copy."""

    def send_changelog(
        partition: int | None, key: Any, value: Any, key_serializer: Any = None, value_serializer: Any = None
    ) -> Any:
        work = AT_WORK.get()
        number = 0 if work is None else work.place[1]
        sender = at_hand.get()
        if topic is not None and sender is not None:
            key_bytes, _ = topic.prepare_key(key, key_serializer or table.key_serializer, None, {})
            value_bytes, _ = topic.prepare_value(value, value_serializer or table.value_serializer, None, {})
            sender.send(topic.get_topic_name(), key_bytes, value_bytes, None, number, None)
        return SimpleNamespace(message=SimpleNamespace(partition=number))

    return send_changelog


def hosted_run(
    hosted: ConvertedProgram, unit: Unit, windows: Mapping[Any, Windows]
) -> Callable[[Any], Awaitable[None]]:
    """Return an agent of Ratchet that runs a Faust agent on one partition."""
    agent, app = unit.agent, hosted.app

    async def run(lane: Lane) -> None:
        found = {
            table: OpenWindows(table, each.store, each.clock, by_record=each.by_record)
            for table, each in windows.items()
        }
        AT_HAND.set(found)
        by_record = [each for each in found.values() if each.by_record]
        last = [-1]

        async def before() -> None:
            if last[0] < 0:
                # Windows may be over already, since an earlier version of the program had a longer `expires`. A send of
                # their callback needs a current event: they close after the first.
                return
            for each in found.values():
                await each.close()

        def after(event: Any) -> None:
            last[0] = event.message.offset
            for each in by_record:
                each.advance(event.message.timestamp)

        carry_context(asyncio.get_running_loop())
        current_agent.set(agent)
        channel = LaneChannel(app, lane, unit.topics, before if found else None, after, merged=unit.merged)
        stream = stream_for(app, channel, unit.steps)
        made = agent.fun(stream)
        try:
            if not hasattr(made, "__anext__"):
                if agent._sinks:
                    raise SettingsError(
                        f"{place_of(agent.fun)}: agent {agent.name} has sinks but does not yield. Add a yield, or "
                        "remove the sinks"
                    )
                await made
                return
            stream.add_processor(agent._maybe_unwrap_reply_request)
            async with aclosing(made):
                await agent._slurp(SimpleNamespace(stream=stream), made)
        except Exception:
            hosted.replies.drop(AT_WORK.get(), last[0])
            raise

    run.__name__ = agent.name
    return run


def forward(
    app: Any, topics: dict[str, Any], derived: Any, step: RepartitionStep, topic: Topic, agent: str
) -> Callable[[Any], Awaitable[None]]:
    """Return an agent of Ratchet for a step: it forwards each event to the step's topic.

    Args:
        app: the Faust app
        topics: decoders of the input, by name
        derived: the Faust topic of the step
        step: the `group_by` or `through`
        topic: Ratchet's topic for the events.
        agent: name of the Faust agent, so that agents with equal steps have different names
    """

    async def run(lane: Lane) -> None:
        channel = LaneChannel(app, lane, topics)
        stream = stream_for(app, channel)
        for each in step.filters:
            stream.add_processor(each)
        async for value in stream:
            event = stream.current_event
            if step.key is None:
                topic.send_event(event.message.key)
                continue
            new = step.key.getattr(value) if hasattr(step.key, "getattr") else step.key(value)
            if hasattr(new, "__await__"):
                new = await new
            topic.send_event(derived.prepare_key(new, None)[0])

    run.__name__ = f"{'through' if step.key is None else 'group_by'} {step.name} of {agent}"
    return run


def merge(origin: str, topic: Topic, merged: str) -> Callable[[Any], Awaitable[None]]:
    """Return an agent of Ratchet that forwards a topic's events to a merged stream, partition by partition."""

    async def run(lane: Lane) -> None:
        async for event in lane.events():
            topic.send_event(event.key, partition=event.partition, header=(FROM, origin.encode()))

    run.__name__ = f"merge {origin} into {merged}"
    return run


def refuse_puts(channel: Any) -> None:
    """Make an in-memory channel refuse events from agents; tasks and timers may use it."""
    usual = type(channel).put.__get__(channel)

    async def put(event: Any) -> None:
        if at_hand.get() is not None:
            raise not_exact(
                "a send to a channel in memory within an agent",
                "the event would be lost when the worker ends. Send to a topic",
            )
        await usual(event)

    channel.put = put


def switch_off(app: Any) -> None:
    """Switch off Faust's own delivery guarantees, which lanes replace, and log the change."""
    conf, unused = app.conf, []
    if str(getattr(conf.processing_guarantee, "value", conf.processing_guarantee)) == "exactly_once":
        unused.append("processing_guarantee")
    if conf.stream_publish_on_commit:
        conf.stream_publish_on_commit = False
        unused.append("stream_publish_on_commit")
    app.__dict__["in_transaction"] = False
    app.flow_control.resume()
    if conf.producer_partitioner is not None:
        raise SettingsError(
            "producer_partitioner: Ratchet chooses the partition of a key like Kafka's own producers (murmur2), so a "
            "key could be in two partitions. Remove producer_partitioner from faust.App"
        )
    if (reset := conf.consumer_auto_offset_reset) != "earliest":
        raise SettingsError(
            f"consumer_auto_offset_reset={reset!r}: {FROM_EARLIEST}. Remove consumer_auto_offset_reset from faust.App. "
            f"To leave out earlier records, set the offsets of group {conf.id} with kafka-consumer-groups "
            "--reset-offsets --to-latest, and run `ratchet state import --faust MODULE:NAME`"
        )
    if unused:
        log.info("Ratchet commits the effects of agents in transactions; these settings are not used", settings=unused)
