"""View of Kafka and all live workers together, for the page and `ratchet tables`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from urllib.parse import urlencode

import msgspec
import structlog
from pydantic import ValidationError

from kafka_ratchet.app.local.connectivity import Reachability, no_answer
from kafka_ratchet.app.names import changelog_name, repartition_topic
from kafka_ratchet.app.repartition import arrives_in
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.status.answers import IdentityAnswer, TableStatus, WorkerStatus
from kafka_ratchet.app.status.group import REBALANCING, Group, describe_group
from kafka_ratchet.app.status.identities import IdentitiesAnswer, IdentitiesPage, IdentitiesQuery, merge_identities
from kafka_ratchet.app.status.kafka_view import InputPartition, KafkaView
from kafka_ratchet.app.status.lookup import QueryError, answer_of, parse_parts
from kafka_ratchet.app.status.model import (
    KnownIdentity,
    Lookup,
    Overview,
    WorkerView,
    known,
    merge,
    without_kafka,
)
from kafka_ratchet.app.status.own_tables import TableAnswer, TablePage, TableQuery, merge_tables
from kafka_ratchet.app.status.problems import (
    about_blocked,
    about_foreign_offsets,
    about_group,
    about_input,
    about_invalid,
    about_late,
    about_programs,
)
from kafka_ratchet.app.status.producers import ProducersAnswer, ProducersPage, merge_pages
from kafka_ratchet.app.status.unserved import StandstillFinder
from kafka_ratchet.app.status.worker_client import Body, WorkerClient
from kafka_ratchet.app.streams import STREAM_NAME
from kafka_ratchet.errors import BrokerUnavailable
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.transport.client.security import client_options


def with_internal(settings: Settings, told: TableStatus) -> Settings | None:
    """Return the settings with one more stream, an internal stream that a worker has reported.

    None: the reported stream is not an internal stream of this application.
    """
    if not STREAM_NAME.fullmatch(told.stream) or told.input != repartition_topic(settings.app, told.stream):
        return None
    try:
        stream = StreamSettings(input=told.input, output=told.output, dead_letters=told.dead_letters, deduplicate=False)
    except ValidationError:
        return None
    return settings.model_copy(update={"streams": {**settings.streams, told.stream: stream}})


log = structlog.get_logger(__name__)

FRESH_FOR_S = 1.0
"""Minimum seconds between two requests to Kafka and the workers, however many pages are open."""

SLOW_S = 0.15
"""Duration of a request, in seconds, above which pages show the last answer while the next request runs.

So the slow answers of a large group do not delay a page."""

STALE_MOST_S = 10.0
"""Maximum seconds since an answer for a page to show it; its time is in the field `taken_at`."""


class ClusterView:
    """View of Kafka and all workers for the page and commands. An async context manager.

    Args:
        bootstrap: host:port[,host:port].
        settings: streams, name of the group, client options.

    Raises:
        SettingsError: a client refuses its options.
    """

    def __init__(self, bootstrap: str, settings: Settings) -> None:
        self._bootstrap = bootstrap
        self._settings = settings
        client_options(bootstrap, settings.kafka)
        self._kafka = KafkaView(bootstrap, settings)
        self._reachability = Reachability(bootstrap, settings.kafka)
        self._away: list[str] = []  # the sentence, where Kafka did not answer the last request
        self._last_known: list[str] = []
        self._changelogs = {name: changelog_name(settings.app, name) for name in settings.streams}
        self._overview: Overview | None = None
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()
        self._took_s = 0.0
        self._refreshing: asyncio.Task[Overview] | None = None
        self._workers = WorkerClient()
        self._unserved = StandstillFinder()

    async def __aenter__(self) -> ClusterView:
        await self._workers.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        await self._workers.__aexit__(kind, error, traceback)

    @property
    def settings(self) -> Settings:
        """Return the settings, with the internal streams added that the workers have reported."""
        return self._settings

    async def kafka_away(self) -> str | None:
        """Return the error message if Kafka does not answer; None if it answered within the last second."""
        await self.overview()
        return self._away[0] if self._away else None

    async def overview(self) -> Overview:
        """Return the state of all streams, at most a second old, or `STALE_MOST_S` for a slow group.

        If Kafka or a worker does not answer, no error is raised; the field `problems` says so.
        """
        age = asyncio.get_running_loop().time() - self._asked_at
        if self._overview is not None and self._took_s > SLOW_S and age <= STALE_MOST_S:
            if age > FRESH_FOR_S and (self._refreshing is None or self._refreshing.done()):
                self._refreshing = asyncio.create_task(self._fresh())
            return self._overview
        return await self._fresh()

    async def _fresh(self) -> Overview:
        clock = asyncio.get_running_loop().time
        async with self._asking:
            if self._overview is None or clock() - self._asked_at > FRESH_FOR_S:
                began = clock()
                self._overview = await self._ask()
                self._asked_at = clock()
                self._took_s = self._asked_at - began
            return self._overview

    def identity_of(self, stream: str | None, texts: Sequence[str], hexadecimal: str | None) -> bytes:
        """Parse an identity typed by a user; see `parse_parts`.

        Raises:
            SettingsError: the settings have no such stream.
            QueryError: the identity is invalid.
        """
        return parse_parts(self._settings.stream(stream)[1].identity, texts, hexadecimal)

    async def lookup(
        self, stream: str | None, identity: bytes, sequence: int | None, partition: int | None = None
    ) -> Lookup:
        """Return the state of an identity in all partitions, with the answer for a record of this sequence.

        Raises:
            SettingsError: the settings have no such stream.
            QueryError: the identity is missing, and the stream's identity is neither partition nor key; or a partition
                is given for a stream that sets `repartition_by`.
        """
        name, spec = self._settings.stream(stream)
        if not identity and spec.identity not in (Identity.PARTITION, Identity.KEY):
            raise QueryError(
                f"the identity is missing: stream {name!r} has one last sequence for each {spec.identity}. Give the "
                "identity"
            )
        if partition is not None and spec.repartition_by:
            raise QueryError(
                f"stream {name!r} deduplicates each record in the partition of its identity, to whichever partition it "
                "was sent. Give no partition and no record key"
            )
        overview = await self.overview()
        query = {"stream": name, "hex": identity.hex()} | ({} if sequence is None else {"sequence": str(sequence)})
        urls = [worker.url for worker in overview.workers]
        answers, failures = await self._workers.ask_all(urls, f"/status/identity?{urlencode(query)}", IdentityAnswer)
        names = {worker.url: worker.name or worker.url for worker in overview.workers}
        found = [row for url, answer in answers.items() for row in known(names[url], answer.partitions)]
        asked = {number for answer in answers.values() for number in answer.asked}
        view = next(each for each in overview.streams if each.stream == name)
        partitions = {row.partition for row in view.partitions}
        rows = _furthest(found)
        answer = None
        if sequence is not None:
            verdicts = {row.partition: row.verdict for row in rows}
            missing = partitions - asked
            # Each identity has one partition then, as with a key.
            kind = "key" if spec.repartition_by else str(spec.identity)
            were = {row.partition for row in rows if row.had_reached(sequence)}
            answer = answer_of(verdicts, partitions, missing, identity=kind, partition=partition, forgotten=were)
        rows_of = {each.stream: each.partitions for each in overview.streams}
        may_wait = answer in ("unseen", "forgotten", "unknown", "depends")
        waiting = about_blocked(rows_of, name, partition) if may_wait else []
        if waiting and answer == "unseen":
            answer = "unknown"
        told = next(iter(answers.values()), None)
        return Lookup(
            stream=name,
            identity_hex=identity.hex(),
            sequence=sequence,
            partitions=rows,
            asked=sorted(asked),
            not_asked=sorted(partitions - asked),
            problems=[
                *self._away,
                *(f"worker {names[url]} did not answer: {failure}" for url, failure in failures.items()),
                *waiting,
                *about_input(view),
                *about_late(rows, sequence, spec.reorder_window),
            ],
            partition=partition,
            answer=answer,
            deduplicate=told.deduplicate if told else None,
            origin=told.origin if told else None,
            unjudged=sum(each.unjudged for each in answers.values()),
            recognised_for_s=view.recognised_for_s,
            cannot_replay=sorted(
                [
                    *(names[url] for url, each in answers.items() if not (each.can_replay and each.names_apps)),
                    *(names[url] for url in failures),
                ]
            )
            or msgspec.UNSET,
            cannot_forget=sorted(names[url] for url, each in answers.items() if not each.can_forget) or msgspec.UNSET,
        )

    async def producers(self, stream: str | None, after: bytes | None, limit: int) -> ProducersPage:
        """Return the first `limit` producers of all workers with names after `after`, sorted by name.

        Raises:
            SettingsError: the settings have no such stream.
            QueryError: the identity of the stream is not the producer.
        """
        name, spec = self._settings.stream(stream)
        if spec.identity != Identity.PRODUCER:
            raise QueryError(
                f"the identity of stream {name!r} is the {spec.identity} and not the producer, so its workers keep no "
                "list of producers. Name another stream"
            )
        overview = await self.overview()
        query = {"stream": name, "limit": str(limit)} | ({} if after is None else {"after": after.hex()})
        urls = [worker.url for worker in overview.workers]
        answers, failures = await self._workers.ask_all(urls, f"/status/producers?{urlencode(query)}", ProducersAnswer)
        names = {worker.url: worker.name or worker.url for worker in overview.workers}
        view = next(each for each in overview.streams if each.stream == name)
        return merge_pages(
            name,
            arrives_in(self._settings.streams, name),
            answers.values(),
            limit,
            {row.partition for row in view.partitions},
            [*self._away, *(f"worker {names[url]} did not answer: {failure}" for url, failure in failures.items())],
        )

    async def identities(self, stream: str | None, query: IdentitiesQuery) -> IdentitiesPage:
        """Return a page of the identities from all workers.

        Raises:
            SettingsError: the settings have no such stream.
            QueryError: the stream has one sequence for each partition, and no identities.
        """
        name, spec = self._settings.stream(stream)
        if spec.identity == Identity.PARTITION:
            raise QueryError(f"stream {name!r} has one last sequence for each partition, and no identities to list")
        overview = await self.overview()
        urls = [worker.url for worker in overview.workers]
        path = f"/status/identities?{urlencode({'stream': name, **query.parameters()})}"
        answers, failures = await self._workers.ask_all(urls, path, IdentitiesAnswer)
        names = {worker.url: worker.name or worker.url for worker in overview.workers}
        said = [*self._away, *(f"worker {names[url]} did not answer: {failure}" for url, failure in failures.items())]
        view = next(each for each in overview.streams if each.stream == name)
        return merge_identities(name, answers.values(), query, {row.partition for row in view.partitions}, said)

    async def own_table(self, table: str, stream: str | None, query: TableQuery) -> TablePage:
        """Return the committed values of one key of a program's table, or of a page of keys, from all partitions.

        Args:
            table: name of the table
            stream: stream of the table; None: any stream with such a table
            query: key or page of the request

        Raises:
            SettingsError: the settings have no such stream.
            QueryError: no answering worker has such a table.
        """
        overview = await self.overview()
        views = [each for each in overview.streams if stream in (None, each.stream)]
        if stream is not None and not views:
            self._settings.stream(stream)  # names those that there are
        view = next((each for each in views if table in each.tables), None)
        if view is None and not (stream is None and table in overview.global_tables):
            if any(worker.error is None for worker in overview.workers):
                has = {name for each in views for name in each.tables} | set(overview.global_tables)
                of = f"stream {stream!r}" if stream is not None else "the workers' program"
                raise QueryError(f"{of} has no table {table!r:.100}; its tables are {', '.join(sorted(has)) or 'none'}")
            every = [row.partition for row in views[0].partitions] if len(views) == 1 else []
            silent = [f"worker {worker.url} did not answer: {worker.error}" for worker in overview.workers]
            return merge_tables(table, stream, {}, query, every, [*overview.problems, *silent])
        asked = {"table": table, **query.parameters()} | ({"stream": view.stream} if view else {})
        urls = [worker.url for worker in overview.workers]
        answers, failures = await self._workers.ask_all(urls, f"/status/table?{urlencode(asked)}", TableAnswer)
        names = {worker.url: worker.name or worker.url for worker in overview.workers}
        problems = [f"worker {names[url]} did not answer: {failure}" for url, failure in failures.items()]
        every = [row.partition for row in view.partitions] if view else []
        return merge_tables(table, view.stream if view else None, answers, query, every, [*self._away, *problems])

    async def ask_workers(
        self, path: str, parameters: Mapping[str, str], body: type[Body]
    ) -> tuple[dict[str, Body], dict[str, str]]:
        """Send a request to all workers.

        Returns:
            (answers by worker name; by worker name, the reason why a worker gave no answer)
        """
        overview = await self.overview()
        names = {worker.url: worker.name or worker.url for worker in overview.workers}
        answers, failures = await self._workers.ask_all(names, f"{path}?{urlencode(parameters)}", body)
        return {names[url]: each for url, each in answers.items()}, {names[url]: why for url, why in failures.items()}

    async def _ask(self) -> Overview:
        reason = await asyncio.to_thread(self._reachability.look)
        self._away = [] if reason is None else [no_answer(self._bootstrap, reason)]
        problems = [*self._away]
        group, positions = (None, {}) if self._away else await self._ask_kafka(problems)
        urls = self._urls(group)
        answers, failures = await self._workers.ask_all(urls, "/status", WorkerStatus)
        problems += about_group(self._settings, group, urls) + self._learn(answers)
        streams = merge(self._settings, answers, group, positions, self._changelogs)
        if self._away:
            streams = [without_kafka(each) for each in streams]
        unread = "" if group is not None or self._away else "; ".join(problems)
        problems += [] if self._away else self._kafka.problems
        streams = [self._unserved.name(each, group, failures, time.time(), unread) for each in streams]
        problems += [
            f"stream {each.stream}: its input {each.input!r} does not exist yet"
            for each in streams
            if positions.get(each.stream) == []
        ]
        problems += about_programs(answers.values())
        problems += about_foreign_offsets(group, streams)
        problems += [said for each in streams for said in about_input(each)]
        problems += [said for name in sorted(answers) for said in about_invalid(answers[name])]
        problems += [
            f"worker {answers[name].worker}: {each.problem}"
            for name in sorted(answers)
            for each in answers[name].global_tables
            if each.problem is not None
        ]
        return Overview(
            app=self._settings.app,
            taken_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            group=group.state if group else None,
            workers=sorted(
                (_worker(url, answers.get(url), failures.get(url)) for url in urls),
                key=lambda worker: (worker.name is None, worker.name, worker.url),
            ),
            streams=streams,
            problems=problems,
            global_tables=sorted({each.table for answer in answers.values() for each in answer.global_tables}),
        )

    async def _ask_kafka(self, problems: list[str]) -> tuple[Group | None, Mapping[str, list[InputPartition]]]:
        members, topics = await asyncio.gather(
            describe_group(self._bootstrap, self._settings),
            asyncio.to_thread(
                self._kafka.read, dict(self._changelogs), self._reachability.partitions, self._reachability.leaderless
            ),
            return_exceptions=True,
        )
        for answer in (members, topics):
            if isinstance(answer, BrokerUnavailable):
                problems.append(str(answer))
            elif isinstance(answer, BaseException):
                raise answer
        return (
            None if isinstance(members, BaseException) else members,
            {} if isinstance(topics, BaseException) else topics,
        )

    def _urls(self, group: Group | None) -> list[str]:
        if group is None:
            return self._last_known
        if group.state in REBALANCING:
            return sorted({*self._last_known, *group.workers})
        self._last_known = group.workers
        return group.workers

    def _learn(self, answers: Mapping[str, WorkerStatus]) -> list[str]:
        """Store the changelog names and internal streams that workers report.

        Returns:
            sentences about reported streams, without internal ones and those in the settings
        """
        said = []
        for status in answers.values():
            for table in status.tables:
                internal = with_internal(self._settings, table) if table.stream not in self._changelogs else None
                if internal is not None:
                    self._settings = self._kafka.settings = internal
                if internal is not None or table.stream in self._changelogs:
                    self._changelogs[table.stream] = table.changelog
                else:
                    said.append(
                        f"worker {status.worker} serves the stream {table.stream!r}, which these settings do not have; "
                        "start this command with the worker's settings file"
                    )
        return said


def _worker(url: str, answer: WorkerStatus | None, failure: str | None) -> WorkerView:
    name, program = (None, "") if answer is None else (answer.worker, answer.program)
    return WorkerView(url, name, failure, program)


async def lookup(
    bootstrap: str,
    settings: Settings,
    stream: str | None,
    identity: bytes,
    sequence: int | None,
    partition: int | None = None,
) -> Lookup:
    """Connect, and look up one identity; arguments and errors are those of `ClusterView.lookup`."""
    async with ClusterView(bootstrap, settings) as cluster_view:
        return await cluster_view.lookup(stream, identity, sequence, partition)


def _furthest(rows: list[KnownIdentity]) -> list[KnownIdentity]:
    """Return one row for each partition; of two workers' rows, the one with the higher sequence."""
    rows = sorted(rows, key=lambda row: (row.partition, _seen(row.persisted), _seen(row.pushed)))
    return list({row.partition: row for row in rows}.values())


def _seen(sequence: int | None) -> int:
    return -1 if sequence is None else sequence
