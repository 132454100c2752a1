"""Reads from outside: only committed values, in every state of the open transaction, memory and store."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ratchet.tables.values import committed
from kafka_ratchet.tables.values.committed import CommittedTable
from kafka_ratchet.tables.values.table import Table
from tests.tables.values.test_table import KEYS, STEPS, Kept


def outside(kept: Kept, table: Table) -> CommittedTable:
    def scan(prefix: bytes, first: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        yield from ((key, value) for key, value in kept.scan(prefix) if key >= first)

    return CommittedTable(kept.partition.of(table.name), kept.store.get, scan, kept.partition.unsaved)


@given(st.lists(STEPS, max_size=60), KEYS)
@settings(max_examples=200, deadline=None)
def test_it_is_the_dict_as_of_the_last_commit(steps: list[tuple[str, Any, Any]], after: Any) -> None:
    table = Table("t")
    kept, persisted, pushed, saved_to = Kept(table), dict[Any, Any](), dict[Any, Any](), 0
    for what, key, value in steps:
        if what == "set":
            table[key] = pushed[key] = value
        elif what == "delete":
            table.pop(key, None)
            pushed.pop(key, None)
        elif what == "commit":
            kept.commit()
            persisted = dict(pushed)
        elif what == "rollback":
            kept.rollback()
            pushed = dict(persisted)
        elif what in ("save", "forget"):
            kept.save(0 if what == "forget" else 1 << 30)
            saved_to = len(kept.log)
        else:
            kept.replay(saved_to)
            pushed = dict(persisted)
        seen = outside(kept, table)
        expected = sorted((msgspec.json.encode(key), msgspec.json.encode(value)) for key, value in persisted.items())
        assert list(seen.entries()) == expected
        begin = msgspec.json.encode(after)
        assert list(seen.entries(begin)) == [entry for entry in expected if entry[0] > begin]
        held = seen.get(after)
        assert (None if held is None else msgspec.json.decode(held)) == persisted.get(after)


def test_reading_puts_nothing_into_memory() -> None:
    table = Table("t")
    kept = Kept(table)
    table["a"] = 1
    kept.commit()
    kept.save(0)
    seen = outside(kept, table)
    assert (seen.get("a"), list(seen.entries())) == (b"1", [(b'"a"', b"1")])
    assert kept.partition.of("t").values == {}


def test_very_many_keys_since_the_last_snapshot_are_said_to_be_missing(monkeypatch: Any) -> None:
    monkeypatch.setattr(committed, "RECENT_MOST", 1)
    table = Table("t")
    kept = Kept(table)
    table["a"] = 1
    kept.commit()
    kept.save()
    table["a"], table["b"] = 2, 2
    kept.commit()
    seen = outside(kept, table)
    assert not seen.is_complete
    assert list(seen.entries()) == [(b'"a"', b"2")]
