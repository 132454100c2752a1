"""Values that libraries and runtimes read differently, with the one answer that Ratchet gives.

Worker, verify, survey and Spark's task are held against this table.
"""

from __future__ import annotations

from typing import Final

from kafka_ratchet.rule.nesting import NESTING_MOST

MISSING, NOT_A_NUMBER, NEGATIVE, TOO_LARGE = (
    "sequence-missing",
    "sequence-not-a-number",
    "sequence-negative",
    "sequence-out-of-range",
)
NO_ID, NOT_TEXT, TOO_LONG, NOT_JSON = "identity-missing", "identity-not-text", "identity-too-long", "value-not-json"
OF_REGISTRY = "value-schema-registry"

NUMBERS: Final[list[tuple[bytes | None, int | str]]] = [
    (None, MISSING),
    (b"", MISSING),
    (b"0", 0),
    (b"00", 0),
    (b"007", 7),
    (b"0" * 5_000 + b"7", 7),
    (b"-0", 0),
    (b"-" + b"0" * 5_000, 0),
    (b"-1", NEGATIVE),
    (b"-" + b"9" * 5_000, NEGATIVE),
    (b"9223372036854775807", 2**63 - 1),
    (b"9223372036854775808", TOO_LARGE),
    (b"-9223372036854775808", NEGATIVE),
    (b"-9223372036854775809", NEGATIVE),
    (b"18446744073709551616", TOO_LARGE),
    (b"18446744073709551617", TOO_LARGE),
    (b"9" * 5_000, TOO_LARGE),
    *((text, NOT_A_NUMBER) for text in (b"-", b"--1", b"+1", b"+", b" 1", b"1 ", b"1\n", b"\t1", b"1\0", b"\0", b" ")),
    *((text, NOT_A_NUMBER) for text in (b"1.0", b"1.", b".5", b"1e3", b"1E3", b"1_000", b"1,000", b"0x10", b"1f")),
    *((text, NOT_A_NUMBER) for text in (b"NaN", b"inf", b"null", b"true", b'"1"', b"\xff", b"1\xff", b"AQ==")),
    *((text.encode(), NOT_A_NUMBER) for text in ("\u0661", "\uff11", "\u00b2", "1\u00a0", "\ufeff1", "\u22121")),
    (b"12345678", 12_345_678),
    (b"-1234567", NEGATIVE),
    (b"1234567", 1_234_567),
    (b"123456789", 123_456_789),
    (bytes(8), 0),
    (bytes(7), NOT_A_NUMBER),
    (bytes(9), NOT_A_NUMBER),
    ((7).to_bytes(8, "big"), 7),
    (b"\x7f" + b"\xff" * 7, 2**63 - 1),
    (b"\x80" + bytes(7), NEGATIVE),
    (b"\xff" * 8, NEGATIVE),
]
"""Values of a header with a sequence, where its form is guessed; of those that read as eight letters see
`LOOKS_LIKE_TEXT`."""

LOOKS_LIKE_TEXT: Final[list[bytes]] = [b"1234567x", b"-------1", b"- 123456", b"0000000a", b"1234567.", b'"123456"']
"""Eight bytes that are an integer where the form is guessed, and text to a reader of English."""

IDENTITIES: Final[list[bytes]] = [
    b"",
    b"a",
    b"b",
    b"ab",
    b"\0",
    b"\xff",
    b"\xff\xfe",
    b"\xff" * 127,
    b"c" * 128,
    b"y" * 600,
    b"x" * 1_024,
    b"x" * 1_025,
    "Zo\u00eb".encode(),
    b"\xef\xbb\xbfa",
    b"\xed\xa0\x80",
]
"""Keys and headers that name an identity."""


def nested(levels: int, opening: bytes = b"[", closing: bytes = b"]", inner: bytes = b"") -> bytes:
    return opening * levels + inner + closing * levels


def beside(text: bytes) -> bytes:
    """A value with a sound field n, and this text next to it."""
    return b'{"n":7,"x":' + text + b"}"


DEEPEST: Final = NESTING_MOST - 1
"""Levels that fit beside the object around them."""

SOUND: Final[list[bytes]] = [
    *(nested(levels) for levels in (1, 100, DEEPEST)),
    *(nested(levels, b'{"a":', b"}", b"1") for levels in (100, DEEPEST)),
    nested(DEEPEST // 2, b'[{"a":', b"}]", b"null"),
    b"[" + b",".join([nested(DEEPEST - 1)] * 20) + b"]",
    b"[" + b"{}," * 5_000 + b"[]]",
    b'"' + b"[" * 5_000 + b'"',
    b'"' + b'\\"{[' * 2_000 + b'"',
    b'"' + b"\\\\" * 2_000 + b'"',
    *(b"0", b"-0", b"-0.5", b"1e400", b"-1E+5", b"9" * 5_000, b"0." + b"1" * 5_000, b"1e" + b"9" * 50),
    *(
        b'"\\u0041"',
        b'"\\ud83d\\ude00"',
        b'"\\b\\f\\n\\r\\t\\/"',
        b'"\x7f"',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\xc0\x80"',
    ),
    *(b" 1", b"\r\n\t 1 \r\n\t", b"true", b"null", b"{}", b"[]", b"[1,[2],{}]", b'{"n":1,"n":2}', b'{"":1}'),
    '"\ufeff\u2028\u00a0"'.encode(),
]
"""Texts beside which a field is read."""

BROKEN: Final[list[bytes]] = [
    *(nested(levels) for levels in (DEEPEST + 1, 600, 970, 971, 990, 1_000, 5_000, 100_000)),
    *(nested(levels, b'{"a":', b"}", b"1") for levels in (DEEPEST + 1, 971, 20_000)),
    b"[" + nested(DEEPEST) + b"," + nested(DEEPEST - 1) + b"]",
    *(b"00", b"01", b"-", b"--1", b"+1", b"1_000", b".5", b"1.", b"1.e3", b"1e", b"1e+", b"0x10", b"-a"),
    *(b"NaN", b"nan", b"Infinity", b"-Infinity", b"None", b"True", b"nul", b"tru", b"fals", b"nulll", b"undefined"),
    *(b'"\\ud800"', b'"\\uD83D"', b'"\\udc00\\ud800"', b'"\\ud800\\u0041"', b'"\\ud800x"', b'["\\udfff"]'),
    *(b'"\\x41"', b'"\\q"', b'"\\u12"', b'"\\u 123"', b'"\\u+123"', b'"\\u12_3"', b'"\\U0041"', b'"\\'),
    *(b'"a\tb"', b'"a\nb"', b'"a\0b"', b'"\x1f"', b'"a', b"'a'", b"a", b'"a""b"', b"1 2", b"1/**/", b"1//x", b"#"),
    *(b"[1,]", b"[,1]", b"[1 2]", b"[1,,2]", b"[", b"[1", b"[}", b"[1}", b"[1:2]", b"]"),
    *(b'{"a":1,}', b'{"a"}', b'{"a":}', b"{1:2}", b"{a:1}", b'{"a" 1}', b'{"a"::1}', b'{"a":1]', b'{"\x01":2}'),
    *(b"", b",", b"1;", b"1,", b"\x0b1", b"1\x0c", "\u00a01".encode(), "1\u00a0".encode(), "\ufeff1".encode()),
    *("\u0661".encode(), "\uff11".encode()),
]
"""Texts beside which nothing can be read."""

VALUES: Final[list[tuple[bytes | None, bytes | str, int | str]]] = [
    (None, NO_ID, MISSING),
    *((value, NO_ID, MISSING) for value in (b"{}", b"null", b"5", b"[]", b'"n"', b'{"N":1}', b'{"n ":1}', b'{"m":1}')),
    *((value, NOT_JSON, NOT_JSON) for value in (b"", b" ", b"{", b'{"n":1', b'{"n":1}}', b'{"n":1}{}', b'{"n":1} x')),
    *(
        (value, NOT_JSON, NOT_JSON)
        for value in (b"\xef\xbb\xbf" + b'{"n":1}', b'{"n":1}\0', b'\0{"n":1}', b'\x0b{"n":1}')
    ),
    *(('{"n":1}'.encode(coding), NOT_JSON, NOT_JSON) for coding in ("utf-16", "utf-16-le", "utf-32", "utf-8-sig")),
    (bytes(5) + b'{"n":1}', OF_REGISTRY, OF_REGISTRY),
    (nested(NESTING_MOST), NO_ID, MISSING),
    (nested(NESTING_MOST + 1), NOT_JSON, NOT_JSON),
    (nested(100_000), NOT_JSON, NOT_JSON),
    (b'{"n":null}', NO_ID, MISSING),
    (b'{"n":""}', NO_ID, NOT_A_NUMBER),
    (b'{"n":1}', b"1", 1),
    (b' {"n" : 1 } \n', b"1", 1),
    (b'{"n":"1"}', b"1", 1),
    (b'{"n":"01"}', b"01", 1),
    (b'{"n":-0}', b"0", 0),
    (b'{"n":"-0"}', b"-0", 0),
    (b'{"n":-1}', b"-1", NEGATIVE),
    (b'{"n":"-1"}', b"-1", NEGATIVE),
    (b'{"n":9223372036854775807}', b"9223372036854775807", 2**63 - 1),
    (b'{"n":9223372036854775808}', b"9223372036854775808", TOO_LARGE),
    (b'{"n":18446744073709551616}', b"18446744073709551616", TOO_LARGE),
    (b'{"n":' + b"9" * 1_025 + b"}", TOO_LONG, TOO_LARGE),
    (b'{"n":' + b"9" * 100_000 + b"}", TOO_LONG, TOO_LARGE),
    *((b'{"n":' + text + b"}", NOT_TEXT, NOT_A_NUMBER) for text in (b"1.0", b"1e3", b"1E0", b"-1e-1", b"1e400")),
    *(
        (b'{"n":' + text + b"}", NOT_TEXT, NOT_A_NUMBER)
        for text in (b"true", b"false", b"[]", b"{}", b"[1]", b'{"n":1}')
    ),
    *((b'{"n":"' + text + b'"}', text, NOT_A_NUMBER) for text in (b"-", b" 1", b"+1", b"1_0", b"1.0", b"1e3", b"0x1")),
    *(
        (b'{"n":"' + text.encode() + b'"}', text.encode(), NOT_A_NUMBER)
        for text in ("\u0661", "\uff11", "\ufeff1", "\u00e9", "\u2028")
    ),
    (b'{"n":"\\u0031"}', b"1", 1),
    (b'{"n":"\\u002d1"}', b"-1", NEGATIVE),
    (b'{"n":"\\u0661"}', "\u0661".encode(), NOT_A_NUMBER),
    (b'{"n":"\\ud83d\\ude00"}', "\U0001f600".encode(), NOT_A_NUMBER),
    (b'{"n":"\\u0000"}', b"\0", NOT_A_NUMBER),
    *((b'{"n":"' + text + b'"}', NOT_TEXT, NOT_A_NUMBER) for text in (b"\xff", b"\xed\xa0\x80", b"\xc0\x80")),
    (b'{"n":"\xf4\x90\x80\x80"}', NOT_TEXT, NOT_A_NUMBER),
    (b'{"n":1,"n":2}', b"2", 2),
    (b'{"n":1,"n":null}', NO_ID, MISSING),
    (b'{"n":{"n":1},"n":3}', b"3", 3),
    (b'{"\\u006e":1}', b"1", 1),
    (b'{"n":1,"\\u006e":2}', b"2", 2),
    (b'{"\\u006e":2,"n":1}', b"1", 1),
    (b'{"n\\u0000":1}', NO_ID, MISSING),
    (b'{"\xff":1,"n":2}', b"2", 2),
    (b'{"n":1,"\\ud800":2}', NOT_JSON, NOT_JSON),
    *((beside(text), b"7", 7) for text in SOUND),
    *((b'{"x":' + text + b',"n":7}', b"7", 7) for text in SOUND),
    *((beside(text), NOT_JSON, NOT_JSON) for text in BROKEN),
    *((b'{"x":' + text + b',"n":7}', NOT_JSON, NOT_JSON) for text in BROKEN),
]
"""Values, with the identity and the sequence of `field:n`, or the reason why there is none."""

PATHS: Final[list[tuple[str, bytes, bytes | str, int | str]]] = [
    ('"event.id"', b'{"event.id":1,"event":{"id":2}}', b"1", 1),
    ("event.id", b'{"event.id":1,"event":{"id":2}}', b"2", 2),
    ('"event.id".x', b'{"event.id":{"x":3},"event":{"id":{"x":4}}}', b"3", 3),
    ("event.id.x", b'{"event.id":{"x":3},"event":{"id":{"x":4}}}', b"4", 4),
    ('a."b.c"."d.e"', b'{"a":{"b.c":{"d.e":5}}}', b"5", 5),
    ('a."b.c"."d.e"', b'{"a":{"b":{"c":{"d.e":5}}}}', NO_ID, MISSING),
    ('"event.id"', b'{"event\\u002eid":6}', b"6", 6),
    ('"a"', b'{"a":7}', b"7", 7),
    ('""', b'{"":8,"n":1}', b"8", 8),
    ('a.""', b'{"a":{"":9}}', b"9", 9),
    ('"."', b'{".":10}', b"10", 10),
    ('".."."."', b'{"..":{".":11}}', b"11", 11),
    ('"a, key"', b'{"a, key":12}', b"12", 12),
    ('"a,header:b"', b'{"a,header:b":13}', b"13", 13),
    ("a b", b'{"a b":14}', b"14", 14),
    ("a'b", b'{"a\'b":15}', b"15", 15),
    ("a:b", b'{"a:b":16}', b"16", 16),
    ("@id", b'{"@id":17}', b"17", 17),
    ("$.id", b'{"$":{"id":18}}', b"18", 18),
    ("[0]", b'{"[0]":19}', b"19", 19),
    ('"\u00e9.\u00e9"', '{"\u00e9.\u00e9":20}'.encode(), b"20", 20),
    ('"event.id"', b'{"event":{"id":1}}', NO_ID, MISSING),
]
"""Paths as settings write them, with a value, and the identity and the sequence there."""
