"""Pulsar's own tests of PIP-6 (MessageDuplicationTest, ClientDeduplicationTest), applied to a partition.

The rows are those of docs/reference/pulsar.md, which also names the tests that are elsewhere.

Pulsar answers a publisher, so a sequence that is in flight is `Unknown` and published again. Here the records wait in
the input topic: within the open transaction such a record is dropped, and comes again if the transaction fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_ratchet.app.status.lookup import verdict_of
from kafka_ratchet.rule.extraction import reader_for
from kafka_ratchet.rule.identity import Identity, SequenceSource
from kafka_ratchet.tables.eviction import EvictionLimits
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.tables.snapshots import SNAPSHOT_EVERY_S
from kafka_ratchet.tables.totals import EvictedTotals
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.policy import Policy
from tests.clock import SAVES_AT_ONCE, Clock
from tests.tables.fetched_records import Sent, fetched, judged, named, stored

READ = reader_for(SequenceSource.parse("header:ratchet-sequence"))
VERDICTS = ("fresh", "duplicate", "invalid")
ON = Policy()


class OnePartition:
    """A partition and the changelog that its commits have made, without a lane."""

    def __init__(self, folder: Path, bounds: EvictionLimits | None = None) -> None:
        self.folder, self.bounds, self.clock = folder, bounds, Clock()
        self.changelog: list[tuple[int, bytes]] = []
        """Each commit's part: its first offset, and its bytes."""
        self.end = 0
        self.input = 0
        self.open()

    def open(self) -> None:
        where = self.folder, "changelog", 0, Identity.PRODUCER, 1 << 20
        self.state = SequencePartition(*where, bounds=self.bounds, clock=self.clock)
        self.state.open()

    def crash(self) -> None:
        """Drop everything in memory, and keep the store; nothing is restored yet."""
        self.state.known.release()
        self.open()

    def restore(self, commits: int | None = None) -> None:
        """Replay the changelog from where the store stands: so many commits of it, or all."""
        missing = [part for part in self.changelog if part[0] >= self.state.position]
        for offset, data in missing[:commits]:
            assert offset == self.state.position
            self.state.apply(read_chunk("changelog", 0, offset, data, []))

    def pass_by(self, records: list[Sent], policy: Policy) -> None:
        """Forward unjudged."""
        batch = fetched(records, self.input)
        self.input = batch.next
        self.state.intervals.push(policy, batch)

    def judge(self, records: list[Sent], policy: Policy = ON) -> list[str]:
        batch = fetched(records, self.input)
        self.input = batch.next
        self.state.intervals.push(policy, batch)
        return [VERDICTS[verdict] for verdict in judged(self.state, batch, READ)[0]]

    def commit(self, at_s: int = 0) -> list[tuple[bytes | None, bytes | None]]:
        """Commit, by Kafka's clock at that second; returns what that added to the changelog."""
        encoded = self.state.changes(self.input) + self.state.evictions(at_s * 1000, at_s * 1000)
        added = stored(encoded, self.end)
        self.changelog.append((self.end, added))
        batch = read_chunk("changelog", 0, self.end, added, [])
        self.end = batch.next
        self.state.committed(self.end)
        return [(batch.key(i), batch.value(i)) for i in range(batch.count)]

    def status(self, producer: bytes, sequence: int) -> str:
        last = self.state.last(producer)
        return verdict_of(
            sequence,
            last.persisted if last.persisted >= 0 else None,
            last.pushed if last.pushed >= 0 else None,
        )


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OnePartition]:
    partition = OnePartition(tmp_path / "0")
    yield partition
    partition.state.close()


def test_row_1_the_first_sequence_of_a_name_is_new_and_names_are_independent(one: OnePartition) -> None:
    assert one.judge(named(b"a", 0)) == ["fresh"]
    assert one.judge(named(b"b", 0)) == ["fresh"]
    assert one.judge(named(b"c", 7)) == ["fresh"]
    assert one.state.last(b"a") == (-1, 0)
    assert one.state.last(b"d") == (-1, -1)


def test_row_2_jumps_forward_are_new(one: OnePartition) -> None:
    assert one.judge(named(b"a", 1, 5)) == ["fresh", "fresh"]
    assert one.state.last(b"a").pushed == 5


def test_row_3_what_is_only_pushed_is_unknown_and_stays_pushed(one: OnePartition) -> None:
    one.judge(named(b"a", 5))
    assert [one.status(b"a", sequence) for sequence in (4, 5, 6)] == ["unknown", "unknown", "fresh"]
    assert one.judge(named(b"a", 4)) == ["duplicate"]
    assert one.state.last(b"a") == (-1, 5)


def test_row_4_what_is_persisted_is_a_duplicate(one: OnePartition) -> None:
    one.judge(named(b"a", 5))
    one.commit()
    one.judge(named(b"a", 9))
    answers = [one.status(b"a", sequence) for sequence in (0, 5, 6, 9, 10)]
    assert answers == ["duplicate", "duplicate", "unknown", "unknown", "fresh"]


def test_row_5_an_overlapping_batch_is_judged_record_by_record(one: OnePartition) -> None:
    assert one.judge(named(b"a", *range(1, 6))) == ["fresh"] * 5
    assert one.state.last(b"a").pushed == 5
    # Pulsar refuses the whole batch: it can only be written as one. Here each record stands for itself.
    assert one.judge(named(b"a", *range(4, 9))) == ["duplicate"] * 2 + ["fresh"] * 3
    assert one.state.last(b"a") == (-1, 8)


def test_row_6_a_duplicate_writes_nothing_but_progress(one: OnePartition) -> None:
    one.judge(named(b"a", 1))
    assert [key for key, _ in one.commit()] == [b"p", b"ia"]
    assert one.judge(named(b"a", 1)) == ["duplicate"]
    assert [key for key, _ in one.commit()] == [b"p"]
    assert one.state.progress == (2, 1, 1, 0, -1, 0, 0)


def test_row_7_a_resend_while_in_flight_is_written_once(one: OnePartition) -> None:
    assert one.judge(named(b"a", 1, 1)) == ["fresh", "duplicate"]
    assert one.commit()[1:] == [(b"ia", (1).to_bytes(8, "big"))]


def test_row_8_a_failed_write_falls_back_for_every_name(one: OnePartition) -> None:
    one.judge(named(b"a", 3) + named(b"b", 3))
    one.commit()
    one.judge(named(b"a", 4, 9) + named(b"c", 1))
    one.state.rollback()
    assert [one.state.last(name) for name in (b"a", b"b", b"c")] == [(3, 3), (3, 3), (-1, -1)]
    assert one.judge(named(b"a", 4, 9) + named(b"b", 3) + named(b"c", 1)) == ["fresh", "fresh", "duplicate", "fresh"]
    one.commit()
    assert [one.state.last(name) for name in (b"a", b"b", b"c")] == [(9, 9), (3, 3), (1, 1)]
    assert one.state.progress is not None
    assert one.state.progress[1:4] == (5, 1, 0)  # the failed transaction is in no total


def test_row_9_only_producers_past_the_timeout_are_forgotten_by_both_maps(tmp_path: Path) -> None:
    one = OnePartition(tmp_path / "0", EvictionLimits(inactive_s=80))
    one.judge(named(b"a", 1) + named(b"b", 1))
    one.commit(at_s=1_000)
    one.judge(named(b"b", 2))
    one.commit(at_s=1_050)
    one.judge(named(b"c", 1))
    assert (b"ia", None) in one.commit(at_s=1_091)
    assert [one.state.last(name) for name in (b"a", b"b", b"c")] == [(-1, -1), (2, 2), (1, 1)]
    assert one.judge(named(b"a", 1) + named(b"b", 2)) == ["fresh", "duplicate"]
    one.state.close()


def test_row_9_without_a_timeout_nobody_is_forgotten(one: OnePartition) -> None:
    one.judge(named(b"a", 1))
    one.commit(at_s=1_000)
    one.judge(named(b"b", 1))
    one.commit(at_s=10**9)
    assert one.state.last(b"a") == (1, 1)
    assert one.state.evicted == EvictedTotals()


def test_row_28_the_table_of_producers_is_bounded_and_eviction_is_visible(tmp_path: Path) -> None:
    one = OnePartition(tmp_path / "0", EvictionLimits(most=2))
    for second, name in enumerate((b"a", b"b", b"c", b"d")):
        one.judge(named(name, 1))
        one.commit(at_s=1_000 + second)
        assert len(one.state) == min(second + 1, 2)
    assert [one.state.last(name).persisted for name in (b"a", b"b", b"c", b"d")] == [-1, -1, 1, 1]
    assert one.state.evicted == EvictedTotals(inactive=0, displaced=2)
    one.state.close()


def test_row_12_while_it_is_off_the_table_stands_still_and_judging_goes_on_from_there(one: OnePartition) -> None:
    # Pulsar forgets what it knew when it is switched off. Here what was counted before stays counted.
    one.judge(named(b"a", 1, 2))
    one.commit()
    one.pass_by(named(b"a", 1, 9), Policy(False, 1))
    one.commit()
    assert one.state.last(b"a") == (2, 2)
    assert one.judge(named(b"a", 2, 3, 9), Policy(True, 2)) == ["duplicate", "fresh", "fresh"]
    one.commit()
    assert [interval[1:] for interval in one.state.intervals] == [(False, 2, 4, 1, 2), (True, 4, 4, 2, 0)]
    assert one.state.progress is not None
    assert (one.state.progress[1:4], one.state.intervals.unjudged) == ((4, 1, 0), 2)


@pytest.mark.parametrize("step_s", [SAVES_AT_ONCE, 0.0])
def test_row_15_snapshots_and_recovery_while_it_is_off(one: OnePartition, step_s: float) -> None:
    one.clock.step = step_s
    one.judge(named(b"a", 5))
    one.commit()
    for _ in range(3):
        one.pass_by(named(b"a", 1), Policy(False, 7))
        one.commit()
    one.pass_by(named(b"a", 1), Policy(False, 7))  # in no transaction that was committed
    one.crash()
    one.restore()
    assert one.state.last(b"a") == (5, 5)
    assert list(one.state.intervals) == [(0, False, 1, 4, 7, 3)]
    assert (one.state.policy_position, one.state.intervals.unjudged) == (7, 3)


@pytest.mark.parametrize(("passed_s", "snapshot"), [(SNAPSHOT_EVERY_S, 1), (SNAPSHOT_EVERY_S - 0.1, 0)])
def test_row_14_snapshots_are_taken_by_time_at_the_last_position(
    one: OnePartition, passed_s: float, snapshot: int
) -> None:
    one.clock.now += passed_s
    one.judge(named(b"a", 1))
    one.commit()
    one.judge(named(b"a", 2))  # pushed, in no snapshot
    assert one.state.position == one.end
    one.crash()
    assert (one.state.position, one.state.last(b"a").persisted) == ((one.end, 1) if snapshot else (0, -1))
    one.restore()
    assert one.state.last(b"a") == (1, 1)


def test_row_16_a_recovery_that_is_cut_short_goes_on_where_it_was(one: OnePartition) -> None:
    for sequence in range(5):
        one.judge(named(b"a", sequence) + named(b"%d" % sequence, sequence))
        one.commit()
    one.crash()
    one.clock.step = SAVES_AT_ONCE
    reached = []
    while one.state.position < one.end:
        one.restore(commits=2)
        reached.append(one.state.position)
        one.crash()
    assert reached == sorted(set(reached))
    assert len(reached) == 3
    assert one.state.last(b"a") == (4, 4)
    assert one.state.input_position == one.input


def test_row_17_a_name_goes_on_after_a_restart(one: OnePartition) -> None:
    assert one.state.last(b"a") == (-1, -1)
    one.judge(named(b"a", *range(10)))
    one.commit()
    one.state.close()
    one.open()
    assert one.state.last(b"a") == (9, 9)
    assert one.judge(named(b"a", 9, 10)) == ["duplicate", "fresh"]


def test_row_18_resends_are_invisible_before_and_after_a_crash(one: OnePartition) -> None:
    one.judge(named(b"a", *range(10)))
    one.commit()
    assert set(one.judge(named(b"a", *range(10)))) == {"duplicate"}
    one.crash()
    one.restore()
    assert one.judge(named(b"a", *range(11))) == ["duplicate"] * 10 + ["fresh"]


@pytest.mark.parametrize("committed", [True, False])
def test_row_19_gaps_do_not_make_room_for_what_is_lower(one: OnePartition, committed: bool) -> None:
    one.judge(named(b"a", 2, 3, 5))
    if committed:
        one.commit()
    assert one.judge(named(b"a", 2, 4, 6)) == ["duplicate", "duplicate", "fresh"]


@pytest.mark.parametrize("committed", [True, False])
def test_row_20_the_same_one_record_at_a_time(one: OnePartition, committed: bool) -> None:
    answers = []
    for sequence in (2, 3, 5, 2, 4, 6):
        answers += one.judge(named(b"a", sequence))
        if committed:
            one.commit()
    assert answers == ["fresh", "fresh", "fresh", "duplicate", "duplicate", "fresh"]


def test_row_22_what_a_publisher_gave_up_is_a_gap_and_cannot_come_later(one: OnePartition) -> None:
    answers = one.judge(named(b"a", *range(10)))
    one.commit()
    # 10 to 19 failed, and so did their retries: they are not in the input.
    answers += one.judge(named(b"a", *range(20, 30)))
    assert answers == ["fresh"] * 20
    assert one.judge(named(b"a", *range(10, 20))) == ["duplicate"] * 10


def test_row_25_a_resend_to_another_partition_is_not_known_there(one: OnePartition, tmp_path: Path) -> None:
    one.judge(named(b"a", 1))
    other = OnePartition(tmp_path / "1")
    assert other.judge(named(b"a", 1)) == ["fresh"]
    other.state.close()


@pytest.mark.parametrize("window", range(1, 11))
def test_row_26_a_mirror_that_repeats_windows_adds_nothing(one: OnePartition, window: int) -> None:
    sequences = list(range(40))
    starts = range(0, len(sequences), window)
    twice = [sequence for start in starts for sequence in sequences[start : start + window] * 2]
    answers: list[str] = []
    for start in range(0, len(twice), 7):  # a mirror's batches and commits do not know of the windows
        answers += one.judge(named(b"a", *twice[start : start + 7]))
        one.commit()
    fresh = [sequence for sequence, answer in zip(twice, answers, strict=True) if answer == "fresh"]
    assert fresh == sequences


def test_row_27_a_duplicate_counts_with_its_original_or_not_at_all(one: OnePartition) -> None:
    assert one.judge(named(b"a", 1, 1)) == ["fresh", "duplicate"]
    one.state.rollback()  # the original was not durable
    assert one.judge(named(b"a", 1, 1)) == ["fresh", "duplicate"]
    one.commit()
    assert one.state.progress is not None
    assert one.state.progress[1:4] == (1, 1, 0)
