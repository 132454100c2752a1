import pytest

from kafka_ratchet.app.status.lookup import (
    QueryError,
    parse_identity,
    parse_parts,
    parse_query,
    parse_sequence,
    typed_identity,
    verdict_of,
)
from kafka_ratchet.rule.identity import MAX_IDENTITY_BYTES, SEQUENCE_MAX, Identity


@pytest.mark.parametrize(
    ("text", "hexadecimal", "identity"),
    [
        ("sensor-7", None, b"sensor-7"),
        ("Zürich", "", "Zürich".encode()),
        (None, "00ff1B", b"\x00\xff\x1b"),
        ("", "00 ff", b"\x00\xff"),
        (None, None, b""),
        ("<script>", None, b"<script>"),
        ("../../etc", None, b"../../etc"),
        ("a\0b", None, b"a\0b"),
    ],
)
def test_an_identity_is_its_bytes(text: str | None, hexadecimal: str | None, identity: bytes) -> None:
    assert parse_identity(text, hexadecimal) == identity


@pytest.mark.parametrize(
    ("text", "hexadecimal", "sentence"),
    [
        ("a", "61", "both as text and as hex"),
        (None, "0", "pairs of the digits"),
        (None, "zz", "pairs of the digits"),
        ("x" * (MAX_IDENTITY_BYTES + 1), None, "has 1,025 bytes"),
        (None, "00" * (MAX_IDENTITY_BYTES + 1), "has 1,025 bytes"),
        ("\udcff", None, "not UTF-8"),
    ],
)
def test_an_identity_that_cannot_be_read(text: str | None, hexadecimal: str | None, sentence: str) -> None:
    with pytest.raises(QueryError, match=sentence):
        parse_identity(text, hexadecimal)


@pytest.mark.parametrize(
    ("of", "texts", "hexadecimal", "identity"),
    [
        ("header:a,header:b", ["shop", "17"], None, b"\x04shop\x0217"),
        ("header:a,header:b", ['["shop", "17"]'], None, b"\x04shop\x0217"),
        ("header:a,header:b", ["[", "]"], None, b"\x01[\x01]"),
        ("key,header:b", ["", "é"], None, b"\x00\x02\xc3\xa9"),
        ("header:a,header:b", [], "0161026263", b"\x01a\x02bc"),
        ("header:a", ['["shop", "17"]'], None, b'["shop", "17"]'),
        ("field:n", ["7"], None, b"7"),
        ("key", ["k"], None, b"k"),
        ("partition", [], None, b""),
    ],
)
def test_an_identity_by_its_parts(of: str, texts: list[str], hexadecimal: str | None, identity: bytes) -> None:
    assert parse_parts(Identity.parse(of), texts, hexadecimal) == identity


@pytest.mark.parametrize(
    ("of", "texts", "hexadecimal", "sentence"),
    [
        ("header:a,header:b", ["shop"], None, "has 2 parts, header:a, header:b, but 1 are given"),
        ("header:a,header:b", ['["shop"]'], None, "has 2 parts, header:a, header:b, but 1 are given"),
        ("header:a,header:b", ['["shop", 17]'], None, "begins like a list but is not a list"),
        ("header:a,header:b", ["[shop"], None, "begins like a list but is not a list"),
        ("header:a,header:b", ["[\udcff"], None, "begins like a list but is not a list"),
        ("header:a", ["a", "b"], None, "has one part, but 2 are given"),
        ("header:a,header:b", ["a", "\udcff"], None, "not UTF-8"),
        ("header:a,header:b", ["a", "b"], "61", "both as text and as hex"),
        ("header:a,header:b", ["x" * 600, "y" * 600], None, "has 1,204 bytes"),
    ],
)
def test_parts_that_cannot_be_read(of: str, texts: list[str], hexadecimal: str | None, sentence: str) -> None:
    with pytest.raises(QueryError, match=sentence):
        parse_parts(Identity.parse(of), texts, hexadecimal)


@pytest.mark.parametrize(
    ("address", "identity"),
    [("identity=", b""), ("hex=", b""), ("identity=&hex=61", b"a"), ("identity=a&hex=", b"a"), ("identity=a", b"a")],
)
def test_one_empty_parameter_is_the_empty_key(address: str, identity: bytes) -> None:
    assert parse_parts(Identity.KEY, *typed_identity(parse_query(address))) == identity


@pytest.mark.parametrize(
    ("of", "address"), [("key", ""), ("key", "identity=&hex="), ("producer", "identity="), ("header:a", "hex=")]
)
def test_an_identity_that_is_not_given_or_never_empty_is_refused(of: str, address: str) -> None:
    with pytest.raises(QueryError, match=f"give the identity: the stream keeps one sequence for each {of}"):
        parse_parts(Identity.parse(of), *typed_identity(parse_query(address)))


def test_a_partition_needs_no_identity() -> None:
    assert parse_parts(Identity.PARTITION, *typed_identity(parse_query(""))) == b""


def test_the_longest_identity_is_accepted() -> None:
    assert len(parse_identity("x" * MAX_IDENTITY_BYTES, None)) == MAX_IDENTITY_BYTES


@pytest.mark.parametrize(
    ("text", "sequence"), [(None, None), ("", None), ("0", 0), ("007", 7), (str(SEQUENCE_MAX), SEQUENCE_MAX)]
)
def test_a_sequence(text: str | None, sequence: int | None) -> None:
    assert parse_sequence(text) == sequence


@pytest.mark.parametrize("text", ["-1", "+1", "1.0", "1_0", "٣", " 1", "0x10", str(SEQUENCE_MAX + 1), "9" * 10_000])
def test_a_sequence_that_is_none(text: str) -> None:
    with pytest.raises(QueryError, match="whole number from 0 to 9223372036854775807"):
        parse_sequence(text)


def test_a_query_keeps_plus_percent_and_empty_values() -> None:
    assert parse_query("identity=a%2Bb+c%25&hex=") == {"identity": "a+b c%", "hex": ""}


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ("identity=%FF", "not UTF-8"),
        ("identity=a&identity=b", "given twice"),
        ("&".join(f"a{n}=1" for n in range(9)), "more than 8"),
    ],
)
def test_a_query_that_cannot_be_read(raw: str, sentence: str) -> None:
    with pytest.raises(QueryError, match=sentence):
        parse_query(raw)


@pytest.mark.parametrize(
    ("sequence", "persisted", "pushed", "verdict"),
    [
        (5, 5, 5, "duplicate"),
        (4, 5, 9, "duplicate"),
        (6, 5, 6, "unknown"),
        (7, 5, 6, "fresh"),
        (0, None, None, "fresh"),
        (0, None, 0, "unknown"),
        (6, 5, None, "fresh"),
    ],
)
def test_the_verdict_comes_from_both_maps(
    sequence: int, persisted: int | None, pushed: int | None, verdict: str
) -> None:
    assert verdict_of(sequence, persisted, pushed) == verdict


@pytest.mark.parametrize(
    ("sequence", "persisted", "pushed", "seen", "verdict"),
    [
        (100, 100, 100, (False, False), "duplicate"),
        (98, 100, 100, (True, True), "duplicate"),
        (98, 100, 100, (False, False), "fresh"),
        (98, 100, 100, (False, True), "unknown"),
        (96, 100, 100, (False, False), "fresh"),
        (95, 100, 100, (False, False), "too-late"),
        (97, 100, 102, (True, False), "duplicate"),
        (97, 100, 102, (False, False), "too-late"),
        (101, 100, 102, (False, False), "fresh"),
        (101, 100, 102, (False, True), "unknown"),
        (102, 100, 102, (False, False), "unknown"),
        (103, 100, 102, (False, False), "fresh"),
        (1, None, 2, (False, True), "unknown"),
    ],
)
def test_in_a_window_what_was_seen_decides_and_below_it_nobody_knows(
    sequence: int, persisted: int | None, pushed: int | None, seen: tuple[bool, bool], verdict: str
) -> None:
    assert verdict_of(sequence, persisted, pushed, 4, seen) == verdict
