"""The Faust app put together from the settings: streams, tables, lanes, agents."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import structlog
from yarl import URL

from kafka_ratchet.agents.deduplicate import Then, register, withhold
from kafka_ratchet.agents.extraction import reader_for
from kafka_ratchet.agents.holding import watch_loop
from kafka_ratchet.agents.program import App
from kafka_ratchet.agents.route import router
from kafka_ratchet.agents.run import StreamProgram
from kafka_ratchet.agents.timers import WorkerTimers
from kafka_ratchet.agents.whose import whose
from kafka_ratchet.app.names import earlier_transactional_id, is_repartition_topic, policy_topic, transactional_id
from kafka_ratchet.app.repartition import Arrivals, judging
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.status.answers import (
    Forgotten,
    GlobalTableStatus,
    IdentityStatus,
    PartitionStatus,
    Readiness,
    TableStatus,
    WorkerMeasures,
)
from kafka_ratchet.app.status.identities import IdentitiesAnswer, IdentitiesQuery
from kafka_ratchet.app.status.inputs import EmptyInputs
from kafka_ratchet.app.status.known_identities import list_identities
from kafka_ratchet.app.status.known_producers import list_producers
from kafka_ratchet.app.status.lookup import verdict_of
from kafka_ratchet.app.status.own_tables import TableAnswer, TableQuery
from kafka_ratchet.app.status.producers import ProducersAnswer
from kafka_ratchet.app.status.table_reading import read_table
from kafka_ratchet.app.worker import readiness
from kafka_ratchet.app.worker.claim_check import ClaimCheck
from kafka_ratchet.app.worker.faust_app import faust_app
from kafka_ratchet.app.worker.global_tables import GlobalTables
from kafka_ratchet.app.worker.group_rules import refusal, rules_of
from kafka_ratchet.app.worker.kept import kept_of
from kafka_ratchet.app.worker.partition_watch import watch
from kafka_ratchet.app.worker.past import Past
from kafka_ratchet.app.worker.policy import PolicyFollower, StreamSwitch
from kafka_ratchet.app.worker.sent_topics import check_topics
from kafka_ratchet.app.worker.topics import StreamTopics
from kafka_ratchet.app.worker.tracing import Tracing, make_provider, totals_of
from kafka_ratchet.app.worker.views import Views
from kafka_ratchet.errors import SettingsError, StateError
from kafka_ratchet.tables.edits import Edit
from kafka_ratchet.tables.eviction import Bounds
from kafka_ratchet.tables.identity import SequenceSource
from kafka_ratchet.tables.map.kernels import CONFLICT, TOO_LATE
from kafka_ratchet.tables.map.map import LastSequence
from kafka_ratchet.tables.reasons import CONTENT_DIFFERS, LATE
from kafka_ratchet.tables.table import Sequences
from kafka_ratchet.transport.assignment import Lanes
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.client.topic_id import TopicState
from kafka_ratchet.transport.delivery import Delivery
from kafka_ratchet.transport.lane import Lane
from kafka_ratchet.transport.lane_spec import LaneSpec
from kafka_ratchet.transport.measures import StreamMeasures
from kafka_ratchet.transport.owner import AGENTS
from kafka_ratchet.transport.policy import AlwaysOff
from kafka_ratchet.transport.sent_topics import SentTopic, SentTopics
from kafka_ratchet.transport.standby import Standby
from kafka_ratchet.transport.turns import Turns

log = structlog.get_logger(__name__)


class Stream:
    """One stream at work: its settings, its topics as found, its table."""

    def __init__(
        self,
        app: str,
        name: str,
        settings: StreamSettings,
        topics: StreamTopics,
        folder: Path,
        memory: int,
        program: App | None = None,
        sends: SentTopics = MappingProxyType({}),
    ) -> None:
        self.name, self.settings, self.topics = name, settings, topics
        agents = program.of(name) if program else []
        tables = program.tables_of(name) if program and agents else []
        self.sends = sends if agents else {}
        self.rule = settings.rule | ({"output": AGENTS} if agents else {})
        self.then: Then | None = None if settings.forward else withhold
        if isinstance(settings, Arrivals):
            self.then = router(settings.identity, settings.output)
            self.sends = {settings.output: SentTopic(topics.sent, read_by=settings.of)}
        self.is_internal = is_repartition_topic(settings.input, app)
        self.is_judged = not isinstance(settings, Arrivals) and (
            not self.is_internal or settings.repartition_by is not None
        )
        source = SequenceSource.parse(settings.sequence)
        self.sequence_header = source.name.encode() if source.kind == "header" else b""
        self.identity_header = (settings.identity.header or "").encode()
        if source.kind == "none" and not settings.is_bounded:
            log.warning(
                "every identity is kept for ever, and each event brings one: the state grows with the input. Set "
                "inactive_after_s to how long a record may be sent again, or max_identities",
                stream=name,
            )
        self.read = reader_for(source, settings.sequence_form)
        self.whose = whose(settings.identity)
        self.sequences = Sequences(
            folder / name,
            topics.changelog,
            settings.identity,
            topics.changelog_limit,
            memory,
            _bounds(name, settings, topics.partitions),
            tables=tables,
            kept=kept_of(settings),
        )
        self.program = None
        if program is not None and agents:
            timers = program.streams[name].timers
            self.program = StreamProgram(agents, tables, lambda number: self.sequences.partition(number).tables, timers)
            self.then = self.program.take
        self.lettered = _lettered(settings)
        self.measures = StreamMeasures()

    def lane(
        self,
        cluster: Cluster,
        settings: Settings,
        policies: PolicyFollower,
        claims: ClaimCheck,
        tracing: Tracing,
        turns: Turns,
        number: int,
        deliver: Callable[[Delivery], Awaitable[None]],
    ) -> Lane:
        """Make the lane of a partition, with all that the settings say of it."""
        spec = LaneSpec(
            topic=self.settings.input,
            partition=number,
            output=self.settings.output,
            dead_letters=self.settings.dead_letters,
            group=settings.app,
            transactional_id=transactional_id(settings.app, self.settings.input, number),
            earlier_id=earlier_transactional_id(settings.app, self.settings.input, number),
            app=settings.app,
            stream=self.name,
            rule=self.rule,
            policy_topic=policy_topic(settings.app),
            begins_at_0=self.is_internal,
            claimed=self.topics.claimed,
            sequence_header=self.sequence_header,
            identity_header=self.identity_header,
            compression=self.settings.compression,
            commit_interval_ms=settings.commit_interval_ms,
            records_per_transaction=settings.records_per_transaction,
            transaction_timeout_ms=settings.transaction_timeout_ms,
            output_limit=self.topics.output_limit,
            dead_letters_limit=self.topics.dead_letters_limit,
            judging=self.settings.judging,
            duplicates=self.settings.duplicates or "",
            duplicates_limit=self.topics.duplicates_limit,
            duplicates_values=self.settings.duplicates_keep == "all",
            batch_most=settings.max_batch_mb << 20,
            sends=self.sends,
        )
        # An internal stream of a program has nothing to judge by, whatever is said of all streams.
        switch = StreamSwitch(policies, self.name) if self.is_judged else AlwaysOff()
        permit = partial(claims.refuse, self.name, self.topics.changelog)
        ticks = self.program.ticks(number) if self.program else None
        partition = self.sequences.partition(number)
        trace = tracing.of(spec, partial(totals_of, partition))
        return Lane(cluster, spec, partition, deliver, switch, permit, ticks, self.measures, trace, turns)

    def standby(self, cluster: Cluster, settings: Settings, number: int) -> Standby:
        """Make the standby of a partition."""
        most = settings.max_batch_mb << 20
        return Standby(cluster, self.sequences.partition(number), number, most, stream=self.name)


class Application:
    """A worker's parts. `app` is the Faust app, for timers, agents and commands of one's own."""

    def __init__(
        self,
        settings: Settings,
        bootstrap: str,
        topics: dict[str, StreamTopics],
        program: App | None = None,
        sends: SentTopics = MappingProxyType({}),
        instance_id: str | None = None,
    ) -> None:
        """Nothing is started.

        Args:
            settings: the whole of them
            bootstrap: host:port[,host:port]
            topics: of each stream, as `kafka_ratchet.app.worker.topics.prepare` found them
            program: agents and tables of one's own; None: each record is forwarded as it came
            sends: topics to which agents send, as `kafka_ratchet.app.worker.sent_topics` found them
            instance_id: of a member that comes back under it after a crash; None: of none

        Raises:
            SettingsError: there is no stream, or a stream's extractor cannot be imported.
        """
        settings.require_streams()
        if program is not None:
            program.check(settings.streams)
            check_topics(program, settings)
            _refuse_withheld(program, settings)
        self.settings, self._stops, self._comes_back = settings, False, instance_id is not None
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
        shared = self.cluster, settings, self.policies, self.claims, self.tracing, Turns()
        self.lanes = Lanes(
            self.app,
            {changelog: stream.topics.partitions for changelog, stream in by_changelog.items()},
            {changelog: partial(stream.lane, *shared) for changelog, stream in by_changelog.items()},
            {changelog: partial(stream.standby, self.cluster, settings) for changelog, stream in by_changelog.items()},
            partial(refusal, bootstrap, settings, program),
        )
        for stream in self.streams.values():
            channel = self.lanes.channels[stream.topics.changelog]
            register(
                self.app,
                channel,
                stream.name,
                stream.sequences,
                stream.read,
                stream.topics.partitions,
                stream.then,
                stream.lettered,
                stream.whose,
            )
        Views(by_changelog, self.lanes.running).open()
        self.past = Past(folder, self.streams, self.lanes.running)

    async def start(self, url: str | None = None) -> None:
        """Join the group; lanes start as partitions are assigned.

        Global tables are read before that: the group goes on without this worker meanwhile.

        Args:
            url: the worker's status address; Faust tells it to the group, where the page finds it

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
        """Return when asked to, or when Faust has stopped by itself; whatever it crashed of is raised.

        Raises:
            PartitionsDiffer: an input was given more partitions.
        """
        inputs = {stream.settings.input: stream.topics.partitions for stream in self.streams.values()}
        partition_watch = asyncio.create_task(watch(self.cluster, inputs, self._others(), self._tell))
        waits = [asyncio.create_task(stop.wait()), asyncio.create_task(self.app.wait_until_stopped()), partition_watch]
        beside = [
            asyncio.create_task(self.empty_inputs.watch()),  # it ends as soon as there is nothing to say
            asyncio.create_task(self.claims.watch(self.lanes.running.values)),
            asyncio.create_task(self.timers.run()),
            asyncio.create_task(self.past.run()),
            *([asyncio.create_task(watch_loop())] if self.has_program else []),
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

    def _others(self) -> list[str]:
        """Topics besides the inputs of which a lane has to know when they are made anew."""
        own = [(*stream.settings.writes, stream.topics.changelog) for stream in self.streams.values()]
        read = (follower.table.topic for follower in self.followed.followers)
        return [*(topic for each in own for topic in each), policy_topic(self.settings.app), *self.sends, *read]

    def _tell(self, topics: Mapping[str, TopicState]) -> None:
        self.followed.look_at(topics)
        for lane in self.lanes.running.values():
            lane.look_at(topics)

    async def stop(self) -> None:
        """Commit and end every lane, then leave the group."""
        self._stops = True
        await self.lanes.stop()
        if self._comes_back:
            self.lanes.leave_for_good()
        await self.app.stop()
        await self.policies.stop()
        await self.followed.stop()
        await self.cluster.close()
        await asyncio.to_thread(self.tracing.close)

    # What the status address asks (kafka_ratchet.app.status.answers.StatusProvider):

    def tables(self) -> list[TableStatus]:
        """The partitions of every stream whose lanes run here."""
        return [
            TableStatus(
                stream=stream.name,
                input=stream.settings.input,
                output=stream.settings.output,
                dead_letters=stream.settings.dead_letters,
                changelog=stream.topics.changelog,
                identity=str(stream.settings.identity),
                partitions=[
                    _partition_status(lane)
                    for (changelog, _), lane in sorted(self.lanes.running.items())
                    if changelog == stream.topics.changelog
                ],
                deduplicate=stream.is_judged and self.policies.policies.effective(stream.name).deduplicate,
                origin=str(self.policies.policies.effective(stream.name).origin),
                problem=self.empty_inputs.problem(stream.name),
                tables=[table.name for table in stream.sequences.tables],
                standbys=[
                    number
                    for changelog, number in sorted(self.lanes.standing_by)
                    if changelog == stream.topics.changelog
                ],
            )
            for stream in self.streams.values()
        ]

    def lookup(self, stream: str, identity: bytes, sequence: int | None) -> list[IdentityStatus]:
        """The partitions here that know the identity, or have forgotten it as a person has asked."""
        if stream not in self.streams:
            return []
        sequences, changelog = self.streams[stream].sequences, self.streams[stream].topics.changelog
        known, found = sequences.last(identity), []
        for number, partition in sorted(sequences.partitions.items()):
            forgotten = [_forgotten(edit) for edit in partition.edits.of(identity)]
            if (changelog, number) in self.lanes.running and (number in known or forgotten):
                last = known.get(number, LastSequence(-1, -1))
                persisted, pushed, verdict = _known(last.persisted), _known(last.pushed), None
                if sequence is not None:
                    seen = partition.seen(identity, sequence)
                    verdict = verdict_of(sequence, persisted, pushed, partition.known.kept.window, seen)
                found.append(IdentityStatus(number, persisted, pushed, verdict, forgotten or msgspec.UNSET))
        return found

    def producers(self, stream: str, asked: list[int], after: bytes | None, limit: int) -> ProducersAnswer:
        """The producers that these partitions know, at most limit of them, from behind a name on."""
        return list_producers(self.streams[stream].sequences, asked, after, limit)

    async def identities(self, stream: str, asked: list[int], query: IdentitiesQuery) -> IdentitiesAnswer:
        """The identities that these partitions know."""
        return await list_identities(self.streams[stream].sequences, asked, query)

    def own_table(self, stream: str, asked: list[int], table: str, query: TableQuery) -> TableAnswer:
        """What these partitions have committed of a table of one's own."""
        found = {}
        for number in asked:
            partition = self.streams[stream].sequences.partition(number)
            with suppress(StateError):  # it is on its way to another worker
                found[number] = partition.committed_table(table), partition.position
        return read_table(found, query)

    def global_tables(self) -> list[GlobalTableStatus]:
        """The program's global tables."""
        return self.followed.status()

    def global_table(self, table: str, query: TableQuery) -> TableAnswer:
        """What this worker has read of a global table's topic."""
        return read_table(self.followed.table(table).parts(), query)

    def measures(self) -> WorkerMeasures:
        """What the worker has measured of its own work."""
        return WorkerMeasures(
            self.lanes.rebalances,
            {name: stream.measures for name, stream in self.streams.items()},
            {name: stream.topics.partitions for name, stream in self.streams.items()},
        )

    def readiness(self) -> Readiness:
        """Whether the worker does all the work it was given."""
        names = {stream.topics.changelog: name for name, stream in self.streams.items()}
        waits = readiness.why_not_ready(self.lanes, names)
        return Readiness(["the worker stops"] if self._stops else waits, readiness.halted(self.lanes, names))


def _lettered(settings: StreamSettings) -> dict[int, str]:
    """By verdict, the reason with which its records become dead letters, where the stream asks for it."""
    asked = {TOO_LATE: (settings.late, LATE), CONFLICT: (settings.conflicts, CONTENT_DIFFERS)}
    return {verdict: reason for verdict, (what, reason) in asked.items() if what == "dead-letter"}


def _refuse_withheld(program: App, settings: Settings) -> None:
    for name, stream in settings.streams.items():
        if not stream.forward and program.of(name):
            raise SettingsError(
                f"streams.{name}: forward is false, so nothing goes to its output, and the program has agents for it. "
                "Remove the one or the other"
            )


def _bounds(name: str, settings: StreamSettings, partitions: int) -> Bounds | None:
    """What one partition may keep; None where a stream keeps all."""
    if not settings.is_bounded:
        return None
    most = settings.max_identities
    if most is not None and most < partitions:
        raise SettingsError(
            f"streams.{name}.max_identities: {most} are too few for {partitions} partitions, each of which has an even "
            f"share. Write {partitions} or more"
        )
    return Bounds(None if most is None else most // partitions, settings.inactive_after_s)


def _forgotten(edit: Edit) -> Forgotten:
    who = edit.at, edit.by, edit.reason
    return Forgotten(*who, edit.position, edit.above, _known(edit.before), _known(edit.after))


def _known(sequence: int) -> int | None:
    return sequence if sequence >= 0 else None


def _partition_status(lane: Lane) -> PartitionStatus:
    partition: Any = lane.state
    progress = partition.progress
    interval = partition.intervals.last
    return PartitionStatus(
        partition=lane.spec.partition,
        state=str(lane.status.state),
        keys=len(partition),
        input_position=lane.status.position,
        input_end=lane.status.end,
        changelog_position=partition.position,
        fresh=progress.fresh if progress else 0,
        duplicate=progress.duplicate if progress else 0,
        invalid=progress.invalid if progress else 0,
        too_late=progress.late if progress else 0,
        conflict=progress.conflict if progress else 0,
        missing=partition.missing,
        error=lane.status.error,
        unjudged=partition.intervals.unjudged,
        deduplicate=interval.deduplicate if interval else True,
        since=interval.start if interval else None,
        evicted_inactive=partition.evicted.inactive,
        evicted_displaced=partition.evicted.displaced,
        recognised_for_s=partition.recognised_for_s,
        jumps=partition.jumps.total,
        late=sum(partition.tables.late.values()) if partition.tables.has_windows else msgspec.UNSET,
        recent=partition.recent.share(),
        restarts=lane.status.restarts,
        lag_s=lane.status.lag_s(time.time()),
        halted=lane.status.halted,
        fetched_at=lane.status.fetched_at,
        store_bytes=partition.store_bytes,
    )
