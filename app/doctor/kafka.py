"""Doctor's checks of Kafka: rights, topics, group, programs and the clock. They only send describing requests."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, ConfigResource, OffsetSpec, ResourceType, TopicDescription

from kafka_ratchet.app.doctor.findings import Finding, Mark
from kafka_ratchet.app.names import OWNERS_TOPIC, changelog_name, is_repartition_topic, policy_topic
from kafka_ratchet.app.repartition import RepartitionSettings, arrives_in
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.answers import WorkerStatus
from kafka_ratchet.app.status.group import describe_commits, describe_group, sentence_of_strangers
from kafka_ratchet.app.status.problems import about_programs
from kafka_ratchet.app.status.worker_client import WorkerClient
from kafka_ratchet.app.worker.topics import config_of, deleted_sooner, retention_of
from kafka_ratchet.errors import RatchetError
from kafka_ratchet.producers import admin_client, explained
from kafka_ratchet.tables.eviction import NULLS_LAST_S

ASK_S: Final = 10.0
GROUPS_TOPIC: Final = "__consumer_offsets"
CLOCK_MS: Final = 5_000
"""Milliseconds that Kafka's newest timestamp may be ahead of this machine's clock without an error."""
READS: Final = {AclOperation.READ, AclOperation.DESCRIBE_CONFIGS}
WRITES: Final = {*READS, AclOperation.WRITE}


class KafkaChecks:
    """Doctor's checks of a Kafka cluster for one application.

    Args:
        settings: valid settings of the application
        bootstrap: address of the cluster, which must answer
    """

    def __init__(self, settings: Settings, bootstrap: str) -> None:
        self._settings, self._bootstrap = settings, bootstrap
        self.has_groups = False
        self._admin = admin_client({"bootstrap.servers": bootstrap, **settings.kafka})
        self.found: dict[str, TopicDescription] = {}
        """Topics that exist, and that this user may describe."""
        self.changelogs: dict[str, str] = {}
        """Name of the changelog topic by stream, without missing changelogs."""
        self._refused: dict[str, str] = {}

    def describe(self) -> None:
        """Request the descriptions of all topics of the application from Kafka. Call it before the checks."""
        asked = self._admin.describe_topics(
            TopicCollection(sorted({*self._needed(), GROUPS_TOPIC})),
            include_authorized_operations=True,
            request_timeout=ASK_S,
        )
        for topic, future in asked.items():
            try:
                described = future.result()
                if topic != GROUPS_TOPIC:
                    self.found[topic] = described
                self.has_groups |= topic == GROUPS_TOPIC
            except KafkaException as error:
                if topic != GROUPS_TOPIC and error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    self._refused[topic] = explained(error.args[0])
        app = self._settings.app
        for name in self._settings.streams:
            if (topic := changelog_name(app, name)) in self.found:
                self.changelogs[name] = topic
        self.has_groups |= bool(self.changelogs)  # this user may not see the topic of groups

    def _needed(self) -> dict[str, set[AclOperation]]:
        """Return the rights that a worker needs, by topic (docs/guide/rights.md)."""
        app, needed = self._settings.app, {OWNERS_TOPIC: WRITES, policy_topic(self._settings.app): WRITES}
        for name, stream in self._settings.streams.items():
            needed |= {topic: WRITES for topic in (*stream.writes, changelog_name(app, name))}
        for stream in self._settings.streams.values():
            needed.setdefault(stream.input, READS)
        return needed

    def rights(self) -> Iterator[Finding]:
        """Check that this user has the rights on topics and group that a worker needs."""
        lacks = [f"{topic}: {reason}" for topic, reason in sorted(self._refused.items())]
        for topic, needed in sorted(self._needed().items()):
            if topic in self.found:
                may = set(self.found[topic].authorized_operations or ())
                if missing := needed - may - ({AclOperation.DESCRIBE_CONFIGS} if AclOperation.ALL in may else set()):
                    lacks.append(f"topic {topic}: {_named(missing)}")
        # The first request about a group makes Kafka create the topic of groups, so there is none before a
        # worker ran.
        lacks += self._lacks_of_group() if self.changelogs else []
        if lacks:
            yield _error("rights", f"this user lacks rights ({'; '.join(lacks)}); docs/guide/rights.md has all of them")
        else:
            yield _ok(
                "rights",
                "this user has a worker's rights on the group and the present topics; rights to create topics "
                "and on transactional ids cannot be requested, and are unknown",
            )

    def _lacks_of_group(self) -> list[str]:
        group = self._settings.app
        try:
            asked = self._admin.describe_consumer_groups(
                [group], include_authorized_operations=True, request_timeout=ASK_S
            )
            may = asked[group].result().authorized_operations
        except KafkaException as error:
            is_new = error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND
            return [] if is_new else [f"group {group}: {explained(error.args[0])}"]
        return [] if may is None or AclOperation.READ in may else [f"group {group}: read"]

    def topics(self) -> Iterator[Finding]:
        """Check topics, partition counts and configurations of each stream, and the transaction timeout."""
        for name, stream in self._settings.streams.items():
            wanted = {*stream.writes, stream.input} - (
                {stream.output} if isinstance(stream, RepartitionSettings) else set()
            )
            there = {topic: len(self.found[topic].partitions) for topic in wanted if topic in self.found}
            if name in self.changelogs:
                there[self.changelogs[name]] = len(self.found[self.changelogs[name]].partitions)
            if missing := sorted(wanted - there.keys() - self._refused.keys()):
                creates = self._settings.creates_topics(name)
                mark = Mark.WARNING if creates else Mark.ERROR
                does = "a worker creates them" if creates else "create_topics is false: create them"
                yield Finding("topics", mark, f"stream {name}: there are no topics {', '.join(missing)}; {does}")
            if len(set(there.values())) > 1:
                counts = ", ".join(f"{topic} has {count}" for topic, count in sorted(there.items()))
                text = f"stream {name}: partition counts differ: {counts}; they must be equal. "
                yield _error("topics", f"{text}If the input got more, add none to the others: docs/guide/partitions.md")
            elif there:
                count = max(there.values())
                yield _ok("topics", f"stream {name}: {len(there)} of its topics exist, each with {count} partitions")
            for topic in sorted(there):
                yield from self._config(name, topic)
            yield from self._retention(name, sorted({*stream.writes} & there.keys()))
        yield from self._timeout()

    def group(self) -> Iterator[Finding]:
        """Check that the workers' group has no other members, and no offsets committed by other clients."""
        if not self.has_groups:  # asking would make Kafka create the topic of groups
            return
        try:
            group = asyncio.run(describe_group(self._bootstrap, self._settings))
        except RatchetError as error:
            yield Finding("group", Mark.WARNING, str(error))
            return
        if sentence := sentence_of_strangers(self._bootstrap, self._settings.app, group):
            yield _error("group", sentence)
        inputs = {stream.input: name for name, stream in self._settings.streams.items()}
        foreign = {place: offset for place, offset in group.foreign.items() if place[0] in inputs}
        told = asyncio.run(describe_commits(self._bootstrap, self._settings, foreign)) if foreign else {}
        for (topic, number), offset in foreign.items():
            at = f" ({told[topic, number]})" if (topic, number) in told else ""
            yield _error(
                "group",
                f"{topic}, partition {number}: another client has committed offset {offset} in the group "
                f"{self._settings.app!r}{at}. The partition halts; decide with `ratchet resume --stream "
                f"{inputs[topic]} --partition {number}`",
            )
        if not sentence:
            members = f"{group.members} member{'s' * (group.members != 1)}" if group.members else "no members"
            yield _ok("group", f"group {self._settings.app}: {members}, and no others use it")
        yield from asyncio.run(_programs(group.workers))

    def _config(self, name: str, topic: str) -> Iterator[Finding]:
        try:
            config = config_of(self._admin, topic)
        except RatchetError as error:
            yield Finding("topics", Mark.WARNING, f"{error}: its configuration is not known")
            return
        replicas = min((len(each.replicas) for each in self.found[topic].partitions), default=0)
        least = int(config["min.insync.replicas"])
        if least > replicas:
            yield _error(
                "topics",
                f"{topic}: min.insync.replicas is {least} and there are {replicas} replicas: no write works",
            )
        elif replicas > 1 and least == 1:
            yield Finding(
                "topics",
                Mark.WARNING,
                f"{topic}: min.insync.replicas is 1 of {replicas} replicas: acknowledged records can be lost with one "
                "broker; set 2",
            )
        if topic == self.changelogs.get(name) and (policy := config["cleanup.policy"]) != "compact":
            yield _error("topics", f"{topic}: cleanup.policy is {policy}: sequences would be deleted; set compact")
        if topic == self.changelogs.get(name):
            if int(config["delete.retention.ms"]) < NULLS_LAST_S * 1000:
                yield _error(
                    "topics",
                    f"{topic}: delete.retention.ms is {config['delete.retention.ms']}: a worker that was stopped for "
                    f"longer would miss deletions; set {NULLS_LAST_S * 1000}",
                )
            if (stamped := config["message.timestamp.type"]) != "LogAppendTime":
                yield _error("topics", f"{topic}: message.timestamp.type is {stamped}; set LogAppendTime")
        if topic == self._settings.streams[name].output and config["message.timestamp.type"] != "CreateTime":
            yield Finding(
                "topics",
                Mark.WARNING,
                f"{topic}: message.timestamp.type is {config['message.timestamp.type']}: Kafka replaces the events' "
                "own times; set CreateTime to keep them",
            )
        if topic == self._settings.streams[name].input and "compact" in config["cleanup.policy"]:
            yield Finding(
                "topics",
                Mark.WARNING,
                f"{topic}: cleanup.policy is {config['cleanup.policy']}: Kafka removes records with a newer one of "
                "their key, also unread ones, and verify cannot compare their output; set delete",
            )
        kept_ms = int(config["retention.ms"])
        wanted_s = self._settings.streams[name].inactive_after_s
        if topic == self._settings.streams[name].input and wanted_s and 0 <= kept_ms < wanted_s * 1000:
            yield Finding(
                "topics",
                Mark.WARNING,
                f"{topic}: keeps records for {kept_ms // 1000} s, less than inactive_after_s ({wanted_s} s): verify "
                "cannot prove that far back",
            )

    def _retention(self, name: str, written: Sequence[str]) -> Iterator[Finding]:
        """Check that Kafka keeps a stream's output for as long as the input.

        written: existing topics of the stream's records
        """
        source = arrives_in(self._settings.streams, name)
        # The internal topic of a program's stream keeps everything, and only the program knows what feeds it.
        if source not in self.found or is_repartition_topic(source, self._settings.app):
            return
        try:
            kept = retention_of(config_of(self._admin, source))
            problems = {topic: deleted_sooner(config_of(self._admin, topic), kept) for topic in written}
        except RatchetError:  # `_config` has reported it
            return
        for topic, problem in problems.items():
            if problem:
                yield Finding("topics", Mark.WARNING, f"{topic}: {problem}")

    def _timeout(self) -> Iterator[Finding]:
        ours = self._settings.transaction_timeout_ms
        try:
            node = self._admin.describe_cluster(request_timeout=ASK_S).result().nodes[0].id
            resource = ConfigResource(ResourceType.BROKER, str(node))
            entries: Mapping[str, Any] = self._admin.describe_configs([resource], request_timeout=ASK_S)[
                resource
            ].result()
            most = int(entries["transaction.max.timeout.ms"].value)
        except (KafkaException, KeyError, IndexError) as error:
            yield Finding(
                "topics", Mark.WARNING, f"the broker's transaction.max.timeout.ms is not known ({_reason(error)})"
            )
            return
        if ours > most:
            yield _error(
                "topics", f"transaction_timeout_ms is {ours}, but the broker allows {most}: no partition can start"
            )
        else:
            yield _ok("topics", f"transaction_timeout_ms is {ours}, and the broker allows {most}")

    def clock(self) -> Iterator[Finding]:
        """Compare this machine's clock with the newest timestamp that Kafka gave in Ratchet's own topics."""
        own = [*self.changelogs.values(), *({OWNERS_TOPIC, policy_topic(self._settings.app)} & self.found.keys())]
        places = [TopicPartition(topic, each.id) for topic in own for each in self.found[topic].partitions]
        newest = -1
        try:
            asked = self._admin.list_offsets(dict.fromkeys(places, OffsetSpec.max_timestamp()), request_timeout=ASK_S)
            newest = max((future.result().timestamp for future in asked.values()), default=-1) if places else -1
        except KafkaException as error:
            yield Finding("clock", Mark.WARNING, f"Kafka's clock is not known ({_reason(error)})")
            return
        behind = newest - int(time.time() * 1000)
        if newest < 0:
            yield Finding("clock", Mark.WARNING, "Kafka's clock is not known: it has stamped nothing of this app yet")
        elif behind > CLOCK_MS:
            yield _error("clock", f"this machine's clock is at least {behind / 1000:.0f} s behind Kafka's; set it")
        else:
            yield _ok("clock", f"Kafka's newest stamp is {max(0, -behind) / 1000:.0f} s old by this machine's clock")


def _named(operations: set[AclOperation]) -> str:
    return ", ".join(sorted(operation.name.lower() for operation in operations))


def _reason(error: BaseException) -> str:
    return explained(error.args[0]) if isinstance(error, KafkaException) else repr(error)


def _ok(check: str, sentence: str) -> Finding:
    return Finding(check, Mark.OK, sentence)


def _error(check: str, sentence: str) -> Finding:
    return Finding(check, Mark.ERROR, sentence)


async def _programs(urls: Sequence[str]) -> list[Finding]:
    """Return warnings if the workers run different programs, else the number of workers with each program.

    Programs are compared by the digests of their code.

    urls: status addresses of the workers
    """
    async with WorkerClient() as client:
        answers, _ = await client.ask_all(urls, "/status", WorkerStatus)
    if said := about_programs(answers.values()):
        return [Finding("group", Mark.WARNING, sentence) for sentence in said]
    programs = Counter(each.program for each in answers.values() if each.program)
    return [
        _ok("group", f"program {digest}: on {number} worker{'s' * (number > 1)}") for digest, number in programs.items()
    ]
