"""State for the next run, as columns and record by record, without Kafka."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass, fields
from typing import Any, cast

import pytest

from kafka_ratchet.app.survey.reading import Range
from kafka_ratchet.app.verify import RecordView
from kafka_ratchet.app.verify.columns.exact import ExactPartition, TopicPair
from kafka_ratchet.app.verify.columns.judging import IdentityAndSequence
from kafka_ratchet.app.verify.compare import ExpectedPartition
from kafka_ratchet.app.verify.reading import OffsetRanges
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rule import Rule
from kafka_ratchet.app.verify.state import Baseline
from kafka_ratchet.rule.identity import Identity, SequenceForm, SequenceSource
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from tests.app.written_stream import record
from tests.transport.batch.known_batches import Source, encode

IDENTITY, SEQUENCE = Identity.PRODUCER, SequenceSource.parse("header:ratchet-sequence")
RULE = Rule(IDENTITY, SEQUENCE)
PLACES = IdentityAndSequence.of(IDENTITY, SEQUENCE, SequenceForm.GUESS)


@dataclass
class Given:
    """A topic of one partition, in batches of random size."""

    name: str
    records: list[RecordView]
    choose: random.Random
    deleted: int = 0

    async def records_of(self, each: Range, connection: str) -> AsyncGenerator[RecordBatch, None]:
        at = each.begin
        while at < each.end:
            taken = self.records[at : min(each.end, at + self.choose.randint(1, 9))]
            sources = [Source(one.key, one.value, tuple(one.headers), one.timestamp_ms) for one in taken]
            yield read_chunk(self.name, 0, at, encode(sources, at), [])
            at += len(taken)


def ranges(**numbers: int) -> OffsetRanges:
    by_partition = {each.name: {0: numbers.get(each.name, 0)} for each in fields(OffsetRanges)}
    return OffsetRanges(**cast(Any, {**by_partition, "uncommitted": frozenset()}))


def history(choose: random.Random, count: int) -> list[RecordView]:
    numbers = [choose.randrange(12) if choose.random() > 0.05 else None for _ in range(count)]
    return [record(number, choose.choice([b"a", b"b", b"c"])) for number in numbers]


@pytest.mark.parametrize("seed", range(300))
def test_two_runs_leave_what_they_leave_record_by_record(seed: int) -> None:
    """The first sees a part, some of it committed while it asked; the second goes on where it has ended."""
    choose = random.Random(seed)
    records = history(choose, choose.randrange(80))
    judged = choose.randint(0, len(records))
    committed = choose.randint(judged, len(records))
    there = choose.randint(judged, committed)
    whole, nobody = ExpectedPartition(RULE, 0), Report("events")
    verdicts = [whole.add_input(offset, one, nobody) for offset, one in enumerate(records)]
    fresh = [(offset, records[offset]) for offset, verdict in enumerate(verdicts) if verdict == "fresh"]
    baseline = Baseline()
    for at, to, done in ((judged, committed, there), (len(records), len(records), len(records))):
        output = [one for offset, one in fresh if offset < done]
        report, told = Report("events"), Report("events")
        expected = ExpectedPartition(RULE, 0, (), baseline)
        for offset in range(baseline.input_from, to):
            expected.add_input(offset, records[offset], report)
        expected.compare("out", ((n, output[n]) for n in range(baseline.output_from, len(output))), at, report)
        assert PLACES is not None
        source, results = Given("in", records, choose), Given("out", output, choose)
        pair = TopicPair(cast(Any, source), cast(Any, results), PLACES, keep=True)
        spans = ranges(judged=at, committed_to=to, output_ends=len(output))
        exact = asyncio.run(pair.look(0, baseline, spans, "c"))
        if any(offset >= at for offset in expected.invalid):
            assert isinstance(exact, str)
            assert "dead letters are pending" in exact
        else:
            assert isinstance(exact, ExactPartition), exact
            exact.add_to(told)
            assert (told.as_dict(), exact.invalid) == (report.as_dict(), expected.invalid)
            end = expected.proven_to(at, to, None)
            assert exact.proven_to(at, to, None) == end
            assert sorted(exact.known_at(end)) == sorted(expected.known_at(end))
            assert exact.is_complete_at(end) == expected.is_complete_at(end)
        end = expected.proven_to(at, to, None)
        baseline = Baseline(end, len(output), dict(expected.known_at(end)))


@pytest.mark.parametrize("seed", range(150))
def test_nothing_else_is_called_exact(seed: int) -> None:
    """A record of the output is left out, doubled, moved or another, or one of the input is not shown."""
    choose = random.Random(seed)
    records = [record(number // 2, b"a", b"%d" % number) for number in range(choose.randint(4, 60))]
    output = records[::2]
    at = choose.randrange(len(output))
    fault = choose.choice(["left out", "doubled", "moved", "another", "not shown"])
    if fault == "left out":
        del output[at]
    elif fault == "doubled":
        output.insert(at, output[at])
    elif fault == "moved":
        other = (at + 1) % len(output)
        output[at], output[other] = output[other], output[at]
    elif fault == "another":
        output[at] = record(at, b"a", b"?")
    topic = Given("in", records, choose)

    async def hidden(each: Range, connection: str) -> AsyncGenerator[RecordBatch, None]:
        async for batch in Given.records_of(topic, each, connection):
            yield batch.only(batch.offsets != 2 * at + 1)

    given = cast(Any, topic)
    if fault == "not shown":  # a repeat: the output is right all the same
        records.append(record(0, b"a", b"?"))
        given.records_of = hidden
    assert PLACES is not None
    pair = TopicPair(given, cast(Any, Given("out", output, choose)), PLACES, keep=False)
    end = len(records)
    found = asyncio.run(pair.look(0, Baseline(), ranges(judged=end, committed_to=end, output_ends=len(output)), "c"))
    assert isinstance(found, str), fault
