"""Poison through a real worker: what cannot be judged is dead-lettered with its reason, good records pass in order."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import pytest
from confluent_kafka import Message, Producer

from kafka_ratchet.app.verify import verify
from tests.app.worker_process import Site, WorkerProcess, read_all
from tests.tables.fetched_records import Sent
from tests.tables.map.plain_judge import PlainJudge

PRODUCER, SEQUENCE = "ratchet-producer", "ratchet-sequence"

MEGABYTE = 1_000_000
"""bytes: under max.message.bytes (1,048,588 by default) even with the headers of a dead letter."""

FRESH, DUPLICATE = "fresh", "duplicate"

NOW_MS = int(time.time() * 1000)


class Record(NamedTuple):
    """A record as sent, and as read."""

    key: bytes | None = None
    value: bytes | None = b"v"
    headers: tuple[tuple[str, bytes | None], ...] = ()


Case = tuple[Record, str]
"""A record, and what must come of it: FRESH, DUPLICATE or the reason of its dead letter."""

EXTRACTOR = """
import sys

def sequence(record):
    text = record.value.decode()
    if text == "exit":
        sys.exit("bad value")
    if text == "recurse":
        return sequence(record)
    return {"none": None, "float": 1.0, "true": True, "text": "5", "huge": 10**5000}.get(text) if text.isalpha() \\
        else int(text)
"""

NAMES = [
    *(b"\xff\xfe", b"\xed\xa0\x80", b"\0", b"\0\0", b"a\0b", b"\n", b" ", b"../../../etc/passwd", b"..", b"/", b"%2e"),
    *(b"<script>alert(1)</script>", b"' OR 1=1; --", b"${jndi:ldap://x}", "\u202e\U0001f600".encode(), b"p", b"i\0"),
    *(b"x" * 1024, b"\0" * 1024),
]
"""Identities that look dangerous and are as good as any other."""

BAD_SEQUENCES: list[tuple[list[bytes | None], str]] = [
    ([], "sequence-missing"),
    ([None], "sequence-missing"),
    ([b""], "sequence-missing"),
    ([b"-5"], "sequence-negative"),
    ([b"\xff" * 8], "sequence-negative"),
    ([b"-" + b"9" * (MEGABYTE - 1)], "sequence-negative"),
    ([b"9223372036854775808"], "sequence-out-of-range"),
    ([b"9" * MEGABYTE], "sequence-out-of-range"),
    ([b"five"], "sequence-not-a-number"),
    ([b"5.0"], "sequence-not-a-number"),
    ([b"-"], "sequence-not-a-number"),
    ([b"\0"], "sequence-not-a-number"),
    ([b"../../x"], "sequence-not-a-number"),
    ([b"<script>"[:7]], "sequence-not-a-number"),
    (["٥".encode()], "sequence-not-a-number"),
    ([b"x" * MEGABYTE], "sequence-not-a-number"),
    ([b"1", b"1"], "sequence-repeated"),
    ([b"1", None], "sequence-repeated"),
    ([b"1"] * 10_000, "sequence-repeated"),
]


def by_header(identity: str, name: bytes | None, *sequences: bytes | None) -> Record:
    """name: of the producer, or the key."""
    headers: tuple[tuple[str, bytes | None], ...] = tuple((SEQUENCE, sequence) for sequence in sequences)
    if identity == "producer":
        headers = ((PRODUCER, name), *headers)
    return Record(name if identity == "key" else b"k", b"v", headers)


def of_header(identity: str) -> list[Case]:
    """Sequences in a header, whosoever they are."""
    cases = [(by_header(identity, b"bad", *sequences), reason) for sequences, reason in BAD_SEQUENCES]
    if identity == "partition":
        return cases
    for name in NAMES:
        first = by_header(identity, name, b"1")
        cases += [(first, FRESH), (first, DUPLICATE), (by_header(identity, name, b"2"), FRESH)]
    cases += [
        (by_header(identity, b"highest", b"9223372036854775807"), FRESH),
        (by_header(identity, b"highest", b"9223372036854775807"), DUPLICATE),
        (by_header(identity, b"zeros", b"0" * (MEGABYTE - 1) + b"7"), FRESH),
        (by_header(identity, b"zeros", b"7"), DUPLICATE),
        (by_header(identity, b"minus", b"-0"), FRESH),
        (by_header(identity, None, b"1"), "identity-missing"),
        (by_header(identity, None), "sequence-missing"),
        (by_header(identity, b"x" * 1025, b"1"), "identity-too-long"),
        (by_header(identity, b"x" * MEGABYTE, b"1"), "identity-too-long"),
        (by_header(identity, b"x" * MEGABYTE, b"five"), "sequence-not-a-number"),
    ]
    many = tuple((f"h{i}", None if i % 2 else b"") for i in range(10_000))
    wide = by_header(identity, b"wide", b"1")
    cases += [(wide._replace(headers=many + wide.headers), FRESH), (wide._replace(headers=many), "sequence-missing")]
    odd = (("", b""), ("<script>", b"\0"), ("../", b"../"), ("ratchet-reason", b"mine"), ("ratchet-sequence ", b"9"))
    plain = by_header(identity, b"odd", b"3")
    cases.append((plain._replace(headers=odd + plain.headers), FRESH))
    tombstone = by_header(identity, b"tombstone", b"1")
    cases += [(tombstone._replace(value=None), FRESH), (tombstone._replace(value=b""), DUPLICATE)]
    if identity == "key":
        cases += [(by_header(identity, b"", b"1"), FRESH), (by_header(identity, b"", b"1"), DUPLICATE)]
    else:
        twice = ((PRODUCER, b"a"), (PRODUCER, b"a"), (SEQUENCE, b"1"))
        cases += [
            (by_header(identity, b"", b"1"), "identity-missing"),
            (Record(b"k", b"v", ((SEQUENCE, b"1"),)), "identity-missing"),
            (Record(b"k", b"v", twice), "identity-repeated"),
            (Record(b"k", b"v", (*twice, (SEQUENCE, b"1"))), "sequence-repeated"),
        ]
    return cases


VALUES: list[tuple[bytes | None, str]] = [
    (None, "sequence-missing"),
    (b"", "value-not-json"),
    (b"\0", "value-not-json"),
    (b"\xff\xfe\xfd", "value-not-json"),
    (b'\xef\xbb\xbf{"meta":{"n":1}}', "value-not-json"),
    (b'{"meta":{"n":1}', "value-not-json"),
    (b'{"meta":{"n":NaN}}', "value-not-json"),
    (b'{"meta":{"n":1},"x":-Infinity}', "value-not-json"),
    (b'{"meta":{"n":1},"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "value-not-json"),
    (b'{"a":' * 100_000, "value-not-json"),
    (b'{"meta":{"n":1},"x":"\\ud83d"}', "value-not-json"),
    (b'{"meta":{"n":1},"\\udc00":0}', "value-not-json"),
    (b"{}", "sequence-missing"),
    (b"[1]", "sequence-missing"),
    (b'{"meta":null}', "sequence-missing"),
    (b'{"meta":{"n":null}}', "sequence-missing"),
    (b'{"meta":{"n":1},"meta":2}', "sequence-missing"),
    (b'{"meta.n":1}', "sequence-missing"),
    (b'{"meta":{"n":1.0}}', "sequence-not-a-number"),
    (b'{"meta":{"n":1e3}}', "sequence-not-a-number"),
    (b'{"meta":{"n":"\\ud83d\\ude00"}}', "sequence-not-a-number"),
    (b'{"meta":{"n":"<script>"}}', "sequence-not-a-number"),
    (b'{"meta":{"n":[[[1]]]}}', "sequence-not-a-number"),
    (b'{"meta":{"n":"' + b"x" * MEGABYTE + b'"}}', "sequence-not-a-number"),
    (b'{"meta":{"n":-1}}', "sequence-negative"),
    (b'{"meta":{"n":9223372036854775808}}', "sequence-out-of-range"),
    (b'{"meta":{"n":' + b"9" * MEGABYTE + b"}}", "sequence-out-of-range"),
    (b'{"meta":{"n":1},"x":' + b"9" * MEGABYTE + b"}", FRESH),
    (b'{"meta":{"n":1},"meta":{"n":7,"n":2}}', FRESH),
    (b'{"meta":{"n":"3"},"x":"\xff\xfe"}', FRESH),
    (b'{"meta":{"n":"\\u0034"},"x":1e999999}', FRESH),
    (b'{"meta":{"n":4}}', DUPLICATE),
]


def of_field() -> list[Case]:
    cases = [(Record(b"json", value), outcome) for value, outcome in VALUES]
    return [*cases, (Record(None, b'{"meta":{"n":1}}'), "identity-missing"), (Record(None, b"{"), "value-not-json")]


def of_function() -> list[Case]:
    named = {
        **dict.fromkeys((b"exit", b"recurse", b"float", b"true", b"text", b"what?", b"\xff"), "extractor-failed"),
        **{b"none": "sequence-missing", b"huge": "sequence-out-of-range", b"-3": "sequence-negative"},
    }
    cases = [(Record(b"k", value, ((PRODUCER, b"bad"),)), reason) for value, reason in named.items()]
    return [*cases, (Record(b"k", None, ((PRODUCER, b"bad"),)), "extractor-failed")]


def interleaved(stream: str, cases: list[Case]) -> list[Case]:
    """A good record before, between and after."""
    mixed = [(good(stream, 10), FRESH)]
    for number, case in enumerate(cases, 11):
        mixed += [case, (good(stream, number), FRESH)]
    return mixed


def good(stream: str, number: int) -> Record:
    if stream == "field":
        return Record(b"good", b'{"meta":{"n":%d}}' % number)
    if stream == "function":
        return Record(b"k", b"%d" % number, ((PRODUCER, b"good"),))
    return by_header(stream, b"good", b"%d" % number)


def random_records(seed: int, count: int) -> list[Record]:
    """Headers, keys and values of any kind; few identities and low numbers, so that duplicates are among them."""
    dice = random.Random(seed)
    names = [b"a", b"b", b"", b"\0", b"\xff\xfe", b"../", b"<script>", b"x" * 1024, b"x" * 1025, None]

    def sequence(at: int) -> bytes | None:
        number = at // 2 + dice.randrange(10) if dice.random() < 0.9 else dice.randrange(-(2**63), 3)
        kinds = [b"%d" % number, number.to_bytes(8, "big", signed=True), b"%d" % (2**63 + dice.randrange(2**63))]
        return dice.choices([*kinds, dice.randbytes(dice.randrange(12)), b"%05d" % at, None], (9, 9, 1, 1, 1, 1))[0]

    def headers(at: int) -> tuple[tuple[str, bytes | None], ...]:
        made: list[tuple[str, bytes | None]] = []
        for _ in range(dice.choices([0, 1, 2], (1, 14, 1))[0]):
            made.append((SEQUENCE, sequence(at)))
        for _ in range(dice.choices([0, 1, 2], (1, 14, 1))[0]):
            made.append((PRODUCER, dice.choice(names)))
        for _ in range(dice.randrange(4)):
            made.append((dice.choice(["", "x", "größe", "ratchet-reason", SEQUENCE.upper()]), dice.randbytes(3)))
        dice.shuffle(made)
        return tuple(made)

    return [
        Record(dice.choice(names), dice.choice([None, b"", dice.randbytes(dice.randrange(300))]), headers(at))
        for at in range(count)
    ]


RANDOM = 1_000
SEED = 20_260_704


def judged(by: str, records: list[Record]) -> list[Case]:
    """Return the verdict on each by the plain judge of the tables' tests."""
    judge = PlainJudge(by)
    verdicts = [judge.judge(Sent(*record)) for record in records]
    return [(record, reason or verdict) for record, (verdict, reason) in zip(records, verdicts, strict=True)]


STREAMS = {
    "producer": ("producer", "header:ratchet-sequence"),
    "key": ("key", "header:ratchet-sequence"),
    "partition": ("partition", "header:ratchet-sequence"),
    "field": ("key", "field:meta.n"),
    "function": ("producer", "function:users_extractor:sequence"),
    **{f"random-{by}": (by, "header:ratchet-sequence") for by in ("producer", "key", "partition")},
}


def cases_of(stream: str) -> list[Case]:
    if stream.startswith("random-"):
        return judged(stream.removeprefix("random-"), random_records(SEED, RANDOM))
    return interleaved(stream, {"field": of_field, "function": of_function}.get(stream, lambda: of_header(stream))())


@dataclass
class Run:
    """A worker that has all of it behind it."""

    site: Site
    worker: WorkerProcess
    cases: dict[str, list[Case]] = field(default_factory=dict)

    def topic(self, stream: str, kind: str) -> str:
        return f"{self.site.app}.{stream}.{kind}"

    def send(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self.site.broker, "message.max.bytes": 2 * MEGABYTE, "compression.type": "lz4"}
        )
        for stream, cases in self.cases.items():
            for record, _ in cases:
                topic, headers = self.topic(stream, "in"), list(record.headers)
                producer.produce(topic, record.value, record.key, 0, timestamp=NOW_MS, headers=headers)
                producer.poll(0)
            assert producer.flush(60) == 0

    def is_through(self, stream: str, end: int) -> bool:
        return self.site.position(self.topic(stream, "in")) == end

    def read(self, stream: str, kind: str) -> list[Record]:
        (messages,) = read_all(self.site.broker, self.topic(stream, kind)).values()
        return [_record(message) for message in messages]


def _record(message: Message) -> Record:
    assert message.timestamp()[1] == NOW_MS
    return Record(message.key(), message.value(), tuple(message.headers() or ()))


@pytest.fixture(scope="module")
def run(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder, app = tmp_path_factory.mktemp("poison"), f"poison-{uuid.uuid4().hex[:8]}"
    (folder / "users_extractor.py").write_text(EXTRACTOR, "utf-8")
    toml = "".join(
        f'[streams.{name}]\nidentity = "{identity}"\nsequence = "{sequence}"\npartitions = 1\n'
        f'input = "{app}.{name}.in"\noutput = "{app}.{name}.out"\ndead_letters = "{app}.{name}.dead"\n'
        for name, (identity, sequence) in STREAMS.items()
    )
    site = Site(folder, broker, app, toml)
    run = Run(site, WorkerProcess(site), {stream: cases_of(stream) for stream in STREAMS})
    try:
        run.worker.start()
        run.worker.wait_for(lambda: run.worker.text().count("lane runs") == len(STREAMS), "all lanes")
        run.send()
        for stream, cases in run.cases.items():
            ends = partial(run.is_through, stream, len(cases))
            run.worker.wait_for(ends, f"the end of {stream}")
        yield run
        run.worker.stop()
    finally:
        run.worker.end()


@pytest.mark.parametrize("stream", STREAMS)
def test_good_records_pass_in_order(run: Run, stream: str) -> None:
    expected = [record for record, outcome in run.cases[stream] if outcome == FRESH]
    assert run.read(stream, "out") == expected
    assert len(expected) > 10


@pytest.mark.parametrize("stream", STREAMS)
def test_each_poison_is_dead_lettered_with_its_reason(run: Run, stream: str) -> None:
    where = [("ratchet-topic", run.topic(stream, "in").encode()), ("ratchet-partition", b"0")]
    expected = [
        record._replace(
            headers=(*record.headers, ("ratchet-reason", outcome.encode()), *where, ("ratchet-offset", b"%d" % offset))
        )
        for offset, (record, outcome) in enumerate(run.cases[stream])
        if outcome not in (FRESH, DUPLICATE)
    ]
    letters = run.read(stream, "dead")
    reasons = [dict(letter.headers).get("ratchet-reason") for letter in letters]
    assert reasons == [dict(letter.headers)["ratchet-reason"] for letter in expected]
    assert letters == expected
    assert len(expected) > 10


@pytest.mark.parametrize("stream", STREAMS)
def test_verify_finds_nothing_wrong(run: Run, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(run.site.folder)
    report = verify(run.site.settings, stream)
    assert report.ok, report.findings[:5]
    outcomes = [outcome for _, outcome in run.cases[stream]]
    fresh, duplicate = outcomes.count(FRESH), outcomes.count(DUPLICATE)
    assert (report.fresh, report.duplicate, report.delivered) == (fresh, duplicate, fresh)
    assert report.invalid == report.dead_letters == len(outcomes) - fresh - duplicate
    assert report.pending == 0


def test_no_lane_stopped_or_started_again(run: Run) -> None:
    said = run.worker.text()
    assert run.worker.process.poll() is None
    assert said.count("lane runs") == len(STREAMS)
    assert "lane starts again" not in said
    assert "partition halted" not in said
    assert "Traceback" not in said
