"""Tables of one's own next to a plain dict, through commits, rollbacks, lost stores and replays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import make_dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kafka_ratchet.errors import SettingsError, TableError
from kafka_ratchet.tables.values.partition import ENTRY_BYTES, SMALL_BYTES, PartitionTables
from kafka_ratchet.tables.values.table import Table
from kafka_ratchet.tables.values.table_partition import nothing
from kafka_ratchet.transport.batch.chunk import read_chunk

LIMIT = 1 << 20
FIELDS = "json by Key, fields [0-9a-f]{12}, but the program declares json by Key, fields "


class Point(msgspec.Struct):
    x: int
    tags: list[str] = []


def keyed(tag: str | None = None, omit_defaults: bool = False, **fields: Any) -> Any:
    """A class of keys as one version of a program has it: name and type of each field, or type and default."""
    each = [(name, *kind) if isinstance(kind, tuple) else (name, kind) for name, kind in fields.items()]
    return msgspec.defstruct("Key", each, frozen=True, tag=tag, omit_defaults=omit_defaults)


def described(kind: Any) -> Any:
    return Annotated[kind, msgspec.Meta(title="Key")]


def listed(**fields: Any) -> Any:
    return NamedTuple("Key", list(fields.items()))


def dated(**fields: Any) -> Any:
    return make_dataclass("Key", list(fields.items()), frozen=True)


class Tree(msgspec.Struct, frozen=True):
    left: Tree | None = None


Item = TypeVar("Item")


class Pair(msgspec.Struct, Generic[Item], frozen=True):
    left: Item
    right: Item


class Kept:
    """A store that is a dict, and a changelog that is a list."""

    def __init__(self, *tables: Table) -> None:
        self.tables, self.store, self.log = tables, dict[bytes, bytes](), list[bytes]()
        self.begin()

    def begin(self) -> None:
        self.partition = PartitionTables(self.store.get, self.scan)
        for table in self.tables:
            self.partition.add(table.codec, table.default)
        self.partition.open()
        self.run()

    def scan(self, prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return ((key, self.store[key]) for key in sorted(self.store) if key.startswith(prefix) and key >= first)

    def run(self) -> None:
        for table in self.tables:
            table.here.set(self.partition.of(table.name))

    def commit(self) -> None:
        self.partition.check_lent()
        self.log += [bytes(encoded.seal(1, 0, 0)) for encoded in self.partition.encode(LIMIT)]
        self.partition.commit()

    def rollback(self) -> None:
        self.partition.rollback()
        self.run()

    def save(self, most: int = 1 << 30) -> None:
        for key, value in self.partition.unsaved_entries():
            if value is None:
                self.store.pop(key, None)
            else:
                self.store[key] = value
        self.partition.saved(most)

    def replay(self, from_: int = 0) -> None:
        """Another worker: the store as it is, and the changelog from a place that the store has at least."""
        self.begin()
        for data in self.log[from_:]:
            assert self.partition.apply(read_chunk("changelog", 0, 0, data, [])).count == 0


KEYS = st.one_of(st.text(max_size=3), st.integers(-(2**63), 2**64 - 1), st.sampled_from([0, 1, "0", "1", ""]))
PLAIN = st.one_of(st.integers(-(2**63), 2**64 - 1), st.text(max_size=5), st.booleans(), st.none())
VALUES = st.one_of(PLAIN, st.floats(allow_nan=False, allow_infinity=False), st.lists(st.integers(0, 9), max_size=3))
STEPS = st.one_of(
    st.tuples(st.just("set"), KEYS, VALUES),
    st.tuples(st.just("update"), st.none(), st.dictionaries(KEYS, st.one_of(PLAIN, VALUES), max_size=4)),
    st.tuples(st.just("delete"), KEYS, st.none()),
    st.tuples(st.sampled_from(["commit", "rollback", "save", "forget", "replay"]), st.none(), st.none()),
)


@given(st.lists(STEPS, max_size=60))
@settings(max_examples=200, deadline=None)
def test_a_table_is_a_dict_that_can_be_rolled_back_and_lost(steps: list[tuple[str, Any, Any]]) -> None:
    table = Table("t")
    kept, pushed, persisted, saved_to = Kept(table), dict[Any, Any](), dict[Any, Any](), 0
    for what, key, value in steps:
        if what == "set":
            table[key] = pushed[key] = value
        elif what == "update":
            table.update(value)
            pushed.update(value)
            assert table.get_many([*value, *value]) == value
        elif what == "delete":
            assert (key in table) == (key in pushed)
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
        assert dict(table.items()) == pushed
        assert [type(each) for each in table.values()] == [type(table[each]) for each in table]


def test_many_keys_are_asked_for_and_written_at_once() -> None:
    table, lists, strict = Table("t", default=int), Table("lists", default=list), Table("strict")
    kept = Kept(table, lists, strict)
    table.update({"a": 1}, b=2)
    kept.commit()
    kept.save(0)
    assert table.get_many(np.array(["c", "a", "c"])) == table.get_many(pa.array(["c", "a"])) == {"c": 0, "a": 1}
    assert list(table.get_many(key for key in "cba")) == ["c", "b", "a"]
    assert list(table) == ["a", "b"]
    with pytest.raises(KeyError, match="'x'"):
        strict.get_many(["x"])
    with pytest.raises(TableError, match="key True is bool"):
        table.get_many([1, True])
    with pytest.raises(TableError, match=r"key 1\.5 is float"):
        table.update({"a": 5, 1.5: 6})
    with pytest.raises(TableError, match="does not fit 64 bits"):
        table.update({"a": 2**64})
    lists.update({"a": [1]})
    lists.get_many(["a"])["a"].append(2)
    with pytest.raises(TableError, match="key 'a' was changed in place"):
        kept.commit()
    kept.rollback()
    assert (dict(table.items()), dict(lists.items())) == ({"a": 1, "b": 2}, {})
    table.update([("a", 3), ("a", 4)])
    assert table["a"] == 4
    gone = table.here.get()
    kept.rollback()
    table.here.set(gone)
    with pytest.raises(TableError, match="transaction was rolled back"):
        table.update({"a": 1})


def test_one_and_true_and_text_are_keys_of_their_own_or_refused() -> None:
    table = Table("t")
    kept = Kept(table)
    table[1], table["1"] = "int", "text"
    kept.commit()
    kept.replay()
    assert (table[1], table["1"], len(table)) == ("int", "text", 2)
    for key in (True, 1.0, None, b"1", (1,)):
        with pytest.raises(TableError, match=r"table t: key .* is .*, not str or int\. Convert the key"):
            table[key] = 1


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
def test_typed_keys_and_values_come_back_as_what_they_were(serializer: Any) -> None:
    points = Table("points", key_type=tuple[str, int], value_type=Point, serializer=serializer)
    raw = Table("raw", key_type=bytes, value_type=bytes, serializer=serializer)
    kept = Kept(points, raw)
    points["a", 1], raw[b"\xff"] = Point(1, ["x"]), b"\0\xff"
    kept.commit()
    kept.replay()
    assert (dict(points.items()), dict(raw.items())) == ({("a", 1): Point(1, ["x"])}, {b"\xff": b"\0\xff"})


def test_a_value_of_another_type_is_refused_when_it_is_written() -> None:
    table, points = Table("n", default=int), Table("points", value_type=Point)
    Kept(table, points)
    with pytest.raises(TableError, match=r"table n: 'x' \(str\) cannot be kept as <class 'int'>"):
        table["a"] = "x"
    with pytest.raises(TableError, match=r"table points: .* cannot be kept"):
        points["a"] = Point("no int")  # type: ignore[arg-type]
    with pytest.raises(TableError, match=r"table n: .* does not fit 64 bits"):
        table["a"] = 2**64
    Kept(any_ := Table("any"))
    with pytest.raises(TableError, match=r"JSON has no such number"):
        any_["a"] = float("nan")
    assert list(table) == []


@pytest.mark.parametrize("where", ["read", "default", "assigned"])
def test_a_change_in_place_that_is_not_assigned_back_is_noticed(where: str) -> None:
    table = Table("lists", default=list)
    kept = Kept(table)
    table["a"] = there = [1]
    kept.commit()
    ways: dict[str, Callable[[], Any]] = {
        "read": lambda: table["a"],
        "default": lambda: table["b"],
        "assigned": lambda: there,
    }
    value = ways[where]()
    if where == "assigned":
        table["a"] = there
    value.append(2)
    with pytest.raises(TableError, match=r"table lists: the value of key '[ab]' was changed in place"):
        kept.commit()
    kept.rollback()
    assert dict(table.items()) == {"a": [1]}


def test_a_change_in_place_that_is_assigned_back_is_kept() -> None:
    table = Table("lists", default=list)
    kept = Kept(table)
    for number in range(3):
        found = table["a"]
        found.append(number)
        table["a"] = found
    kept.commit()
    kept.replay()
    assert table["a"] == [0, 1, 2]


def test_a_run_that_was_rolled_back_can_neither_read_nor_write() -> None:
    table = Table("t", default=int)
    kept = Kept(table)
    table["a"] = 1
    kept.commit()
    kept.partition.rollback()  # the run does not hear of it
    for use in (lambda: table["a"], lambda: table.__setitem__("a", 2), lambda: table.pop("a"), lambda: list(table)):
        with pytest.raises(TableError, match="the agent's transaction was rolled back"):
            use()
    kept.run()
    assert table["a"] == 1


def test_outside_an_agent_a_table_says_so() -> None:
    with pytest.raises(TableError, match="table t: only an agent of the table's stream may read or write it"):
        Table("t")["a"]


def test_names_and_types_that_cannot_be() -> None:
    for name in ("", "x" * 256):
        with pytest.raises(SettingsError, match="its name must take 1 to 255 bytes"):
            Table(name)
    with pytest.raises(SettingsError, match="serializer is 'pickle'"):
        Table("t", serializer="pickle")  # type: ignore[arg-type]


def test_a_table_whose_type_was_changed_says_so() -> None:
    before = Kept(table := Table("t"))
    table["a"] = "text"
    before.commit()
    after = Kept(Table("t", default=int))
    after.log = before.log
    with pytest.raises(TableError, match=r"table t: a value cannot be read: .* Was value_type or serializer changed"):
        after.replay()


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            {},
            {"serializer": "msgpack"},
            "its entries were written as json by str or int, but the program declares msgpack by str or int",
        ),
        ({"serializer": "msgpack"}, {}, "its entries were written as msgpack by str or int"),
        (
            {"key_type": str},
            {"key_type": bytes},
            "its entries were written as json by str, but the program declares json by bytes",
        ),
        ({"key_type": tuple[str, int]}, {"key_type": tuple[int, str]}, r"json by tuple\[str, int\]"),
        ({"key_type": keyed(user=str)}, {"key_type": keyed(user=str, region=(str, "eu"))}, FIELDS),
        ({"key_type": keyed(user=str)}, {"key_type": keyed(user=int)}, FIELDS),
        ({"key_type": keyed(a=str, b=str)}, {"key_type": keyed(b=str, a=str)}, FIELDS),
        ({"key_type": keyed(user=str)}, {"key_type": keyed(tag="k", user=str)}, FIELDS),
        ({"key_type": keyed(by=keyed(a=str))}, {"key_type": keyed(by=keyed(a=int))}, FIELDS),
        ({"key_type": listed(a=str, b=str)}, {"key_type": listed(b=str, a=str)}, FIELDS),
        ({"key_type": dated(a=str)}, {"key_type": dated(a=str, b=int)}, FIELDS),
        (
            {"value_type": bytes, "default": bytes},
            {"value_type": str, "default": str},
            "written as json by str or int, values with bytes, but the program declares json by str or int",
        ),
        ({"value_type": list[bytes]}, {"value_type": list[str]}, "written as json by str or int, values with bytes"),
        ({"value_type": bytes | None}, {"value_type": str | None}, "written as json by str or int, values with bytes"),
        ({"value_type": dict[str, bytes]}, {}, "written as json by str or int, values with bytes"),
        ({"value_type": keyed(a=bytes)}, {"value_type": keyed(a=str)}, "written as json by str or int, values with"),
        (
            {"key_type": keyed(omit_defaults=True, a=(str, "eu"))},
            {"key_type": keyed(omit_defaults=True, a=(str, "us"))},
            FIELDS,
        ),
        (
            {"key_type": keyed(omit_defaults=True, a=(list[str], msgspec.field(default_factory=list)))},
            {"key_type": keyed(omit_defaults=True, a=list[str])},
            FIELDS,
        ),
        ({"key_type": described(keyed(a=str))}, {"key_type": described(keyed(a=int))}, "fields"),
    ],
)
def test_a_table_that_is_written_otherwise_now_is_refused(
    before: dict[str, Any], after: dict[str, Any], says: str
) -> None:
    # MessagePack's 48 reads as JSON's 0.
    kept = Kept(Table("t", **({"default": int} | before)))
    kept.partition.begin()
    kept.commit()
    kept.save()
    again = Kept(Table("t", **({"default": int} | after)))
    again.store.update(kept.store)
    with pytest.raises(TableError, match=says):
        again.partition.begin()
    same = Kept(Table("t", **({"default": int} | before)))
    same.store.update(kept.store)
    same.partition.begin()


def test_a_value_may_have_a_new_field_of_bytes() -> None:
    more: list[dict[str, Any]] = [{}, {"b": (bytes, b"")}]
    shapes = [Table("t", value_type=keyed(a=int, **fields)).codec.shape for fields in more]
    assert shapes == ["", ""]


@pytest.mark.parametrize(
    ("options", "key", "value", "earlier"),
    [
        ({"key_type": keyed(user=str)}, b'{"user":"ann"}', b"5", "json by Key"),
        ({"key_type": keyed(user=str, region=(str, "eu"))}, b'{"user":"ann"}', b"5", None),
        ({"value_type": bytes, "default": bytes}, b'"a"', b'"AAE="', "json by str or int"),
        ({"value_type": bytes, "default": bytes}, b'"a"', b'"ann!"', None),
    ],
)
def test_entries_of_an_earlier_description_are_known_by_what_they_are(
    options: dict[str, Any], key: bytes, value: bytes, earlier: str | None
) -> None:
    """Earlier versions described a class of keys by its name, and bytes like text."""
    kept = Kept(Table("t", **({"default": int} | options)))
    form = "json by str or int" if "value_type" in options else "json by Key"
    kept.store.update({b't\0"form t"': msgspec.json.encode(form), b"t\1t" + key: value})
    if earlier is None:
        with pytest.raises(TableError, match=f"written as {form}, but the program declares {form}"):
            kept.partition.begin()
        return
    kept.partition.begin()
    kept.commit()
    kept.save()
    # A worker of the earlier version, which may still run, halts at another form.
    assert kept.store[b't\0"form t"'] == msgspec.json.encode(form)
    assert kept.store[b't\0"shape t"'] == msgspec.json.encode(kept.tables[0].codec.shape)


def test_a_class_of_keys_may_move_and_refer_to_itself() -> None:
    assert Table("t", key_type=Tree).codec.shape.startswith("fields ")
    assert Table("t", key_type=keyed(user=str)).codec.shape == Table("t", key_type=keyed(user=str)).codec.shape
    assert Table("t", key_type=float).codec.shape == ""


@pytest.mark.parametrize(
    "of", [lambda pair: pair, lambda pair: tuple.__class_getitem__((pair, ...)), lambda pair: keyed(by=pair)]
)
def test_a_class_of_keys_may_be_generic(of: Callable[[Any], Any]) -> None:
    shapes = {Table("t", key_type=of(pair)).codec.shape for pair in (Pair[int], Pair[str])}
    assert len(shapes) == 2
    assert "" not in shapes


def test_a_plain_value_takes_the_place_of_an_object_that_was_changed() -> None:
    kept = Kept(Table("t", default=list, value_type=list[int] | int))
    (table,) = kept.tables
    table["read"].append(1)
    table["read"] = 5
    table["assigned"] = [2]
    table["assigned"].append(3)
    table["assigned"] = 6
    assert (table["read"], table["assigned"]) == (5, 6)
    kept.commit()
    assert dict(table.items()) == {"read": 5, "assigned": 6}


def test_what_was_only_read_is_not_taken_for_changed() -> None:
    class Account(msgspec.Struct):
        name: str
        balance: float = 0
        limit: int = 5

    kept = Kept(Table("t", value_type=Account), Table("s", value_type=set[str]))
    accounts, sets = kept.tables
    kept.store[b't\x01t"old"'] = b'{"balance":0,"name":"ann"}'  # before it had a limit, in another order
    kept.store[b't\x01s"two"'] = b'["b","a"]'
    assert accounts["old"].balance == 0
    assert sets["two"] == {"a", "b"}
    kept.commit()
    accounts["old"].balance = 7
    with pytest.raises(TableError, match="changed in place"):
        kept.commit()


def test_equal_keys_are_one_key() -> None:
    kept = Kept(Table("f", default=int, key_type=float), Table("s", default=int, key_type=frozenset[str]))
    numbers, sets = kept.tables
    for key in (5, 5.0):
        numbers[key] += 1
    assert dict(numbers) == {5.0: 2}
    codec = sets.codec
    assert {codec.check_key(frozenset(order)) for order in ("abcdefgh", "hgfedcba")} == {
        b'["a","b","c","d","e","f","g","h"]'
    }


@pytest.mark.parametrize("value", [{7: 1}, {"avg": float("nan")}, {"a": {1, 2}}, [Point(1)], {"a": [b"x"]}])
def test_a_value_that_would_be_read_as_another_is_refused(value: Any) -> None:
    kept = Kept(Table("t"))
    with pytest.raises(TableError, match=r"would be read back as .* Set value_type="):
        kept.tables[0]["key"] = value
    kept.tables[0]["key"] = {"a": (1, [2, (3,)])}
    assert kept.tables[0]["key"] == {"a": (1, [2, (3,)])}


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Decimal("1.50"), "Decimal"),
        ({1, 2}, r"set\[int\]"),
        ({7: Decimal(1)}, r"dict\[int, Decimal\]"),
        ({"a": {1, "b"}}, r"dict\[str, set\[Any\]\]"),
        (Point(1), "Point"),
        (datetime(2026, 11, 25), "datetime"),
    ],
)
def test_the_refusal_of_a_value_names_the_type_to_write(value: Any, named: str) -> None:
    kept = Kept(Table("t", default=lambda: value))
    with pytest.raises(TableError, match=rf"Set value_type={named}, which states"):
        kept.tables[0]["key"] = value


def test_a_text_that_is_none_is_refused_where_it_is_written() -> None:
    kept = Kept(Table("t"), Table("typed", value_type=str))
    text = b"\xff".decode("utf-8", "surrogateescape")
    for table in kept.tables:
        with pytest.raises(TableError, match="cannot be kept"):
            table.update({"a": text, "b": "ä"})
        with pytest.raises(TableError, match="cannot be kept"):
            table["a"] = text
    with pytest.raises(TableError, match="cannot be kept"):
        kept.tables[0]["a"] = [text]


def test_the_defaults_of_pop_and_setdefault_are_those_that_are_given() -> None:
    kept = Kept(Table("t", default=int), Table("lists"))
    numbers, lists = kept.tables
    assert numbers.setdefault("x", 5) == 5
    assert numbers.setdefault("x", 6) == 5
    assert numbers.pop("nope", None) is None
    with pytest.raises(KeyError):
        numbers.pop("nope")
    assert numbers.pop("x") == 5
    assert "x" not in numbers
    lists.setdefault("all", []).append(1)
    with pytest.raises(TableError, match="changed in place"):
        kept.commit()


def test_a_default_that_is_a_type_says_what_is_kept() -> None:
    class Account(msgspec.Struct):
        balance: int = 0

    kept = Kept(Table("t", default=Account), Table("s", default=set))
    accounts, sets = kept.tables
    for _ in range(2):
        account, found = accounts["ann"], sets["ann"]
        account.balance += 1
        found.add(account.balance)
        accounts["ann"], sets["ann"] = account, found
        kept.commit()
    assert (accounts["ann"], sets["ann"]) == (Account(2), {1, 2})


def test_large_values_leave_memory_as_small_ones_do() -> None:
    kept = Kept(Table("t", default=str))
    table = kept.tables[0]
    for number in range(100):
        table[number] = "x" * 50_000
    kept.commit()
    kept.save(3_500)  # times 300 bytes: a megabyte
    assert not kept.partition.of("t").values
    assert table[7] == "x" * 50_000
    kept.save(3_500)
    assert list(kept.partition.of("t").values) == [7]


@pytest.mark.parametrize(("beyond", "values"), [(ENTRY_BYTES - 1, 1), (ENTRY_BYTES, 0)])
def test_a_large_value_takes_the_memory_of_as_many_small_ones(beyond: int, values: int) -> None:
    kept = Kept(Table("t", default=str))
    quotes = len('""')
    kept.tables[0]["a"] = "x" * (SMALL_BYTES + beyond - quotes)
    kept.commit()
    kept.save(1)
    assert len(kept.partition.of("t").values) == values


def test_a_table_that_a_later_version_adds_says_where_it_begins() -> None:
    taken: list[int | None] = [None]
    store = dict[bytes, bytes]()

    def partition(*tables: Table) -> PartitionTables:
        made = PartitionTables(store.get, nothing, ("log", 3), lambda: taken[-1])
        for table in tables:
            made.add(table.codec, table.default)
        made.open()
        return made

    def save(made: PartitionTables) -> None:
        store.update({key: value for key, value in made.unsaved_entries() if value is not None})
        made.saved(0)

    orders, totals = Table("orders"), Table("totals")
    with capture_logs() as lines:
        first = partition(orders)
        first.begin()
        first.commit()
        save(first)
    assert not lines
    taken.append(54)
    with capture_logs() as lines:
        second = partition(orders, totals)
        second.begin()
        second.rollback()
        assert not lines
        taken.append(57)
        second.begin()
        second.begin()  # another agent
        second.commit()
        second.commit()
        save(second)
        taken.append(60)
        partition(orders, totals).begin()
    assert [each["event"] for each in lines] == [
        "table totals is new: it begins at offset 57 of partition 3, without earlier records"
    ]
    assert store[b't\0"begin totals"'] == b"57"
    assert b't\0"begin orders"' not in store
