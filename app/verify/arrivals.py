"""Compares the internal topic of a stream with `repartition_by` with the input: each record once, in one partition.

Which partition a record has to be in is not computed again. It has to be the one in which all records of its identity
are.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Final

from kafka_ratchet.app.repartition import Arrivals
from kafka_ratchet.app.verify.findings import Finding
from kafka_ratchet.app.verify.reading import TopicReader
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rule import RecordView, was_replayed

DIGEST_BYTES: Final = 16
"""Of a record or an identity, which are compared by it; two that differ have the same one in 2^128 cases."""
Identify = Callable[[RecordView], bytes | None]


def compare_arrivals(reader: TopicReader, arrivals: Arrivals, identify: Identify, report: Report) -> None:
    """Compare what the group has committed of the input with the committed records of the internal topic.

    In memory it holds some 100 bytes for each record of the input, and for each identity.

    Where one of them has lost its beginning, nothing is compared, and the report says so.

    Args:
        reader: of any stream
        arrivals: the stream that has sent the records
        identify: the identity of a record; None where it has none
        report: gets findings, and what of the input waits

    Raises:
        BrokerUnavailable: Kafka does not answer.
        TransportError: a partition cannot be read.
    """
    count = reader.count(arrivals.input)
    before = reader.committed_of(arrivals.input, count)
    ends = reader.sent(arrivals.output)
    after = reader.committed_of(arrivals.input, count)
    given = reader.spans(arrivals.input)
    report.arrivals_not_compared = sum(begin > 0 for begin, _ in given.values()) + sum(held.first > 0 for held in ends)
    if report.arrivals_not_compared:
        return
    due: Counter[bytes] = Counter()
    """How often a record must be there, less how often it is."""
    may_be: Counter[bytes] = Counter()
    for number, (begin, end) in given.items():
        report.pending += max(0, end - max(begin, after[number]))
        for offset, record in reader.records(arrivals.input, number, min(end, after[number]), begin):
            (due if offset < before[number] else may_be)[_digest(record)] += 1
    partition_of: dict[bytes, int] = {}
    for number, spans in enumerate(ends):
        for offset, record in reader.records(arrivals.output, number, spans.end, spans.first):
            at = (arrivals.output, None, None, number, offset)
            digest = _digest(record)
            if due[digest] <= 0 and may_be[digest] <= 0:
                if was_replayed(record):
                    continue  # its dead letter was sent here, and not to the input
                report.add(Finding("doubled", *at, detail="is there more often than in the input, or not in it at all"))
            elif due[digest] > 0:
                due[digest] -= 1
            else:
                may_be[digest] -= 1
            identity = identify(record)
            known = number if identity is None else partition_of.setdefault(_hashed(identity), number)
            if known != number:
                detail = f"records of its identity are in partition {known} as well, where others are judged"
                report.add(Finding("unexpected", *at, detail=detail))
    if lost := due.total():
        report.add(Finding("lost", arrivals.output, detail=f"{lost:,} records of the input are not there"), times=lost)


def _digest(record: RecordView) -> bytes:
    return _hashed(repr((record.key, record.value, record.headers, record.timestamp_ms)).encode())


def _hashed(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
