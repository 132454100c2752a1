"""Start of a changelog's replay, and its totals at the end."""

from __future__ import annotations

import pytest

from kafka_ratchet.errors import StateError
from kafka_ratchet.tables.eviction import NULLS_LAST_S
from kafka_ratchet.tables.recovery import Replay, is_too_old, read_totals
from kafka_ratchet.tables.totals import EVICTED, PROGRESS, EvictedTotals, Progress
from kafka_ratchet.transport.batch.encoding import pack_entries


def test_a_replay_knows_how_far_the_state_was_behind() -> None:
    replay = Replay()
    replay.begin(7, 1_000)
    assert replay.is_earlier
    assert replay.end(1_500) == 500
    assert not replay.is_earlier


def test_one_that_was_cut_short_counts_from_where_it_began() -> None:
    replay = Replay()
    replay.begin(7, 1_000)
    replay.begin(9, 1_400)
    assert replay.end(1_500) == 500
    replay.begin(12, 1_500)
    assert replay.end(1_501) == 1


def test_one_that_was_cut_short_counts_from_there_after_a_restart_as_well() -> None:
    replay = Replay()
    replay.opened(7, 0)
    replay.begin(7, 1_000)
    assert replay.earlier == 1_000
    again = Replay()
    again.opened(9, replay.earlier)
    again.begin(9, 1_400)
    assert again.end(1_500, 12) == 500
    assert again.earlier == again.unproven == 1_000
    third = Replay()
    third.opened(12, again.earlier)
    third.begin(12, 1_500)
    assert third.end(1_500, 12) == 500  # it brought nothing, and proves nothing
    assert third.unproven == 1_000


def test_an_empty_state_is_never_behind() -> None:
    replay = Replay()
    replay.begin(0, 0)
    assert not replay.is_earlier
    assert replay.end(10**9) == 0
    replay.begin(7, 1_000)
    replay.opened(0, 0)  # its store was damaged, and is begun anew
    replay.begin(0, 0)
    assert replay.end(10**9) == 0


def test_evictions_are_known_for_as_long_as_kafka_keeps_nulls() -> None:
    assert [is_too_old(NULLS_LAST_S), is_too_old(NULLS_LAST_S + 1)] == [False, True]


def test_totals_are_those_of_the_last_entries() -> None:
    before = Progress(1, 1, 0, 0), EvictedTotals(1, 0)
    done, gone = Progress(9, 5, 3, 1, 2), EvictedTotals(4, 2)
    batch = pack_entries("changelog", 3, [(PROGRESS, done.pack()), (EVICTED, gone.pack()), (PROGRESS, b"\xff")])
    assert read_totals(batch, -1, -1, before) == before
    assert read_totals(batch, 0, -1, before) == (done, before[1])
    assert read_totals(batch, 0, 1, before) == (done, gone)
    with pytest.raises(
        StateError, match=r"changelog, partition 3, offset \d+: a progress entry has 1 bytes and version ff"
    ):
        read_totals(batch, 2, -1, before)
