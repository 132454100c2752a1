from __future__ import annotations

import ast
import inspect
import re
from itertools import product

import pytest

from kafka_ratchet.transport.transactions import producer
from kafka_ratchet.transport.transactions.states import State, transition

#                new   initialising  completing  ready  open  committing  spent  failed
TABLE = """
 new             -     yes           -           -      -     -           -      yes
 initialising    -     -             yes         yes    -     -           -      yes
 completing      -     yes           -           -      -     -           -      yes
 ready           -     yes           -           -      yes   -           -      yes
 open            -     yes           -           -      -     yes         -      yes
 committing      -     yes           -           yes    -     -           yes    yes
 spent           -     yes           -           -      -     -           -      yes
 failed          -     yes           -           -      -     -           -      yes
"""
ROWS = {name: cells for name, *cells in map(str.split, TABLE.strip().splitlines())}


@pytest.mark.parametrize(("state", "to"), list(product(State, repeat=2)))
def test_a_state_follows_another_or_is_refused(state: State, to: State) -> None:
    assert list(ROWS) == list(State)
    if ROWS[state][list(State).index(to)] == "yes":
        assert transition(state, to) is to
    else:
        with pytest.raises(ValueError, match=re.escape(f"in state {state} cannot become {to}")):
            transition(state, to)


def test_the_producer_changes_its_state_in_one_place() -> None:
    changed = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(inspect.getsource(producer)))
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        and any(
            isinstance(each, ast.Attribute) and each.attr == "state" and isinstance(each.ctx, ast.Store)
            for each in ast.walk(node)
        )
    ]
    assert changed == ["self.state = State.NEW", "self.state = transition(self.state, state)"]
