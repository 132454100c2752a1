"""Bounds: who is forgotten, in the transaction that decides it, and everywhere alike."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.tables import eviction
from kafka_ratchet.tables.eviction import EvictionLimits
from kafka_ratchet.tables.map.map import LastSequences
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.tables.store import Store
from kafka_ratchet.tables.totals import EvictedTotals
from kafka_ratchet.tables.values.table import Table
from tests.clock import SAVES_AT_ONCE
from tests.tables.bounded_partition import CHANGELOG, EVERYTHING, NAMES, NOTHING, Bounded, record
from tests.tables.test_edits import asked


@pytest.fixture(params=[pytest.param(EVERYTHING, id="all in memory"), pytest.param(NOTHING, id="nothing kept")])
def room(request: pytest.FixtureRequest) -> int:
    room: int = request.param
    return room


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[Bounded]]:
    all_made: list[Bounded] = []
    yield all_made
    for one in all_made:
        one.state.close()


def test_who_was_quiet_for_too_long_goes_and_its_duplicates_pass(
    tmp_path: Path, made: list[Bounded], room: int
) -> None:
    made.append(one := Bounded(tmp_path / "0", EvictionLimits(inactive_s=80), room))
    assert one.work(record(b"i", 5), record(b"c", 5)) == ([0, 0], [])
    assert one.work(record(b"c", 6), after_s=80 + 10) == ([0], [])  # an eighth may pass without being written down
    assert one.work(record(b"c", 7), after_s=1) == ([0], [b"i"])
    assert (one.known(), len(one.state), one.state.evicted) == ({b"c": 7}, 1, EvictedTotals(1, 0))
    assert one.work(record(b"i", 5), record(b"i", 5)) == ([0, 1], [])
    assert one.known() == {b"c": 7, b"i": 5}


def test_for_how_long_an_identity_was_recognised(tmp_path: Path, made: list[Bounded]) -> None:
    made.append(one := Bounded(tmp_path / "0", EvictionLimits(inactive_s=80)))
    assert one.state.recognised_for_s == 80
    one.work(record(b"i", 5), record(b"c", 5))
    assert one.work(record(b"i", 6), after_s=91) == ([0], [b"c"])
    one.crash()
    assert one.state.recognised_for_s == 80

    made.append(two := Bounded(tmp_path / "1", EvictionLimits(2, 80)))
    two.work(record(b"i", 5), record(b"c", 5))
    two.work(record(b"i", 6), after_s=40)
    two.judge(record(b"e", 1))
    two.now_s += 10
    assert two.changes()[2] == [b"c"]
    two.state.rollback()
    assert two.state.recognised_for_s == 80
    two.input -= 1
    assert two.work(record(b"e", 1)) == ([0], [b"c"])
    # Quiet for 50 s; of these, 10 may have had duplicates that were not written down.
    assert two.state.recognised_for_s == 40
    assert two.work(record(b"p", 1), after_s=5) == ([0], [b"i"])
    assert two.state.recognised_for_s == 5
    two.crash()
    assert two.state.recognised_for_s is None  # what was displaced before this life of the worker, nobody knows


def test_a_duplicate_is_activity_after_a_crash_too(tmp_path: Path, made: list[Bounded], room: int) -> None:
    made.append(one := Bounded(tmp_path / "0", EvictionLimits(inactive_s=80), room))
    one.work(record(b"i", 5), record(b"c", 5))
    for gone in ([], [b"c"], [], []):
        assert one.work(record(b"i", 5), after_s=79) == ([1], gone)
        one.crash()
    assert one.known() == {b"i": 5}
    before = one.end
    assert one.work(record(b"i", 5), after_s=9) == ([1], [])
    assert one.end == before + 1  # progress alone: it was heard of less than ten seconds ago


def test_after_a_long_silence_a_duplicate_keeps_its_identity(tmp_path: Path, made: list[Bounded], room: int) -> None:
    made.append(one := Bounded(tmp_path / "0", EvictionLimits(inactive_s=80), room))
    one.work(record(b"i", 5), record(b"c", 5))
    assert one.work(record(b"i", 5), after_s=3_600) == ([1], [b"c"])
    one.crash()
    assert one.work(record(b"e", 1), after_s=80) == ([0], [])
    assert one.known() == {b"i": 5, b"e": 1}


def test_nobody_is_quiet_while_there_is_input_to_read(tmp_path: Path, made: list[Bounded], room: int) -> None:
    """An outage of the worker: the records of those who seem to be quiet are waiting."""
    made.append(one := Bounded(tmp_path / "0", EvictionLimits(inactive_s=80), room))
    one.work(record(b"i", 5), record(b"c", 5))
    one.now_s += 3_600
    one.judge(record(b"e", 1))
    assert one.commit(waits_s=None) == []
    # What came since then waits: of the two, one was quiet before that already.
    one.judge(record(b"i", 5))
    assert one.commit(waits_s=3_520) == []
    assert one.commit(waits_s=3_500) == [b"c"]


def test_the_quietest_goes_where_there_are_too_many(tmp_path: Path, made: list[Bounded], room: int) -> None:
    made.append(one := Bounded(tmp_path / "0", EvictionLimits(most=3), room))
    for name in (b"i", b"c", b"e"):
        assert one.work(record(name, 1), after_s=601) == ([0], [])
    assert one.work(record(b"i", 1), after_s=601) == ([1], [])
    assert one.work(record(b"p", 1), after_s=1) == ([0], [b"c"])
    assert one.work(record(b"e", 1), record(b"", 1), after_s=1) == ([1, 0], [b"i"])  # not who has a record in it
    assert (len(one.state), one.state.evicted) == (3, EvictedTotals(0, 2))
    # Nobody is forgotten in the transaction that has met it.
    assert set(one.work(*(record(name, 2) for name in NAMES[-9:]), after_s=1)[1]) == {b"p", b"e", b""}
    assert len(one.state) == 9
    assert len(one.work(record(NAMES[-1], 3))[1]) == 6
    assert len(one.state) == 3


def test_who_is_lowered_is_not_displaced_by_the_same_transaction(
    tmp_path: Path, made: list[Bounded], room: int
) -> None:
    """A person's request is activity. So there may be too many until the next transaction, as with new names."""
    made.append(one := Bounded(tmp_path / "0", EvictionLimits(most=1), room))
    assert one.work(record(b"i", 9), record(b"c", 9), record(b"e", 9)) == ([0, 0, 0], [])
    one.now_s += 601
    one.state.forget([asked(1, b"i", 6), asked(2, b"c", 1)], one.input)
    assert one.commit() == [b"e"]
    assert one.known() == {b"i": 6, b"c": 1}
    assert one.work(record(b"c", 2), after_s=1) == ([0], [b"i"])


def test_a_lost_transaction_evicts_nobody(tmp_path: Path, made: list[Bounded], room: int) -> None:
    made.append(one := Bounded(tmp_path / "0", EvictionLimits(most=2, inactive_s=80), room))
    one.work(record(b"i", 5), record(b"c", 5))
    one.now_s += 91
    for _ in range(2):
        begun = one.input
        assert one.judge(record(b"e", 1), record(b"p", 1), record(b"c", 5)) == [0, 0, 1]
        assert one.changes()[2] == [b"i"]
        assert one.state.last(b"i") == (5, -1)  # in the open transaction
        one.state.rollback()
        one.input = begun
        assert one.state.last(b"i") == (5, 5)
    assert (one.known(), len(one.state), one.state.evicted) == ({b"i": 5, b"c": 5}, 2, EvictedTotals())
    one.crash()
    assert (one.known(), len(one.state), one.state.evicted) == ({b"i": 5, b"c": 5}, 2, EvictedTotals())


def test_store_standby_and_changelog_forget_alike(tmp_path: Path, made: list[Bounded], room: int) -> None:
    made.append(one := Bounded(tmp_path / "0", EvictionLimits(inactive_s=80), room))
    one.work(*(record(name, 1) for name in NAMES))
    standby = one.another(tmp_path / "standby")
    one.work(record(b"i", 2), after_s=50)
    one.work(record(b"c", 2), after_s=50)
    one.restore(standby)
    for state in (one.state, standby):
        assert one.known(state) == {b"i": 2, b"c": 2}
        assert (len(state), state.evicted) == (2, EvictedTotals(len(NAMES) - 2, 0))
        state.close()
        with_nothing_else = Store(state.path)
        assert sorted(key for key, _ in with_nothing_else.entries()) == [b"ic", b"ii"]
        assert with_nothing_else.stands_for == (one.end, 2, one.now_s)
        with_nothing_else.close()
    one.open()
    assert (one.known(), len(one.state), one.state.evicted) == ({b"i": 2, b"c": 2}, 2, EvictedTotals(len(NAMES) - 2, 0))


def test_who_is_evicted_while_the_store_is_loaded_does_not_come_back(
    tmp_path: Path, made: list[Bounded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_ratchet.tables.known.LOAD_AT_ONCE", 0)
    monkeypatch.setattr("kafka_ratchet.tables.known.LOAD_ENTRIES", 3)
    monkeypatch.setattr("kafka_ratchet.tables.map.slots.WASTE_LEAST", 0)
    made.append(one := Bounded(tmp_path / "0", EvictionLimits(inactive_s=80)))
    one.work(*(record(name, 1) for name in NAMES))
    one.crash()
    began_with_rest = one.state.known.has_rest
    assert began_with_rest
    assert set(one.work(record(b"i", 2), after_s=91)[1]) == set(NAMES) - {b"i"}
    for sequence in range(3, 20):
        one.work(record(b"i", sequence))
        assert len(one.state) == 1
    assert not one.state.known.has_rest
    assert one.known() == {b"i": 19}


@pytest.mark.parametrize("waste", [0, 1 << 30])
def test_a_map_gives_up_the_slots_of_who_is_gone(
    tmp_path: Path, made: list[Bounded], monkeypatch: pytest.MonkeyPatch, waste: int
) -> None:
    monkeypatch.setattr("kafka_ratchet.tables.map.slots.WASTE_LEAST", waste)
    made.append(one := Bounded(tmp_path / "0", EvictionLimits(inactive_s=80)))
    many = [b"%d-" % n + b"x" * 100 for n in range(6_000)]
    one.work(*(record(name, 1) for name in many))
    before = one.state.known.map.size
    assert sorted(one.work(record(b"i", 2), after_s=91)[1]) == sorted(many)
    one.work(record(b"i", 3))
    assert (len(one.state), one.known()) == (1, {b"i": 3})
    assert (one.state.known.map.size < before / 2) == (waste == 0)
    assert one.work(record(b"c", 1), record(b"i", 3))[0] == [0, 1]


def test_what_one_transaction_evicts_is_bounded(
    tmp_path: Path, made: list[Bounded], room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "EVICT_MOST", 4)
    monkeypatch.setattr(eviction, "SWEEP_ENTRIES", 4)
    made.append(one := Bounded(tmp_path / "0", EvictionLimits(most=26, inactive_s=80), room))
    one.work(*(record(name, 1) for name in NAMES))
    one.now_s += 91
    sizes = [len(one.work(record(b"i", n))[1]) for n in range(2, 30)]
    assert max(sizes) == 4
    assert (one.known(), sum(sizes)) == ({b"i": 29}, len(NAMES) - 1)
    # With fewer allowed than there are, what is new comes on top, so that they do not become more.
    one.work(*(record(name, 40) for name in NAMES))
    one.bounds = EvictionLimits(most=10)
    one.crash()
    sizes = [len(one.work(record(b"new-%d" % n, 1))[1]) for n in range(6)]
    assert sum(sizes) == 22
    assert max(sizes) <= 5


def test_a_store_without_times_is_rebuilt_when_bounds_come_and_serves_when_they_go(
    tmp_path: Path, made: list[Bounded], room: int
) -> None:
    made.append(one := Bounded(tmp_path / "0", None, room))
    one.work(record(b"i", 1), record(b"c", 1))
    one.work(record(b"c", 2), after_s=60)
    one.bounds = EvictionLimits(inactive_s=80)
    with capture_logs() as lines:
        one.crash()
    assert [line["event"] for line in lines] == [
        "the local store has no times of activity, which the stream needs; it is rebuilt from the changelog"
    ]
    # The changelog knew: b"i" was active 91 seconds ago, b"c" 31.
    assert one.work(record(b"e", 1), after_s=31) == ([0], [b"i"])
    one.bounds = None
    with capture_logs() as lines:
        one.crash()
    assert (lines, one.known(), len(one.state)) == ([], {b"c": 2, b"e": 1}, 2)
    one.work(record(b"c", 3), after_s=1_000)
    one.crash()
    assert one.known() == {b"c": 3, b"e": 1}


@pytest.mark.parametrize("before", [None, EvictionLimits(inactive_s=80)], ids=["never", "on, and off again"])
def test_a_store_of_a_stream_with_tables_is_rebuilt_when_bounds_come(
    tmp_path: Path, made: list[Bounded], room: int, before: EvictionLimits | None
) -> None:
    """A stream with tables records the time of its newest entry, with or without bounds."""
    made.append(one := Bounded(tmp_path / "0", before, room, table=Table("t", default=int)))
    one.work(record(b"i", 1), record(b"e", 1))
    one.bounds = None
    with capture_logs() as lines:
        one.crash()
    one.work(record(b"c", 1))
    one.bounds = EvictionLimits(inactive_s=80)
    assert not lines
    with capture_logs() as lines:
        one.crash()
    assert [line["event"] for line in lines] == [
        "the local store has no times of activity, which the stream needs; it is rebuilt from the changelog"
    ]
    assert one.work(record(b"e", 1), after_s=1) == ([1], [])
    assert one.work(record(b"c", 1), record(b"i", 1), after_s=1) == ([1, 1], [])
    one.state.close()
    with capture_logs() as lines:
        one.open()
    assert not lines


def test_times_of_another_position_are_none(tmp_path: Path, made: list[Bounded], room: int) -> None:
    """A version that does not know the marker leaves it as it was."""
    made.append(one := Bounded(tmp_path / "0", EvictionLimits(inactive_s=80), room))
    one.work(record(b"i", 1))
    one.state.close()
    store = Store(one.folder)
    marker = store.get(b"a")
    assert marker is not None
    found = [store.is_timed]
    for entries in ([], [(b"a", marker)]):
        store.write(entries, one.end + 1, 1)
        found.append(store.is_timed)
    assert found == [True, False, False]
    store.close()
    one.open()
    assert one.known() == {b"i": 1}


def test_a_store_older_than_nulls_last_is_rebuilt(tmp_path: Path, made: list[Bounded], room: int) -> None:
    made.append(one := Bounded(tmp_path / "0", EvictionLimits(inactive_s=80), room))
    one.work(record(b"i", 9), record(b"c", 1))
    stale = one.another(tmp_path / "stale")
    stale.close()
    one.work(record(b"c", 2), after_s=91)
    one.work(record(b"c", 3), after_s=24 * 3600)
    # Kafka has compacted the changelog: the null for b"i" is gone, and so is all that was written over.
    begin, (added, end, _) = one.end, one.changes()
    one.log, one.end = one.log + added, end
    one.state.committed(end)
    kept = one.since(begin)
    assert [kept.key(i) for i in range(kept.count)] == [b"p"]
    last_c = one.since(0)
    at = [i for i in range(last_c.count) if last_c.key(i) == b"ic"][-1]
    one.log = read_from(one.log, int(last_c.offsets[at]) - 1)
    with capture_logs() as lines:
        again = one.another(tmp_path / "stale")
    assert lines[0]["behind_s"] == 24 * 3600 + 91
    assert (one.known(again), len(again)) == ({b"c": 3}, 1)
    again.close()


@pytest.mark.parametrize("bounds", [EvictionLimits(inactive_s=80), None])
def test_a_store_whose_replay_was_cut_short_is_as_old_as_before_it(
    tmp_path: Path, made: list[Bounded], room: int, bounds: EvictionLimits | None
) -> None:
    """The worker that replays has the bounds, or none any more."""
    made.append(one := Bounded(tmp_path / "0", EvictionLimits(inactive_s=80), room))
    one.work(record(b"i", 9), record(b"c", 1))
    one.bounds = bounds
    one.another(tmp_path / "stale").close()
    one.work(record(b"c", 2), after_s=91)
    one.work(record(b"c", 3), after_s=24 * 3600)
    where = tmp_path / "stale", CHANGELOG, 0, Identity.KEY, 1 << 20
    stale = SequencePartition(*where, lambda: room, bounds, one.clock)
    stale.open()
    stale.restoring()
    entries = one.since(stale.position)
    # Kafka has compacted the changelog: the null for b"i" is gone.
    stale.apply(entries.only(np.array([entries.value(i) is not None for i in range(entries.count)])))
    assert one.known(stale) == {b"i": 9, b"c": 3}
    stale.close()
    again = one.another(tmp_path / "stale")
    assert one.known(again) == {b"c": 3}
    again.close()


@pytest.mark.parametrize("bounds", [EvictionLimits(inactive_s=80), None])
def test_a_lane_that_starts_again_twice_keeps_its_store(
    tmp_path: Path, made: list[Bounded], room: int, bounds: EvictionLimits | None
) -> None:
    """Each time it reads entries of its own that it did not know to be committed."""
    made.append(one := Bounded(tmp_path / "0", bounds, room))
    one.work(record(b"i", 1))
    for sequence in (2, 3, 4):
        one.judge(record(b"i", sequence))
        added, one.end, _ = one.changes()
        one.log += added
        one.state.rollback()
        assert 0 < one.state.position < one.end
        with capture_logs() as lines:
            one.restore(one.state)
        assert (lines, one.known()) == ([], {b"i": sequence})
        one.work(record(b"i", sequence), after_s=1)


def read_from(log: bytes, offset: int) -> bytes:
    """The batches from the one that begins at an offset."""
    at = 0
    while struct.unpack_from(">q", log, at)[0] < offset:
        at += 12 + int(struct.unpack_from(">i", log, at + 8)[0])
    return log[at:]


def test_evictions_are_told_together_and_names_cannot_hurt(tmp_path: Path, made: list[Bounded]) -> None:
    names = [b"\x1b[2J\r\n", b"<script>", b"\xff" * 1_000, b"d", b"e", b"f"]
    made.append(one := Bounded(tmp_path / "0", EvictionLimits(most=1), step_s=0.0))
    with capture_logs() as lines:
        for n, name in enumerate(names):
            one.work(record(name, n), after_s=1)
        one.state.close()
    told = [line for line in lines if line["event"] == "identities evicted"]
    assert [(line["displaced"], line["inactive"], line["partition"]) for line in told] == [(1, 0, 0), (4, 0, 0)]
    assert told[0]["some"] == [r"b'\x1b[2J\r\n'"]
    assert told[1]["some"] == ["b'<script>'", repr(b"\xff" * 60), "b'd'"]


class Plain:
    """Ten obvious lines: sequences and the last activity of each name, as far as the changelog tells it."""

    def __init__(self, bounds: EvictionLimits) -> None:
        self.bounds = bounds
        self.last: dict[bytes, int] = {}
        self.active_s: dict[bytes, int] = {}
        self.written_s: dict[bytes, int] = {}
        self.gone = 0

    def commit(self, judged: list[tuple[bytes, int]], now_s: int, gone: list[bytes], *, waits_s: int | None) -> None:
        active = {name for name, _ in judged}
        for name, sequence in judged:
            if sequence > self.last.get(name, -1):
                self.last[name], self.written_s[name] = sequence, now_s
        for name in active:
            self.active_s[name] = now_s
            if now_s - self.written_s[name] > self.bounds.refresh_s:
                self.written_s[name] = now_s
        most, inactive_s = self.bounds
        quiet: set[bytes] = set()
        if inactive_s and waits_s is not None:
            limit = inactive_s + self.bounds.refresh_s
            quiet = {name for name, seen in self.written_s.items() if now_s - waits_s - seen > limit}
            assert all(now_s - waits_s - self.active_s[name] > inactive_s for name in quiet)
        rest = sorted(self.written_s.keys() - quiet - active, key=self.written_s.__getitem__)
        too_many = max(0, len(self.last) - len(quiet) - most) if most else 0
        displaced = set(gone) - quiet
        assert len(gone) == len(set(gone))
        assert quiet <= set(gone)
        assert len(displaced) == min(too_many, len(rest))
        # The quietest, whoever of those that were quiet for equally long.
        expected = sorted(self.written_s[name] for name in rest)[: len(displaced)]
        assert sorted(self.written_s[name] for name in displaced) == expected
        for name in gone:
            del self.last[name], self.active_s[name], self.written_s[name]
        self.gone += len(gone)


batches = st.lists(st.tuples(st.sampled_from(NAMES[:9]), st.integers(0, 6)), max_size=6)
waits = st.booleans().map(lambda caught_up: 0 if caught_up else None)
todo = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), batches, st.sampled_from([0, 1, 5, 9, 30, 95, 4_000]), waits),
        st.tuples(st.sampled_from(["roll back", "crash", "lose", "grow", "replay"]), batches, st.just(0), st.just(0)),
    ),
    min_size=2,
    max_size=25,
)
some_bounds = st.sampled_from(
    [
        EvictionLimits(most=2),
        EvictionLimits(most=5),
        EvictionLimits(inactive_s=80),
        EvictionLimits(4, 80),
        EvictionLimits(1, 8),
    ]
)


@settings(deadline=None, max_examples=80, derandomize=True)
@given(steps=todo, bounds=some_bounds, room=st.sampled_from([EVERYTHING, NOTHING]), at_once=st.booleans())
def test_every_partition_forgets_as_the_plain_one(
    steps: list[tuple[str, list[tuple[bytes, int]], int, int | None]], bounds: EvictionLimits, room: int, at_once: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr("kafka_ratchet.tables.map.slots.WASTE_LEAST", 0)
        patch.setattr("kafka_ratchet.tables.known.LOAD_AT_ONCE", EVERYTHING if at_once else 0)
        patch.setattr("kafka_ratchet.tables.known.LOAD_ENTRIES", 2)
        one = Bounded(Path(folder) / "0", bounds, room, SAVES_AT_ONCE if at_once else 0.0)
        plain = Plain(bounds)
        for number, (what, pairs, after_s, waits_s) in enumerate(steps):
            one.now_s += after_s
            begun = one.input
            if what == "commit":
                one.judge(*(record(name, sequence) for name, sequence in pairs))
                gone = one.commit(waits_s=waits_s)
                plain.commit(pairs, one.now_s, gone, waits_s=waits_s)
            else:
                one.judge(*(record(name, sequence) for name, sequence in pairs))
                if what == "grow":  # with everything open
                    one.state.known.map.grow(len(one.state.known.map.slots.hashes) * 2)
                one.changes()
                one.state.rollback()
                one.input = begun
                if what == "lose":
                    one.folder = Path(folder) / f"{number}-new"
                if what in ("crash", "lose"):
                    one.crash()
            assert one.known() == plain.last
            assert (len(one.state), sum(one.state.evicted)) == (len(plain.last), plain.gone)
            if what == "replay":
                other = one.another(Path(folder) / f"{number}-again")
                assert (one.known(other), len(other), other.evicted) == (plain.last, len(plain.last), one.state.evicted)
                other.close()
        one.state.close()


def test_a_map_without_bounds_has_no_columns_for_them() -> None:
    assert LastSequences().size + 4096 * 5 + 4096 * 8 == LastSequences(timed=True).size
