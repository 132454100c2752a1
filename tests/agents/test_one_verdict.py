"""One verdict for one record: worker, verify and survey read the table of hostile values alike."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from kafka_ratchet.app.survey.counting import BatchHashes, PartReader
from kafka_ratchet.app.survey.kernels import hash_spans
from kafka_ratchet.app.survey.looking import TopicSample
from kafka_ratchet.app.survey.places import KEY, Candidate, Candidates, RecordPart
from kafka_ratchet.app.verify.columns.judging import IdentityAndSequence, PartitionRule
from kafka_ratchet.app.verify.rule import RecordView, Rule
from kafka_ratchet.rule import parts
from kafka_ratchet.rule.extraction import from_header, identity_reader, reader_for
from kafka_ratchet.rule.identity import SEQUENCE_HEADER, Identity, SequenceForm, SequenceSource
from kafka_ratchet.rule.nesting import NESTING_MOST, is_too_deep
from kafka_ratchet.rule.reasons import REASONS
from tests import hostile
from tests.tables.fetched_records import Sent, fetched

HEADER = SequenceSource.parse(f"header:{SEQUENCE_HEADER}")
RECORDS = [Sent(b"k", value) for value, _, _ in hostile.VALUES]
SEED = np.uint64(3)
IDS = [identity for _, identity, _ in hostile.VALUES]
NUMBERS = [number for _, _, number in hostile.VALUES]


def by_worker(records: list[Sent], field: str = "field:n") -> tuple[list[bytes | str], list[int | str]]:
    batch = fetched(records)
    reasons = np.zeros(batch.count, np.uint8)
    found = identity_reader(Identity.parse(field))(batch, reasons)
    sequences, why = reader_for(SequenceSource.parse(field))(batch)
    ids = [REASONS[reason] or found.of(i) for i, reason in enumerate(reasons)]
    return ids, [REASONS[why[i]] or int(sequences[i]) for i in range(batch.count)]


def by_verify(records: list[Sent], field: str = "field:n") -> tuple[list[bytes | None], list[int | None]]:
    of_id = Rule(Identity.parse(field), SequenceSource.parse("none"))
    of_number = Rule(Identity.PARTITION, SequenceSource.parse(field))
    views = [RecordView(each.key, each.value, list(each.headers), 0) for each in records]
    judged = [(of_id.identify(view), of_number.identify(view)) for view in views]
    return [one and one[0] for one, _ in judged], [number and number[1] for _, number in judged]


def by_survey(records: list[Sent], place: RecordPart) -> tuple[list[int], list[int | None]]:
    """Hashes of the identities, 0 for none, and numbers."""
    reader = PartReader(Candidates((Candidate((KEY,), place), Candidate((place,)))), seed=int(SEED))
    found = BatchHashes(fetched(records), reader)
    return found.hashes[place].tolist(), [None if n < 0 else n for n in found.numbers[place].tolist()]


def hashes(ids: list[bytes | str]) -> list[int]:
    found = []
    for each in ids:
        made = np.zeros(1, np.uint64)
        if isinstance(each, bytes):
            hash_spans(
                np.frombuffer(each, np.uint8), np.zeros(1, np.int64), np.array([len(each)]), 1, 1_024, SEED, made
            )
        found.append(int(made[0]))
    return found


def test_the_worker_reads_fields_as_the_table_says() -> None:
    assert by_worker(RECORDS) == (IDS, NUMBERS)


def test_verify_reads_fields_as_the_worker_does() -> None:
    ids, numbers = by_verify(RECORDS)
    assert ids == [each if isinstance(each, bytes) else None for each in IDS]
    assert numbers == [each if isinstance(each, int) else None for each in NUMBERS]


def test_a_survey_reads_fields_as_the_worker_does() -> None:
    found, numbers = by_survey(RECORDS, RecordPart("field", "n"))
    assert found == hashes(IDS)
    assert numbers == [each if isinstance(each, int) else None for each in NUMBERS]


@pytest.mark.parametrize(("path", "value", "identity", "number"), hostile.PATHS)
def test_a_path_means_one_thing_in_worker_verify_and_survey(
    path: str, value: bytes, identity: bytes | str, number: int | str
) -> None:
    records, field = [Sent(b"k", value)], f"field:{path}"
    assert by_worker(records, field) == ([identity], [number])
    ids, numbers = by_verify(records, field)
    assert (ids, numbers) == (
        [identity if isinstance(identity, bytes) else None],
        [number if isinstance(number, int) else None],
    )
    assert by_survey(records, RecordPart("field", path)) == (hashes([identity]), numbers)
    one = Identity.parse(field)
    assert len(one.parts) == 1
    assert Identity.parse(str(one)) == one
    assert Identity.parse(f"key, {field},header:x").parts[1] == one.parts[0]


def test_the_sample_of_a_survey_reads_fields_as_the_worker_does() -> None:
    sample = TopicSample()
    short = [i for i, each in enumerate(RECORDS) if len(each.value or b"") <= 2_000]
    sample.add(fetched([RECORDS[i] for i in short]), len(short))
    for i, row in zip(short, sample.rows, strict=True):
        text = row.places.get(RecordPart("field", "n"))
        if text is not None and text != b"large":
            assert text == IDS[i]


@pytest.mark.parametrize("levels", [100, 400, 5_000])
def test_a_verdict_does_not_depend_on_the_stack_that_is_left(levels: int) -> None:
    """Python's limit stands in for its versions: each stops a parser at another depth."""
    deep = [each for each in RECORDS if (each.value or b"").count(b"[") + (each.value or b"").count(b"{") > 50]
    expected = by_worker(deep)

    def at(depth: int, call: Callable[[], object]) -> object:
        return at(depth - 1, call) if depth else call()

    limit = sys.getrecursionlimit()
    results: list[object] = []

    def run() -> None:
        sys.setrecursionlimit(max(limit, levels))
        try:
            results.extend(
                at(min(levels, limit) * 3 // 4, call) for call in (lambda: by_worker(deep), lambda: by_verify(deep))
            )
        finally:
            sys.setrecursionlimit(limit)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert results == [expected, by_verify(deep)]


@pytest.mark.parametrize(
    ("value", "deep"),
    [
        (hostile.nested(NESTING_MOST), False),
        (hostile.nested(NESTING_MOST + 1), True),
        (b'"' + b"[" * 2_000, False),
        (b'"' + b'\\"[' * 200_000, False),
        (b'"a\\', False),
        (b"[]" * 2_000, False),
        (b'{"a":"\\\\"},' * 200 + b"[" * 600, True),
    ],
)
def test_depth_counts_open_brackets_outside_texts(value: bytes, deep: bool) -> None:
    assert is_too_deep(value) is deep


def numbers() -> Iterator[tuple[Sent, int | str]]:
    for text, meaning in hostile.NUMBERS:
        yield Sent(b"k", b"v", ((SEQUENCE_HEADER, text),)), meaning
    for text in hostile.LOOKS_LIKE_TEXT:
        yield Sent(b"k", b"v", ((SEQUENCE_HEADER, text),)), int.from_bytes(text, "big")


@pytest.mark.parametrize("is_compiled", [True, False])
def test_headers_are_read_alike_compiled_or_not(is_compiled: bool) -> None:
    sent, meanings = zip(*numbers(), strict=True)
    batch = fetched(list(sent))
    sequences, reasons = np.empty(batch.count, np.int64), np.empty(batch.count, np.uint8)
    if is_compiled:
        sequences, reasons = from_header(batch, parts.GUESS)
    else:
        for i, record in enumerate(sent):
            text = np.frombuffer(record.headers[0][1] or b"", np.uint8)
            sequences[i], reasons[i] = parts.number_of.py_func(text, 0, len(text), parts.GUESS)
    assert [REASONS[reasons[i]] or int(sequences[i]) for i in range(batch.count)] == list(meanings)


def test_verify_and_survey_read_headers_as_the_worker_does() -> None:
    sent, meanings = zip(*numbers(), strict=True)
    expected = [each if isinstance(each, int) else None for each in meanings]
    rule = Rule(Identity.PARTITION, HEADER)
    judged = [rule.identify(RecordView(each.key, each.value, list(each.headers), 0)) for each in sent]
    assert [found and found[1] for found in judged] == expected
    assert by_survey(list(sent), RecordPart("header", SEQUENCE_HEADER))[1] == expected
    places = IdentityAndSequence.of(Identity.PARTITION, HEADER, SequenceForm.GUESS)
    assert places is not None
    for record, number in zip(sent, expected, strict=True):
        found = PartitionRule(places).judge(fetched([record]))
        assert (len(found.fresh), len(found.invalid)) == ((1, 0) if number is not None else (0, 1))


def test_keys_and_headers_name_the_same_identity_everywhere() -> None:
    for name, least in (("key", 0), ("header:h", 1)):
        sent = [Sent(each, b"v", (("h", each), (SEQUENCE_HEADER, b"1"))) for each in hostile.IDENTITIES]
        batch = fetched(sent, identity_header=b"h")
        reasons = np.zeros(batch.count, np.uint8)
        found = identity_reader(Identity.parse(name))(batch, reasons)
        ids = [None if reasons[i] else found.of(i) for i in range(batch.count)]
        assert ids == [each if least <= len(each) <= 1_024 else None for each in hostile.IDENTITIES]
        rule = Rule(Identity.parse(name), HEADER)
        judged = [rule.identify(RecordView(each.key, each.value, list(each.headers), 0)) for each in sent]
        assert [one and one[0] for one in judged] == ids
        place = KEY if name == "key" else RecordPart("header", "h")
        surveyed = BatchHashes(fetched(sent), PartReader(Candidates((Candidate((place,)),)), seed=int(SEED))).hashes[
            place
        ]
        assert [bool(each) for each in surveyed] == [each is not None for each in ids]
