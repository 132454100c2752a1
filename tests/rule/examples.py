"""Examples of the rule: records, settings and verdicts. Every implementation is run against this table.

A verdict is "fresh", "duplicate", "too-late", "content-differs", or the reason of an invalid record as its dead letter
has it. State is kept per input partition.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kafka_ratchet.app.settings import StreamSettings
from kafka_ratchet.rule.identity import MAX_IDENTITY_BYTES, SEQUENCE_MAX

NOON_MS: Final = 1_700_000_000_000
FRESH, DUPLICATE, LATE, CONFLICT = "fresh", "duplicate", "too-late", "content-differs"
VERDICTS: Final = (FRESH, DUPLICATE, LATE, CONFLICT)
"""All else is the reason of an invalid record."""

Headers = tuple[tuple[str, bytes | None], ...]


class Given(NamedTuple):
    """A record, and its verdict. time_ms: its timestamp; partition: number."""

    verdict: str
    headers: Headers = ()
    key: bytes | None = None
    value: bytes | None = b""
    time_ms: int = NOON_MS
    partition: int = 0


@dataclass(frozen=True)
class Example:
    """Records of an input in their order, under settings as a stream has them."""

    name: str
    records: tuple[Given, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def stream(self) -> StreamSettings:
        """Validated settings."""
        return StreamSettings(input="in", output="out", dead_letters="dead", **self.settings)


def of(verdict: str, sequence: int | bytes | None, producer: bytes | None = b"p", **more: Any) -> Given:
    """A record with the headers that `producers` sets; an integer has eight bytes, big-endian."""
    number = sequence.to_bytes(8, "big", signed=True) if isinstance(sequence, int) else sequence
    return Given(verdict, (("ratchet-producer", producer), ("ratchet-sequence", number)), **more)


def number(verdict: str, text: bytes | None, **more: Any) -> Given:
    """A record with a sequence in the header n."""
    return Given(verdict, (("n", text),), **more)


def minute(record: Any) -> str:
    """An identity from the time of a record."""
    return str(record.timestamp_ms // 60_000)


def length(record: Any) -> int:
    """A sequence from the value of a record."""
    return len(record.value)


KEY: Final = {"identity": "key", "sequence": "header:n"}
WINDOW: Final = KEY | {"reorder_window": 4}

EXAMPLES: Final = (
    Example("sequences that rise, with gaps", (of(FRESH, 0), of(FRESH, 1), of(FRESH, 7), of(FRESH, SEQUENCE_MAX))),
    Example(
        "a sequence sent again, and one below it", (of(FRESH, 5), of(DUPLICATE, 5), of(DUPLICATE, 4), of(FRESH, 6))
    ),
    Example(
        "each producer counts by itself",
        (of(FRESH, 1, b"a"), of(FRESH, 1, b"b"), of(DUPLICATE, 1, b"a"), of(FRESH, 2, b"b"), of(FRESH, 1, b"a\0")),
    ),
    Example(
        "each partition keeps its own state",
        (of(FRESH, 3), of(FRESH, 3, partition=1), of(DUPLICATE, 3), of(DUPLICATE, 2, partition=1), of(FRESH, 4)),
    ),
    Example(
        "text and eight bytes are one number where the form is guessed",
        (
            of(FRESH, b"7"),
            of(DUPLICATE, 7),
            of(DUPLICATE, b"007"),
            of(FRESH, 8),
            of(DUPLICATE, b"8"),
            of(FRESH, b"12345678"),
        ),
    ),
    Example(
        "what is no number",
        (
            of("sequence-missing", None),
            of("sequence-missing", b""),
            of("sequence-not-a-number", b"1.0"),
            of("sequence-not-a-number", b"+1"),
            of("sequence-not-a-number", b" 1"),
            of("sequence-not-a-number", bytes(7)),
            of("sequence-negative", -1),
            of("sequence-negative", b"-9223372036854775809"),
            of("sequence-out-of-range", b"9223372036854775808"),
            of(FRESH, b"-0"),
        ),
    ),
    Example(
        "an invalid record moves nothing",
        (of(FRESH, 4), of("sequence-negative", -3), of("identity-missing", 9, None), of(FRESH, 5), of(DUPLICATE, 5)),
    ),
    Example(
        "the sequence is judged before the identity",
        (
            of("sequence-missing", None, None),
            of("sequence-not-a-number", b"x", b"y" * 2_000),
            of("identity-missing", 1, b""),
            of("identity-too-long", 1, b"y" * (MAX_IDENTITY_BYTES + 1)),
            of(FRESH, 1, b"y" * MAX_IDENTITY_BYTES),
        ),
    ),
    Example(
        "a header that is there twice is none",
        (
            Given("sequence-repeated", (*of("", 1).headers, ("ratchet-sequence", b"1"))),
            Given("identity-repeated", (*of("", 1).headers, ("ratchet-producer", b"p"))),
            Given(FRESH, (("other", b"1"), *of("", 1).headers, ("other", b"2"))),
        ),
    ),
    Example("no headers at all", (Given("sequence-missing"), Given("sequence-missing", (("Ratchet-Sequence", b"1"),)))),
    Example(
        "keys: an empty one is an identity, null is none",
        (
            number(FRESH, b"1", key=b""),
            number(DUPLICATE, b"1", key=b""),
            number(FRESH, b"1", key=b"k"),
            number("identity-missing", b"1", key=None),
            number("identity-too-long", b"1", key=b"k" * (MAX_IDENTITY_BYTES + 1)),
        ),
        KEY,
    ),
    Example(
        "a partition has one sequence",
        (number(FRESH, b"1", key=b"a"), number(DUPLICATE, b"1", key=b"b"), number(FRESH, b"1", partition=1)),
        {"identity": "partition", "sequence": "header:n"},
    ),
    Example(
        "text alone",
        (
            number(FRESH, b"00000007", key=b"k"),
            number("sequence-not-a-number", (9).to_bytes(8, "big"), key=b"k"),
            number(FRESH, b"8", key=b"k"),
        ),
        KEY | {"sequence_form": "text"},
    ),
    Example(
        "big-endian integers alone",
        (
            number(FRESH, (9).to_bytes(8, "big"), key=b"k"),
            number("sequence-not-a-number", b"10", key=b"k"),
            number(FRESH, b"00000007", key=b"k"),
            number("sequence-negative", b"\xff" * 8, key=b"k"),
        ),
        KEY | {"sequence_form": "integer"},
    ),
    Example(
        "little-endian integers alone",
        (
            number(FRESH, (255).to_bytes(8, "little"), key=b"k"),
            number(FRESH, (256).to_bytes(8, "little"), key=b"k"),
            number(DUPLICATE, (1).to_bytes(8, "little"), key=b"k"),
            number("sequence-negative", b"\0" * 7 + b"\x80", key=b"k"),
        ),
        KEY | {"sequence_form": "little-endian"},
    ),
    Example(
        "identities of several parts",
        (
            Given(FRESH, (("n", b"1"), ("h", b"bc")), b"a"),
            Given(FRESH, (("n", b"1"), ("h", b"c")), b"ab"),
            Given(DUPLICATE, (("n", b"1"), ("h", b"bc")), b"a"),
            Given("identity-missing", (("n", b"1"), ("h", b"")), b"a"),
            Given("identity-missing", (("n", b"1"), ("h", b"x")), None),
            Given("identity-repeated", (("n", b"1"), ("h", b"x"), ("h", b"x")), b"a"),
            Given("identity-too-long", (("n", b"1"), ("h", b"x" * 600)), b"a" * 600),
            Given(FRESH, (("n", b"1"), ("h", b"x" * 200)), b""),
        ),
        {"identity": ["key", "header:h"], "sequence": "header:n"},
    ),
    Example(
        "ids without a sequence are seen or not",
        (
            Given(FRESH, (("id", b"a"),)),
            Given(DUPLICATE, (("id", b"a"),)),
            Given(FRESH, (("id", b"b"),), value=None),
            Given("identity-missing"),
            Given("identity-missing", (("id", None),)),
        ),
        {"identity": "header:id", "sequence": "none"},
    ),
    Example(
        "a late record within the window passes once",
        (
            number(FRESH, b"10", key=b"k"),
            number(FRESH, b"8", key=b"k"),
            number(DUPLICATE, b"8", key=b"k"),
            number(FRESH, b"6", key=b"k"),
            number(LATE, b"5", key=b"k"),
            number(FRESH, b"12", key=b"k"),
            number(DUPLICATE, b"10", key=b"k"),
            number(LATE, b"7", key=b"k"),
            number(FRESH, b"9", key=b"k"),
        ),
        WINDOW,
    ),
    Example(
        "a window where late records are dead letters",
        (
            number(FRESH, b"100", key=b"k"),
            number(LATE, b"95", key=b"k"),
            number(FRESH, b"96", key=b"k"),
            number("sequence-missing", None, key=b"k"),
            number(DUPLICATE, b"100", key=b"k"),
        ),
        WINDOW | {"late": "dead-letter"},
    ),
    Example(
        "a window over more than a word, and a jump beyond it",
        (
            *(number(FRESH, b"%d" % n, key=b"k") for n in (200, 130, 135, 199)),
            number(DUPLICATE, b"135", key=b"k"),
            number(LATE, b"129", key=b"k"),
            number(FRESH, b"1000", key=b"k"),
            number(LATE, b"200", key=b"k"),
            number(FRESH, b"999", key=b"k"),
            number(FRESH, b"930", key=b"k"),
            number(DUPLICATE, b"1000", key=b"k"),
        ),
        KEY | {"reorder_window": 70},
    ),
    Example(
        "the highest number and a window",
        (
            number(FRESH, b"%d" % SEQUENCE_MAX, key=b"k"),
            number(FRESH, b"%d" % (SEQUENCE_MAX - 4), key=b"k"),
            number(LATE, b"0", key=b"k"),
            number(DUPLICATE, b"%d" % SEQUENCE_MAX, key=b"k"),
        ),
        WINDOW,
    ),
    Example(
        "another value under the last sequence",
        (
            number(FRESH, b"1", key=b"k", value=b"one"),
            number(DUPLICATE, b"1", key=b"k", value=b"one"),
            number(CONFLICT, b"1", key=b"k", value=b"two"),
            number(CONFLICT, b"1", key=b"k", value=None),
            number(FRESH, b"2", key=b"k", value=None),
            number(CONFLICT, b"2", key=b"k", value=b""),
            number(DUPLICATE, b"1", key=b"k", value=b"two"),
        ),
        KEY | {"conflicts": "count"},
    ),
    Example(
        "a window and values together",
        (
            number(FRESH, b"5", key=b"k", value=b"a"),
            number(FRESH, b"3", key=b"k", value=b"b"),
            number(DUPLICATE, b"3", key=b"k", value=b"c"),
            number(CONFLICT, b"5", key=b"k", value=b"b"),
            number(DUPLICATE, b"5", key=b"k", value=b"a"),
        ),
        WINDOW | {"conflicts": "dead-letter"},
    ),
    Example(
        "identity and sequence in a JSON value",
        (
            Given(FRESH, value=b'{"id": "a", "at": {"n": 1}}'),
            Given(DUPLICATE, value=b'{"at":{"n":"1"},"id":"a"}'),
            Given(FRESH, value=b'{"id": 7, "at": {"n": 1}}'),
            Given("identity-missing", value=b'{"at": {"n": 1}}'),
            Given("identity-not-text", value=b'{"id": true, "at": {"n": 1}}'),
            Given("sequence-missing", value=b'{"id": "a"}'),
            Given("sequence-not-a-number", value=b'{"id": "a", "at": {"n": 1.0}}'),
            Given("sequence-negative", value=b'{"id": "a", "at": {"n": -1}}'),
            Given("value-not-json", value=b"{"),
            Given("sequence-missing", value=None),
        ),
        {"identity": "field:id", "sequence": "field:at.n"},
    ),
    Example(
        "functions of a user, and the time of a record",
        (
            Given(FRESH, value=b"xx"),
            Given(DUPLICATE, value=b"yy", time_ms=NOON_MS + 1_000),
            Given(FRESH, value=b"x", time_ms=NOON_MS + 60_000),
            Given("extractor-failed", value=None),
            Given(FRESH, value=b"xxx"),
        ),
        {"identity": f"function:{__name__}:minute", "sequence": f"function:{__name__}:length"},
    ),
)
