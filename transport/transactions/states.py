"""The states of a transactional producer, and which may follow which.

    NEW ──▶ INITIALISING ──▶ READY ──▶ OPEN ──▶ COMMITTING ──▶ READY ...
                │  ▲                                    └────▶ SPENT
                ▼  │
             COMPLETING

Every state may become FAILED. INITIALISING may follow every state but itself: whatever was open is ended by that.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """What a transactional producer is doing."""

    NEW = "new"
    """Nothing has been sent."""
    INITIALISING = "initialising"
    """It takes the transactional id over, which fences whoever had it."""
    COMPLETING = "completing"
    """It ends what an earlier owner's transaction has left open, and takes the id over again after that."""
    READY = "ready"
    """No transaction is open, and the next may begin."""
    OPEN = "open"
    """A transaction has begun and takes records."""
    COMMITTING = "committing"
    """The transaction takes nothing more. Until there is an answer, nobody knows how it ends."""
    SPENT = "spent"
    """Committed, and the id has to be initialised before the next transaction begins."""
    FAILED = "failed"
    """Something went wrong. What was open will be aborted, unless its end was asked for already."""


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
"""The states that may follow each."""


def transition(state: State, to: State) -> State:
    """The new state, which is `to`.

    Raises:
        ValueError: it may not follow. That is a mistake in the program, not something that Kafka can bring about.
    """
    if to not in LEGAL[state]:
        raise ValueError(f"a transactional producer that is {state} cannot become {to}")
    return to
