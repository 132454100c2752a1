"""Entries of the map in a snapshot: each once, values and nulls unchanged, and in order."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kafka_ratchet.rule.identities import Identities
from kafka_ratchet.rule.windows import StateOptions
from kafka_ratchet.tables.map.map import LastSequences
from kafka_ratchet.tables.map.written import sort_keys


def judged(table: LastSequences, names: list[bytes], sequences: list[int]) -> None:
    data = np.frombuffer(b"".join(names) + b" ", np.uint8)
    lengths = np.array([len(name) for name in names], np.int64)
    begins = np.cumsum(lengths) - lengths
    identities = Identities(data, begins, lengths, np.empty(0, np.int64), 0)
    reasons = np.zeros(len(names), np.uint8)
    table.judge(identities, 100, np.array(sequences, np.int64), reasons)


def plain(last: dict[bytes, int | None], seconds: int | None) -> dict[bytes, bytes | None]:
    behind = b"" if seconds is None else seconds.to_bytes(4, "big")
    return {b"i" + name: None if n is None else n.to_bytes(8, "big") + behind for name, n in last.items()}


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("at_a_time", [1, 7, 10_000])
def test_it_is_what_a_dictionary_says(timed: bool, at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_ratchet.tables.map.written.AT_A_TIME", at_a_time)
    choose = random.Random(at_a_time)
    last: dict[bytes, int | None] = {}
    table = LastSequences(timed=timed)
    for turn in range(4):
        names = [b"user-%d" % choose.randrange(60) + b"z" * choose.randrange(12) for _ in range(50)]
        sequences = [turn * 1_000 + i for i in range(50)]
        judged(table, names, sequences)
        table.commit(5 + turn)
        last |= dict(zip(names, sequences, strict=True))
        if turn == 1:
            table.saved()
            last = {}
    gone = choose.sample(sorted(last), 3)
    table.put_back(dict.fromkeys(gone, -1))
    table.commit(9)
    last |= dict.fromkeys(gone)
    found = list(table.unsaved_entries())
    assert len(found) == len(last)
    assert {key: value and value[:8] for key, value in found} == plain(last, None)
    assert {len(value) for _, value in found if value is not None} == {12 if timed else 8}


def test_longer_values_come_one_by_one_too() -> None:
    table = LastSequences(kept=StateOptions(64, dense=True))
    judged(table, [b"a", b"b", b"a"], [1, 5, 2])
    table.commit()
    found = dict(table.unsaved_entries())
    assert sorted(found) == [b"ia", b"ib"]
    last = {key: (value or b"")[:8] for key, value in found.items()}
    assert last[b"ia"] == (2).to_bytes(8, "big")
    assert last[b"ib"] == (5).to_bytes(8, "big")
    assert list(LastSequences().unsaved_entries()) == []


@pytest.mark.parametrize("prefix", [b"", b"user-", b"eight by", b"longer than eight bytes"])
def test_they_come_in_order_behind_what_all_begin_with(prefix: bytes) -> None:
    names = [prefix + b"%06d" % n for n in range(300)]
    table = LastSequences()
    judged(table, random.Random(1).sample(names, len(names)), [1] * len(names))
    table.commit()
    keys = [key for key, _ in table.unsaved_entries()]
    assert sorted(keys) == [b"i" + name for name in names]
    if len(prefix) + 6 <= 16:  # of longer ones the first 16 bytes are looked at
        assert keys == sorted(keys)


def test_the_bytes_that_tell() -> None:
    first, second = (np.array([n, n], np.uint64) for n in (0x0102030405060708, 0x1112131415161718))
    assert sort_keys(first, second).tolist() == second.tolist()
    first[1] += 0x100
    assert [hex(n) for n in sort_keys(first, second).tolist()] == ["0x708111213141516", "0x808111213141516"]
    first[1] += 1 << 63
    assert sort_keys(first, second).tolist() == first.tolist()
