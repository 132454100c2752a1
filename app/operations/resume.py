"""`ratchet resume`: executes and records an operator's decision about halted partitions.

For each partition, it writes one transaction with the transactional id of the partition's lane. The transaction has
the changelog's owner entry with the decision, the partition's progress, and the group's offset, so a reader
sees all of them or none. Using the lane's id fences a running worker, which finds the decision when it takes the
partition again.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from confluent_kafka import KafkaError, KafkaException

from kafka_ratchet.app.names import changelog_name, policy_topic
from kafka_ratchet.app.operations.missing_topics import remedy_for
from kafka_ratchet.app.operations.policy_topic import read_policies
from kafka_ratchet.app.operations.recounting import (
    Log,
    RepeatedCount,
    awaited,
    causes,
    count_passing,
    never_judged,
    recounted_from,
)
from kafka_ratchet.app.repartition import RepartitionSettings, is_judged
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.group import describe_group
from kafka_ratchet.app.worker.claims import now, this_user
from kafka_ratchet.app.worker.group_rules import rules_of, why, works_otherwise
from kafka_ratchet.app.worker.kept import kept_of
from kafka_ratchet.app.worker.ownership import StreamOwnership, names_of
from kafka_ratchet.app.worker.topics import prepare_owners
from kafka_ratchet.errors import (
    Aborted,
    BrokerUnavailable,
    Fenced,
    RatchetError,
    SettingsError,
    TopicMissing,
    TopicTaken,
    TransactionError,
)
from kafka_ratchet.producers import admin_client, explained
from kafka_ratchet.rule.windows import PLAIN, StateOptions
from kafka_ratchet.tables.eviction import EvictionLimits
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.topic_log.clients import consumer, partition_counts, ranges_of
from kafka_ratchet.topic_log.reading import records
from kafka_ratchet.transport.client.cluster import EARLIEST, LATEST, Cluster
from kafka_ratchet.transport.client.group_log import group_log
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.client.topic_id import READ_UNCOMMITTED, id_text
from kafka_ratchet.transport.lane_spec import letters_in
from kafka_ratchet.transport.move import PartitionMove
from kafka_ratchet.transport.names import transactional_id
from kafka_ratchet.transport.owner import (
    INPUT,
    OUTPUT,
    POLICY,
    UNDECIDED,
    Decision,
    Mark,
    Owner,
    states_its_form,
)
from kafka_ratchet.transport.owner import Topic as OwnedTopic
from kafka_ratchet.transport.policy import ForgetRequest
from kafka_ratchet.transport.transactions.hanging import Hanging, end_hanging, find_hanging, open_in, with_known_ends

log = structlog.get_logger(__name__)

TRIES: Final = 20
"""Maximum number of attempts to take a partition over, because a halted lane's retries may fence an attempt."""
MOST_DIGITS: Final = 19
"""Maximum number of digits of an offset, which has 64 bits. Python refuses numbers of thousands of digits."""
CHANGELOG_BYTES: Final = 1_000_000
"""Maximum number of bytes of a batch of changelog entries; a topic's max.message.bytes is 1,048,588 by default."""


class ResumeOptions(msgspec.Struct, frozen=True):
    """Options of `ratchet resume`: the operator's decision.

    start: "earliest", "latest", an offset as text, or None to keep the position
    recount: True to accept that records which were counted before are forwarded again
    """

    start: str | None
    reason: str
    forget: bool
    adopt: bool
    recount: bool = False


class Plan(msgspec.Struct, frozen=True):
    """Plan for one partition: the findings, and the change. Offsets are input offsets; None: unknown.

    recounted: phrases about the records that will be forwarded again, each with a reason.
    passes_again: number of records that will be forwarded again; with `forget`, number of offsets.
    letters_again: number of records that will become dead letters again.
    decided: newest decision recorded before, as text; "": there is none.
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
    passes_again: int = 0
    letters_again: int = 0
    decided: str = ""

    @property
    def skipped(self) -> int:
        """Return the number of offsets that the plan skips."""
        begin = self.first if self.before is None else max(self.before, self.first)
        return max(0, self.after - begin)

    @property
    def again(self) -> int:
        """Return the number of offsets that the plan reads again."""
        return 0 if self.before is None else max(0, min(self.before, self.end) - self.after)


def _named(partitions: Iterable[int]) -> str:
    found = sorted(partitions)
    return f"partition{'s' * (len(found) > 1)} {', '.join(map(str, found))}"


def _newest_decision(owner: Owner | None) -> Decision | None:
    """Return the newest decision of a partition about its position; None: there is none."""
    decisions = owner.decisions if owner is not None else ()
    return next((each for each in reversed(decisions) if "--open-transaction" not in each.what), None)


class Resume:
    """Planner and executor of an operator's decision about one stream's partitions, with a connection to Kafka."""

    def __init__(
        self,
        settings: Settings,
        bootstrap: str,
        name: str,
        wanted: ResumeOptions,
        by: str | None = None,
        *,
        without_changelog: str | None = None,
    ) -> None:
        """Check the stream's topics and their owner.

        Args:
            settings: settings with the stream.
            bootstrap: host:port[,host:port].
            name: name of the stream.
            wanted: the operator's decision.
            by: name of the operator; None: the user of this process.
            without_changelog: remedy for a stream without a changelog, which most likely never ran; None: that of
                `ratchet resume`.

        Raises:
            TopicMissing: a topic of the stream does not exist.
            TopicTaken: another application writes the output, and `adopt` is off.
            BrokerUnavailable: Kafka did not answer.
        """
        self.settings, self.bootstrap, self.name, self.wanted = settings, bootstrap, name, wanted
        self._by = by or this_user()
        self._counted: dict[int, tuple[Any, RepeatedCount]] = {}
        """Last count of records that would be forwarded again, and a key of the counted state, by partition."""
        self.unrecorded: dict[int, str] = {}
        """Reason why the changelog has no record of the decision about an open transaction, by partition."""
        self._doubtful: int | None = None
        """Partition with an unknown outcome of the last commit; None if every outcome is known."""
        self.stream = settings.streams[name]
        self._admin = admin_client({"bootstrap.servers": bootstrap, **settings.kafka})
        found = partition_counts(self._admin, names_of(settings, name))
        self.ownership = StreamOwnership(settings, bootstrap, name, found)
        self.changelog = changelog_name(settings.app, name)
        for topic in (self.stream.input, *self.stream.writes, self.changelog):
            if topic not in found:
                remedy = remedy_for(
                    topic, settings, name, found, adopt=wanted.adopt, without_changelog=without_changelog
                )
                raise TopicMissing(f"stream {name}: the topic {topic} does not exist. {remedy}")
        self.partitions = found[self.stream.input]
        self.shared: list[tuple[str, int]] = []
        """Topic partitions, known to this command, that every lane may write to."""
        if isinstance(self.stream, RepartitionSettings):
            self.shared = [(self.stream.output, number) for number in range(found[self.stream.output])]
        if not wanted.adopt:
            self.ownership.refuse_others(self.changelog)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Cluster]:
        """Yield a client connected to Kafka; it is closed when the block ends."""
        cluster = Cluster(client_options(self.bootstrap, self.settings.kafka))
        await cluster.start(self.settings.kafka_timeout_s)
        try:
            yield cluster
        finally:
            await cluster.close()

    @asynccontextmanager
    async def _opened(self, cluster: Cluster, number: int) -> AsyncIterator[PartitionMove]:
        """Yield a partition's `PartitionMove` with an empty state; it is closed when the block ends."""
        with tempfile.TemporaryDirectory(prefix="ratchet-resume-") as folder:
            move = self.move_of(cluster, number, self.state_of(number, Path(folder), kept=kept_of(self.stream)))
            try:
                yield move
            finally:
                move.close()

    async def plan(self, numbers: list[int]) -> list[Plan]:
        """Return the plan for the partitions `numbers`; change nothing.

        Raises:
            SettingsError: the plan needs `--from`, `--forget` or `--recount`, and the option is not given. Or only
                some partitions have this decision already, and processed records since. Or `--adopt` is given, and
                `numbers` lacks a partition.
        """
        if self.wanted.adopt and len(numbers) < self.partitions:
            raise SettingsError(
                "--adopt takes over a whole topic, so it cannot be combined with --partition. An omitted partition "
                "would begin at the earliest record, and everything in it would count twice. Remove --partition"
            )
        async with self.connected() as cluster:
            plans, decided = list[Plan](), dict[int, Decision]()
            for number in numbers:
                async with self._opened(cluster, number) as move:
                    await move.read()
                    plan, _ = await self._planned(cluster, move, number)
                    if (known := self._decision_in_force(move.state.owner, plan)) is not None:
                        decided[number] = known
                plans.append(plan)
        self._refuse_repetition(plans, decided)
        return plans

    def _decision_in_force(self, owner: Owner | None, plan: Plan) -> Decision | None:
        """Return a partition's newest decision if it equals the requested one, and no halt followed it; else None."""
        newest = _newest_decision(owner)
        if owner is None or newest is None or newest.what != self._what:
            return None
        is_halted = plan.found or owner.broken or (plan.before is not None and plan.before > plan.end)
        return None if is_halted else newest

    def _refuse_repetition(self, plans: list[Plan], decided: dict[int, Decision]) -> None:
        """Refuse a repeated decision if partitions would process records again because of it.

        An earlier command may have recorded the decision for some of the partitions, and failed before the others.

        Args:
            plans: plans for all requested partitions.
            decided: recorded decision by partition, without partitions that halted since.
        """
        open_ones = [plan.partition for plan in plans if plan.partition not in decided]
        if not open_ones or not (self.wanted.forget or self.wanted.recount):
            return
        if not (having := [plan.partition for plan in plans if plan.partition in decided and plan.again]):
            return
        newest = max((decided[number] for number in having), key=lambda each: each.at)
        remedy = "with --partition, and without --adopt," if self.wanted.adopt else "with --partition"
        raise SettingsError(
            f"{self.stream.input}: an earlier command has recorded this decision for {_named(having)} (most "
            f"recently by {newest.by} at {newest.at}), but not for {_named(open_ones)}, or not since a halt there. To "
            f"repeat the decision for {_named(having)} would forward records again. Run the command {remedy} for each "
            "of the other partitions. To repeat the decision nevertheless, run it for such a partition alone"
        )

    async def execute(self, numbers: list[int]) -> list[Plan]:
        """Plan all partitions `numbers`, and then execute the plans, one partition after the other.

        The topics are claimed last. While another application has a claim, workers refuse to start. Without such a
        claim, a starting worker begins at the earliest record in each partition without a decision. If one partition
        fails, the partitions before it stay changed, and the error names them.

        Raises:
            SettingsError: as in `plan`.
            TopicTaken: the other application that writes the topics is running.
            Fenced: a worker took the partition over during each attempt.
        """
        for plan in await self.plan(numbers):
            if plan.recounted:
                log.warning(
                    "records will be forwarded a second time, as the operator decided",
                    topic=self.stream.input,
                    partition=plan.partition,
                    start=plan.after,
                    records=plan.passes_again,
                    causes=plan.recounted,
                )
        await self.refuse_other_rules()
        prepare_owners(self._admin, self.settings)
        if self.wanted.adopt:
            self._refuse_while_others_work()
        by = self._by
        async with self.connected() as cluster:
            plans = list[Plan]()
            try:
                for number in numbers:
                    plans.append(await self._execute(cluster, number, by))
                if self.wanted.adopt or (
                    self.ownership.is_stale(self.changelog) and await self._others_fit(cluster, numbers)
                ):
                    self.ownership.claim(self.changelog, self.partitions, by, self.wanted.reason)
                if self.wanted.adopt:
                    self._refuse_while_others_work()  # a starting application has read the earlier claims
            except BaseException as error:
                if plans or self._doubtful is not None:
                    self._name_changed(error, numbers[: len(plans)], numbers[len(plans) :])
                raise
        return plans

    async def _others_fit(self, cluster: Cluster, numbers: list[int]) -> bool:
        """Return True if the owner entries of all partitions except `numbers` fit the present topics and settings."""
        for number in sorted(set(range(self.partitions)) - set(numbers), reverse=True):  # the last is decided last
            async with self._opened(cluster, number) as move:
                await move.read()
                owner = await self.owner_now(cluster)
                if (stored := move.comparable(owner)) is None or stored.differences(owner):
                    return False
        return True

    def _name_changed(self, error: BaseException, changed: list[int], others: list[int]) -> None:
        """Add the partitions changed so far to an error; log them if the operator has interrupted the command."""
        said = [f"Already changed: {_named(changed)} of {self.stream.input}"] if changed else []
        if (doubtful := self._doubtful) is not None:
            others = [number for number in others if number != doubtful]
            said.append(f"Perhaps changed: partition {doubtful} of {self.stream.input} (its commit had no answer)")
        if self.wanted.adopt:
            said.append("Run the command again before a worker starts, because --adopt needs all partitions")
        elif doubtful is not None:
            said.append(
                f"After a minute, run the command with --partition {doubtful} and without --execute: it shows the "
                "newest decision. Unless this command has made it, repeat the command with --execute"
            )
        if others and not self.wanted.adopt:
            said.append(f"Repeat the command with --partition for each of the others: {_named(others)}")
        if not others and doubtful is None and not self.wanted.adopt:
            said.append("Do not repeat the command: the next decision renews the claim of the topics if it is stale")
        text = ". ".join(said)
        if isinstance(error, RatchetError):
            error.args = (f"{error}. {text}",)
        else:
            log.error(f"the command ended early. {text}", stream=self.name, reason=repr(error))

    def search_also(self, topics: list[str]) -> None:
        """Add topics to the search for open transactions.

        Raises:
            TopicMissing: a topic does not exist.
        """
        found = partition_counts(self._admin, topics)
        if missing := set(topics) - set(found):
            raise TopicMissing(f"--topic {missing.pop()}: the topic does not exist. Give a topic that agents send to")
        more = [(topic, number) for topic, count in found.items() for number in range(count)]
        self.shared = list(dict.fromkeys((*self.shared, *more)))

    async def open_transactions(self, numbers: list[int], *, commit: bool | None) -> list[Hanging]:
        """Return the hanging transactions in the topics of the partitions `numbers`, and end them as `commit` says.

        commit: True: commit them; False: abort them; None: change nothing

        The end is recorded in the changelog; if it cannot be, `unrecorded` has the reason.

        Raises:
            TransactionError: Kafka refuses; or the changelog shows that a transaction must end the other way.
        """
        found: list[Hanging] = []
        async with self.connected() as cluster:
            shared = await open_in(cluster, self.shared, "resume")
            for number in numbers:
                places = [(topic, number) for topic in (*self.stream.writes, self.changelog)]
                name = transactional_id(self.settings.app, self.stream.input, number)
                timeout_ms = self.settings.transaction_timeout_ms
                hanging = await find_hanging(cluster, places, timeout_ms, "resume", own_id=name, shared=shared)
                hanging = await with_known_ends(cluster, name, hanging, "resume")
                if commit is not None and hanging:
                    await end_hanging(cluster, name, hanging, "resume", commit=commit)
                    log.info(
                        "an operator decided how the open transaction ends",
                        id=name,
                        commit=commit,
                        by=self._by,
                        reason=self.wanted.reason,
                    )
                    if problem := await self._record_end(cluster, number, commit=commit):
                        self.unrecorded[number] = problem
                found += hanging
        return found

    async def _record_end(self, cluster: Cluster, number: int, *, commit: bool) -> str:
        """Record in a partition's owner entry how the operator has ended a transaction.

        The entry keeps its position, topics and settings, so a partition halted for another reason stays halted.

        Returns:
            reason why nothing was recorded; "" if the end was recorded
        """
        async with self._opened(cluster, number) as move:
            try:
                for _ in range(TRIES):
                    try:
                        await move.take_over()
                        await move.read()
                        owner, position = move.state.owner, move.position
                        if owner is None or position is None:
                            return "the partition has committed nothing yet"
                        if move.foreign_offset is not None or await move.lost() is not None:
                            return "its position is in doubt, and has to be decided first"
                        what = f"resume --open-transaction {'commit' if commit else 'abort'}"
                        mark = await self._mark(cluster, move, number, owner)
                        decision = Decision(now(), self._by, what, self.wanted.reason, position, position, mark)
                        decisions = (*owner.decisions, decision)
                        await move.write(msgspec.structs.replace(owner, decisions=decisions), position, forget=False)
                    except (Fenced, Aborted):
                        continue
                    return ""
                return "a worker has taken the partition over again and again"
            except TransactionError as error:
                return str(error)

    async def _execute(self, cluster: Cluster, number: int, by: str) -> Plan:
        async with self._opened(cluster, number) as move:
            # Most of it before the lane is fenced: a running lane comes back after a second or two.
            await move.read()
            tried: list[tuple[Decision, Plan]] = []
            for left in reversed(range(TRIES)):
                try:
                    await move.take_over()
                    await move.read()
                    self._doubtful = None  # a commit of an attempt before is in the changelog now, or aborted
                    known = move.state.owner.decisions if move.state.owner else ()
                    for decision, plan in tried:  # a failed commit may have been one after all
                        if decision in known:
                            return plan
                    plan, owner = await self._planned(cluster, move, number)
                    mark = await self._mark(cluster, move, number, owner)
                    decided = self._decided(owner, move.state.owner, plan, by, mark)
                    tried.append((decided.decisions[-1], plan))
                    self._doubtful = number
                    await move.write(decided, plan.after, forget=plan.forget)
                    self._doubtful = None
                except (Fenced, Aborted) as error:
                    if not left:
                        raise
                    log.info(
                        "a worker took the partition over in between; trying again",
                        partition=number,
                        reason=str(error),
                    )
                    continue
                log.info("decision recorded", stream=self.name, partition=number, offset=plan.after, by=by)
                return plan
        raise AssertionError  # the last try raises

    def state_of(
        self, number: int, folder: Path, bounds: EvictionLimits | None = None, kept: StateOptions = PLAIN
    ) -> SequencePartition:
        """Return an empty state for a partition, with its store in `folder`.

        bounds: the stream's limits of identities; with them, the state has the time of each identity.
        """
        room = self.settings.state_memory_mb << 20
        where = folder / "store", self.changelog, number, self.stream.identity, CHANGELOG_BYTES
        return SequencePartition(*where, lambda: room, bounds, kept=kept)

    def move_of(
        self, cluster: Cluster, number: int, state: SequencePartition, timeout_ms: int = 60_000
    ) -> PartitionMove:
        """Return the `PartitionMove` that reads a partition's state and writes the decision in one transaction.

        timeout_ms: timeout of the transaction, in ms
        """
        stream, app = self.stream, self.settings.app
        return PartitionMove(
            cluster,
            state,
            topic=stream.input,
            partition=number,
            app=app,
            group=app,
            transactional_id=transactional_id(app, stream.input, number),
            writes=(*stream.writes, self.changelog),
            shared=self.shared,
            timeout_ms=timeout_ms,
        )

    async def _planned(self, cluster: Cluster, move: PartitionMove, number: int) -> tuple[Plan, Owner]:
        """Return the plan for a partition, and the partition's owner entry before the decision."""
        owner = await self.owner_now(cluster)
        state = move.state
        assert isinstance(state, SequencePartition)  # noqa: S101 - `move_of`
        stored = move.comparable(owner)
        found = stored.differences(owner) if stored else []
        here = owner.topics[INPUT]
        means_nothing = stored is not None and stored.has_other_topic(INPUT, owner)
        if move.committed_in not in (None, here.id):
            means_nothing = True
            found.append(f"the group's offset is of the topic of id {move.committed_in}, and {here} is there now")
        old = None if means_nothing else move.position
        foreign = move.foreign_offset
        if not means_nothing and (lost := await move.lost()) is not None:
            found.append(lost)
            means_nothing = True
        if others := self.ownership.others(self.changelog):
            # Whatever this stream has counted: it lacks the other's forwarded records.
            found.append(f"the topics are written by {' and '.join(sorted(others))}")
            means_nothing = True
        before, counted = None if means_nothing else move.position, move.known or 0
        if before is not None and foreign is None and counted < before:
            found.append(
                f"the changelog has the records counted below offset {counted}; the group has committed {before}. "
                f"If another client has committed a copy of our metadata, offsets {counted} to {before - 1} were never "
                f"judged: --from {counted} reads them"
            )
        if foreign is not None:
            own = "none" if before is None else str(before)
            known = group_log(cluster, self.settings.app)
            commit = await known.commit(cluster, self.stream.input, number, foreign, "resume")
            at = f"; it was {commit}" if commit else ""
            found.append(f"the group's offset {foreign} was committed by another client; our own position: {own}{at}")
        first, end = [await cluster.offset(self.stream.input, number, which, "resume") for which in (EARLIEST, LATEST)]
        differing = stored.rule_differences(owner) if stored else []
        if stored and differing and not self.wanted.forget and not states_its_form(stored.rule, self.stream.rule):
            raise SettingsError(
                f"{self.changelog}, partition {number}: {'; '.join(found)}. The stored last sequences do not fit the "
                "changed settings. Restore the settings, or add --forget to continue without last sequences"
            )
        after = self._start(number, before, first, end)
        recounted: list[str] = []
        passing = RepeatedCount()
        if not self.wanted.forget and after < end:
            recounted, passing = await self._recounted(cluster, move, number, before, range(after, end))
        if self.wanted.forget and old is not None and after < min(old, end) and (kept := state.stored_tables()):
            recounted.append(
                f"--forget keeps the entries of the tables of a program, now or earlier ({', '.join(kept)}), and "
                f"agents with these tables would add the records of offsets {after} to {min(old, end) - 1} to them "
                "again; to build tables anew, run a second application (docs/guide/agents-deploy.md)"
            )
        is_new_output = stored is not None and stored.has_other_topic(OUTPUT, owner)
        if is_new_output and after < (end if before is None else min(before, end)):
            recounted += await asyncio.to_thread(self._written_already, number)
        if recounted and not self.wanted.recount:
            raise SettingsError(
                f"{self.stream.input}, partition {number}: if it continues at offset {after}, records that were "
                f"counted before are forwarded again: {'; '.join(recounted)}. Add --recount to accept that, or give a "
                "later offset with --from"
            )
        forget, letters, newest = self.wanted.forget, passing.invalid, _newest_decision(stored)
        decided = f"{newest.what}, by {newest.by} at {newest.at}: {newest.reason}" if newest is not None else ""
        passes = passing.records, letters, decided
        plan = Plan(number, found, before, after, first, end, len(state), forget, recounted, *passes)
        return msgspec.structs.replace(plan, passes_again=plan.again) if forget else plan, owner

    def _written_already(self, number: int) -> list[str]:
        """Return the reason for a refusal, if a recreated output has committed records; else an empty list.

        To read the input again would write these records a second time.
        """
        topic = self.stream.output
        options = {"bootstrap.servers": self.bootstrap, **self.settings.kafka}
        with consumer(options, self.settings.app) as asked:
            (held,) = ranges_of(asked, topic, [number]).values()
            if held.first >= held.end:
                return []
            written = records(asked, topic, number, held.first, timeout_s=self.settings.kafka_timeout_s, end=held.end)
            first = next(written, None)
        if first is None:
            return []
        return [
            f"the new output {topic} has committed records from offset {first.offset()} on, written before the "
            "partition halted; delete and create it once more while the partition stands still"
        ]

    async def _recounted(
        self, cluster: Cluster, move: PartitionMove, number: int, before: int | None, offsets: range
    ) -> tuple[list[str], RepeatedCount]:
        """Count the records that would be forwarded again if the partition continues at the first of `offsets`.

        Args:
            cluster: connected client of the Kafka cluster.
            move: the `PartitionMove`, after it has read the partition's state.
            number: number of the partition.
            before: the committed offset; None: it belongs to an earlier topic of the same name.
            offsets: offsets from the new position to the end of the partition.

        Returns:
            phrases with the reasons, and the count
        """
        state = move.state
        assert isinstance(state, SequencePartition)  # noqa: S101 - `move_of`
        after = offsets.start
        recounted = recounted_from(state.edits, before, after)
        again = range(after, offsets.stop if before is None else min(before, offsets.stop))
        if not again:
            return recounted, RepeatedCount()
        judges, forgets = await self._decided_by_policy()
        if before is None:
            is_lost = move.position is None and state.owner is None
            if is_lost and not self.wanted.adopt and (held := await self._outputs_held(cluster, number)):
                recounted.append(f"the changelog has no position, and the outputs hold {held} offsets")
            never_off = judges or isinstance(self.stream, RepartitionSettings) or not state.has_processed
            return recounted + causes(state, None, judges=never_off), RepeatedCount()
        log_of_input = await self._log_of_input(cluster, number)
        forgets = awaited(forgets, state, log_of_input, again.stop)
        counted = await self._passing(cluster, state, log_of_input, again, forgets=forgets, judges=judges)
        if counted.records:
            said = f"{counted.records} records, the first at offset {counted.first}"
            if isinstance(self.stream, RepartitionSettings):
                said += f" ({self.stream.output} gets them once more; stream {self.stream.of} judges them again)"
                return [said, *recounted], counted
            recounted = [said, *causes(state, again, forgets=forgets, judges=judges), *recounted]
        most = self.stream.max_identities
        if most is not None and (counted.records or len(state) > most // self.partitions):
            recounted.append(
                f"{len(state)} identities are known, and max_identities = {most} leaves {most // self.partitions} to "
                "each partition: identities evicted during the second reading pass as well"
            )
        return recounted, counted

    async def _decided_by_policy(self) -> tuple[bool, Sequence[ForgetRequest]]:
        """Read the policy topic: return True if the next worker deduplicates, and the requests to forget."""
        if not is_judged(self.stream, self.settings.app):
            return False, ()
        policies = await asyncio.to_thread(read_policies, self.settings, self.bootstrap)
        return policies.effective(self.name).deduplicate, policies.requests.of(self.name).forgets

    async def _outputs_held(self, cluster: Cluster, number: int) -> int:
        """Return the total number of offsets in partition `number` of the topics that the stream writes."""
        held = 0
        for topic in self.stream.writes:
            first, end = [await cluster.offset(topic, number, which, "resume") for which in (EARLIEST, LATEST)]
            held += end - first
        return held

    async def _log_of_input(self, cluster: Cluster, number: int) -> Log:
        there = await cluster.found([self.stream.input], besides=[self.stream.dead_letters])
        letters = there.get(self.stream.dead_letters)
        prefix = letters_in(self.settings.app, self.stream.dead_letters, id_text(letters.id)) if letters else b""
        return Log(self.stream.input, number, there[self.stream.input].id, prefix)

    async def _passing(
        self,
        cluster: Cluster,
        state: SequencePartition,
        log_of_input: Log,
        again: range,
        *,
        forgets: Sequence[ForgetRequest],
        judges: bool,
    ) -> RepeatedCount:
        """Return the count of records that would be forwarded again.

        If the state has not changed since the last count, that count is returned again. A running lane moves the end of
        the range with each commit; a moved end alone is no change.
        """
        number, edits, intervals = log_of_input.partition, len([*state.edits]), [*state.intervals]
        key = again.start, judges, forgets, edits, state.evicted, intervals, state.owner
        if (known := self._counted.get(number)) is not None and known[0] == key:
            return known[1]
        log.info(
            "counting the records that would be forwarded a second time",
            topic=self.stream.input,
            partition=number,
            start=again.start,
            end=again.stop,
        )
        skipped = never_judged(state.owner.decisions if state.owner else (), again.stop)
        counted = await count_passing(
            cluster,
            self.stream,
            state,
            log_of_input,
            again,
            skipped,
            forgets=forgets,
            judges=judges,
            batch_most=self.settings.max_batch_mb << 20,
        )
        self._counted[number] = key, counted
        return counted

    def _start(self, number: int, before: int | None, first: int, end: int) -> int:
        where = f"{self.stream.input}, partition {number}"
        match self.wanted.start:
            case None if before is not None and first <= before <= end:
                return before
            case None if before is None and first == end:
                return end  # there is nothing else to choose
            case None:
                known = (
                    "no committed offset of this topic is known"
                    if before is None
                    else f"the next offset to read is {before}"
                )
                raise SettingsError(
                    f"{where}: {known}, and the partition has the offsets {first} to {end}. Give the offset with --from"
                )
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
        """Return an owner entry with the ids of the present topics; it names the policy topic only if that exists."""
        names = {"input": self.stream.input, "output": self.stream.output, "changelog": self.changelog}
        policy = policy_topic(self.settings.app)
        there = await cluster.found(names.values())
        if policy in (policies := await cluster.topics([policy])):
            names["policy"], there = policy, there | policies
        topics = {part: OwnedTopic(name, id_text(there[name].id)) for part, name in names.items()}
        rule = {**self.stream.rule, "output": UNDECIDED}
        return Owner(self.settings.app, self.name, rule, topics)

    async def _mark(self, cluster: Cluster, move: PartitionMove, number: int, owner: Owner) -> Mark:
        """Return the end offsets of a partition's topics, and facts about its state, to record with the decision.

        The caller must fence the lane first, so that nothing changes any more. The end offsets are high watermarks,
        because the lane's records may follow an open transaction of another producer.
        """
        state, known = move.state, move.state.owner
        assert isinstance(state, SequencePartition)  # noqa: S101 - `move_of`
        topics = self.stream.output, self.stream.dead_letters, self.stream.duplicates
        output, letters, duplicates = [
            await cluster.offset(topic, number, LATEST, "resume", isolation=READ_UNCOMMITTED) if topic else 0
            for topic in topics
        ]
        rule, held = (owner.rule, owner.topics) if known is None else (known.rule, known.topics)
        there = ((part, held.get(part)) for part in (INPUT, OUTPUT, POLICY))
        parts = tuple(part for part, topic in there if topic not in (None, owner.topics.get(part)))
        last = state.intervals.last
        intervals = 0 if last is None else last.number + 1
        return Mark(rule, output, letters, duplicates, intervals, state.edits.next, len(state), parts)

    @property
    def _what(self) -> str:
        """Return the command line to record with a decision; `plan` finds repeated decisions by it."""
        wanted = self.wanted
        start = "" if wanted.start is None else f" --from {wanted.start}"
        flags = " --forget" * wanted.forget + " --recount" * wanted.recount + " --adopt" * wanted.adopt
        return f"resume{start}{flags}"

    def _decided(self, owner: Owner, before: Owner | None, plan: Plan, by: str, mark: Mark) -> Owner:
        decision = Decision(now(), by, self._what, self.wanted.reason, plan.before, plan.after, mark)
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
        """Raise an error if workers with other settings run, because this command would not fence their lanes."""
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
                raise BrokerUnavailable(
                    f"the group of application {app!r} cannot be read, so it is unknown whether its workers run: "
                    f"{explained(failure.args[0])}. Try again"
                ) from failure
            if group.members:
                raise TopicTaken(
                    f"application {app!r} is running ({len(group.members)} members in its group), and writes the "
                    f"topics that stream {self.name!r} would write. Stop it first, then run the command again"
                )
