"""Comparison of a stream's input with its internal topic, for streams with `repartition_by`.

Each record of the input must be once in the internal topic; a record without a valid identity must be a dead letter
instead. All records of one identity must be in one partition of the internal topic; the choice of this partition is not
checked. Records of one identity and one input partition must have kept their order.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from kafka_ratchet.app.repartition import RepartitionSettings
from kafka_ratchet.app.verify.findings import Finding
from kafka_ratchet.app.verify.letters import Letters
from kafka_ratchet.app.verify.reading import TopicReader, is_other_topic
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rows import content
from kafka_ratchet.app.verify.rule import RecordView
from kafka_ratchet.app.verify.state import Baseline
from kafka_ratchet.rule.identity import MAX_IDENTITY_BYTES
from kafka_ratchet.topic_log.clients import OffsetRange
from kafka_ratchet.transport.owner import INPUT, OUTPUT, Owner

DIGEST_BYTES: Final = 16
"""Length in bytes of the digest of a record or an identity.

Two different records have equal digests in 1 of 2^128 cases.
"""
Identify = Callable[[RecordView], bytes | None]
Due = deque[tuple[bytes, bool]]
"""Queue of one identity's records in one input partition, in order: digest, and True if the record is due.

A record is due if the group had committed it before the internal topic was read.
"""
IN_NO_ORDER: Final = -1
"""Key of records with copies in several input partitions, in place of an input partition.

Such copies look alike, so their order is not checked.
"""


def compare_arrivals(
    reader: TopicReader, arrivals: RepartitionSettings, owners: dict[int, Owner], identify: Identify, report: Report
) -> None:
    """Compare the committed records of the input with those of the internal topic.

    If retention has deleted the beginning of either topic, the comparison checks only that each identity has all its
    records in one partition. The same applies after a decision of an operator, and after the input was created again.
    If the internal topic was created again, nothing is checked. `Report.arrivals_not_compared` counts these cases. The
    comparison takes some 300 bytes of memory for each record of the input.

    Args:
        reader: reader of any stream of the application.
        arrivals: internal stream, from the input to the internal topic.
        owners: owner entries of the internal stream's changelog, by partition.
        identify: function that returns a record's identity; None for a record without one.
        report: receives the findings and the waiting input.

    Raises:
        BrokerUnavailable: Kafka does not answer.
        TransportError: a partition cannot be read.
    """
    count, output = reader.count(arrivals.input), arrivals.output
    before = reader.committed_of(arrivals.input, count)
    ends = reader.sent(output)
    lettered = reader.sent(arrivals.dead_letters)
    after = reader.committed_of(arrivals.input, count)
    given = reader.spans(arrivals.input)
    blocked = reader.blocked(arrivals.input, {number: end for number, (_, end) in given.items()})
    report.blocked += blocked
    high = {each.partition: each.end for each in blocked}
    for number, (begin, end) in given.items():
        report.pending += max(0, high.get(number, end) - max(begin, after[number]))
    report.arrivals_not_compared = sum(begin > 0 for begin, _ in given.values()) + sum(held.first > 0 for held in ends)
    other = {part: _replaced(reader, owners, part, name) for part, name in ((INPUT, arrivals.input), (OUTPUT, output))}
    decided = {number for number, owner in owners.items() if owner.decisions}
    report.arrivals_not_compared += len(decided | other[INPUT] | other[OUTPUT])
    if other[OUTPUT]:
        return
    due: dict[bytes, dict[int, Due]] | None = None
    if not report.arrivals_not_compared:
        letters = _letters(reader, arrivals, lettered, report)
        due = {}
        for number, (begin, end) in given.items():
            invalid: dict[int, bytes] = {}
            for offset, record in reader.records(arrivals.input, number, min(end, after[number]), begin):
                if (identity := _identity(identify, record)) is None:
                    invalid[offset] = content(record, with_timestamp=False)
                else:
                    mine = due.setdefault(identity, {}).setdefault(number, deque())
                    mine.append((_digest(record), offset < before[number]))
            letters.compare(number, invalid, before[number], Baseline())
        letters.finish()
        for parts in due.values():
            _set_aside(parts)
    _compare_copies(reader, output, ends, identify, due, report)


def _replaced(reader: TopicReader, owners: dict[int, Owner], part: str, name: str) -> set[int]:
    """Return the partitions with an owner entry that names an earlier topic in the role `part`.

    name: name of the present topic in this role
    """
    now = reader.topic_id(name)
    return {number for number, owner in owners.items() if is_other_topic(owner.topics.get(part), name, now)}


def _compare_copies(
    reader: TopicReader,
    topic: str,
    ends: list[OffsetRange],
    identify: Identify,
    due: dict[bytes, dict[int, Due]] | None,
    report: Report,
) -> None:
    """Compare the records of the internal topic with the due records.

    due: None: check only that each identity has all its records in one partition
    """
    partition_of: dict[bytes, int] = {}
    for number, held in enumerate(ends):
        for offset, record in reader.records(topic, number, held.end, held.first):
            at = (topic, None, None, number, offset)
            identity = _identity(identify, record) or b"none" + _digest(record)
            if (known := partition_of.setdefault(identity, number)) != number:
                detail = f"partition {known} has records of the same identity, too"
                report.add(Finding("unexpected", *at, detail=detail))
            if due is not None:
                _take(due.get(identity, {}), _digest(record), at, report)
    lost = sum(is_due for parts in (due or {}).values() for part in parts.values() for _, is_due in part)
    if lost:
        report.add(Finding("lost", topic, detail=f"{lost:,} records of the input are missing"), times=lost)


def _set_aside(parts: dict[int, Due]) -> None:
    """Move records with identical copies in several input partitions to the key IN_NO_ORDER.

    parts: expected records of one identity, by input partition
    """
    if len(parts) == 1:
        return
    times = Counter(digest for part in parts.values() for digest in {digest for digest, _ in part})
    several = {digest for digest, partitions in times.items() if partitions > 1}
    if several:
        aside = [each for part in parts.values() for each in part if each[0] in several]
        for number, part in parts.items():
            parts[number] = deque(each for each in part if each[0] not in several)
        parts[IN_NO_ORDER] = deque(
            sorted(aside, key=lambda each: not each[1])
        )  # due records first, as _take removes the first equal one


def _take(parts: dict[int, Due], digest: bytes, at: tuple[str, None, None, int, int], report: Report) -> None:
    """Remove one record of the internal topic from the expected ones; report a difference.

    parts: expected records of the identity, by input partition; digest: digest of the record; at: topic, partition and
    offset of the record, for the finding
    """
    for part in parts.values():
        if part and part[0][0] == digest:
            part.popleft()
            return
    for number, part in parts.items():
        for index, (other, _) in enumerate(part):
            if other == digest:
                del part[index]
                if number != IN_NO_ORDER:
                    report.add(Finding("reordered", *at, detail="comes before an earlier input record of its identity"))
                return
    report.add(Finding("doubled", *at, detail="is in this topic more often than in the input"))


def _letters(reader: TopicReader, arrivals: RepartitionSettings, ends: list[OffsetRange], report: Report) -> Letters:
    """Return the dead letters of records without a valid identity. ends: first offset and end by partition."""
    is_whole = all(not held.first for held in ends)
    letters = Letters(None, arrivals.input, arrivals.dead_letters, whole=is_whole, report=report)
    counted = report.dead_letters, report.other_letters
    for number, held in enumerate(ends):
        found = reader.records(arrivals.dead_letters, number, held.end, held.first)
        letters.read((number, offset, record) for offset, record in found)
    report.dead_letters, report.other_letters = counted  # these are of another topic than the stream's
    return letters


def _identity(identify: Identify, record: RecordView) -> bytes | None:
    """Return a digest of a record's identity; None if the record has no valid identity."""
    identity = identify(record)
    return None if identity is None or len(identity) > MAX_IDENTITY_BYTES else _hashed(identity)


def _digest(record: RecordView) -> bytes:
    return _hashed(repr((record.key, record.value, record.headers, record.timestamp_ms)).encode())


def _hashed(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
