"""The proof: reads a stream's input and recomputes, record by record, what output and dead letters must be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kafka_ratchet.app.repartition import Arrivals, arrivals_of
from kafka_ratchet.app.settings import Settings, StreamSettings, with_arrivals
from kafka_ratchet.app.status.results import result_stream
from kafka_ratchet.app.verify.arrivals import compare_arrivals
from kafka_ratchet.app.verify.columns.choice import AsColumns, Changelog
from kafka_ratchet.app.verify.compare import ExpectedPartition
from kafka_ratchet.app.verify.findings import Finding, FindingKind, IntervalCheck
from kafka_ratchet.app.verify.halted import halted_partitions
from kafka_ratchet.app.verify.identities import Emitted
from kafka_ratchet.app.verify.reading import TopicReader
from kafka_ratchet.app.verify.report import Begin, ExitCode, Halted, NeverJudged, Report, Skipped
from kafka_ratchet.app.verify.rule import RecordView, Rule
from kafka_ratchet.app.verify.run import Run, without_beginning
from kafka_ratchet.app.verify.skips import skipped_by_decision
from kafka_ratchet.app.verify.source import SourceComparison, SourceFiles
from kafka_ratchet.app.verify.windows import judging_of
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.tables.identity import SequenceSource
from kafka_ratchet.transport.owner import AGENTS

if TYPE_CHECKING:
    from kafka_ratchet.app.verify.results import ResultTable, Session

__all__ = [
    "Begin",
    "ExitCode",
    "Finding",
    "FindingKind",
    "Halted",
    "IntervalCheck",
    "NeverJudged",
    "RecordView",
    "Report",
    "Skipped",
    "SourceFiles",
    "halted_partitions",
    "verify",
    "verify_results",
]


def verify(
    settings: Settings,
    stream: str | None = None,
    *,
    state: Path | None = None,
    source: SourceFiles | None = None,
    independent: bool | None = None,
) -> Report:
    """Compare a stream's output and dead letters with what its input demands.

    It reads up to the offsets that the group `settings.app` has committed, may run beside workers, and changes nothing.
    Records that were forwarded while deduplication was off, by the changelog, must all be in the output; the policy
    topic is asked whether it was off. A topic whose beginning retention has deleted is proven from there on, and the
    report says from where.

    A partition may be compared as columns, with the worker's reader and a rule of its own: where all is exactly as it
    must be that is the verdict. Where it is not, or the rule over columns does not know the case, the partition is
    compared record by record with another client; `Report.singly` says why. Memory: some 200 bytes per fresh record and
    400 per identity of one partition at a time, and 300 per dead letter; as columns 150 per identity, and some
    80 MB, of each of two to four partitions at a time.

    Args:
        settings: with `bootstrap` set.
        stream: the stream's name; None where there is only one.
        state: a file that says where the last run ended, and is replaced by where this one did if nothing is wrong.
            There need be none yet.
        source: files that were published to the input under a producer's name, to be compared as well.
        independent: True: record by record, always; False: as columns where that is possible; None: likewise, where
            there is enough input for it.

    Raises:
        SettingsError: no such stream, no bootstrap, or an extractor that cannot be imported.
        StateFileRefused: the state is damaged, or of another stream, application, topic or rule.
        TopicMissing: one of the three topics does not exist.
        PartitionsDiffer: input and output have different partition counts.
        PositionLost: a topic ends before what was committed, or where the last run had come to.
        BrokerUnavailable: Kafka does not answer.
        TransportError: a partition cannot be read.
    """
    settings = with_arrivals(settings)
    name, chosen = settings.stream(stream)
    return _verify(settings, name, chosen, _bootstrap(settings), None, state, source, independent)


def verify_results(
    settings: Settings, stream: str | None, session: Session, *, source: SourceFiles | None = None
) -> Report:
    """Like `verify`, and also compare the result table of the settings with the output: each record once.

    The table is read first and the output after it, so the job may run meanwhile. In memory it holds eight more
    bytes for each row of a table that rows are added to, or some 700 for each key of a table with a key; and 16 more
    for each record of one partition of the output.

    Args:
        settings: with `bootstrap` set.
        stream: the stream's name; None: the one of `sink.stream`, or the only one.
        session: starts Spark; called only for a table with a key.
        source: see `verify`.

    Raises:
        SetupError: the table cannot be read.
        PositionLost: input or output no longer hold their beginning.
        RatchetError: see `verify`; SettingsError also where the results are of another stream.
    """
    from kafka_ratchet.app.verify.raw import verify_raw
    from kafka_ratchet.app.verify.results import ResultTable

    settings = with_arrivals(settings)
    name, chosen = result_stream(settings, stream)
    if settings.sink.stream not in {None, name}:
        raise SettingsError(f"sink.stream: the results are of stream {settings.sink.stream!r}, not of {name!r}")
    if settings.sink.from_input:
        if source is not None:
            raise SettingsError("--source compares files with a stream's output, and with from_input there is none")
        return verify_raw(settings, name, chosen, _bootstrap(settings), session)
    table = ResultTable(settings, chosen.output, _bootstrap(settings), session)
    return _verify(settings, name, chosen, _bootstrap(settings), table, None, source, None)


def _bootstrap(settings: Settings) -> str:
    if settings.bootstrap is None:
        raise SettingsError("bootstrap: is missing. Say which Kafka the stream is in")
    return settings.bootstrap


def _verify(
    settings: Settings,
    name: str,
    chosen: StreamSettings,
    bootstrap: str,
    table: ResultTable | None,
    state: Path | None,
    source: SourceFiles | None,
    independent: bool | None,
) -> Report:
    if isinstance(chosen, Arrivals):
        raise SettingsError(f"streams.{name}: is verified together with the stream it belongs to: --stream {chosen.of}")
    if source is not None and chosen.repartition_by is not None:
        raise SettingsError(
            f"streams.{name}: with repartition_by, files cannot be compared: their records are in another partition of "
            f"{chosen.input} than they were published to. Leave out --source"
        )
    options = {"--results": table, "--source": source}
    reader = TopicReader(settings, chosen, bootstrap)
    source_of = SequenceSource.parse(chosen.sequence)
    rule = Rule(chosen.identity, source_of, chosen.sequence_form, reader.letters_topic())
    sent = None if source is None else SourceComparison(source, reader.published(source.producer))
    if table is not None:
        table.read()
    ranges = reader.offset_ranges()
    report = Report(name)
    run = Run(settings, name, reader, ranges, report)
    with run.continued(state):
        letters = run.letters()
        intervals, owners, edits = reader.changelog(reader.changelog_name(settings.app, name))
        if any(owner.rule.get("output") == AGENTS for owner in owners.values()):
            raise SettingsError(
                f"streams.{name}: its output is what agents of one's own yield, and this compares records that are "
                "forwarded as they came. Run the agents over the input again: "
                f"ratchet verify --replay --app MODULE:NAME --stream {name}"
            )
        if state is not None and any(map(judging_of, owners.values())):
            raise SettingsError(
                f"streams.{name}: it has, or had, reorder_window or conflicts, and the file of --state has no room for "
                "what they remember. Run verify without --state"
            )
        as_columns = AsColumns(
            settings,
            bootstrap,
            chosen,
            ranges,
            Changelog(intervals, owners, edits),
            reader.topic_ids,
            report,
            independent=independent,
            more=next((option for option, given in options.items() if given is not None), None),
            state=state is not None,
        )
        for partition in range(reader.partitions):
            baseline = run.begin(partition)
            owner = owners.get(partition)
            if run.is_of_other_topics(partition, owner):
                letters.leave_out(partition)
                continue
            if table is not None and (baseline.input_from or baseline.output_from):
                raise without_beginning(chosen, partition, baseline)
            unjudged = run.check_intervals(partition, intervals.get(partition, []), baseline.input_from, owner)
            changed = run.edited(partition, edits.get(partition, []), baseline.input_from)
            if (exact := as_columns.exact(partition, baseline)) is not None:
                exact.add_to(report)
                waits_from, lettered = letters.compare(partition, exact.invalid, ranges.judged[partition], baseline)
                run.end(partition, exact, [waits_from], lettered)
                continue
            dropped = run.dropped(partition)
            expected = ExpectedPartition(
                rule,
                partition,
                unjudged,
                baseline,
                skipped_by_decision(owner),
                changed,
                judging_of(owner),
                forward=chosen.forward,
                on_dropped=dropped.expect if dropped is not None else None,
            )
            given = reader.records(chosen.input, partition, ranges.committed_to[partition], baseline.input_from)
            output = reader.records(chosen.output, partition, ranges.output_ends[partition], baseline.output_from)
            if sent is not None:
                given, output = run.watched(sent, rule, partition, baseline, given, output)
            for offset, record in given:
                expected.judge(offset, record, report)
            emitted = None if table is None else Emitted()
            expected.compare(chosen.output, output, ranges.judged[partition], report, emitted)
            if table is not None and emitted is not None:
                table.compare(expected, emitted, ranges.judged[partition])
            run.note_skipped(partition, expected, ranges.committed_to[partition])
            letters_wait, lettered = letters.compare(partition, expected.invalid, ranges.judged[partition], baseline)
            dropped_wait = None if dropped is None else run.compare_dropped(dropped, expected, owner)
            run.end(partition, expected, [letters_wait, dropped_wait], lettered)
        letters.finish()
        if isinstance(arrivals := settings.streams.get(arrivals_of(name)), Arrivals):
            owned = reader.changelog(reader.changelog_name(settings.app, arrivals_of(name)))[1]
            compare_arrivals(reader, arrivals, owned, rule.identity_of, report)
    if table is not None:
        report.results = table.finish()
    if sent is not None:
        report.source = sent.finish(ranges.judged, ranges.input_begins, ranges.output_begins)
    return report
