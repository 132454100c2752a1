"""The store of a partition: its entries, its own keys, and what it stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_ratchet.errors import StateError
from kafka_ratchet.tables.store import Store
from kafka_ratchet.tables.totals import PROGRESS, Progress


def value(number: int) -> bytes:
    return number.to_bytes(8, "big")


def test_a_store_makes_no_files_before_the_first_write(tmp_path: Path) -> None:
    store = Store(tmp_path / "0")
    store.flush_much()
    assert (store.get(b"p"), store.find([b"a"]), store.edits(), store.missing, store.bytes) == (None, [], [], None, 0)
    store.close()
    assert list((tmp_path / "0").iterdir()) == []
    store = Store(tmp_path / "0")
    store.write([(b"ia", value(7))], 5, 1)
    assert (store.find([b"a"]), store.stands_for) == ([(b"ia", value(7))], (5, 1, None))
    store.close()
    store = Store(tmp_path / "0")
    assert (store.find([b"a"]), store.stands_for) == ([(b"ia", value(7))], (5, 1, None))
    store.close()


def test_a_new_store_is_empty(tmp_path: Path) -> None:
    store = Store(tmp_path / "a" / "b" / "0")
    assert (store.stands_for, store.progress, list(store.entries())) == ((0, 0, None), None, [])
    store.close()


def test_identities_that_look_like_the_stores_own_keys(tmp_path: Path) -> None:
    names = sorted([b"", b"p", b"c", b"i", b"\0", b"\xff", b"p\0", b"ii", b"\xff" * 1024])
    store = Store(tmp_path / "0")
    entries = [(b"i" + name, value(n)) for n, name in enumerate(names)]
    store.write([*entries, (PROGRESS, Progress(1, 2, 3, 4).pack())], 77, len(names))
    store.close()
    store = Store(tmp_path / "0")
    assert list(store.entries()) == entries
    assert (store.stands_for, store.progress) == ((77, len(names), None), Progress(1, 2, 3, 4))
    store.close()


def test_progress_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "0")
    store.write([(PROGRESS, b"\4" + Progress(1, 2, 3, 4).pack()[1:])], 1, 0)
    with pytest.raises(StateError, match=r"version 04; this Ratchet reads version 01") as raised:
        _ = store.progress
    assert str(tmp_path / "0") in str(raised.value)
    store.close()


def test_a_store_takes_columns_as_it_takes_entries(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.write([(b"ia", b"1" * 8), (b"ib", b"2" * 8)], 1, 2)
    columns: list[tuple[list[bytes], list[bytes | None]]] = [([b"ib", b"ic"], [None, b"3" * 8]), ([b"id"], [b"4" * 8])]
    store.write([(b"ie", b"5" * 8)], 2, 4, columns=columns)
    expected = [(b"ia", b"1" * 8), (b"ic", b"3" * 8), (b"id", b"4" * 8), (b"ie", b"5" * 8)]
    assert list(store.entries()) == expected
    store.close()
