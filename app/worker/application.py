"""Assembly of a worker from the settings: the Faust app, streams, tables, lanes and agents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import structlog
from yarl import URL

from kafka_ratchet.agents.holding import watch_loop
from kafka_ratchet.agents.program import App
from kafka_ratchet.agents.timers import WorkerTimers
from kafka_ratchet.app.names import policy_topic
from kafka_ratchet.app.repartition import judging
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.inputs import EmptyInputs
from kafka_ratchet.app.worker import stall_watch
from kafka_ratchet.app.worker.answers import Answers
from kafka_ratchet.app.worker.claim_check import ClaimCheck
from kafka_ratchet.app.worker.faust_app import faust_app
from kafka_ratchet.app.worker.global_tables import GlobalTables
from kafka_ratchet.app.worker.group_rules import refusal, rules_of
from kafka_ratchet.app.worker.journal.past import HistoryReader
from kafka_ratchet.app.worker.policy import PolicyFollower
from kafka_ratchet.app.worker.sent_topics import check_topics
from kafka_ratchet.app.worker.stream import Stream
from kafka_ratchet.app.worker.topics import StreamTopics, watch_topics
from kafka_ratchet.app.worker.tracing import Tracing, make_provider
from kafka_ratchet.app.worker.views import TableViews
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.transport.assignment import Lanes
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.client.topic_id import TopicState
from kafka_ratchet.transport.sent_topics import SentTopics
from kafka_ratchet.transport.turns import StartLimit

log = structlog.get_logger(__name__)


class Application:
    """Parts of a worker: the Faust app (`app`), its streams, lanes, policies and tables."""

    def __init__(
        self,
        settings: Settings,
        bootstrap: str,
        topics: dict[str, StreamTopics],
        program: App | None = None,
        sends: SentTopics = MappingProxyType({}),
        instance_id: str | None = None,
    ) -> None:
        """Prepare the worker without starting it.

        Args:
            settings: all settings.
            bootstrap: host:port[,host:port].
            topics: topics of each stream, from `kafka_ratchet.app.worker.topics.prepare`.
            program: program with agents and tables; None: each new record is forwarded unchanged.
            sends: topics that agents send to, from `kafka_ratchet.app.worker.sent_topics`.
            instance_id: static id in the consumer group, which a process keeps after a crash; None: no static id.

        Raises:
            SettingsError: the settings have no stream or do not fit the program, or an extractor cannot be imported.
        """
        settings.require_streams()
        if program is not None:
            program.check(settings.streams)
            check_topics(program, settings)
            _refuse_withheld(program, settings)
        self.settings, self._comes_back = settings, instance_id is not None
        self.has_program = program is not None
        self.timers = WorkerTimers(program.timers, program.tasks) if program else WorkerTimers((), ())
        # Faust makes its own folder but not those above it.
        (settings.state_folder / settings.app).mkdir(parents=True, exist_ok=True, mode=0o700)
        options = client_options(bootstrap, settings.kafka)
        self.cluster = Cluster(options)
        self.app = faust_app(settings, bootstrap, options, rules_of(settings, program), instance_id)
        folder = settings.state_folder / settings.app
        memory = (settings.state_memory_mb << 20) // max(1, len(judging(settings.streams)))
        self.sends = sends
        self.streams = {
            name: Stream(settings.app, name, stream, topics[name], folder, memory, program, sends)
            for name, stream in settings.streams.items()
        }
        self.policies = PolicyFollower(self.cluster, settings)
        self.followed = GlobalTables(
            self.cluster, program.global_tables.values() if program else [], settings.max_batch_mb << 20
        )
        self.claims = ClaimCheck(self.cluster, settings)
        self.tracing = Tracing(make_provider(settings.app) if settings.telemetry == "otel" else None)
        self.empty_inputs = EmptyInputs(
            self.cluster,
            {
                name: (stream.settings.input, stream.topics.partitions)
                for name, stream in self.streams.items()
                if not stream.is_internal
            },
        )
        by_changelog = {stream.topics.changelog: stream for stream in self.streams.values()}
        self.lanes = self._lanes(by_changelog, partial(refusal, bootstrap, settings, program))
        TableViews(by_changelog, self.lanes.running).open()
        self.answers = Answers(self.streams, self.lanes, self.policies, self.followed, self.empty_inputs)
        self.past = HistoryReader(folder, self.streams, self.lanes.running)

    def _lanes(self, by_changelog: Mapping[str, Stream], explain: Callable[[], Awaitable[str]]) -> Lanes:
        """Create the object that runs the partitions' lanes, and register each stream's Faust agent.

        explain: function that returns the reason why the group refuses this worker
        """
        shared = self.cluster, self.settings, self.policies, self.claims, self.tracing, StartLimit()
        lanes = Lanes(
            self.app,
            {changelog: stream.topics.partitions for changelog, stream in by_changelog.items()},
            {changelog: partial(stream.lane, *shared) for changelog, stream in by_changelog.items()},
            {
                changelog: partial(stream.standby, self.cluster, self.settings)
                for changelog, stream in by_changelog.items()
            },
            explain,
        )
        for stream in by_changelog.values():
            stream.processor.register(self.app, stream.name, stream.topics.partitions)
        return lanes

    async def start(self, url: str | None = None) -> None:
        """Join the group; lanes start as partitions are assigned.

        Global tables are read before the worker joins. Until then, the group works without this worker.

        Args:
            url: the worker's status address; Faust publishes it in the group, where the page finds it

        Raises:
            BrokerUnavailable: Kafka did not answer in time.
            RatchetError: a global table cannot be read.
        """
        if url is not None:
            self.app.conf.canonical_url = URL(url)
        await self.cluster.start(self.settings.kafka_timeout_s)
        await self.followed.start()
        self.policies.start()
        self.lanes.start()
        await self.app.start()

    async def run_until(self, stop: asyncio.Event) -> None:
        """Run the worker's background tasks until `stop` is set or Faust has stopped.

        Raises:
            PartitionsDiffer: an input was given more partitions.
            Exception: the error with which Faust's app crashed.
        """
        inputs = {stream.settings.input: stream.topics.partitions for stream in self.streams.values()}
        partition_watch = asyncio.create_task(watch_topics(self.cluster, inputs, self._watched_topics(), self._tell))
        waits = [asyncio.create_task(stop.wait()), asyncio.create_task(self.app.wait_until_stopped()), partition_watch]
        beside = [
            start_background("inputs", self.empty_inputs.watch()),  # it ends as soon as there is nothing to say
            start_background("claims", self.claims.watch(self.lanes.running.values)),
            start_background("stalls", stall_watch.watch(self.cluster, self.lanes.running.values)),
            start_background("timers", self.timers.run()),
            start_background("history", self.past.run()),
            *([start_background("event loop", watch_loop())] if self.has_program else []),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if partition_watch.done():
                partition_watch.result()
        finally:
            for wait in (*waits, *beside):
                wait.cancel()
            await asyncio.gather(*waits, *beside, return_exceptions=True)
        if self.app.crashed:
            raise self.app.crash_reason or RuntimeError("the Faust app has crashed")

    def _watched_topics(self) -> list[str]:
        """Return the topics, other than inputs, that the worker checks for deletion and re-creation."""
        own = [(*stream.settings.writes, stream.topics.changelog) for stream in self.streams.values()]
        read = (follower.table.topic for follower in self.followed.followers)
        return [*(topic for each in own for topic in each), policy_topic(self.settings.app), *self.sends, *read]

    def _tell(self, topics: Mapping[str, TopicState]) -> None:
        self.followed.look_at(topics)
        for lane in self.lanes.running.values():
            lane.look_at(topics)

    async def stop(self) -> None:
        """Commit and end every lane, then leave the group."""
        self.answers.worker_stops = True
        await self.lanes.stop()
        if self._comes_back:
            self.lanes.leave_for_good()
        await self.app.stop()
        await self.policies.stop()
        await self.followed.stop()
        await self.cluster.close()
        await asyncio.to_thread(self.tracing.close)


def start_background(what: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task on which no lane depends; an error ends the task and is logged.

    what: name of the work, for the log
    """

    async def run() -> None:
        try:
            await work
        except Exception:
            log.exception(
                "a background task of the worker has failed; it is not run again before the worker restarts", task=what
            )

    return asyncio.create_task(run(), name=what)


def _refuse_withheld(program: App, settings: Settings) -> None:
    for name, stream in settings.streams.items():
        if not stream.forward and program.of(name):
            raise SettingsError(
                f"streams.{name}: forward is false, so nothing goes to its output, and the program has agents for it. "
                "Remove forward = false, or the agents"
            )
