import itertools
import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ratchet.rule import kernels
from kafka_ratchet.rule.extraction import Reader, reader_for
from kafka_ratchet.rule.identities import in_columns
from kafka_ratchet.rule.identity import (
    MAX_IDENTITY_BYTES,
    PRODUCER_HEADER,
    SEQUENCE_HEADER,
    SEQUENCE_MAX,
    Identity,
    SequenceForm,
    SequenceSource,
)
from kafka_ratchet.rule.reasons import REASONS
from kafka_ratchet.tables.map.map import LastSequences
from kafka_ratchet.tables.map.slots import FIRST_SLOTS
from tests.tables.fetched_records import Sent, fetched, named
from tests.tables.map.plain_judge import PlainJudge, sequence_of

VERDICTS = ("fresh", "duplicate", "invalid")
BY = {"partition": Identity.PARTITION, "key": Identity.KEY, "producer": Identity.PRODUCER}


def reader(form: str) -> Reader:
    return reader_for(SequenceSource.parse(f"header:{SEQUENCE_HEADER}"), SequenceForm(form))


READ = reader("guess")

EDGES = [
    0,
    1,
    2**40 - 1,
    2**40,
    2**40 + 1,
    2**41,
    2**61,
    2**61 + 1,
    2**31,
    2**32,
    2**53,
    SEQUENCE_MAX - 1,
    SEQUENCE_MAX,
]
numbers = st.one_of(st.integers(0, 12), st.sampled_from(EDGES), st.integers(0, SEQUENCE_MAX))
sequence_values = st.one_of(
    numbers.map(lambda n: n.to_bytes(8, "big")),
    numbers.map(lambda n: str(n).encode()),
    st.integers(-(2**63), -1).map(lambda n: n.to_bytes(8, "big", signed=True)),
    st.integers(-(10**30), 10**30).map(lambda n: str(n).encode()),
    st.text("0123456789-", min_size=8, max_size=8).map(str.encode),
    st.text("0123456789+-. e_", max_size=24).map(str.encode),
    st.binary(min_size=8, max_size=8),
    st.binary(max_size=12),
    st.none(),
)
POOL = [
    *(
        b"",
        b"a",
        b"b",
        b"a\0",
        b"\0",
        b"\0\0",
        b"p",
        b"c",
        b"i",
        b"ia",
        b"abcdefgh",
        b"abcdefghi",
        b"\xff\xfe",
        b"../x",
    ),
    *(bytes(size) for size in (7, 8, 9, 16, 17)),
    *(b"x" * size for size in (MAX_IDENTITY_BYTES - 1, MAX_IDENTITY_BYTES, MAX_IDENTITY_BYTES + 1, 5_000)),
    b"x" * (MAX_IDENTITY_BYTES - 1) + b"y",
]
identities = st.one_of(st.sampled_from(POOL), st.binary(max_size=10), st.none())


@st.composite
def records(draw: st.DrawFn) -> Sent:
    headers: list[tuple[str, bytes | None]] = []
    usually_once = st.sampled_from([1] * 12 + [0, 2])
    headers += [(SEQUENCE_HEADER, draw(sequence_values)) for _ in range(draw(usually_once))]
    headers += [(PRODUCER_HEADER, draw(identities)) for _ in range(draw(usually_once))]
    headers += [("ratchet-sequenc", b"1"), ("", None)][: draw(st.integers(0, 2))]
    return Sent(draw(identities), b"value", tuple(draw(st.permutations(headers))))


steps = st.lists(
    st.one_of(st.lists(records(), max_size=12), st.sampled_from(["commit", "roll back"])), min_size=1, max_size=10
)


def compare(by: str, todo: list[list[Sent] | str], slots: int = 8, form: str = "guess") -> None:
    plain, table, read = PlainJudge(by, form), LastSequences(), reader(form)
    table.slots.allocate(slots)
    seen: set[bytes] = {b"never seen"}
    for step in todo:
        if step == "commit":
            plain.commit()
            table.commit()
        elif step == "roll back":
            plain.rollback()
            table.rollback()
        else:
            assert not isinstance(step, str)
            batch = fetched(step)
            sequences, reasons = read(batch)
            verdicts = table.judge(in_columns(batch, BY[by]), MAX_IDENTITY_BYTES, sequences, reasons)
            found = [(VERDICTS[v], REASONS[r]) for v, r in zip(verdicts, reasons, strict=True)]
            plain.jumps.clear()
            assert found == [plain.judge(record) for record in step]
            last = plain.jumps[-1] if plain.jumps else None
            count, index, before = table.jumps
            assert (count, (before, int(sequences[index])) if count else None) == (len(plain.jumps), last)
        seen |= plain.pushed.keys()
        changed = [(key[1:], int.from_bytes(value or b"", "big")) for key, value in table.changed_entries()]
        assert len(changed) == table.changes == len(dict(changed))
        assert dict(changed) == plain.changed()
        assert {name: table.get(name) for name in seen} == {
            name: (plain.persisted.get(name, -1), plain.pushed.get(name, -1)) for name in seen
        }
        assert len(table) == len(plain.persisted)


@pytest.mark.parametrize("by", BY)
@settings(deadline=None, max_examples=150, derandomize=True)
@given(todo=steps)
def test_every_verdict_is_the_plain_one(by: str, todo: list[list[Sent] | str]) -> None:
    compare(by, todo)


@pytest.mark.parametrize("form", ["text", "integer"])
@settings(deadline=None, max_examples=100, derandomize=True)
@given(todo=steps)
def test_every_verdict_is_the_plain_one_in_a_stated_form(form: str, todo: list[list[Sent] | str]) -> None:
    compare("producer", todo, form=form)


@pytest.mark.parametrize(
    ("form", "value", "meaning"),
    [
        ("text", b"2024-1-1", "sequence-not-a-number"),
        ("text", b"12345678", 12345678),
        ("text", b"\0" * 8, "sequence-not-a-number"),
        ("text", b"-5", "sequence-negative"),
        ("integer", b"12345678", int.from_bytes(b"12345678", "big")),
        ("integer", b"1000", "sequence-not-a-number"),
        ("integer", b"\xff" * 8, "sequence-negative"),
        ("guess", b"2024-1-1", int.from_bytes(b"2024-1-1", "big")),
    ],
)
def test_a_stated_form_is_the_only_one(form: str, value: bytes, meaning: int | str) -> None:
    sequences, reasons = reader(form)(fetched([raw(value)]))
    assert (REASONS[reasons[0]] or int(sequences[0])) == meaning == sequence_of([value], form)


def raw(*values: bytes | None) -> Sent:
    return Sent(headers=tuple((SEQUENCE_HEADER, value) for value in values))


@pytest.mark.parametrize(
    ("values", "meaning"),
    [
        ([b"12345678"], 12345678),
        ([b"-1234567"], "sequence-negative"),
        ([b"-0000000"], 0),
        ([b"--------"], int.from_bytes(b"--------", "big")),
        ([b"1234.567"], int.from_bytes(b"1234.567", "big")),
        ([b"        "], int.from_bytes(b"        ", "big")),
        ([b"\x7f" + b"\xff" * 7], SEQUENCE_MAX),
        ([b"\x80" + b"\0" * 7], "sequence-negative"),
        ([b"\xff" * 8], "sequence-negative"),
        ([b"\0" * 8], 0),
        ([b"\0" * 7], "sequence-not-a-number"),
        ([b"\0" * 9], "sequence-not-a-number"),
        ([b"9223372036854775807"], SEQUENCE_MAX),
        ([b"9223372036854775808"], "sequence-out-of-range"),
        ([b"18446744073709551616"], "sequence-out-of-range"),
        ([b"-9223372036854775809"], "sequence-negative"),
        ([b"0" * 10_000 + b"7"], 7),
        ([b"9" * 1_000_000], "sequence-out-of-range"),
        ([b"-" + b"9" * 1_000_000], "sequence-negative"),
        ([b"-0"], 0),
        ([b"-"], "sequence-not-a-number"),
        ([b"+5"], "sequence-not-a-number"),
        ([b" 5"], "sequence-not-a-number"),
        ([b"5\n"], "sequence-not-a-number"),
        ([b"1e3"], "sequence-not-a-number"),
        ([b"five"], "sequence-not-a-number"),
        (["٥".encode()], "sequence-not-a-number"),
        ([b""], "sequence-missing"),
        ([None], "sequence-missing"),
        ([], "sequence-missing"),
        ([b"1", b"1"], "sequence-repeated"),
        ([b"1", None], "sequence-repeated"),
    ],
)
def test_what_a_header_means(values: list[bytes | None], meaning: int | str) -> None:
    sequences, reasons = READ(fetched([raw(*values)]))
    found = REASONS[reasons[0]] or int(sequences[0])
    assert found == meaning
    if sum(len(value or b"") for value in values) < 4_000:  # Python converts no longer ones
        assert sequence_of(values) == meaning


def test_a_map_that_grows_keeps_its_open_transaction() -> None:
    count = 50_000
    order = list(range(count))
    random.Random(5).shuffle(order)
    plain, table = PlainJudge("producer"), LastSequences()
    table.slots.allocate(8)  # so that the open transaction is carried through every size
    for first in range(0, count, 5_000):
        chunk = [record for n in order[first : first + 5_000] for record in named(b"producer-%d" % n, n, n + 1, n)]
        batch = fetched(chunk)
        sequences, reasons = READ(batch)
        verdicts = table.judge(in_columns(batch, BY["producer"]), MAX_IDENTITY_BYTES, sequences, reasons)
        assert [VERDICTS[v] for v in verdicts] == [plain.judge(record)[0] for record in chunk]
        if first == 20_000:  # half of it committed, the other half open
            table.commit()
            plain.commit()
    assert len(table.slots.hashes) > FIRST_SLOTS
    assert {key[1:]: int.from_bytes(value or b"", "big") for key, value in table.changed_entries()} == plain.changed()
    for name, last in plain.pushed.items():
        assert table.get(name) == (plain.persisted.get(name, -1), last)
    table.rollback()
    for name in plain.pushed:
        assert table.get(name) == (plain.persisted.get(name, -1),) * 2
    assert len(table) == len(plain.persisted) == 25_000


def test_a_rehash_by_itself_changes_nothing() -> None:
    table = LastSequences()
    table.slots.allocate(8)
    batch = fetched(named(b"a", 1) + named(b"b", 2) + named(b"c", 3))
    table.judge(in_columns(batch, BY["producer"]), MAX_IDENTITY_BYTES, *READ(batch))
    before = dict(table.changed_entries())
    for slots in (16, 64, 4096):
        table.grow(slots)
        assert dict(table.changed_entries()) == before
        assert [table.get(name) for name in (b"a", b"b", b"c", b"d")] == [(-1, 1), (-1, 2), (-1, 3), (-1, -1)]


def chosen_identities() -> Iterator[bytes]:
    """Pairs of words that differ in the highest bit, and in what a multiplication and a shift make of it."""
    for bits in itertools.product((0, 1), repeat=10):
        yield b"".join(struct.pack("<QQ", bit << 63, bit << 63 | bit << 34) for bit in bits)


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(list(chosen_identities()), id="differences that cancel out"),
        pytest.param([bytes(n) for n in range(1_000)], id="zeros"),
        pytest.param([b"%d" % n for n in range(1_000)], id="numbers"),
        pytest.param([struct.pack("<Q", n << 48) for n in range(1_000)], id="high bits"),
    ],
)
def test_nobody_can_choose_identities_that_collide(chosen: list[bytes]) -> None:
    for seed in (0, 1, 2**63, 12_345_678_901_234_567_890):
        hashes = [int(kernels.hash_of(np.frombuffer(name, np.uint8), 0, len(name), np.uint64(seed))) for name in chosen]
        assert len(set(hashes)) == len(chosen)
        assert 0 not in hashes
        # Thrown into as many slots at random, 1 - 1/e of them are met.
        assert len({h % 1024 for h in hashes}) > 550


def test_an_equal_hash_is_not_an_equal_identity() -> None:
    table = LastSequences()
    table.slots.allocate(8)
    batch = fetched(named(b"a", 5))
    table.judge(in_columns(batch, BY["producer"]), MAX_IDENTITY_BYTES, *READ(batch))
    (old,) = np.flatnonzero(table.slots.hashes)
    other = int(kernels.hash_of(np.frombuffer(b"b", np.uint8), 0, 1, table.slots.seed))
    columns: tuple[Any, ...] = (
        table.slots.hashes,
        table.slots.starts,
        table.slots.lengths,
        table.slots.pushed,
        table.slots.changed,
    )
    moved = [column[old].item() for column in columns]
    table.slots.hashes[old] = 0
    for column, value in zip(columns, [other, *moved[1:]], strict=True):
        column[other % 8] = value
    table._changed[0] = other % 8
    assert dict(table.changed_entries()) == {b"ia": (5).to_bytes(8, "big")}
    assert table.get(b"b") == (-1, -1)
