"""Identities of several parts, and streams without sequences, against plain dictionaries: commits and rollbacks."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ratchet.rule.extraction import computed_identity_reader, reader_for
from kafka_ratchet.rule.identities import in_columns
from kafka_ratchet.rule.identity import MAX_IDENTITY_BYTES, PRODUCER_HEADER, SEQUENCE_HEADER, Identity, SequenceSource
from kafka_ratchet.rule.reasons import REASONS
from kafka_ratchet.tables.map.map import LastSequences
from tests.tables.fetched_records import Sent, fetched
from tests.tables.map.plain_judge import PlainJudge

VERDICTS = ("fresh", "duplicate", "invalid")
KINDS: list[str | list[str]] = [
    "key",
    "header:id",
    "field:n",
    ["header:id", "key"],
    ["header:id", "header:more", "field:n"],
    ["field:n", "header:id"],
]
names = st.one_of(
    st.sampled_from([b"", b"\0", b"a", b"ab", b"b", b"\1a", b"x" * 127, b"x" * 128, b"x" * 1_021, b"x" * 1_025, None]),
    st.binary(max_size=3),
)
texts: st.SearchStrategy[object] = st.sampled_from(
    ["", "a", "b", "ab", "\0", '"', "7", "Ä", "x" * 1_025, 7, -7, 2**70, 1.5, True, None, [], {}]
)
values = st.one_of(st.sampled_from([b"", b"{", b"null"]), texts.map(lambda found: json.dumps({"n": found}).encode()))
numbers = st.integers(0, 3).map(lambda number: b"%d" % number)


@st.composite
def records(draw: st.DrawFn) -> Sent:
    often_once = st.sampled_from([1] * 9 + [0, 2])
    headers = [("id", draw(names)) for _ in range(draw(often_once))]
    headers += [("more", draw(names)) for _ in range(draw(often_once))]
    headers += [(SEQUENCE_HEADER, draw(numbers)) for _ in range(draw(often_once))]
    headers += [("i", b"1"), ("idx", b"1"), ("", None)][: draw(st.integers(0, 3))]
    return Sent(draw(names), draw(values), tuple(draw(st.permutations(headers))))


steps = st.lists(st.one_of(st.lists(records(), max_size=12), st.sampled_from(["commit", "roll back"])), max_size=8)


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("by", KINDS, ids=str)
@given(steps)
@settings(max_examples=40, deadline=None)
def test_ids_are_judged_as_plain_dictionaries_do(
    by: str | list[str], numbered: bool, todo: list[list[Sent] | str]
) -> None:
    plain, table = PlainJudge(by, numbered=numbered), LastSequences()
    table.slots.allocate(8)
    identity = Identity.parse(by)
    read = reader_for(SequenceSource.parse(f"header:{SEQUENCE_HEADER}" if numbered else "none"))
    reader = computed_identity_reader(identity)
    for step in todo:
        if step == "commit":
            plain.commit()
            table.commit()
        elif step == "roll back":
            plain.rollback()
            table.rollback()
        else:
            assert not isinstance(step, str)
            batch = fetched(step, identity_header=(identity.header or "").encode())
            sequences, reasons = read(batch)
            found = reader(batch, reasons) if reader else in_columns(batch, identity)
            verdicts = table.judge(found, MAX_IDENTITY_BYTES, sequences, reasons)
            judged = [(VERDICTS[v], REASONS[r]) for v, r in zip(verdicts, reasons, strict=True)]
            assert judged == [plain.judge(record) for record in step]
        assert {
            key[1:]: int.from_bytes(value or b"", "big") for key, value in table.changed_entries()
        } == plain.changed()


def test_what_stands_in_no_column_is_refused() -> None:
    with pytest.raises(ValueError, match=r'identity \["key", "header:a"\] has no column in the batch'):
        in_columns(fetched([Sent()]), Identity.parse("key,header:a"))


def test_the_columns_of_a_batch_are_told_without_a_copy() -> None:
    batch = fetched([Sent(b"key", b"", ((PRODUCER_HEADER, b"name"),))])
    for identity, meaning in ((Identity.KEY, b"key"), (Identity.PRODUCER, b"name"), (Identity.PARTITION, b"")):
        found = in_columns(batch, identity)
        assert found.of(0) == meaning
        assert found.data is batch.data
        assert identity == Identity.PARTITION or np.shares_memory(found.begins, batch.columns)
