"""Partitions that no worker reports: the cause is named, and a restart of a worker names none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kafka_ratchet.app.status.group import Group
from kafka_ratchet.app.status.kafka_view import InputPartition
from kafka_ratchet.app.status.model import NO_KAFKA, UNSERVED, PartitionView, StreamView, merge
from kafka_ratchet.app.status.unserved import FORGOTTEN_AFTER_S, StandstillFinder, stall_of_unserved
from kafka_ratchet.transport.stalls import STALLED_AFTER_S, StallCause
from tests.app.worker.known_worker import settings_for

NOW_S = 1_000_000.0
EMPTY = Group("Empty")
STABLE = Group("Stable", ["http://w:1"], 1)
SILENT = {"http://w:1": "no answer in time"}


def view(*positions: InputPartition) -> StreamView:
    (stream,) = merge(settings_for("127.0.0.1:1"), {}, EMPTY, {"events": list(positions)}, {"events": "c"})
    return stream


def row(**changed: Any) -> PartitionView:
    return replace(view(InputPartition(0, 0, 5, None, 5)).partitions[0], **changed)


@pytest.mark.parametrize(
    ("given", "cause", "words"),
    [
        ((row(), EMPTY, {}), StallCause.NO_WORKER, "5 offsets wait, and no worker is in the group"),
        ((row(), STABLE, {}), StallCause.NO_WORKER, "no worker of the group's 1 has the partition"),
        (
            (row(), STABLE, SILENT),
            StallCause.WORKER_SILENT,
            "worker http://w:1 of the group does not answer: no answer",
        ),
        ((row(), Group("PreparingRebalance"), {}), StallCause.REBALANCE, "sharing out its partitions"),
        (
            (row(), Group("Stable", [], 1, strangers="a console consumer"), {}),
            StallCause.STRANGERS,
            "others use the group: a console consumer; no worker can join",
        ),
        ((row(state=NO_KAFKA), None, {}), StallCause.NO_ANSWER, "Kafka does not answer"),
        ((row(lag=None), None, {}, "the group 'shop' cannot be read"), StallCause.COORDINATOR, "'shop' cannot be read"),
        ((row(input_end=None, lag=None), EMPTY, {}), StallCause.NO_LEADER, "it has no leader"),
    ],
)
def test_a_partition_without_a_worker_names_its_cause(given: tuple[Any, ...], cause: StallCause, words: str) -> None:
    found = stall_of_unserved("orders", *given)
    assert found is not None
    assert (found[0], found[1].startswith("orders, partition 0: "), words in found[1]) == (cause, True, True)


@pytest.mark.parametrize(
    "given",
    [(row(lag=0), EMPTY, {}), (row(state="running"), STABLE, {}), (row(), None, {})],
)
def test_nothing_is_named_where_nothing_waits_or_a_worker_is_there(given: tuple[Any, ...]) -> None:
    assert stall_of_unserved("orders", *given) is None


def causes(unserved: StandstillFinder, stream: StreamView, now_s: float) -> list[str | None]:
    named = unserved.name(stream, EMPTY, {}, now_s)
    return [each.stalled.cause if each.stalled else None for each in named.partitions]


def test_a_first_look_names_it_at_once_and_a_restart_of_a_worker_does_not() -> None:
    waits = view(InputPartition(0, 0, 5, None, 5))
    served = replace(waits, partitions=[replace(each, state="running") for each in waits.partitions])
    assert waits.partitions[0].state == UNSERVED
    assert causes(StandstillFinder(), waits, NOW_S) == ["no-worker"]
    unserved = StandstillFinder()
    assert causes(unserved, served, NOW_S) == [None]
    assert causes(unserved, waits, NOW_S + 1) == [None]
    assert causes(unserved, served, NOW_S + 10) == [None]
    assert causes(unserved, waits, NOW_S + 20) == [None]
    assert causes(unserved, waits, NOW_S + 20 + STALLED_AFTER_S) == ["no-worker"]
    # A page that was closed for longer knows nothing.
    assert causes(unserved, served, NOW_S + 100) == [None]
    assert causes(unserved, waits, NOW_S + 101 + FORGOTTEN_AFTER_S) == ["no-worker"]


def test_a_partition_without_a_leader_has_a_row_and_no_lag() -> None:
    stream = view(InputPartition(0, 0, 5, None, 5), InputPartition(1, None, None, None))
    assert [(each.lag, each.input_end) for each in stream.partitions] == [(5, 5), (None, None)]
    assert causes(StandstillFinder(), stream, NOW_S) == ["no-worker", "no-leader"]
