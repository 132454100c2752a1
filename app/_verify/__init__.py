"""The proof: reads a stream's input and recomputes, record by record, what output and dead letters must be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app._policy import policy_topic
from app._results import result_stream
from app._topics import changelog_name
from app._verify._compare import ExpectedPartition, compare_dead_letters
from app._verify._halted import halted_partitions
from app._verify._identities import Emitted
from app._verify._policies import StretchCheck, check_stretches
from app._verify._reading import Bounds, Reader
from app._verify._report import ExitCode, Finding, Halted, Kind, NeverJudged, Report
from app._verify._rule import RecordView, Rule
from app.settings import Settings, StreamSettings
from errors import SettingsError
from tables import SequenceSource, Stretch

if TYPE_CHECKING:
    from app._verify._results import ResultTable, Session

__all__ = [
    "ExitCode",
    "Finding",
    "Halted",
    "Kind",
    "NeverJudged",
    "RecordView",
    "Report",
    "StretchCheck",
    "halted_partitions",
    "verify",
    "verify_results",
]


def verify(settings: Settings, stream: str | None = None) -> Report:
    """Compare a stream's output and dead letters with what its input demands.

    It reads up to the offsets that the group `settings.app` has committed, may run beside workers, and changes nothing.
    Records that went by while deduplication was switched off, as the changelog has it, must all be in the output; and
    that it was off is looked up in the policy topic.
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
    return _verify(settings, name, chosen, _bootstrap(settings), None)


def verify_results(settings: Settings, stream: str | None, session: Session) -> Report:
    """The same, and on into the result table of the settings: every record once, or why that cannot be said.

    The table is read first and the output after it, so that a job may go on meanwhile. In memory it holds eight more
    bytes for each row of a table that rows are added to, or some 700 for each key of a table with a key; and 16 more
    for each record of one partition of the output.

    Args:
        settings: with `bootstrap` set.
        stream: the stream's name; None: the one of `sink.stream`, or the only one.
        session: starts Spark; called only for a table with a key.

    Raises:
        SetupError: the table cannot be read.
        RatchetError: see `verify`; SettingsError also where the results are of another stream.
    """
    from app._verify._results import ResultTable

    name, chosen = result_stream(settings, stream)
    if settings.sink.stream not in {None, name}:
        raise SettingsError(f"sink.stream: the results are of stream {settings.sink.stream!r}, not of {name!r}")
    table = ResultTable(settings, chosen.output, _bootstrap(settings), session)
    return _verify(settings, name, chosen, _bootstrap(settings), table)


def _bootstrap(settings: Settings) -> str:
    if settings.bootstrap is None:
        raise SettingsError("bootstrap: is missing. Say which Kafka the stream is in")
    return settings.bootstrap


def _verify(settings: Settings, name: str, chosen: StreamSettings, bootstrap: str, table: ResultTable | None) -> Report:
    rule = Rule(chosen.identity, SequenceSource.parse(chosen.sequence), chosen.sequence_form)
    reader = Reader(settings, chosen, bootstrap)
    if table is not None:
        table.read()
    bounds = reader.bounds()
    report = Report(name)
    invalid: dict[int, dict[int, bytes]] = {}
    unjudged = _check_stretches(settings, name, reader, report)
    for partition in range(reader.partitions):
        expected = ExpectedPartition(rule, partition, unjudged.get(partition, ()))
        for offset, record in reader.records(chosen.input, partition, bounds.settled[partition]):
            expected.judge(offset, record, report)
        output = reader.records(chosen.output, partition, bounds.output_ends[partition])
        emitted = None if table is None else Emitted()
        expected.compare(chosen.output, output, bounds.judged[partition], report, emitted)
        if table is not None and emitted is not None:
            table.compare(expected, emitted, bounds.judged[partition])
        invalid[partition] = expected.invalid
        _note_what_waits(report, bounds, partition)
    letters = reader.dead_letters(bounds)
    compare_dead_letters(chosen.input, chosen.dead_letters, invalid, letters, bounds.judged, report)
    if table is not None:
        report.results = table.finish()
    return report


def _check_stretches(settings: Settings, name: str, reader: Reader, report: Report) -> dict[int, list[Stretch]]:
    """Those that were not judged, by partition. What the policy topic says of each goes into the report."""
    stretches = reader.stretches(changelog_name(settings.app, name))
    if not stretches:
        return {}
    topic = reader.policies(policy_topic(settings.app))
    for partition, found in sorted(stretches.items()):
        report.policies += check_stretches(topic, settings, name, partition, found, 0)
    for check in report.policies:
        if check.verdict == "contradicted":
            at = check.policy - 1 if check.policy else None
            where = (check.partition, check.start, 0 if check.policy else None, at)
            report.add(Finding("contradicted", topic.name, *where, None, None, str(check)))
    unjudged = {number: [each for each in found if not each.deduplicate] for number, found in stretches.items()}
    report.stretches += [(number, each.start, each.end) for number, found in unjudged.items() for each in found]
    return unjudged


def _note_what_waits(report: Report, bounds: Bounds, partition: int) -> None:
    settled, end = bounds.settled[partition], bounds.input_ends[partition]
    report.pending += max(0, end - settled)
    if partition in bounds.uncommitted and end > 0:
        report.never_judged.append(NeverJudged(partition, 0, end, deleted=False))
