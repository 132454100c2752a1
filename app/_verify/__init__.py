"""The proof: reads a stream's input and recomputes, record by record, what output and dead letters must be."""

from __future__ import annotations

from app._topics import changelog_name
from app._verify._compare import ExpectedPartition, compare_dead_letters
from app._verify._reading import Reader
from app._verify._report import Finding, Kind, Report
from app._verify._rule import RecordView, Rule
from app.settings import Settings
from errors import SettingsError
from tables import SequenceSource

__all__ = ["Finding", "Kind", "RecordView", "Report", "verify"]


def verify(settings: Settings, stream: str | None = None) -> Report:
    """Compare a stream's output and dead letters with what its input demands.

    It reads up to the offsets that the group `settings.app` has committed, may run beside workers, and changes nothing.
    Records that went by while deduplication was switched off, as the changelog has it, must all be in the output.
    In memory it holds some 200 bytes per fresh record of one partition at a time, and per invalid record of all.

    Args:
        settings: with `bootstrap` set.
        stream: the stream's name; None where there is only one.

    Raises:
        SettingsError: no such stream, no bootstrap, or an extractor that cannot be imported.
        TopicMissing: one of the three topics does not exist.
        PartitionsDiffer: input and output have different partition counts.
        PositionLost: a topic no longer holds its beginning.
        BrokerUnavailable: Kafka does not answer.
        TransportError: a partition cannot be read.
    """
    name, chosen = settings.stream(stream)
    if settings.bootstrap is None:
        raise SettingsError("bootstrap: is missing. Say which Kafka the stream is in")
    rule = Rule(chosen.identity, SequenceSource.parse(chosen.sequence))
    reader = Reader(settings, chosen, settings.bootstrap)
    bounds = reader.bounds()
    report = Report(name)
    invalid: dict[int, dict[int, bytes]] = {}
    unjudged = reader.unjudged(changelog_name(settings.app, name))
    report.stretches += [(partition, each.start, each.end) for partition, found in unjudged.items() for each in found]
    for partition in range(reader.partitions):
        expected = ExpectedPartition(rule, partition, unjudged.get(partition, ()))
        for offset, record in reader.records(chosen.input, partition, bounds.settled[partition]):
            expected.judge(offset, record, report)
        output = reader.records(chosen.output, partition, bounds.output_ends[partition])
        expected.compare(chosen.output, output, bounds.judged[partition], report)
        invalid[partition] = expected.invalid
        report.pending += max(0, bounds.input_ends[partition] - bounds.settled[partition])
    letters = reader.dead_letters(bounds)
    compare_dead_letters(chosen.input, chosen.dead_letters, invalid, letters, bounds.judged, report)
    return report
