import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from kafka_ratchet.errors import StateError, StateFolderInUse
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.tables.edits import FORGET, IMPORT, Edit
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.tables.snapshots import SNAPSHOT_EVERY_S
from kafka_ratchet.tables.store import Store
from kafka_ratchet.tables.totals import PROGRESS, EvictedTotals, Progress
from kafka_ratchet.transport.batch.encoding import pack_entries
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.changelog import KnownPosition
from kafka_ratchet.transport.owner import Decision, Owner
from tests.clock import Clock
from tests.tables.fetched_records import Sent, fetched, judged, stored
from tests.tables.worked_partition import CHANGELOG, NAMES, PARTITION, READ, Changelog, content, partition, work


def test_the_changelog_alone_restores_the_partition(state: SequencePartition, other: SequencePartition) -> None:
    log = Changelog()
    state.committed(log.append(state, work(state, 0, 1)))
    state.committed(log.append(state, work(state, 12, 2**63 - 1)))
    assert state.progress == Progress(24, 20, 2, 2)
    assert len(state) == len(NAMES)
    tail = log.since(0)
    other.apply(tail)
    assert content(other) == content(state)
    assert other.position == tail.next == log.end - 1
    # And what it has restored is in its store.
    other.close()
    other.open()
    assert content(other) == content(state)
    assert other.position == tail.next


def test_what_is_committed_is_there_when_the_store_is_opened_again(state: SequencePartition) -> None:
    log = Changelog()
    after = log.append(state, work(state, 0, 5))
    state.committed(after)
    before = content(state)
    state.close()
    state.open()
    state.open()  # open already
    assert content(state) == before
    assert state.position == after
    assert [state.last(name) for name in NAMES] == [(5, 5)] * len(NAMES)


def test_more_entries_than_are_loaded_at_a_time(state: SequencePartition, monkeypatch: pytest.MonkeyPatch) -> None:
    state.committed(Changelog().append(state, work(state, 0, 5)))
    state.close()
    monkeypatch.setattr("kafka_ratchet.tables.known.LOAD_ENTRIES", 3)
    state.open()
    assert [state.last(name) for name in NAMES] == [(5, 5)] * len(NAMES)
    assert len(state) == len(NAMES)


def test_a_large_store_is_taken_into_memory_while_the_partition_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_ratchet.tables.known.LOAD_AT_ONCE", 0)
    monkeypatch.setattr("kafka_ratchet.tables.known.LOAD_ENTRIES", 3)
    state, log = partition(tmp_path / "0"), Changelog()
    state.committed(log.append(state, work(state, 0, 7)))
    state.close()
    state.open()
    assert content(state) == ([*[(7, 7)] * len(NAMES), (-1, -1)], len(NAMES), state.progress, 12)
    for again in range(1, 6):
        batch = [
            Sent(key=name, headers=(("ratchet-sequence", b"%d" % sequence),))
            for name, sequence in ((b"a", 7), (b"a\0", 7 + again), (b"b", 8 + again))
        ]
        verdicts, _ = judged(state, fetched(batch, 12 * again), READ)
        assert verdicts.tolist() == [1, 0, 0]
        state.committed(log.append(state, 12 * again + 3))
        assert len(state) == len(NAMES) + 1
    assert state.known.beyond == 0
    state.close()
    state.open()
    assert [state.last(name).persisted for name in (b"a", b"a\0", b"b", b"\0", b"nobody")] == [7, 12, 13, 7, -1]
    state.close()


def test_at_rest_the_remainder_of_a_large_store_is_taken_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_ratchet.tables.known.LOAD_AT_ONCE", 0)
    monkeypatch.setattr("kafka_ratchet.tables.known.LOAD_ENTRIES", 3)
    state = partition(tmp_path / "0")
    state.committed(Changelog().append(state, work(state, 0, 7)))
    state.close()
    state.open()
    left = []
    while state.known.beyond:
        left.append(state.known.beyond)
        state.at_rest()
    assert left == list(range(len(NAMES), 0, -3))
    assert content(state) == ([*[(7, 7)] * len(NAMES), (-1, -1)], len(NAMES), state.progress, 12)
    state.close()


def test_at_rest_a_snapshot_that_was_put_off_is_made(
    state: SequencePartition, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    state.committed(Changelog().append(state, work(state, 0, 7)))
    state.at_rest()
    found.append(taken_over_after_a_crash(state, tmp_path / "too early").position)
    state._timer._factor = 1e9
    clock.now += SNAPSHOT_EVERY_S
    work(state, 12, 8)
    state.at_rest()
    found.append(taken_over_after_a_crash(state, tmp_path / "in a transaction").position)
    state.rollback()
    state.at_rest()
    again = taken_over_after_a_crash(state, tmp_path / "at rest")
    found.append(again.position)
    # Where nothing is kept in memory, it is saved in order to be forgotten, right after the commit.
    before = state.position if state.known.room() == 0 else 0
    assert found == [before, before, state.position]
    assert [again.last(name) for name in NAMES] == [(7, 7)] * len(NAMES)
    assert not list(state.path.glob("*.sst"))
    monkeypatch.setattr("kafka_ratchet.tables.rocksdb.FLUSH_WORTH", len(NAMES))
    state.at_rest()
    deadline = time.monotonic() + 30
    while not list(state.path.glob("*.sst")):
        assert time.monotonic() < deadline, "RocksDB's log was not brought into a file"
        time.sleep(0.01)


def taken_over_after_a_crash(state: SequencePartition, folder: Path) -> SequencePartition:
    """Return the partition as a process finds it that starts after a kill of this one."""
    shutil.copytree(state.path, folder)
    found = partition(folder)
    found.close()
    return found


def test_a_snapshot_is_in_order(state: SequencePartition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_ratchet.tables.map.written.AT_A_TIME", 3)
    state.known.room = lambda: sys.maxsize
    state.committed(Changelog().append(state, work(state, 0, 7)))
    entries = list(state.known.map.unsaved_entries())
    assert sorted(entries) == sorted((b"i" + name, NUMBER) for name in NAMES)
    beginnings = [key[1:9].ljust(8, b"\0") for key, _ in entries]
    assert beginnings == sorted(beginnings)


def test_a_crash_between_commit_and_write_is_mended_by_the_tail(state: SequencePartition, tmp_path: Path) -> None:
    log = Changelog()
    first = log.append(state, work(state, 0, 1))
    state.committed(first)
    log.append(state, work(state, 12, 2))  # committed in Kafka; the process ends before it is remembered here
    state.close()
    again = partition(tmp_path / "first")
    assert [again.last(name) for name in NAMES] == [(1, 1)] * len(NAMES)
    assert (again.position, again.input_position) == (first, 12)
    again.apply(log.since(again.position))
    assert [again.last(name) for name in NAMES] == [(2, 2)] * len(NAMES)
    assert (again.position, again.progress) == (log.end - 1, Progress(24, 20, 2, 2))
    again.close()


def test_a_stale_store_and_the_tail_are_the_newest_state(state: SequencePartition, other: SequencePartition) -> None:
    log = Changelog()
    start = 0
    for sequence in range(1, 8):
        start = work(state, start, sequence)
        after = log.append(state, start)
        state.committed(after)
        if sequence == 3:
            other.apply(log.since(0))
    assert other.input_position == 36
    assert other.last(b"a") == (3, 3)
    other.apply(log.since(other.position))
    assert content(other) == content(state)


def test_what_is_applied_twice_counts_once(state: SequencePartition, other: SequencePartition) -> None:
    log = Changelog()
    state.committed(log.append(state, work(state, 0, 1)))
    other.apply(log.since(0))
    other.apply(log.since(0))
    assert content(other) == content(state)


def test_a_tail_without_entries_still_moves_the_position(other: SequencePartition) -> None:
    other.apply(RecordBatch(CHANGELOG, PARTITION, 0, 9, *_no_records()))
    assert other.position == 9
    other.close()
    other.open()
    assert (other.position, other.progress, len(other)) == (9, None, 0)


def test_a_commit_without_records_makes_no_files(state: SequencePartition) -> None:
    log = Changelog()
    state.committed(log.append(state, 0))
    state.save()
    assert not state.is_made
    state.close()
    state.open()
    assert (state.position, state.input_position) == (0, None)  # to be read from the changelog
    state.restoring()
    state.apply(log.since(0))
    assert state.restored()
    state.committed(log.append(state, work(state, 0, 5)))
    state.save()
    assert state.is_made


def test_an_import_without_identities_counts_as_processed(state: SequencePartition) -> None:
    """`ratchet state import --faust` brings tables only, at an offset that holds for the present input alone."""
    entries = [(PROGRESS, Progress(1_000, 0, 0, 0).pack())]
    state.apply(pack_entries(CHANGELOG, PARTITION, entries))
    assert not state.has_processed
    for number, kind in enumerate([FORGET, IMPORT]):
        entries = [Edit("id", kind, "2026-11-30T00:00:00Z", "eve", "a test", 1_000).pack(number)]
        state.apply(pack_entries(CHANGELOG, PARTITION, entries))
        assert state.has_processed == (kind == IMPORT)


def test_an_identity_ahead_of_its_progress_is_kept(tmp_path: Path) -> None:
    """Compaction may leave an identity far before the progress of its transaction."""
    state = partition(tmp_path / "0", room=0, clock=Clock(SNAPSHOT_EVERY_S))
    batch = pack_entries(CHANGELOG, PARTITION, [(b"ia", NUMBER)])
    batch.next = 3
    state.restoring()
    state.apply(batch)
    assert state.last(b"a") == (7, 7)
    state.close()


def _no_records() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    empty = fetched([])
    return empty.data, empty.columns


NUMBER = (7).to_bytes(8, "big")


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        pytest.param(b"hello", b"world", "not an entry that Ratchet wrote", id="another program's"),
        pytest.param(b"x", NUMBER, "not an entry that Ratchet wrote", id="one byte"),
        pytest.param(b"c", NUMBER, "not an entry that Ratchet wrote", id="the store's own position"),
        pytest.param(b"", NUMBER, "not an entry that Ratchet wrote", id="empty key"),
        pytest.param(None, NUMBER, "not an entry that Ratchet wrote", id="no key"),
        pytest.param(b"ia", NUMBER[:7], "not an entry that Ratchet wrote", id="short sequence"),
        pytest.param(b"ia", b"", "not an entry that Ratchet wrote", id="empty sequence"),
        pytest.param(b"ia", b"\xff" * 8, "not an entry that Ratchet wrote", id="negative sequence"),
        pytest.param(b"ia", NUMBER + bytes(4), "not an entry that Ratchet wrote", id="the store's form"),
        pytest.param(
            b"e", EvictedTotals(1, 2).pack()[:-1], "count of evictions has 16 bytes", id="short count of evictions"
        ),
        pytest.param(b"e", None, "count of evictions has 0 bytes", id="no count of evictions"),
        pytest.param(b"p", Progress(1, 2, 3, 4).pack()[:-1], "progress entry has 56 bytes", id="short progress"),
        pytest.param(b"p", b"\4" + Progress(1, 2, 3, 4).pack()[1:], "version 04; this Ratchet", id="newer progress"),
        pytest.param(b"p", None, "progress entry has 0 bytes", id="progress tombstone"),
    ],
)
def test_an_entry_that_is_not_ours_halts_the_partition(
    state: SequencePartition, key: bytes | None, value: bytes | None, sentence: str
) -> None:
    good = [Sent(b"p", Progress(40, 1, 0, 0).pack()), Sent(b"ib", NUMBER)]
    batch = fetched([*good, Sent(key, value)], 1_000, CHANGELOG, PARTITION)
    for _ in range(2):  # the lane tries again
        with pytest.raises(StateError, match=sentence) as raised:
            state.apply(batch)
        assert f"{CHANGELOG}, partition 3, offset 1002: " in str(raised.value)
    assert (state.position, state.progress, state.input_position) == (0, None, None)
    state.close()
    state.open()
    assert content(state) == ([(-1, -1)] * (len(NAMES) + 1), 0, None, None)


def test_an_entry_that_is_not_ours_halts_the_partition_as_the_first_of_a_batch(state: SequencePartition) -> None:
    batch = fetched([Sent(b"hello", b"world"), Sent(b"ib", NUMBER)], 1_000, CHANGELOG, PARTITION)
    with pytest.raises(StateError, match="offset 1000: the record is not an entry that Ratchet wrote"):
        state.apply(batch)
    assert state.position == 0


def test_a_store_with_an_entry_that_is_not_ours_is_begun_anew(tmp_path: Path) -> None:
    store = Store(tmp_path / "0")
    store.write([(b"igood", NUMBER), (b"ishort", b"1")], 7, 2)
    store.close()
    state = SequencePartition(tmp_path / "0", CHANGELOG, PARTITION, Identity.KEY, 1 << 20)
    state.open()
    assert (len(state), state.position) == (0, 0)
    state.close()


def test_a_partition_that_is_not_open_takes_nothing(tmp_path: Path) -> None:
    state = SequencePartition(tmp_path / "0", CHANGELOG, PARTITION, Identity.KEY, 1 << 20)
    with pytest.raises(StateError, match="not open"):
        state.apply(fetched([Sent(b"ia", NUMBER)]))
    assert state.position == 0


FULL_DISK = """
import resource, signal, sys
from itertools import count
from pathlib import Path
from kafka_ratchet.errors import StateError, StateFolderInUse
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.tables.partition import SequencePartition
from kafka_ratchet.transport.batch.encoding import pack_entries

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def opened(folder):
    clock = count(0, 100).__next__
    state = SequencePartition(Path(sys.argv[1]) / folder, "changelog", 0, Identity.KEY, 1 << 20, clock=clock)
    state.open()
    return state

def apply(number, state):
    pairs = [(b"i%d" % n, number.to_bytes(8, "big")) for n in range(2_000)]
    batch = pack_entries("changelog", 0, pairs)
    batch.next = number
    state.apply(batch)

# Compiled passes are kept in files as well, of a clone that has none yet.
compiled = opened("compiled")
apply(1, compiled)
compiled.open()
apply(2, compiled)
compiled.close()
state = opened("0")
apply(1, state)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, resource.RLIM_INFINITY))
for _ in range(2):
    try:
        state.open()
        apply(2, state)
    except StateError as error:
        print("said", error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
state.open()
print(state.position, {state.last(b"%d" % n) for n in range(2_000)} == {(1, 1)})
apply(2, state)
print(state.position, {state.last(b"%d" % n) for n in range(2_000)} == {(2, 2)})
state.close()
"""


def test_a_full_disk_is_said_and_passes_without_a_restart(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len([line for line in lines if line.startswith(f"said {tmp_path / '0'}: RocksDB cannot")]) == 2
    assert lines[-2:] == ["1 True", "2 True"]


def owner(*decisions: Decision) -> Owner:
    return Owner("shop", "events", {}, {}, decisions)


DECIDED = Decision("2026-11-22T12:00:00+00:00", "me@here", "resume --forget", "began anew", 12, 0)


def test_a_decision_to_forget_is_a_few_entries_and_holds_for_every_reader(
    state: SequencePartition, other: SequencePartition, room: int, tmp_path: Path
) -> None:
    log = Changelog()
    state.ownership.claim(owner())
    state.committed(log.append(state, work(state, 0, 5)))
    other.apply(log.since(0))
    forgotten = other.moved(owner(DECIDED), 0, forget=True)
    assert sum(batch.count for batch in forgotten) == 3  # however many identities there are
    log.data += stored(forgotten, log.end)
    log.end += 4
    # A store of before the decision is begun anew, and then has what the whole log says.
    state.restoring()
    state.apply(log.since(state.position))
    assert (state.position, len(state)) == (0, 0)
    state.apply(log.since(0))
    assert state.restored()
    # One that follows drops what it has, also on disk.
    other.apply(log.since(other.position))
    for each in (state, other):
        assert (each.input_position, len(each), each.owner) == (0, 0, owner(DECIDED))
        each.close()
        each.open()
        assert [each.last(name).persisted for name in NAMES] == [-1] * len(NAMES)
        assert (each.position, len(each), each.owner, each.progress) == (log.end - 1, 0, owner(DECIDED), state.progress)
    # What is counted from then on counts for whoever comes later, and a later decision does not bring back the rest.
    judged(state, fetched([Sent(key=NAMES[0], headers=(("ratchet-sequence", b"2"),))], 0), READ)
    state.committed(log.append(state, 1))
    later = msgspec.structs.replace(DECIDED, what="resume")
    log.data += stored(state.moved(owner(DECIDED, later), 1, forget=False), log.end)
    newcomer = partition(tmp_path / "newcomer", room=room)
    newcomer.restoring()
    newcomer.apply(log.since(0))
    assert newcomer.restored()
    assert (len(newcomer), newcomer.last(NAMES[0]).persisted, newcomer.last(NAMES[1]).persisted) == (1, 2, -1)
    newcomer.close()


def test_where_the_changelog_was_looked_at_is_kept_also_where_nothing_follows(state: SequencePartition) -> None:
    log = Changelog()
    state.committed(log.append(state, work(state, 0, 5)))
    state.close()
    state.open()
    state.sighted(KnownPosition(state.position + 1, 7))  # after the snapshot, as for a stream with seldom events
    state.close()
    state.open()
    assert state.sighting == KnownPosition(state.position + 1, 7)


def test_a_store_that_another_has_made_meanwhile_is_opened_anew(tmp_path: Path) -> None:
    changelog, late, first = Changelog(), partition(tmp_path / "0"), partition(tmp_path / "0", clock=Clock(100.0))
    made_by_another = late.is_made
    assert not made_by_another
    first.make()
    work(first, 0, 1)
    first.committed(changelog.append(first, 100))
    first.close()
    with pytest.raises(StateFolderInUse):
        late.make()
    assert not late.is_open
    late.open()
    assert late.is_made
    assert late.position == first.position > 0
    late.close()
