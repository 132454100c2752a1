"""The compiled rule over columns against the plain rule, record by record."""

from __future__ import annotations

import random
import struct

import pytest

from kafka_ratchet.app.verify.columns.exact import same_records
from kafka_ratchet.app.verify.columns.judging import IdentityAndSequence, JudgedBatch, PartitionRule
from kafka_ratchet.app.verify.compare import ExpectedPartition
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rule import RecordView, Rule
from kafka_ratchet.app.verify.state import KnownSequence
from kafka_ratchet.rule import extraction, parts
from kafka_ratchet.rule.identity import Identity, SequenceForm, SequenceSource
from kafka_ratchet.transport.batch.chunk import read_chunk
from tests import hostile
from tests.transport.batch.known_batches import COMPRESSIONS, Source, encode

SEQUENCE, PRODUCER = "ratchet-sequence", "ratchet-producer"
NUMBERS = [*(text for text, _ in hostile.NUMBERS), *hostile.LOOKS_LIKE_TEXT]
IDENTITIES = [*hostile.IDENTITIES, None]


def records(random_: random.Random, count: int, *, plain: float) -> list[Source]:
    """plain: share of records with nothing out of the way."""
    made = []
    for _ in range(count):
        if random_.random() < plain:
            name, number = b"user-%d" % random_.randrange(40), struct.pack(">q", random_.randrange(30))
            headers: list[tuple[str, bytes | None]] = [(SEQUENCE, number), (PRODUCER, name), ("other", b"x")]
            made.append(Source(name, b"v", tuple(headers), 1_700_000_000_000))
            continue
        headers = [(SEQUENCE, random_.choice(NUMBERS)) for _ in range(random_.choice((0, 1, 1, 1, 2)))]
        headers += [(PRODUCER, random_.choice(IDENTITIES)) for _ in range(random_.choice((0, 1, 1, 1, 2)))]
        headers += [(random_.choice(("ratchet", "ratchet-sequence-", "ä", "", "ratchet-sequencf")), b"1")]
        random_.shuffle(headers)
        made.append(Source(random_.choice(IDENTITIES), random_.choice((None, b"", b"v")), tuple(headers)))
    return made


def view(source: Source) -> RecordView:
    return RecordView(source.key, source.value, list(source.headers), source.timestamp)


@pytest.mark.parametrize("form", list(SequenceForm))
@pytest.mark.parametrize(
    ("identity", "sequence"),
    [
        ("producer", f"header:{SEQUENCE}"),
        ("key", f"header:{SEQUENCE}"),
        ("partition", f"header:{SEQUENCE}"),
        ("header:ä", f"header:{SEQUENCE}"),
        (f"header:{SEQUENCE}", f"header:{SEQUENCE}"),
        (f"key,header:{PRODUCER}", f"header:{SEQUENCE}"),
        (f"header:{PRODUCER},header:ä,key", f"header:{SEQUENCE}"),
        ("key", "none"),
        (f"key,header:{PRODUCER}", "none"),
    ],
)
def test_each_record_is_judged_as_record_by_record(identity: str, sequence: str, form: SequenceForm) -> None:
    whose, where = Identity.parse(identity), SequenceSource.parse(sequence)
    places = IdentityAndSequence.of(whose, where, form)
    assert places is not None
    for seed in range(12):
        choose = random.Random(seed)
        sources = records(choose, 400, plain=choose.choice((0.0, 0.5, 0.98)))
        expected, report = ExpectedPartition(Rule(whose, where, form), 0), Report("events")
        wanted = [expected.add_input(offset, view(source), report) for offset, source in enumerate(sources)]
        judging, found, at = PartitionRule(places), [], 0
        while at < len(sources):
            taken = sources[at : at + choose.randrange(1, 200)]
            batch = read_chunk("t", 0, at, encode(taken, at, choose.choice(COMPRESSIONS)), [])
            judged = judging.judge(batch)
            verdicts = ["duplicate"] * len(taken)
            for rows, verdict in ((judged.fresh, "fresh"), (judged.invalid, "invalid")):
                for row in rows.tolist():
                    verdicts[row] = verdict
            assert judged.duplicates == verdicts.count("duplicate")
            assert judged.replayed == 0
            found += verdicts
            at += len(taken)
        assert found == wanted


def test_its_tables_grow_and_forget_nobody() -> None:
    places = IdentityAndSequence.of(Identity.KEY, SequenceSource.parse(f"header:{SEQUENCE}"), SequenceForm.INTEGER)
    assert places is not None
    judging = PartitionRule(places)
    names = [b"%d" % number * random.Random(number).randrange(1, 40) for number in range(30_000)]
    several = len(names) - len(set(names))
    found = []
    for sequence in (1, 2, 2):
        sources = [Source(name, b"", ((SEQUENCE, struct.pack(">q", sequence)),)) for name in names]
        judged = judging.judge(read_chunk("t", 0, 0, encode(sources), []))
        found.append((len(judged.fresh), judged.duplicates, len(judged.invalid)))
    assert found == [(len(names) - several, several, 0)] * 2 + [(0, len(names), 0)]


def test_it_goes_on_from_what_is_known_and_takes_back_what_is_pending() -> None:
    places = IdentityAndSequence.of(Identity.KEY, SequenceSource.parse(f"header:{SEQUENCE}"), SequenceForm.INTEGER)
    assert places is not None
    start = {b"%d" % number: KnownSequence(number % 7, exact=bool(number % 2)) for number in range(10_000)}
    start |= {b"": KnownSequence(3, exact=False)}
    judging = PartitionRule(places, start)
    assert dict(judging.known()) == start

    def judged(*given: tuple[bytes, int]) -> JudgedBatch:
        sources = [Source(name, b"", ((SEQUENCE, struct.pack(">q", number)),)) for name, number in given]
        return judging.judge(read_chunk("t", 0, 0, encode(sources), []))

    assert judged((b"6", 6), (b"6", 7), (b"new", 0), (b"", 2), (b"", 4)).fresh.tolist() == [1, 2, 4]
    now = {
        **start,
        b"6": KnownSequence(7, exact=True),
        b"new": KnownSequence(0, exact=True),
        b"": KnownSequence(4, exact=True),
    }
    assert dict(judging.known()) == now
    waiting = judged((b"6", 8), (b"", 4), (b"6", 9), (b"newer", 5), (b"newer", 6))
    assert waiting.fresh.tolist() == [0, 2, 3, 4]
    judging.take_back(waiting.pending(waiting.fresh))
    assert dict(judging.known()) == now


def test_a_verdict_that_the_plain_rule_contradicts_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    header = SequenceSource.parse(f"header:{SEQUENCE}")
    places = IdentityAndSequence.of(Identity.KEY, header, SequenceForm.INTEGER)
    assert places is not None
    sources = [Source(b"a", b"", ((SEQUENCE, struct.pack(">q", number)),)) for number in (1, 256, 2)]
    batch = read_chunk("t", 0, 0, encode(sources), [])
    assert not PartitionRule(places).judge(batch).contradicted
    monkeypatch.setitem(extraction.FORMS, SequenceForm.INTEGER, parts.LITTLE)
    assert PartitionRule(places).judge(batch).contradicted


@pytest.mark.parametrize("name", ["ratchet-replays", "ratchet-replayed-from", "ratchet-replay"])
def test_replayed_records_are_counted(name: str) -> None:
    places = IdentityAndSequence.of(Identity.KEY, SequenceSource.parse("none"), SequenceForm.GUESS)
    assert places is not None
    sources = [
        Source(b"a"),
        Source(b"b", b"", ((name, b"1"), (name, b"2"))),
        Source(b"c", b"", (("ratchet-repla", b""),)),
    ]
    assert PartitionRule(places).judge(read_chunk("t", 0, 0, encode(sources), [])).replayed == 1


@pytest.mark.parametrize("identity", ["field:a", "function:a:b", "key,field:a"])
def test_what_stands_in_the_value_is_left_to_the_other(identity: str) -> None:
    assert IdentityAndSequence.of(Identity.parse(identity), SequenceSource.parse("none"), SequenceForm.GUESS) is None
    assert IdentityAndSequence.of(Identity.KEY, SequenceSource.parse("field:a"), SequenceForm.GUESS) is None


def test_records_are_the_same_only_to_the_last_byte() -> None:
    whole = Source(b"key", b"value" * 20, (("a", b"1"), ("b", None)), 5)
    others = [
        whole,
        whole._replace(key=b"kez"),
        whole._replace(key=None),
        whole._replace(value=b"value" * 19 + b"valuf"),
        whole._replace(value=None),
        whole._replace(value=b"value" * 20 + b"x"),
        whole._replace(headers=whole.headers[:1]),
        whole._replace(headers=(whole.headers[1], whole.headers[0])),
        whole._replace(headers=(("a", b"1"), ("b", b""))),
        whole._replace(timestamp=6),
        whole._replace(key=b"keyvalue", value=b"value" * 19),
    ]
    batch, other = read_chunk("t", 0, 0, encode([whole]), []), read_chunk("t", 0, 0, encode(others), [])
    rows = PartitionRule.judge(PartitionRule(_by_id()), batch).fresh
    same = [
        same_records(batch.data, batch.columns, rows, 0, other.data, other.columns, at, 1) for at in range(len(others))
    ]
    assert same == [1] + [0] * (len(others) - 1)


def _by_id() -> IdentityAndSequence:
    places = IdentityAndSequence.of(Identity.KEY, SequenceSource.parse("none"), SequenceForm.GUESS)
    assert places is not None
    return places
