"""Lane of one input partition, from fetch to commit.

The durable order of docs/decisions/0001-durable-order.md, as numbered here:

    1. fetch             record batches as columns; the next fetch runs while this batch is processed
    2. judge             the agent, against the pushed state
    3. produce           output, dead letters, changelog, in the partition's own transaction; in a stream with
                         bounds, the decision on evictions waits for Kafka's append time
    4. send the offset   the next input offset to read, in the same transaction
    5. commit
    6. remember          the pushed state becomes persisted; once a second, one WriteBatch saves it in the local
                         store, together with its changelog position

Every failure is followed by the same steps: drop the pushed state, initialise the transactional id (which ends the
open transaction), replay the changelog's tail, read the committed offset, go on.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Protocol

import structlog

from kafka_ratchet.errors import (
    Aborted,
    BatchTooLarge,
    ChangelogLost,
    CorruptBatch,
    Fenced,
    ForeignOffset,
    LogTruncated,
    PositionLost,
    RatchetError,
    RecordTooLarge,
    TransactionError,
)
from kafka_ratchet.transport import owner as owners
from kafka_ratchet.transport import sent_topics
from kafka_ratchet.transport.arrivals import Arrivals
from kafka_ratchet.transport.batch.chunk import CHUNK_SHARE, read_chunk
from kafka_ratchet.transport.batch.encoding import EncodedBatch
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.changelog import FETCH_BYTES, FETCH_WAIT_MS, Changelog
from kafka_ratchet.transport.client.cluster import EARLIEST, LATEST, Cluster, shared
from kafka_ratchet.transport.client.errors import replaced
from kafka_ratchet.transport.client.fetch_session import PositionToWatch
from kafka_ratchet.transport.client.group_log import group_log
from kafka_ratchet.transport.client.retry import Attempts
from kafka_ratchet.transport.client.topic_id import NO_EPOCH, READ_UNCOMMITTED, TopicState, id_text
from kafka_ratchet.transport.correlation import correlate
from kafka_ratchet.transport.delivery import BatchLimit, Delivery, ProcessingLimit, Processor, Ticks, tick
from kafka_ratchet.transport.former import restore_fenced
from kafka_ratchet.transport.input_time import InputEnd, PendingTimestamps
from kafka_ratchet.transport.lane_spec import LaneSpec, LaneState, LaneStatus, letters_in
from kafka_ratchet.transport.measures import StreamMeasures
from kafka_ratchet.transport.partition_state import PartitionState
from kafka_ratchet.transport.policy import AlwaysOn, PolicySource, Requests
from kafka_ratchet.transport.rest import IdleWait
from kafka_ratchet.transport.resumption import (
    agreed_owner,
    agreed_position,
    begins_anew,
    foreign_offset,
    known_position,
    may_be_unread,
    with_duplicates,
    with_judging,
)
from kafka_ratchet.transport.stalls import STALLED_AFTER_S, Stall, failure_of, stall_of
from kafka_ratchet.transport.transactions.crash_points import crash_point, not_counted
from kafka_ratchet.transport.transactions.producer import TransactionalProducer
from kafka_ratchet.transport.transactions.requests import UNKNOWN_EPOCH, AppendedBatch, offset_metadata
from kafka_ratchet.transport.transactions.states import State
from kafka_ratchet.transport.turns import StartLimit
from kafka_ratchet.transport.until_stopped import done_before, in_thread

log = structlog.get_logger(__name__)

SIGHT_EVERY_S: Final = 1.0
"""Seconds between checks of the changelog's leader epoch: the interval of writing the local store."""
NOTICE_EVERY_S: Final = 1.0
"""Seconds after which an idle lane notices an operator's request or a replaced topic."""
PAUSE_FIRST_S: Final = 0.1
PAUSE_MOST_S: Final = 30.0
HALT_LOG_EVERY_S: Final = 60.0
"""Interval between two log lines of a partition that stays halted for one reason, in seconds."""

WORTH_A_COMMIT: Final = 10_000
"""Number of records worth a transaction's overhead, about 3 ms for its begin and its commit.

With so many records, and nothing more to read, a lane commits early, so that results of a catch-up are visible at once.
"""
BEHIND_S: Final = 0.1
"""Seconds that a lagging lane keeps open a transaction of fewer than `WORTH_A_COMMIT` records.

The input of a lagging lane has waited longer than that anyway. With 10 ms, the ends of transactions took most of the
broker's time, and the throughput fell to less than half.
"""


def open_s(interval_s: float, records: int, *, left: int | None) -> float:
    """Return the seconds from a transaction's first record to its commit.

    A lagging lane keeps a small transaction open for longer. A lane lags if at least `WORTH_A_COMMIT` records wait to
    be read; fewer records are always waiting in a steady stream.

    Args:
        interval_s: commit interval of the settings
        records: records in the transaction so far
        left: offsets up to the input's end at the last fetch; None: unknown
    """
    is_behind = left is None or left >= WORTH_A_COMMIT
    return max(interval_s, BEHIND_S) if is_behind and records < WORTH_A_COMMIT else interval_s


class TransactionTrace(Protocol):
    """Observer of a lane's transactions, one after the other. Its methods raise nothing."""

    def begun(self, position: int) -> None:
        """Record the start of a transaction. position: next input offset."""

    def read(self, batch: RecordBatch) -> None:
        """Record a batch that the open transaction will process."""

    def ended(self, position: int, *, is_committed: bool) -> None:
        """Record a commit or rollback, if a transaction was open. position: next input offset."""


class Lane:
    """Runner of one partition, from start to stop, by the numbered steps of the module's docstring."""

    def __init__(
        self,
        cluster: Cluster,
        spec: LaneSpec,
        state: PartitionState,
        processor: Processor,
        switch: PolicySource | None = None,
        permit: Callable[[], Awaitable[None]] | None = None,
        ticks: Ticks | None = None,
        measures: StreamMeasures | None = None,
        trace: TransactionTrace | None = None,
        turns: StartLimit | None = None,
        arrivals: Arrivals | None = None,
    ) -> None:
        """Prepare the lane without starting it.

        Args:
            cluster: connected client of the Kafka cluster.
            spec: settings of the lane.
            state: table partition with the lane's state.
            processor: judges batches and makes their outputs.
            switch: supplies the deduplication policy.
            permit: function that raises a RatchetError if this lane may not write; called at each start, before any
                write.
            ticks: timers of the program; None without timers.
            measures: counters and histograms of the stream; None: not kept.
            trace: observer called for each transaction; None without one.
            turns: start-up semaphore shared by lanes; None: start at any time.
            arrivals: progress of the stream that copies records to the input; None: producers write to the input.
        """
        self.cluster, self.spec, self.state = cluster, spec, state
        self.switch: PolicySource = switch or AlwaysOn()
        self.status, self.attempts = LaneStatus(), Attempts()
        self.log = log.bind(topic=spec.topic, partition=spec.partition)
        self._processor, self._permit, self._ticks = processor, permit, ticks
        self.measures = measures or StreamMeasures()
        self._trace, self._turns, self._arrivals = trace, turns or StartLimit(), arrivals
        self._fetching: Hashable = ("fetch", spec.topic, spec.partition)
        self._asking = shared(spec.partition)
        self._producer = TransactionalProducer(
            cluster,
            spec.transactional_id,
            spec.group,
            spec.transaction_timeout_ms,
            [(topic, spec.partition) for topic in (*spec.writes, state.changelog)],
            self._asking,
        )
        self._changelog = Changelog(
            cluster, state, spec.partition, self._fetching, spec.batch_most, asking=self._asking
        )
        self._rest: IdleWait | None = None
        """Idle state of the input, while the lane runs."""
        self._position, self._epoch = 0, NO_EPOCH
        self._share = BatchLimit(spec.records_at_first, spec.transaction_timeout_ms)
        self._unread = PendingTimestamps()
        self._input_end = InputEnd(arrivals)
        self._topics: dict[str, bytes] = {}
        """Ids of the lane's topics at its take-over."""
        self._truncated = ""
        """Description of lost input records, to be written to the changelog; "" if none are lost."""
        self._halting: Exception | None = None
        """Error from outside the lane's own work. Before the next batch, it halts or restarts the lane."""
        self._requests_to = 0
        """Position in the policy topic (`Requests.position`): operators' requests before it are applied."""
        self._limits_known = True
        self._opened_at = self._restored_at = 0.0
        self._fetch_ended_at = 0.0
        self._records = 0
        self._ended = 0
        """Number of transactions that this lane has committed or given up."""
        self._halt_logged_at = 0.0
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the lane's task, and return at once."""
        self._task = asyncio.create_task(self._run(), name=f"lane {self.spec.topic}-{self.spec.partition}")

    async def stop(self) -> None:
        """Commit an open transaction and end; returns when the local store is closed."""
        self._stopping.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        correlate(lambda: self.spec.correlation(self._position))
        self.attempts.follow()
        pause_s = PAUSE_FIRST_S
        try:
            while not self._stopping.is_set():
                commits = self.status.commits
                try:
                    # While Kafka is away, the take-over does not end; the lane must still be able to stop.
                    if await done_before(self._stopping, self._start()):
                        await self._consume()
                    return
                except Aborted as error:
                    self._show(LaneState.RETRYING, error)
                except Fenced as error:
                    # If another worker owns the partition now, the rebalance that stops this lane will
                    # follow. If not, the initialisation came from a worker that had not learned of the
                    # rebalance; random pauses end that.
                    self._show(LaneState.RETRYING, error)
                    pause_s = max(pause_s, random.uniform(1.0, 3.0))  # noqa: S311
                except RatchetError as error:
                    # The topic that a record was too large for may be changed while this waits.
                    self._limits_known = self._limits_known and not isinstance(error, RecordTooLarge)
                    self._show(LaneState.HALTED, error)
                    pause_s = max(pause_s, 1.0)
                except Exception as error:
                    self._show(LaneState.HALTED, error)
                    pause_s = max(pause_s, 1.0)
                await self._undo()
                if self.status.commits > commits:
                    pause_s = PAUSE_FIRST_S
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), pause_s)
                pause_s = min(pause_s * 2, PAUSE_MOST_S)
        except Exception as error:
            # A programming error between two attempts, which would end the task without a log line. No further attempt:
            # the state may not be rolled back.
            self.log.exception("the partition failed between two attempts; it halts until its worker is restarted")
            self._record_failure(LaneState.HALTED, error)
            await self._stopping.wait()
        finally:
            try:
                await self._undo()
            finally:
                self.state.close()
                self.status.move(LaneState.STOPPED)

    async def _undo(self) -> None:
        if self._producer.state is not State.READY:
            await self._producer.abort()
        self.measures.aborted += self._producer.begun - self._ended
        if self._trace is not None:  # the failure may have come after the commit
            self._trace.ended(self._position, is_committed=self._ended == self._producer.begun)
        self._ended = self._producer.begun
        self.state.rollback()
        self.status.held_by = None
        self.attempts.clear()

    def _show(self, state: LaneState, error: Exception) -> None:
        """Record in status and log why the lane starts again or halts."""
        before = self.status.halted
        self._record_failure(state, error)
        if state is not LaneState.HALTED:
            self.log.warning("lane starts again", state=str(state), error=self.status.error)
            return
        is_new, now = self.status.halted != before, asyncio.get_running_loop().time()
        if is_new or now - self._halt_logged_at >= HALT_LOG_EVERY_S:
            self._halt_logged_at = now
            # A report of a program's error needs its place in the code.
            place = {} if isinstance(error, RatchetError) else {"exc_info": error}
            self.log.error(
                "partition halted" if is_new else "partition is still halted", error=self.status.error, **place
            )

    def _record_failure(self, state: LaneState, error: Exception) -> None:
        """Set the status to RETRYING or HALTED, with the error."""
        text = str(error) or repr(error)
        self.status.move(state)
        self.status.error = text
        self.status.restarts += 1
        self.status.failing_since, self.status.failed_by = self.status.failing_since or time.time(), failure_of(error)
        self.status.failure = text
        if state is LaneState.HALTED:
            reason = type(error).__name__ if isinstance(error, RatchetError) else "Unexpected"
            if reason != self.status.halted:
                self.measures.halts[reason] += 1
            self.status.halted = reason

    async def _start(self) -> None:
        self.status.move(LaneState.STARTING)
        self.status.started_at = time.time()
        async with self._turns.turn():
            await self._take_over()

    async def _take_over(self) -> None:
        """Fence the previous owner, then read its commits.

        The lane reads the committed offset before the changelog. In the other order, a lane suspended in between could
        find an offset of a later owner, which its copy of the changelog does not contain.
        """
        spec, state = self.spec, self.state
        self._halting = None
        if spec.sends:
            self.spec = spec = await self._ask_for_sent_topics()
        try:
            await self._producer.initialise()
        except TransactionError:
            # A changelog that lost its end shows ended transactions as open; the truncation is the cause to name.
            await in_thread(state.open)
            await self._changelog.refuse_truncation()
            raise
        crash_point("fenced")
        if self._permit is not None:
            await self._permit()
        self.status.move(LaneState.RESTORING)
        restoring_since = asyncio.get_running_loop().time()
        committed = await self.cluster.committed(spec.group, spec.topic, spec.partition, self._asking)
        await in_thread(state.open)
        restored = await restore_fenced(
            self._changelog, self._producer, spec.app, lambda owner: begins_anew(state, spec.topic)
        )
        self._restored_at = asyncio.get_running_loop().time()
        self.status.restored += restored
        self.measures.restored += restored
        owner = await self._compare()
        await self.switch.known_to(state.policy_position)
        if not self._limits_known:
            await self._ask_for_limits()
        crash_point("restored")
        place = spec.topic, spec.partition
        first: int | None = None
        if may_be_unread(state, spec.topic, committed):
            first = await self.cluster.offset(*place, EARLIEST, self._asking)
        try:
            position = agreed_position(spec, state, committed, id_text(self._topics[spec.topic]), first)
        except ChangelogLost:
            # Perhaps a successor has committed in between, and the changelog lacks the end marker of that commit.
            await self._producer.still_owns()
            raise
        except ForeignOffset:
            if committed is None:
                raise
            known = group_log(self.cluster, spec.group)
            commit = await known.commit(self.cluster, *place, committed.offset, self._fetching)
            own = known_position(state, spec.topic)
            raise ForeignOffset(foreign_offset(spec, own, committed, commit)) from None
        is_new = position is None
        if position is None:
            position = await self.cluster.offset(*place, EARLIEST, self._asking)
            if spec.begins_at_0 and position > 0:
                raise PositionLost(
                    f"{spec.topic}, partition {spec.partition}: the topic begins at offset {position}, and this "
                    "stream has read none of it: retention or an operator deleted records before the stream read them. "
                    "`ratchet resume --from earliest` continues at the first remaining record"
                )
        duplicates = owners.Topic(spec.duplicates, id_text(self._topics[spec.duplicates])) if spec.duplicates else None
        owner = with_duplicates(owner, duplicates, position)
        state.ownership.claim(with_judging(owner, spec.judging, 0 if is_new else position))
        self._position = self.status.position = position
        self._unread.clear()
        self._input_end = InputEnd(self._arrivals)
        self._epoch = state.progress_epoch if position == known_position(state, spec.topic) else NO_EPOCH
        self._records = self._requests_to = 0
        self.status.move(LaneState.RUNNING)
        self.status.error, self.status.running_since = None, time.time()
        self.measures.restore.observe(asyncio.get_running_loop().time() - restoring_since)
        self.log.info("lane runs", offset=position, changelog_offset=state.position, restored=self.status.restored)
        if state.ownership.is_claimed:
            # At the first start and after a changed owner. Without a position of its own, a partition
            # without records would not notice that unread records were deleted or that its input was replaced.
            self._producer.begin([(state.changelog, spec.partition)])
            with not_counted():
                await self._commit()
        self._truncated = ""
        if state.owner is not None and state.owner.broken:
            raise LogTruncated(state.owner.broken)

    async def _ask_for_sent_topics(self) -> LaneSpec:
        """Fetch partition counts and limits of the topics that agents send to.

        This precedes all other steps, because the transactional id may have an open transaction in any of these topics.
        """
        spec, state = self.spec, self.state
        sends = await sent_topics.ask(self.cluster, spec.sends, self._asking)
        self._producer.partitions = [
            *((topic, spec.partition) for topic in (*spec.writes, state.changelog)),
            *((topic, number) for topic, sent in sends.items() for number in range(sent.partitions)),
        ]
        return replace(spec, sends=sends)

    async def _compare(self) -> owners.Owner:
        """Compare the changelog's owner with the present topics, rule and application.

        Returns:
            owner entry for the changelog

        Raises:
            TopicReplaced: a topic does not exist.
            OwnerDiffers: the changelog has another owner.
        """
        spec, state = self.spec, self.state
        names = {owners.INPUT: spec.topic, owners.OUTPUT: spec.output, owners.CHANGELOG: state.changelog}
        if spec.policy_topic:
            names[owners.POLICY] = spec.policy_topic
        wanted = [*names.values(), *([spec.duplicates] if spec.duplicates else [])]
        # The topic of dead letters may be missing until a record has to go there.
        found = await self.cluster.found(wanted, besides=[spec.dead_letters])
        letters = self._letters(found.pop(spec.dead_letters, None))
        self.spec = replace(spec, letters=letters, input_id=id_text(found[spec.topic].id))
        self._topics = {name: state.id for name, state in found.items()}
        topics = {part: owners.Topic(name, id_text(found[name].id)) for part, name in names.items()}
        return agreed_owner(spec, state, topics, self._truncated)

    def _letters(self, found: TopicState | None) -> bytes:
        return b"" if found is None else letters_in(self.spec.app, self.spec.dead_letters, id_text(found.id))

    def look_at(self, topics: Mapping[str, TopicState]) -> None:
        """Compare the present topics with those at take-over.

        The lane halts if a topic has another id. It starts again if the topic of dead letters has another id, or if a
        topic that agents send to has another partition count.
        """
        for name, before in self._topics.items():
            if name in topics and topics[name].id != before:
                self._halting = replaced(name, id_text(before), id_text(topics[name].id))
        letters = self._letters(topics.get(self.spec.dead_letters))
        if self._topics and letters and letters != self.spec.letters:
            self._halting = Aborted(
                f"{self.spec.dead_letters}: the topic was deleted and created again, and the names of dead letters "
                "contain its id; the lane starts again with the new id"
            )
        if self.spec.sends and (topic := sent_topics.changed(self.spec.sends, topics)) is not None:
            self._halting = Aborted(
                f"{topic}: the topic has another number of partitions now, on which the partition of each key "
                "depends; the lane starts again with the new number"
            )

    def stall(self) -> Stall | None:
        """Return why the partition stands still; None while it moves, or has no records to read."""
        place = f"{self.spec.topic}, partition {self.spec.partition}"
        after_s = STALLED_AFTER_S + self.spec.commit_interval_ms / 1000
        attempts = self.attempts
        if self.status.state is LaneState.RESTORING and attempts.longest() is None:
            attempts = self.switch.attempts  # it waits for the policy topic
        return stall_of(self.status, attempts, place, time.time(), after_s, self.cluster.throttle_s)

    def halt(self, error: RatchetError) -> None:
        """Halt before the next batch, for a reason found outside the lane's own work."""
        self._halting = error

    async def _notice_others(self, idle: IdleWait) -> None:
        """Restart the lane if another process has written to the changelog.

        While no records come, only the changelog shows a take-over or an operator's move of the position.
        """
        commits = self.status.commits
        if self._producer.state is not State.READY or self._changelog.is_behind:
            return
        if self._rest is None or not self._rest.is_at_rest:
            idle.leave()
        elif idle.is_still(self._changelog.end):
            return
        if await self._changelog.has_grown() and self._producer.state is State.READY and self.status.commits == commits:
            raise Aborted(
                f"{self.state.changelog}, partition {self.spec.partition}: another process has written to this "
                "changelog, so the partition starts again"
            )

    async def _ask_for_limits(self) -> None:
        """Fetch max.message.bytes again: a record was too large, and the operator may have raised the limit since."""
        spec, changelog = self.spec, self.state.changelog
        limits = await self.cluster.message_limits([*spec.writes, changelog], self._asking)
        self.spec = replace(
            spec,
            output_limit=limits[spec.output],
            dead_letters_limit=limits[spec.dead_letters],
            duplicates_limit=limits.get(spec.duplicates, spec.duplicates_limit),
        )
        self.state.limit = limits[changelog]
        self._limits_known = True

    async def _fetch(self, position: int, epoch: int) -> RecordBatch:
        """Fetch the next batch, or wait for it while the lane is idle.

        epoch: leader epoch of the batch before `position`.
        """
        spec, clock, rest = self.spec, asyncio.get_running_loop().time, self._rest
        topic_id = self._topics[spec.topic]
        looks = rest is not None and await rest.over(PositionToWatch(topic_id, spec.partition, position, epoch))
        asked, known_ms = clock(), self._input_end.known_ms
        waits = self.status.stable_end is not None and position < self.status.stable_end
        try:
            fetched = await self.cluster.fetch(
                spec.topic,
                spec.partition,
                position,
                self._asking if looks else self._fetching,
                max_bytes=FETCH_BYTES,
                max_wait_ms=0 if looks else FETCH_WAIT_MS,
                topic_id=topic_id,
                last_epoch=epoch,
            )
        except LogTruncated as error:
            self._truncated = str(error) if error.is_certain else ""
            raise
        self._fetch_ended_at = clock()
        self.status.fetched_at = now_s = time.time()
        self.status.saw_ends(fetched.stable_end, fetched.high_watermark, now_s)
        self._input_end.record_end(fetched.high_watermark, known_ms)
        if waits:  # otherwise the time includes waiting for new records
            self.measures.fetch.observe(self._fetch_ended_at - asked)
        batch = read_chunk(
            spec.topic,
            spec.partition,
            position,
            fetched.data,
            fetched.aborted,
            sequence_header=spec.sequence_header,
            identity_header=spec.identity_header,
            most=spec.batch_most,
            records=self._share.most,
            is_input=True,
        )
        self._unread.fetched(batch)
        self.status.unread_since_ms = self._unread.since_ms
        if rest is not None and batch.next > position:
            rest.wake()
        return batch

    async def _fetched(self, fetch: asyncio.Task[RecordBatch]) -> RecordBatch:
        try:
            return fetch.result()
        except (BatchTooLarge, CorruptBatch):
            if self._producer.state is State.OPEN:
                await self._commit()  # otherwise each attempt would process the preceding records and roll them back
            raise
        except PositionLost:
            # Unless a successor has read the records, and retention has deleted them, while this process slept.
            await self._producer.still_owns()
            raise

    async def _consume(self) -> None:
        clock = asyncio.get_running_loop().time
        watch = self.cluster.watch(self.state.changelog)
        rest = self._rest = IdleWait(watch, self.spec.topic, self.spec.partition)
        stop = asyncio.create_task(self._stopping.wait())
        fetch = asyncio.create_task(self._fetch(self._position, self._epoch))
        sight = asyncio.create_task(self._sight(IdleWait(watch, self.state.changelog, self.spec.partition)))
        pending: set[asyncio.Task[Any]] = {fetch, stop}
        try:
            while True:
                await asyncio.wait(pending, timeout=self._wait_s(clock()), return_when=asyncio.FIRST_COMPLETED)
                if fetch.done():
                    batch = await self._fetched(fetch)
                    crash_point("fetched")
                    await self._apply_requests()
                    epoch = batch.epoch if batch.epoch >= 0 else self._epoch
                    is_large = len(batch.data) > self.spec.batch_most // CHUNK_SHARE
                    if not is_large:  # two of them would take twice the memory
                        fetch = asyncio.create_task(self._fetch(batch.next, epoch))
                    if batch.next > self._position:
                        await self._work(batch, stop)
                    elif self._producer.state is State.READY:
                        self.status.progressed(self._position, time.time())
                        self.state.at_rest()
                    if is_large:
                        fetch = asyncio.create_task(self._fetch(batch.next, epoch))
                    pending = {fetch, stop}
                elif self._producer.state is State.READY:
                    await self._poll_requests(rest)
                if self._ticks is not None and not self._ticks.wait_s() and not stop.done():
                    await self._tick(self._ticks, stop)
                if self._producer.state is State.OPEN and (stop.done() or clock() >= self._due_at or self._is_enough):
                    await self._commit()
                if stop.done():
                    return
        finally:
            for task in (fetch, stop, sight):
                task.cancel()
            await asyncio.gather(fetch, stop, sight, return_exceptions=True)
            rest.leave()
            self._rest = None

    async def _apply_requests(self) -> None:
        """Apply requests from outside between two batches: a halt, or an operator's new requests."""
        if self._halting is not None:
            raise self._halting
        if self._requests_to != (requests := self.switch.requests).position:
            await self._forget(requests)

    async def _poll_requests(self, rest: IdleWait) -> None:
        """Check for outside requests at intervals while a fetch waits."""
        await self._apply_requests()
        if rest.is_at_rest:
            self.status.fetched_at = max(self.status.fetched_at or 0.0, rest.answered_at)
            if self.status.stable_end is not None and rest.high_watermark > self.status.stable_end:
                self.status.saw_ends(self.status.stable_end, rest.high_watermark, time.time())
            self.state.at_rest()

    async def _forget(self, requests: Requests) -> None:
        """Apply operators' requests to forget identities, in a separate transaction.

        Records before the request are judged first, by the old state.
        """
        number, topic = self.spec.partition, id_text(self._topics[self.spec.topic])
        here = (each for each in requests.forgets if each.partition in (None, number))
        waiting = [each for each in here if not self.state.is_done(each.id)]
        if due := [each for each in waiting if each.holds_from(number, topic) <= self._position]:
            if self._producer.state is State.OPEN:
                await self._commit()
            self._begin(asyncio.get_running_loop().time())
            self.state.forget(due, self._position)
            await self._commit()
            self.log.info(
                "forgot identities, as an operator requested", requests=[each.id for each in due], offset=self._position
            )
        if len(due) == len(waiting):
            self._requests_to = requests.position

    def _wait_s(self, now: float) -> float:
        """Return the longest time that the lane may wait for a record."""
        waits = [NOTICE_EVERY_S]
        if self._producer.state is State.OPEN:
            waits.append(self._due_at - now)
        if self._ticks is not None:
            waits.append(self._ticks.wait_s())
        return max(0.0, min(waits))

    async def _sight(self, idle: IdleWait) -> None:
        """Read the changelog's leader epoch after the last commit, and store it.

        If no transaction follows, also check that Kafka has ended the last transaction in all partitions.

        idle: idle state for the changelog, which a watcher observes too while the lane is idle.
        """
        commits = self.status.commits
        try:
            while True:
                await asyncio.sleep(SIGHT_EVERY_S)
                if commits == self.status.commits:
                    await self._producer.check_ended()
                commits = self.status.commits
                if (sighting := await self._changelog.sight()) is not None:
                    self.state.sighted(sighting)
                await self._notice_others(idle)
        except Exception as error:
            # Any error: without this check a take-over of the partition would go unnoticed.
            self._halting = error
        finally:
            idle.leave()

    @property
    def _is_enough(self) -> bool:
        """Return True if the open transaction should be committed before its interval ends."""
        if self._records >= self.spec.records_per_transaction:
            return True
        return self._records >= WORTH_A_COMMIT and self._left == 0

    @property
    def _due_at(self) -> float:
        """Return the commit time of the open transaction, by the event loop's clock."""
        interval_s = self.spec.commit_interval_ms / 1000
        return self._opened_at + open_s(interval_s, self._records, left=self._left)

    @property
    def _left(self) -> int | None:
        """Return the number of offsets up to the last stable offset, as of the last answer; None if unknown.

        The answer may be old, so the number only influences how soon the lane commits.
        """
        end = self.status.stable_end
        return None if end is None else max(end - self._position, 0)

    async def _work(self, batch: RecordBatch, stop: asyncio.Task[bool]) -> None:
        """Process a batch and produce its outputs (steps 2 and 3)."""
        # Since the arrival of its first records, which may have waited for the last commit to end.
        self._begin(self._fetch_ended_at)
        count = batch.count  # read first, because the batch is empty after its release
        if count:
            if self._trace is not None:
                self._trace.read(batch)
            with self._share.timed(count):
                await self._process(self._processor, Delivery(self.spec, self.switch.policy, batch), stop)
        self._position = batch.next
        self._epoch = batch.epoch if batch.epoch >= 0 else self._epoch
        self._records += count

    async def _tick(self, ticks: Ticks, stop: asyncio.Task[bool]) -> None:
        """Call due timers (step 3), in the open transaction or in a new one."""
        if self._halting is not None:
            raise self._halting
        spec = self.spec
        self._begin(asyncio.get_running_loop().time())
        batch = tick(spec.topic, spec.partition, self._position)
        await self._process(ticks, Delivery(spec, self.switch.policy, batch), stop)

    def _begin(self, since: float) -> None:
        spec, producer = self.spec, self._producer
        if producer.state is State.READY:
            producer.begin([(spec.output, spec.partition), (self.state.changelog, spec.partition)])
            self._opened_at = since
            if self._trace is not None:
                self._trace.begun(self._position)

    async def _process(self, processor: Processor, delivery: Delivery, stop: asyncio.Task[bool]) -> None:
        """Process a batch within the time limit, and produce its outputs."""
        producer = self._producer
        self.status.held_by = (lambda: delivery.holder), time.time()
        async with ProcessingLimit(delivery, stop, self.log):
            outputs = await processor.process(delivery)
        self.status.held_by = None
        crash_point("judged")
        delivery.batch.release()
        await producer.add({(topic, number) for topic, number, _ in outputs})
        while outputs:
            topic, number, encoded = outputs.popleft()
            await producer.produce(topic, number, encoded)
        crash_point("produced")

    async def _commit(self) -> None:
        """Commit the open transaction: write the changelog (step 3), then steps 4, 5 and 6."""
        spec, state, producer = self.spec, self.state, self._producer
        if self._records and not state.is_made:
            await in_thread(state.make)
        began = asyncio.get_running_loop().time()
        logged = await self._log(state.changes(self._position, self._epoch))
        if state.is_bounded or state.is_unproven:
            await producer.delivered()
            at_ms = logged[-1][0].result().at_ms
            self._prove(at_ms)
        if state.is_bounded:
            logged += await self._log(state.evictions(at_ms, await self._judged_until_ms(at_ms)))
        epoch = UNKNOWN_EPOCH if self._epoch == NO_EPOCH and state.has_processed else self._epoch
        metadata = offset_metadata(id_text(self._topics[spec.topic]), epoch)
        await producer.commit(spec.topic, spec.partition, self._position, metadata)
        self._ended += 1
        self.measures.committed += 1
        crash_point("committed")
        sent, count = logged[-1]  # there is one: the entry of progress
        state.committed(sent.result().offset + count, sent.result().at_ms)
        crash_point("remembered")
        self.measures.commit.observe(asyncio.get_running_loop().time() - began)
        self.status.progressed(self._position, time.time())
        self._unread.committed(self._position)
        self.status.unread_since_ms = self._unread.since_ms
        self.status.commits += 1
        self.status.records += self._records
        self._records = 0
        if self._trace is not None:
            self._trace.ended(self._position, is_committed=True)
        if producer.state is State.SPENT:
            raise Aborted(
                f"{spec.transactional_id}: the transaction is committed, but the id has used up its producer epochs; "
                "the partition starts again and initialises the id"
            )

    def _prove(self, at_ms: int) -> None:
        """Check that the local store was recent enough at its last replay. at_ms: broker time; negative: unknown."""
        if self.state.is_unproven and at_ms >= 0:
            elapsed_s = asyncio.get_running_loop().time() - self._restored_at
            self.state.prove(at_ms // 1000 - int(elapsed_s))

    async def _judged_until_ms(self, at_ms: int) -> int | None:
        """Return the broker-time watermark below which all input is processed; None: unknown.

        at_ms: latest append time known from Kafka
        """
        place = self.spec.topic, self.spec.partition, LATEST, self._asking
        return await self._input_end.renewed(
            self._position, at_ms, lambda: self.cluster.offset(*place, isolation=READ_UNCOMMITTED)
        )

    async def _log(self, entries: list[EncodedBatch]) -> list[tuple[asyncio.Task[AppendedBatch], int]]:
        """Send changelog entries; return for each batch the task of its request and its number of records."""
        changelog, partition = self.state.changelog, self.spec.partition
        sent = [(await self._producer.produce(changelog, partition, encoded), encoded.count) for encoded in entries]
        crash_point("logged")
        return sent
