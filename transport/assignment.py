"""Lanes inside a Faust app: Faust's membership and assignor decide which lanes run here.

docs/decisions/0003-lanes.md lists the parts of Faust 0.15 in use, with the reasons.
tests/transport/test_pinned_names.py checks every internal name that this module relies on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog
from aiokafka import errors as kafka
from faust.channels import Channel
from faust.tables.manager import TableManager
from faust.tables.recovery import RebalanceAgain, Recovery, ServiceStopped
from mode.utils.queues import FlowControlEvent, ThrowableQueue

from kafka_ratchet.transport.lane import Lane
from kafka_ratchet.transport.standby import Standby

log = structlog.get_logger(__name__)

ALIVE_EVERY_S: Final = 1.0
"""Seconds between two reports to aiokafka that this worker still fetches.

aiokafka leaves the group when its own fetcher has been idle for max_poll_interval. That fetcher is always idle, because
the lanes fetch. A worker with a blocked event loop sends no report, and loses its partitions as it should.
"""

ASK_AGAIN_S: Final = 1.0
"""Seconds from an incomplete assignment to the request for a new one; by then Kafka lists all topics again."""

SAY_AGAIN_S: Final = 10.0
"""Seconds between two log lines with the same reason why the group refuses this worker."""

REFUSED_FIRST_S: Final = 1.0
REFUSED_MOST_S: Final = 10.0
"""Longest pause before a refused worker tries to join its group again, in seconds.

The worker can join after all members with other rules have left.
"""

FAUST_LOGGER: Final = logging.getLogger("faust.lanes")
"""Logger for the library mode, which logs every start and stop of a service. Its name begins with "faust", so that the
filter of Faust's log lines also applies to this logger.
"""


QUEUE: Final = 64
"""Maximum number of calls in the agent's queue; each lane has at most one call in flight."""


def _distributed(distribution: Mapping[str, Mapping[str, list[int]]]) -> set[tuple[str, int]]:
    """Return all assigned partitions as (topic, partition).

    distribution: partitions by worker and topic, as Faust's leader sends it to all workers.
    """
    return {
        (topic, number) for topics in distribution.values() for topic, numbers in topics.items() for number in numbers
    }


async def _check_errors(coordinator: Any) -> None:
    """Raise the error that keeps the worker out of its consumer group, if any.

    If the heartbeat has ended too, have aiokafka rejoin the group, because nothing else would start a new heartbeat.
    Runs in the thread of Faust's consumer.
    """
    try:
        coordinator.check_errors()
    except kafka.KafkaError:
        heartbeat = coordinator._heartbeat_task  # noqa: SLF001
        if heartbeat is not None and heartbeat.done():
            coordinator.request_rejoin()  # starts a new heartbeat; nothing else would
        raise


def _why(error: kafka.KafkaError) -> str:
    if isinstance(error, kafka.GroupAuthorizationFailedError):
        return f"this user may not read the group {error.args[0]}. Give this user the rights of docs/guide/rights.md"
    return repr(error)


async def _rejoin(client: Any, coordinator: Any) -> None:
    """Fetch the metadata of topics, then join the group again. Runs in the thread of Faust's consumer."""
    await client.force_metadata_update()
    coordinator.request_rejoin()


class LaneChannel(Channel):
    """Channel from the lanes to the agent.

    This channel differs from Faust's in two ways. It keeps its calls after a rebalance, when Faust empties its own
    channels. And it carries batches without Faust's events, because Faust drops the events of a former group
    generation. A lane outlives generations, and would wait forever for the answer to a dropped batch.
    """

    _queue: ThrowableQueue | None

    @property
    def queue(self) -> ThrowableQueue:
        """Return the channel's queue; it has its own flow control, which is never suspended."""
        if self._queue is None:
            flow = FlowControlEvent(initially_suspended=False)
            self._queue = ThrowableQueue(maxsize=self.maxsize or QUEUE, flow_control=flow)
        return self._queue


def _is_lanes_own(table: Any) -> bool:
    return bool(getattr(table, "lane_owned", False))


class _LaneRecovery(Recovery):
    """Faust's recovery of all tables except lane-owned ones, which their lanes restore.

    Unlike Faust's own recovery, this one goes on after a long wait for Kafka. The library `mode` takes such a wait for
    a stop of the service, and would end the recovery for good and without a message.
    """

    logger = FAUST_LOGGER

    async def _wait(self, coro: Any, **limit: Any) -> None:
        try:
            await super()._wait(coro, **limit)
        except ServiceStopped:
            if self.should_stop:
                raise
            log.warning("Kafka did not answer Faust's recovery of tables; starting the recovery again", **limit)
            self.signal_recovery_start.set()
            raise RebalanceAgain from None

    def add_active(self, table: Any, tp: Any) -> None:
        if not _is_lanes_own(table):
            super().add_active(table, tp)

    def add_standby(self, table: Any, tp: Any) -> None:
        if not _is_lanes_own(table):
            super().add_standby(table, tp)


class LaneTableManager(TableManager):
    """Table manager for `faust.App(TableManager=...)`.

    It leaves tables with `lane_owned = True` to their lanes.
    """

    logger = FAUST_LOGGER
    _recovery: Recovery | None

    async def on_start(self) -> None:
        """Start without Faust's wait of a second for tables: the lanes' tables were added before the app started."""
        await self._update_channels()
        await self.recovery.start()

    async def wait_until_recovery_completed(self) -> bool:
        """Wait until Faust has restored its tables; return False at once if all tables are restored by lanes."""
        if all(map(_is_lanes_own, self.values())):
            return False
        waited: bool = await super().wait_until_recovery_completed()
        return waited

    @property
    def recovery(self) -> Recovery:
        """Return the recovery that skips lane-owned tables."""
        if self._recovery is None:
            self._recovery = _LaneRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery


class Lanes:
    """Lanes and standbys of a worker. A lane processes one partition; a standby keeps a copy of its state.

    Faust's assignor assigns the partitions of changelogs. A lane runs for an active assignment, and a standby follows
    the changelog for a standby assignment.

    A rebalance does not interrupt a lane that stays on its worker. The new owner of a moved partition fences the old
    lane's producer, so that two lanes of a partition can never both commit.
    """

    def __init__(
        self,
        app: Any,
        partitions: Mapping[str, int],
        make: Mapping[str, Callable[[int], Lane]],
        stand_by: Mapping[str, Callable[[int], Standby]],
        explain: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """Follow the app's partition assignments: run a lane or a standby for each assigned partition.

        Args:
            app: the Faust app.
            partitions: partition count of each changelog topic.
            make: for each changelog topic, the function that makes a partition's lane.
            stand_by: for each changelog topic, the function that makes a partition's standby, which shares its state
                with the partition's lane.
            explain: function that returns the error message for a group with members of different stream settings.
        """
        self._explain, self._refused_s, self._check_at = explain, 0.0, 0.0
        self.rebalances = 0
        """Number of assignments that the group has given to this worker."""
        self.app, self._make, self._stand_by = app, make, stand_by
        self._all = {(changelog, number) for changelog, count in partitions.items() for number in range(count)}
        self.running: dict[tuple[str, int], Lane] = {}
        self.standing_by: dict[tuple[str, int], Standby] = {}
        self._wanted: set[tuple[str, int]] = set()
        self._wanted_warm: set[tuple[str, int]] = set()
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changes: set[asyncio.Task[None]] = set()
        """Tasks in `_tasks` that apply an assignment."""
        self._is_stopping = False
        self._last_reason: tuple[str, float] | None = None
        """Last logged reason why the group refuses this worker, with its time in seconds of the event loop."""
        app.on_partitions_assigned.connect(self._on_assigned)

    def start(self) -> None:
        """Start to report to the consumer group, every ALIVE_EVERY_S seconds, that this worker is alive."""
        self._spawn(self._stay_alive())

    @property
    def has_joined(self) -> bool:
        """Return True if the group has assigned partitions to this worker, and has not refused the worker since."""
        return self.rebalances > 0 and not self._refused_s

    @property
    def waiting(self) -> set[tuple[str, int]]:
        """Return (changelog topic, partition) of each assigned partition without a lane."""
        return self._wanted - self.running.keys()

    async def stop(self) -> None:
        """Commit in every lane, and end all lanes and standbys; later assignments start none."""
        self._is_stopping = True
        self._wanted, self._wanted_warm = set(), set()
        # A change in progress is stopping lanes: cancelled, it would cancel their commits.
        for task in self._tasks - self._changes:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._change()

    def leave_for_good(self) -> None:
        """Have the app leave the consumer group when it stops.

        A member with an instance id does not leave the group in aiokafka: its partitions would stay unowned until its
        session times out.
        """
        if (consumer := self.app.consumer._thread._consumer) is not None:  # noqa: SLF001
            consumer._coordinator._group_instance_id = None  # noqa: SLF001

    async def _on_assigned(self, app: Any, assigned: Any, **_: Any) -> None:
        self._refused_s = 0.0
        self.rebalances += 1
        if self._is_stopping:
            return  # this worker leaves the group next, and its connections are about to close
        # aiokafka sends no heartbeats until this returns: only note the assignment, and apply it in the
        # background.
        forgotten = self._all - _distributed(app.assignor.changelog_distribution)
        # Partitions without another owner go on where they are.
        self._wanted = self._ours(app.assignor.assigned_actives()) | self.running.keys() & forgotten
        self._wanted_warm = self._ours(app.assignor.assigned_standbys()) - self._wanted
        log.info(
            "partitions assigned",
            lanes=sorted(partition for _, partition in self._wanted),
            standbys=sorted(partition for _, partition in self._wanted_warm),
        )
        self._changes.add(self._spawn(self._change()))
        if forgotten:
            self._spawn(self._ask_for_another_assignment(forgotten))

    async def _ask_for_another_assignment(self, forgotten: set[tuple[str, int]]) -> None:
        """Ask the group for another assignment, because some partitions got no owner.

        Kafka lists no topics for a moment after a restart. Faust then assigns no partitions of these topics, and does
        not check again.
        """
        names = sorted(f"{changelog}-{number}" for changelog, number in forgotten)
        log.warning("partitions have no owner; asking for another assignment", partitions=names)
        await asyncio.sleep(ASK_AGAIN_S)
        thread = self.app.consumer._thread  # noqa: SLF001
        if (consumer := thread._consumer) is not None:  # noqa: SLF001
            again = _rejoin(consumer._client, consumer._coordinator)  # noqa: SLF001
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(again, thread.thread_loop))

    def _ours(self, assigned: Any) -> set[tuple[str, int]]:
        return {(tp.topic, tp.partition) for tp in assigned if tp.topic in self._make}

    async def _change(self) -> None:
        async with self._changing:
            gone = [self.running.pop(key) for key in sorted(self.running.keys() - self._wanted)]
            cold = [key for key in sorted(self.standing_by) if key not in self._wanted | self._wanted_warm]
            stops = [*(lane.stop() for lane in gone), *(self.standing_by.pop(key).stop() for key in cold)]
            for outcome in await asyncio.gather(*stops, return_exceptions=True):
                if isinstance(outcome, Exception):  # of one partition: the others start all the same
                    log.error("a partition was not stopped cleanly", reason=repr(outcome))
            for changelog, partition in sorted(self._wanted - self.running.keys()):
                if (standby := self.standing_by.pop((changelog, partition), None)) is not None:
                    await standby.stop(close=False)
                lane = self._make[changelog](partition)
                self.running[changelog, partition] = lane
                lane.start()
            for changelog, partition in sorted(self._wanted_warm - self.running.keys() - self.standing_by.keys()):
                follower = self.standing_by[changelog, partition] = self._stand_by[changelog](partition)
                follower.start()

    async def _stay_alive(self) -> None:
        while True:
            await asyncio.sleep(ALIVE_EVERY_S)
            try:
                # Faust and aiokafka have no public interface for this.
                thread = self.app.consumer._thread  # noqa: SLF001
                if (consumer := thread._consumer) is not None:  # noqa: SLF001
                    with consumer._subscription.fetch_context():  # noqa: SLF001
                        pass
                    await self._check_membership(consumer._coordinator, thread.thread_loop)  # noqa: SLF001
            except Exception:
                # Without further reports aiokafka would leave the group, and the worker would never join it again.
                log.exception("the check of the consumer group failed; trying again")

    async def _check_membership(self, coordinator: Any, loop: asyncio.AbstractEventLoop) -> None:
        """Log the error that keeps this worker out of its group; aiokafka then tries to join again.

        If aiokafka has stopped trying, crash the app with the error. aiokafka tries again only after a check for
        errors, which its own consumer makes when it fetches. Lanes fetch through another client. So without this call,
        a refused worker would wait forever and log nothing.
        """
        clock = asyncio.get_running_loop().time
        if clock() < self._check_at:
            return
        try:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_check_errors(coordinator), loop))
        except kafka.InconsistentGroupProtocolError:
            await self._log_refusal("its members offer another protocol")
        except kafka.KafkaError as error:
            if type(error) is kafka.KafkaError and not coordinator._coordination_task.done():  # noqa: SLF001
                # aiokafka raises this for an unexpected answer, as Kafka gives if the group has members of the new
                # protocol.
                await self._log_refusal(repr(error))
                return
            if coordinator._coordination_task.done():  # noqa: SLF001 - it tries no more
                await self.app.crash(error)
                return
            now, last = clock(), self._last_reason
            if last is None or last[0] != repr(error) or now - last[1] > SAY_AGAIN_S:
                self._last_reason = repr(error), now
                log.error("the group refuses this worker; trying again", reason=_why(error))

    async def _log_refusal(self, fallback: str) -> None:
        """Log why the group refuses this worker. aiokafka tries to join again at the next call of `_check_membership`.

        Args:
            fallback: reason to log if the group's description shows none
        """
        self._refused_s = min(max(REFUSED_FIRST_S, self._refused_s * 2), REFUSED_MOST_S)
        before = self.rebalances
        reason = (await self._explain() if self._explain else "") or fallback
        if self.rebalances > before:
            return  # it was let in while the group was described
        log.error("the group refuses this worker; trying again", reason=reason, again_in_s=self._refused_s)
        self._check_at = asyncio.get_running_loop().time() + self._refused_s

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changes.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("the worker cannot follow the assignment of partitions", reason=repr(error))
