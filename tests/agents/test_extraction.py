import json
import sys
from pathlib import Path

import pytest
import structlog
import structlog.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafka_ratchet.app.verify.rule import RecordView, Rule
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.rule.extraction import reader_for
from kafka_ratchet.rule.identity import SEQUENCE_MAX, Identity, SequenceSource
from kafka_ratchet.rule.reasons import REASONS
from tests.tables.fetched_records import Sent, fetched

DEEP = b'{"n": 5, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"

FIELDS: list[tuple[str, bytes | None, int | str]] = [
    ("n", b'{"n": 5}', 5),
    ("n", b'{"n": 0}', 0),
    ("n", b'{"n":-0}', 0),
    ("n", b' \t\r\n{ "a" : [1, {"n": 2}] , "n" : 7 , "z" : {} } \n', 7),
    ("n", b'{"n": "12"}', 12),
    ("n", b'{"n": "0012"}', 12),
    ("n", b'{"n": "\\u0031\\u0032"}', 12),
    ("n", b'{"\\u006e": 5}', 5),
    ("n", b'{"n": 9223372036854775807}', SEQUENCE_MAX),
    ("n", b'{"n": 9223372036854775808}', "sequence-out-of-range"),
    ("n", b'{"n": "9223372036854775808"}', "sequence-out-of-range"),
    ("n", b'{"n": -5}', "sequence-negative"),
    ("n", b'{"n": "-5"}', "sequence-negative"),
    ("n", b'{"n": ' + b"9" * 1_000_000 + b"}", "sequence-out-of-range"),
    ("n", b'{"n": -' + b"9" * 1_000_000 + b"}", "sequence-negative"),
    ("n", b'{"n": "' + b"9" * 1_000_000 + b'"}', "sequence-out-of-range"),
    ("n", b'{"n": "' + b"0" * 1_000_000 + b'7"}', 7),
    ("n", b'{"n": 1, "big": ' + b"9" * 1_000 + b"}", 1),
    ("n", b'{"n": 1, "big": [' + b"9" * 10_000 + b", -" + b"9" * 10_000 + b"]}", 1),
    ("n", b'{"n": 5.0}', "sequence-not-a-number"),
    ("n", b'{"n": 1e3}', "sequence-not-a-number"),
    ("n", b'{"n": 1E400}', "sequence-not-a-number"),
    ("n", b'{"n": true}', "sequence-not-a-number"),
    ("n", b'{"n": false}', "sequence-not-a-number"),
    ("n", b'{"n": "x"}', "sequence-not-a-number"),
    ("n", b'{"n": ""}', "sequence-not-a-number"),
    ("n", b'{"n": " 5"}', "sequence-not-a-number"),
    ("n", b'{"n": "5\\n"}', "sequence-not-a-number"),
    ("n", b'{"n": "+5"}', "sequence-not-a-number"),
    ("n", '{"n": "٥"}'.encode(), "sequence-not-a-number"),
    ("n", b'{"n": "5\xff"}', "sequence-not-a-number"),
    ("n", b'{"n": "\\t\xff"}', "sequence-not-a-number"),
    ("n", b'{"n": "5\\u0022"}', "sequence-not-a-number"),
    ("n", b'{"n": [5]}', "sequence-not-a-number"),
    ("n", b'{"n": {"n": 5}}', "sequence-not-a-number"),
    ("n", b'{"n": null}', "sequence-missing"),
    ("n", b'{"m": 5}', "sequence-missing"),
    ("n", b"{}", "sequence-missing"),
    ("n", b"[5]", "sequence-missing"),
    ("n", b"5", "sequence-missing"),
    ("n", b'"n"', "sequence-missing"),
    ("n", b"null", "sequence-missing"),
    ("n", None, "sequence-missing"),
    ("n", b'{"n": 1, "n": 2}', 2),
    ("n", b'{"n": 1, "n": null}', "sequence-missing"),
    ("a.b.c", b'{"a": {"b": {"c": 3}, "c": 9}, "b": {"c": 9}, "c": 9}', 3),
    ("a.b", b'{"a.b": 3}', "sequence-missing"),
    ("a.b", b'{"a": 3}', "sequence-missing"),
    ("a.b", b'{"a": null}', "sequence-missing"),
    ("a.b", b'{"a": [{"b": 3}]}', "sequence-missing"),
    ("a.b", b'{"a": "{\\"b\\": 3}"}', "sequence-missing"),
    ("a.b", b'{"a": 1, "a": {"b": 3}}', 3),
    ("a.b", b'{"a": {"b": 3}, "a": 1}', "sequence-missing"),
    ("a.b", b'{"a": {"b": 3}, "a": {}}', "sequence-missing"),
    ("Zähler", '{"Zähler": 3}'.encode(), 3),
    ("0", b'{"0": 3}', 3),
    ("inner", b'{"inner": 3}', 3),
    ("n", b'{"x": "\xff", "n": 4}', 4),
    ("n", b'{"\xff": 1, "n": 4}', 4),
    ("n", b'{"x": "\\ud83d\\ude00 \\\\ud800", "n": 4}', 4),
    ("n", b'{"x": "\\ud800", "n": 4}', "value-not-json"),
    ("n", b'{"x": "\\\\\\ud800", "n": 4}', "value-not-json"),
    ("n", b'{"x": "\\uD800\\u0041", "n": 4}', "value-not-json"),
    ("n", b'{"n": 4, "x": {"\\udc00": 1}}', "value-not-json"),
    ("a.n", b'{"a": {"n": 4}, "\\ud83d\\ud83d\\ude00": 1}', "value-not-json"),
    ("n", b"", "value-not-json"),
    ("n", b"{", "value-not-json"),
    ("n", b'{"n": 5', "value-not-json"),
    ("n", b'{"n": 5}}', "value-not-json"),
    ("n", b'{"n": 05}', "value-not-json"),
    ("n", b'{"n": +5}', "value-not-json"),
    ("n", b'{"n": NaN}', "value-not-json"),
    ("n", b'{"n": 5, "x": Infinity}', "value-not-json"),
    ("n", b"{'n': 5}", "value-not-json"),
    ("n", b'{"n": 5,}', "value-not-json"),
    ("n", b'{"n": 5, "x": "a\nb"}', "value-not-json"),
    ("n", b'\xef\xbb\xbf{"n": 5}', "value-not-json"),
    ("n", b"\xff\xfe\0\x01", "value-not-json"),
    ("n", b'{"n": 5}\0', "value-not-json"),
    ("n", b'\0\0\0\0\7{"n": 5}', "value-schema-registry"),
    ("n", b"\0\0\0\0\7 [1]", "value-schema-registry"),
    ("n", b"\0\0\0\0\7", "value-not-json"),
    ("n", b"\0\0\0\0\7\2ab", "value-not-json"),
    ("n", DEEP, "value-not-json"),
    ("n", DEEP[:50_000], "value-not-json"),
]


def read(source: str, record: Sent) -> int | str:
    """The one record's sequence, or the reason why it has none."""
    sequences, reasons = reader_for(SequenceSource.parse(source))(fetched([record]))
    assert (sequences[0] >= 0) == (reasons[0] == 0)
    return REASONS[reasons[0]] or int(sequences[0])


def by_the_rule(source: str, record: Sent) -> int | None:
    """What `ratchet verify` takes it for."""
    judged = Rule(Identity.PARTITION, SequenceSource.parse(source)).identify(
        RecordView(record.key, record.value, list(record.headers), 0)
    )
    return judged[1] if judged else None


@pytest.mark.parametrize(
    ("path", "value", "meaning"), FIELDS, ids=[f"{path} {repr(value)[:40]}" for path, value, _ in FIELDS]
)
def test_what_a_field_means(path: str, value: bytes | None, meaning: int | str) -> None:
    assert read(f"field:{path}", Sent(value=value)) == meaning


@pytest.mark.parametrize(
    ("path", "value", "meaning"), FIELDS, ids=[f"{path} {repr(value)[:40]}" for path, value, _ in FIELDS]
)
def test_verify_reads_the_same_in_a_field(path: str, value: bytes | None, meaning: int | str) -> None:
    assert by_the_rule(f"field:{path}", Sent(value=value)) == (meaning if isinstance(meaning, int) else None)


def test_one_bad_value_leaves_the_others_alone() -> None:
    records = [Sent(value=value) for value in (b'{"n": 1}', DEEP, b"{", None, b'{"n": 2}')]
    sequences, reasons = reader_for(SequenceSource.parse("field:n"))(fetched(records))
    assert sequences.tolist() == [1, -1, -1, -1, 2]
    assert [REASONS[reason] for reason in reasons] == ["", "value-not-json", "value-not-json", "sequence-missing", ""]


leaves = st.one_of(
    st.integers(-20, 20).map(str),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(str),  # nan and inf, too
    st.sampled_from(["null", "true", "1e3", "1.0", "-0", "01", "-", '"12"', '"-0"', '"\\u0031"', '"x"', "[]", "{}"]),
    st.text('0123456789-+. \\"u', max_size=6).map(json.dumps),
    st.text(max_size=3).map(lambda text: json.dumps(text, ensure_ascii=False)),
)
names = st.sampled_from(['"a"', '"b"', '"c"', '"a.b"', '"\\u0061"', '""', "a"])


def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    space = st.sampled_from(["", "", " ", "\n"])
    member = st.builds("{}{}:{}{}".format, space, names, space, inner)
    return st.one_of(
        st.lists(member, max_size=4).map(lambda members: "{" + ",".join(members) + "}"),
        st.lists(inner, max_size=3).map(lambda items: "[" + ", ".join(items) + "]"),
    )


values = st.one_of(
    st.recursive(leaves, nested, max_leaves=8).map(str.encode),
    st.builds(lambda a, b: b'{"a":' + a + b',"b":{"c":' + b + b"}}", leaves.map(str.encode), leaves.map(str.encode)),
    st.builds(
        lambda text, at, byte: text[: at % (len(text) + 1)] + byte + text[at % (len(text) + 1) :],
        leaves.map(lambda leaf: b'{"x":"y","a":%b}' % leaf.encode()),
        st.integers(0, 60),
        st.binary(min_size=1, max_size=2),
    ),
    st.binary(max_size=12),
)


@settings(deadline=None, max_examples=400, derandomize=True)
@given(path=st.sampled_from(["a", "b.c", "a.b", "a.a.a"]), value=values)
@example(path="a", value=b'{"a":"1","a":2}')
def test_field_and_verify_agree_on_whatever_comes(path: str, value: bytes) -> None:
    found = read(f"field:{path}", Sent(value=value))
    assert by_the_rule(f"field:{path}", Sent(value=value)) == (found if isinstance(found, int) else None)


header_values = st.one_of(
    st.integers(-(2**64), 2**64).map(lambda n: str(n).encode()),
    st.integers(-(2**63), 2**63 - 1).map(lambda n: n.to_bytes(8, "big", signed=True)),
    st.text("0123456789-", min_size=7, max_size=9).map(str.encode),
    st.text("0123456789-+ .e", max_size=24).map(str.encode),
    st.binary(max_size=10),
    st.none(),
)


@settings(deadline=None, max_examples=400, derandomize=True)
@given(sent=st.lists(header_values, max_size=2))
@example(sent=[b"9" * 5_000])
@example(sent=[b"-" + b"0" * 5_000])
@example(sent=[b"0" * 5_000 + b"1"])
def test_header_and_verify_agree_on_whatever_comes(sent: list[bytes | None]) -> None:
    record = Sent(headers=tuple(("ratchet-sequence", value) for value in sent))
    found = read("header:ratchet-sequence", record)
    assert by_the_rule("header:ratchet-sequence", record) == (found if isinstance(found, int) else None)


EXTRACTORS = """
class Number(int):
    def __lt__(self, other): raise ValueError("compared")
    __gt__ = __le__ = __ge__ = __lt__

class Unprintable(Exception):
    def __repr__(self): raise ValueError("printed")
    __str__ = __repr__

not_a_function = 5

def key_length(record):
    return len(record.key)

def everything(record):
    assert record.key == b"key", record
    assert record.value == b"value", record
    assert record.headers == [("first", b"1"), ("second", None)], record
    assert record.timestamp_ms == 1_700_000_000_000, record
    return int(record.headers[0].value)

def none(record): return None
def subclass(record): return Number(5)
def boolean(record): return True
def floating(record): return 5.0
def text(record): return "sequence-missing"
def negative(record): return -1
def too_large(record): return 2**63
def enormous(record): return 10**5000
def largest(record): return 2**63 - 1
def raising(record): raise ValueError("no sequence in it")
def recursive(record): return recursive(record)
def unprintable(record): raise Unprintable
def exiting(record): raise SystemExit(0)
def cancelling(record):
    import asyncio
    raise asyncio.CancelledError
"""


@pytest.fixture
def extractors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module with a user's functions."""
    (tmp_path / "users_extractors.py").write_text(EXTRACTORS)
    (tmp_path / "users_broken_module.py").write_text("raise RuntimeError('no licence')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "users_extractors", raising=False)
    return "users_extractors"


@pytest.mark.parametrize(
    ("function", "meaning"),
    [
        ("key_length", 3),
        ("everything", 1),
        ("subclass", 5),
        ("largest", SEQUENCE_MAX),
        ("none", "sequence-missing"),
        ("negative", "sequence-negative"),
        ("too_large", "sequence-out-of-range"),
        ("enormous", "sequence-out-of-range"),
        ("boolean", "extractor-failed"),
        ("floating", "extractor-failed"),
        ("text", "extractor-failed"),
        ("raising", "extractor-failed"),
        ("recursive", "extractor-failed"),
        ("unprintable", "extractor-failed"),
        ("exiting", "extractor-failed"),
        ("cancelling", "extractor-failed"),
    ],
)
def test_what_a_users_function_returns(extractors: str, function: str, meaning: int | str) -> None:
    record = Sent(b"key", b"value", (("first", b"1"), ("second", None)))
    source = f"function:{extractors}:{function}"
    assert read(source, record) == meaning
    if function != "everything":  # verify knows no timestamp here
        assert by_the_rule(source, record) == (meaning if isinstance(meaning, int) else None)


def test_a_function_that_fails_once_leaves_the_other_records_alone(
    extractors: str,
) -> None:
    reader = reader_for(SequenceSource.parse(f"function:{extractors}:key_length"))
    with structlog.testing.capture_logs() as said:
        sequences, reasons = reader(fetched([Sent(b"a"), Sent(None), Sent(b"abc")], start=70))
    assert sequences.tolist() == [1, -1, 3]
    assert [REASONS[reason] for reason in reasons] == ["", "extractor-failed", ""]
    assert [line["offset"] for line in said] == [71]
    assert "TypeError" in said[0]["reason"]


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("users_extractors:no_such", "cannot be imported"),
        ("users_extractors:not_a_function", "is a int, not a function"),
        ("no_such_module_anywhere:function", "cannot be imported"),
        ("users_extractors.:function", "cannot be imported"),
        ("users_extractors..more:function", "cannot be imported"),
        ("users_broken_module:function", "no licence"),
    ],
)
def test_a_function_that_is_not_there_is_refused_at_the_start(extractors: str, function: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence) as raised:
        reader_for(SequenceSource.parse(f"function:{function}"))
    assert f"function:{function}" in str(raised.value)


@pytest.mark.parametrize(
    "text",
    ["header:n", "header:a:b.c", "field:n", "field:a.b.c", 'field:"a.b".c', 'field:x."a, key"', "function:a.b:c"],
)
def test_a_source_reads_what_it_prints(text: str) -> None:
    assert str(SequenceSource.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("key", "the record key cannot be the sequence"),
        ("key:", "the record key cannot be the sequence"),
        ("key:x", "the record key cannot be the sequence"),
        ("", "names no part of a record"),
        ("header", "names no part of a record"),
        ("header:", "names no part of a record"),
        ("field:a..b", "empty part"),
        ("field:.a", "empty part"),
        ("field:a.", "empty part"),
        ('field:a"b', "quote or a backslash"),
        ("field:a\\b", "quote or a backslash"),
        *(
            (f"field:{path}", "quote or a backslash")
            for path in ('"a', 'a"', '"a"b', 'a."b', '"a\\"b"', '"a"."', '"""')
        ),
        ('field:"a".', "empty part"),
        ('field:.""', "empty part"),
        ("field:a\0b", "cannot be printed"),
        ("header:\udcff", "cannot be printed"),
        ("function:module", "is not a function"),
        ("function:module:", "is not a function"),
        ("function:os.system('x'):f", "is not a function"),
        ("function:../module:f", "is not a function"),
        ("topic:x", "a sequence cannot be read from 'topic'"),
    ],
)
def test_a_source_that_cannot_be(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SequenceSource.parse(text)


@pytest.mark.parametrize("source", ["field:n", "header:n"])
def test_a_batch_without_records(source: str) -> None:
    sequences, reasons = reader_for(SequenceSource.parse(source))(fetched([]))
    assert (len(sequences), len(reasons)) == (0, 0)
