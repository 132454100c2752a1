"""A state that does not fit its changelog is discarded by an operator's decision alone."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kafka_ratchet.errors import StateAhead
from kafka_ratchet.transport.changelog import Changelog, StorelessReader
from kafka_ratchet.transport.owner import Decision, Owner

EARLIER, LATER = (Decision(f"2026-01-0{day}T00:00:00Z", "user", "resume", "known loss") for day in (1, 2))


def owner(*decisions: Decision) -> Owner:
    return Owner("app", "events", {}, {}, decisions)


class State(StorelessReader):
    changelog = "changes"
    position = 7

    def __init__(self, owner: Owner | None) -> None:
        self.owner = owner
        self.discards = 0

    def discard(self) -> None:
        self.discards += 1


@pytest.mark.parametrize(
    ("stored", "in_log", "is_discarded"),
    [
        (owner(), None, False),
        (owner(), owner(), False),
        (owner(EARLIER), owner(EARLIER), False),
        (owner(EARLIER), owner(EARLIER, LATER), True),
        (owner(), owner(LATER), True),
        (None, owner(LATER), True),
    ],
)
async def test_a_state_is_discarded_by_a_decision_that_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch, stored: Owner | None, in_log: Owner | None, is_discarded: bool
) -> None:
    async def newest() -> Owner | None:
        return in_log

    state = State(stored)
    changelog = Changelog(cast(Any, None), cast(Any, state), 0, "here")
    monkeypatch.setattr(changelog, "_owner_in_log", newest)
    if is_discarded:
        await changelog._discard_or_raise(StateAhead("lost its end"))
    else:
        with pytest.raises(StateAhead, match="lost its end"):
            await changelog._discard_or_raise(StateAhead("lost its end"))
    assert state.discards == is_discarded
