"""`ratchet resume`: what a person decides about partitions that stand still, done and recorded.

For each partition it is one transaction of the lane's own transactional id: the changelog's owner entry with the
decision in it, the partition's progress, and the group's offset. So a worker that runs is fenced, finds it with its
next try, and nobody ever sees half of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import structlog
from confluent_kafka.admin import AdminClient

from app._claims import now, this_user
from app._names import earlier_transactional_id, policy_topic, transactional_id
from app._ownership import StreamOwnership, names_of
from app._topics import partition_counts, prepare_owners
from app.settings import Settings
from errors import Aborted, Fenced, SettingsError, TopicMissing, TopicTaken
from tables import SequencePartition
from transport import (
    EARLIEST,
    LATEST,
    Cluster,
    Decision,
    Hanging,
    OwnedTopic,
    Owner,
    PartitionMove,
    client_options,
    end_hanging,
    find_hanging,
    id_text,
)

log = structlog.get_logger(__name__)

TRIES: Final = 20
"""A lane that is halted takes its id over again every few seconds, and may do so in the middle of this."""
CHANGELOG_BYTES: Final = 1_000_000
"""bytes of a batch of entries; max.message.bytes of a topic is 1,048,588 unless somebody has changed it."""


class Wanted(msgspec.Struct, frozen=True):
    """What the person asks for.

    start: "earliest", "latest", an offset as text, or None to go on from where it is
    """

    start: str | None
    reason: str
    forget: bool
    adopt: bool


class Plan(msgspec.Struct, frozen=True):
    """What is found about a partition, and what will be done. Offsets are of the input; None is not known."""

    partition: int
    found: list[str]
    before: int | None
    after: int
    first: int
    end: int
    identities: int
    forget: bool

    @property
    def skipped(self) -> int:
        """Records that are never judged."""
        begin = self.first if self.before is None else max(self.before, self.first)
        return max(0, self.after - begin)

    @property
    def again(self) -> int:
        """Records that are read once more."""
        return 0 if self.before is None else max(0, min(self.before, self.end) - self.after)


class Resume:
    """One stream of the settings, connected to its Kafka."""

    def __init__(self, settings: Settings, bootstrap: str, name: str, wanted: Wanted) -> None:
        """Looks at the topics and claims.

        Raises:
            TopicMissing: a topic of the stream does not exist.
            TopicTaken: somebody else writes the output, and `adopt` is not asked for.
            BrokerUnavailable: Kafka did not answer.
        """
        self.settings, self.bootstrap, self.name, self.wanted = settings, bootstrap, name, wanted
        self.stream = settings.streams[name]
        self._admin = AdminClient({"log_level": 2, **settings.kafka, "bootstrap.servers": bootstrap})
        found = partition_counts(self._admin, names_of(settings, name))
        self.ownership = StreamOwnership(settings, bootstrap, name, found)
        self.changelog = self.ownership.changelog(adopt=wanted.adopt)
        for topic in (self.stream.input, self.stream.output, self.stream.dead_letters, self.changelog):
            if topic not in found:
                raise TopicMissing(
                    f"stream {name}: there is no topic {topic}. Create it, or start a worker once, which does; it "
                    "stands still until you decide"
                )
        self.partitions = found[self.stream.input]
        if not wanted.adopt:
            self.ownership.refuse_others(self.changelog)

    @asynccontextmanager
    async def _cluster(self) -> AsyncIterator[Cluster]:
        cluster = Cluster(client_options(self.bootstrap, self.settings.kafka))
        await cluster.start(self.settings.kafka_timeout_s)
        try:
            yield cluster
        finally:
            await cluster.close()

    async def plan(self, numbers: list[int]) -> list[Plan]:
        """What would be done about these partitions. Changes nothing.

        Raises:
            SettingsError: it has to be said where to begin, or that last sequences are to be forgotten.
        """
        async with self._cluster() as cluster:
            plans = []
            for number in numbers:
                with tempfile.TemporaryDirectory(prefix="ratchet-resume-") as folder:
                    move = self._move(cluster, number, Path(folder))
                    plans.append(await self._planned(cluster, move, number))
            return plans

    async def execute(self, numbers: list[int]) -> list[Plan]:
        """Do it, partition by partition.

        Raises:
            SettingsError: as `plan`.
            TopicTaken: somebody else that writes the output is at work.
            Fenced: a worker takes the partition over again and again.
        """
        prepare_owners(self._admin, self.settings)
        if self.wanted.adopt:
            self._refuse_while_others_work()
        by = this_user()
        if self.wanted.adopt or self.ownership.is_stale(self.changelog):
            self.ownership.claim(self.changelog, by, self.wanted.reason)
        async with self._cluster() as cluster:
            return [await self._execute(cluster, number, by) for number in numbers]

    async def open_transactions(self, numbers: list[int], *, commit: bool | None) -> list[Hanging]:
        """Transactions that hang in what the lanes of these partitions write; ended, unless commit is None.

        Raises:
            TransactionError: Kafka refuses.
        """
        found: list[Hanging] = []
        async with self._cluster() as cluster:
            for number in numbers:
                places = [(topic, number) for topic in (self.stream.output, self.stream.dead_letters, self.changelog)]
                hanging = await find_hanging(cluster, places, self.settings.transaction_timeout_ms, "resume")
                if commit is not None and hanging:
                    name = transactional_id(self.settings.app, self.stream.input, number)
                    await end_hanging(cluster, name, hanging, "resume", commit=commit)
                    log.info("decided how it ends", id=name, commit=commit, by=this_user(), reason=self.wanted.reason)
                found += hanging
        return found

    async def _execute(self, cluster: Cluster, number: int, by: str) -> Plan:
        for left in reversed(range(TRIES)):
            with tempfile.TemporaryDirectory(prefix="ratchet-resume-") as folder:
                move = self._move(cluster, number, Path(folder))
                try:
                    await move.take_over()
                    plan = await self._planned(cluster, move, number)
                    owner = await self._owner(cluster, move.state.owner, plan, by)
                    await move.write(owner, plan.after, forget=plan.forget)
                except (Fenced, Aborted) as error:
                    if not left:
                        raise
                    log.info("a worker was quicker; trying again", partition=number, reason=str(error))
                    continue
                finally:
                    move.close()
            log.info("decision recorded", stream=self.name, partition=number, offset=plan.after, by=by)
            return plan
        raise AssertionError  # the last try raises

    def _move(self, cluster: Cluster, number: int, folder: Path) -> PartitionMove:
        stream, app = self.stream, self.settings.app
        state = SequencePartition(folder / "store", self.changelog, number, stream.identity, CHANGELOG_BYTES)
        return PartitionMove(
            cluster,
            state,
            topic=stream.input,
            partition=number,
            group=app,
            ids=(
                earlier_transactional_id(app, stream.input, number),
                transactional_id(app, stream.input, number),
            ),
            writes=(stream.output, stream.dead_letters, self.changelog),
        )

    async def _planned(self, cluster: Cluster, move: PartitionMove, number: int) -> Plan:
        """What is there, compared with what the changelog says."""
        await move.read()
        owner = await self._owner(cluster, None, None, "")
        stored = move.state.owner
        found = stored.differences(owner) if stored else []
        here = owner.topics["input"]
        if move.committed_in not in (None, here.id):
            found.append(f"the group's offset is of the topic of id {move.committed_in}, and {here} is there now")
        moved = any("its input was" in each or "the group's offset is of" in each for each in found)
        before = None if moved else move.position
        first, end = [await cluster.offset(self.stream.input, number, which, "resume") for which in (EARLIEST, LATEST)]
        if any("it was judged with" in each for each in found) and not self.wanted.forget:
            raise SettingsError(
                f"{self.changelog}, partition {number}: {'; '.join(found)}. Last sequences of the one rule mean "
                "nothing under the other: put the setting back, or add --forget to begin without them"
            )
        after = self._start(number, before, first, end)
        return Plan(number, found, before, after, first, end, len(move.state), self.wanted.forget)

    def _start(self, number: int, before: int | None, first: int, end: int) -> int:
        where = f"{self.stream.input}, partition {number}"
        match self.wanted.start:
            case None if before is not None and first <= before <= end:
                return before
            case None:
                known = "it is not known where to go on" if before is None else f"offset {before} is to be read next"
                raise SettingsError(f"{where}: {known}, and the topic holds {first} to {end}. Say --from where")
            case "earliest":
                return first
            case "latest":
                return end
            case text:
                if not text.isdecimal() or not text.isascii() or not first <= int(text) <= end:
                    raise SettingsError(
                        f"{where}: --from takes earliest, latest or an offset from {first} to {end} (given: "
                        f"{text[:40]!r})"
                    )
                return int(text)

    async def _owner(self, cluster: Cluster, before: Owner | None, plan: Plan | None, by: str) -> Owner:
        names = {
            "input": self.stream.input,
            "output": self.stream.output,
            "changelog": self.changelog,
            "policy": policy_topic(self.settings.app),
        }
        there = await cluster.topics(names.values())
        topics = {part: OwnedTopic(name, id_text(there[name].id)) for part, name in names.items() if name in there}
        decisions = before.decisions if before else ()
        if plan is not None:
            what = "resume" + " --forget" * plan.forget + " --adopt" * self.wanted.adopt
            decisions += (Decision(now(), by, what, self.wanted.reason, plan.before, plan.after),)
        return Owner(self.settings.app, self.name, self.stream.rule, topics, decisions)

    def _refuse_while_others_work(self) -> None:
        for app in self.ownership.others(self.changelog):
            group = self._admin.describe_consumer_groups([app], request_timeout=30)[app].result()
            if group.members:
                raise TopicTaken(
                    f"application {app!r} is at work ({len(group.members)} members in its group) and writes what "
                    f"stream {self.name!r} would write. Stop it first"
                )
