"""A stream of which the form of sequences is guessed halts before a new record is dropped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_ratchet.agents.deduplicate import Deduplicator, form_check
from kafka_ratchet.errors import FormUnclear
from kafka_ratchet.rule.extraction import reader_for
from kafka_ratchet.rule.identity import Identity, SequenceForm, SequenceSource
from kafka_ratchet.tables.table import Sequences
from kafka_ratchet.transport.delivery import Delivery
from tests.agent_queue import process_all
from tests.agents.test_deduplicate import Given, outputs, row

HEADER = SequenceSource.parse("header:ratchet-sequence")
LITTLE = [row(b"a", n.to_bytes(8, "little"), b"%d" % n) for n in range(1, 1_001)]


@pytest.fixture
def sequences(tmp_path: Path) -> Iterator[Sequences]:
    made = Sequences(tmp_path, "changelog", Identity.PRODUCER, 1 << 20)
    made.partition(2).open()
    yield made
    made.partition(2).close()


async def run(sequences: Sequences, form: SequenceForm, *deliveries: Delivery) -> list[Exception | None]:
    """Return the error of each."""
    check = form_check("orders", HEADER, form, Identity.PRODUCER)
    return await process_all(Deduplicator(sequences, reader_for(HEADER, form), check=check), *deliveries)


async def test_little_endian_numbers_halt_the_partition_and_the_setting_reads_them(sequences: Sequences) -> None:
    given = Given(sequences)
    first = given.delivery(LITTLE, start=70)
    (error,) = await run(sequences, SequenceForm.GUESS, first)
    assert isinstance(error, FormUnclear)
    assert "events, partition 2, offset 71, identity 'a'" in str(error)
    assert "02 00 00 00 00 00 00 00, which is 2, after 1 as a little-endian number" in str(error)
    assert 'Set sequence_form = "little-endian"' in str(error)
    assert 'sequence_form = "integer"' in str(error)
    assert not first.outputs
    sequences.partition(2).rollback()  # what the lane does with the error
    assert sequences.last(b"a") == {}
    again = given.delivery([*LITTLE, *LITTLE[:10]], start=70)
    await run(sequences, SequenceForm.LITTLE_ENDIAN, again)
    assert [each[1] for each in outputs(again, "events-out")] == [b"%d" % n for n in range(1, 1_001)]
    assert not outputs(again, "events-dead")


async def test_a_stated_form_is_believed(sequences: Sequences) -> None:
    delivery = Given(sequences).delivery(LITTLE)
    assert await run(sequences, SequenceForm.INTEGER, delivery) == [None]


async def test_another_partition_and_the_next_batch_go_on(sequences: Sequences) -> None:
    given = Given(sequences)
    text = given.delivery([row(b"a", b"%08x" % n) for n in range(9, 12)])
    right = given.delivery([row(b"b", n.to_bytes(8, "big")) for n in range(300)], start=3)
    error, right_error = await run(sequences, SequenceForm.GUESS, text, right)
    assert isinstance(error, FormUnclear)
    assert "the text '0000000a', which would be read as the integer 3472328296227680353" in str(error)
    assert right_error is None
    assert len(outputs(right, "events-out")) == 300


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("header:n", SequenceForm.INTEGER),
        ("header:n", SequenceForm.TEXT),
        ("header:n", SequenceForm.LITTLE_ENDIAN),
        ("field:n", SequenceForm.GUESS),
        ("none", SequenceForm.GUESS),
    ],
)
def test_nothing_is_checked_where_nothing_is_guessed(source: str, form: SequenceForm) -> None:
    assert form_check("s", SequenceSource.parse(source), form, Identity.KEY) is None
