"""Implementations of the rule, each as a function from an example to the verdicts of its records.

One that has no word for a reason says "invalid".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from kafka_ratchet.agents.deduplicate import VERDICT_NAMES
from kafka_ratchet.app.survey import seen
from kafka_ratchet.app.survey.counting import BatchHashes, Counts
from kafka_ratchet.app.survey.places import Candidate, Candidates, RecordPart, candidate_of
from kafka_ratchet.app.verify.columns.judging import IdentityAndSequence, PartitionRule
from kafka_ratchet.app.verify.compare import ExpectedPartition
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rule import RecordView, Rule
from kafka_ratchet.app.worker.kept import kept_of
from kafka_ratchet.rule.extraction import identity_reader, reader_for
from kafka_ratchet.rule.identity import MAX_IDENTITY_BYTES, SequenceSource
from kafka_ratchet.rule.reasons import REASONS
from kafka_ratchet.tables.map.map import LastSequences
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.owner import JudgingFrom
from tests.rule.examples import CONFLICT, FRESH, NOON_MS, VERDICTS, Example, Given

Implementation = Callable[[Example], list[str]]
INVALID: Final = "invalid"


def by_partition(example: Example) -> dict[int, list[Given]]:
    """Records of each partition, in their order."""
    found = defaultdict(list)
    for record in example.records:
        found[record.partition].append(record)
    return found


def in_order(example: Example, verdicts: dict[int, list[str]]) -> list[str]:
    """Verdicts in the order of the example's records."""
    following = {partition: iter(each) for partition, each in verdicts.items()}
    return [next(following[record.partition]) for record in example.records]


def batch_of(records: list[Given], partition: int, example: Example) -> RecordBatch:
    """A batch as a lane fetches it."""
    stream = example.stream
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    for at, record in enumerate(records):
        builder.append(at, record.time_ms, record.key, record.value, list(record.headers))
    source = SequenceSource.parse(stream.sequence)
    return read_chunk(
        "in",
        partition,
        0,
        bytes(builder.build()),
        [],
        sequence_header=source.name.encode() if source.kind == "header" else b"",
        identity_header=(stream.identity.header or "").encode(),
    )


def by_worker(example: Example) -> list[str]:
    """Judge as a lane does, with a map of the partition."""
    stream, found = example.stream, {}
    read = reader_for(SequenceSource.parse(stream.sequence), stream.sequence_form)
    read_identities = identity_reader(stream.identity)
    for partition, records in by_partition(example).items():
        table, batch = LastSequences(kept=kept_of(stream)), batch_of(records, partition, example)
        sequences, reasons = read(batch)
        identities = read_identities(batch, reasons)
        verdicts = table.judge(identities, MAX_IDENTITY_BYTES, sequences, reasons, batch=batch)
        found[partition] = [
            REASONS[reason] if reason else VERDICT_NAMES[verdict].decode()
            for verdict, reason in zip(verdicts.tolist(), reasons.tolist(), strict=True)
        ]
    return in_order(example, found)


def by_verify(example: Example) -> list[str]:
    """Judge record by record, as `ratchet verify --independent` does."""
    stream, found = example.stream, {}
    rule = Rule(stream.identity, SequenceSource.parse(stream.sequence), stream.sequence_form)
    judging = [JudgingFrom(0, stream.judging)] if stream.judging else []
    for partition, records in by_partition(example).items():
        expected, report = ExpectedPartition(rule, partition, judging=judging), Report("events")
        found[partition] = [expected.add_input(at, view(record), report) for at, record in enumerate(records)]
    return in_order(example, found)


def view(record: Given) -> RecordView:
    """A record as verify reads it."""
    return RecordView(record.key, record.value, list(record.headers), record.time_ms)


def places_of(example: Example) -> IdentityAndSequence | None:
    """Places that verify over columns reads; None where it leaves the stream to the other way."""
    stream = example.stream
    if stream.judging:
        return None
    return IdentityAndSequence.of(stream.identity, SequenceSource.parse(stream.sequence), stream.sequence_form)


def by_columns(example: Example) -> list[str]:
    """Judge as verify does over columns."""
    places, found = places_of(example), {}
    assert places is not None
    for partition, records in by_partition(example).items():
        judged = PartitionRule(places).judge(batch_of(records, partition, example))
        verdicts = ["duplicate"] * len(records)
        for rows, verdict in ((judged.fresh, FRESH), (judged.invalid, INVALID)):
            for row in rows.tolist():
                verdicts[row] = verdict
        found[partition] = verdicts
    return in_order(example, found)


def candidate_for(example: Example) -> Candidate | None:
    """Candidate of a survey; None where it has no such thing: functions, and forms that are stated."""
    stream = example.stream
    source = SequenceSource.parse(stream.sequence)
    kinds = {source.kind, *(part.kind for part in stream.identity.parts)}
    if "function" in kinds or stream.sequence_form != "guess":
        return None
    found = candidate_of(str(stream.identity))
    if source.kind == "none":
        return found
    return Candidate(found.identity, RecordPart("header" if source.kind == "header" else "field", source.name))


def by_survey(example: Example) -> tuple[int, int, int]:
    """Count records that are fresh, late and new, and invalid, as a survey does.

    Its count of a late record is of one never seen; it knows no window.
    """
    candidate = candidate_for(example)
    assert candidate is not None
    counts = Counts(Candidates((candidate,)), 1 << 26, NOON_MS, 7, frozenset(by_partition(example)))
    for partition, records in by_partition(example).items():
        counts.add(BatchHashes(batch_of(records, partition, example), counts.reader))
    (count,) = counts.of
    if count.order is None:
        first, across = count.seen.counts[seen.FIRST], count.seen.counts[[seen.ACROSS, seen.ACROSS_CONFLICT]].sum()
        return int(first + across), 0, count.seen.without
    order = count.order.counts
    return int(order[seen.OWNERS] + order[seen.RISES]), int(order[seen.LATE]), count.seen.without


def as_counted(example: Example) -> tuple[int, int, int]:
    """What a survey has to count: the verdicts without a window."""
    late, invalid, fresh = 0, 0, 0
    highest: dict[int, dict[bytes, int]] = defaultdict(dict)
    met: set[tuple[int, bytes, int]] = set()
    rule = Rule(example.stream.identity, SequenceSource.parse(example.stream.sequence), example.stream.sequence_form)
    for record in example.records:
        found = rule.identify(view(record))
        if found is None:
            assert record.verdict not in VERDICTS
            invalid += 1
            continue
        identity, sequence = found
        if sequence > highest[record.partition].get(identity, -1):
            highest[record.partition][identity] = sequence
            assert record.verdict == FRESH
            fresh += 1
        elif (record.partition, identity, sequence) not in met:
            assert record.verdict != CONFLICT
            late += 1
        met.add((record.partition, identity, sequence))
    return fresh, late, invalid


def without_reasons(verdicts: list[str]) -> Iterator[str]:
    """Verdicts with "invalid" for each reason."""
    return (verdict if verdict in VERDICTS else INVALID for verdict in verdicts)
