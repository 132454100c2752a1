"""Followers of the topics of global tables.

They read each topic to its end before the worker joins its group, and then follow it.

A recreated or truncated topic is read again from its beginning, and so is one with more partitions than before. The
table keeps its contents until this read ends. Then all contents are replaced at once, so the table never mixes records
of two topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

import structlog

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.settings_sections import is_topic_name
from kafka_ratchet.app.status.answers import GlobalTableStatus
from kafka_ratchet.app.status.inputs import similar
from kafka_ratchet.app.worker.topics import config_of, create
from kafka_ratchet.errors import (
    LogTruncated,
    PositionLost,
    RatchetError,
    SettingsError,
    StateError,
    TopicError,
    TopicMissing,
    TopicReplaced,
)
from kafka_ratchet.producers import admin_client
from kafka_ratchet.tables.eviction import NULLS_LAST_S
from kafka_ratchet.tables.values.global_table import Contents, GlobalTable
from kafka_ratchet.topic_log.clients import all_topics, partition_counts
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.changelog import SILENT_S, Changelog, StorelessReader
from kafka_ratchet.transport.client.cluster import EARLIEST, Cluster
from kafka_ratchet.transport.client.topic_id import TopicState

log = structlog.get_logger(__name__)

NULLS: Final = "delete.retention.ms"
NULLS_LEAST_MS: Final = int(2 * SILENT_S * 1000)
"""Minimum `delete.retention.ms` of a global table's topic: twice `SILENT_S`.

If a topic could not be read for `SILENT_S` seconds, all of it is read again.
"""
PAUSE_S: Final = 5.0
"""Seconds before an unreadable topic is tried again."""


class ReadAnew(TopicError):
    """Error for a global table that may lack records: its topic must be read again from the beginning."""


def prepare_global_tables(bootstrap: str, settings: Settings, tables: Collection[GlobalTable]) -> None:
    """Create missing topics of global tables, and check that Kafka deletes none of their entries.

    Raises:
        SettingsError: a table's topic has an invalid name.
        TopicMissing: a topic is missing, and `create_topics` is off.
        TopicError: Kafka would delete entries of a topic, or its nulls too early; or a topic cannot be created.
        BrokerUnavailable: Kafka has gone away, or did not answer.
    """
    if not tables:
        return
    admin = admin_client({"bootstrap.servers": bootstrap, **settings.kafka})
    for table in tables:
        if not is_topic_name(table.topic):
            raise SettingsError(
                f"table {table.name}: topic {table.topic!r:.300} is not a Kafka topic name: 1 to 249 letters, digits, "
                "'.', '_' or '-'. Correct it in the program"
            )
    found = partition_counts(admin, [table.topic for table in tables])
    replication = max((stream.replication for stream in settings.streams.values()), default=1)
    for table in tables:
        if table.topic in found:
            _refuse_expiry(table, config_of(admin, table.topic))
        elif settings.create_topics:
            create(admin, table.topic, 1, replication, {"cleanup.policy": "compact", NULLS: str(NULLS_LAST_S * 1000)})
        else:
            hint = similar(table.topic, all_topics(admin))
            raise TopicMissing(
                f"table {table.name}: there is no topic {table.topic!r}{hint}. create_topics is false, so Ratchet "
                "creates none: correct the name, or create it with cleanup.policy=compact"
            )


def _refuse_expiry(table: GlobalTable, config: Mapping[str, str]) -> None:
    policy = config["cleanup.policy"]
    keeps_all = config["retention.ms"] == "-1" and config["retention.bytes"] == "-1"
    if "delete" in policy and not keeps_all:
        raise TopicError(
            f"table {table.name}: cleanup.policy of topic {table.topic} is {policy}, so old entries "
            "would be missing after a start, and workers would differ. Set cleanup.policy=compact on the topic"
        )
    if "compact" in policy and int(config[NULLS]) < NULLS_LEAST_MS:
        raise TopicError(
            f"table {table.name}: {NULLS} of topic {table.topic} is {config[NULLS]}, so a worker that could not reach "
            f"Kafka for longer would keep deleted entries. Set {NULLS}={NULLS_LEAST_MS} on the topic, or more"
        )


class _Partition(StorelessReader):
    """One partition of a global table; implements `kafka_ratchet.transport.changelog.ChangelogReader`."""

    def __init__(self, table: GlobalTable, contents: Contents, number: int) -> None:
        self.changelog, self._contents, self._number = table.topic, contents, number
        self._has_warned = False

    @property
    def position(self) -> int:
        return self._contents.positions[self._number]

    @position.setter
    def position(self, offset: int) -> None:
        self._contents.positions[self._number] = offset

    def apply(self, batch: RecordBatch) -> None:
        """Put the records of a batch into the table. Records without a key are left out."""
        for index in range(batch.count):
            key = batch.key(index)
            if key is not None:
                self._contents.put(self._number, key, batch.value(index))
            elif not self._has_warned:
                self._has_warned = True
                log.warning(
                    "a record without a key cannot be put into the table; further ones are not logged",
                    topic=self.changelog,
                    partition=self._number,
                    offset=int(batch.offsets[index]),
                )
        self.position = batch.next


class TopicFollower:
    """Follower that keeps the contents of one global table equal to its topic."""

    def __init__(self, cluster: Cluster, table: GlobalTable, batch_most: int) -> None:
        """Start without reading.

        Args:
            cluster: connected client of the Kafka cluster
            table: global table to fill
            batch_most: maximum bytes of one batch after decompression
        """
        self.table, self._cluster, self._batch_most = table, cluster, batch_most
        self._logs: list[Changelog] = []
        self._partitions = 0
        self._has_more_partitions = asyncio.Event()
        self.problem: str | None = None
        """Reason why the table does not follow its topic, as of the last try."""

    async def read(self) -> None:
        """Read the topic from its beginning to its present end, then replace the table's contents.

        Raises:
            TopicReplaced: the topic was deleted.
            ReadAnew: the topic was deleted and created again during the read.
            StateError: the contents exceed the table's size limit.
            RatchetError: the topic cannot be read.
        """
        table, name = self.table, self.table.topic
        topic = (await self._cluster.found([name]))[name]
        contents = Contents(topic.partitions, table.most, table.name)
        logs = []
        for number in range(topic.partitions):
            state, connection = _Partition(table, contents, number), ("global table", table.name, number)
            state.position = await self._cluster.offset(name, number, EARLIEST, connection)
            changelog = Changelog(self._cluster, state, number, connection, self._batch_most)
            await changelog.restore()
            if changelog.topic_id != topic.id:
                raise ReadAnew(f"{name}: was deleted and created again while it was read")
            logs.append(changelog)
        self._logs, self._partitions = logs, topic.partitions
        self._has_more_partitions.clear()
        table.contents, table.problem, self.problem = contents, None, None
        log.info("global table read", table=table.name, topic=name, keys=len(table), mb=contents.size >> 20)

    def look_at(self, topics: Mapping[str, TopicState]) -> None:
        """Record whether the topic has more partitions than were read."""
        if (now := topics.get(self.table.topic)) is not None and now.partitions > self._partitions:
            self._has_more_partitions.set()

    async def run(self) -> None:
        """Follow the topic, and read all of it again if records may be missing or outdated. Never returns."""
        while True:
            try:
                await self._follow()
            except (TopicReplaced, LogTruncated, PositionLost, ReadAnew) as error:
                self._say("its topic is read again from the beginning", error)
                await self._read_anew()
            except StateError as error:
                self._give_up(error)
                await self._read_anew()
            except RatchetError as error:
                # The contents read so far stay valid, and reading goes on after them.
                self._say("cannot follow its topic; trying again", error)
            except Exception:
                log.exception("following the topic of a global table failed; trying again")
            await asyncio.sleep(PAUSE_S)

    async def _read_anew(self) -> None:
        while True:
            try:
                await self.read()
                return
            except StateError as error:
                self._give_up(error)
            except RatchetError as error:
                self._say("its topic cannot be read; trying again", error)
            await asyncio.sleep(PAUSE_S)

    def _say(self, what: str, error: RatchetError) -> None:
        self.problem = f"global table {self.table.name}: {what}: {error}"
        log.error("global table: " + what, table=self.table.name, reason=str(error))

    def _give_up(self, error: StateError) -> None:
        """Drop the contents of a too large table. Look-ups then raise the error, so that partitions halt."""
        log.error(
            "a global table exceeds its memory limit; look-ups in it halt partitions",
            table=self.table.name,
            reason=str(error),
        )
        self.table.contents, self.table.problem = None, str(error)

    async def _follow(self) -> None:
        tasks = [asyncio.create_task(self._keep_up(changelog)) for changelog in self._logs]
        tasks.append(asyncio.create_task(self._tell_of_partitions()))
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in ended:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _tell_of_partitions(self) -> None:
        await self._has_more_partitions.wait()
        raise ReadAnew(f"{self.table.topic}: was given more partitions")

    async def _keep_up(self, changelog: Changelog) -> None:
        while await changelog.keep_up():
            self.problem = None
        raise ReadAnew(
            f"{self.table.topic}, partition {changelog.partition}: was not read for longer than Kafka keeps "
            "tombstones, so deleted entries may remain in the table"
        )


class GlobalTables:
    """All global tables of a worker."""

    def __init__(self, cluster: Cluster, tables: Collection[GlobalTable], batch_most: int) -> None:
        """Start without reading; see `TopicFollower`."""
        self.followers = [TopicFollower(cluster, table, batch_most) for table in tables]
        self._tasks: list[asyncio.Task[None]] = []

    def table(self, name: str) -> GlobalTable:
        """Return the global table of that name."""
        return next(follower.table for follower in self.followers if follower.table.name == name)

    def status(self) -> list[GlobalTableStatus]:
        """Return the status of each table."""
        return [
            GlobalTableStatus(
                table.name,
                table.topic,
                sum(map(len, table.contents.partitions)) if table.contents else 0,
                table.contents.size if table.contents else 0,
                table.problem or follower.problem,
            )
            for follower in self.followers
            for table in [follower.table]
        ]

    async def start(self) -> None:
        """Read every topic to its present end, then start a task to follow each.

        Raises:
            RatchetError: a topic cannot be read.
        """
        for follower in self.followers:
            await follower.read()
        self._tasks = [
            asyncio.create_task(follower.run(), name=f"global table {follower.table.name}")
            for follower in self.followers
        ]

    def look_at(self, topics: Mapping[str, TopicState]) -> None:
        """Have each follower record whether its topic has more partitions than were read."""
        for follower in self.followers:
            follower.look_at(topics)

    async def stop(self) -> None:
        """Stop following. The tables keep their contents."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._tasks = []
