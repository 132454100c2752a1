"""A partition that keeps more than last sequences: store, changelog, and settings that change between two starts."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from kafka_ratchet.rule.extraction import reader_for
from kafka_ratchet.rule.identity import Identity, SequenceSource
from kafka_ratchet.rule.windows import PLAIN, StateOptions
from kafka_ratchet.tables.eviction import EvictionLimits
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.transport.batch.chunk import read_chunk
from tests.clock import Clock
from tests.tables.fetched_records import Sent, fetched, judged, stored
from tests.tables.map.plain_window import PlainWindow

READ = reader_for(SequenceSource.parse("header:ratchet-sequence"))
VERDICTS = ("fresh", "duplicate", "invalid", "too late", "conflict")
NAMES = [b"", b"a", b"b", b"x" * 1000]
BY_TURNS = [
    StateOptions(64, fingerprints=True, dense=True),
    StateOptions(5),
    PLAIN,
    StateOptions(130, dense=True),
    StateOptions(fingerprints=True),
]


class Site:
    """A partition that is opened again and again, and its changelog."""

    def __init__(self, folder: Path, room: int, bounds: EvictionLimits | None) -> None:
        self.folder, self.room, self.bounds = folder, room, bounds
        self.log, self.end, self.input = b"", 0, 0

    def open(self, kept: StateOptions, folder: Path | None = None) -> SequencePartition:
        where = folder or self.folder, "changelog", 0, Identity.KEY, 1 << 20
        state = SequencePartition(*where, lambda: self.room, self.bounds, Clock(2.0), kept)
        state.open()
        state.restoring()
        while state.position < self.end or not state.restored():
            state.apply(read_chunk("changelog", 0, state.position, self.log, []))
        return state

    def judge(self, state: SequencePartition, rows: list[tuple[bytes, int, bytes | None]]) -> list[str]:
        batch = fetched([Sent(name, value, (("ratchet-sequence", b"%d" % n),)) for name, n, value in rows], self.input)
        self.input = batch.next
        return [VERDICTS[verdict] for verdict in judged(state, batch, READ)[0]]

    def commit(self, state: SequencePartition) -> None:
        encoded = state.changes(self.input)
        self.log += stored(encoded, self.end)
        self.end += sum(batch.count for batch in encoded)
        state.committed(self.end)


@pytest.mark.parametrize("bounds", [None, EvictionLimits(most=1000)], ids=["all kept", "with bounds"])
@pytest.mark.parametrize("room", [sys.maxsize, 0], ids=["all in memory", "nothing kept in memory"])
def test_what_a_partition_keeps_is_the_plain_one_after_crashes_snapshots_and_other_settings(
    tmp_path: Path, room: int, bounds: EvictionLimits | None
) -> None:
    draw = random.Random(f"{room} {bounds}")
    site = Site(tmp_path / "own", room, bounds)
    totals = dict.fromkeys(VERDICTS, 0)
    plain = PlainWindow(0, fingerprints=False, dense=False)
    for turn in range(15):
        kept = BY_TURNS[turn // 3 % len(BY_TURNS)]
        state = site.open(kept)
        if turn % 3 == 0 and turn:
            # Each identity is met under every setting, so that all entries are of the one before.
            plain = plain.reload(PlainWindow(kept.window, fingerprints=kept.fingerprints, dense=kept.dense))
        elif not turn:
            plain = PlainWindow(kept.window, fingerprints=kept.fingerprints, dense=kept.dense)
        for _ in range(4):
            top = max((each.last for each in plain.pushed.values()), default=0)
            rows = [
                (draw.choice(NAMES), max(0, top + draw.randint(-150, 20)), draw.choice([None, b"", b"v"]))
                for _ in range(12)
            ]
            rows += [(name, top + 30, b"v") for name in NAMES]
            verdicts = site.judge(state, rows)
            assert verdicts == [plain.judge(*row) for row in rows]
            if draw.random() < 0.25:
                state.rollback()
                plain.rollback()
                site.input -= len(rows)
                continue
            for verdict in verdicts:
                totals[verdict] += 1
            site.commit(state)
            plain.commit()
            for name, found in plain.persisted.items():
                for n in (found.last - 3, found.last - 60, found.last - 131):
                    assert state.seen(name, n) == (plain.has_seen(found, n),) * 2
            missing = sum(each.missing for each in plain.persisted.values())
            assert state.missing == (missing if kept.dense else None)
        progress = state.progress
        assert progress is not None
        assert (progress.fresh, progress.duplicate) == (totals["fresh"], totals["duplicate"])
        assert (progress.late, progress.conflict) == (totals["too late"], totals["conflict"])
        anew = site.open(kept, tmp_path / f"anew-{turn}")
        assert (anew.progress, anew.missing, len(anew)) == (progress, state.missing, len(state))
        anew.close()
        if turn % 2:
            state.close()
        else:
            state.known.release()


def test_a_plain_partition_writes_progress_and_sequences(tmp_path: Path) -> None:
    site = Site(tmp_path, sys.maxsize, None)
    state = site.open(PLAIN)
    site.judge(state, [(b"a", 5, b""), (b"a", 5, b"other"), (b"a", 3, b"")])
    entries = [(batch.key(i), batch.value(i)) for batch in [site_batch(site, state)] for i in range(batch.count)]
    assert entries[1:] == [(b"ia", (5).to_bytes(8, "big"))]
    assert [(key, len(value or b""), (value or b"")[:1]) for key, value in entries[:1]] == [(b"p", 57, b"\1")]
    state.close()


def site_batch(site: Site, state: SequencePartition):  # type: ignore[no-untyped-def]
    start = site.end
    site.commit(state)
    return read_chunk("changelog", 0, start, site.log, [])


def test_what_is_missing_is_counted_once_where_a_transaction_looks_identities_up_and_is_rolled_back(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path / "store", 0, None)
    state = site.open(StateOptions(dense=True))
    site.judge(state, [(b"a", 1, b""), (b"b", 1, b"")])
    state.committed(sum(batch.count for batch in state.changes(site.input)))
    begin = site.input
    for _ in range(2):
        state.rollback()
        site.input = begin
        site.judge(state, [(b"a", 101, b"")])
        site.judge(state, [(b"b", 2, b"")])  # looked up in the store, in the same transaction
    state.committed(state.position + sum(batch.count for batch in state.changes(site.input)))
    assert state.missing == 99
    state.close()


def test_what_an_evicted_identity_was_missing_is_subtracted_once(tmp_path: Path) -> None:
    begin_s = 1_700_000_000
    site = Site(tmp_path / "store", 0, EvictionLimits(most=3, inactive_s=8))
    state = site.open(StateOptions(dense=True))
    for rows, at_s, judged_until_ms in (
        ([(b"a", 1), (b"a", 1001)], begin_s, None),
        ([(b"b", 1), (b"c", 1)], begin_s + 100, None),
        ([(b"d", 1), (b"e", 1)], begin_s + 100, (begin_s + 100) * 1000),  # a was quiet, and another one is displaced
    ):
        site.judge(state, [(name, number, b"") for name, number in rows])
        written = [*state.changes(site.input), *state.evictions(at_s * 1000, judged_until_ms)]
        state.committed(state.position + sum(batch.count for batch in written))
    assert state.evicted == (1, 1)
    assert state.missing == 0
    state.close()
