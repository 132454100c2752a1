import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafka_ratchet.rule import windows
from kafka_ratchet.rule.identities import Identities
from kafka_ratchet.rule.windows import PLAIN, StateOptions
from kafka_ratchet.tables.map.map import LastSequences
from kafka_ratchet.transport.batch.encoding import pack_entries
from tests.tables.fetched_records import Sent, fetched
from tests.tables.map.plain_window import PlainWindow

VERDICTS = ("fresh", "duplicate", "invalid", "too late", "conflict")
TOP = 2**63 - 1
Row = tuple[bytes, int, bytes | None]
Step = list[Row] | str | StateOptions

KEPT = [
    StateOptions(1),
    StateOptions(5, dense=True),
    StateOptions(63),
    StateOptions(64, fingerprints=True),
    StateOptions(65, dense=True),
    StateOptions(200, fingerprints=True, dense=True),
    StateOptions(4096),
    StateOptions(fingerprints=True),
    StateOptions(dense=True),
    PLAIN,
]
numbers = st.one_of(
    st.integers(0, 12),
    st.integers(50, 70),
    st.integers(120, 135),
    st.integers(0, 500),
    st.sampled_from([4000, 4095, 4096, 4097, 2**40, 2**62, TOP - 70, TOP - 64, TOP - 1, TOP]),
)
rows = st.tuples(st.sampled_from([b"a", b"b", b""]), numbers, st.sampled_from([None, b"", b"one", b"another"]))
steps = st.lists(
    st.one_of(
        st.lists(rows, min_size=1, max_size=25),
        st.sampled_from(["commit", "roll back", "grow", "pack", "store"]),
        st.sampled_from(KEPT),
    ),
    min_size=1,
    max_size=14,
)


def judged(table: LastSequences, some: list[Row], against: np.ndarray | None = None) -> list[str]:
    batch = fetched([Sent(name, value) for name, _, value in some])
    sequences, reasons = np.array([row[1] for row in some], np.int64), np.zeros(len(some), np.uint8)
    names = np.frombuffer(b"".join(row[0] for row in some) + b"\0", np.uint8)
    sizes = np.array([len(row[0]) for row in some], np.int64)
    identities = Identities(names, np.cumsum(sizes) - sizes, sizes)
    asked = np.empty(0, np.int64) if against is None else against
    return [VERDICTS[v] for v in table.judge(identities, 1024, sequences, reasons, asked, batch)]


def reloaded(table: LastSequences, kept: StateOptions, *, through_store: bool) -> LastSequences:
    """Return a map with these settings, loaded from the persisted entries of another."""
    table.slots.unsaved[(table.slots.hashes != 0) & (table.slots.pushed >= 0)] = 1
    entries = [(key, value or b"") for key, value in table.unsaved_entries()]
    other = LastSequences(kept=kept)
    other.slots.allocate(8)
    assert other.load(pack_entries("changelog", 0, entries), saved=through_store)[0] == -1
    if through_store:
        other.missing = table.missing if table.kept.dense else 0
    return other


def missing(plain: PlainWindow) -> int:
    return sum(found.missing for found in plain.persisted.values()) if plain.dense else 0


@settings(deadline=None, max_examples=400, derandomize=True)
@given(first=st.sampled_from(KEPT), todo=steps)
@example(
    PLAIN, [[(b"a", 0, None)], StateOptions(65), [(b"a", 120, None)], "commit", StateOptions(1), StateOptions(200)]
)
def test_every_verdict_is_the_plain_one_whatever_the_settings_become(first: StateOptions, todo: list[Step]) -> None:
    plain = PlainWindow(first.window, fingerprints=first.fingerprints, dense=first.dense)
    table = LastSequences(kept=first)
    table.slots.allocate(8)
    for step in todo:
        if step == "commit":
            plain.commit()
            table.commit()
        elif step == "roll back":
            plain.rollback()
            table.rollback()
        elif step == "grow":
            table.grow(2 * len(table.slots.hashes))
        elif step == "pack":
            table.commit()
            plain.commit()
            table.slots.pack()
        elif step == "store" or isinstance(step, StateOptions):
            kept = table.kept if step == "store" else step
            assert isinstance(kept, StateOptions)
            plain.rollback()
            table.rollback()
            if table.kept != kept or plain.persisted:
                table = reloaded(table, kept, through_store=step == "store")
                plain = plain.reload(PlainWindow(kept.window, fingerprints=kept.fingerprints, dense=kept.dense))
        else:
            assert isinstance(step, list)
            assert judged(table, step) == [plain.judge(*row) for row in step]
        for name in (b"a", b"b", b""):
            found = plain.pushed.get(name), plain.persisted.get(name)
            assert table.get(name)[::-1] == tuple(each.last if each else -1 for each in found)
            for number in (0, 7, 60, 66, 128, 4096, TOP - 70, TOP - 65):
                asked = tuple(each is not None and plain.has_seen(each, number) for each in found)
                assert table.seen(name, number)[::-1] == asked
        assert {key[1:] for key, _ in table.changed_entries()} == plain.changed()
        assert (len(table), table.missing) == (len(plain.persisted), missing(plain))


def test_a_record_that_was_not_seen_passes_once_and_one_below_the_window_is_too_late() -> None:
    table = LastSequences(kept=StateOptions(4))
    against = np.empty(7, np.int64)
    some: list[Row] = [(b"a", n, b"") for n in (10, 8, 8, 6, 5, 12, 7)]
    verdicts = ["fresh", "fresh", "duplicate", "fresh", "too late", "fresh", "too late"]
    assert judged(table, some, against) == verdicts
    assert against.tolist() == [-1, 10, 10, 10, 10, 10, 12]


def test_a_null_is_another_value_than_no_bytes() -> None:
    table = LastSequences(kept=StateOptions(fingerprints=True))
    rows_: list[Row] = [(b"a", 1, None), (b"a", 1, b""), (b"a", 1, None), (b"b", 1, b""), (b"b", 1, None)]
    assert judged(table, rows_) == ["fresh", "conflict", "duplicate", "fresh", "conflict"]


def test_the_form_of_an_entry_is_the_documented_one() -> None:
    table = LastSequences(kept=StateOptions(70, fingerprints=True, dense=True))
    judged(table, [(b"a", 130, b""), (b"a", 128, b""), (b"a", 131, b"x")])
    ((key, value),) = table.changed_entries()
    assert key == b"ia"
    assert value is not None
    sequence, flags, words, _, first, seen, low, high = struct.unpack(">qBBQqqQQ", value)
    # Bits of sequences modulo 128: 130 and 128.
    assert (sequence, flags, words, first, seen, low, high) == (131, 3, 2, 128, 3, 0b101, 0)


GOOD = struct.pack(">qBBQ", 9, 0, 1, 0)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        GOOD[:-1],
        GOOD + b"\0",
        GOOD + b"\0\0\0\0",
        b"\x80" + GOOD[1:],
        struct.pack(">qBB", 9, 0, 65) + bytes(65 * 8),
        struct.pack(">qBB", 9, 8, 0),
        struct.pack(">qBBqq", 9, 4, 0, 1, 1),
        struct.pack(">qBBqq", 9, 2, 0, 10, 1),
        struct.pack(">qBBqq", 9, 2, 0, 1, 0),
        struct.pack(">qBBqq", 9, 2, 0, 1, 10),
        struct.pack(">qBBqq", 9, 2, 0, -1, 1),
    ],
)
@pytest.mark.parametrize("kept", [PLAIN, StateOptions(64, fingerprints=True, dense=True)])
def test_a_value_that_cannot_be_is_refused(value: bytes, kept: StateOptions) -> None:
    good = [(b"ia", GOOD)]
    table = LastSequences(kept=kept)
    assert table.load(pack_entries("changelog", 0, good), saved=False)[0] == -1
    assert table.load(pack_entries("changelog", 0, [*good, (b"ib", value)]), saved=False)[0] == 1


def test_an_evicted_identity_begins_anew_and_takes_what_it_missed_along() -> None:
    table = LastSequences(timed=True, kept=StateOptions(64, fingerprints=True, dense=True))
    judged(table, [(b"a", 1, b""), (b"a", 9, b""), (b"b", 1, b""), (b"b", 3, b"")])
    table.commit(1)
    assert table.missing == 8
    table.evict(table.slots.of([b"a"]))
    table.rollback()
    assert (judged(table, [(b"a", 5, b"")]), table.missing) == (["fresh"], 8)
    table.rollback()
    table.evict(table.slots.of([b"a"]))
    table.commit(2)
    assert table.missing == 1
    assert judged(table, [(b"a", 5, b"x"), (b"a", 1, b"")]) == ["fresh", "fresh"]
    table.commit(3)
    assert table.missing == 4


def test_what_is_put_back_goes_on_below() -> None:
    table = LastSequences(kept=StateOptions(64, fingerprints=True, dense=True))
    judged(table, [(b"a", n, b"") for n in (1, 2, 4, 8)])
    table.commit()
    table.put_back({b"a": 4})
    table.commit()
    assert table.missing == 0
    assert judged(table, [(b"a", n, b"x") for n in (4, 3, 2, 8, 6)]) == [
        "duplicate",
        "fresh",
        "duplicate",
        "fresh",
        "fresh",
    ]


@pytest.mark.parametrize(
    ("value", "print_"),
    [
        (b"", 15576565056380245312),
        (b"1234567", 3914613300375025690),
        (b"12345678", 6425159647608815316),
        (b"123456789", 15587353103814610309),
        (bytes(range(200)), 16322847327248979308),
        (None, 9163087191798051686),
    ],
)
def test_a_fingerprint_stays_what_it_is_since_changelogs_have_it(value: bytes | None, print_: int) -> None:
    data = np.frombuffer(value or b"", np.uint8)
    assert windows.fingerprint(data, 0, -1 if value is None else len(data)) == print_
