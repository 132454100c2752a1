"""Records that pass once more, counted on the changelog and the input of the model's Kafka before anything moves."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kafka_ratchet.app.operations.recounting import Log, RepeatedCount, awaited, causes, count_passing, never_judged
from kafka_ratchet.app.settings import StreamSettings
from kafka_ratchet.errors import BrokerUnavailable
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.tables.eviction import EvictionLimits
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.transport.client.cluster import FetchedPartition
from kafka_ratchet.transport.client.topic_id import id_text
from kafka_ratchet.transport.move import PartitionMove
from kafka_ratchet.transport.owner import Decision
from kafka_ratchet.transport.policy import ForgetRequest
from tests.transport.memory_link import Link
from tests.transport.modelled_commit_path import CommitPath
from tests.transport.modelled_worker import CHANGELOG, DEAD, GROUP, INPUT, OUTPUT, run
from tests.transport.test_model_finds import RAISING, one_lane, sent

STREAM = StreamSettings(input=INPUT, output=OUTPUT, dead_letters=DEAD)


def arrive(model: CommitPath, *numbers: int, name: bytes = b"a") -> None:
    model._append([sent(number, name) for number in numbers], "none")
    model.go_on(2)


def decide(model: CommitPath, policy: bool | ForgetRequest) -> None:
    model.policies.append(policy)
    model.go_on(2)
    for worker in filter(None, model.workers):
        worker.policies.read()


@contextmanager
def state_of(model: CommitPath, folder: Path) -> Iterator[tuple[Any, SequencePartition]]:
    """Stop the lane and read its changelog, as `ratchet resume` does."""
    for slot in model._running():
        model._stop(slot)
    link: Any = Link(model.kafka)
    state = SequencePartition(folder / uuid.uuid4().hex, CHANGELOG, 0, Identity.PRODUCER, 1_000_000)
    writes = (OUTPUT, DEAD, CHANGELOG)
    move = PartitionMove(
        link, state, topic=INPUT, partition=0, app="app", group=GROUP, transactional_id="id", writes=writes
    )
    run(model.loop, move.read())
    try:
        yield link, state
    finally:
        move.close()


def counted(model: CommitPath, folder: Path, *, start: int = 0, judges: bool = True, **more: Any) -> RepeatedCount:
    with state_of(model, folder) as (link, state):
        known, position = len(state), state.input_position or 0
        log = Log(INPUT, 0, model.kafka.topic_id(INPUT), b"")
        arguments = {"skipped": [], "batch_most": 1 << 20, "judges": judges, **more}
        found = run(model.loop, count_passing(link, STREAM, state, log, range(start, position), **arguments))
        assert (len(state), state.known.map.changes) == (known, 0)
        return found


def test_what_is_known_passes_not_at_all(tmp_path: Path) -> None:
    with one_lane(RAISING) as model:
        arrive(model, 1, 2, 3)
        arrive(model, 1, 2, 3)
        assert counted(model, tmp_path) == RepeatedCount(0, -1)


@pytest.mark.parametrize(
    ("start", "expected"), [(0, RepeatedCount(5, 5)), (7, RepeatedCount(3, 7)), (10, RepeatedCount())]
)
def test_what_passed_while_deduplication_was_off(tmp_path: Path, start: int, expected: RepeatedCount) -> None:
    with one_lane(RAISING) as model:
        arrive(model, 1, 2, 3, 4, 5)
        decide(model, False)
        arrive(model, 6, 7, 8, 9, 10)
        decide(model, True)
        assert counted(model, tmp_path, start=start) == expected
        with state_of(model, tmp_path) as (_, state):
            (said,) = causes(state, range(start, 11), judges=True) or [""]
            assert said == "offsets 5 to 9: 5 records passed while deduplication was off" * (start < 10)


def test_what_was_judged_since_does_not_pass(tmp_path: Path) -> None:
    with one_lane(RAISING) as model:
        decide(model, False)
        arrive(model, 1, 2)
        decide(model, True)
        arrive(model, 3)
        assert counted(model, tmp_path) == RepeatedCount()


def test_everything_passes_where_deduplication_is_off(tmp_path: Path) -> None:
    with one_lane(RAISING) as model:
        arrive(model, 1, 2, 2)
        assert counted(model, tmp_path, judges=False) == RepeatedCount(3, 0)


def test_what_was_evicted_passes(tmp_path: Path) -> None:
    with one_lane(RAISING, EvictionLimits(1)) as model:
        arrive(model, 1, 2, 3)
        arrive(model, 1, 2, name=b"b")
        assert counted(model, tmp_path) == RepeatedCount(3, 0)
        assert counted(model, tmp_path, start=3) == RepeatedCount()


def test_what_was_forgotten_passes(tmp_path: Path) -> None:
    with one_lane(RAISING) as model:
        arrive(model, 1, 2)
        arrive(model, 1, 2, name=b"b")
        decide(model, ForgetRequest("f" * 16, b"b", 1, "now", "me", "so", None, "another", (0,)))
        arrive(model, 3)
        assert counted(model, tmp_path) == RepeatedCount(1, 3)


@pytest.mark.parametrize(
    ("topic", "ends", "start", "expected"),
    [
        ("another", (), 0, RepeatedCount(2, 2)),
        ("here", (4,), 0, RepeatedCount()),  # applied at the position where the lane is, and not before
        ("here", (1,), 2, RepeatedCount(2, 2)),
    ],
)
def test_a_request_to_forget_that_waits(
    tmp_path: Path, topic: str, ends: tuple[int, ...], start: int, expected: RepeatedCount
) -> None:
    with one_lane(RAISING) as model:
        arrive(model, 1, 2)
        arrive(model, 1, 2, name=b"b")
        with state_of(model, tmp_path) as (_, state):
            log = Log(INPUT, 0, model.kafka.topic_id(INPUT), b"")
            of = id_text(log.id) if topic == "here" else topic
            request = ForgetRequest("f" * 16, b"b", None, "now", "me", "so", None, of, ends)
            forgets = awaited([request, request._replace(partition=1)], state, log, 4)
            assert (forgets == [request]) == bool(expected.records)
            assert awaited([request], state, log, 5) == [request]
        assert counted(model, tmp_path, start=start, forgets=forgets) == expected


def test_a_request_to_forget_that_was_applied_does_not_wait(tmp_path: Path) -> None:
    with one_lane(RAISING) as model:
        request = ForgetRequest("f" * 16, b"b", None, "now", "me", "so", None, "another", (0,))
        decide(model, request)
        arrive(model, 1)
        with state_of(model, tmp_path) as (_, state):
            assert awaited([request], state, Log(INPUT, 0, model.kafka.topic_id(INPUT), b""), 9) == []


def test_what_becomes_a_dead_letter_once_more(tmp_path: Path) -> None:
    with one_lane(RAISING) as model:
        arrive(model, 1)
        invalid = sent(1)
        headers = tuple((name, b"many" if value == b"1" else value) for name, value in invalid.record.headers)
        model._append([invalid._replace(record=invalid.record._replace(headers=headers), sequence=None)], "none")
        model.go_on(2)
        assert counted(model, tmp_path) == RepeatedCount(0, -1, 1)


def test_what_was_skipped_passes_for_the_first_time(tmp_path: Path) -> None:
    with one_lane(RAISING) as model:
        decide(model, False)
        arrive(model, 1, 2, 3, 4)
        decide(model, True)
        assert counted(model, tmp_path, skipped=[range(1, 3)]) == RepeatedCount(2, 0)


def test_what_waits_behind_an_open_transaction_is_not_counted(tmp_path: Path) -> None:
    with one_lane(RAISING) as model:
        arrive(model, 1)
        model._append([sent(2)], "none", 77)
        with state_of(model, tmp_path) as (link, state):
            log = Log(INPUT, 0, model.kafka.topic_id(INPUT), b"")
            work = count_passing(link, STREAM, state, log, range(9), skipped=[], judges=False, batch_most=1 << 20)
            assert run(model.loop, asyncio.wait_for(work, 10)) == RepeatedCount(1, 0)


def test_records_that_kafka_holds_back_are_not_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with one_lane(RAISING) as model:
        arrive(model, 1)
        with state_of(model, tmp_path) as (link, state):

            async def empty(*_: Any, **__: Any) -> FetchedPartition:
                return FetchedPartition(b"", [], 2, 2)

            monkeypatch.setattr(link, "fetch", empty)
            log = Log(INPUT, 0, model.kafka.topic_id(INPUT), b"")
            work = count_passing(link, STREAM, state, log, range(1), skipped=[], judges=True, batch_most=1 << 20)
            with pytest.raises(BrokerUnavailable, match="no records from offset 0 on, though it holds them up to 2"):
                run(model.loop, work)


def decision(before: int | None, after: int | None) -> Decision:
    return Decision("now", "me", "resume", "so", before, after)


@pytest.mark.parametrize(
    ("decisions", "position", "gaps"),
    [
        ([], 9, []),
        ([decision(2, 5)], 9, [range(2, 5)]),
        ([decision(2, 5), decision(9, 3)], 9, [range(2, 3)]),
        ([decision(2, 5), decision(9, 3)], 4, [range(2, 3), range(4, 5)]),
        ([decision(2, 8), decision(8, 4), decision(5, 6)], 6, [range(2, 4), range(5, 6), range(6, 8)]),
        ([decision(2, 5), decision(None, 7)], 9, [range(7)]),
        ([decision(76, 50), decision(50, 78)], 78, [range(76, 78)]),  # 50 to 75 were read before
        ([decision(3, None), decision(4, 4)], 9, []),
    ],
)
def test_gaps_that_nothing_has_read(decisions: list[Decision], position: int, gaps: list[range]) -> None:
    found = {offset for gap in never_judged(decisions, position) for offset in gap}
    assert found == {offset for gap in gaps for offset in gap}
