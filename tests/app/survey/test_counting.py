"""Counts of a survey, compared with plain dictionaries; and a bounded memory, which follows a sample."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Hashable
from statistics import mean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ratchet.app.survey.counting import BatchHashes, Counts, Table, slots_most
from kafka_ratchet.app.survey.places import KEY, PARTITION, WHOLE, Candidate, Candidates, RecordPart
from kafka_ratchet.app.survey.report import Bucket, Finding
from tests.app.survey.batches import batch_of
from tests.app.survey.plain_count import PlainCount, PlainRecord, plain_count, plain_order

NOW_MS = 1_800_000_000_000
ENOUGH = 1 << 26
BATCH_MOST = 2_000
SEEDS = 12
SOURCE, ID = RecordPart("header", "ce_source"), RecordPart("header", "ce_id")
FIELD, NUMBER = RecordPart("field", "a.id"), RecordPart("field", "n")


def header(record: PlainRecord, name: str) -> bytes | None:
    found = [value for each, value in record.headers if each == name]
    return found[0] or None if len(found) == 1 else None


def field(record: PlainRecord) -> Hashable | None:
    try:
        found = json.loads(record.value or b"")
    except ValueError:
        return None
    found = found.get("a") if isinstance(found, dict) else None
    found = found.get("id") if isinstance(found, dict) else None
    return str(found) if isinstance(found, str | int) and not isinstance(found, bool) and found != "" else None


def pair(record: PlainRecord) -> Hashable | None:
    found = header(record, "ce_source"), header(record, "ce_id")
    return None if None in found else found


IDENTITIES: dict[Candidate, Callable[[PlainRecord], Hashable | None]] = {
    Candidate((WHOLE,)): lambda record: (record.key, record.value, record.headers),
    Candidate((KEY,)): lambda record: record.key,
    Candidate((ID,)): lambda record: header(record, "ce_id"),
    Candidate((SOURCE, ID)): pair,
    Candidate((FIELD,)): field,
}


def histogram(counts: list[Bucket]) -> dict[int, int]:
    return {each.most.bit_length(): each.records for each in counts if each.records}


def agrees(found: Finding, plain: PlainCount) -> None:
    assert found.one_of == 1
    assert PlainCount(
        found.records,
        found.distinct,
        found.equal,
        found.conflicts,
        found.across,
        found.across_conflicts,
        plain.ages,
        plain.distances,
        found.age_most_ms,
    ) == PlainCount(*(getattr(plain, name) for name in plain.__dataclass_fields__)), str(found.candidate)
    assert histogram(found.ages) == dict(plain.ages)
    assert histogram(found.distances) == dict(plain.distances)


def counted(
    records: list[PlainRecord], candidates: tuple[Candidate, ...], memory: int = ENOUGH, seed: int = 7
) -> list[Finding]:
    """Each run of records of one partition is a batch, or several."""
    counts = Counts(Candidates(candidates), memory, NOW_MS, seed)
    batch: list[PlainRecord] = []
    for record in records:
        if batch and (batch[-1].partition != record.partition or len(batch) == BATCH_MOST):
            counts.add(BatchHashes(batch_of(batch), counts.reader))
            batch = []
        batch.append(record)
    counts.add(BatchHashes(batch_of(batch), counts.reader))
    assert counts.records == len(records)
    return [Finding.of(count, counts.records) for count in counts.of]


FEW = st.sampled_from([None, b"", b"a", b"b", b"ab", b"a very long identity, of more than eight bytes"])
HEADERS = st.lists(st.tuples(st.sampled_from(["ce_source", "ce_id", "x", "ce_i"]), FEW), max_size=4)
VALUES = FEW | st.sampled_from(
    [
        b'{"a":{"id":"1"}}',
        b'{"a":{"id":1},"n":3}',
        b' { "n" : 1 , "a" : { "b":[{"id":9}], "id" : "2" } } ',
        b'{"a":{"id":"2","id":"3"}}',
        b'{"a":{"id":null}}',
        b'{"a":{"id":true}}',
        b'{"a":{"id":{}}}',
        b'{"a":[{"id":"1"}]}',
        b'{"id":"1"}',
        b'{"a":{"id":"1"}',
        b'{"a":{"id":"1"}}}',
        b'["a"]',
        b'{"a":{"x":"}","id":"\xc3\xa9"}}',
    ]
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(-1, 5_000), FEW, VALUES, HEADERS),
        min_size=1,
        max_size=60,
    )
)
def test_counts_are_those_of_plain_dictionaries(
    drawn: list[tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
) -> None:
    offsets = [0, 0, 0]
    records = []
    for partition, timestamp, key, value, headers in drawn:
        records.append(PlainRecord(partition, offsets[partition], timestamp, key, value, tuple(headers)))
        offsets[partition] += 1
    for found, identity in zip(counted(records, tuple(IDENTITIES)), IDENTITIES.values(), strict=True):
        agrees(found, plain_count(records, identity))


def numbered(count: int, seed: int = 3) -> list[PlainRecord]:
    """Devices whose numbers are now and then late, sent again, or of another value."""
    choose = random.Random(seed)
    numbers: dict[int, int] = {}
    waiting: list[tuple[int, int]] = []
    sent: list[tuple[int, int]] = []
    records: list[PlainRecord] = []
    while len(records) < count:
        draw = choose.random()
        if draw < 0.15 and sent:
            device, number = choose.choice(sent[-400:])
        elif draw < 0.25 and waiting:
            device, number = waiting.pop(choose.randrange(len(waiting)))
        else:
            device = choose.randrange(40)
            numbers[device] = number = numbers.get(device, 10) + 1
            if choose.random() < 0.05:
                waiting.append((device, number))
                continue
        sent.append((device, number))
        value = b'{"n":%d,"t":%d}' % (number, number % 7 if choose.random() < 0.99 else 100)
        place = device % 3
        records.append(PlainRecord(place, 5 + len(records), 1_000 + len(records) * 20, b"d%d" % device, value))
    # Offsets within a partition follow each other, as batches have them.
    ordered = sorted(records, key=lambda record: record.partition)
    return [
        record._replace(offset=5 + number)
        for partition in range(3)
        for number, record in enumerate(each for each in ordered if each.partition == partition)
    ]


def test_late_numbers_are_those_of_plain_dictionaries() -> None:
    records = numbered(4_000)
    by_key, by_partition = counted(records, (Candidate((KEY,), NUMBER), Candidate((PARTITION,), NUMBER)))

    def number(record: PlainRecord) -> int:
        found: int = json.loads(record.value or b"")["n"]
        return found

    agrees(by_key, plain_count(records, lambda record: (record.key, number(record))))
    for found, owner in ((by_key, lambda record: record.key), (by_partition, lambda record: record.partition)):
        plain = plain_order(records, owner, number)
        assert found.numbers is not None
        assert (found.numbers.rises, found.numbers.late, found.numbers.before) == plain[:3]
        assert found.numbers.late_most == plain.late_most
        assert histogram(found.numbers.lates) == dict(plain.lates)
        assert plain.late
        for size, passes in found.numbers.windows:
            assert passes == sum(each for bits, each in plain.lates.items() if (1 << bits) <= size)


def test_a_topic_that_is_read_from_its_first_record_on_knows_that_a_lower_number_is_new() -> None:
    records = [PlainRecord(0, n, 1, b"k", b'{"n":%d}' % number) for n, number in enumerate((5, 3, 4, 3, 6))]
    for whole, expected in ((frozenset[int](), (0, 2)), (frozenset({0}), (2, 0))):
        counts = Counts(Candidates((Candidate((KEY,), NUMBER),)), ENOUGH, NOW_MS, 1, whole)
        counts.add(BatchHashes(batch_of(records), counts.reader))
        numbers = Finding.of(counts.of[0], 5).numbers
        assert numbers is not None
        assert (numbers.late, numbers.before) == expected


def test_above_the_bound_a_sample_is_followed_whose_counts_are_within_their_error() -> None:
    choose = random.Random(5)
    ids = [b"%016x" % choose.getrandbits(64) for _ in range(30_000)]
    records = []
    for n in range(30_000):
        chosen = ids[choose.randrange(max(0, n - 5_000), n)] if n and choose.random() < 0.25 else ids[n]
        # One of a hundred changes its partition, one of fifty its value.
        partition = 0 if choose.random() < 0.99 else 1
        value = b"w" if choose.random() < 0.02 else b"v"
        records.append(PlainRecord(partition, 0, 1_000 + n, chosen, value))
    records = [
        record._replace(offset=number)
        for partition in (0, 1)
        for number, record in enumerate(each for each in records if each.partition == partition)
    ]
    plain = plain_count(records, lambda record: record.key)
    truth = {
        "distinct": plain.distinct,
        "duplicates": plain.equal + plain.conflicts,
        "conflicts": plain.conflicts,
        "across_partitions": plain.across + plain.across_conflicts,
    }
    tried: dict[str, list[tuple[int, int]]] = {name: [] for name in truth}
    for seed in range(SEEDS):
        [found] = counted(records, (Candidate((KEY,)),), 1 << 17, seed)
        assert found.one_of >= 8
        counts = (found.distinct, found.duplicates, found.conflicts, found.across + found.across_conflicts)
        for (name, count), wrong in zip(zip(truth, counts, strict=True), found.errors.values(), strict=True):
            tried[name].append((count, wrong))
    for name, each in tried.items():
        counts_of, errors = [count for count, _ in each], [wrong for _, wrong in each]
        assert list(found.errors) == list(truth)
        # What is said is two standard errors. The seeds are fixed, so this holds always or never.
        assert sum(abs(count - truth[name]) <= wrong for count, wrong in each) >= 0.75 * SEEDS, name
        assert abs(mean(counts_of) - truth[name]) <= 1.5 * mean(errors) / SEEDS**0.5, name
        assert 0.5 <= stdev(counts_of) / (mean(errors) / 2) <= 2, name


def test_every_record_of_a_sampled_id_is_found() -> None:
    """Its second record comes long after the tables have become a smaller sample."""
    keys = [b"key-%d" % n for n in range(20_000)]
    records = [PlainRecord(0, n, 1, keys[n % 20_000], b"v") for n in range(40_000)]
    [found] = counted(records, (Candidate((KEY,)),), 1 << 17)
    assert found.one_of > 1
    # Each id came exactly twice, so each one in the last sample has exactly one duplicate.
    assert found.duplicates % found.one_of == 0
    assert abs(found.duplicates - 20_000) <= 1.5 * found.errors["duplicates"]


def test_a_time_far_ahead_does_not_stop_the_clock() -> None:
    times = [1_000, 253_402_300_799_000, 3_000, -1, 9_000]
    records = [PlainRecord(0, n, time, b"k", b"v") for n, time in enumerate(times)]
    counts = Counts(Candidates((Candidate((KEY,)),)), ENOUGH, NOW_MS, 1)
    counts.add(BatchHashes(batch_of(records), counts.reader))
    found = Finding.of(counts.of[0], 5)
    assert counts.future == 1
    assert (counts.first_ms, counts.last_ms) == (1_000, 9_000)
    assert found.age_most_ms == 6_000
    assert found.duplicates == 4


@pytest.mark.parametrize("candidates", [1, 7, 12])
def test_tables_stay_within_the_memory_even_while_they_grow(candidates: int) -> None:
    memory = 100 << 20
    slots = slots_most(memory, candidates)
    table = Table(slots)
    while table.may_grow:
        table.refill(0, grow=True)
    assert len(table.rows) == slots
    assert candidates * table.rows.nbytes * 5 // 4 <= memory
