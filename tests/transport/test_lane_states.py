"""The states of a lane: which may follow which, in the table, in the lane and in the picture of docs/design.md."""

from __future__ import annotations

import ast
import re
from collections import deque
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_ratchet.errors import Aborted
from kafka_ratchet.transport import lane as lane_module
from kafka_ratchet.transport.delivery import Delivery, Output
from kafka_ratchet.transport.lane import Lane
from kafka_ratchet.transport.lane_spec import LEGAL, LaneSpec, LaneState, LaneStatus
from tests.transport.kafka_side import until

ROOT = Path(__file__).parents[2]
DESIGN = ROOT / "docs" / "design.md"

#            starting  restoring  running  retrying  halted  stopped
TABLE = """
 starting    yes       yes        -        yes       yes     yes
 restoring   -         -          yes      yes       yes     yes
 running     -         -          -        yes       yes     yes
 retrying    yes       -          -        -         yes     yes
 halted      yes       -          -        -         yes     yes
 stopped     -         -          -        -         -       -
"""
ROWS = {name: cells for name, *cells in map(str.split, TABLE.strip().splitlines())}


def diagram() -> str:
    """Mermaid's state diagram of the table of transitions."""
    arrows = [f"    {state} --> {to}" for state in LaneState for to in LaneState if to in LEGAL[state]]
    ends = [f"    {state} --> [*]" for state in LaneState if not LEGAL[state]]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {LaneStatus().state}", *arrows, *ends])


@pytest.mark.parametrize(("state", "to"), list(product(LaneState, repeat=2)))
def test_a_state_follows_another_or_is_refused(state: LaneState, to: LaneState) -> None:
    assert list(ROWS) == list(LaneState) == list(LEGAL)
    status = LaneStatus(state=state)
    if ROWS[state][list(LaneState).index(to)] == "yes":
        status.move(to)
        assert status.state is to
    else:
        with pytest.raises(ValueError, match=re.escape(f"in state {state} cannot become {to}")):
            status.move(to)
        assert status.state is state


def test_the_picture_in_the_design_is_made_from_the_table() -> None:
    pictures = re.findall(
        r"^```mermaid\n(stateDiagram-v2.*?)^```$", DESIGN.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert [picture.strip() for picture in pictures] == [diagram()]


def assigned_states() -> list[str]:
    """Assignments of a status's state in the product, also in one of several targets."""
    found = []
    for path in sorted([*(ROOT / "transport").rglob("*.py"), *(ROOT / "app").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr == "state" and isinstance(node.ctx, ast.Store):
                owner = ast.unparse(node.value)
                if path.name == "lane_spec.py" or owner.rpartition(".")[2] == "status":
                    found.append(f"{path.relative_to(ROOT)}: {ast.unparse(node)}")
    return found


def test_the_state_of_a_lane_changes_in_one_place() -> None:
    assert assigned_states() == ["transport/lane_spec.py: self.state"]


class StoppedState:
    """Table partition of a lane that never takes over."""

    changelog = "changelog"
    is_closed = False

    def rollback(self) -> None:
        """Nothing is pushed."""

    def close(self) -> None:
        self.is_closed = True


class Untouched:
    """Processor to which no batch comes."""

    async def process(self, delivery: Delivery) -> deque[Output]:
        raise AssertionError(delivery)


class BrokenLane(Lane):
    """Lane with a mistake of the program: each try fails before it has moved the state."""

    tries = 0

    async def _start(self) -> None:
        self.tries += 1
        raise Aborted("as if rolled back")


async def test_an_illegal_transition_halts_the_partition_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "PAUSE_FIRST_S", 0.0)
    state: Any = StoppedState()
    cluster: Any = SimpleNamespace(refresh=lambda: None)
    lane = BrokenLane(cluster, LaneSpec("in", 0, "out", "dead", "group", "id"), state, Untouched())
    lane.start()
    await until(lambda: lane.status.halted == "Unexpected", "the halt")
    assert (lane.status.state, lane.tries) == (LaneState.HALTED, 2)
    assert lane.status.error == "a lane in state retrying cannot become retrying"
    await lane.stop()
    assert (lane.status.state, lane.tries, state.is_closed) == (LaneState.STOPPED, 2, True)


class NoRollback(StoppedState):
    """Table partition with a mistake of the program: the first rollback fails."""

    rollbacks = 0

    def rollback(self) -> None:
        self.rollbacks += 1
        if self.rollbacks == 1:
            raise RuntimeError("not rolled back")


async def test_a_failure_between_two_tries_halts_the_partition_and_is_not_tried_again() -> None:
    state: Any = NoRollback()
    cluster: Any = SimpleNamespace(refresh=lambda: None)
    lane = BrokenLane(cluster, LaneSpec("in", 0, "out", "dead", "group", "id"), state, Untouched())
    lane.start()
    await until(lambda: lane.status.state is LaneState.HALTED, "the halt")
    assert (lane.status.error, lane.status.halted) == ("not rolled back", "Unexpected")
    assert (lane.tries, dict(lane.measures.halts)) == (1, {"Unexpected": 1})
    await lane.stop()
    assert (lane.status.state, state.is_closed) == (LaneState.STOPPED, True)


class NeverRolledBack(StoppedState):
    """Table partition with a mistake of the program: every rollback fails."""

    def rollback(self) -> None:
        raise RuntimeError("not rolled back")


async def test_a_state_that_is_not_rolled_back_is_closed_all_the_same() -> None:
    state: Any = NeverRolledBack()
    cluster: Any = SimpleNamespace(refresh=lambda: None)
    lane = BrokenLane(cluster, LaneSpec("in", 0, "out", "dead", "group", "id"), state, Untouched())
    lane.start()
    await until(lambda: lane.status.state is LaneState.HALTED, "the halt")
    with pytest.raises(RuntimeError, match="not rolled back"):
        await lane.stop()
    assert (lane.status.state, state.is_closed) == (LaneState.STOPPED, True)
