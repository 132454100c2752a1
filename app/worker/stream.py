"""Stream of a worker: its settings, topics, table, and lanes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import MappingProxyType

import structlog

from kafka_ratchet.agents.deduplicate import Deduplicator, Then, form_check, forward, withhold
from kafka_ratchet.agents.program import App
from kafka_ratchet.agents.run import StreamProgram
from kafka_ratchet.agents.sends import router
from kafka_ratchet.app.names import is_repartition_topic, policy_topic
from kafka_ratchet.app.repartition import RepartitionSettings, arrives_in, is_judged
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.worker.claim_check import ClaimCheck
from kafka_ratchet.app.worker.kept import kept_of
from kafka_ratchet.app.worker.policy import PolicyFollower, StreamSwitch
from kafka_ratchet.app.worker.topics import StreamTopics
from kafka_ratchet.app.worker.tracing import Tracing, totals_of
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.rule.extraction import computed_identity_reader, reader_for
from kafka_ratchet.rule.identity import SequenceSource
from kafka_ratchet.rule.kernels import CONFLICT, TOO_LATE
from kafka_ratchet.rule.verdicts import BY_NUMBER
from kafka_ratchet.tables.eviction import EvictionLimits
from kafka_ratchet.tables.table import Sequences
from kafka_ratchet.transport.arrivals import Arrivals
from kafka_ratchet.transport.batch.chunk import ALL_RECORDS
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.delivery import SHARE_AT_FIRST
from kafka_ratchet.transport.lane import Lane
from kafka_ratchet.transport.lane_spec import LaneSpec
from kafka_ratchet.transport.measures import StreamMeasures
from kafka_ratchet.transport.names import transactional_id
from kafka_ratchet.transport.owner import AGENTS
from kafka_ratchet.transport.policy import AlwaysOff
from kafka_ratchet.transport.sent_topics import SentTopic, SentTopics
from kafka_ratchet.transport.standby import Standby
from kafka_ratchet.transport.turns import StartLimit

log = structlog.get_logger(__name__)


class Stream:
    """Stream of a running worker: its settings, its topics in Kafka, and its last sequences."""

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
        then: Then = forward if settings.forward else withhold
        if isinstance(settings, RepartitionSettings):
            then = router(settings.identity, settings.output)
            self.sends = {settings.output: SentTopic(topics.sent, read_by=settings.of)}
        self.is_internal = is_repartition_topic(settings.input, app)
        self.is_judged = is_judged(settings, app)
        source = SequenceSource.parse(settings.sequence)
        self.sequence_header = source.name.encode() if source.kind == "header" else b""
        self.identity_header = (settings.identity.header or "").encode()
        if source.kind == "none" and not settings.is_bounded:
            log.warning(
                "every identity is kept for ever, and each event has a new one: the state grows with the input. Set "
                "inactive_after_s to how long a record may be sent again, or max_identities",
                stream=name,
            )
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
            then = self.program.take
        self.processor = Deduplicator(
            self.sequences,
            reader_for(source, settings.sequence_form),
            then,
            _dead_lettered(settings),
            computed_identity_reader(settings.identity),
            form_check(name, source, settings.sequence_form, settings.identity),
        )
        self.measures = StreamMeasures()
        self._arrivals: Arrivals | None = None

    def lane(
        self,
        cluster: Cluster,
        settings: Settings,
        policies: PolicyFollower,
        claims: ClaimCheck,
        tracing: Tracing,
        turns: StartLimit,
        number: int,
    ) -> Lane:
        """Create the lane of partition `number` from the settings."""
        spec = LaneSpec(
            topic=self.settings.input,
            partition=number,
            output=self.settings.output,
            dead_letters=self.settings.dead_letters,
            group=settings.app,
            transactional_id=transactional_id(settings.app, self.settings.input, number),
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
            records_at_first=SHARE_AT_FIRST if self.program else ALL_RECORDS,
            sends=self.sends,
            event_header=self.settings.event_header,
        )
        # An internal stream of a program has nothing to judge by, whatever the global setting.
        switch = StreamSwitch(policies, self.name) if self.is_judged else AlwaysOff()
        permit = partial(claims.refuse, self.name, self.topics.changelog)
        ticks = self.program.ticks(number) if self.program else None
        partition = self.sequences.partition(number)
        trace = tracing.of(spec, partial(totals_of, partition))
        arrivals = self._arrivals_of(cluster, settings)
        return Lane(
            cluster, spec, partition, self.processor, switch, permit, ticks, self.measures, trace, turns, arrivals
        )

    def _arrivals_of(self, cluster: Cluster, settings: Settings) -> Arrivals | None:
        """Return the progress of the copying stream, one for all lanes; None if none copies, or nothing is forgotten.

        settings: settings with the internal streams
        """
        topic = arrives_in(settings.streams, self.name)
        if topic != self.settings.input and self.settings.inactive_after_s is not None:
            self._arrivals = self._arrivals or Arrivals(cluster, topic, settings.app)
        return self._arrivals

    def standby(self, cluster: Cluster, settings: Settings, number: int) -> Standby:
        """Create the standby copy of partition `number`."""
        most = settings.max_batch_mb << 20
        return Standby(cluster, self.sequences.partition(number), number, most, stream=self.name)


def _dead_lettered(settings: StreamSettings) -> dict[int, str]:
    """Return the verdicts that the settings turn into dead letters, each with the dead letter's reason."""
    results = {TOO_LATE: settings.late, CONFLICT: settings.conflicts}
    return {verdict: BY_NUMBER[verdict] for verdict, result in results.items() if result == "dead-letter"}


def _bounds(name: str, settings: StreamSettings, partitions: int) -> EvictionLimits | None:
    """Return the limits of one partition's identities; None for a stream that never forgets an identity.

    Raises:
        SettingsError: max_identities is less than the number of partitions.
    """
    if not settings.is_bounded:
        return None
    most = settings.max_identities
    if most is not None and most < partitions:
        raise SettingsError(
            f"streams.{name}.max_identities: {most} are too few for {partitions} partitions, because each "
            f"gets an equal share. Write {partitions} or more"
        )
    return EvictionLimits(None if most is None else most // partitions, settings.inactive_after_s)
