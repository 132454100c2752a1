"""Partitions of the tests of tables/."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_ratchet.tables.partition import SequencePartition
from tests.clock import Clock
from tests.tables.worked_partition import partition


@pytest.fixture(params=[pytest.param(sys.maxsize, id="all in memory"), pytest.param(0, id="nothing kept in memory")])
def room(request: pytest.FixtureRequest) -> int:
    room: int = request.param
    return room


@pytest.fixture
def clock() -> Clock:
    """Return the clock of `state`; it stands still, so that no snapshot becomes due."""
    return Clock()


@pytest.fixture
def state(tmp_path: Path, room: int, clock: Clock) -> Iterator[SequencePartition]:
    opened = partition(tmp_path / "first", room=room, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def other(tmp_path: Path, room: int) -> Iterator[SequencePartition]:
    opened = partition(tmp_path / "other", room=room)
    yield opened
    opened.close()
