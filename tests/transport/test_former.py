"""A former owner that read another input is fenced too, although its transactional id is another one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.transport import former
from kafka_ratchet.transport.client.topic_id import id_text
from kafka_ratchet.transport.lane_spec import LaneState
from kafka_ratchet.transport.move import PartitionMove
from kafka_ratchet.transport.names import transactional_id
from kafka_ratchet.transport.owner import INPUT as INPUT_ROLE
from kafka_ratchet.transport.owner import Decision, Topic
from kafka_ratchet.transport.transactions.producer import TransactionalProducer
from tests.transport.batch.known_batches import Source, encode
from tests.transport.memory_link import Link
from tests.transport.modelled_commit_path import CommitPath
from tests.transport.modelled_input import Sent
from tests.transport.modelled_worker import CHANGELOG, DEAD, GROUP, INPUT, OUTPUT, SPEC, Worker, run
from tests.transport.test_model_finds import FIRST, OUT, nothing, one_lane, sent

PRESENT = replace(SPEC, transactional_id=transactional_id("app", INPUT, 0))
OTHER = replace(SPEC, topic="other", transactional_id=transactional_id("app", "other", 0))


@pytest.fixture
def model() -> Iterator[CommitPath]:
    """A partition without records whose owner reads another input than the present one."""
    with one_lane(FIRST) as model:
        model.go_on(2)
        model._stop(0)
        model.spec = OTHER
        model.start(slot=0)
        model.go_on(2)
        yield model


@pytest.fixture(params=[True, False])
def fixed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run a test with and without the fencing."""
    if not request.param:
        monkeypatch.setattr(former, "_fence", nothing)
    return bool(request.param)


def to_other(model: CommitPath, *records: Sent) -> None:
    sources = [Source(each.record.key, each.record.value, each.record.headers) for each in records]
    model.kafka.logs["other", 0].append(encode(sources, 0))


def asleep(model: CommitPath) -> Worker:
    worker = model.workers[0]
    assert worker is not None
    worker.link.awake.clear()
    return worker


def wakes_up(model: CommitPath, worker: Worker) -> None:
    """It goes on for a moment, and ends before it starts again."""
    worker.link.awake.set()
    model.go_on(0.05)
    worker.power_off()
    model._bury()


def test_one_that_was_suspended_before_the_input_was_corrected(model: CommitPath, fixed: bool) -> None:
    before = asleep(model)
    model.spec = SPEC
    model.start(slot=1)
    model.go_on(2)
    model._stop(1)
    to_other(model, sent(1, b"other"), sent(2, b"other"))
    wakes_up(model, before)
    records = [sent(number) for number in (1, 2, 3)]
    model._append(records, "none")
    model.start(slot=1)
    model.go_on(2)
    assert (model.kafka.logs[OUT].committed() == [each.record for each in records]) == fixed


@pytest.mark.parametrize("fixed", [True, False])
def test_one_that_started_before_the_owner_entry_of_its_successor(
    monkeypatch: pytest.MonkeyPatch, model: CommitPath, fixed: bool
) -> None:
    """It was fenced, and took its id back before the changelog named the new owner."""
    if not fixed:
        monkeypatch.setattr(TransactionalProducer, "_fence_formers", nothing)
    model._stop(0)
    model.spec = PRESENT
    model.start(slot=1)
    after = model.workers[1]
    assert after is not None
    after.freeze_at = "restored"
    model.go_on(2)
    model.spec = OTHER
    model.start(slot=0)
    before = model.workers[0]
    assert before is not None
    before.freeze_at = "judged"
    to_other(model, sent(1, b"other"), sent(2, b"other"))
    model.go_on(1)
    after.link.awake.set()
    model.go_on(2)
    assert after.lane.status.state is LaneState.RUNNING
    model._stop(1)
    wakes_up(model, before)
    records = [sent(number) for number in (1, 2, 3)]
    model._append(records, "none")
    model.spec = PRESENT
    model.start(slot=1)
    model.go_on(2)
    assert (model.kafka.logs[OUT].committed() == [each.record for each in records]) == fixed


def test_one_that_was_killed_in_the_transaction_of_its_first_records(model: CommitPath, fixed: bool) -> None:
    before = model.workers[0]
    assert before is not None
    before.crash_at = ("logged", 1)
    to_other(model, sent(1, b"other"))
    model.go_on(1)
    assert model.workers[0] is None
    model.spec = SPEC
    model._append([sent(1)], "none")
    model.start(slot=1)
    model.go_on(60)
    assert (model.kafka.logs[OUT].committed() == [sent(1).record]) == fixed


async def move_to_the_input(move: PartitionMove, state: SequencePartition, model: CommitPath) -> None:
    await move.take_over()
    await move.read()
    assert state.owner is not None
    present = Topic(INPUT, id_text(model.kafka.topic_id(INPUT)))
    decision = Decision("2026-11-22T00:00:00Z", "me", "from earliest", "the other input was the wrong one")
    topics = {**state.owner.topics, INPUT_ROLE: present}
    await move.write(msgspec.structs.replace(state.owner, topics=topics, decisions=(decision,)), 0, forget=False)


def test_one_that_was_suspended_before_an_operator_gave_the_partition_another_input(
    model: CommitPath, fixed: bool
) -> None:
    to_other(model, sent(1, b"other"))
    model.go_on(2)
    before = model.workers[0]
    assert before is not None
    before.freeze_at = "judged"
    to_other(model, sent(2, b"other"))
    model.go_on(1)
    state = SequencePartition(model.folder / "move", CHANGELOG, 0, model.kind, 1_000_000)
    link: Any = Link(model.kafka)
    writes = (OUTPUT, DEAD, CHANGELOG)
    move = PartitionMove(
        link, state, topic=INPUT, partition=0, app="app", group=GROUP, transactional_id="id", writes=writes
    )
    run(model.loop, move_to_the_input(move, state, model))
    move.close()
    wakes_up(model, before)
    came_out = [each.value for each in model.kafka.logs[OUT].committed()]
    assert (came_out == [sent(1, b"other").record.value]) == fixed
    model.spec = SPEC
    model.start(slot=1)
    model.go_on(2)
    worker = model.workers[1]
    assert worker is not None
    assert (worker.lane.status.state is LaneState.RUNNING) or not fixed
