"""The model of the commit path with foreign commits in the group, and an operator who decides where it goes on."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from copy import deepcopy
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from kafka_ratchet.app.operations import recounting
from kafka_ratchet.app.operations.recounting import Log, RepeatedCount, awaited, never_judged
from kafka_ratchet.app.settings import StreamSettings
from kafka_ratchet.errors import Aborted, Fenced, TransactionError
from kafka_ratchet.tables.edits import FORGET_ALL_KEY
from kafka_ratchet.tables.eviction import EvictionLimits
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.tables.policy_intervals import POLICY_INTERVAL, PolicyInterval
from kafka_ratchet.transport import owner as owners
from kafka_ratchet.transport.client.cluster import CommittedPosition
from kafka_ratchet.transport.client.topic_id import id_text
from kafka_ratchet.transport.lane_spec import LaneState
from kafka_ratchet.transport.move import PartitionMove
from kafka_ratchet.transport.owner import Decision, Owner
from kafka_ratchet.transport.policy import ForgetRequest
from kafka_ratchet.transport.transactions.hanging import Hanging, end_hanging
from kafka_ratchet.transport.transactions.requests import OURS
from tests.transport.memory_link import Link
from tests.transport.modelled_commit_path import EVICTED_IN_ALL, CommitPath
from tests.transport.modelled_failures import PLACES
from tests.transport.modelled_oracle import Expected, Transaction
from tests.transport.modelled_runs import STEP_S
from tests.transport.modelled_worker import (
    CHANGELOG,
    DEAD,
    GROUP,
    IDS,
    INPUT,
    OUTPUT,
    ReadPolicies,
    run,
)

TRIES = 20
FOREIGN_COMMIT, ACCEPT, RESTORE, SET_BACK = "foreign commit", "accept", "restore", "set back"
ENDED, REFUSED, AGAIN = "ended", "refused", "passes again"


class Decided(CommitPath):
    """One partition with another client in its group, and an operator.

    Without bounds, windows and agents: they have searches of their own.
    """

    bounds_of_a_run = st.none()
    has_agents = False

    def __init__(self) -> None:
        super().__init__()
        self.taken = set[int]()
        """Input offsets that were read, as of the last look."""

    def _settle(self, judging: dict[str, str]) -> None:
        super()._settle({})

    @property
    def is_foreign(self) -> bool:
        committed = self.kafka.offsets.get((GROUP, INPUT, 0))
        return committed is not None and OURS.fullmatch(committed.metadata) is None

    @property
    def committed_offset(self) -> int:
        if not self.is_foreign:
            return super().committed_offset
        transactions = self.transactions()
        return transactions[-1].progress.next if transactions else 0

    # What others do.

    @rule(data=st.data(), seconds=STEP_S)
    def commit_from_outside(self, data: st.DataObject, seconds: float) -> None:
        end = self.kafka.logs[INPUT, 0].end
        offset = data.draw(st.integers(0, end))
        self.kafka.offsets[GROUP, INPUT, 0] = CommittedPosition(
            offset, data.draw(st.sampled_from(["", "console", "2:x"]))
        )
        EVICTED_IN_ALL[FOREIGN_COMMIT] += 1
        self.append(data, seconds)

    @precondition(lambda self: not self.kafka.without_leader and not self.kafka.has_late)
    @rule(
        data=st.data(),
        what=st.sampled_from([ACCEPT, RESTORE, SET_BACK]),
        forget=st.sampled_from([False, False, True]),
        seconds=STEP_S,
    )
    def decide(self, data: st.DataObject, what: str, forget: bool, seconds: float) -> None:
        """Decide as `ratchet resume` does, and compare the count of records that pass again with the oracle's."""
        self._decide_now(what, data.draw(st.integers(0, 12)) / 12, forget=forget)
        self.append(data, seconds)

    def _decide_now(self, what: str, share: float = 0.0, *, forget: bool = False) -> RepeatedCount | None:
        for worker in filter(None, self.workers):  # the operator would wait for leaders
            worker.gives_up_without, worker.leaderless_at_the_end = None, set()
        counted = run(self.loop, asyncio.wait_for(self._decide(what, share, forget=forget), 5_000))
        self._bury()
        return counted

    async def _decide(self, what: str, share: float = 0.0, *, forget: bool = False) -> RepeatedCount | None:
        folder = self.folder / f"resume-{uuid.uuid4().hex}"
        state = SequencePartition(folder, CHANGELOG, 0, self.kind, 1_000_000)
        link: Any = Link(self.kafka)
        writes = (OUTPUT, DEAD, CHANGELOG)
        move = PartitionMove(
            link, state, topic=INPUT, partition=0, app="app", group=GROUP, transactional_id="id", writes=writes
        )
        try:
            for left in reversed(range(TRIES)):
                try:
                    await move.take_over()
                    await move.read()
                    return await self._decided(move, state, what, share, forget=forget)
                except (Fenced, Aborted):
                    if not left:
                        raise
        finally:
            move.close()
            shutil.rmtree(folder, ignore_errors=True)
        raise AssertionError

    async def _decided(
        self, move: PartitionMove, state: SequencePartition, what: str, share: float, *, forget: bool
    ) -> RepeatedCount | None:
        log, before = self.kafka.logs[INPUT, 0], move.position
        names = {owners.INPUT: INPUT, owners.OUTPUT: OUTPUT, owners.CHANGELOG: CHANGELOG}
        topics = {part: owners.Topic(name, id_text(self.kafka.topic_id(name))) for part, name in names.items()}
        owner = state.owner or Owner(self.spec.app, self.spec.stream, dict(self.spec.rule), topics)
        wanted = {ACCEPT: move.foreign_offset, SET_BACK: round(share * log.end)}.get(what)
        after = min(max((before or 0) if wanted is None else wanted, log.start), log.stable_end)
        counted = None
        if before is not None and after < before and not forget and self.kind != IDS:
            counted = await self._counted(move, state, range(after, before))
        decision = Decision("now", "me", f"{what}{' --forget' if forget else ''}", "so", before, after)
        decided = msgspec.structs.replace(owner, decisions=(*owner.decisions, decision))
        await move.write(decided, after, forget=forget)
        EVICTED_IN_ALL[what] += 1
        return counted

    async def _counted(self, move: PartitionMove, state: SequencePartition, again: range) -> RepeatedCount:
        policies = ReadPolicies(self.policies)
        log = Log(INPUT, 0, self.kafka.topic_id(INPUT), b"")
        forgets = awaited(policies.requests.forgets, state, log, again.stop)
        skipped = never_judged(state.owner.decisions if state.owner else (), again.stop)
        stream = StreamSettings(input=INPUT, output=OUTPUT, dead_letters=DEAD, identity=self.kind)
        found = await recounting.count_passing(
            move.cluster,
            stream,
            state,
            log,
            again,
            skipped,
            forgets=forgets,
            judges=policies.policy.deduplicate,
            batch_most=1 << 20,
        )
        if not self._left_open:
            assert found.records == self._would_pass(again, list(forgets), judges=policies.policy.deduplicate)
            EVICTED_IN_ALL[AGAIN] += found.records > 0
        return found

    def _would_pass(self, again: range, forgets: list[ForgetRequest], *, judges: bool) -> int:
        expected = self.expected()
        known = deepcopy(expected.known)
        for each in forgets:
            last = known.of[each.identity].last if each.identity in known.of else -1
            if each.above is None and last >= 0:
                del known.of[each.identity]
            elif each.above is not None and each.above < last:
                known.lower(each.identity, each.above)
        passes = 0
        for offset in again:
            sent = self.sent[offset]
            if sent is None:
                continue
            is_fresh = not judges
            if judges and sent.identity is not None and sent.sequence is not None:
                is_fresh = known.judge(sent.identity, sent.sequence, sent.record.value) == "fresh"
            passes += is_fresh and offset in self.taken
        return passes

    @precondition(lambda self: self.kind != IDS and not self.kafka.without_leader and not self.kafka.has_late)
    @rule(data=st.data(), what=st.sampled_from([ACCEPT, SET_BACK]), share=st.integers(0, 12), seconds=STEP_S)
    def decide_over_what_passed_unjudged(self, data: st.DataObject, what: str, share: int, seconds: float) -> None:
        """The policy was off and is on again, also where workers have not read that."""
        self.append(data, seconds)
        self.switch(data, False, seconds)
        self.policies.append(True)
        self.append(data, seconds)
        if self.kafka.without_leader:
            return
        if what == ACCEPT:
            self.kafka.offsets[GROUP, INPUT, 0] = CommittedPosition(
                round(share / 12 * self.kafka.logs[INPUT, 0].end), ""
            )
        self._decide_now(what, share / 24)
        self.go_on(seconds)

    @precondition(lambda self: self._left_open and not self.kafka.without_leader and not self.kafka.has_late)
    @rule(commit=st.booleans(), seconds=STEP_S)
    def end_what_is_open(self, commit: bool, seconds: float) -> None:
        """End it as `ratchet resume --open-transaction` does."""
        self._end_what_is_open(commit=commit)
        self.go_on(seconds)

    def _end_what_is_open(self, *, commit: bool) -> None:
        last = self.kafka.transactions["id"]
        hanging = [
            Hanging(topic, number, batch.producer, batch.epoch, 0, batch.offset, 1e9)
            for topic, number in PLACES
            for batch in [each for each in self.kafka.logs[topic, number].batches if each.committed is None][:1]
            if batch.producer == last.producer and (last.state != "open" or batch.epoch < last.epoch)
        ]
        if not hanging:
            return
        link: Any = Link(self.kafka)
        try:
            run(self.loop, end_hanging(link, "id", hanging, "operator", commit=commit))
            EVICTED_IN_ALL[ENDED] += 1
        except TransactionError:
            EVICTED_IN_ALL[REFUSED] += 1
        self._bury()

    @precondition(lambda self: not any(each.decision for each in self.transactions()))
    @precondition(lambda self: self.workers == [None, None] and not (self.was_ahead or self._left_open))
    @precondition(lambda self: not (self.kafka.without_leader or self.is_foreign))
    @rule()
    def start_on_a_store_that_is_ahead(self) -> None:
        """A store from before a decision is rebuilt instead."""
        super().start_on_a_store_that_is_ahead()

    # What must hold.

    @invariant()
    def nobody_halts(self) -> None:
        for worker in filter(None, self.workers):
            status = worker.lane.status
            assert status.state is not LaneState.HALTED or status.halted == "ForeignOffset", status.error

    def expected(self) -> Expected:
        """Return the expectation for the committed transactions, leg by leg: each decision begins one."""
        requests = {each.id: each for each in self.policies if isinstance(each, ForgetRequest)}
        expected, begin = Expected(EvictionLimits(), [], None, requests), 0
        self.taken = set[int]()
        for leg in self._legs():
            intervals = {each.number: each for transaction in leg for each in transaction.intervals}
            if leg[0].decision is not None:
                for each in leg[0].intervals:  # the mark of the decision
                    del intervals[each.number]
            expected.off = [range(each.start, each.end) for each in intervals.values() if not each.deduplicate]
            for transaction in leg:
                end = transaction.progress.next
                if transaction.decision is not None:
                    assert transaction.decision.after == end
                    begin = end
                    if transaction.decision.forgets:
                        expected.known.of.clear()
                        expected.active_s.clear()
                expected.take(begin, self.sent[begin:end], transaction, {})
                self.taken.update(range(begin, end))
                begin = end
        assert begin == self.committed_offset
        return expected

    def _legs(self) -> list[list[Transaction]]:
        """Split the committed transactions at the decisions."""
        legs = list[list[Transaction]]()
        for transaction in self.transactions():
            if transaction.decision is not None or not legs:
                legs.append([])
            legs[-1].append(transaction)
        return legs

    def changelog(self) -> dict[bytes, bytes | None]:
        found = dict[bytes, bytes | None]()
        for key, value, _ in self.kafka.logs[CHANGELOG, 0].committed():
            if key == FORGET_ALL_KEY:
                found = {each: known for each, known in found.items() if not each.startswith(b"i")}
            found[key or b""] = value
        return found

    def unjudged(self) -> list[PolicyInterval]:
        """The intervals that were not judged. One of policy 0 is the mark of a decision."""
        intervals = [
            PolicyInterval.unpack(key, value or b"")
            for key, value in sorted(self.changelog().items())
            if key.startswith(POLICY_INTERVAL)
        ]
        assert [interval.number for interval in intervals] == list(range(len(intervals)))
        for interval in intervals:
            assert not interval.policy or self.policies[interval.policy - 1] == interval.deduplicate
        return [interval for interval in intervals if not interval.deduplicate]

    def teardown(self) -> None:
        try:
            self._end_failures()
            self.thaw(2)
            self.kafka.deliver_late()
            self.go_on(2)
            if self.is_foreign:
                self._decide_now(RESTORE)
        except BaseException:
            self.close()
            raise
        super().teardown()
