"""Identities that are read from a record: what each shape means, and that verify takes it for the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import structlog.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafka_ratchet.app.verify.rule import RecordView, Rule
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.rule.extraction import computed_identity_reader
from kafka_ratchet.rule.identities import in_columns
from kafka_ratchet.rule.identity import MAX_IDENTITY_BYTES, Identity, SequenceSource, joined
from kafka_ratchet.rule.reasons import REASONS
from kafka_ratchet.tables.map.map import LastSequences
from tests.tables.fetched_records import Sent, fetched

LONGEST = "x" * MAX_IDENTITY_BYTES
FIELDS: list[tuple[str, bytes | None, bytes | str]] = [
    ("n", b'{"n": "a"}', b"a"),
    ("n", b' {"n" : "a" } ', b"a"),
    ("n", '{"n": "Ä€😀"}'.encode(), "Ä€😀".encode()),
    ("n", b'{"n": "\\u00c4\\ud83d\\ude00\\n\\/"}', "Ä😀\n/".encode()),
    ("n", b'{"n": "\\u0000"}', b"\0"),
    ("n", b'{"n": "a\\u0000b"}', b"a\0b"),
    ("n", b'{"\\u006e": "a"}', b"a"),
    ("n", b'{"n": " "}', b" "),
    ("n", b'{"n": ""}', "identity-missing"),
    ("n", b'{"n": null}', "identity-missing"),
    ("n", b'{"m": "a"}', "identity-missing"),
    ("n", b'["n"]', "identity-missing"),
    ("n", b"null", "identity-missing"),
    ("n", None, "identity-missing"),
    ("n", b'{"n": 7}', b"7"),
    ("n", b'{"n": "7"}', b"7"),
    ("n", b'{"n": "07"}', b"07"),
    ("n", b'{"n": -7}', b"-7"),
    ("n", b'{"n": -0}', b"0"),
    ("n", b'{"n": "-0"}', b"-0"),
    ("n", b'{"n": 0}', b"0"),
    ("n", b'{"n": 18446744073709551616}', b"18446744073709551616"),
    ("n", b'{"n": ' + b"9" * 1_024 + b"}", b"9" * 1_024),
    ("n", b'{"n": ' + b"9" * 1_025 + b"}", "identity-too-long"),
    ("n", b'{"n": ' + b"9" * 1_000_000 + b"}", "identity-too-long"),
    ("n", json.dumps({"n": LONGEST}).encode(), LONGEST.encode()),
    ("n", json.dumps({"n": LONGEST + "x"}).encode(), "identity-too-long"),
    ("n", json.dumps({"n": "é" * 513}).encode(), "identity-too-long"),
    ("n", b'{"n": 7.0}', "identity-not-text"),
    ("n", b'{"n": 7e3}', "identity-not-text"),
    ("n", b'{"n": true}', "identity-not-text"),
    ("n", b'{"n": false}', "identity-not-text"),
    ("n", b'{"n": {}}', "identity-not-text"),
    ("n", b'{"n": ["a"]}', "identity-not-text"),
    ("n", b'{"n": "\xff"}', "identity-not-text"),
    ("n", b'{"n": "\xed\xa0\x80"}', "identity-not-text"),
    ("n", b'{"n": "\\n\xff"}', "identity-not-text"),
    ("n", b'{"x": "\xff", "n": "a"}', b"a"),
    ("n", b'{"n": "\\ud800"}', "value-not-json"),
    ("n", b'{"n": "a", "x": "\\udc00"}', "value-not-json"),
    ("n", b'{"n": "a"', "value-not-json"),
    ("n", b'{"n": NaN}', "value-not-json"),
    ("n", b'{"n": 07}', "value-not-json"),
    ("n", b"\xff", "value-not-json"),
    ("n", b'{"n": "a", "n": "b"}', b"b"),
    ("n", b'{"n": "a", "n": null}', "identity-missing"),
    ("a.b", b'{"a": {"b": "x"}, "b": "y"}', b"x"),
    ("a.b", b'{"a": {"b": "x"}, "a": {"b": "y"}}', b"y"),
    ("a.b", b'{"a": {"b": "x"}, "a": 1}', "identity-missing"),
    ("a.b", b'{"a.b": "x"}', "identity-missing"),
]

PROGRAM = """
class Odd(str):
    def encode(self, *args): return b"lied"
    def __len__(self): return 0
    def __bool__(self): return False
class OddBytes(bytes):
    def __len__(self): return 0
    def __bytes__(self): return b"lied"
def of_value(record):
    return {b"text": "ä", b"bytes": b"\\xff\\0", b"empty": "", b"none": None, b"no bytes": b"", b"half": "\\ud800",
            b"number": 5, b"true": True, b"odd": Odd("o"), b"odd bytes": OddBytes(b"o"),
            b"long": "x" * 1_024, b"longer": b"x" * 1_025}[record.value]
def leaves(record):
    raise SystemExit("gone")
def headers(record):
    return record.key + b"".join(value for name, value in record.headers if name == "h")
not_callable = 5
"""
FUNCTIONS: list[tuple[bytes, bytes | str]] = [
    (b"text", "ä".encode()),
    (b"bytes", b"\xff\0"),
    (b"empty", "identity-missing"),
    (b"none", "identity-missing"),
    (b"no bytes", "identity-missing"),
    (b"half", "identity-not-text"),
    (b"number", "extractor-failed"),
    (b"true", "extractor-failed"),
    (b"odd", b"o"),
    (b"odd bytes", b"o"),
    (b"long", b"x" * 1_024),
    (b"longer", "identity-too-long"),
    (b"a KeyError", "extractor-failed"),
]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "ids_of_ours.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ids_of_ours", raising=False)
    return "ids_of_ours"


def read(given: str | list[str], *records: Sent) -> list[bytes | str]:
    """Each record's identity, or the reason why it has none; judged by the map, which has the last word."""
    identity = Identity.parse(given)
    batch = fetched(records, identity_header=(identity.header or "").encode())
    reasons = np.zeros(batch.count, np.uint8)
    reader = computed_identity_reader(identity)
    found = reader(batch, reasons) if reader else in_columns(batch, identity)
    LastSequences().judge(found, MAX_IDENTITY_BYTES, np.zeros(batch.count, np.int64), reasons)
    return [REASONS[reason] or found.of(i) for i, reason in enumerate(reasons.tolist())]


def by_the_rule(given: str | list[str], *records: Sent) -> list[bytes | None]:
    """What `ratchet verify` takes them for."""
    rule = Rule(Identity.parse(given), SequenceSource.parse("none"))
    found = [rule.identify(RecordView(each.key, each.value, list(each.headers), 0)) for each in records]
    return [None if each is None else each[0] for each in found]


def same(given: str | list[str], *records: Sent) -> list[bytes | str]:
    """Read by the worker; verify reads the same."""
    found = read(given, *records)
    assert by_the_rule(given, *records) == [None if isinstance(each, str) else each for each in found]
    return found


@pytest.mark.parametrize(
    ("path", "value", "meaning"), FIELDS, ids=[f"{path} {repr(value)[:40]}" for path, value, _ in FIELDS]
)
def test_what_a_field_means(path: str, value: bytes | None, meaning: bytes | str) -> None:
    assert same(f"field:{path}", Sent(value=value)) == [meaning]


def test_a_function(program: str) -> None:
    records = [Sent(value=value) for value, _ in FUNCTIONS]
    with structlog.testing.capture_logs() as lines:
        assert same(f"function:{program}:of_value", *records) == [meaning for _, meaning in FUNCTIONS]
    assert [line["offset"] for line in lines] == [
        i for i, (_, meaning) in enumerate(FUNCTIONS) if meaning == "extractor-failed"
    ]
    assert same(f"function:{program}:leaves", Sent()) == ["extractor-failed"]
    assert same(f"function:{program}:headers", Sent(key=b"k", headers=(("h", b"1"), ("h", b"2")))) == [b"k12"]


@pytest.mark.parametrize("name", ["no_such_module:f", "ids_of_ours:no_such", "ids_of_ours:not_callable"])
def test_a_function_that_is_none(program: str, name: str) -> None:
    with pytest.raises(SettingsError, match=f"identity function:{name}: "):
        computed_identity_reader(Identity.parse(f"function:{name}"))
    with pytest.raises(SettingsError, match=f"identity: function:{name} "):
        Rule(Identity.parse(f"function:{name}"), SequenceSource.parse("none"))


def headers(*pairs: tuple[str, bytes | None], key: bytes | None = None, value: bytes | None = None) -> Sent:
    return Sent(key=key, value=value, headers=pairs)


HEADERS: list[tuple[Sent, bytes | str]] = [
    (headers(("id", b"a")), b"a"),
    (headers(("id", b"\0"), ("ID", b"b"), ("i", b"c"), ("idx", b"d")), b"\0"),
    (headers(("x", None), ("id", b"a\0b\xff")), b"a\0b\xff"),
    (headers(("id", LONGEST.encode())), LONGEST.encode()),
    (headers(("id", LONGEST.encode() + b"x")), "identity-too-long"),
    (headers(("id", b"")), "identity-missing"),
    (headers(("id", None)), "identity-missing"),
    (headers(), "identity-missing"),
    (headers(("id", b"a"), ("id", b"a")), "identity-repeated"),
    (headers(("id", None), ("id", LONGEST.encode() + b"x")), "identity-repeated"),
]


def test_a_header() -> None:
    assert same("header:id", *(sent for sent, _ in HEADERS)) == [meaning for _, meaning in HEADERS]


def test_a_header_as_a_part_means_what_it_means_alone() -> None:
    alone = same("header:id", *(sent for sent, _ in HEADERS))
    with_key = same(["header:id", "key"], *(sent._replace(key=b"") for sent, _ in HEADERS))
    for one, two in zip(alone, with_key, strict=True):
        too_long = isinstance(one, bytes) and len(joined([one, b""])) > MAX_IDENTITY_BYTES
        assert two == ("identity-too-long" if too_long else one if isinstance(one, str) else joined([one, b""]))


def test_parts_do_not_run_together() -> None:
    def of(a: bytes, b: bytes) -> Sent:
        return headers(("b", b), ("a", a))

    found = same(["header:a", "header:b"], of(b"a", b"bc"), of(b"ab", b"c"), of(b"\x01a", b"bc"), of(b"a", b"bc"))
    assert found[:2] == [b"\x01a\x02bc", b"\x02ab\x01c"]
    assert found[3] == found[0]
    assert len(set(found)) == 3
    lengths = (1, 127, 128, 129, 300)
    for size in lengths:
        assert same(["header:a", "header:b"], of(b"x" * size, b"y")) == [joined([b"x" * size, b"y"])]
    assert joined([b"x" * 128, b"y"]) == b"\x80\x01" + b"x" * 128 + b"\x01y"
    # 1,019 bytes and their length in two, two bytes and theirs in one: 1,024; one more is too long.
    assert isinstance(same(["header:a", "header:b"], of(b"x" * 1_019, b"yy"))[0], bytes)
    assert same(["header:a", "header:b"], of(b"x" * 1_020, b"yy")) == ["identity-too-long"]


def test_the_first_part_without_an_identity_says_why() -> None:
    both = ["field:n", "header:a"]
    assert same(both, headers(("a", b"1"), ("a", b"2"), value=b'{"n": 1.5}')) == ["identity-not-text"]
    assert same(both, headers(("a", b"1"), ("a", b"2"), value=b'{"n": 1}')) == ["identity-repeated"]
    assert same(both, headers(("a", b"x" * 1_025), value=b"{}")) == ["identity-missing"]
    assert same(list(reversed(both)), headers(("a", b"x" * 1_025), value=b"{}")) == ["identity-too-long"]
    assert same(["key", "header:a"], headers(("a", b"1"))) == ["identity-missing"]


def test_what_the_sequence_lacks_is_said_first_and_nothing_is_called(program: str) -> None:
    batch = fetched([Sent(), Sent(value=b"text")])
    reader = computed_identity_reader(Identity.parse(f"function:{program}:of_value"))
    assert reader is not None
    reasons = np.array([REASONS.index("sequence-missing"), 0], np.uint8)
    with structlog.testing.capture_logs() as lines:
        found = reader(batch, reasons)
    assert lines == []
    assert [REASONS[reason] for reason in reasons] == ["sequence-missing", ""]
    assert (found.of(0), found.of(1)) == (b"", "ä".encode())


leaves = st.one_of(
    st.integers(-20, 20).map(str),
    st.integers(-(10**30), 10**30).map(str),
    st.floats().map(str),
    st.sampled_from(["null", "true", "1e3", "-0", "-", '"\\ud800"', '"\\u0000"', '""', "[]", "{}", '"\\"']),
    st.text(max_size=4).map(json.dumps),
    st.text(max_size=4).map(lambda text: json.dumps(text, ensure_ascii=False)),
)
names = st.sampled_from(['"a"', '"b"', '"\\u0061"', '""'])
values = st.recursive(
    leaves,
    lambda inner: st.lists(st.tuples(names, inner), max_size=4).map(
        lambda pairs: "{" + ",".join(f"{name}:{value}" for name, value in pairs) + "}"
    ),
    max_leaves=6,
).map(lambda text: text.encode("utf-8", "surrogatepass"))
ids = st.one_of(
    st.sampled_from([b"", b"\0", b"a", b"ab", b"x" * 127, b"x" * 128, b"x" * 1_025, None]), st.binary(max_size=9)
)
records = st.builds(
    Sent,
    ids,
    st.one_of(values, values.map(lambda value: value[:-1] + b"\xff"), st.none()),
    st.lists(st.tuples(st.sampled_from(["a", "b", ""]), ids), max_size=4).map(tuple),
)
parts = st.lists(
    st.sampled_from(["key", "header:a", "header:b", "field:a", "field:a.b"]), min_size=1, max_size=4, unique=True
)


@given(parts, st.lists(records, max_size=6))
@example(["header:a", "key"], [Sent(None, None, (("a", b""),)), Sent(b"", None, (("a", b"a"),))])
@settings(max_examples=300, deadline=None)
def test_verify_reads_the_same(given: list[str], sent: list[Sent]) -> None:
    same(given, *sent)
