"""Entry point `faust.transports`: broker="ratchet://HOST:PORT" has lanes run the agents of a Faust app."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final

import structlog
from faust.app.base import BootStrategy
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from mode import Service
from yarl import URL

from kafka_ratchet.agents.topic import TopicOptions
from kafka_ratchet.app.faust_host.answers import Answers
from kafka_ratchet.app.faust_host.check import in_memory, refuse_shown
from kafka_ratchet.app.faust_host.inputs import find_topics, function_of, options_of, sources_of
from kafka_ratchet.app.faust_host.producer import LaneProducer
from kafka_ratchet.app.faust_host.program import ConvertedProgram, host, switch_off
from kafka_ratchet.app.faust_host.refusals import not_exact
from kafka_ratchet.app.faust_host.router import LaneRouter, Route
from kafka_ratchet.app.faust_host.worker_settings import (
    bootstrap_of,
    client_options_of,
    judged_topics,
    settings_for,
    streams_of,
    write_for_commands,
)
from kafka_ratchet.app.local.connectivity import wait_until_reachable
from kafka_ratchet.app.names import changelog_name
from kafka_ratchet.app.processed import processed_partitions
from kafka_ratchet.app.settings import Settings, given
from kafka_ratchet.app.status.answers import INCOMPLETE
from kafka_ratchet.app.status.group import ask_group
from kafka_ratchet.app.status.server import StatusServer
from kafka_ratchet.app.worker.application import Application
from kafka_ratchet.app.worker.compile import compile_kernels
from kafka_ratchet.app.worker.faust_app import credentials
from kafka_ratchet.app.worker.process import allow_many_files, prepare, state_folder
from kafka_ratchet.app.worker.program import digest_of
from kafka_ratchet.app.worker.sent_topics import check_topics
from kafka_ratchet.app.worker.steps import with_steps
from kafka_ratchet.app.worker.topics import NOT_COMPACTED, config_of, create
from kafka_ratchet.errors import (
    BrokerUnavailable,
    PartitionsDiffer,
    RatchetError,
    SettingsError,
    StateError,
    TopicError,
)
from kafka_ratchet.producers import admin_client
from kafka_ratchet.spark_sink.secrets import hidden
from kafka_ratchet.topic_log.clients import partition_counts
from kafka_ratchet.transport.assignment import Lanes as AssignedLanes
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.lane import Lane
from kafka_ratchet.transport.lane_spec import LaneState
from kafka_ratchet.transport.stalls import StallCause

log = structlog.get_logger(__name__)

GROUP_S: Final = 30.0
BEGINNING: Final = (LaneState.STARTING, LaneState.RESTORING)
BUSY: Final = (StallCause.STARTING, StallCause.RESTORING)
"""Causes of a slow start that come from its own work; with any other cause, the lane waits for Kafka."""
LOOK_EVERY_S: Final = 0.1
"""Seconds between two looks at the lanes of a starting worker. Lanes do not report changes of their states."""
SIGNALS: Final = ("on_partitions_assigned", "on_partitions_revoked", "on_rebalance_complete")
"""Names of a Faust app's signals about its consumer group."""


class NoConsumer(Service):
    """Stand-in for Faust's consumer: without a group, it reads and acknowledges nothing."""

    def __init__(self, transport: Any, callback: Any = None, **options: Any) -> None:
        self.transport, self.app, self.transactions = transport, transport.app, None
        self.unacked: set[Any] = set()
        self._unacked_messages = self.unacked
        super().__init__(loop=options.get("loop"), beacon=options.get("beacon"))

    def assignment(self) -> set[Any]:
        """Return no partitions, because the lanes own them."""
        return set()

    def topic_partitions(self, topic: str) -> int | None:
        """Return None, because the lanes check partition counts."""
        return None

    def stop_flow(self) -> None:
        """Do nothing: no flow to stop."""

    def resume_flow(self) -> None:
        """Do nothing: no flow to resume."""

    def pause_partitions(self, partitions: Any) -> None:
        """Do nothing: no partitions to pause."""

    def close(self) -> None:
        """Do nothing: no connection to close."""

    async def wait_empty(self) -> None:
        """Return at once: no events to wait for."""

    async def commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        """Commit nothing, because a lane commits its own position."""
        return False

    async def on_task_error(self, exc: BaseException) -> None:
        """Ignore a task's error."""


class NoConductor(driver.Transport.Conductor):
    """Stand-in for Faust's register of topics. A stream outside an agent is refused."""

    @cached_property
    def _answers(self) -> Answers:
        return Answers(self.app)

    def add(self, topic: Any) -> None:
        """Refuse a topic, unless the app runs as a client only.

        Raises:
            SettingsError: the program iterates over a topic outside an agent.
        """
        if self.app.client_only:
            super().add(topic)
            return
        if list(topic.topics) == [self.app.conf.reply_to]:  # answers to `ask` of a timer, task or page
            self._answers.read(topic)
            return
        raise not_exact(
            f"a stream over topic {topic} outside an agent",
            "its offsets would be committed apart from its effects. Write an agent",
        )


@contextmanager
def ending_with_a_sentence() -> Iterator[None]:
    """End the process with the message of a RatchetError raised in the block.

    Raises:
        SystemExit: with exit code 2; otherwise Faust would print a long traceback.
    """
    try:
        yield
    except RatchetError as error:
        log.error(str(error))
        raise SystemExit(2) from None


class Preparation(Service):
    """First service of a hosted worker: reads program and settings, and waits for Kafka."""

    def __init__(self, app: Any, lanes: Lanes, **options: Any) -> None:
        self.app, self.lanes = app, lanes
        super().__init__(**options)

    async def on_start(self) -> None:
        """Read the program and wait for Kafka before Faust's producer starts, which would fail without it."""
        with ending_with_a_sentence():
            app, transport = self.app, self.app.transport
            route_log_lines()
            allow_many_files()
            switch_off(app)
            hosted, settings = await asyncio.to_thread(hosted_app, app, transport.config, transport.given)
            if settings.bootstrap is None:
                raise SettingsError(
                    "broker: names no Kafka cluster. Write for example faust.App(..., "
                    'broker="ratchet://127.0.0.1:9092")'
                )
            self.lanes.hosted, self.lanes.settings = hosted, settings
            for sentence in in_memory(sources_of(app)):
                log.warning(sentence)
            await asyncio.to_thread(
                wait_until_reachable, settings.bootstrap, settings.kafka, settings.kafka_timeout_s, self._say
            )

    def _say(self, sentence: str) -> None:
        """Log the reason for waiting. If the worker is stopping, raise an error to end the waiting thread."""
        if self.should_stop:
            raise BrokerUnavailable("the worker was stopped before Kafka answered")
        log.warning(sentence)


class Lanes(Service):
    """Service that runs the lanes of a hosted app in place of Faust's consumer, agents and tables."""

    def __init__(self, app: Any, **options: Any) -> None:
        self.app = app
        self._held = ExitStack()
        self._stop = asyncio.Event()
        self.application: Application | None = None
        self._status: StatusServer | None = None
        self.hosted: ConvertedProgram | None = None
        self.settings: Settings | None = None
        super().__init__(**options)

    async def on_start(self) -> None:
        """Prepare topics and state, join the group and start the status server."""
        with ending_with_a_sentence():
            await self._begin()

    async def _begin(self) -> None:
        app, hosted, settings = self.app, self.hosted, self.settings
        assert hosted is not None  # noqa: S101 - `Preparation`
        assert settings is not None  # noqa: S101 - likewise
        assert settings.bootstrap is not None  # noqa: S101 - likewise
        bootstrap, transport = settings.bootstrap, app.transport
        self._held.enter_context(state_folder(settings.state_folder))
        app.transport.url = [URL(f"kafka://{each}") for each in bootstrap.split(",")]
        await asyncio.to_thread(compile_kernels)
        found = await asyncio.to_thread(prepare_all, hosted, settings, bootstrap)
        self.application = made = Application(settings, bootstrap, found.topics, hosted.engine, found.sends)
        self._connect(hosted, made)
        pages = str(app.conf.canonical_url) if app.conf.web_enabled else None
        web = settings.web
        digest = digest_of([function_of(agent.fun) for agent in app.agents.values()])
        self._status = StatusServer(
            made.answers, web.host, web.status_port, history=made.past, pages=pages, program=digest
        )
        url = await self._status.start()
        config = write_for_commands(settings, transport.folder or settings.state_folder)
        await made.start(url)
        code = {"status": url, "config": str(config), "program": digest}
        log.info("worker runs", app=settings.app, streams=list(settings.streams), **code)
        self.add_future(self._run(made))

    async def _run(self, application: Application) -> None:
        await application.run_until(self._stop)
        if not self._stop.is_set():
            await self.app.stop()

    def _connect(self, hosted: ConvertedProgram, application: Application) -> None:
        """Make tables readable outside agents, and give Faust's producer the names of the lanes' topics."""
        app = self.app
        sends = {*hosted.engine.topics, *(topic for each in application.streams.values() for topic in each.sends)}
        app.producer.known, app.producer.replies = frozenset(sends), hosted.replies
        for name, store in hosted.stores.items():
            store.parts = lambda name=name: committed_parts(application, name)  # type: ignore[misc]
        app.__dict__["_leader_assignor"] = Leader(application)
        app.tables.wait_until_recovery_completed = partial(until_lanes_run, app, application.lanes)
        settings = application.settings
        inputs = {changelog_name(settings.app, name): each.input for name, each in settings.streams.items()}
        forward_signals(application.app, app, inputs)
        found = find_topics(app)
        by_topic = {topic: Route(name, found[topic]) for name, topic in hosted.inputs.items() if topic in found}
        tables = {name: Route(*route) for name, route in hosted.routes.items()}
        app.__dict__["router"] = LaneRouter(app, application, tables, by_topic)

    async def on_stop(self) -> None:
        """Commit and stop every lane, then leave the group."""
        self._stop.set()
        if self.application is not None:
            await self.application.stop()
        if self._status is not None:
            await self._status.stop()
        self._held.close()


async def until_lanes_run(app: Any, lanes: AssignedLanes) -> bool:
    """Wait until the lanes of the first assignment run, so that tasks see a leader and complete tables.

    A failed lane is not waited for: its partition may stay halted. Nor is a lane that Kafka keeps from starting: its
    partition may stay without a leader.

    Returns:
        True if the app has stopped before.
    """
    while not app.should_stop:
        if lanes.has_joined and not lanes.waiting and not any(map(_begins, lanes.running.values())):
            return False
        await app.sleep(LOOK_EVERY_S)
    return True


def _begins(lane: Lane) -> bool:
    """Return True if a lane is on its way to its first records, however long its replay takes."""
    if lane.status.state not in BEGINNING or lane.status.restarts:
        return False
    stall = lane.stall()
    return stall is None or stall.cause in BUSY


def forward_signals(member: Any, app: Any, inputs: Mapping[str, str]) -> None:
    """Forward the signals about assigned and revoked partitions to the program's handlers.

    Args:
        member: Faust app in the group; its signals have partitions of changelogs
        app: the program's Faust app
        inputs: by changelog, the input topic to name in place of the changelog
    """
    for name in SIGNALS:
        getattr(member, name).connect(_sending(getattr(app, name), inputs))


def _sending(signal: Any, inputs: Mapping[str, str]) -> Callable[..., Any]:
    async def send(_: Any, *partitions: Any, **__: Any) -> None:
        await signal.send(
            *({TP(inputs.get(each.topic, each.topic), each.partition) for each in those} for those in partitions)
        )

    return send


class Leader:
    """Leadership among workers: the leader runs the first partition of the first stream."""

    def __init__(self, application: Application) -> None:
        self._application = application

    def is_leader(self) -> bool:
        """Return True if this worker is the leader now."""
        first = next(iter(self._application.streams.values()))
        return (first.topics.changelog, 0) in self._application.lanes.running


def committed_parts(application: Application, table: str) -> list[Any]:
    """Return the partitions of a table on this worker, as of their last commits."""
    found = []
    for stream in application.streams.values():
        if table not in {each.name for each in stream.sequences.tables}:
            continue
        for (changelog, number), lane in sorted(application.lanes.running.items()):
            if changelog == stream.topics.changelog and lane.status.state not in INCOMPLETE:
                try:
                    found.append(stream.sequences.partition(number).committed_table(table))
                except StateError:  # it is on its way to another worker
                    continue
    return found


def hosted_app(
    app: Any, path: Path | None = None, overrides: Mapping[str, Any] = MappingProxyType({})
) -> tuple[ConvertedProgram, Settings]:
    """Convert a Faust app into a program, and load its settings.

    Args:
        app: the Faust app
        path: path of ratchet.toml, as for `load`
        overrides: settings of the command line

    Raises:
        SettingsError: the app cannot be hosted, or a setting is invalid.
    """
    refuse_shown(sources_of(app))
    values = given(path)
    hosted = host(app, streams_of(values), judged_topics(values))
    hosted.engine.topic_options = options = options_of(app)
    settings = with_steps(settings_for(app, hosted.inputs, options, path, overrides), hosted.engine)
    hosted.engine.check(settings.streams)
    check_topics(hosted.engine, settings)
    return hosted, settings


def prepare_all(hosted: ConvertedProgram, settings: Settings, bootstrap: str) -> Any:
    """Create missing topics, and check the existing ones.

    Raises:
        RatchetError: a topic has the wrong number of partitions, or cannot be created.
    """
    refuse_plain_faust(hosted, settings, bootstrap)
    if hosted.meeting:
        admin = admin_client({"bootstrap.servers": bootstrap, **settings.kafka})
        topics = [each.input for each in settings.streams.values()]
        refuse_other_partitions(hosted, settings, partition_counts(admin, topics))
    prepare_changelogs(hosted, settings, bootstrap)
    return prepare(settings, bootstrap, hosted.engine)


def refuse_plain_faust(hosted: ConvertedProgram, settings: Settings, bootstrap: str) -> None:
    """Refuse to start after commits of plain Faust workers, because the tables would begin empty.

    It ignores topics with records that Ratchet's lanes have processed: there, a lane halts at another client's offset.

    Raises:
        SettingsError: the group has such offsets for a topic without records that lanes have processed.
    """
    group = ask_group(bootstrap, settings, GROUP_S)
    topics = {*hosted.inputs.values()}
    theirs = sorted(place for place in group.foreign if place[0] in topics)
    if theirs:
        started = _topics_with_records(hosted, settings, bootstrap, {topic for topic, _ in theirs})
        theirs = [place for place in theirs if place[0] not in started]
    if theirs:
        topic, number = theirs[0]
        raise SettingsError(
            f"group {settings.app}: plain Faust workers have committed offset {group.foreign[theirs[0]]} of "
            f"{topic}, partition {number}, but their tables are not imported, so that Ratchet would continue with "
            "empty ones. Stop the workers and run `ratchet state import --faust MODULE:NAME`. Or give faust.App "
            "another id or version= to begin with the first record"
        )


def _topics_with_records(hosted: ConvertedProgram, settings: Settings, bootstrap: str, topics: set[str]) -> set[str]:
    """Return the topics with records that Ratchet's lanes have processed, or with imported state."""
    return {
        topic
        for stream, topic in hosted.inputs.items()
        if topic in topics and processed_partitions(settings, bootstrap, stream)
    }


def refuse_other_partitions(hosted: ConvertedProgram, settings: Settings, counts: Mapping[str, int]) -> None:
    """Refuse different partition counts among the topics that one table's agents read.

    Otherwise a key would be in different partitions of these topics, and have a separate value for each topic.

    Args:
        hosted: the program
        settings: its settings
        counts: partition counts of the existing topics

    Raises:
        PartitionsDiffer: the counts of a table's topics differ.
    """
    for table, streams in hosted.meeting.items():
        found: dict[str, int] = {}
        for stream in streams:
            found[settings.streams[stream.name].input] = _partitions(hosted, settings, counts, stream.name)
        if len({*found.values()}) > 1:
            named = ", ".join(f"{topic} has {count}" for topic, count in sorted(found.items()))
            raise PartitionsDiffer(
                f"table {table}: agents write it from topics with different partition counts ({named}), so that a key "
                "would have a value of its own for each topic. Create the topics with the same number of partitions"
            )


def prepare_changelogs(hosted: ConvertedProgram, settings: Settings, bootstrap: str) -> None:
    """Create the changelog topics that the Faust program names, with as many partitions as the input.

    Raises:
        PartitionsDiffer: a changelog topic has another number of partitions.
        TopicError: compaction would delete operations on sets from a changelog topic.
    """
    if not hosted.changelogs:
        return
    admin = admin_client({"bootstrap.servers": bootstrap, **settings.kafka})
    for topic, stream in hosted.changelogs.items():
        counts = partition_counts(admin, [topic, *(each.input for each in settings.streams.values())])
        wanted = _partitions(hosted, settings, counts, stream)
        options, is_set_log = hosted.engine.topic_options.get(topic, TopicOptions()), topic in hosted.set_logs
        if topic not in counts:
            config = {**(NOT_COMPACTED if is_set_log else {"cleanup.policy": "compact"}), **options.config}
            if is_set_log:
                refuse_compaction(topic, config)
            replication = settings.streams[next(iter(_inputs(hosted, stream).values()))].replication
            create(admin, topic, wanted, options.replication or replication, config)
        elif counts[topic] < wanted:
            raise PartitionsDiffer(
                f"changelog topic {topic}: has {counts[topic]} partitions, but the agents of its table read "
                f"{wanted}. A key's records stay in their partition, so the numbers must be equal. Create the topic "
                f"with {wanted} partitions"
            )
        elif is_set_log:
            refuse_compaction(topic, config_of(admin, topic))


def refuse_compaction(topic: str, config: Mapping[str, str]) -> None:
    """Refuse to compact the operations of a set table.

    Raises:
        TopicError: the configuration of the table's changelog topic has compaction.
    """
    if "compact" in (policy := config["cleanup.policy"]):
        raise TopicError(
            f"changelog topic {topic}: cleanup.policy is {policy}, but its table is a SetTable, and all additions "
            "to a set have one key, so that members would disappear from the topic. Leave out compacting=True in the "
            "program; on an existing topic set cleanup.policy=delete and retention.ms=-1 with kafka-configs --alter"
        )


def _partitions(hosted: ConvertedProgram, settings: Settings, counts: Mapping[str, int], stream: str) -> int:
    """Return the partition count that a stream's input has, or will be created with.

    counts: partition counts of the existing topics
    """
    own = settings.streams[stream]
    if own.input in counts:
        return counts[own.input]
    if stream in hosted.inputs or "partitions" in own.model_fields_set:
        return own.partitions
    return max(_partitions(hosted, settings, counts, each.name) for each in hosted.engine.streams[stream].fed_by)


def _inputs(hosted: ConvertedProgram, stream: str) -> dict[str, str]:
    """Return the topics that determine a stream's partition count, each with the stream that reads it."""
    if stream in hosted.inputs:
        return {hosted.inputs[stream]: stream}
    found: dict[str, str] = {}
    for parent in hosted.engine.streams[stream].fed_by:
        found |= _inputs(hosted, parent.name)
    return found


def route_log_lines() -> None:
    """Send log lines of lanes through Faust's logging."""

    def as_text(logger: Any, name: str, line: Any) -> str:
        event = line.pop("event")
        trace = traceback.format_exc() if line.pop("exc_info", None) else ""
        text = " ".join([str(event), *(f"{key}={value!r}" for key, value in line.items())])
        return hidden(f"{text}\n{trace}" if trace else text)

    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, as_text],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


class LaneBoot(BootStrategy):
    """Start-up of a hosted worker: sensors, producer, web and lanes."""

    def server(self) -> Iterable[Any]:
        """Return the Faust services of a worker."""
        app: Any = self.app
        lanes = Lanes(app, loop=app.loop, beacon=app.beacon)
        found: Iterable[Any] = self._chain(
            self.sensors(),
            [Preparation(app, lanes, loop=app.loop, beacon=app.beacon)],
            self.kafka_producer(),
            self.web_server(),
            [lanes, app._reply_consumer],
        )
        return found


class Transport(driver.Transport):
    """Faust's transport for Kafka, with lanes in the place of its consumer."""

    Consumer: ClassVar[Any] = driver.Consumer
    Producer: ClassVar[Any] = LaneProducer
    Conductor: ClassVar[Any] = NoConductor
    driver_version = "ratchet"
    config: Path | None = None
    """Path of the settings file; None for the default of `app.settings.load`."""
    given: Mapping[str, Any] = MappingProxyType({})
    """Settings of the command line."""
    folder: Path | None = None
    """Folder for the settings file that commands use; None: the state folder."""

    def __init__(self, url: Any, app: Any, loop: Any = None) -> None:
        super().__init__(url, app, loop)
        if bootstrap := bootstrap_of(url):
            self.url = [URL(f"kafka://{each}") for each in bootstrap.split(",")]
        app.boot_strategy = LaneBoot(app)

    @property
    def client_settings(self) -> Mapping[str, Any]:
        """Return the client options of ratchet.toml or of Faust's credentials, in librdkafka's names."""
        values = {**given(self.config), **self.given}
        found: Mapping[str, Any] = values.get("kafka") or client_options_of(self.app.conf)
        return found

    def create_producer(self, **options: Any) -> Any:
        """Return Faust's producer.

        It connects with Kafka's address and login in ratchet.toml, if that file has them.
        """
        values = {**given(self.config), **self.given}
        if bootstrap := values.get("bootstrap"):
            self.url = [URL(f"kafka://{each.strip()}") for each in str(bootstrap).split(",")]
        if kafka := values.get("kafka"):
            self.app.conf.broker_credentials = credentials(client_options("", kafka))
        return super().create_producer(**options)

    def create_consumer(self, callback: Any, **options: Any) -> Any:
        """Return a consumer that reads nothing; for a client-only app, Faust's own consumer."""
        if self.app.client_only:
            return super().create_consumer(callback, **options)
        return NoConsumer(self, callback, loop=self.loop, **options)
