"""A worker whose figures the tests know, behind a real status address, and its membership in the consumer group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from faust.assignor.client_assignment import ClientAssignment, ClientMetadata

from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.status.answers import (
    GlobalTableStatus,
    IdentityStatus,
    PartitionStatus,
    Readiness,
    TableStatus,
    WorkerMeasures,
)
from kafka_ratchet.app.status.group import describe_group
from kafka_ratchet.app.status.identities import IdentitiesAnswer, IdentitiesQuery, IdentityEntry, IdentityPartition
from kafka_ratchet.app.status.lookup import verdict_of
from kafka_ratchet.app.status.own_tables import AskedPartition, TableAnswer, TableEntry, TableQuery
from kafka_ratchet.app.status.producers import ProducerPartition, ProducersAnswer, ProducerStatus


@dataclass
class KnownWorker:
    """A status provider that answers from plain dictionaries."""

    tables_now: list[TableStatus] = field(default_factory=list)
    sequences: dict[tuple[str, bytes], list[IdentityStatus]] = field(default_factory=dict)
    own: list[TableEntry] = field(default_factory=list)
    """Entries of each table of the program."""
    measured: WorkerMeasures = field(default_factory=WorkerMeasures)
    ready: Readiness = field(default_factory=Readiness)

    def tables(self) -> list[TableStatus]:
        return self.tables_now

    def lookup(self, stream: str, identity: bytes, sequence: int | None) -> list[IdentityStatus]:
        found = self.sequences.get((stream, identity), [])
        if sequence is None:
            return found
        return [replace(each, verdict=verdict_of(sequence, each.persisted, each.pushed)) for each in found]

    def producers(self, stream: str, asked: list[int], after: bytes | None, limit: int) -> ProducersAnswer:
        names = sorted({name for of, name in self.sequences if of == stream and (after is None or name > after)})
        found = [
            ProducerStatus(
                name.hex(),
                [
                    ProducerPartition(status.partition, status.persisted, status.pushed, None, 0, 0, None)
                    for status in self.sequences[stream, name]
                    if status.partition in asked
                ],
            )
            for name in names[:limit]
        ]
        return ProducersAnswer(found, len(names) > limit, asked)

    async def identities(self, stream: str, asked: list[int], query: IdentitiesQuery) -> IdentitiesAnswer:
        names = sorted(
            name
            for of, name in self.sequences
            if of == stream and name.startswith(query.prefix) and (query.after is None or name > query.after)
        )
        found = [
            IdentityEntry(
                name.hex(),
                [
                    IdentityPartition(row.partition, row.persisted, row.pushed, missing=2)
                    for row in self.sequences[stream, name]
                    if row.partition in asked
                ],
            )
            for name in names[: query.limit]
        ]
        return IdentitiesAnswer(found, len(names) > query.limit, asked)

    def own_table(self, stream: str, asked: list[int], table: str, query: TableQuery) -> TableAnswer:
        found = [row for row in self.own if row.key == query.key or query.lists]
        return TableAnswer(found, [AskedPartition(number, 7) for number in asked])

    def global_tables(self) -> list[GlobalTableStatus]:
        return []

    def measures(self) -> WorkerMeasures:
        return self.measured

    def readiness(self) -> Readiness:
        return self.ready

    def global_table(self, table: str, query: TableQuery) -> TableAnswer:
        raise KeyError(table)


def partition(number: int, **changed: Any) -> PartitionStatus:
    figures: dict[str, Any] = {
        "state": "running",
        "keys": 1_000 + number,
        "input_position": 12_345_000 + number,
        "input_end": 12_345_600,
        "changelog_position": 77_000,
        "fresh": 9_000_000,
        "duplicate": 2_000_000,
        "invalid": 0,
        "error": None,
    }
    return PartitionStatus(number, **(figures | changed))


def table(*partitions: PartitionStatus, topic: str = "events", identity: str = "producer") -> TableStatus:
    return TableStatus("events", topic, f"{topic}-out", f"{topic}-dead", f"{topic}-changelog", identity, [*partitions])


def settings_for(bootstrap: str, topic: str = "events", **changed: Any) -> Settings:
    streams = {"events": StreamSettings(input=topic, output=f"{topic}-out", dead_letters=f"{topic}-dead")}
    return Settings(app=f"group-of-{topic}", bootstrap=bootstrap, streams=streams).model_copy(update=changed)


@asynccontextmanager
async def member(settings: Settings, topic: str, url: str) -> AsyncIterator[AIOKafkaConsumer]:
    """A member of the workers' group whose metadata is what Faust's assignor writes."""

    class Assignor(RoundRobinPartitionAssignor):  # type: ignore[misc] # aiokafka has no types
        @classmethod
        def metadata(cls, topics: object) -> ConsumerProtocolMemberMetadata:
            assignment = ClientAssignment(actives={}, standbys={})
            known = ClientMetadata(assignment=assignment, url=url, changelog_distribution={})
            return ConsumerProtocolMemberMetadata(cls.version, list(topics), known.dumps())  # type: ignore[call-overload]

    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=settings.bootstrap,
        group_id=settings.app,
        partition_assignment_strategy=[Assignor],
        enable_auto_commit=False,
        session_timeout_ms=60_000,  # its heartbeats come from the test's own loop
    )
    await consumer.start()
    try:
        async with asyncio.timeout(90):
            # Kafka tells only who asks.
            while (await describe_group(str(settings.bootstrap), settings)).state != "Stable":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield consumer
    finally:
        await consumer.stop()
