"""Each cause for which a partition stands still is named by one function, from the lane's own status."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka import errors as kafka
from confluent_kafka import Producer

from kafka_ratchet.errors import Aborted, Fenced, TopicMissing
from kafka_ratchet.transport import stalls
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.errors import Throttled
from kafka_ratchet.transport.client.retry import Attempts, Retry
from kafka_ratchet.transport.lane_spec import LaneState, LaneStatus
from kafka_ratchet.transport.stalls import STALLED_AFTER_S, Stall, StallCause, cause_of, failure_of, stall_of
from kafka_ratchet.transport.transactions.open_transactions import find_open, named
from kafka_ratchet.transport.transactions.outcome import OutcomeForgotten
from tests.transport.kafka_side import until
from tests.transport.lane_site import Site
from tests.transport.test_lane import events

NOW_S = 1_000_000.0
LONG_S = NOW_S - STALLED_AFTER_S - 1
PLACE = "orders, partition 3"


def status_of(**changed: Any) -> LaneStatus:
    """A lane that runs, and has read its input to the end."""
    given = {"state": LaneState.RUNNING, "position": 10, "end": 10, "stable_end": 10, "started_at": LONG_S}
    return LaneStatus(**{**given, **changed})


def stall(status: LaneStatus, attempts: Attempts | None = None) -> Stall | None:
    return stall_of(status, attempts or Attempts(), PLACE, NOW_S)


@pytest.mark.parametrize(
    ("changed", "cause", "sentence"),
    [
        (
            {"halted": "CorruptBatch", "failure": "offset 7: crc"},
            StallCause.HALTED,
            "halted (CorruptBatch): offset 7: crc",
        ),
        (
            {"end": 61, "blocked_since": LONG_S, "blocked_by": " (producer id 7)"},
            StallCause.OPEN_TRANSACTION,
            "51 offsets, from 10 on, wait for an open transaction (producer id 7)",
        ),
        (
            {"state": LaneState.RETRYING, "failing_since": LONG_S, "failed_by": Fenced, "failure": "by another"},
            StallCause.FENCED,
            "by another",
        ),
        (
            {"state": LaneState.RETRYING, "failing_since": LONG_S, "failed_by": Aborted, "failure": "rolled back"},
            StallCause.ROLLED_BACK,
            "rolled back",
        ),
        (
            {
                "state": LaneState.STARTING,
                "failing_since": LONG_S,
                "failed_by": kafka.NotEnoughReplicasError,
                "failure": "Aborted: not enough replicas",
            },
            StallCause.REPLICAS,
            "not enough replicas",
        ),
        (
            {
                "state": LaneState.RETRYING,
                "failing_since": LONG_S,
                "failed_by": kafka.KafkaStorageError,
                "failure": "no space",
            },
            StallCause.BROKER_STORAGE,
            "no space",
        ),
        ({"state": LaneState.STARTING, "position": None, "end": None}, StallCause.STARTING, "waits for its turn"),
        ({"state": LaneState.RESTORING, "position": None, "end": None}, StallCause.RESTORING, "changelog"),
        (
            {"end": 11, "held_by": (lambda: "agent pay at offset 10", LONG_S)},
            StallCause.AGENT,
            "agent pay at offset 10",
        ),
        ({"end": 61, "stable_end": 61, "behind_since": LONG_S}, StallCause.UNEXPLAINED, "position 10, end 61"),
        ({"fetched_at": LONG_S}, StallCause.NO_ANSWER, "no answer about the input for 16 s"),
    ],
)
def test_a_status_names_its_cause(changed: dict[str, Any], cause: StallCause, sentence: str) -> None:
    found = stall(status_of(**changed))
    assert found is not None
    assert found.cause == cause
    assert sentence in found.text
    assert found.text.startswith(PLACE)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"end": 61, "stable_end": 61, "behind_since": NOW_S - 1},
        {"end": 61, "blocked_since": NOW_S - 1, "behind_since": NOW_S - 1},
        {"state": LaneState.RESTORING, "started_at": NOW_S - 1},
        {"state": LaneState.RETRYING, "failing_since": NOW_S - 1, "failed_by": Aborted, "failure": "once"},
        {"end": 11, "held_by": (lambda: "agent pay", NOW_S - 1), "behind_since": NOW_S - 1},
        {"end": 61, "stable_end": 61, "behind_since": LONG_S, "running_since": NOW_S - 1},
        {"fetched_at": NOW_S - 1},
        {"fetched_at": LONG_S, "running_since": NOW_S - 1},
    ],
)
def test_nothing_is_named_that_moves_or_has_just_begun(changed: dict[str, Any]) -> None:
    assert stall(status_of(**changed)) is None


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (None, StallCause.NO_ANSWER),
        (kafka.KafkaConnectionError, StallCause.NO_ANSWER),
        (kafka.RequestTimedOutError, StallCause.NO_ANSWER),
        (kafka.LeaderNotAvailableError, StallCause.NO_LEADER),
        (kafka.NotLeaderForPartitionError, StallCause.NO_LEADER),
        (kafka.GroupCoordinatorNotAvailableError, StallCause.COORDINATOR),
        (kafka.NotCoordinatorForGroupError, StallCause.COORDINATOR),
        (kafka.TopicAuthorizationFailedError, StallCause.UNAUTHORIZED),
        (kafka.GroupAuthorizationFailedError, StallCause.UNAUTHORIZED),
        (kafka.TransactionalIdAuthorizationFailed, StallCause.UNAUTHORIZED),
        (Throttled, StallCause.QUOTA),
        (kafka.UnknownTopicOrPartitionError, StallCause.TOPIC_MISSING),
        (TopicMissing, StallCause.TOPIC_MISSING),
        (kafka.NotEnoughReplicasError, StallCause.REPLICAS),
        (kafka.KafkaStorageError, StallCause.BROKER_STORAGE),
        (kafka.ConcurrentTransactions, StallCause.UNENDED_TRANSACTION),
        (OutcomeForgotten, StallCause.UNENDED_TRANSACTION),
        (kafka.InvalidRequestError, StallCause.REFUSED),
    ],
)
def test_an_error_of_kafka_stands_for_a_cause(error: type[BaseException] | None, cause: StallCause) -> None:
    assert cause_of(error) == cause


def test_an_error_of_ours_stands_for_the_one_of_kafka_that_caused_it() -> None:
    def produce() -> None:
        try:
            raise kafka.NotEnoughReplicasError
        except kafka.KafkaError:
            raise Aborted("not enough replicas") from None

    with pytest.raises(Aborted) as found:
        produce()
    assert failure_of(found.value) is kafka.NotEnoughReplicasError
    assert failure_of(Aborted("by itself")) is Aborted


async def test_a_request_is_tried_until_its_function_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts, goes_on = Attempts(), asyncio.Event()

    async def ask() -> None:
        retry = Retry("fetch", topic="orders")
        await retry.wait(kafka.TopicAuthorizationFailedError("orders"))
        await goes_on.wait()

    async def lane() -> None:
        attempts.follow()
        await asyncio.create_task(ask())

    running = asyncio.create_task(lane())
    await until(lambda: attempts.longest() is not None and attempts.longest().error is not None)  # type: ignore[union-attr]
    tried = attempts.longest()
    assert tried is not None
    assert stall(status_of(), attempts) is None, "it has only begun"
    tried.began -= STALLED_AFTER_S + 1
    found = stall(status_of(), attempts)
    assert found is not None
    assert found.cause == StallCause.UNAUTHORIZED
    assert "docs/guide/rights.md" in found.text
    del tried
    goes_on.set()
    await running
    assert attempts.longest() is None


def test_a_halt_keeps_its_reason_while_the_lane_tries_again() -> None:
    found = stall(status_of(halted="AgentFailed", failure="agent pay at offset 7", error=None, failing_since=LONG_S))
    assert found is not None
    assert found.text == f"{PLACE}: halted (AgentFailed): agent pay at offset 7"


def test_an_earlier_failure_hides_no_later_cause() -> None:
    failed = {"failing_since": LONG_S - 60, "failed_by": Aborted, "failure": "once", "running_since": LONG_S}
    held = stall(status_of(end=11, held_by=(lambda: "agent pay at offset 10", LONG_S), **failed))
    assert held is not None
    assert held.cause == StallCause.AGENT
    again = stall(status_of(end=11, **{**failed, "running_since": NOW_S - 1}))
    assert again is not None
    assert again.cause == StallCause.ROLLED_BACK


async def test_a_request_within_another_gives_the_cause() -> None:
    attempts = Attempts()
    attempts.follow()
    outer, inner = Retry("initialise transactional id"), Retry("ask for open transactions")
    inner.pause_s = 0.0
    await inner.wait(kafka.LeaderNotAvailableError("out, partition 0 has no leader"))
    outer.began -= STALLED_AFTER_S + 1
    found = stall(status_of(), attempts)
    assert found is not None
    assert (found.cause, "16 s to ask for open transactions" in found.text) == (StallCause.NO_LEADER, True), found.text


def test_delays_by_quota_explain_a_standstill() -> None:
    behind = status_of(end=61, stable_end=61, behind_since=LONG_S)
    found = stall_of(behind, Attempts(), PLACE, NOW_S, throttle_s=9.5)
    assert found is not None
    assert (found.cause, "by 9.5 s (position 10, end 61)" in found.text) == (StallCause.QUOTA, True)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A standstill is named after a moment."""
    monkeypatch.setattr("kafka_ratchet.transport.lane.STALLED_AFTER_S", 0.2)


async def test_records_behind_a_foreign_transaction_are_lag_and_named(site: Site, soon: None) -> None:
    foreign = Producer(
        {
            "bootstrap.servers": site.bootstrap,
            "transactional.id": f"foreign-{site.input}",
            "transaction.timeout.ms": 600_000,
        }
    )
    await asyncio.to_thread(foreign.init_transactions, 30)
    site.produce(events(*range(1, 101)))
    foreign.begin_transaction()
    site.send(foreign, events(101))
    assert foreign.flush(30) == 0
    site.produce(events(*range(102, 152)))
    owner = await site.owner()
    owner.lane.start()
    status = owner.lane.status
    await until(lambda: (status.position, status.stable_end, status.end) == (100, 100, 151))
    # Its last fetch may still be under way, which counts as unanswered after so short a time.
    await until(lambda: (named := owner.lane.stall()) is not None and named.cause == StallCause.OPEN_TRANSACTION)
    found = owner.lane.stall()
    assert found is not None
    assert "51 offsets, from 100 on, wait for an open transaction" in found.text
    assert (status.blocked, (status.lag_s(time.time()) or 0) > 0) == (51, True)
    open_now = await find_open(owner.cluster, [(site.input, 0)], "here")
    assert [(one.transactional_id, one.start) for one in open_now] == [(f"foreign-{site.input}", 100)]
    assert f"transactional id 'foreign-{site.input}', producer id {open_now[0].producer_id}" in named(open_now)
    # More comes while the lane rests: the watch brings the high watermark.
    site.produce(events(*range(152, 162)))
    await until(lambda: status.end == 161)
    await asyncio.to_thread(foreign.commit_transaction, 30)
    await until(lambda: status.position == 162)
    await until(lambda: owner.lane.stall() is None)
    assert (status.blocked, status.lag_s(time.time())) == (0, 0.0)
    assert len(site.output_values()) == 161


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (kafka.LeaderNotAvailableError, StallCause.NO_LEADER),
        (kafka.TopicAuthorizationFailedError, StallCause.UNAUTHORIZED),
        (kafka.KafkaStorageError, StallCause.BROKER_STORAGE),
        (kafka.KafkaConnectionError, StallCause.NO_ANSWER),
    ],
)
async def test_a_failure_of_the_fetch_is_named_while_it_lasts(
    site: Site, soon: None, monkeypatch: pytest.MonkeyPatch, error: type[kafka.KafkaError], cause: StallCause
) -> None:
    owner = await site.owner()
    site.produce(events(1))
    owner.lane.start()
    await owner.reach(1)

    async def fail(self: Cluster, topic: str, partition: int) -> int:
        raise error(f"{topic}, partition {partition}")

    with monkeypatch.context() as patched:
        patched.setattr(Cluster, "leader", fail)
        patched.setattr(Cluster, "known_leader", lambda self, topic, partition: None)
        await until(lambda: (found := owner.lane.stall()) is not None and found.cause == cause)
    await until(lambda: owner.lane.stall() is None)


def test_every_cause_has_a_row_in_the_reference() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/stalls.md").read_text("utf-8")
    assert [cause for cause in StallCause if f"\n- `{cause}`\n" not in page] == []
    assert set(stalls.SENTENCES) <= set(StallCause)
