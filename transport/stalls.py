"""Stall detection: why a partition does not move although its input has records beyond its position.

The function `stall_of` decides from the lane's status and the requests being retried; it sends no request. Status
address, metrics, page, `ratchet tables`, `/readyz` and `ratchet doctor` all show its result. docs/reference/stalls.md
has the table of causes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from aiokafka import errors as kafka

from kafka_ratchet.errors import Fenced, RatchetError, TopicMissing
from kafka_ratchet.transport.client.errors import UNAUTHORIZED, Throttled
from kafka_ratchet.transport.client.retry import Attempts
from kafka_ratchet.transport.lane_spec import LaneState, LaneStatus
from kafka_ratchet.transport.transactions.outcome import OutcomeForgotten

STALLED_AFTER_S: Final = 15.0
"""Seconds of standstill, beyond the commit interval, after which a partition counts as stalled. Elections and
take-overs take less."""


class StallCause(StrEnum):
    """Cause of a stall: label of the metric and value in JSON."""

    OPEN_TRANSACTION = "open-transaction"
    HALTED = "halted"
    NO_ANSWER = "no-answer"
    NO_LEADER = "no-leader"
    COORDINATOR = "coordinator"
    UNAUTHORIZED = "unauthorized"
    QUOTA = "quota"
    TOPIC_MISSING = "topic-missing"
    REPLICAS = "replicas"
    BROKER_STORAGE = "broker-storage"
    REFUSED = "refused"
    UNENDED_TRANSACTION = "unended-transaction"
    FENCED = "fenced"
    ROLLED_BACK = "rolled-back"
    AGENT = "agent"
    RESTORING = "restoring"
    STARTING = "starting"
    REBALANCE = "rebalance"
    NO_WORKER = "no-worker"
    WORKER_SILENT = "worker-silent"
    STRANGERS = "strangers"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class Stall:
    """Cause of a partition's standstill.

    cause: a member of `StallCause`; text: sentence for the operator; since: seconds since 1970
    """

    cause: str
    text: str
    since: float


def stall_of(
    status: LaneStatus,
    attempts: Attempts,
    place: str,
    now_s: float,
    after_s: float = STALLED_AFTER_S,
    throttle_s: float = 0.0,
) -> Stall | None:
    """Return why a lane stands still; None while it moves, or has no records to read.

    Args:
        status: status of the lane.
        attempts: requests that the lane is retrying now.
        place: topic and partition, for the sentence.
        now_s: present time, seconds since 1970.
        after_s: seconds without progress before a stall is reported; a halt is reported at once.
        throttle_s: seconds of a recent delay by quota; 0 without one.
    """
    if status.halted:
        since = status.failing_since or now_s
        return Stall(StallCause.HALTED, f"{place}: halted ({status.halted}): {status.failure}", since)
    if (tried := attempts.longest()) is not None and tried.seconds >= after_s:
        inner = attempts.failed() or tried
        cause = StallCause.QUOTA if throttle_s and inner.error is None else cause_of(inner.error)
        text = f"{place}: {SENTENCES[cause]}; tried for {tried.seconds:.0f} s to {inner.what}"
        return Stall(cause, f"{text}: {inner.reason or 'no answer yet'}", now_s - tried.seconds)
    runs_again = status.state is LaneState.RUNNING and now_s - status.running_since >= after_s
    if status.failing_since is not None and not runs_again and now_s - status.failing_since >= after_s:
        cause = cause_of(status.failed_by)
        text = f"{place}: {SENTENCES[cause]}; it starts again and again: {status.failure}"
        return Stall(cause, text, status.failing_since)
    if status.state in (LaneState.STARTING, LaneState.RESTORING):
        if now_s - status.started_at < after_s:
            return None
        cause = StallCause.STARTING if status.state is LaneState.STARTING else StallCause.RESTORING
        return Stall(cause, f"{place}: {SENTENCES[cause]}", status.started_at)
    if status.held_by is not None and now_s - status.held_by[1] >= after_s:
        return Stall(
            StallCause.AGENT, f"{place}: {SENTENCES[StallCause.AGENT]}: {status.held_by[0]()}", status.held_by[1]
        )
    return _at_rest(status, place, now_s, after_s, throttle_s)


def _at_rest(status: LaneStatus, place: str, now_s: float, after_s: float, throttle_s: float) -> Stall | None:
    position, end, stable_end = status.position, status.end, status.stable_end
    answered_at = max(status.fetched_at or now_s, status.running_since)
    if status.state is LaneState.RUNNING and now_s - answered_at >= max(after_s, STALLED_AFTER_S):
        # A lane at rest sends no request itself, and a broker that hangs is silent.
        text = f"{place}: {SENTENCES[StallCause.NO_ANSWER]}; no answer about the input for {now_s - answered_at:.0f} s"
        return Stall(StallCause.NO_ANSWER, text, answered_at)
    if status.state is not LaneState.RUNNING or position is None or end is None or position >= end:
        return None
    if status.blocked_since is not None and stable_end is not None and position >= stable_end:
        if now_s - status.blocked_since < after_s:
            return None
        return Stall(
            StallCause.OPEN_TRANSACTION, f"{place}: {blocked(stable_end, end)}{status.blocked_by}", status.blocked_since
        )
    if status.behind_since is None or now_s - max(status.behind_since, status.running_since) < after_s:
        return None
    where = f"position {position:,}, end {end:,}"
    if throttle_s:
        text = f"{place}: {SENTENCES[StallCause.QUOTA]}: Kafka delays its answers by {throttle_s:.1f} s ({where})"
        return Stall(StallCause.QUOTA, text, status.behind_since)
    return Stall(StallCause.UNEXPLAINED, f"{place}: {SENTENCES[StallCause.UNEXPLAINED]} ({where})", status.behind_since)


def blocked(stable_end: int, end: int) -> str:
    """Return the sentence about offsets held back by an open transaction."""
    return f"{end - stable_end:,} offsets, from {stable_end:,} on, wait for an open transaction"


SENTENCES: Final[dict[StallCause, str]] = {
    StallCause.NO_ANSWER: "Kafka does not answer",
    StallCause.NO_LEADER: "a partition has no leader",
    StallCause.COORDINATOR: "the coordinator of the group or of the transactional id is not available",
    StallCause.UNAUTHORIZED: "this user has lost a right",
    StallCause.QUOTA: "the quota of this client is used up",
    StallCause.TOPIC_MISSING: "a topic does not exist",
    StallCause.REPLICAS: "too few replicas are in sync to take a write",
    StallCause.BROKER_STORAGE: "the broker cannot write to its disk",
    StallCause.REFUSED: "Kafka refuses a request",
    StallCause.UNENDED_TRANSACTION: "an earlier transaction of this partition has not ended",
    StallCause.FENCED: "another worker takes the partition over, again and again",
    StallCause.ROLLED_BACK: "its transactions are rolled back, again and again",
    StallCause.AGENT: "an agent holds the batch, and has not given it back",
    StallCause.RESTORING: "its state is read back from the changelog",
    StallCause.STARTING: "it takes over, and waits for its turn to start or for the transaction of its predecessor",
    StallCause.UNEXPLAINED: "nothing was committed, and no cause is known; the log of its worker has more",
}

_BY_ERROR: Final[tuple[tuple[tuple[type[BaseException], ...], StallCause], ...]] = (
    ((Fenced,), StallCause.FENCED),
    ((OutcomeForgotten, kafka.ConcurrentTransactions), StallCause.UNENDED_TRANSACTION),
    (UNAUTHORIZED, StallCause.UNAUTHORIZED),
    ((Throttled,), StallCause.QUOTA),
    ((kafka.UnknownTopicOrPartitionError, TopicMissing), StallCause.TOPIC_MISSING),
    (
        (
            kafka.GroupCoordinatorNotAvailableError,
            kafka.NotCoordinatorForGroupError,
            kafka.GroupLoadInProgressError,
        ),
        StallCause.COORDINATOR,
    ),
    (
        (kafka.LeaderNotAvailableError, kafka.NotLeaderForPartitionError, kafka.ReplicaNotAvailableError),
        StallCause.NO_LEADER,
    ),
    ((kafka.NotEnoughReplicasError, kafka.NotEnoughReplicasAfterAppendError), StallCause.REPLICAS),
    ((kafka.KafkaStorageError,), StallCause.BROKER_STORAGE),
    ((kafka.RequestTimedOutError,), StallCause.NO_ANSWER),
    ((kafka.BrokerResponseError,), StallCause.REFUSED),
    ((RatchetError,), StallCause.ROLLED_BACK),
)


def cause_of(error: type[BaseException] | None) -> StallCause:
    """Return the cause of a stall for a class of errors. error: None if Kafka has not answered."""
    found = (cause for errors, cause in _BY_ERROR if error is not None and issubclass(error, errors))
    return next(found, StallCause.NO_ANSWER)


def failure_of(error: BaseException) -> type[BaseException]:
    """Return the class of the Kafka error that caused a lane's failure, or else the failure's own class."""
    return type(error.__context__) if isinstance(error.__context__, kafka.KafkaError) else type(error)
