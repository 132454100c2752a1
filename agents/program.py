"""Program of a user: an App with its streams, tables and agents, for `ratchet worker --app`.

This module does not use Kafka. The settings name the topics of each stream, and the worker combines program and
settings.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

from kafka_ratchet.agents.timers import TimedStream, Timer, Timers
from kafka_ratchet.agents.topic import Topic, TopicOptions
from kafka_ratchet.errors import NotInApp, SettingsError
from kafka_ratchet.tables.values.codec import Serializer
from kafka_ratchet.tables.values.global_table import GlobalTable
from kafka_ratchet.tables.values.table import Table

Key = Callable[[Any], Any]


def regroup(name: str, topic: Topic, key: Any) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """Return the agent that forwards each event of a stream to an internal stream, under another key.

    Args:
        name: name of the internal stream.
        topic: topic of the internal stream.
        key: function from a value to the new key; or a field of the value's class, such as `Order.user`

    Raises:
        SettingsError: the key is neither a function nor a field.
    """
    if not callable(key):
        field = getattr(key, "__name__", None)
        if field is None or not hasattr(key, "__get__"):
            raise SettingsError(
                f"group_by {name}: key is {key!r:.100}. Give a function of the value, or a field of its class"
            )
        key = attrgetter(field)
    key_of: Key = key

    async def forward(stream: Any) -> None:
        async for value in stream:
            topic.send_event(key_of(value))

    forward.__name__ = f"group_by {name}"
    return forward


INSTEAD: Final = {
    "app": "there is no Faust app in it, because a Faust agent or table runs outside the transactions. Write "
    "`@app.agent(app.stream(...))` and `app.Table(...)`",
    "SetTable": "write `app.Table(NAME, default=set, value_type=set[str])`",
    "SetGlobalTable": "write `app.Table(NAME, default=set, value_type=set[str])`",
    "actor": "write `@app.agent(app.stream(...))`",
    "channel": "call a function, or send to a topic",
    "command": "write a script of its own",
    "conf": "settings are in ratchet.toml and RATCHET_* variables",
    "crontab": "write `@app.timer(60)` and look at the clock, or have a cron job publish an event",
    "main": "write `ratchet worker --app MODULE:app`",
    "page": "run a web server of its own; `ratchet web` shows tables",
    "service": "run it in a process of its own",
}
"""Replacements for attributes of Faust's App that Ratchet's App lacks, by attribute."""


def refuse(name: str) -> NoReturn:
    """Raise the error for an attribute that an App lacks.

    Raises:
        NotInApp: Faust's App has the attribute; the message names the replacement.
        AttributeError: neither App has it.
    """
    if name in INSTEAD:
        raise NotInApp(f"app.{name}: {INSTEAD[name]}. docs/guide/from-faust.md lists the replacements of Faust's names")
    raise AttributeError(f"an App of kafka_ratchet has no {name!r}")


OnError = Literal["halt", "dead-letter"]
Function = Callable[[Any], Any]


@dataclass(eq=False)
class Agent:
    """Function over the events of a stream, registered by `App.agent`.

    Attributes:
        function: an async generator function, or a coroutine function without yields.
        stream: stream of its events.
        on_error: treatment of a record after an error of the function.
        deterministic: True if equal events give equal outputs; see `ratchet verify --replay`.
        name: name of the function.
    """

    function: Function
    stream: StreamDefinition
    on_error: OnError = "halt"
    deterministic: bool = True
    is_step: bool = False

    @property
    def name(self) -> str:
        """Return the function's name."""
        return getattr(self.function, "__name__", repr(self.function))


@dataclass(eq=False)
class StreamDefinition:
    """Stream of the settings, as a program declares it.

    Attributes:
        app: app of the program.
        name: `[streams.NAME]` of the settings.
        value_type: type into which msgspec decodes values; None: any JSON; bytes: undecoded.
        agents: agents in the order of registration; they process each batch in this order.
        timers: timers called for each partition of the stream.
        topic: the internal topic that the stream reads, filled by agents of other streams; None: the stream reads
            an input of the settings.
        fed_by: streams with a `group_by` that forwards to this stream.
        partitions: partition count of a new internal topic, unless the settings have one; None: as many as the largest
            stream in `fed_by`.
    """

    app: App
    name: str
    value_type: Any = None
    agents: list[Agent] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    topic: Topic | None = None
    fed_by: list[StreamDefinition] = field(default_factory=list)
    partitions: int | None = None

    def group_by(self, name: str, key: Any, *, value_type: Any = None, on_error: OnError = "halt") -> StreamDefinition:
        """Forward each event under another key, in the same transaction, to an internal stream.

        Several streams may be grouped into one, in order to join them.

        Args:
            name: name of the internal stream.
            key: function from a value to the new key; or a field of the value's class, such as `Order.user`.
            value_type: type of the internal stream; None: the type of this stream.
            on_error: treatment of an event without a computable key, as in `App.agent`.

        Returns:
            the internal stream, for agents and tables.

        Raises:
            SettingsError: the key or the name is not suitable, the internal stream has another `value_type`, or events
                would come twice or come back to this stream.
        """
        step, topic = _step_of(self.app, self, name, self.value_type if value_type is None else value_type)
        self.app.agent(self, on_error=on_error)(regroup(name, topic, key))
        self.agents[-1].is_step = True
        return step

    @property
    def has_own_agents(self) -> bool:
        """Return True if the stream has agents other than those of `group_by`."""
        return any(not agent.is_step for agent in self.agents)

    @property
    def send(self) -> Callable[..., Awaitable[None]]:
        """Send a record to this internal stream, from an agent of another stream; see `Topic.send`.

        Raises:
            SettingsError: the stream reads a topic of the settings.
        """
        if self.topic is None:
            raise SettingsError(
                f"stream {self.name} reads a topic of the settings. Send to app.topic(NAME of its input), or "
                "declare the stream with internal=True"
            )
        return self.topic.send


class App(Timers):
    """Program of a user: streams, tables, and agents over deduplicated events.

    An agent's outputs and table writes commit together with the records that it read, or not at all.
    """

    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[str, StreamDefinition] = {}
        self.tables: dict[str, Table] = {}
        self.topics: dict[str, Topic] = {}
        self.topic_options: dict[str, TopicOptions] = {}
        """Options of missing topics by name, from a Faust program."""
        self.global_tables: dict[str, GlobalTable] = {}
        self._owners: dict[str, StreamDefinition | None] = {}

    if not TYPE_CHECKING:  # to a type checker an absent name is a mistake

        def __getattr__(self, name: str) -> Any:
            refuse(name)

    def stream(self, name: str, *, value_type: Any = None, internal: bool = False) -> StreamDefinition:
        """Declare a stream.

        Args:
            name: `[streams.NAME]` of the settings.
            value_type: a msgspec.Struct, a dataclass, `dict`, `bytes`, ...; None: any JSON.
            internal: True for a stream that other streams' agents fill by `send`; it has an internal topic and no
                section in the settings.

        Raises:
            SettingsError: the stream is already declared.
        """
        if name in self.streams:
            raise SettingsError(f"stream {name} is declared twice. Declare it once, and use it for each agent")
        # Its name in Kafka has the application's in it, which the settings say (kafka_ratchet.app.worker.steps).
        topic = Topic(f"{name}-repartition") if internal else None
        self.streams[name] = StreamDefinition(self, name, value_type, topic=topic)
        return self.streams[name]

    def check_own(self, stream: TimedStream) -> None:
        """Check that a stream belongs to this app.

        Raises:
            SettingsError: it belongs to another app.
        """
        if self.streams.get(stream.name) is not stream:
            raise SettingsError(f"stream {stream.name} does not belong to this app. Declare it with the app's `stream`")

    def of(self, stream: str) -> list[Agent]:
        """Return the agents of a stream, in the order of their registration.

        The list is empty if the program does not declare the stream.
        """
        return self.streams[stream].agents if stream in self.streams else []

    def tables_of(self, stream: str) -> list[Table]:
        """Return the tables that a stream's agents read and write."""
        found = self.streams.get(stream)
        theirs = (None, found) if found is not None and found.has_own_agents else (found,)
        return [table for name, table in self.tables.items() if self._owners[name] in theirs]

    def check(self, streams: Collection[str]) -> None:
        """Check that the program fits the settings.

        Args:
            streams: names of `[streams.NAME]` in the settings.

        Raises:
            SettingsError: the program has no agent; a stream is missing in the settings, or has a timer and no agent;
                or a table does not name its stream, and several streams have agents.
        """
        for name in self.streams:
            if name not in streams:
                has = ", ".join(sorted(streams)) or "none"
                raise SettingsError(
                    f"streams.{name}: the program declares it, but the settings have only {has}. Add the section, "
                    "or remove the stream"
                )
        busy = [name for name, stream in self.streams.items() if stream.has_own_agents]
        if not any(map(self.of, self.streams)):
            raise SettingsError("the program has no agent. Write `@app.agent(stream)` above a function")
        for name, stream in self.streams.items():
            if stream.timers and not stream.agents:
                raise SettingsError(
                    f"streams.{name}: has a timer ({stream.timers[0].name}) but no agent, and a stream's timer "
                    "needs agents. Add an agent, or remove the stream from the timer"
                )
        for name, owner in self._owners.items():
            if owner is None and len(busy) > 1:
                raise SettingsError(
                    f"table {name}: streams {', '.join(busy)} have agents, and each would have its own table. Name "
                    "the stream of the table: app.Table(..., stream=...)"
                )

    def rules(self) -> dict[str, str]:
        """Return the properties of the program that must be equal on all workers of a group."""
        agents = {
            f"agents of {name}": ", ".join([agent.name for agent in self.of(name)])
            for name in sorted(self.streams)
            if self.of(name)
        }
        timers = {
            f"timers of {name}": ", ".join(timer.name for timer in stream.timers)
            for name, stream in sorted(self.streams.items())
            if stream.timers
        }
        internal = [name for name, stream in self.streams.items() if stream.topic is not None]
        shared = {"topics of agents": sorted(self.topics), "internal streams": sorted(internal)}
        # A worker with another `expires` is admitted: it only removes windows earlier or later.
        windows = {
            f"table {name}": str(table.window._replace(expires=None))
            for name, table in sorted(self.tables.items())
            if table.window
        }
        return agents | timers | {name: ", ".join(each) for name, each in shared.items() if each} | windows

    def Table(
        self,
        name: str,
        *,
        default: Callable[[], Any] | None = None,
        key_type: Any = None,
        value_type: Any = None,
        serializer: Serializer = "json",
        stream: StreamDefinition | None = None,
    ) -> Table:
        """Declare a table; see `kafka_ratchet.tables.values.table.Table`.

        stream: stream with the agents that use the table; needed if several streams have agents

        Raises:
            SettingsError: a table of that name exists, or a type is not supported.
        """
        self._refuse_twice(name)
        self._owners[name] = stream
        self.tables[name] = Table(name, default, key_type, value_type, serializer)
        return self.tables[name]

    def topic(self, name: str) -> Topic:
        """Declare a topic for sends of agents: `await topic.send(key=, value=)`.

        Args:
            name: name in Kafka; the same name gives the same topic
        """
        return self.topics.setdefault(name, Topic(name))

    def GlobalTable(
        self,
        name: str,
        *,
        topic: str | Topic | None = None,
        default: Callable[[], Any] | None = None,
        key_type: Any = None,
        value_type: Any = None,
        serializer: Serializer = "json",
        memory_mb: int = 256,
    ) -> GlobalTable:
        """Declare a table for look-ups; see `kafka_ratchet.tables.values.global_table.GlobalTable`.

        topic: topic with the contents; None: the topic of the table's name

        Raises:
            SettingsError: a table of that name exists, or a type is not supported.
        """
        self._refuse_twice(name)
        where = topic.name if isinstance(topic, Topic) else topic or name
        made = GlobalTable(name, where, default, key_type, value_type, serializer, memory_mb)
        self.global_tables[name] = made
        return made

    def _refuse_twice(self, table: str) -> None:
        if table in self.tables or table in self.global_tables:
            raise SettingsError(f"table {table} is declared twice. Declare it once")

    def agent(
        self, stream: StreamDefinition, *, on_error: OnError = "halt", deterministic: bool = True
    ) -> Callable[[Function], Function]:
        """Register a function over the events of a stream.

        The function runs once for each input partition, and takes the partition's events in the order of offsets. A run
        restarts after each rollback of a transaction, and loses its state outside tables.

        Args:
            stream: stream of this app.
            on_error: "halt": an error halts the partition at that record, until the program is corrected.
                "dead-letter": the record goes to the dead-letter topic with the reason, and its table changes and
                outputs are undone.
            deterministic: False: outputs or tables depend on more than events and tables (a clock, chance, another
                service), so that `ratchet verify --replay` cannot compute them again.

        Raises:
            SettingsError: `on_error`, the function or the stream is not suitable, or the stream has an agent of that
                name.
        """
        if on_error not in ("halt", "dead-letter"):
            raise SettingsError(f"on_error is {on_error!r}. Write halt or dead-letter")
        self.check_own(stream)

        def register(function: Function) -> Function:
            if not (inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function)):
                raise SettingsError(
                    f"agent {function!r} is not an async function. Write `async def` with one parameter, the stream"
                )
            agent = Agent(function, stream, on_error, deterministic)
            if agent.name in {other.name for other in stream.agents}:
                raise SettingsError(
                    f"streams.{stream.name}: has two agents named {agent.name}. Give one of the functions another "
                    "name, because a replayed dead letter goes to agents by name"
                )
            stream.agents.append(agent)
            return function

        return register


def _step_of(app: App, parent: StreamDefinition, name: str, value_type: Any) -> tuple[StreamDefinition, Topic]:
    """Return the internal stream that gets a stream's events, and the topic between them; make both if missing.

    Raises:
        SettingsError: the name is not suitable, the internal stream has another `value_type`, or events would come
            twice or come back to their stream.
    """
    if not isinstance(name, str):
        raise SettingsError(
            f"stream {parent.name}: group_by needs the name of the internal stream as first argument: "
            "group_by(NAME, key=...)"
        )
    step = app.streams.get(name) or app.stream(name, value_type=value_type, internal=True)
    if step.topic is None:
        raise SettingsError(
            f"group_by {name}: a stream of that name exists. Choose another name for the internal stream"
        )
    if step.value_type != value_type:
        raise SettingsError(
            f"group_by {name}: its values would have two types, {step.value_type!r} and {value_type!r}. Give the "
            "same value_type= each time"
        )
    if parent in step.fed_by:
        raise SettingsError(
            f"group_by {name}: stream {parent.name} is already grouped into it, so that each event would come "
            "twice. Remove one group_by"
        )
    if step in ancestors_of(parent):
        raise SettingsError(
            f"group_by {name}: events of {parent.name} come from that stream, so that they would circulate forever. "
            "Group into another stream"
        )
    step.fed_by.append(parent)
    return step, step.topic


def ancestors_of(stream: StreamDefinition) -> list[StreamDefinition]:
    """Return a stream, and all streams that feed it by `group_by`, directly or not."""
    return [stream, *(each for parent in stream.fed_by for each in ancestors_of(parent))]
