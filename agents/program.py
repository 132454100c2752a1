"""A program: the streams, tables and agents of one's own, as `ratchet worker --app` finds them.

Nothing here knows Kafka. The settings say which topics a stream has; the worker puts both together.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kafka_ratchet.agents.faust_names import refuse
from kafka_ratchet.agents.timers import TimedStream, Timer, Timers
from kafka_ratchet.agents.topic import Topic
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.tables.values.codec import Serializer
from kafka_ratchet.tables.values.global_table import GlobalTable
from kafka_ratchet.tables.values.table import Table

OnError = Literal["halt", "dead-letter"]
Function = Callable[[Any], Any]


@dataclass(eq=False)
class Agent:
    """A function over the events of a stream, as `App.agent` registered it.

    Attributes:
        function: an async generator function, or a coroutine function where nothing is yielded
        stream: whose events it takes
        on_error: what becomes of a record for which it raises
        deterministic: whether it gives the same again for the same events; see `ratchet verify --replay`
        name: of the function
    """

    function: Function
    stream: StreamDefinition
    on_error: OnError = "halt"
    deterministic: bool = True

    @property
    def name(self) -> str:
        """Of the function."""
        return getattr(self.function, "__name__", repr(self.function))


@dataclass(eq=False)
class StreamDefinition:
    """A stream of the settings, as a program declares it.

    Attributes:
        name: `[streams.NAME]` of the settings
        value_type: what msgspec decodes values as; None: any JSON; bytes: as they are
        agents: in the order of their registration, which is the order in which each batch goes through them
        timers: called for each of its partitions
    """

    name: str
    value_type: Any = None
    agents: list[Agent] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)


class App(Timers):
    """Agents of one's own over deduplicated streams.

    What an agent yields and what it writes to tables commits together with the records it read, or not at all.
    """

    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[str, StreamDefinition] = {}
        self.tables: dict[str, Table] = {}
        self.topics: dict[str, Topic] = {}
        self.global_tables: dict[str, GlobalTable] = {}
        self._owners: dict[str, StreamDefinition | None] = {}

    if not TYPE_CHECKING:  # to a type checker a name that is not here is a mistake

        def __getattr__(self, name: str) -> Any:
            refuse(name)

    def stream(self, name: str, *, value_type: Any = None) -> StreamDefinition:
        """Declare a stream.

        Args:
            name: `[streams.NAME]` of the settings
            value_type: a msgspec.Struct, a dataclass, `dict`, `bytes`, ...; None: any JSON

        Raises:
            SettingsError: it was declared before.
        """
        if name in self.streams:
            raise SettingsError(f"stream {name} is declared twice: declare it once, and use it for each agent")
        self.streams[name] = StreamDefinition(name, value_type)
        return self.streams[name]

    def check_own(self, stream: TimedStream) -> None:
        """See that a stream is one of this app.

        Raises:
            SettingsError: it is not.
        """
        if self.streams.get(stream.name) is not stream:
            raise SettingsError(f"stream {stream.name} is not one of this app: declare it with its `stream`")

    def of(self, stream: str) -> list[Agent]:
        """The agents of a stream, in the order of their registration; none where the program does not know it."""
        return self.streams[stream].agents if stream in self.streams else []

    def tables_of(self, stream: str) -> list[Table]:
        """The tables that a stream's agents read and write."""
        return [table for name, table in self.tables.items() if self._owners[name] in (None, self.streams.get(stream))]

    def check(self, streams: Collection[str]) -> None:
        """Whether the program fits the settings.

        Args:
            streams: names of `[streams.NAME]` in the settings

        Raises:
            SettingsError: it names a stream that they do not have, has no agent, or has a table that could be of
                several streams.
        """
        for name in self.streams:
            if name not in streams:
                has = ", ".join(sorted(streams)) or "none"
                raise SettingsError(f"streams.{name}: the program names it, and the settings do not; they have {has}")
        busy = [name for name in self.streams if self.of(name)]
        if not busy:
            raise SettingsError("the program has no agent: write `@app.agent(stream)` above a function")
        for name, stream in self.streams.items():
            if stream.timers and not stream.agents:
                raise SettingsError(
                    f"streams.{name}: has a timer ({stream.timers[0].name}) and no agent: a timer of a stream runs "
                    "beside its agents"
                )
        for name, owner in self._owners.items():
            if owner is None and len(busy) > 1:
                raise SettingsError(
                    f"table {name}: streams {', '.join(busy)} have agents, and each would have a table of its own. Say "
                    "which stream's it is: app.Table(..., stream=...)"
                )

    def rules(self) -> dict[str, str]:
        """What workers of one group have to agree on."""
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
        topics = {"topics of agents": ", ".join(sorted(self.topics))} if self.topics else {}
        windows = {f"table {name}": str(table.window) for name, table in sorted(self.tables.items()) if table.window}
        return agents | timers | topics | windows

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

        stream: whose agents read and write it; needed where several streams have agents

        Raises:
            SettingsError: there is one of that name, or a type cannot be used.
        """
        self._refuse_twice(name)
        self._owners[name] = stream
        self.tables[name] = Table(name, default, key_type, value_type, serializer)
        return self.tables[name]

    def topic(self, name: str) -> Topic:
        """Declare a topic to which agents send: `await topic.send(key=, value=)`.

        Args:
            name: in Kafka; the same name gives the same topic
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

        topic: None: the one that is called as the table

        Raises:
            SettingsError: there is a table of that name, or a type cannot be used.
        """
        self._refuse_twice(name)
        where = topic.name if isinstance(topic, Topic) else topic or name
        made = GlobalTable(name, where, default, key_type, value_type, serializer, memory_mb)
        self.global_tables[name] = made
        return made

    def _refuse_twice(self, table: str) -> None:
        if table in self.tables or table in self.global_tables:
            raise SettingsError(f"table {table} is declared twice: declare it once")

    def agent(
        self, stream: StreamDefinition, *, on_error: OnError = "halt", deterministic: bool = True
    ) -> Callable[[Function], Function]:
        """Register a function over the events of a stream.

        Each partition of the input has its own run of it, which takes the partition's events in the order of their
        offsets. A run begins anew whenever a transaction was rolled back: what it kept outside tables is gone then.

        Args:
            stream: of this app
            on_error: "halt": the partition halts at a record for which the function raises, until the program is
                mended; "dead-letter": the record goes to the dead-letter topic with the reason, its changes of tables
                and its outputs are undone, and the next record follows
            deterministic: False: its outputs or tables depend on more than its events and tables (a clock, chance,
                another service), so that `ratchet verify --replay` cannot compute them again

        Raises:
            SettingsError: the function or the stream cannot be used.
        """
        if on_error not in ("halt", "dead-letter"):
            raise SettingsError(f"on_error is {on_error!r}; there are halt and dead-letter")
        self.check_own(stream)

        def register(function: Function) -> Function:
            if not (inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function)):
                raise SettingsError(f"agent {function!r}: write `async def` with one parameter, the stream")
            stream.agents.append(Agent(function, stream, on_error, deterministic))
            return function

        return register
