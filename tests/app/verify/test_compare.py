"""The comparison of one partition's output with its input, without a broker."""

from __future__ import annotations

from dataclasses import replace

from kafka_ratchet.app.verify.compare import ExpectedPartition
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rule import RecordView, Rule
from kafka_ratchet.rule.identity import Identity, SequenceSource
from kafka_ratchet.tables.policy_intervals import PolicyInterval

RULE = Rule(Identity.PRODUCER, SequenceSource.parse("header:ratchet-sequence"))
OFF = PolicyInterval(0, False, 0, 3, 1, 3)


def test_times_that_kafka_has_replaced_are_not_compared_where_no_record_has_a_sequence() -> None:
    given = [RecordView(b"k", b"%d" % number, [], number) for number in (1, 2, 2)]
    written = [replace(each, timestamp_ms=9_000 + at, is_append_time=True) for at, each in enumerate(given)]
    expected, report = ExpectedPartition(RULE, 0, [OFF]), Report("events")
    for offset, each in enumerate(given):
        expected.add_input(offset, each, report)
    expected.compare("output", iter(enumerate(written)), 3, report)
    assert (dict(report.counts), report.restamped, report.delivered) == ({}, 3, 3)
