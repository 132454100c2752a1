"""The model of the commit path shows each of these bugs when its fix is taken out: things that are not what they were.

With the fixes, test_commit_path.py takes the same things away and nothing comes out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from kafka_ratchet.errors import ChangelogLost, ForeignOffset, PositionLost
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.tables.recovery import Ownership
from kafka_ratchet.transport.client.cluster import CommittedPosition
from kafka_ratchet.transport.client.topic_id import NO_EPOCH
from kafka_ratchet.transport.lane import Lane
from kafka_ratchet.transport.lane_spec import LaneSpec
from kafka_ratchet.transport.move import PartitionMove
from kafka_ratchet.transport.owner import Decision, Owner
from kafka_ratchet.transport.partition_state import PartitionState
from kafka_ratchet.transport.resumption import agreed_position
from tests.transport import modelled_taken_away as model
from tests.transport.memory_link import Link
from tests.transport.modelled_commit_path import CHECKS
from tests.transport.modelled_worker import CHANGELOG, DEAD, GROUP, INPUT, OUTPUT, run
from tests.transport.test_model_finds import FIRST, one_lane, sent

RUNS = 1_000
"""Most runs: the first failure ends them. Of 120 searches the longest took 43 runs, so 40 were not enough every time:
Hypothesis draws from what the modules loaded so far contain, and a derandomized search is another one in each order of
the tests."""
Patch = pytest.MonkeyPatch


def topics_by_name(patch: Patch) -> None:
    """A topic is what is called so."""
    for module in ("kafka_ratchet.transport.lane", "kafka_ratchet.transport.changelog"):
        patch.setattr(f"{module}.id_text", lambda topic_id: "-" * 22)


def no_epoch_of_the_input(patch: Patch) -> None:
    """The log of the input is what is there."""
    fetch = Lane._fetch

    async def without(lane: Lane, position: int, epoch: int) -> Any:
        return await fetch(lane, position, NO_EPOCH)

    patch.setattr(Lane, "_fetch", without)


def no_epoch_of_the_changelog(patch: Patch) -> None:
    """The log of the changelog is what is there."""
    patch.setattr(SequencePartition, "sighting", property(lambda state: None))


def a_truncation_is_not_kept(patch: Patch) -> None:
    """A halt lasts for as long as the broker sees what the log has lost."""
    compare = Lane._compare

    async def without(lane: Lane) -> Any:
        lane._truncated = ""
        return await compare(lane)

    patch.setattr(Lane, "_compare", without)


def begin_at_the_earliest(patch: Patch) -> None:
    """Begin as a consumer with auto.offset.reset=earliest does."""
    fetch = Lane._fetch

    async def reset(lane: Lane, position: int, epoch: int) -> Any:
        try:
            return await fetch(lane, position, epoch)
        except PositionLost:
            start = lane.cluster.kafka.logs[INPUT, 0].start  # type: ignore[attr-defined]
            return await fetch(lane, start, NO_EPOCH)

    patch.setattr(Lane, "_fetch", reset)


def whoever_it_belongs_to(patch: Patch) -> None:
    """The owner entry is not compared."""
    patch.setattr(Owner, "differences", lambda before, now: [])


def offsets_mean_nothing(patch: Patch) -> None:
    """Go on from a group offset that is ahead of the changelog."""

    def trusting(
        spec: LaneSpec,
        state: PartitionState,
        committed: CommittedPosition | None,
        input_id: str,
        first: int | None = None,
    ) -> int | None:
        try:
            return agreed_position(spec, state, committed, input_id, first)
        except ChangelogLost:
            return committed.offset if committed is not None else None

    patch.setattr("kafka_ratchet.transport.lane.agreed_position", trusting)


def offsets_of_others(patch: Patch) -> None:
    """Go on from an offset that another client has committed."""

    def trusting(
        spec: LaneSpec,
        state: PartitionState,
        committed: CommittedPosition | None,
        input_id: str,
        first: int | None = None,
    ) -> int | None:
        try:
            return agreed_position(spec, state, committed, input_id, first)
        except (ForeignOffset, ChangelogLost):
            return committed.offset if committed is not None else None

    patch.setattr("kafka_ratchet.transport.lane.agreed_position", trusting)


FOUND: list[tuple[Callable[[Patch], None], str]] = [
    (topics_by_name, INPUT),
    (topics_by_name, OUTPUT),
    (topics_by_name, model.FILLED),
    (no_epoch_of_the_input, model.INPUTS_END),
    (no_epoch_of_the_changelog, model.CHANGELOGS_END),
    (a_truncation_is_not_kept, model.EVIDENCE),
    (begin_at_the_earliest, model.UNREAD),
    (whoever_it_belongs_to, model.RULE),
    (whoever_it_belongs_to, model.APP),
    (offsets_mean_nothing, CHANGELOG),
    (offsets_of_others, model.FOREIGN),
]


@pytest.mark.matrix
@pytest.mark.parametrize(("take_out", "what"), FOUND, ids=[f"{fix.__name__}-{what}" for fix, what in FOUND])
def test_what_is_taken_away_is_seen_only_with_its_fix(
    monkeypatch: pytest.MonkeyPatch, take_out: Callable[[Patch], None], what: str
) -> None:
    # A store of a stream with bounds is rebuilt when it was away for long, and that is what it is here.
    chosen = {"kinds": st.just(what), "bounds_of_a_run": st.none()}
    machine = type("TakenAwayNow", (model.TakenAway,), chosen)
    take_out(monkeypatch)
    checks = {**CHECKS, "phases": (Phase.generate,), "derandomize": True, "print_blob": False}
    with pytest.raises(AssertionError) as found:
        run_state_machine_as_test(machine, settings=settings(max_examples=RUNS, **checks))
    # It went on, or what came out was not what had been there.
    assert {"_stands_still", "committed_is_what_the_oracle_says", "teardown"} & {each.name for each in found.traceback}


@pytest.mark.parametrize("fixed", [True, False])
def test_a_store_of_before_a_decision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fixed: bool) -> None:
    """Taken out: that it is rebuilt.

    It ended well before its log was looked at, knows of an event that the changelog has lost, and by its position it
    could go on. A person has decided that this event is read again.
    """
    if not fixed:
        monkeypatch.setattr(Ownership, "is_decided_in", lambda ownership, batch: False)
    monkeypatch.setattr(SequencePartition, "sighting", property(lambda state: None))
    state = SequencePartition(tmp_path / "store", CHANGELOG, 0, Identity.PRODUCER, 1_000_000)

    async def decide(move: PartitionMove, reason: str) -> None:
        await move.take_over()
        await move.read()
        assert state.owner is not None
        decision = Decision("2026-11-22T00:00:00Z", "me", "from 2", reason)
        await move.write(msgspec.structs.replace(state.owner, decisions=(decision,)), 2, forget=False)

    with one_lane(FIRST) as path:
        log = path.kafka.logs[CHANGELOG, 0]
        link: Any = Link(path.kafka)
        move = PartitionMove(
            link,
            state,
            topic=INPUT,
            partition=0,
            app="app",
            group=GROUP,
            transactional_id="id",
            writes=(OUTPUT, DEAD, CHANGELOG),
        )
        path._append([sent(1), sent(2)], "none")
        path.go_on(2)
        before = log.end
        path._append([sent(3)], "none")
        path.go_on(2)
        path._stop(0)
        end = log.end
        log.truncate(before)
        run(path.loop, decide(move, "first"))
        assert log.end >= end
        run(path.loop, decide(move, "once more, behind all that the store stands for"))
        move.close()
        path.start(slot=0)
        path.go_on(60)
        came_out = path.kafka.logs[OUTPUT, 0].committed()
        assert came_out == [sent(number).record for number in ((1, 2, 3, 3) if fixed else (1, 2, 3))]
