"""Global tables: what a program can look up, and what it is told where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kafka_ratchet.errors import SettingsError, StateError, TableError
from kafka_ratchet.tables.values.global_table import ENTRY_BYTES, Contents, GlobalTable


class Country(msgspec.Struct):
    name: str
    tax: int = 0


def filled(table: GlobalTable, *records: tuple[bytes, bytes | None], partitions: int = 1) -> GlobalTable:
    """Records go round the partitions."""
    table.contents = Contents(partitions, table.most, table.name)
    for number, (key, value) in enumerate(records):
        table.contents.put(number % partitions, key, value)
    return table


def test_it_is_a_mapping_of_the_newest_values() -> None:
    table = filled(
        GlobalTable("countries", "c", value_type=Country),
        (b"de", b'{"name":"Germany"}'),
        (b"ch", b'{"name":"?"}'),
        (b"fr", b'{"name":"France"}'),
        (b"ch", b'{"name":"Switzerland","tax":8}'),
        (b"fr", None),
        (b"es", None),
    )
    assert (table["de"], table.get("ch"), table.get("fr", "none")) == (
        Country("Germany"),
        Country("Switzerland", 8),
        "none",
    )
    assert (sorted(table), len(table), "ch" in table, "fr" in table) == (["ch", "de"], 2, True, False)
    assert dict(table.items())["ch"].tax == 8
    with pytest.raises(KeyError):
        table["fr"]
    with pytest.raises(TableError, match="key 1 is int, not str"):
        table[1]


def test_what_is_changed_in_a_value_changes_nothing_in_the_table() -> None:
    table = filled(GlobalTable("t", "t"), (b"a", b"[1]"))
    table["a"].append(2)
    assert table["a"] == [1]


@pytest.mark.parametrize(
    ("options", "key", "data", "value"),
    [
        ({"key_type": int}, 7, b"7", 1),
        ({"key_type": bytes, "value_type": bytes}, b"\xff", b"\xff", b"\x00"),
        ({"key_type": tuple[str, int]}, ("a", 1), b'["a",1]', [1]),
        ({"serializer": "msgpack", "value_type": Country}, "é", "é".encode(), Country("x")),
    ],
)
def test_typed_keys_and_values(options: Any, key: Any, data: bytes, value: Any) -> None:
    table = GlobalTable("t", "t", **options)
    filled(table, (table.key_bytes(key), table.value_bytes(value)))
    assert (table.key_bytes(key), table[key], list(table)) == (data, value, [key])


def test_a_default_is_made_and_not_kept() -> None:
    table = filled(GlobalTable("t", "t", default=list))
    assert (table["a"], table.get("a"), "a" in table, len(table)) == ([], None, False, 0)


def test_writes_are_refused_with_the_way_to_do_it() -> None:
    table: Any = filled(GlobalTable("t", "prices"), (b"a", b"1"))
    writes: tuple[Callable[[], object], ...] = (
        lambda: table.__setitem__("a", 1),
        lambda: table.__delitem__("a"),
        lambda: table.pop("a"),
        lambda: table.update(a=1),
    )
    for write in writes:
        with pytest.raises(
            TableError, match=r"table t: is read-only. Write to its topic prices, with `await topic.send"
        ):
            write()


def test_a_value_that_does_not_decode_is_an_error_for_its_key_alone() -> None:
    table = filled(GlobalTable("t", "c", value_type=Country), (b"a", b"{}"), (b"b", b'{"name":"B"}'))
    assert table["b"] == Country("B")
    with pytest.raises(TableError, match=r"table t: the value of key b'a' in topic c cannot be read: .*name"):
        table["a"]


def test_a_key_in_two_partitions_is_refused_for_nobody_knows_which_is_newer() -> None:
    table = filled(GlobalTable("t", "c"), (b"a", b"1"), (b"b", b"2"), (b"b", b"3"), partitions=2)
    assert table["a"] == 1
    with pytest.raises(TableError, match="key 'b' is in partitions 0, 1 of topic c"):
        table["b"]
    assert table.contents is not None
    table.contents.put(0, b"b", None)
    assert (table["b"], len(table)) == (2, 2)


def test_before_it_is_read_and_when_it_is_too_large() -> None:
    table = GlobalTable("t", "c", memory_mb=1)
    with pytest.raises(StateError, match="has not been read"):
        table.get("a")
    contents = Contents(1, 2 * ENTRY_BYTES, "t")
    contents.put(0, b"a", b"x" * 50)
    contents.put(0, b"a", b"1")
    assert contents.size == ENTRY_BYTES + 2
    with pytest.raises(StateError, match=r"table t: takes more than memory_mb = 0, after 2 keys"):
        contents.put(0, b"b", b"1")


def test_a_type_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(SettingsError, match="serializer is 'xml'"):
        GlobalTable("t", "t", serializer="xml")  # type: ignore[arg-type]
