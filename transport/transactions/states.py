"""States of a transactional producer, and their legal order.

    NEW ──▶ INITIALISING ──▶ READY ──▶ OPEN ──▶ COMMITTING ──▶ READY ...
                │  ▲                                    └────▶ SPENT
                ▼  │
             COMPLETING

Every state may become FAILED. INITIALISING may follow every state but itself, and ends any open transaction.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """State of a transactional producer."""

    NEW = "new"
    """Nothing has been sent."""
    INITIALISING = "initialising"
    """Taking over the transactional id, which fences the former owner."""
    COMPLETING = "completing"
    """Ending the open transaction of an earlier owner; the id is taken over again after that."""
    READY = "ready"
    """No transaction is open, and the next may begin."""
    OPEN = "open"
    """A transaction has begun and takes records."""
    COMMITTING = "committing"
    """Ending the transaction, which accepts no more records. Until Kafka answers, its outcome is unknown."""
    SPENT = "spent"
    """Committed; the id has to be initialised again before the next transaction."""
    FAILED = "failed"
    """Unusable after an error; only `initialise` continues. An open transaction will be aborted, unless its end was
    requested already."""


LEGAL: Final = {
    State.NEW: {State.INITIALISING, State.FAILED},
    State.INITIALISING: {State.COMPLETING, State.READY, State.FAILED},
    State.COMPLETING: {State.INITIALISING, State.FAILED},
    State.READY: {State.OPEN, State.INITIALISING, State.FAILED},
    State.OPEN: {State.COMMITTING, State.INITIALISING, State.FAILED},
    State.COMMITTING: {State.READY, State.SPENT, State.INITIALISING, State.FAILED},
    State.SPENT: {State.INITIALISING, State.FAILED},
    State.FAILED: {State.INITIALISING, State.FAILED},  # several requests under way at once may fail, one by one
}
"""Legal successors of each state."""


def transition(state: State, to: State) -> State:
    """Return the new state `to`, if the transition is legal.

    Raises:
        ValueError: `to` may not follow `state`; an error in Ratchet.
    """
    if to not in LEGAL[state]:
        raise ValueError(f"a transactional producer in state {state} cannot become {to}")
    return to
