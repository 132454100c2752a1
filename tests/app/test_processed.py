"""Entries of a changelog that tell an idle partition from one with processed records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kafka_ratchet.app.processed import shows_work
from kafka_ratchet.errors import StateError
from kafka_ratchet.tables.edits import FORGET, FORGET_ALL, IMPORT, Edit
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from kafka_ratchet.tables.totals import PROGRESS, Progress
from kafka_ratchet.transport.owner import Decision, Owner

DECIDED = Owner("shop", "orders", {}, {}, (Decision("2026-11-30T00:00:00Z", "eve", "resume", "a test"),))


def entry(key: bytes, value: bytes | None) -> Any:
    parts = {"key": key, "value": value, "topic": "changelog", "partition": 3, "offset": 7}
    return SimpleNamespace(**{name: lambda part=part: part for name, part in parts.items()})


def edit(kind: str) -> tuple[bytes, bytes]:
    return Edit("id", kind, "2026-11-30T00:00:00Z", "eve", "a test", 0).pack(0)


@pytest.mark.parametrize(
    ("key", "value", "shows"),
    [
        (*Owner("shop", "orders", {}, {}).pack(), False),
        (*DECIDED.pack(), True),
        (PROGRESS, Progress(40, 0, 0, 0).pack(), False),
        (PROGRESS, Progress(41, 0, 1, 0).pack(), True),
        (*PolicyInterval(0, False, 0, 0, 2, 0).pack(), False),
        (*PolicyInterval(0, False, 0, 5, 2, 5).pack(), True),
        (*edit(FORGET), False),
        (*edit(IMPORT), True),
        (*FORGET_ALL, False),
        (b"t\6totals1", b"5", False),  # a stream's timer may have written it; work shows in the progress
        (b"t\6totals1", None, False),
        (b"iname", b"5", True),
    ],
)
def test_an_entry_shows_whether_its_partition_was_idle(key: bytes, value: bytes | None, shows: bool) -> None:
    assert shows_work(entry(key, value)) == shows


def test_an_unreadable_entry_is_named() -> None:
    with pytest.raises(StateError, match=r"changelog, partition 3, offset 7: a progress entry has 1 bytes"):
        shows_work(entry(PROGRESS, b"\1"))
