"""The model shows what foreign commits and an operator's decisions come to, and these bugs when their fix is taken out.

As test_model_finds.py has others, step by step.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kafka_ratchet.app.operations import recounting
from kafka_ratchet.app.operations.recounting import RepeatedCount
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.transport import resumption
from kafka_ratchet.transport.client.cluster import CommittedPosition
from kafka_ratchet.transport.lane_spec import LaneSpec
from kafka_ratchet.transport.partition_state import PartitionState
from kafka_ratchet.transport.transactions import hanging
from kafka_ratchet.transport.transactions.hanging import Hanging
from kafka_ratchet.transport.transactions.requests import OURS
from tests.transport.modelled_commit_path import EVICTED_IN_ALL
from tests.transport.modelled_decisions import ACCEPT, ENDED, REFUSED, RESTORE, SET_BACK, Decided
from tests.transport.modelled_runs import Protocol
from tests.transport.modelled_worker import GROUP, INPUT, OUTPUT
from tests.transport.test_model_finds import FIRST, RAISING, Drawn, sent


@contextmanager
def decided(protocol: Protocol = RAISING) -> Iterator[Decided]:
    """The model with one worker at work, and nothing drawn."""
    model = Decided()
    model.begin(Identity.PRODUCER, "never", 1 << 40, True, protocol, 1 << 15, Drawn(None))
    try:
        yield model
    finally:
        model.close()


def arrive(model: Decided, *numbers: int) -> None:
    model._append([sent(number) for number in numbers], "none")
    model.go_on(2)


def commit_from_outside(model: Decided, offset: int) -> None:
    model.kafka.offsets[GROUP, INPUT, 0] = CommittedPosition(offset, "")


def passed(model: Decided) -> list[int]:
    return [int(record.value or b"-1") for record in model.kafka.logs[OUTPUT, 0].committed()]


def any_offset(
    spec: LaneSpec, state: PartitionState, committed: CommittedPosition | None, input_id: str, first: int | None
) -> int | None:
    if committed is not None and OURS.fullmatch(committed.metadata) is None:
        return committed.offset
    return resumption.agreed_position(spec, state, committed, input_id, first)


@pytest.mark.parametrize(("what", "came_out"), [(RESTORE, [1, 2, 3, 4, 5]), (ACCEPT, [1, 2, 3, 5])])
def test_an_offset_of_another_client_halts_until_it_is_decided(what: str, came_out: list[int]) -> None:
    with decided() as model:
        arrive(model, 1, 2, 3)
        model._stop(0)
        arrive(model, 4)
        commit_from_outside(model, 4)
        model.start(slot=0)
        arrive(model, 5)
        worker = model.workers[0]
        assert worker is not None
        assert worker.lane.status.halted == "ForeignOffset"
        assert passed(model) == [1, 2, 3]
        model._decide_now(what)
        model.go_on(60)
        assert passed(model) == came_out
        model.committed_is_what_the_oracle_says()


def test_without_the_look_at_who_committed_records_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_ratchet.transport.lane.agreed_position", any_offset)
    with decided() as model:
        arrive(model, 1, 2, 3)
        model._stop(0)
        arrive(model, 4)
        commit_from_outside(model, 4)
        model.start(slot=0)
        arrive(model, 5)
        assert passed(model) == [1, 2, 3, 5]
        with pytest.raises(AssertionError):
            model.committed_is_what_the_oracle_says()


@pytest.mark.parametrize("is_back_on", [True, False])
@pytest.mark.parametrize("fixed", [True, False])
def test_what_passes_again_is_counted(monkeypatch: pytest.MonkeyPatch, fixed: bool, is_back_on: bool) -> None:
    async def nothing(*_: Any, **__: Any) -> RepeatedCount:
        return RepeatedCount()

    if not fixed:
        monkeypatch.setattr(recounting, "count_passing", nothing)
    with decided() as model:
        arrive(model, 1, 2)
        model.policies.append(False)
        for worker in filter(None, model.workers):
            worker.policies.read()
        arrive(model, 3, 4, 4)
        model.policies += [True] if is_back_on else []
        if not fixed:
            with pytest.raises(AssertionError):
                model._decide_now(SET_BACK)
            return
        counted = model._decide_now(SET_BACK)
        assert counted is not None
        for worker in filter(None, model.workers):
            worker.policies.read()
        before = passed(model)
        model.go_on(60)
        again = [3, 4] if is_back_on else [1, 2, 3, 4, 4]
        assert (before, passed(model)) == ([1, 2, 3, 4, 4], [1, 2, 3, 4, 4, *again])
        assert counted.records == len(again)
        model.committed_is_what_the_oracle_says()


async def without_ends(cluster: Any, name: str, found: Collection[Hanging], connection: Hashable) -> list[Hanging]:
    return list(found)


@pytest.mark.parametrize("protocol", [FIRST, RAISING])
@pytest.mark.parametrize("fixed", [True, False])
def test_an_end_that_contradicts_a_recorded_outcome(
    monkeypatch: pytest.MonkeyPatch, protocol: Protocol, fixed: bool
) -> None:
    """Taken out: that it is refused. The next owner would abort the output of an input that is committed."""
    if not fixed:
        monkeypatch.setattr(hanging, "with_known_ends", without_ends)
    EVICTED_IN_ALL.clear()
    with decided(protocol) as model:
        worker = model.workers[0]
        assert worker is not None
        model.go_on(1)
        worker.leaderless_at_the_end = {(OUTPUT, 0)}
        worker.crash_at = ("fenced", 1)
        arrive(model, 1)
        assert model.kafka.left_open()
        worker.power_off()
        model._bury()
        model.kafka.without_leader.clear()
        model.start(slot=0)
        worker = model.workers[0]
        assert worker is not None
        worker.crash_at = ("owing", 1)  # it has recorded the outcome and has taken over
        model.go_on(60)
        assert model.workers[0] is None
        assert model.kafka.transactions["id"].state == "empty"
        model._end_what_is_open(commit=False)
        assert EVICTED_IN_ALL[REFUSED if fixed else ENDED] == 1
        model.start(slot=0)
        model.go_on(60)
        assert not model.kafka.left_open()
        assert passed(model) == ([1] if fixed else [])
        if not fixed:
            with pytest.raises(AssertionError):
                model.committed_is_what_the_oracle_says()
            return
        model.committed_is_what_the_oracle_says()
