"""Comparison of an input with the result table of a Spark job that deduplicates it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.verify.compare import ExpectedPartition
from kafka_ratchet.app.verify.identities import UNMATCHED, OutputRecords
from kafka_ratchet.app.verify.reading import TopicReader
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rule import Rule
from kafka_ratchet.errors import PositionLost
from kafka_ratchet.rule.identity import SequenceSource
from kafka_ratchet.rule.verdicts import FRESH
from kafka_ratchet.transport.owner import JudgingFrom

if TYPE_CHECKING:
    from kafka_ratchet.app.verify.results import Session


def verify_raw(settings: Settings, name: str, stream: StreamSettings, bootstrap: str, session: Session) -> Report:
    """Compare the fresh and invalid records of an input with the table.

    Each input record is judged by verify's own rule. Output and dead-letter topic need not exist. The comparison needs
    as much memory as `verify_results`.

    Args:
        settings: settings with `from_input` in the sink.
        name: name of the stream.
        stream: settings of the stream.
        bootstrap: host:port[,host:port].
        session: function that starts Spark; not called if sink.sql or sink.transform makes the rows.

    Raises:
        SetupError: the table cannot be read.
        PositionLost: retention has deleted the beginning of the input.
        RatchetError: see `kafka_ratchet.app.verify.verify`.
    """
    from kafka_ratchet.app.status.results import sink_errors_translated
    from kafka_ratchet.app.verify.results import ResultTable

    reader = TopicReader(settings, stream, bootstrap, input_only=True)
    rule = Rule(stream.identity, SequenceSource.parse(stream.sequence), stream.sequence_form)
    judging = [JudgingFrom(0, stream.judging)] if stream.reorder_window else []
    table = ResultTable(settings, stream.input, bootstrap, session)
    table.read()
    with sink_errors_translated():
        held = table.planner.offset_range()  # after the table: its offsets lie before these ends
    report = Report(name, from_input=True)
    try:
        report.blocked = reader.blocked(stream.input, held.end)
        report.pending = sum(each.count for each in report.blocked)
        for partition, end in sorted(held.end.items()):
            if held.earliest[partition]:
                raise PositionLost(
                    f"{stream.input} partition {partition} begins at offset {held.earliest[partition]}: earlier "
                    "records are deleted, so it is unknown which of the remaining records are new. Verify the table "
                    "while the topic still has all its records"
                )
            expected, emitted = ExpectedPartition(rule, partition, judging=judging), OutputRecords()
            place = 0
            for offset, record in reader.records(stream.input, partition, end):
                if expected.add_input(offset, record, report) == FRESH:
                    emitted.add(offset, place, record.timestamp_ms)
                    place += 1
                elif offset in expected.invalid:
                    emitted.add(offset, UNMATCHED, record.timestamp_ms)
            expected.take_all_as_seen(report)
            table.compare_judged(expected, emitted, end)
    finally:
        reader.close()
    report.results = table.finish()
    return report
