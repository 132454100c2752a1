"""`ratchet resume`: carries out and records what an operator decides about halted partitions.

For each partition it is one transaction of the lane's own transactional id: the changelog's owner entry with the
decision in it, the partition's progress, and the group's offset. So a worker that runs is fenced, finds it with its
next try, and nobody ever sees half of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import structlog
from confluent_kafka import KafkaError, KafkaException

from kafka_ratchet.app.names import earlier_transactional_id, policy_topic, transactional_id
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.group import describe_group
from kafka_ratchet.app.status.kafka_topics import partition_counts
from kafka_ratchet.app.worker.claims import now, this_user
from kafka_ratchet.app.worker.group_rules import rules_of, why, works_otherwise
from kafka_ratchet.app.worker.ownership import StreamOwnership, names_of
from kafka_ratchet.app.worker.topics import prepare_owners
from kafka_ratchet.errors import Aborted, BrokerUnavailable, Fenced, SettingsError, TopicMissing, TopicTaken
from kafka_ratchet.producers import admin_client, explained
from kafka_ratchet.tables.edits import FORGET, Edit
from kafka_ratchet.tables.eviction import Bounds
from kafka_ratchet.tables.map.windows import PLAIN, Kept
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.transport.client.cluster import EARLIEST, LATEST, Cluster
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.client.topic_id import id_text
from kafka_ratchet.transport.move import PartitionMove
from kafka_ratchet.transport.owner import UNDECIDED, Decision, Owner, format_of
from kafka_ratchet.transport.owner import Topic as OwnedTopic
from kafka_ratchet.transport.transactions.hanging import Hanging, end_hanging, find_hanging

log = structlog.get_logger(__name__)

TRIES: Final = 20
"""A lane that is halted takes its id over again every few seconds, and may do so in the middle of this."""
MOST_DIGITS: Final = 19
"""Of an offset, which is of 64 bits. Python refuses to read numbers of thousands of digits."""
CHANGELOG_BYTES: Final = 1_000_000
"""bytes of a batch of entries; max.message.bytes of a topic is 1,048,588 unless somebody has changed it."""


class Wanted(msgspec.Struct, frozen=True):
    """What the person asks for.

    start: "earliest", "latest", an offset as text, or None to go on from where it is;
    recount: also where records of identities that were forgotten since pass once more
    """

    start: str | None
    reason: str
    forget: bool
    adopt: bool
    recount: bool = False


class Plan(msgspec.Struct, frozen=True):
    """What is found about a partition, and what will be done. Offsets are of the input; None is not known.

    recounted: what people had forgotten behind the offset to go on at: records of those identities pass once more
    """

    partition: int
    found: list[str]
    before: int | None
    after: int
    first: int
    end: int
    identities: int
    forget: bool
    recounted: list[str] = []

    @property
    def skipped(self) -> int:
        """Number of offsets that are skipped."""
        begin = self.first if self.before is None else max(self.before, self.first)
        return max(0, self.after - begin)

    @property
    def again(self) -> int:
        """Number of offsets that are read again."""
        return 0 if self.before is None else max(0, min(self.before, self.end) - self.after)


def recounted_from(edits: Iterable[Edit], before: int | None, after: int) -> list[str]:
    """What people had forgotten of records that are read again from an offset on: they would pass once more.

    Args:
        edits: of the partition
        before: the committed offset; None: it means nothing in the present topic, and so do those of the edits
        after: to go on at
    """
    forgets = (edit for edit in edits if edit.kind == FORGET and edit.has_changed)
    return [f"offset {edit.position}: {edit}" for edit in forgets if before is None or edit.position > after]


class Resume:
    """One stream of the settings, connected to its Kafka."""

    def __init__(self, settings: Settings, bootstrap: str, name: str, wanted: Wanted, by: str | None = None) -> None:
        """Looks at the topics and claims. by: who decides; None: this user of this machine.

        Raises:
            TopicMissing: a topic of the stream does not exist.
            TopicTaken: somebody else writes the output, and `adopt` is not asked for.
            BrokerUnavailable: Kafka did not answer.
        """
        self.settings, self.bootstrap, self.name, self.wanted = settings, bootstrap, name, wanted
        self._by = by or this_user()
        self.stream = settings.streams[name]
        self._admin = admin_client({"bootstrap.servers": bootstrap, **settings.kafka})
        found = partition_counts(self._admin, names_of(settings, name))
        self.ownership = StreamOwnership(settings, bootstrap, name, found)
        self.changelog = self.ownership.changelog(adopt=wanted.adopt)
        for topic in (self.stream.input, *self.stream.writes, self.changelog):
            if topic not in found:
                raise TopicMissing(
                    f"stream {name}: there is no topic {topic}. Create it, or start a worker once, which does; it "
                    "halts until you decide"
                )
        self.partitions = found[self.stream.input]
        if not wanted.adopt:
            self.ownership.refuse_others(self.changelog)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Cluster]:
        """A connection of its own."""
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
        if self.wanted.adopt and len(numbers) < self.partitions:
            raise SettingsError(
                "--adopt is about a whole topic: without --partition. A partition that was left out would begin at "
                "the earliest record, and everything in it would count twice"
            )
        async with self.connected() as cluster:
            plans = []
            for number in numbers:
                with tempfile.TemporaryDirectory(prefix="ratchet-resume-") as folder:
                    move = self.move_of(cluster, number, self.state_of(number, Path(folder)))
                    try:
                        await move.read()
                        plan, _ = await self._planned(cluster, move, number)
                    finally:
                        move.close()
                plans.append(plan)
            return plans

    async def execute(self, numbers: list[int]) -> list[Plan]:
        """Do it, partition by partition, once it is known of all of them that it can be done.

        The claims come last: they let workers start, and those of an application that adopts would begin a partition
        that is not moved yet at its earliest record. Who is stopped in between runs the command again.

        Raises:
            SettingsError: as `plan`.
            TopicTaken: somebody else that writes the output is at work.
            Fenced: a worker takes the partition over again and again.
        """
        await self.plan(numbers)
        await self.refuse_other_rules()
        prepare_owners(self._admin, self.settings)
        if self.wanted.adopt:
            self._refuse_while_others_work()
        by = self._by
        async with self.connected() as cluster:
            plans = [await self._execute(cluster, number, by) for number in numbers]
        is_whole = len(numbers) == self.partitions
        if self.wanted.adopt or (is_whole and self.ownership.is_stale(self.changelog)):
            self.ownership.claim(self.changelog, by, self.wanted.reason)
        if self.wanted.adopt:
            self._refuse_while_others_work()  # one that was being started has read the claims of before
        return plans

    async def open_transactions(self, numbers: list[int], *, commit: bool | None) -> list[Hanging]:
        """Transactions that hang in what the lanes of these partitions write; ended, unless commit is None.

        Raises:
            TransactionError: Kafka refuses.
        """
        found: list[Hanging] = []
        async with self.connected() as cluster:
            for number in numbers:
                places = [(topic, number) for topic in (*self.stream.writes, self.changelog)]
                hanging = await find_hanging(cluster, places, self.settings.transaction_timeout_ms, "resume")
                if commit is not None and hanging:
                    name = transactional_id(self.settings.app, self.stream.input, number)
                    await end_hanging(cluster, name, hanging, "resume", commit=commit)
                    log.info("decided how it ends", id=name, commit=commit, by=self._by, reason=self.wanted.reason)
                found += hanging
        return found

    async def _execute(self, cluster: Cluster, number: int, by: str) -> Plan:
        with tempfile.TemporaryDirectory(prefix="ratchet-resume-") as folder:
            move = self.move_of(cluster, number, self.state_of(number, Path(folder)))
            try:
                # Most of it before the lane is fenced: a lane that is at work comes back after a second or two.
                await move.read()
                for left in reversed(range(TRIES)):
                    try:
                        await move.take_over()
                        await move.read()
                        plan, owner = await self._planned(cluster, move, number)
                        await move.write(
                            self._decided(owner, move.state.owner, plan, by), plan.after, forget=plan.forget
                        )
                    except (Fenced, Aborted) as error:
                        if not left:
                            raise
                        log.info(
                            "a worker took the partition over meanwhile; trying again",
                            partition=number,
                            reason=str(error),
                        )
                        continue
                    log.info("decision recorded", stream=self.name, partition=number, offset=plan.after, by=by)
                    return plan
            finally:
                move.close()
        raise AssertionError  # the last try raises

    def state_of(
        self, number: int, folder: Path, bounds: Bounds | None = None, kept: Kept = PLAIN
    ) -> SequencePartition:
        """An empty state of a partition, in a folder of its own. bounds: for one that knows when who was active."""
        room = self.settings.state_memory_mb << 20
        where = folder / "store", self.changelog, number, self.stream.identity, CHANGELOG_BYTES
        return SequencePartition(*where, lambda: room, bounds, kept=kept)

    def move_of(
        self, cluster: Cluster, number: int, state: SequencePartition, timeout_ms: int = 60_000
    ) -> PartitionMove:
        """What reads a partition into a state, and writes to it. timeout_ms: of its transaction."""
        stream, app = self.stream, self.settings.app
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
            writes=(*stream.writes, self.changelog),
            timeout_ms=timeout_ms,
        )

    async def _planned(self, cluster: Cluster, move: PartitionMove, number: int) -> tuple[Plan, Owner]:
        """What is there, compared with what the changelog says; and whose it would be, without the decision."""
        owner = await self.owner_now(cluster)
        state = move.state
        assert isinstance(state, SequencePartition)  # noqa: S101 - `move_of`
        stored = state.owner
        found = stored.differences(owner) if stored else []
        here = owner.topics["input"]
        if move.committed_in not in (None, here.id):
            found.append(f"the group's offset is of the topic of id {move.committed_in}, and {here} is there now")
        means_nothing = any("its input was" in each or "the group's offset is of" in each for each in found)
        if not means_nothing and (lost := await move.lost()) is not None:
            found.append(lost)
            means_nothing = True
        if others := self.ownership.others(self.changelog):
            # Whatever this stream has counted: it does not know what the other has forwarded.
            found.append(f"the topics are written by {' and '.join(sorted(others))}")
            means_nothing = True
        before = None if means_nothing else move.position
        first, end = [await cluster.offset(self.stream.input, number, which, "resume") for which in (EARLIEST, LATEST)]
        if any("it was judged with" in each for each in found) and not self.wanted.forget:
            raise SettingsError(
                f"{self.changelog}, partition {number}: {'; '.join(found)}. Last sequences of the one rule mean "
                "nothing under the other: put the setting back, or add --forget to begin without them"
            )
        after = self._start(number, before, first, end)
        recounted = [] if self.wanted.forget or after == end else recounted_from(state.edits, before, after)
        if recounted and not self.wanted.recount:
            raise SettingsError(
                f"{self.stream.input}, partition {number}: from offset {after} on, records pass once more whose "
                f"identities were forgotten since: {'; '.join(recounted)}. Add --recount if they are to count again, "
                "or say --from a later offset"
            )
        return Plan(number, found, before, after, first, end, len(state), self.wanted.forget, recounted), owner

    def _start(self, number: int, before: int | None, first: int, end: int) -> int:
        where = f"{self.stream.input}, partition {number}"
        match self.wanted.start:
            case None if before is not None and first <= before <= end:
                return before
            case None if before is None and first == end:
                return end  # there is nothing else to choose
            case None:
                known = (
                    "the committed offset means nothing here"
                    if before is None
                    else f"offset {before} is to be read next"
                )
                raise SettingsError(f"{where}: {known}, and the topic holds {first} to {end}. Say --from where")
            case "earliest":
                return first
            case "latest":
                return end
            case text:
                is_number = text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS
                if not is_number or not first <= int(text) <= end:
                    raise SettingsError(
                        f"{where}: --from takes earliest, latest or an offset from {first} to {end} (given: "
                        f"{text[:40]!r})"
                    )
                return int(text)

    async def owner_now(self, cluster: Cluster) -> Owner:
        """Whose it is with the topics that are there now. There may be no policy topic: nothing was ever said in it."""
        names = {"input": self.stream.input, "output": self.stream.output, "changelog": self.changelog}
        policy = policy_topic(self.settings.app)
        there = await cluster.found(names.values())
        if policy in (policies := await cluster.topics([policy])):
            names["policy"], there = policy, there | policies
        topics = {part: OwnedTopic(name, id_text(there[name].id)) for part, name in names.items()}
        rule = {**self.stream.rule, "output": UNDECIDED}
        return Owner(self.settings.app, self.name, rule, topics, format=format_of(rule))

    def _decided(self, owner: Owner, before: Owner | None, plan: Plan, by: str) -> Owner:
        what = "resume" + " --forget" * plan.forget + " --adopt" * self.wanted.adopt
        decision = Decision(now(), by, what, self.wanted.reason, plan.before, plan.after)
        duplicates = before.duplicates if before is not None and plan.before is not None else ()
        # Of another input it has to stay known too, that there are longer entries.
        judging = before.judging if before is not None else ()
        if plan.before is None:
            judging = tuple(msgspec.structs.replace(each, start=0) for each in judging[-1:])
        return msgspec.structs.replace(
            owner,
            decisions=(*(before.decisions if before else ()), decision),
            duplicates=duplicates,  # offsets of another input would mean nothing
            judging=judging,
            format=max(owner.format, before.format if (duplicates or judging) and before is not None else 0),
        )

    async def refuse_other_rules(self) -> None:
        """Workers with another input have lanes of other transactional ids, which would go on behind this."""
        group = await describe_group(self.bootstrap, self.settings)
        if works_otherwise(rules_of(self.settings), group):
            raise SettingsError(
                f"workers of {self.settings.app!r} run with other settings than these: "
                f"{why(rules_of(self.settings), group)}. Stop them first, or use their settings file"
            )

    def _refuse_while_others_work(self) -> None:
        for app in self.ownership.others(self.changelog):
            try:
                group = self._admin.describe_consumer_groups([app], request_timeout=30)[app].result()
            except KafkaException as failure:
                if failure.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                    continue
                raise BrokerUnavailable(f"group {app!r} cannot be read: {explained(failure.args[0])}") from failure
            if group.members:
                raise TopicTaken(
                    f"application {app!r} is at work ({len(group.members)} members in its group) and writes what "
                    f"stream {self.name!r} would write. Stop it first, and run this once more"
                )
