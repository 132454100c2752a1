"""Candidates for identities, from usual and unusual samples."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from kafka_ratchet.app.survey.looking import NAMES_MOST, TopicSample, choose
from kafka_ratchet.app.survey.places import KEY, PARTITION, WHOLE, Candidate, Candidates, RecordPart, candidate_of
from tests.app.survey.batches import batch_of
from tests.app.survey.plain_count import PlainRecord

Headers = tuple[tuple[str, bytes | None], ...]
Row = tuple[bytes | None, bytes | None, Headers]


def chosen(rows: list[Row]) -> Candidates:
    sample = TopicSample()
    for at in range(0, len(rows), 500):
        records = [PlainRecord(0, at + n, 1, *row) for n, row in enumerate(rows[at : at + 500])]
        assert sample.add(batch_of(records), 500) == len(records)
    return choose(sample)


def header(name: str) -> RecordPart:
    return RecordPart("header", name)


def field(path: str) -> RecordPart:
    return RecordPart("field", path)


def some_uuid(number: int) -> str:
    return str(uuid.UUID(int=number * 7919 << 40))


def test_cloud_events_are_told_by_source_and_id() -> None:
    rows: list[Row] = [
        (None, b"x", (("ce_id", b"%d" % (n // 3)), ("ce_source", b"s%d" % (n % 3)), ("ce_type", b"t")))
        for n in range(600)
    ]
    found = chosen(rows)
    assert Candidate((header("ce_source"), header("ce_id"))) in found.chosen
    assert Candidate((header("ce_type"),)) not in found.chosen
    assert dict(found.left_out)["header:ce_type"] == "it is the same in all records"


def test_a_field_with_an_id_is_found_by_its_name_or_by_its_values() -> None:
    rows: list[tuple[bytes | None, bytes | None, Headers]] = [
        (
            b"customer-%d" % (n % 20),
            json.dumps(
                {"a": {"event_id": some_uuid(n)}, "hash": some_uuid(n)[::-1], "v": n % 5, "flag": True}
            ).encode(),
            (),
        )
        for n in range(800)
    ]
    found = chosen(rows)
    assert [str(each) for each in found.chosen if each.sequence is None] == ["whole", "field:a.event_id", "field:hash"]
    assert "20 values in 800 records" in dict(found.left_out)["key"]
    assert (found.headers, set(found.fields)) == ((), {"a.event_id", "hash"})


def test_a_name_with_a_dot_is_found_and_written_between_quotes() -> None:
    def row(n: int) -> dict[str, Any]:
        return {
            "event.id": some_uuid(n),
            "a": {"b.c": {"d, key": {"x": some_uuid(n)[::-1]}}},
            'with"quote': some_uuid(n)[1:],
            "back\\slash": some_uuid(n)[2:],
        }

    found = chosen([(None, json.dumps(row(n)).encode(), ()) for n in range(800)])
    assert [each.setting for each in found.chosen[1:]] == ['field:"event.id"', 'field:a."b.c"."d, key".x']
    assert all(str(candidate_of(str(each.setting))) == each.setting for each in found.chosen[1:])
    left_out = dict(found.left_out)
    assert left_out['with"quote'] == left_out["back\\\\slash"]
    assert "no path can name it" in left_out['with"quote']


def test_json_behind_the_bytes_of_a_schema_registry_is_named() -> None:
    rows: list[Row] = [(None, b"\0\0\0\0\7" + json.dumps({"id": some_uuid(n)}).encode(), ()) for n in range(800)]
    assert "five bytes of a Schema Registry" in dict(chosen(rows).left_out)["value"]


@pytest.mark.parametrize("binary", [False, True])
def test_a_counter_is_found_with_the_one_whose_it_is(binary: bool) -> None:
    rows: list[tuple[bytes | None, bytes | None, Headers]] = []
    for n in range(900):
        # A record of ten comes again.
        m = n - 9 if n % 10 == 9 else n
        number = 1 + m // 3
        text = number.to_bytes(8, "big") if binary else b"%d" % number
        rows.append(
            (b"k%d" % (m * 31 % 7), b"v%d" % m, (("ratchet-producer", b"p%d" % (m % 3)), ("ratchet-sequence", text)))
        )
    found = chosen(rows)
    [sequence] = [each for each in found.chosen if each.sequence is not None]
    assert sequence == Candidate((header("ratchet-producer"),), header("ratchet-sequence"))


def test_a_number_of_the_whole_partition_needs_no_other_identity() -> None:
    rows: list[tuple[bytes | None, bytes | None, Headers]] = [
        (b"row-%d" % (n * 7919 % 400), b'{"lsn":%d,"op":"u"}' % (1000 + n * 16), ()) for n in range(900)
    ]
    found = chosen(rows)
    assert Candidate((PARTITION,), field("lsn")) in found.chosen


def test_numbers_in_no_order_are_no_sequence() -> None:
    rows: list[tuple[bytes | None, bytes | None, Headers]] = [
        (b"k%d" % (n % 5), b'{"amount":%d}' % (n * 7919 % 1000), ()) for n in range(900)
    ]
    assert not [each for each in chosen(rows).chosen if each.sequence is not None]


def test_what_strangers_write_is_bounded_and_never_an_error() -> None:
    deep = b'{"a":' * 5_000 + b"1" + b"}" * 5_000
    rows: list[tuple[bytes | None, bytes | None, Headers]] = [
        (None, None, ()),
        (b"", b"", (("", b"x"), ("\x1b[31m", b"1"), ("id", None), ("id", b"2"))),
        (b"k", b"not json", (("big", b"x" * 300_000),)),
        (b"k", b"[" * 100_000, ()),
        (b"k", deep, ()),
        (b"k", b'{"id": "\\ud800", "n": ' + b"9" * 5_000 + b"}", ()),
        (b"k", json.dumps({"a.b": 1, 'q"': 2, "": 3, "x" * 5_000: 4, "nested": {"id": 1}}).encode(), ()),
        (b"k", b'{"v": NaN}', ()),
    ]
    rows += [
        (b"k", json.dumps({f"made-up-{n}-{m}": m for m in range(50)}).encode(), ((f"h{n}", b"1"),)) for n in range(200)
    ]
    sample = TopicSample()
    for n, row in enumerate(rows):
        sample.add(batch_of([PlainRecord(0, n, 1, *row)]), 1)
    assert len({place for row in sample.rows for place in row.places}) <= NAMES_MOST + 1
    found = choose(sample)
    assert found.chosen[0] == Candidate((WHOLE,))
    assert all(place.name.isprintable() for each in found.chosen for place in each.identity)
    assert Candidate((KEY,)) not in found.chosen


def test_nothing_at_all_is_a_sample_too() -> None:
    assert choose(TopicSample()).chosen == (Candidate((WHOLE,)),)
